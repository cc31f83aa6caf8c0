/* SPDX-License-Identifier: MIT */
/* Checkpoints: what is read, what is written, and every malformed file by name. */
#include "file_test.h"

/* ---- Files in memory */

typedef struct test_file {
    uint8_t bytes[4096];
    int64_t size;
} test_file;

static test_file file_of(const char *json, const void *data, size_t data_size)
{
    test_file file;
    uint8_t *at = file.bytes;
    assert_true(8 + strlen(json) + data_size <= sizeof(file.bytes));
    put(&at, strlen(json), 8);
    put_bytes(&at, json, strlen(json));
    put_bytes(&at, data, data_size);
    file.size = at - file.bytes;
    return file;
}

static nl_status open_bytes(const void *bytes, int64_t size, nl_checkpoint **checkpoint,
                            void **copy)
{
    *copy = exact_copy(bytes, (size_t)size);
    return nl_checkpoint_open_memory(context, "test.safetensors", *copy, size, checkpoint);
}

static void refuse_bytes(const void *bytes, int64_t size, const char *message)
{
    nl_checkpoint *checkpoint = (nl_checkpoint *)1;
    void *copy;
    int64_t used = context->memory_used;
    nl_status status = open_bytes(bytes, size, &checkpoint, &copy);
    assert_refused("a file", status, used, "test.safetensors", message);
    assert_null(checkpoint);
    free(copy);
}

/* 16 bytes of data follow the header. */
static void refuse(const char *json, const char *message)
{
    test_file file = file_of(json, "0123456789abcdef", 16);
    refuse_bytes(file.bytes, file.size, message);
}

/* ---- Reading */

static void reads_every_type(void **state)
{
    (void)state;
    const char json[] = "{\"bf16\":{\"dtype\":\"BF16\",\"shape\":[2],\"data_offsets\":[0,4]},"
                        "\"f16\":{\"dtype\":\"F16\",\"shape\":[2],\"data_offsets\":[4,8]},"
                        "\"f32\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[8,16]},"
                        "\"f64\":{\"dtype\":\"F64\",\"shape\":[2],\"data_offsets\":[16,32]},"
                        "\"i8\":{\"dtype\":\"I8\",\"shape\":[2],\"data_offsets\":[32,34]},"
                        "\"u8\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[34,36]},"
                        "\"i64\":{\"dtype\":\"I64\",\"shape\":[2],\"data_offsets\":[36,52]},"
                        "\"i32\":{\"dtype\":\"I32\",\"shape\":[2],\"data_offsets\":[52,60]},"
                        "\"i16\":{\"dtype\":\"I16\",\"shape\":[2],\"data_offsets\":[60,64]},"
                        "\"bool\":{\"dtype\":\"BOOL\",\"shape\":[2],\"data_offsets\":[64,66]},"
                        "\"scalar\":{\"dtype\":\"U8\",\"shape\":[],\"data_offsets\":[66,67]},"
                        "\"empty\":{\"dtype\":\"F32\",\"shape\":[0,7],\"data_offsets\":[67,67]},"
                        "\"__metadata__\":{\"a\":\"1\",\"b\":\"two\"}}   ";
    struct __attribute__((packed)) {
        uint16_t bf16[2], f16[2];
        float f32[2];
        double f64[2];
        int8_t i8[2];
        uint8_t u8[2];
        int64_t i64[2];
        int32_t i32[2];
        int16_t i16[2];
        uint8_t boolean[2], scalar;
    } data = {{0x3fc0, 0xc000}, {0x3e00, 0xc000}, {1.5f, -2}, {1.5, -2}, {1, -2}, {1, 254},
              {1, -2},          {1, -2},          {1, -2},    {1, 0},    9};
    const struct {
        const char *name;
        float values[2];
    } expected[] = {{"bf16", {1.5f, -2}}, {"f16", {1.5f, -2}}, {"f32", {1.5f, -2}},
                    {"f64", {1.5f, -2}},  {"i8", {1, -2}},     {"u8", {1, 254}},
                    {"i64", {1, -2}},     {"i32", {1, -2}},    {"i16", {1, -2}},
                    {"bool", {1, 0}}};
    test_file file = file_of(json, &data, sizeof(data));
    nl_checkpoint *checkpoint = NULL;
    void *copy;
    assert_ok(context, open_bytes(file.bytes, file.size, &checkpoint, &copy));
    assert_string_equal(checkpoint->format, "safetensors");
    assert_int_equal(checkpoint->count, 12);
    for (int i = 0; i < NL_COUNT(expected); i++) {
        float values[2];
        const nl_entry *entry = nl_checkpoint_find(checkpoint, expected[i].name);
        assert_non_null(entry);
        assert_int_equal(nl_entry_count(entry), 2);
        assert_ok(context, nl_entry_read(checkpoint, entry, values));
        assert_memory_equal(values, expected[i].values, sizeof(values));
    }
    float scalar = 0;
    const nl_entry *entry = nl_checkpoint_find(checkpoint, "scalar");
    assert_int_equal(entry->ndim, 0);
    assert_ok(context, nl_entry_read(checkpoint, entry, &scalar));
    assert_true(scalar == 9);
    assert_int_equal(nl_entry_count(nl_checkpoint_find(checkpoint, "empty")), 0);
    assert_ok(context, nl_entry_read(checkpoint, nl_checkpoint_find(checkpoint, "empty"), NULL));
    assert_string_equal(nl_checkpoint_metadata(checkpoint, "b"), "two");
    assert_null(nl_checkpoint_metadata(checkpoint, "c"));
    assert_null(nl_checkpoint_find(checkpoint, "f3"));
    assert_null(nl_checkpoint_find(checkpoint, ""));
    nl_checkpoint_close(checkpoint);
    free(copy);
}

static void folds_row_scales(void **state)
{
    (void)state;
    const char json[] = "{\"w\":{\"dtype\":\"I8\",\"shape\":[2,3],\"data_offsets\":[0,6]},"
                        "\"w.scale\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[6,14]},"
                        "\"v.scale\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[14,16]}}";
    struct __attribute__((packed)) {
        int8_t w[6];
        float scale[2];
        uint8_t v[2];
    } data = {{1, -2, 127, 4, 0, -127}, {0.5f, 2}, {7, 8}};
    const float expected[6] = {0.5f, -1, 63.5f, 8, 0, -254};
    test_file file = file_of(json, &data, sizeof(data));
    nl_checkpoint *checkpoint = NULL;
    void *copy;
    float values[6];
    assert_ok(context, open_bytes(file.bytes, file.size, &checkpoint, &copy));
    assert_int_equal(checkpoint->count,
                     2); /* a .scale without int8 weights is a tensor like others */
    assert_null(nl_checkpoint_find(checkpoint, "w.scale"));
    assert_non_null(nl_checkpoint_find(checkpoint, "v.scale"));
    assert_ok(context, nl_entry_read(checkpoint, nl_checkpoint_find(checkpoint, "w"), values));
    assert_memory_equal(values, expected, sizeof(values));
    nl_checkpoint_close(checkpoint);
    free(copy);
}

static void reads_along_strides(void **state)
{
    (void)state;
    const float data[6] = {0, 1, 2, 3, 4, 5}, expected[6] = {0, 3, 1, 4, 2, 5};
    const int64_t strides[2] = {1, 3};
    nl_checkpoint checkpoint = {.context = context, .path = "test"};
    nl_entry entry = {.name = "t",
                      .dtype = NL_F32,
                      .ndim = 2,
                      .shape = {3, 2, 1, 1, 1},
                      .data = data,
                      .strides = strides};
    float values[6];
    assert_ok(context, nl_entry_read(&checkpoint, &entry, values));
    assert_memory_equal(values, expected, sizeof(values));
}

static void refuses_values_that_are_not_finite(void **state)
{
    (void)state;
    const char json[] =
        "{\"blocks.0.w\":{\"dtype\":\"F32\",\"shape\":[4],\"data_offsets\":[0,16]}}";
    const char scaled[] = "{\"q\":{\"dtype\":\"I8\",\"shape\":[1,4],\"data_offsets\":[0,4]},"
                          "\"q.scale\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[4,8]}}";
    const char *names[] = {"blocks.0.w", "blocks.0.w", "q"};
    float nan[4] = {1, 2, NAN, 4}, infinite[4] = {1, 2, 3, -INFINITY}, scale[2] = {0, NAN};
    test_file files[] = {file_of(json, nan, 16), file_of(json, infinite, 16),
                         file_of(scaled, scale, 8)};
    for (int i = 0; i < NL_COUNT(files); i++) {
        nl_checkpoint *checkpoint = NULL;
        void *copy;
        float values[4];
        assert_ok(context, open_bytes(files[i].bytes, files[i].size, &checkpoint, &copy));
        assert_int_equal(
            nl_entry_read(checkpoint, nl_checkpoint_find(checkpoint, names[i]), values),
            NL_ERROR_INPUT);
        assert_non_null(strstr(nl_last_error(context), names[i]));
        nl_checkpoint_close(checkpoint);
        free(copy);
    }
}

/* ---- Malformed files, by name */

#define ONE(dtype, shape, offsets)                                                                 \
    "{\"a\":{\"dtype\":\"" dtype "\",\"shape\":" shape ",\"data_offsets\":" offsets "}}"
#define TWO(first, second)                                                                         \
    "{\"a\":{\"dtype\":\"U8\",\"shape\":" first "},\"b\":{\"dtype\":\"U8\",\"shape\":" second "}}"

static void bad_magic(void **state)
{
    (void)state;
    refuse_bytes("", 0, "not a checkpoint");
    refuse_bytes("{}", 2, "not a checkpoint");
    refuse_bytes("\2\0\0\0\0\0\0\0", 8, "not a checkpoint");
    refuse_bytes("\2\0\0\0\0\0\0\0[]", 10, "begin with 02 00");
    refuse_bytes("\0\0\0\0\0\0\0\0{}", 10, "does not begin with {");
}

static void other_formats(void **state)
{
    (void)state;
    refuse_bytes("PK\3\4aaaaaaaaaaaa", 16, "the file is cut off");
    refuse_bytes("\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19.", 15,
                 "it ends in the middle of a value");
    refuse_bytes("\x93NUMPY\1\0", 8, "numpy");
    refuse_bytes("version https://git-lfs.github.com/spec/v1\n", 43, "git lfs pull");
    refuse_bytes("<!DOCTYPE html>", 15, "web page");
    refuse_bytes("\x80\x04N.", 4, "a pickle that torch.save has not written");
}

static void header_longer_than_the_file(void **state)
{
    (void)state;
    refuse_bytes("\3\0\0\0\0\0\0\0{}", 10, "should be 3 bytes long");
    refuse_bytes("\0\0\0\0\0\0\0\x80{}", 10, "should be 9223372036854775808 bytes");
    refuse_bytes("\xff\xff\xff\xff\xff\xff\xff\xff{}", 10, "should be 18446744073709551615 bytes");
}

static void header_longer_than_the_limit(void **state)
{
    (void)state;
    enum { SIZE = 100000001 };
    uint8_t *bytes = malloc(8 + SIZE);
    memset(bytes, ' ', 8 + SIZE);
    memcpy(bytes, "\x01\xe1\xf5\x05\0\0\0\0{}", 10);
    refuse_bytes(bytes, 8 + SIZE, "the limit is 100000000");
    free(bytes);
}

static void header_is_not_json(void **state)
{
    (void)state;
    refuse("{\"a\":", "test.safetensors");
    refuse("{}x", "test.safetensors");
    refuse("{\"a\":{\"dtype\":\"U8\",\"shape\":[16],\"data_offsets\":[0,16]}", "test.safetensors");
}

static void duplicate_name(void **state)
{
    (void)state;
    refuse("{\"a\":{\"dtype\":\"U8\",\"shape\":[8],\"data_offsets\":[0,8]},"
           "\"a\":{\"dtype\":\"U8\",\"shape\":[8],\"data_offsets\":[8,16]}}",
           "twice");
    refuse("{\"a\":{\"dtype\":\"U8\",\"dtype\":\"U8\",\"shape\":[16],\"data_offsets\":[0,16]}}",
           "twice");
}

static void entry_is_not_an_object(void **state)
{
    (void)state;
    refuse("{\"a\":[1]}", "tensor a: expected an object");
    refuse("{\"a\":null}", "tensor a");
    refuse("{\"a\":{\"shape\":[16],\"data_offsets\":[0,16]}}", "tensor a: no \"dtype\"");
    refuse("{\"a\":{\"dtype\":\"U8\",\"data_offsets\":[0,16]}}", "tensor a: no \"shape\"");
    refuse("{\"a\":{\"dtype\":\"U8\",\"shape\":[16]}}", "data_offsets");
    refuse("{\"a\":{\"dtype\":\"U8\",\"shape\":[16],\"data_offsets\":[0,16],\"shap\":1}}", "shap");
}

static void unknown_type(void **state)
{
    (void)state;
    refuse(ONE("F8_E4M3", "[16]", "[0,16]"), "tensor a has the type F8_E4M3");
    refuse(ONE("U16", "[8]", "[0,16]"), "U16");
    refuse(ONE("", "[8]", "[0,16]"), "tensor a");
}

static void offset_past_the_end(void **state)
{
    (void)state;
    refuse(ONE("U8", "[17]", "[0,17]"), "within the file's 16 bytes");
    refuse(ONE("U8", "[0]", "[17,17]"), "within the file's 16 bytes");
    refuse(ONE("U8", "[9007199254740992]", "[0,9007199254740992]"), "within the file's 16 bytes");
}

static void offsets_backwards(void **state)
{
    (void)state;
    refuse(ONE("U8", "[16]", "[16,0]"), "data_offsets");
}

static void offsets_of_the_wrong_kind(void **state)
{
    (void)state;
    refuse(ONE("U8", "[16]", "[-1,15]"), "data_offsets");
    refuse(ONE("U8", "[16]", "[0,16.5]"), "data_offsets");
    refuse(ONE("U8", "[16]", "[0]"), "data_offsets");
    refuse(ONE("U8", "[16]", "[0,16,16]"), "data_offsets");
    refuse(ONE("U8", "[16]", "[\"0\",16]"), "data_offsets");
    refuse(ONE("U8", "[16]", "[0,1e300]"), "data_offsets");
}

static void negative_size(void **state)
{
    (void)state;
    refuse(ONE("U8", "[-16]", "[0,16]"), "tensor a: its shape");
    refuse(ONE("U8", "[-4,-4]", "[0,16]"), "tensor a: its shape");
    refuse(ONE("U8", "[1.5]", "[0,16]"), "tensor a: its shape");
    refuse(ONE("U8", "[\"16\"]", "[0,16]"), "tensor a: its shape");
}

static void shape_overflows(void **state)
{
    (void)state;
    refuse(ONE("F32", "[4294967296,4294967296]", "[0,16]"), "does not fill");
    refuse(ONE("F64", "[4503599627370496,4096]", "[0,16]"), "does not fill");
    refuse(ONE("U8", "[4294967296,4294967296,0]", "[0,16]"), "does not fill");
}

static void shape_does_not_fill_the_data(void **state)
{
    (void)state;
    refuse(ONE("F32", "[3]", "[0,16]"), "F32 of shape [3] does not fill data_offsets [0, 16]");
    refuse(ONE("F32", "[5]", "[0,16]"), "does not fill");
    refuse(ONE("F32", "[0]", "[0,16]"), "does not fill");
}

static void too_many_sizes(void **state)
{
    (void)state;
    refuse(ONE("U8", "[1,1,1,1,1,16]", "[0,16]"), "more than 5");
}

static void overlap(void **state)
{
    (void)state;
    refuse(TWO("[9],\"data_offsets\":[0,9]", "[8],\"data_offsets\":[8,16]"), "a and b overlap");
    refuse(TWO("[16],\"data_offsets\":[0,16]", "[16],\"data_offsets\":[0,16]"), "overlap");
}

static void hole(void **state)
{
    (void)state;
    refuse(TWO("[7],\"data_offsets\":[0,7]", "[8],\"data_offsets\":[8,16]"),
           "1 byte before tensor b");
    refuse(ONE("U8", "[15]", "[1,16]"), "1 byte before tensor a");
}

static void bytes_behind(void **state)
{
    (void)state;
    refuse(ONE("U8", "[15]", "[0,15]"), "1 byte at the end");
    refuse("{}", "16 bytes at the end");
}

static void metadata_of_the_wrong_kind(void **state)
{
    (void)state;
    refuse("{\"__metadata__\":[],\"a\":{\"dtype\":\"U8\",\"shape\":[16],\"data_offsets\":[0,16]}}",
           "__metadata__");
    refuse("{\"__metadata__\":{\"k\":1},\"a\":{\"dtype\":\"U8\",\"shape\":[16],"
           "\"data_offsets\":[0,16]}}",
           "metadata k");
}

static void scale_of_the_wrong_length(void **state)
{
    (void)state;
    refuse("{\"w\":{\"dtype\":\"I8\",\"shape\":[2,2],\"data_offsets\":[0,4]},"
           "\"w.scale\":{\"dtype\":\"F32\",\"shape\":[3],\"data_offsets\":[4,16]}}",
           "each of the 2 rows of w, found F32 [3]");
    refuse("{\"w\":{\"dtype\":\"I8\",\"shape\":[2,4],\"data_offsets\":[0,8]},"
           "\"w.scale\":{\"dtype\":\"I32\",\"shape\":[2],\"data_offsets\":[8,16]}}",
           "found I32 [2]");
    refuse("{\"w\":{\"dtype\":\"I8\",\"shape\":[1,8],\"data_offsets\":[0,8]},"
           "\"w.scale\":{\"dtype\":\"F32\",\"shape\":[1,2],\"data_offsets\":[8,16]}}",
           "found F32 [1, 2]");
}

/* Every prefix of a good file is refused, and no byte beyond it is touched. */
static void cut_off_anywhere(void **state)
{
    (void)state;
    test_file file =
        file_of("{\"w\":{\"dtype\":\"I8\",\"shape\":[2,4],\"data_offsets\":[0,8]},"
                "\"w.scale\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[8,16]}}",
                "0123456789abcdef", 16);
    for (int64_t size = 0; size < file.size; size++)
        refuse_bytes(file.bytes, size, "test.safetensors");
}

/* A budget for what a small file with a large header would take. */
static void header_beyond_the_budget(void **state)
{
    (void)state;
    enum { COUNT = 20000, ROOM = COUNT * 80 };
    char *bytes = malloc(ROOM);
    size_t n = 8;
    for (int i = 0; i < COUNT; i++)
        n += (size_t)snprintf(bytes + n, ROOM - n,
                              "%c\"t%d\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0]}",
                              i ? ',' : '{', i);
    bytes[n++] = '}';
    put(&(uint8_t *){(uint8_t *)bytes}, n - 8, 8);
    nl_checkpoint *checkpoint = NULL;
    void *copy;
    assert_ok(context, open_bytes(bytes, (int64_t)n, &checkpoint, &copy));
    assert_int_equal(checkpoint->count, COUNT);
    nl_checkpoint_close(checkpoint);
    context->options.max_memory = context->memory_used + (1 << 20);
    assert_int_equal(nl_checkpoint_open_memory(context, "test", copy, (int64_t)n, &checkpoint),
                     NL_ERROR_MEMORY);
    context->options.max_memory = 0;
    free(copy);
    free(bytes);
}

static void every_allocation_fails_once(void **state)
{
    (void)state;
    const char json[] = "{\"w\":{\"dtype\":\"I8\",\"shape\":[2,4],\"data_offsets\":[0,8]},"
                        "\"w.scale\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[8,16]},"
                        "\"__metadata__\":{\"k\":\"v\"}}";
    test_file file = file_of(json, "0123456789abcdef", 16);
    int64_t used = context->memory_used;
    nl_checkpoint *checkpoint = NULL;
    int failures = 0;
    for (;; failures++) {
        context->fail_allocation = context->allocations + 1 + failures;
        nl_status status =
            nl_checkpoint_open_memory(context, "test", file.bytes, file.size, &checkpoint);
        if (status == NL_OK)
            break;
        assert_int_equal(status, NL_ERROR_MEMORY);
        assert_null(checkpoint);
        assert_int_equal(context->memory_used, used);
    }
    context->fail_allocation = 0;
    assert_true(failures >= 5);
    nl_checkpoint_close(checkpoint);
    assert_int_equal(context->memory_used, used);
}

/* ---- Writing */

static void writes_what_it_reads(void **state)
{
    (void)state;
    const char path[] = "test_safetensors_written.safetensors";
    const char *metadata[] = {"key \"quoted\"", "value\n", "empty", "", NULL};
    const nl_tensor_header headers[] = {
        {"b", NL_F32, 2, {1, 2}}, {"a", NL_U8, 1, {3}}, {"none", NL_F16, 1, {0}}};
    const float b[2] = {1, -2};
    nl_safetensors_writer *writer = NULL;
    nl_checkpoint *checkpoint = NULL;
    float values[3];
    assert_ok(context, nl_safetensors_create(context, path, true, metadata, headers, 3, &writer));
    assert_ok(context, nl_safetensors_write(writer, b, sizeof(b)));
    assert_ok(context, nl_safetensors_write(writer, "\1\2\3", 3));
    assert_ok(context, nl_safetensors_commit(&writer));
    assert_null(writer);
    assert_ok(context, nl_checkpoint_open(context, path, &checkpoint));
    assert_int_equal(checkpoint->count, 3);
    assert_string_equal(nl_checkpoint_metadata(checkpoint, "key \"quoted\""), "value\n");
    assert_string_equal(nl_checkpoint_metadata(checkpoint, "empty"), "");
    const nl_entry *entry = nl_checkpoint_find(checkpoint, "b");
    assert_true(((uintptr_t)entry->data & 7) == 0); /* the header is padded */
    assert_int_equal(entry->ndim, 2);
    assert_ok(context, nl_entry_read(checkpoint, entry, values));
    assert_memory_equal(values, b, sizeof(b));
    nl_checkpoint_close(checkpoint);
    assert_int_equal(nl_safetensors_create(context, path, false, NULL, headers, 3, &writer),
                     NL_ERROR_WRITE);
    assert_null(writer);
    remove(path);
}

static void an_unfinished_file_is_none(void **state)
{
    (void)state;
    const char path[] = "test_safetensors_unfinished.safetensors";
    const nl_tensor_header header = {"a", NL_F32, 1, {2}};
    nl_safetensors_writer *writer = NULL;
    assert_ok(context, nl_safetensors_create(context, path, true, NULL, &header, 1, &writer));
    assert_ok(context, nl_safetensors_write(writer, "abcd", 4));
    assert_int_equal(nl_safetensors_write(writer, "abcdefgh", 8), NL_ERROR_INTERNAL);
    assert_int_equal(nl_safetensors_commit(&writer), NL_ERROR_INTERNAL);
    assert_null(writer);
    assert_false(nl_path_exists(path));
}

/* Writes "a" [2], an empty "b", "c" I8 [2, 2] and its scales, in portions that are not the tensors'; returns its size. */
static int64_t write_four(const char *path)
{
    static const nl_tensor_header headers[] = {{"a", NL_F32, 1, {2}},
                                               {"b", NL_F32, 1, {0}},
                                               {"c", NL_I8, 2, {2, 2}},
                                               {"c.scale", NL_F32, 1, {2}}};
    const float a[] = {1, 2}, scale[] = {0.5f, 2};
    uint8_t bytes[20];
    nl_safetensors_writer *writer;
    nl_mapping file;
    memcpy(bytes, a, 8);
    memcpy(bytes + 8, (int8_t[]){1, -1, 2, 3}, 4);
    memcpy(bytes + 12, scale, 8);
    assert_ok(context, nl_safetensors_create(context, path, true, NULL, headers, 4, &writer));
    assert_ok(context, nl_safetensors_write(writer, bytes, 10));
    assert_ok(context, nl_safetensors_write(writer, bytes + 10, 0));
    assert_ok(context, nl_safetensors_write(writer, bytes + 10, 10));
    assert_ok(context, nl_safetensors_commit(&writer));
    assert_ok(context, nl_map_file(context, path, &file));
    int64_t size = file.size;
    nl_unmap(context, &file);
    return size;
}

static void flip_bit(const char *path, int64_t at)
{
    FILE *file = fopen(path, "r+b");
    assert_non_null(file);
    fseek(file, at, SEEK_SET);
    int c = fgetc(file);
    fseek(file, at, SEEK_SET);
    fputc(c ^ 1, file);
    fclose(file);
}

/* Every bit of every tensor counts; which tensor it was is told, whoever finds it. */
static void checksums_tell_damage(void **state)
{
    (void)state;
    const char path[] = "test_safetensors_checksums.safetensors";
    nl_checkpoint *checkpoint;
    float values[4];
    int64_t size = write_four(path), count;
    assert_ok(context, nl_checkpoint_open(context, path, &checkpoint));
    assert_ok(context, nl_checkpoint_verify(checkpoint, &count));
    assert_int_equal(count, 4);
    assert_null(
        nl_checkpoint_metadata(checkpoint, "nalagen.crc32")); /* they are the file's alone */
    for (int64_t i = 0; i < checkpoint->count; i++)
        assert_ok(context, nl_entry_read(checkpoint, &checkpoint->entries[i], values));
    assert_float_equal(values[3], 6, 0);
    nl_checkpoint_close(checkpoint);
    for (int64_t at = size - 20; at < size; at++) {
        const char *name = at < size - 12  ? "tensor a"
                           : at < size - 8 ? "tensor c"
                                           : "tensor c.scale";
        flip_bit(path, at);
        nl_status status = nl_checkpoint_open(context, path, &checkpoint);
        if (at >= size - 8) { /* scales are read at once */
            assert_int_equal(status, NL_ERROR_INPUT);
        } else {
            assert_ok(context, status);
            assert_int_equal(nl_checkpoint_verify(checkpoint, &count), NL_ERROR_INPUT);
            assert_non_null(strstr(nl_last_error(context), "1 of 4 checksums does not fit"));
            assert_non_null(strstr(nl_last_error(context), name));
            status = nl_entry_read(checkpoint, nl_checkpoint_find(checkpoint, name + 7), values);
            assert_int_equal(status, NL_ERROR_INPUT);
            nl_checkpoint_close(checkpoint);
        }
        assert_non_null(strstr(nl_last_error(context), name));
        flip_bit(path, at);
    }
    remove(path);
}

/* What another program has laid out otherwise, keeping the metadata, has none; nor have other texts. */
static void checksums_of_other_layouts_do_not_count(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        int64_t count;
    } cases[] = {{"a114361368c4f033", 1}, {"a114361368c4f03", 0},  {"a114361368c4f03300000000", 0},
                 {"a114361268c4f033", 0}, {"A114361368C4F033", 0}, {"", 0}};
    for (int i = 0; i < NL_COUNT(cases); i++) {
        char json[256];
        nl_checkpoint *checkpoint;
        void *copy;
        int64_t count;
        snprintf(json, sizeof(json),
                 "{\"__metadata__\":{\"nalagen.crc32\":\"%s\",\"x\":\"y\"},"
                 "\"a\":{\"dtype\":\"U8\",\"shape\":[16],\"data_offsets\":[0,16]}}",
                 cases[i].text);
        test_file file = file_of(json, "0123456789abcdef", 16);
        assert_ok(context, open_bytes(file.bytes, file.size, &checkpoint, &copy));
        assert_ok(context, nl_checkpoint_verify(checkpoint, &count));
        assert_int_equal(count, cases[i].count);
        assert_string_equal(nl_checkpoint_metadata(checkpoint, "x"), "y");
        nl_checkpoint_close(checkpoint);
        free(copy);
    }
}

static void missing_files_and_folders(void **state)
{
    (void)state;
    nl_checkpoint *checkpoint = NULL;
    assert_int_equal(nl_checkpoint_open(context, "test_no_such_file", &checkpoint), NL_ERROR_INPUT);
    assert_non_null(strstr(nl_last_error(context), "test_no_such_file"));
    assert_int_equal(nl_checkpoint_open(context, ".", &checkpoint), NL_ERROR_INPUT);
    assert_null(checkpoint);
}

/* ---- Quantisation */

static void quantises_rows(void **state)
{
    (void)state;
    enum { ROWS = 4, COLUMNS = 384 };
    static float x[ROWS][COLUMNS];
    static int8_t q[ROWS][COLUMNS];
    float scale[ROWS];
    uint32_t seed = 1;
    for (int r = 0; r < ROWS; r++)
        for (int c = 0; c < COLUMNS; c++) {
            float sum = 0; /* about normal */
            for (int i = 0; i < 12; i++)
                sum += (float)((seed = seed * 1664525 + 1013904223) >> 8) / (1 << 24);
            x[r][c] = r == 1 ? 0 : (sum - 6) * powf(10, (float)r);
        }
    x[2][5] = 1e4f; /* one long weight */
    nl_quantize_rows(x[0], ROWS, COLUMNS, q[0], scale);
    for (int r = 0; r < ROWS; r++) {
        double error = 0, plain = 0, norm = 0, largest = 0;
        for (int c = 0; c < COLUMNS; c++)
            largest = fmax(largest, fabs(x[r][c]));
        for (int c = 0; c < COLUMNS; c++) {
            double d = q[r][c] * scale[r] - x[r][c];
            double p = largest > 0 ? round(x[r][c] * 127 / largest) * largest / 127 - x[r][c] : 0;
            error += d * d;
            plain += p * p;
            norm += (double)x[r][c] * x[r][c];
            assert_true(q[r][c] >= -127);
        }
        assert_true(isfinite(scale[r]) && error <= plain * 1.000001);
        assert_true(sqrt(error) <= (r == 2 ? 0.07 : 0.01) * sqrt(norm));
    }
}

static void problems_are_counted(void **state)
{
    (void)state;
    nl_problems problems = {0};
    for (int i = 0; i < 25; i++)
        nl_problem(&problems, "tensor %d", i);
    assert_int_equal(problems.count, 25);
    assert_non_null(strstr(problems.text, "\n  tensor 0\n  tensor 1\n"));
    assert_non_null(strstr(problems.text, "tensor 19\n  and 5 more"));
    nl_problems longer = {0};
    for (int i = 0; i < 19; i++)
        nl_problem(&longer, "%0200d", i);
    assert_int_equal(longer.count, 19);
    assert_non_null(strstr(longer.text, "more"));
    assert_true(strlen(longer.text) < sizeof(longer.text));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reads_every_type),
        cmocka_unit_test(folds_row_scales),
        cmocka_unit_test(reads_along_strides),
        cmocka_unit_test(refuses_values_that_are_not_finite),
        cmocka_unit_test(bad_magic),
        cmocka_unit_test(other_formats),
        cmocka_unit_test(header_longer_than_the_file),
        cmocka_unit_test(header_longer_than_the_limit),
        cmocka_unit_test(header_is_not_json),
        cmocka_unit_test(duplicate_name),
        cmocka_unit_test(entry_is_not_an_object),
        cmocka_unit_test(unknown_type),
        cmocka_unit_test(offset_past_the_end),
        cmocka_unit_test(offsets_backwards),
        cmocka_unit_test(offsets_of_the_wrong_kind),
        cmocka_unit_test(negative_size),
        cmocka_unit_test(shape_overflows),
        cmocka_unit_test(shape_does_not_fill_the_data),
        cmocka_unit_test(too_many_sizes),
        cmocka_unit_test(overlap),
        cmocka_unit_test(hole),
        cmocka_unit_test(bytes_behind),
        cmocka_unit_test(metadata_of_the_wrong_kind),
        cmocka_unit_test(scale_of_the_wrong_length),
        cmocka_unit_test(cut_off_anywhere),
        cmocka_unit_test(header_beyond_the_budget),
        cmocka_unit_test(every_allocation_fails_once),
        cmocka_unit_test(writes_what_it_reads),
        cmocka_unit_test(an_unfinished_file_is_none),
        cmocka_unit_test(checksums_tell_damage),
        cmocka_unit_test(checksums_of_other_layouts_do_not_count),
        cmocka_unit_test(missing_files_and_folders),
        cmocka_unit_test(quantises_rows),
        cmocka_unit_test(problems_are_counted),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
