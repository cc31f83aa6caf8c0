/* SPDX-License-Identifier: MIT */
/* Zip archives: what is read where it lies, what is refused by name, and a checkpoint beyond 4 GiB.
 */
#include <fcntl.h>
#include <unistd.h>
#include <zlib.h>

#include "file_test.h"
#include "zip.h"

/* ---- A writer of archives, whose every number a test may spoil */

typedef struct test_archive {
    uint8_t bytes[2048];
    size_t size;
    uint8_t directory[1024];
    size_t directory_size;
    int entries;
} test_archive;

enum { METHOD = 10, STORED = 20, SIZE = 24, NAME = 28, OFFSET = 42, FLAGS = 8 };

static void add(test_archive *archive, const char *name, const void *data, size_t stored,
                size_t size, int method)
{
    uint8_t *at = archive->bytes + archive->size,
            *entry = archive->directory + archive->directory_size;
    size_t offset = archive->size;
    uint32_t crc = 0; /* of stored entries it is never looked at */
    if (method == 8) {
        uint8_t plain[1024];
        z_stream stream = {.next_in = (uint8_t *)data,
                           .avail_in = (uInt)stored,
                           .next_out = plain,
                           .avail_out = sizeof(plain)};
        inflateInit2(&stream, -15);
        inflate(&stream, Z_FINISH);
        inflateEnd(&stream);
        crc = (uint32_t)crc32(0, plain, (uInt)size);
    }
    put(&at, 0x04034b50, 4);
    put(&at, 20, 2), put(&at, 0, 2), put(&at, (uint64_t)method, 2), put(&at, 0, 4);
    put(&at, crc, 4), put(&at, stored, 4), put(&at, size, 4);
    put(&at, strlen(name), 2), put(&at, 0, 2);
    put_bytes(&at, name, strlen(name));
    put_bytes(&at, data, stored);
    archive->size = (size_t)(at - archive->bytes);

    put(&entry, 0x02014b50, 4);
    put(&entry, 20, 2), put(&entry, 20, 2), put(&entry, 0, 2), put(&entry, (uint64_t)method, 2);
    put(&entry, 0, 4), put(&entry, crc, 4), put(&entry, stored, 4), put(&entry, size, 4);
    put(&entry, strlen(name), 2), put(&entry, 0, 2), put(&entry, 0, 2), put(&entry, 0, 2);
    put(&entry, 0, 2), put(&entry, 0, 4), put(&entry, offset, 4);
    put_bytes(&entry, name, strlen(name));
    archive->directory_size = (size_t)(entry - archive->directory);
    archive->entries++;
}

static void finish(test_archive *archive)
{
    uint8_t *at = archive->bytes + archive->size;
    size_t offset = archive->size;
    put_bytes(&at, archive->directory, archive->directory_size);
    put(&at, 0x06054b50, 4);
    put(&at, 0, 4), put(&at, (uint64_t)archive->entries, 2),
        put(&at, (uint64_t)archive->entries, 2);
    put(&at, archive->directory_size, 4), put(&at, offset, 4), put(&at, 0, 2);
    archive->size = (size_t)(at - archive->bytes);
}

/* Two stored entries and a deflated one. */
static test_archive good(void)
{
    static const uint8_t deflated[] = {0x4b, 0x4c, 0x44, 0x00, 0x00}; /* "aaaaaaaaaaaa" */
    test_archive archive = {0};
    add(&archive, "r/b", "bbbb", 4, 4, 0);
    add(&archive, "r/a", "aaa", 3, 3, 0);
    add(&archive, "r/c", deflated, sizeof(deflated), 12, 8);
    return archive;
}

static nl_status open_archive(const test_archive *archive, size_t size, nl_zip *zip, uint8_t **copy)
{
    *copy = exact_copy(archive->bytes, size);
    return nl_zip_open(context, "test.zip", *copy, (int64_t)size, zip);
}

static void refuse(const char *name, const test_archive *archive, size_t size, const char *message)
{
    nl_zip zip;
    uint8_t *copy;
    int64_t used = context->memory_used;
    nl_status status = open_archive(archive, size, &zip, &copy);
    free(copy);
    assert_refused(name, status, used, "test.zip", message);
}

static void reads_entries(void **state)
{
    (void)state;
    test_archive archive = good();
    nl_zip zip;
    uint8_t *copy;
    char text[12];
    finish(&archive);
    assert_ok(context, open_archive(&archive, archive.size, &zip, &copy));
    assert_int_equal(zip.count, 3);
    const nl_zip_entry *b = nl_zip_find(&zip, "r/b", 3), *c = nl_zip_find(&zip, "r/c", 3);
    assert_non_null(b);
    assert_memory_equal(b->data, "bbbb", 4);
    assert_true(b->data > copy && b->data < copy + archive.size);
    assert_false(b->deflated);
    assert_true(c->deflated);
    assert_int_equal(c->size, 12);
    assert_ok(context, nl_zip_read(&zip, c, text));
    assert_memory_equal(text, "aaaaaaaaaaaa", 12);
    assert_null(nl_zip_find(&zip, "r/", 2));
    assert_null(nl_zip_find(&zip, "r/bb", 4));
    nl_zip_close(&zip);
    free(copy);
}

static void reads_a_comment(void **state)
{
    (void)state;
    test_archive archive = good();
    nl_zip zip;
    uint8_t *copy;
    finish(&archive);
    archive.bytes[archive.size - 2] = 5;
    memcpy(archive.bytes + archive.size, "PK\5\6!", 5);
    archive.size += 5;
    assert_ok(context, open_archive(&archive, archive.size, &zip, &copy));
    assert_int_equal(zip.count, 3);
    nl_zip_close(&zip);
    free(copy);
}

/* A number in the directory entry of "r/b". */
static void spoil(const char *name, int at, int size, uint64_t value, const char *message)
{
    test_archive archive = good();
    uint8_t *entry = archive.directory + at;
    put(&entry, value, size);
    finish(&archive);
    refuse(name, &archive, archive.size, message);
}

static void malformed_entries(void **state)
{
    (void)state;
    spoil("encrypted", FLAGS, 2, 1, "r/b: it is encrypted");
    spoil("unknown method", METHOD, 2, 12, "neither stored nor deflate");
    spoil("sizes that differ", SIZE, 4, 5, "its two sizes contradict");
    spoil("offset past the end", OFFSET, 4, 0x7fffffff, "r/b: it is not within the file");
    spoil("offset of another entry", OFFSET, 4, 37, "differ");
    spoil("offset of nothing", OFFSET, 4, 1, "differ");
    spoil("longer name", NAME, 2, 60000, "its directory is cut off");
    spoil("wrong signature", 0, 1, 'X', "does not hold what it should");
    spoil("zip64 without its field", OFFSET, 4, 0xffffffff, "zip64 sizes are missing");
    test_archive archive = good();
    put(&(uint8_t *){archive.directory + STORED}, 100, 4);
    put(&(uint8_t *){archive.directory + SIZE}, 100, 4);
    finish(&archive);
    refuse("longer than the file", &archive, archive.size, "r/b: it");
    archive = good();
    put(&(uint8_t *){archive.directory + STORED}, 10, 4);
    put(&(uint8_t *){archive.directory + SIZE}, 10, 4);
    finish(&archive);
    refuse("overlap", &archive, archive.size, "overlap");
    archive = good();
    add(&archive, "r/a", "aaa", 3, 3, 0);
    finish(&archive);
    refuse("twice", &archive, archive.size, "r/a: it is there twice");
}

static void malformed_ends(void **state)
{
    (void)state;
    test_archive archive = good();
    finish(&archive);
    for (size_t size = 0; size < archive.size; size++)
        refuse("cut", &archive, size, "");
    const struct {
        const char *name;
        int back, size;
        uint64_t value;
        const char *message;
    } rows[] = {
        {"directory past the end", 6, 4, 100000, "not within the file"},
        {"directory of 4 GiB", 10, 4, 0xfffffff0, "not within the file"},
        {"more entries than fit", 12, 2, 900, "too short for its entries"},
        {"more entries than there are", 12, 2, 4, "too short for its entries"},
        {"fewer entries than there are", 12, 2, 2, "holds more than it says"},
        {"several disks", 18, 2, 1, "several parts"},
    };
    for (int i = 0; i < NL_COUNT(rows); i++) {
        test_archive spoiled = archive;
        put(&(uint8_t *){spoiled.bytes + spoiled.size - rows[i].back}, rows[i].value, rows[i].size);
        refuse(rows[i].name, &spoiled, spoiled.size, rows[i].message);
    }
}

static void damaged_streams(void **state)
{
    (void)state;
    /* bytes of the stream, or numbers of the directory entry, of "r/c" */
    for (int i = 0; i < 3; i++) {
        test_archive archive = good();
        uint8_t *c = archive.directory + archive.directory_size - 49;
        nl_zip zip;
        uint8_t *copy, *to = malloc(20);
        if (i == 0)
            archive.bytes[archive.size - 3] ^= 0x40;
        if (i == 1)
            put(&(uint8_t *){c + SIZE}, 11, 4);
        if (i == 2)
            c[16] ^= 1; /* the checksum */
        finish(&archive);
        assert_ok(context, open_archive(&archive, archive.size, &zip, &copy));
        assert_int_equal(nl_zip_read(&zip, nl_zip_find(&zip, "r/c", 3), to), NL_ERROR_INPUT);
        assert_non_null(strstr(nl_last_error(context), "r/c: the compressed data are damaged"));
        nl_zip_close(&zip);
        free(to);
        free(copy);
    }
    test_archive archive = good();
    put(&(uint8_t *){archive.directory + archive.directory_size - 49 + SIZE}, 0x7fffffff, 4);
    finish(&archive);
    refuse("a bomb", &archive, archive.size, "its two sizes contradict");
}

/* A checkpoint whose deflated entries are far larger than the file: refused before a byte is unpacked. */
static void packed_to_fill_memory(void **state)
{
    (void)state;
    static uint8_t zeros[20 << 20], packed[1 << 16];
    static uint8_t bytes[1 << 17];
    z_stream stream = {.next_in = zeros,
                       .avail_in = sizeof(zeros),
                       .next_out = packed,
                       .avail_out = sizeof(packed)};
    deflateInit2(&stream, 9, Z_DEFLATED, -15, 8, Z_DEFAULT_STRATEGY);
    assert_int_equal(deflate(&stream, Z_FINISH), Z_STREAM_END);
    size_t stored = stream.total_out;
    deflateEnd(&stream);
    for (int large = 0; large < 2; large++) { /* what the directory says of its size */
        uint32_t size = large ? sizeof(zeros) : 15 << 20;
        uint8_t *at = bytes;
        put(&at, 0x04034b50, 4);
        put(&at, 20, 2), put(&at, 0, 2), put(&at, 8, 2), put(&at, 0, 8);
        put(&at, stored, 4), put(&at, size, 4), put(&at, 10, 2), put(&at, 0, 2);
        put_bytes(&at, "r/data.pkl", 10);
        put_bytes(&at, packed, stored);
        uint64_t directory = (uint64_t)(at - bytes);
        put(&at, 0x02014b50, 4), put(&at, 20, 2), put(&at, 20, 2), put(&at, 0, 2), put(&at, 8, 2);
        put(&at, 0, 8), put(&at, stored, 4), put(&at, size, 4), put(&at, 10, 2), put(&at, 0, 8);
        put(&at, 0, 4), put(&at, 0, 4);
        put_bytes(&at, "r/data.pkl", 10);
        put(&at, 0x06054b50, 4), put(&at, 0, 4), put(&at, 1, 2), put(&at, 1, 2);
        put(&at, (uint64_t)(at - bytes) - 12 - directory, 4), put(&at, directory, 4),
            put(&at, 0, 2);
        nl_checkpoint *file;
        assert_int_equal(nl_checkpoint_open_memory(context, "bomb.pt", bytes, at - bytes, &file),
                         NL_ERROR_INPUT);
        bool refused = strstr(nl_last_error(context), "compressed entries would take 20.0 MiB");
        assert_int_equal(refused, large);
    }
}

/* ---- Beyond 4 GiB: a sparse file, of which the two ends are written */

static const int64_t huge = (INT64_C(1) << 32) + (INT64_C(1) << 29);

static void local_header(uint8_t **at, const char *name, uint64_t size)
{
    put(at, 0x04034b50, 4);
    put(at, 45, 2), put(at, 0, 2), put(at, 0, 2), put(at, 0, 4), put(at, 0, 4);
    put(at, 0xffffffff, 4), put(at, 0xffffffff, 4), put(at, strlen(name), 2), put(at, 20, 2);
    put_bytes(at, name, strlen(name));
    put(at, 1, 2), put(at, 16, 2), put(at, size, 8), put(at, size, 8);
}

static void directory_entry(uint8_t **at, const char *name, uint64_t size, uint64_t offset)
{
    put(at, 0x02014b50, 4);
    put(at, 45, 2), put(at, 45, 2), put(at, 0, 2), put(at, 0, 2), put(at, 0, 4), put(at, 0, 4);
    put(at, 0xffffffff, 4), put(at, 0xffffffff, 4), put(at, strlen(name), 2), put(at, 28, 2);
    put(at, 0, 2), put(at, 0, 2), put(at, 0, 2), put(at, 0, 4), put(at, 0xffffffff, 4);
    put_bytes(at, name, strlen(name));
    put(at, 1, 2), put(at, 24, 2), put(at, size, 8), put(at, size, 8), put(at, offset, 8);
}

/* {"w": four bytes at the end of a storage of `huge`} */
static size_t huge_pickle(uint8_t *bytes)
{
    uint8_t *at = bytes;
    static const char start[] =
        "\x80\2}X\1\0\0\0wctorch._utils\n_rebuild_tensor_v2\n((X\7\0\0\0storage"
        "ctorch\nByteStorage\nX\1\0\0\0"
        "0X\3\0\0\0cpu\x8a\5";
    put_bytes(&at, start, sizeof(start) - 1);
    put(&at, (uint64_t)huge, 5);
    put_bytes(&at, "tQ\x8a\5", 4);
    put(&at, (uint64_t)huge - 4, 5);
    static const char end[] = "K\4\x85K\1\x85\x89}tRs.";
    put_bytes(&at, end, sizeof(end) - 1);
    return (size_t)(at - bytes);
}

static void beyond_4_gib(void **state)
{
    (void)state;
    static const char path[] = "test_zip_huge.pt";
    uint8_t pickle[256], head[128], tail[1024], *at = head;
    size_t pickle_size = huge_pickle(pickle);
    local_header(&at, "r/data/0", (uint64_t)huge);
    int64_t behind = (at - head) + huge;
    int fd = open(path, O_CREAT | O_TRUNC | O_RDWR, 0600);
    assert_true(fd >= 0);
    if (ftruncate(fd, behind) != 0) {
        close(fd);
        unlink(path);
        skip();
    }
    assert_int_equal(pwrite(fd, head, (size_t)(at - head), 0), at - head);
    assert_int_equal(pwrite(fd, "\5\6\7\x08", 4, behind - 4), 4);
    at = tail;
    local_header(&at, "r/data.pkl", pickle_size);
    put_bytes(&at, pickle, pickle_size);
    uint64_t directory = (uint64_t)(behind + (at - tail));
    directory_entry(&at, "r/data/0", (uint64_t)huge, 0);
    directory_entry(&at, "r/data.pkl", pickle_size, (uint64_t)behind);
    uint64_t record = (uint64_t)(behind + (at - tail));
    put(&at, 0x06064b50, 4), put(&at, 44, 8), put(&at, 45, 2), put(&at, 45, 2), put(&at, 0, 4);
    put(&at, 0, 4), put(&at, 2, 8), put(&at, 2, 8), put(&at, record - directory, 8),
        put(&at, directory, 8);
    put(&at, 0x07064b50, 4), put(&at, 0, 4), put(&at, record, 8), put(&at, 1, 4);
    put(&at, 0x06054b50, 4), put(&at, 0, 4), put(&at, 0xffff, 2), put(&at, 0xffff, 2);
    put(&at, 0xffffffff, 4), put(&at, 0xffffffff, 4), put(&at, 0, 2);
    assert_int_equal(pwrite(fd, tail, (size_t)(at - tail), behind), at - tail);
    close(fd);

    nl_checkpoint *file;
    float values[4];
    assert_ok(context, nl_checkpoint_open(context, path, &file));
    assert_int_equal(file->count, 1);
    assert_ok(context, nl_entry_read(file, nl_checkpoint_find(file, "w"), values));
    assert_true(values[0] == 5 && values[1] == 6 && values[2] == 7 && values[3] == 8);
    nl_checkpoint_close(file);
    unlink(path);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reads_entries),     cmocka_unit_test(reads_a_comment),
        cmocka_unit_test(malformed_entries), cmocka_unit_test(malformed_ends),
        cmocka_unit_test(damaged_streams),   cmocka_unit_test(packed_to_fill_memory),
        cmocka_unit_test(beyond_4_gib),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
