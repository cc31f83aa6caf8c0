/* SPDX-License-Identifier: MIT */
/* Archives of pictures: what comes out is what went in, whatever happened on the way. */
#include "nl_test.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "libzip.h"
#include "nl_npz.h"
#include "nl_random.h"
#include "zip.h"

enum { COUNT = 11, HEIGHT = 5, WIDTH = 7, BYTES = 3 * HEIGHT * WIDTH };

static nl_context *context;
static char folder[64], path[96], part[128], journal[128];

static int setup(void **state)
{
    (void)state;
    context = test_context(NULL);
    strcpy(folder, "/tmp/nalagen_npz_XXXXXX");
    if (!mkdtemp(folder))
        return 1;
    snprintf(path, sizeof(path), "%s/a.npz", folder);
    snprintf(part, sizeof(part), "%s.part", path);
    snprintf(journal, sizeof(journal), "%s.journal", path);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    unlink(path);
    unlink(part);
    unlink(journal);
    int failed = rmdir(folder); /* nothing else was left in it */
    nl_core_context_destroy(context);
    return failed;
}

static const nl_npz_options usual = {.path = path,
                                     .count = COUNT,
                                     .height = HEIGHT,
                                     .width = WIDTH,
                                     .parameters = "{\"seed\":3,\"n\":11,\"sampler\":\"heun\"}"};

static int label_of(int64_t index)
{
    return (int)(index * 7 % 10);
}

static void draw(int64_t index, uint8_t rgb[BYTES])
{
    for (int i = 0; i < BYTES; i++) {
        uint32_t words[4];
        nl_philox(1, (uint64_t)index, 0, (uint64_t)i, words);
        rgb[i] = (uint8_t)words[0];
    }
}

static nl_npz *open_npz(nl_npz_options options)
{
    nl_npz *npz = NULL;
    assert_ok(context, nl_npz_open(context, &options, &npz));
    return npz;
}

static void refuse(nl_npz_options options, nl_status code, const char *message)
{
    nl_npz *npz = NULL;
    assert_int_equal(nl_npz_open(context, &options, &npz), code);
    assert_null(npz);
    if (!strstr(nl_last_error(context), message))
        fail_msg("expected \"%s\", found \"%s\"", message, nl_last_error(context));
}

static void put(nl_npz *npz, int64_t index)
{
    uint8_t rgb[BYTES];
    draw(index, rgb);
    assert_ok(context, nl_npz_write(npz, index, label_of(index), rgb));
}

static int64_t done_of(nl_npz *npz)
{
    int64_t done;
    assert_ok(context, nl_npz_done(npz, &done));
    return done;
}

static bool has(nl_npz *npz, int64_t index)
{
    bool there;
    assert_ok(context, nl_npz_has(npz, index, &there));
    return there;
}

static void finish(nl_npz *npz, bool expected)
{
    bool finished;
    assert_ok(context, nl_npz_close(&npz, &finished));
    assert_int_equal(finished, expected);
    assert_int_equal(nl_path_exists(path), expected);
    assert_int_equal(nl_path_exists(part), !expected);
    assert_int_equal(nl_path_exists(journal), !expected);
}

/* By our reader, which checks structure and checksum, and by libzip where it was found, which does so too. */
static void read_member(const char *name, const char *header, void *data, size_t size)
{
    static uint8_t bytes[128 + COUNT * 4096 + 1], again[sizeof(bytes)];
    char comment[256];
    nl_mapping mapping;
    nl_zip zip;
    assert_ok(context, nl_map_file(context, path, &mapping));
    assert_ok(context, nl_zip_open(context, path, mapping.data, mapping.size, &zip));
    const nl_zip_entry *entry = nl_zip_find(&zip, name, (int64_t)strlen(name));
    assert_non_null(entry);
    assert_int_equal(zip.count, 2);
    assert_false(entry->deflated);
    assert_int_equal(entry->size, 128 + size);
    assert_ok(context, nl_zip_read(&zip, entry, bytes));
    assert_int_equal(zip.comment_size, strlen(usual.parameters));
    assert_memory_equal(zip.comment, usual.parameters, strlen(usual.parameters));
    nl_zip_close(&zip);
    nl_unmap(context, &mapping);
    if (libzip_there()) {
        assert_int_equal(libzip_read(path, name, again, 128 + size, comment, sizeof(comment)),
                         128 + size);
        assert_string_equal(comment, usual.parameters);
        assert_memory_equal(again, bytes, 128 + size);
    }
    assert_memory_equal(bytes, "\x93NUMPY\x01\x00\x76\x00", 10);
    assert_memory_equal(bytes + 10, header, strlen(header));
    assert_int_equal(bytes[127], '\n');
    memcpy(data, bytes + 128, size);
}

static void check_archive(void)
{
    uint8_t pictures[COUNT][BYTES], labels[COUNT][8], rgb[BYTES];
    read_member("arr_0.npy", "{'descr': '|u1', 'fortran_order': False, 'shape': (11, 5, 7, 3), } ",
                pictures, sizeof(pictures));
    read_member("arr_1.npy", "{'descr': '<i8', 'fortran_order': False, 'shape': (11,), } ", labels,
                sizeof(labels));
    for (int i = 0; i < COUNT; i++) {
        draw(i, rgb);
        assert_memory_equal(pictures[i], rgb, BYTES);
        assert_int_equal(labels[i][0], label_of(i));
    }
}

static void test_any_order(void **state)
{
    (void)state;
    nl_npz *npz = open_npz(usual);
    struct stat info;
    assert_int_equal(stat(part, &info), 0);
    int64_t whole = info.st_size;
    for (int64_t i = 0; i < COUNT; i++)
        put(npz, i * 4 % COUNT);
    finish(npz, true);
    assert_int_equal(stat(path, &info), 0);
    assert_int_equal(info.st_size, whole);
    check_archive();
    npz = open_npz(usual);
    assert_true(nl_npz_finished(npz));
    assert_int_equal(done_of(npz), COUNT);
    finish(npz, true);
    nl_npz_options other = usual;
    other.parameters = "{\"seed\":4,\"n\":11,\"sampler\":\"heun\"}";
    refuse(other, NL_ERROR_WRITE, "--force");
    check_archive();
}

static void test_gone_on_with(void **state)
{
    (void)state;
    for (int64_t i = 0; i < COUNT; i++) {
        nl_npz *npz = open_npz(usual);
        assert_int_equal(done_of(npz), i);
        for (int64_t j = 0; j < COUNT; j++)
            assert_int_equal(has(npz, j), j < i);
        put(npz, i);
        if (i + 1 < COUNT && i % 2)
            finish(npz, false);
        else if (i + 1 < COUNT)
            nl_npz_abandon(&npz);
        else
            finish(npz, true);
    }
    check_archive();
}

static void test_other_parameters(void **state)
{
    (void)state;
    nl_npz *npz = open_npz(usual);
    put(npz, 2);
    nl_npz_abandon(&npz);
    nl_npz_options other = usual;
    other.parameters = "{\"seed\":4,\"n\":11,\"sampler\":\"heun\"}";
    refuse(other, NL_ERROR_WRITE, "seed 3, found seed 4");
    other.parameters = "{\"seed\":3,\"n\":11}";
    refuse(other, NL_ERROR_WRITE, "sampler \"heun\", found sampler left out");
    other.parameters = "{\"seed\":3,\"n\":11,\"sampler\":\"heun\",\"eta\":1}";
    refuse(other, NL_ERROR_WRITE, "eta left out, found eta 1");
    other = usual;
    other.width++;
    refuse(other, NL_ERROR_WRITE, "shape 11 x 5 x 7, found shape 11 x 5 x 8");
    npz = open_npz(usual);
    assert_int_equal(done_of(npz), 1);
    nl_npz_abandon(&npz);
    other.force = true;
    npz = open_npz(other);
    assert_int_equal(done_of(npz), 0);
    nl_npz_abandon(&npz);
}

static void overwrite(const char *name, int64_t offset, const void *data, size_t size)
{
    int fd = open(name, O_WRONLY);
    assert_true(fd >= 0);
    assert_int_equal(pwrite(fd, data, size, offset), size);
    close(fd);
}

static void test_torn_and_damaged(void **state)
{
    (void)state;
    struct stat info;
    nl_npz *npz = open_npz(usual);
    for (int64_t i = 0; i < 5; i++)
        put(npz, i);
    nl_npz_abandon(&npz);
    assert_int_equal(stat(journal, &info), 0);
    int64_t records = info.st_size - 16 * COUNT;
    overwrite(journal, records + 16 * 1 + 8, "\0\0\0\0\0\0\0\0", 8); /* the end never came */
    overwrite(journal, records + 16 * 2 + 4, "?", 1);
    overwrite(part, 59 + 128 + 3 * BYTES + 10, "??????", 6); /* a picture that the disk lost */
    npz = open_npz(usual);
    assert_int_equal(done_of(npz), 3);
    for (int64_t i = 0; i < COUNT; i++)
        assert_int_equal(has(npz, i), i == 0 || i == 4);
    for (int64_t i = 0; i < COUNT; i++)
        if (!has(npz, i))
            put(npz, i);
    finish(npz, true);
    check_archive();
}

static void write_text(const char *name, const char *text)
{
    assert_ok(context, nl_write_file(context, name, true, text, strlen(text)));
}

static void test_files_that_are_not_ours(void **state)
{
    (void)state;
    char text[8];
    write_text(part, "mine");
    refuse(usual, NL_ERROR_WRITE, "without its journal");
    assert_false(nl_path_exists(journal));
    FILE *file = fopen(part, "r");
    assert_non_null(file);
    assert_string_equal(fgets(text, sizeof(text), file), "mine");
    fclose(file);
    unlink(part);
    write_text(journal,
               "a journal of a journey, long enough to have held the header of another one");
    refuse(usual, NL_ERROR_WRITE, "expected a journal of nalagen");
    write_text(journal, "short");
    refuse(usual, NL_ERROR_WRITE, "expected a journal of nalagen");
    write_text(path, "mine");
    refuse(usual, NL_ERROR_WRITE, "is there already");
    nl_npz_options force = usual;
    force.force = true;
    nl_npz *npz = open_npz(force);
    for (int64_t i = 0; i < COUNT; i++)
        put(npz, i);
    bool finished;
    assert_ok(context, nl_npz_close(&npz, &finished));
    assert_true(finished);
    check_archive();
}

static void test_hostile_journals(void **state)
{
    (void)state;
    static const struct {
        int64_t offset;
        const char *bytes;
        size_t size;
    } damages[] = {
        {16, "\2", 1},                               /* version */
        {20, "\xff\xff\xff\xff", 4},                 /* parameters */
        {24, "\xff\xff\xff\xff\xff\xff\xff\xff", 8}, /* count */
        {24, "\xff\xff\xff\xff\xff\xff\xff\x07", 8}, /* count that overflows */
        {24, "\x0c", 1},                             /* count of another length */
        {48, "\1\2\3\4", 4},                         /* checksum */
        {70, "x", 1},                                /* parameters */
    };
    for (int i = 0; i < NL_COUNT(damages); i++) {
        nl_npz *npz = open_npz(usual);
        put(npz, 0);
        nl_npz_abandon(&npz);
        overwrite(journal, damages[i].offset, damages[i].bytes, damages[i].size);
        refuse(usual, NL_ERROR_WRITE, "expected a journal of nalagen");
        unlink(journal);
        unlink(part);
    }
    nl_npz *npz = open_npz(usual);
    put(npz, 0);
    nl_npz_abandon(&npz);
    assert_int_equal(truncate(part, 100), 0);
    refuse(usual, NL_ERROR_WRITE, "begin anew with --force");
    unlink(part);
    refuse(usual, NL_ERROR_WRITE, "begin anew with --force");
}

/* Every write, sync and rename fails once; going on afterwards is always possible. */
static void test_full_disk(void **state)
{
    (void)state;
    for (int64_t number = 1;; number++) {
        nl_npz *npz = NULL;
        bool finished = false;
        uint8_t rgb[BYTES];
        atomic_store(&context->writes, 0);
        context->fail_write = number;
        nl_status status = nl_npz_open(context, &usual, &npz);
        if (status != NL_OK) {
            assert_false(nl_path_exists(part));
            assert_false(nl_path_exists(journal));
        }
        for (int64_t i = 0; i < COUNT && status == NL_OK; i++) {
            draw(i, rgb);
            status = nl_npz_write(npz, i, label_of(i), rgb);
        }
        if (status == NL_OK)
            status = nl_npz_close(&npz, &finished);
        nl_npz_abandon(&npz);
        context->fail_write = 0;
        if (status == NL_OK) {
            assert_true(number > 2 * COUNT + 10);
            break;
        }
        assert_int_equal(status, NL_ERROR_WRITE);
        assert_non_null(strstr(nl_last_error(context), "No space left"));
        npz = open_npz(usual);
        for (int64_t i = 0; i < COUNT && !nl_npz_finished(npz); i++)
            if (!has(npz, i))
                put(npz, i);
        finish(npz, true);
        check_archive();
        unlink(path);
    }
    check_archive();
}

static void test_too_large(void **state)
{
    (void)state;
    nl_npz_options large = usual;
    large.count = 1000000000;
    large.height = large.width = 8192; /* 2e17 bytes */
    nl_npz *npz = NULL;
    assert_int_equal(nl_npz_open(context, &large, &npz), NL_ERROR_WRITE);
    assert_false(nl_path_exists(part));
    assert_false(nl_path_exists(journal));
    large.count = INT64_MAX / 2;
    refuse(large, NL_ERROR_USAGE, "too many");
    large.count = 0;
    refuse(large, NL_ERROR_USAGE, "at least one picture");
    large = usual;
    large.rank = large.ranks = 2;
    refuse(large, NL_ERROR_USAGE, "rank");
}

static void test_one_process_at_a_time(void **state)
{
    (void)state;
    nl_npz *npz = open_npz(usual);
    refuse(usual, NL_ERROR_WRITE, "another process is at work");
    nl_npz_options options = usual;
    options.force = true;
    refuse(options, NL_ERROR_WRITE, "another process is at work");
    nl_npz_abandon(&npz);
    options = usual;
    options.ranks = 2;
    nl_npz *first = open_npz(options);
    refuse(options, NL_ERROR_WRITE, "another process is at work");
    refuse(usual, NL_ERROR_WRITE, "another process is at work");
    options.rank = 1;
    nl_npz *second = open_npz(options);
    for (int64_t i = 0; i < COUNT; i++)
        put(i % 2 ? second : first, i);
    finish(first, true);
    bool finished;
    assert_ok(context, nl_npz_close(&second, &finished));
    assert_false(finished); /* the first did it */
    check_archive();
}

/* With force and a token the first begins anew and the others join. */
static void test_token(void **state)
{
    (void)state;
    nl_npz *npz = open_npz(usual);
    put(npz, 0);
    nl_npz_abandon(&npz);
    nl_npz_options options = usual;
    options.force = true;
    options.token = 77;
    options.ranks = 2;
    nl_npz *first = open_npz(options);
    assert_int_equal(done_of(first), 0);
    put(first, 0);
    options.rank = 1;
    nl_npz *second = open_npz(options);
    assert_int_equal(done_of(second), 1);
    for (int64_t i = 1; i < COUNT; i++)
        put(i % 2 ? second : first, i);
    finish(second, true);
    nl_npz_abandon(&first);
    check_archive();
}

/* A process that died after the renaming left its journal, or an empty one. */
static void test_journal_left_behind(void **state)
{
    (void)state;
    char kept[160];
    snprintf(kept, sizeof(kept), "%s.kept", journal);
    nl_npz *npz = open_npz(usual);
    for (int64_t i = 0; i < COUNT; i++)
        put(npz, i);
    assert_int_equal(link(journal, kept), 0);
    finish(npz, true);
    assert_int_equal(rename(kept, journal), 0);
    finish(open_npz(usual), true);
    write_text(journal, "");
    finish(open_npz(usual), true);
    write_text(journal, "something of somebody");
    npz = open_npz(usual);
    assert_true(nl_npz_finished(npz));
    nl_npz_abandon(&npz);
    assert_true(nl_path_exists(journal));
}

/* Children that are killed at any moment, several at once; then one that does the rest. */
static void test_killed(void **state)
{
    (void)state;
    enum { RANKS = 3 };
    for (int round = 0; round < 40; round++) {
        pid_t children[RANKS];
        for (int rank = 0; rank < RANKS; rank++) {
            children[rank] = fork();
            if (children[rank] == 0) {
                nl_npz_options options = usual;
                nl_npz *npz = NULL;
                bool there, finished;
                uint8_t rgb[BYTES];
                options.rank = rank;
                options.ranks = RANKS;
                if (nl_npz_open(context, &options, &npz) != NL_OK)
                    _exit(1);
                for (int64_t i = rank; i < COUNT && !nl_npz_finished(npz); i += RANKS) {
                    draw(i, rgb);
                    if (nl_npz_has(npz, i, &there) != NL_OK ||
                        (!there && nl_npz_write(npz, i, label_of(i), rgb) != NL_OK))
                        _exit(1);
                }
                _exit(nl_npz_close(&npz, &finished) == NL_OK ? 0 : 1);
            }
        }
        usleep((useconds_t)(round * 37));
        for (int rank = 0; rank < RANKS; rank++)
            kill(children[rank], SIGKILL);
        for (int rank = 0; rank < RANKS; rank++) {
            int state_of;
            assert_int_equal(waitpid(children[rank], &state_of, 0), children[rank]);
            assert_true(WIFSIGNALED(state_of) || WEXITSTATUS(state_of) == 0);
        }
        nl_npz *npz = open_npz(usual);
        for (int64_t i = 0; i < COUNT && !nl_npz_finished(npz); i++)
            if (!has(npz, i))
                put(npz, i);
        finish(npz, true);
        check_archive();
        if (round % 3)
            unlink(path);
    }
}

/* What lies under the names of the work is never followed elsewhere: not written through, not waited for. */
static void test_links(void **state)
{
    (void)state;
    static const char secret[] = "somebody else's";
    char victim[128];
    snprintf(victim, sizeof(victim), "%s/victim", folder);
    alarm(60); /* a link to nothing was looked for without end */
    for (int force = 0; force < 2; force++) {
        nl_npz_options options = usual;
        options.force = force;
        assert_int_equal(symlink("nowhere", journal), 0);
        refuse(options, NL_ERROR_WRITE, "a.npz.journal: expected a file, found a symbolic link");
        unlink(journal);
        assert_ok(context, nl_write_file(context, victim, true, secret, sizeof(secret)));
        assert_int_equal(symlink(victim, journal), 0);
        refuse(options, NL_ERROR_WRITE, "symbolic link");
        unlink(journal);
        nl_mapping mapping;
        assert_ok(context, nl_map_file(context, victim, &mapping));
        assert_int_equal(mapping.size, sizeof(secret));
        assert_memory_equal(mapping.data, secret, sizeof(secret));
        nl_unmap(context, &mapping);
        assert_false(nl_path_exists(part));
        assert_int_equal(mkfifo(journal, 0600), 0);
        refuse(options, NL_ERROR_WRITE, "expected a file");
        unlink(journal);
    }
    /* the part of a work begun, moved elsewhere and linked to */
    nl_npz *npz = open_npz(usual);
    put(npz, 3);
    nl_npz_abandon(&npz);
    assert_int_equal(rename(part, victim), 0);
    assert_int_equal(symlink(victim, part), 0);
    refuse(usual, NL_ERROR_WRITE, "a.npz.part");
    unlink(part);
    unlink(victim);
    alarm(0);
}

/* Negative labels keep their sign in 64 bits. */
static void test_negative_labels(void **state)
{
    (void)state;
    nl_npz_options large = usual;
    large.count = 3;
    large.height = large.width = 1 << 5;
    nl_npz *npz = open_npz(large);
    uint8_t rgb[3 << 10] = {1};
    for (int64_t i = 0; i < 3; i++)
        assert_ok(context, nl_npz_write(npz, i, -1, rgb));
    finish(npz, true);
    uint8_t labels[3][8];
    read_member("arr_1.npy", "{'descr': '<i8'", labels, sizeof(labels));
    for (int i = 0; i < 8; i++)
        assert_int_equal(labels[2][i], 0xff); /* -1 */
}

/* The other tests read archives with libzip as well, where it is there. */
static void test_with_libzip(void **state)
{
    (void)state;
    if (!libzip_there()) {
        print_message(
            "SKIPPED: archives read by libzip as well as by ourselves: libzip-dev was not found\n");
        skip();
    }
}

int main(void)
{
#define NL_TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        NL_TEST(test_any_order),
        NL_TEST(test_gone_on_with),
        NL_TEST(test_other_parameters),
        NL_TEST(test_torn_and_damaged),
        NL_TEST(test_files_that_are_not_ours),
        NL_TEST(test_hostile_journals),
        NL_TEST(test_full_disk),
        NL_TEST(test_too_large),
        NL_TEST(test_one_process_at_a_time),
        NL_TEST(test_token),
        NL_TEST(test_journal_left_behind),
        NL_TEST(test_killed),
        NL_TEST(test_negative_labels),
        NL_TEST(test_links),
        NL_TEST(test_with_libzip),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
