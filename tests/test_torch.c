/* SPDX-License-Identifier: MIT */
/* Checkpoints that PyTorch wrote (tests/make_torch_files.py), and archives and pickles that nobody
 * should. */
#include <unistd.h>

#include "file_test.h"
#include "nl_dit.h"
#include "zip.h"

#define FILES NL_SOURCE_DIR "/tests/golden/torch/"

static void says(const char *message)
{
    if (!strstr(nl_last_error(context), message))
        fail_msg("\"%s\" does not say \"%s\"", nl_last_error(context), message);
}

static void refuse_file(const char *name, const char *message)
{
    char path[512];
    nl_checkpoint *checkpoint = (nl_checkpoint *)1;
    int64_t used = context->memory_used;
    snprintf(path, sizeof(path), FILES "%s", name);
    assert_int_equal(nl_checkpoint_open(context, path, &checkpoint), NL_ERROR_INPUT);
    assert_null(checkpoint);
    says(message);
    says(name);
    assert_int_equal(context->memory_used, used);
}

static nl_checkpoint *open_file(const char *name, const char *key)
{
    char path[512];
    nl_checkpoint *checkpoint;
    snprintf(path, sizeof(path), FILES "%s", name);
    assert_ok(context, nl_dit_open(context, path, key, &checkpoint));
    return checkpoint;
}

/* The numbers of both, times `sign`, are the same. */
static void same_numbers(const nl_checkpoint *file, const nl_entry *entry,
                         const nl_checkpoint *expected, const nl_entry *want, float sign)
{
    int64_t count = nl_entry_count(want);
    assert_int_equal(entry->ndim, want->ndim);
    assert_memory_equal(entry->shape, want->shape, sizeof(int64_t) * (size_t)want->ndim);
    float *found = malloc((size_t)(count + 1) * sizeof(float));
    float *wanted = malloc((size_t)(count + 1) * sizeof(float));
    assert_ok(context, nl_entry_read(file, entry, found));
    assert_ok(context, nl_entry_read(expected, want, wanted));
    for (int64_t i = 0; i < count; i++)
        if (found[i] != sign * wanted[i])
            fail_msg("%s: %s[%lld] is %g, expected %g", file->path, entry->name, (long long)i,
                     found[i], sign * wanted[i]);
    free(found);
    free(wanted);
}

/* ---- Tensors of every type and layout */

static void same_tensors(const char *name, const char *format)
{
    nl_checkpoint *file = open_file(name, NULL);
    nl_checkpoint *expected = open_file("tensors.safetensors", NULL);
    assert_string_equal(file->format, format);
    assert_int_equal(file->count, expected->count);
    for (int64_t i = 0; i < expected->count; i++) {
        const nl_entry *entry = nl_checkpoint_find(file, expected->entries[i].name);
        assert_non_null(entry);
        same_numbers(file, entry, expected, &expected->entries[i], 1);
    }
    nl_checkpoint_close(file);
    nl_checkpoint_close(expected);
}

static void reads_zip(void **state)
{
    (void)state;
    same_tensors("tensors.pt", "torch");
    same_tensors("tensors_protocol4.pt", "torch");
    same_tensors("tensors_zip64.pt", "torch");
    same_tensors("tensors_deflated.pt", "torch");
}

static void reads_legacy(void **state)
{
    (void)state;
    same_tensors("tensors_legacy.pt", "torch before 1.6");
}

static void types_and_strides(void **state)
{
    (void)state;
    const struct {
        const char *name;
        nl_dtype dtype;
        bool strided;
    } rows[] = {{"f32", NL_F32, false},
                {"f64", NL_F64, false},
                {"f16", NL_F16, false},
                {"bf16", NL_BF16, false},
                {"i8", NL_I8, false},
                {"u8", NL_U8, false},
                {"i16", NL_I16, false},
                {"i32", NL_I32, false},
                {"i64", NL_I64, false},
                {"bool", NL_BOOL, false},
                {"transposed", NL_F32, true},
                {"columns", NL_F32, true},
                {"every_other", NL_F32, true},
                {"expanded", NL_F32, true},
                {"channels_last", NL_F32, true},
                {"shared_tail", NL_F32, false}};
    nl_checkpoint *file = open_file("tensors.pt", NULL);
    for (int i = 0; i < NL_COUNT(rows); i++) {
        const nl_entry *entry = nl_checkpoint_find(file, rows[i].name);
        assert_non_null(entry);
        assert_int_equal(entry->dtype, rows[i].dtype);
        assert_int_equal(entry->strides != NULL, rows[i].strided);
    }
    nl_checkpoint_close(file);
}

/* Tensors of a stored archive are read where they lie in the file. */
static void copies_nothing(void **state)
{
    (void)state;
    const char *names[] = {"dit.pt", "dit_legacy.pt"};
    for (int n = 0; n < NL_COUNT(names); n++) {
        nl_checkpoint *file = open_file(names[n], NULL);
        const uint8_t *begin = file->mapping.data, *end = begin + file->mapping.size;
        for (int64_t i = 0; i < file->count; i++) {
            const uint8_t *data = file->entries[i].data;
            assert_true(data >= begin && data < end);
        }
        assert_true(file->mapping.mapped);
        nl_checkpoint_close(file);
    }
}

/* ---- Backbones: every spelling and every dict gives the same numbers */

static void same_backbone(const char *name, const char *key, const char *taken, float sign,
                          bool position)
{
    nl_checkpoint *file = open_file(name, key);
    nl_checkpoint *expected = open_file("dit.safetensors", NULL);
    int64_t compared = 0;
    for (int64_t i = 0; i < expected->count; i++) {
        const nl_entry *want = &expected->entries[i];
        if (strcmp(want->name, "pos_embed") == 0)
            continue;
        const nl_entry *entry = nl_checkpoint_find(file, want->name);
        if (!entry)
            fail_msg("%s has no %s", name, want->name);
        same_numbers(file, entry, expected, want, sign);
        compared++;
    }
    assert_int_equal(file->count, compared + position);
    if (taken)
        assert_string_equal(file->taken, taken);
    else
        assert_null(file->taken);
    nl_checkpoint_close(file);
    nl_checkpoint_close(expected);
}

static void backbones(void **state)
{
    (void)state;
    same_backbone("dit.pt", NULL, NULL, 1, true);
    same_backbone("dit_legacy.pt", NULL, NULL, 1, true);
    same_backbone("sit_wrapped.pt", NULL, NULL, 1, true);
    same_backbone("0050000.pt", NULL, "ema", 1, true);
    same_backbone("0050000.pt", "ema", "ema", 1, true);
    same_backbone("0050000.pt", "model", "model", -1, true);
    same_backbone("diffusers", NULL, NULL, 1, false);
}

static void keys(void **state)
{
    (void)state;
    nl_checkpoint *file = NULL;
    assert_int_equal(nl_checkpoint_open_key(context, FILES "0050000.pt", "emma", &file),
                     NL_ERROR_USAGE);
    says("has no 'emma': it holds model, ema, opt, args, steps");
    assert_int_equal(nl_checkpoint_open_key(context, FILES "0050000.pt", "args", &file),
                     NL_ERROR_INPUT);
    says("model, ema, opt, args, steps");
    assert_int_equal(nl_checkpoint_open_key(context, FILES "dit.pt", "ema", &file), NL_ERROR_USAGE);
    says("has no 'ema'");
    /* in a flat file a key is a prefix */
    assert_ok(context, nl_checkpoint_open_key(context, FILES "dit.pt", "blocks.1", &file));
    assert_int_equal(file->count, 10);
    assert_non_null(nl_checkpoint_find(file, "attn.qkv.weight"));
    assert_string_equal(file->taken, "blocks.1");
    nl_checkpoint_close(file);
}

static void training_facts(void **state)
{
    (void)state;
    const char *const facts[][2] = {{"steps", "50000"},          {"args.model", "SiT-S/2"},
                                    {"args.image_size", "64"},   {"args.path_type", "GVP"},
                                    {"args.train_eps", "0.001"}, {"args.wandb", "false"}};
    nl_checkpoint *file = open_file("0050000.pt", NULL);
    for (int i = 0; i < NL_COUNT(facts); i++) {
        const char *value = nl_checkpoint_metadata(file, facts[i][0]);
        if (!value || strcmp(value, facts[i][1]) != 0)
            fail_msg("%s is %s", facts[i][0], value ? value : "missing");
    }
    assert_string_equal(file->holds, "model, ema, opt, args, steps");
    nl_config config;
    assert_ok(context, nl_config_from_checkpoint(file, NULL, &config));
    assert_int_equal(config.architecture, NL_ARCH_SIT);
    assert_int_equal(config.path, NL_PATH_GVP);
    assert_int_equal(config.prediction, NL_PREDICTION_NOISE);
    assert_true(config.train_eps == 0.001);
    assert_true(config.sample_eps < 0);
    assert_int_equal(config.input_height, 8);
    assert_int_equal(config.depth, 2);
    nl_config_free(context, &config);
    nl_checkpoint_close(file);
}

static void diffusers_configuration(void **state)
{
    (void)state;
    const char *paths[] = {"diffusers", "dit.pt"};
    const int heads[] = {2, 1};
    for (int i = 0; i < 2; i++) {
        nl_checkpoint *file = open_file(paths[i], NULL);
        nl_config config;
        int64_t parameters;
        assert_ok(context, nl_config_from_checkpoint(file, NULL, &config));
        assert_int_equal(config.architecture, NL_ARCH_DIT);
        assert_int_equal(config.num_heads, heads[i]);
        assert_int_equal(config.input_width, 8);
        assert_int_equal(config.num_classes, 10);
        assert_true(config.learn_sigma);
        assert_ok(context, nl_dit_fits(file, &config, &parameters));
        assert_int_equal(parameters, 15616);
        nl_config_free(context, &config);
        nl_checkpoint_close(file);
    }
}

/* ---- What is refused, by name */

static void refused_tensors(void **state)
{
    (void)state;
    refuse_file("complex.pt", "tensor z has a type that is not read");
    refuse_file("complex.pt", "ComplexFloatStorage");
    refuse_file("float8.pt", "torch.float8_e4m3fn");
    refuse_file("uint16.pt", "torch.uint16");
    refuse_file("sparse.pt", "_rebuild_sparse_tensor");
    refuse_file("list.pt", "a list instead of a dict of tensors");
    refuse_file("module.pt", "it holds a whole module (__main__.Tiny)");
}

static void names_what_is_not_finite(void **state)
{
    (void)state;
    nl_checkpoint *file = open_file("nan.pt", NULL);
    float values[2];
    assert_int_equal(nl_entry_read(file, nl_checkpoint_find(file, "w"), values), NL_ERROR_INPUT);
    says("nan.pt: tensor w holds nan at element 1");
    nl_checkpoint_close(file);
}

static void runs_nothing(void **state)
{
    (void)state;
    unlink("torch_pwned");
    refuse_file("evil.pt", "posix.system, which would run code");
    refuse_file("evil_legacy.pt", "posix.system, which would run code");
    assert_false(nl_path_exists("torch_pwned"));
}

/* ---- Views that do not fit, in files of the old format made by hand */

typedef struct test_view {
    const char *name;
    const char *storage; /* class */
    int64_t elements;    /* that the pickle says */
    int64_t stored;      /* that the file has, of 4 bytes */
    int64_t offset;
    int ndim, stride_count;
    int64_t shape[7], strides[7];
    const char *message; /* NULL: it is read */
} test_view;

static void put_text(uint8_t **at, const char *text)
{
    put(at, 'X', 1);
    put(at, strlen(text), 4);
    put_bytes(at, text, strlen(text));
}

static void put_numbers(uint8_t **at, int count, const int64_t *numbers)
{
    put(at, '(', 1);
    for (int i = 0; i < count; i++) {
        put_bytes(at, "\x8a\x08", 2);
        put(at, (uint64_t)numbers[i], 8);
    }
    put(at, 't', 1);
}

static size_t legacy_file(const test_view *view, uint8_t *bytes)
{
    uint8_t *at = bytes;
    static const char preface[] = "\x80\2\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19."
                                  "\x80\2M\xe9\3."
                                  "\x80\2}X\x0d\0\0\0little_endian\x88s."
                                  "\x80\2}X\1\0\0\0wctorch._utils\n_rebuild_tensor_v2\n((";
    put_bytes(&at, preface, sizeof(preface) - 1);
    put_text(&at, "storage");
    at += sprintf((char *)at, "ctorch\n%s\n", view->storage);
    put_text(&at, "key");
    put_text(&at, "cpu");
    put_bytes(&at, "\x8a\x08", 2);
    put(&at, (uint64_t)view->elements, 8);
    put_bytes(&at, "NtQ\x8a\x08", 5);
    put(&at, (uint64_t)view->offset, 8);
    put_numbers(&at, view->ndim, view->shape);
    put_numbers(&at, view->stride_count, view->strides);
    put_bytes(&at, "\x89}tRs.\x80\2]", 9);
    put_text(&at, "key");
    put_bytes(&at, "a.", 2);
    put(&at, (uint64_t)view->stored, 8);
    for (int i = 0; i < view->stored && i < 12; i++)
        put_bytes(&at, &(float){(float)i}, 4);
    return (size_t)(at - bytes);
}

static void views(void **state)
{
    (void)state;
    const int64_t big = INT64_C(1) << 40;
    const test_view rows[] = {
        {"whole", "FloatStorage", 12, 12, 0, 2, 2, {3, 4}, {4, 1}, NULL},
        {"last element", "FloatStorage", 12, 12, 11, 1, 1, {1}, {1}, NULL},
        {"ends with the storage", "FloatStorage", 12, 12, 3, 2, 2, {2, 3}, {6, 1}, NULL},
        {"nothing behind the end", "FloatStorage", 12, 12, 12, 1, 1, {0}, {1}, NULL},
        {"repeated without end", "FloatStorage", 12, 12, 0, 1, 1, {INT64_C(1) << 50}, {0}, NULL},
        {"offset behind the end", "FloatStorage", 12, 12, 12, 1, 1, {1}, {1}, "does not fit"},
        {"one too many", "FloatStorage", 12, 12, 0, 1, 1, {13}, {1}, "does not fit"},
        {"stride too long", "FloatStorage", 12, 12, 0, 2, 2, {2, 3}, {10, 1}, "does not fit"},
        {"offset too far", "FloatStorage", 12, 12, 4, 2, 2, {2, 3}, {6, 1}, "does not fit"},
        {"negative offset", "FloatStorage", 12, 12, -1, 1, 1, {1}, {1}, "does not fit"},
        {"negative size",
         "FloatStorage",
         12,
         12,
         0,
         1,
         1,
         {-1},
         {1},
         "whole numbers >= 0 in its shape"},
        {"negative stride",
         "FloatStorage",
         12,
         12,
         5,
         1,
         1,
         {2},
         {-1},
         "whole numbers >= 0 in its strides"},
        {"product of sizes overflows",
         "FloatStorage",
         12,
         12,
         0,
         2,
         2,
         {big, big},
         {0, 0},
         "does not fit"},
        {"product with a stride overflows",
         "FloatStorage",
         12,
         12,
         0,
         1,
         1,
         {big},
         {big},
         "does not fit"},
        {"offset overflows", "FloatStorage", 12, 12, INT64_MAX - 2, 1, 1, {9}, {1}, "does not fit"},
        {"bytes overflow", "FloatStorage", 12, 12, 0, 1, 1, {INT64_MAX / 2}, {0}, "does not fit"},
        {"six sizes",
         "FloatStorage",
         12,
         12,
         0,
         6,
         6,
         {1, 1, 1, 1, 1, 1},
         {1, 1, 1, 1, 1, 1},
         "more than 5"},
        {"a stride is missing",
         "FloatStorage",
         12,
         12,
         0,
         2,
         1,
         {2, 2},
         {2},
         "as many strides as sizes"},
        {"storage shorter than said",
         "FloatStorage",
         13,
         12,
         0,
         1,
         1,
         {1},
         {1},
         "a storage that is cut off"},
        {"storage overflows",
         "FloatStorage",
         INT64_MAX,
         12,
         0,
         1,
         1,
         {1},
         {1},
         "a storage that is cut off"},
        {"negative storage",
         "FloatStorage",
         -1,
         12,
         0,
         1,
         1,
         {1},
         {1},
         "no storage that is understood"},
        {"storage longer than the file",
         "FloatStorage",
         12,
         13,
         0,
         1,
         1,
         {1},
         {1},
         "does not end within it"},
        {"storage without end",
         "FloatStorage",
         12,
         INT64_MAX,
         0,
         1,
         1,
         {1},
         {1},
         "does not end within it"},
        {"complex", "ComplexFloatStorage", 0, 0, 0, 1, 1, {0}, {1}, "torch.ComplexFloatStorage"},
        {"unknown type", "OddStorage", 12, 12, 0, 1, 1, {1}, {1}, "a type that is not known"},
    };
    for (int i = 0; i < NL_COUNT(rows); i++) {
        uint8_t bytes[1024];
        size_t size = legacy_file(&rows[i], bytes);
        void *copy = exact_copy(bytes, size);
        nl_checkpoint *file;
        nl_status status =
            nl_checkpoint_open_memory(context, "view.pt", copy, (int64_t)size, &file);
        if (rows[i].message &&
            (status != NL_ERROR_INPUT || !strstr(nl_last_error(context), rows[i].message)))
            fail_msg("%s: %s: %s", rows[i].name, nl_status_name(status), nl_last_error(context));
        if (!rows[i].message && status != NL_OK)
            fail_msg("%s: %s", rows[i].name, nl_last_error(context));
        if (status == NL_OK && nl_entry_count(file->entries) <= 12) {
            float values[12];
            assert_ok(context, nl_entry_read(file, file->entries, values));
            if (nl_entry_count(file->entries) > 0)
                assert_true(values[0] == (float)rows[i].offset);
        }
        nl_checkpoint_close(file);
        free(copy);
    }
}

/* ---- Folders */

enum { FIRST, SECOND, CONFIG, INDEX };

static const char *const parts[] = {"diffusion_pytorch_model-00001-of-00002.safetensors",
                                    "diffusion_pytorch_model-00002-of-00002.safetensors",
                                    "config.json",
                                    "diffusion_pytorch_model.safetensors.index.json"};

/* tests/golden/torch/diffusers as test_torch_folder without part `without`, the index spoiled. */
static void make_folder(int without, const char *from, const char *to)
{
    char path[512];
    assert_ok(context, nl_make_folder(context, "test_torch_folder"));
    for (int i = 0; i < NL_COUNT(parts); i++) {
        nl_mapping file;
        snprintf(path, sizeof(path), FILES "diffusers/%s", parts[i]);
        assert_ok(context, nl_map_file(context, path, &file));
        snprintf(path, sizeof(path), "test_torch_folder/%s", parts[i]);
        unlink(path);
        char *text = malloc((size_t)file.size + 1), *place;
        memcpy(text, file.data, (size_t)file.size);
        text[file.size] = '\0';
        if (i == INDEX && from && (place = strstr(text, from)))
            memcpy(place, to, strlen(to)); /* of the same length */
        if (i != without)
            assert_ok(context, nl_write_file(context, path, true, text, (size_t)file.size));
        free(text);
        nl_unmap(context, &file);
    }
}

static void refuse_folder(const char *message)
{
    nl_checkpoint *file;
    int64_t used = context->memory_used;
    assert_int_equal(nl_dit_open(context, "test_torch_folder", NULL, &file), NL_ERROR_INPUT);
    assert_null(file);
    says(message);
    says("test_torch_folder");
    assert_int_equal(context->memory_used, used);
}

static void folders(void **state)
{
    (void)state;
    nl_checkpoint *file;
    nl_config config;
    make_folder(-1, NULL, NULL);
    assert_ok(context, nl_dit_open(context, "test_torch_folder/", NULL, &file));
    assert_int_equal(file->shard_count, 2);
    assert_true(nl_checkpoint_bytes(file) > 40000);
    nl_checkpoint_close(file);

    make_folder(CONFIG, NULL, NULL); /* without it the sizes are guessed from the tensors */
    assert_ok(context, nl_dit_open(context, "test_torch_folder", NULL, &file));
    assert_ok(context, nl_config_from_checkpoint(file, NULL, &config));
    assert_int_equal(config.num_heads, 1);
    assert_int_equal(config.input_width, 32);
    nl_config_free(context, &config);
    nl_checkpoint_close(file);

    make_folder(SECOND, NULL, NULL);
    refuse_folder("diffusion_pytorch_model-00002-of-00002.safetensors");
    make_folder(-1, "\"proj_out_1.weight\"", "\"proj_out_3.weight\"");
    refuse_folder("proj_out_3.weight is not in diffusion_pytorch_model-00002");
    make_folder(-1, "\"diffusion_pytorch_model-00001", "\"/etc/passwd_pytorch_model_00001");
    refuse_folder("expected the name of a file in the same folder");
    make_folder(-1, "\"weight_map\"", "\"weight_mop\"");
    refuse_folder("there is no \"weight_map\"");
    make_folder(INDEX, NULL, NULL);
    refuse_folder("a folder without diffusion_pytorch_model.safetensors");
    assert_ok(context, nl_write_file(context, "test_torch_folder/model_index.json", true, "{}", 2));
    refuse_folder("a whole pipeline: give the one of its parts");
    unlink("test_torch_folder/model_index.json");
}

/* A network with the names of a DiT that is none: config.json says so. */
static void other_networks(void **state)
{
    (void)state;
    static const char json[] = "{\"_class_name\": \"Transformer2DModel\", \"norm_type\": "
                               "\"ada_norm_zero\", \"activation_fn\": \"geglu\"}";
    nl_checkpoint *file;
    nl_config config;
    make_folder(-1, NULL, NULL);
    assert_ok(context, nl_write_file(context, "test_torch_folder/config.json", true, json,
                                     sizeof(json) - 1));
    assert_ok(context, nl_dit_open(context, "test_torch_folder", NULL, &file));
    assert_int_equal(nl_config_from_checkpoint(file, NULL, &config), NL_ERROR_INPUT);
    says("expected the activation gelu-approximate");
    says("geglu");
    nl_checkpoint_close(file);
}

/* A file cut off anywhere is refused: neither read beyond its end nor taken for whole. */
static void cut_off_anywhere(void **state)
{
    (void)state;
    const char *names[] = {"tensors.pt", "tensors_legacy.pt", "tensors_deflated.pt"};
    for (int n = 0; n < NL_COUNT(names); n++) {
        char path[512];
        nl_mapping file;
        snprintf(path, sizeof(path), FILES "%s", names[n]);
        assert_ok(context, nl_map_file(context, path, &file));
        for (int64_t size = 0; size < file.size; size += 1 + size % 7) {
            nl_checkpoint *checkpoint;
            void *copy = exact_copy(file.data, (size_t)size);
            if (nl_checkpoint_open_memory(context, "cut.pt", copy, size, &checkpoint) !=
                NL_ERROR_INPUT)
                fail_msg("%s cut to %lld bytes was not refused", names[n], (long long)size);
            says("cut.pt");
            free(copy);
        }
        nl_unmap(context, &file);
    }
}

/* Every allocation fails once; nothing leaks. */
static void without_memory(void **state)
{
    (void)state;
    const char *names[] = {"tensors_deflated.pt", "tensors_legacy.pt", "0050000.pt", "diffusers"};
    for (int n = 0; n < NL_COUNT(names); n++) {
        char path[512];
        nl_checkpoint *file = NULL;
        nl_status status = NL_ERROR_MEMORY;
        int64_t used = context->memory_used;
        int failures = 0;
        snprintf(path, sizeof(path), FILES "%s", names[n]);
        for (int64_t i = 1; status != NL_OK; i++) {
            context->fail_allocation = context->allocations + i;
            status = nl_dit_open(context, path, NULL, &file);
            context->fail_allocation = 0;
            if (status != NL_OK) {
                assert_int_equal(status, NL_ERROR_MEMORY);
                assert_null(file);
                assert_int_equal(context->memory_used, used);
                failures++;
            }
        }
        assert_true(failures > 8);
        nl_checkpoint_close(file);
        assert_int_equal(context->memory_used, used);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reads_zip),         cmocka_unit_test(reads_legacy),
        cmocka_unit_test(types_and_strides), cmocka_unit_test(copies_nothing),
        cmocka_unit_test(backbones),         cmocka_unit_test(keys),
        cmocka_unit_test(training_facts),    cmocka_unit_test(diffusers_configuration),
        cmocka_unit_test(refused_tensors),   cmocka_unit_test(names_what_is_not_finite),
        cmocka_unit_test(runs_nothing),      cmocka_unit_test(cut_off_anywhere),
        cmocka_unit_test(without_memory),    cmocka_unit_test(folders),
        cmocka_unit_test(other_networks),    cmocka_unit_test(views),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
