/* SPDX-License-Identifier: MIT */
/* Files: writing that leaves the old file or the new one, every fault, mappings, paths, SHA-256. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "nl_test.h"
#include "sha256_blocks.h"

typedef struct fixture {
    nl_context *context;
    char folder[64];
    char path[128]; /* folder/file */
} fixture;

static int set_up(void **state)
{
    fixture *f = calloc(1, sizeof(*f));
    f->context = test_context(NULL);
    strcpy(f->folder, "/tmp/nalagen-io-XXXXXX");
    if (!mkdtemp(f->folder))
        return -1;
    snprintf(f->path, sizeof(f->path), "%s/file", f->folder);
    *state = f;
    return 0;
}

/* Names in the folder, "." and ".." apart. */
static int count_files(const char *folder)
{
    int count = 0;
    DIR *d = opendir(folder);
    assert_non_null(d);
    for (struct dirent *e; (e = readdir(d));)
        count += strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0;
    closedir(d);
    return count;
}

static int tear_down(void **state)
{
    fixture *f = *state;
    char command[128];
    snprintf(command, sizeof(command), "rm -r '%s'", f->folder);
    int removed = system(command);
    int64_t left = f->context->memory_used;
    nl_core_context_destroy(f->context);
    free(f);
    if (left)
        print_message("%lld bytes were not freed\n", (long long)left);
    return removed == 0 && left == 0 ? 0 : -1;
}

static void assert_content(fixture *f, const char *path, const char *text)
{
    nl_mapping mapping;
    assert_ok(f->context, nl_map_file(f->context, path, &mapping));
    assert_int_equal(mapping.size, strlen(text));
    if (mapping.size)
        assert_memory_equal(mapping.data, text, strlen(text));
    nl_unmap(f->context, &mapping);
    assert_null(mapping.data);
}

#define assert_message(f, text) assert_non_null(strstr(nl_last_error((f)->context), text))

static void test_write_and_read(void **state)
{
    fixture *f = *state;
    nl_writer *writer;
    assert_ok(f->context, nl_writer_open(f->context, f->path, false, &writer));
    assert_ok(f->context, nl_writer_write(writer, "one ", 4));
    assert_ok(f->context, nl_writer_printf(writer, "%s %d", "two", 3));
    assert_false(nl_path_exists(f->path)); /* not before the commit */
    assert_ok(f->context, nl_writer_commit(&writer));
    assert_null(writer);
    assert_content(f, f->path, "one two 3");
    assert_int_equal(count_files(f->folder), 1);

    assert_ok(f->context, nl_write_file(f->context, f->path, true, "", 0));
    assert_content(f, f->path, "");
}

static void test_mode_follows_umask(void **state)
{
    fixture *f = *state;
    struct stat info;
    mode_t before = umask(027);
    assert_ok(f->context, nl_write_file(f->context, f->path, false, "a", 1));
    umask(before);
    assert_int_equal(stat(f->path, &info), 0);
    assert_int_equal(info.st_mode & 0777, 0640);
    assert_int_equal(chmod(f->path, 0604), 0);
    assert_ok(f->context, nl_write_file(f->context, f->path, true, "b", 1));
    assert_int_equal(stat(f->path, &info), 0);
    assert_int_equal(info.st_mode & 0777, 0604);
}

static void test_existing_file_is_kept(void **state)
{
    fixture *f = *state;
    assert_ok(f->context, nl_write_file(f->context, f->path, false, "old", 3));
    nl_writer *writer;
    assert_int_equal(nl_writer_open(f->context, f->path, false, &writer), NL_ERROR_WRITE);
    assert_null(writer);
    assert_message(f, "exists already");
    assert_content(f, f->path, "old");
    assert_ok(f->context, nl_write_file(f->context, f->path, true, "new", 3));
    assert_content(f, f->path, "new");
    assert_int_equal(count_files(f->folder), 1);
}

/* Somebody else takes the name between open and commit. */
static void test_race_for_the_name(void **state)
{
    fixture *f = *state;
    nl_writer *ours, *theirs;
    assert_ok(f->context, nl_writer_open(f->context, f->path, false, &ours));
    assert_ok(f->context, nl_writer_open(f->context, f->path, false, &theirs));
    assert_ok(f->context, nl_writer_write(ours, "ours", 4));
    assert_ok(f->context, nl_writer_write(theirs, "theirs", 6));
    assert_ok(f->context, nl_writer_commit(&theirs));
    assert_int_equal(nl_writer_commit(&ours), NL_ERROR_WRITE);
    assert_message(f, "exists already");
    assert_content(f, f->path, "theirs");
    assert_int_equal(count_files(f->folder), 1);
}

static void test_abort(void **state)
{
    fixture *f = *state;
    nl_writer *writer = NULL;
    nl_writer_abort(&writer);
    assert_ok(f->context, nl_write_file(f->context, f->path, false, "old", 3));
    assert_ok(f->context, nl_writer_open(f->context, f->path, true, &writer));
    assert_ok(f->context, nl_writer_write(writer, "half", 4));
    nl_writer_abort(&writer);
    assert_null(writer);
    assert_content(f, f->path, "old");
    assert_int_equal(count_files(f->folder), 1);
}

static void test_symbolic_link_stays(void **state)
{
    fixture *f = *state;
    char link[160];
    struct stat info;
    snprintf(link, sizeof(link), "%s/link", f->folder);
    assert_ok(f->context, nl_write_file(f->context, f->path, false, "old", 3));
    assert_int_equal(symlink("file", link), 0);
    assert_ok(f->context, nl_write_file(f->context, link, true, "new", 3));
    assert_content(f, f->path, "new");
    assert_int_equal(lstat(link, &info), 0);
    assert_true(S_ISLNK(info.st_mode));
}

static nl_status write_three(fixture *f, bool overwrite)
{
    nl_writer *writer;
    nl_status status = nl_writer_open(f->context, f->path, overwrite, &writer);
    if (status != NL_OK)
        return status;
    nl_writer_write(writer, "new", 3); /* failures are remembered until the commit */
    nl_writer_printf(writer, " %s", "file");
    nl_writer_write(writer, "!", 1);
    return nl_writer_commit(&writer);
}

/* Each allocation and each write in turn fails: the old file stays whole, no other file is left, no
 * memory is lost (tear_down), and without the fault the new file is whole. */
static void test_every_fault(void **state)
{
    fixture *f = *state;
    for (int kind = 0; kind < 2; kind++) {
        assert_ok(f->context, nl_write_file(f->context, f->path, true, "old", 3));
        nl_status status = NL_ERROR_INTERNAL;
        int faults = 0;
        for (int n = 1; status != NL_OK; n++) {
            assert_in_range(n, 1, 50);
            f->context->fail_allocation = kind == 0 ? f->context->allocations + n : 0;
            f->context->fail_write = kind == 1 ? f->context->writes + n : 0;
            status = write_three(f, true);
            if (status == NL_OK)
                break;
            faults++;
            assert_int_equal(status, kind == 0 ? NL_ERROR_MEMORY : NL_ERROR_WRITE);
            assert_true(strlen(nl_last_error(f->context)) > 0);
            f->context->fail_allocation = f->context->fail_write = 0;
            assert_content(f, f->path, "old");
            assert_int_equal(count_files(f->folder), 1);
        }
        f->context->fail_allocation = f->context->fail_write = 0;
        assert_true(faults >= 5);
        assert_content(f, f->path, "new file!");
        assert_int_equal(count_files(f->folder), 1);
    }
}

static void test_failed_new_file_leaves_nothing(void **state)
{
    fixture *f = *state;
    f->context->fail_write = 2;
    assert_int_equal(write_three(f, false), NL_ERROR_WRITE);
    assert_message(f, "No space left");
    assert_int_equal(count_files(f->folder), 0);
}

static void test_full_disk(void **state)
{
    fixture *f = *state;
    assert_int_equal(nl_write_file(f->context, "/dev/full", true, "abc", 3), NL_ERROR_WRITE);
    assert_message(f, "/dev/full");
    assert_message(f, "No space left");
    assert_ok(f->context, nl_write_file(f->context, "/dev/null", false, "abc", 3));
    assert_true(nl_path_exists("/dev/full"));
}

/* Readers step through [data, data + size): undefined with NULL, which clang's sanitizer tells. */
static void test_empty_file(void **state)
{
    fixture *f = *state;
    nl_mapping mapping;
    assert_ok(f->context, nl_write_file(f->context, f->path, false, "", 0));
    assert_ok(f->context, nl_map_file(f->context, f->path, &mapping));
    assert_non_null(mapping.data);
    assert_int_equal(mapping.size, 0);
    nl_unmap(f->context, &mapping);
    assert_null(mapping.data);
}

/* A line is there whole or not at all, also where the disk takes a part of it. */
static void test_append(void **state)
{
    fixture *f = *state;
    nl_append file;
    struct rlimit before, small;
    assert_ok(f->context, nl_append_open(f->context, f->path, &file));
    assert_ok(f->context, nl_append_line(&file, "{\"step\": 1}"));
    getrlimit(RLIMIT_FSIZE, &before);
    small = before;
    small.rlim_cur = 20;
    signal(SIGXFSZ, SIG_IGN);
    setrlimit(RLIMIT_FSIZE, &small);
    nl_status status = nl_append_line(&file, "{\"step\": 2}");
    setrlimit(RLIMIT_FSIZE, &before);
    assert_int_equal(status, NL_ERROR_WRITE);
    assert_message(f, f->path);
    assert_content(f, f->path, "{\"step\": 1}\n");
    assert_ok(f->context, nl_append_line(&file, "{\"step\": 3}"));
    assert_ok(f->context, nl_append_sync(&file));
    nl_append_close(&file);
    assert_content(f, f->path, "{\"step\": 1}\n{\"step\": 3}\n");
    assert_int_equal(nl_append_open(f->context, f->folder, &file), NL_ERROR_WRITE);
    nl_append_close(&file);
}

/* What the process may still take: the least that a group, one of its parents, or its own limit leaves. */
static void test_memory_available(void **state)
{
    static const struct {
        const char *file, *text;
    } files[] = {{"list", "4:memory:/old\n1:cpu:/x\n0::/a/b\n"},
                 {"a/memory.max", "5000\n"},
                 {"a/memory.current", "4500\n"},
                 {"a/memory.stat", "anon 7\ninactive_file 300\n"},
                 {"a/b/memory.max", "max\n"},
                 {"a/b/memory.current", "4000\n"},
                 {"memory/old/memory.limit_in_bytes", "9000\n"},
                 {"memory/old/memory.usage_in_bytes", "8300\n"}};
    fixture *f = *state;
    char path[256], list[128];
    const char *const folders[] = {"a", "a/b", "memory", "memory/old"};
    for (int i = 0; i < NL_COUNT(folders); i++) {
        snprintf(path, sizeof(path), "%s/%s", f->folder, folders[i]);
        assert_ok(f->context, nl_make_folder(f->context, path));
    }
    for (int i = 0; i < NL_COUNT(files); i++) {
        snprintf(path, sizeof(path), "%s/%s", f->folder, files[i].file);
        assert_ok(f->context,
                  nl_write_file(f->context, path, false, files[i].text, strlen(files[i].text)));
    }
    snprintf(list, sizeof(list), "%s/list", f->folder);
    assert_int_equal(nl_group_memory_left(list, f->folder), 700);
    snprintf(path, sizeof(path), "%s/a/memory.max", f->folder);
    assert_ok(f->context, nl_write_file(f->context, path, true, "4700\n", 5));
    assert_int_equal(nl_group_memory_left(list, f->folder), 500);
    assert_true(nl_group_memory_left("/nowhere", f->folder) == INT64_MAX);
#ifndef __SANITIZE_ADDRESS__ /* its allocator ends the process where a limit is below what it has taken */
    struct rlimit before, small;
    int64_t have = nl_memory_available();
    getrlimit(RLIMIT_AS, &before);
    small = before;
    small.rlim_cur = (rlim_t)1 << 36;
    setrlimit(RLIMIT_AS, &small);
    int64_t less = nl_memory_available();
    setrlimit(RLIMIT_AS, &before);
    assert_true(less >= 0 && less <= have + (1 << 28) && less < INT64_C(1) << 36);
#endif
}

/* The least quota of a group and its parents, rounded up; version 1 and 2, controllers that are mounted together. */
static void test_group_processors(void **state)
{
    static const struct {
        const char *list, *file, *text;
        int expected;
    } cases[] = {
        {"0::/a/b\n", "a/b/cpu.max", "max 100000\n", INT_MAX},
        {"0::/a/b\n", "a/cpu.max", "350000 100000\n", 4},
        {"0::/a/b\n", "a/b/cpu.max", "200000 100000\n", 2},
        {"0::/a/b\n", "a/b/cpu.max", "1000 100000\n", 1},
        {"0::/a/b\n", "cpu.max", "700 100\n", 1},
        {"0::/\n", "a/b/cpu.max", "max 100000\n", 7}, /* in a container: the root is the group */
        {"3:cpu,cpuacct:/old\n", "cpu/old/cpu.cfs_period_us", "50000\n", INT_MAX},
        {"3:cpu,cpuacct:/old\n", "cpu/old/cpu.cfs_quota_us", "-1\n", INT_MAX},
        {"3:cpu,cpuacct:/old\n", "cpu/old/cpu.cfs_quota_us", "150000\n", 3},
        {"3:cpuacct,cpu:/old\n", "a/b/cpu.max", "x\n", 3},
        {"3:cpuset:/old\n2:cpuacct:/old\n", "a/b/cpu.max", "7\n", INT_MAX},
        {"1:cpu:/elsewhere\n", "cpu/cpu.cfs_quota_us", "-1\n", INT_MAX}};
    fixture *f = *state;
    char path[256], list[128];
    const char *const folders[] = {"a", "a/b", "cpu", "cpu/old"};
    for (int i = 0; i < NL_COUNT(folders); i++) {
        snprintf(path, sizeof(path), "%s/%s", f->folder, folders[i]);
        assert_ok(f->context, nl_make_folder(f->context, path));
    }
    snprintf(list, sizeof(list), "%s/list", f->folder);
    for (int i = 0; i < NL_COUNT(cases); i++) {
        snprintf(path, sizeof(path), "%s/%s", f->folder, cases[i].file);
        assert_ok(f->context,
                  nl_write_file(f->context, path, true, cases[i].text, strlen(cases[i].text)));
        assert_ok(f->context,
                  nl_write_file(f->context, list, true, cases[i].list, strlen(cases[i].list)));
        if (nl_group_processors(list, f->folder) != cases[i].expected)
            fail_msg("case %d: %d", i, nl_group_processors(list, f->folder));
    }
    assert_int_equal(nl_group_processors("/nowhere", f->folder), INT_MAX);
    assert_in_range(nl_processors_available(), 1, 1 << 20);
}

/* Of a file that is to be, its nearest folder's disk; streams and devices have no end that is known. */
static void test_space(void **state)
{
    fixture *f = *state;
    char path[256];
    snprintf(path, sizeof(path), "%s/not/yet/there", f->folder);
    const char *const paths[] = {path, f->folder, "x", "/"};
    for (int i = 0; i < NL_COUNT(paths); i++) {
        assert_true(nl_space_left(paths[i]) < INT64_MAX);
        assert_ok(f->context, nl_check_space(f->context, paths[i], 0));
        assert_int_equal(nl_check_space(f->context, paths[i], INT64_MAX), NL_ERROR_WRITE);
    }
    assert_non_null(strstr(nl_last_error(f->context), "too full: need"));
    assert_true(nl_space_left("-") == INT64_MAX && nl_space_left("/dev/null") == INT64_MAX);
}

static void keep_warning(void *user, nl_log_level level, const char *message)
{
    if (level == NL_LOG_WARNING)
        snprintf(user, 256, "%s", message);
}

/* Files whose sizes are not known: refused when not even their entries fit, a warning when the largest would not. */
static void test_space_for_files(void **state)
{
    fixture *f = *state;
    char warning[256] = "";
    nl_context_options options = {.log = keep_warning, .user = warning};
    nl_context *context;
    assert_int_equal(nl_core_context_create(&options, &context), NL_OK);
    int64_t left = nl_space_left(f->folder), many = 4;
    assert_ok(context, nl_check_space_for_files(context, f->folder, many, 0));
    assert_ok(context, nl_check_space_for_files(context, "", many, 0));
    assert_ok(context, nl_check_space_for_files(context, f->folder, many, left / many / 2));
    assert_string_equal(warning, "");
    assert_ok(context, nl_check_space_for_files(context, f->folder, many, left));
    assert_non_null(strstr(warning, "may become too full: 4 files of up to"));
    warning[0] = '\0';
    assert_ok(context, nl_check_space_for_files(context, "-", 1, INT64_MAX));
    assert_string_equal(warning, "");
    assert_int_equal(nl_check_space_for_files(context, f->folder, INT64_MAX, 1), NL_ERROR_WRITE);
    assert_non_null(strstr(nl_last_error(context), "too full: need"));
    nl_core_context_destroy(context);
}

/* What a killed writer has left goes; what one at work has there stays. */
static void test_temporaries(void **state)
{
    fixture *f = *state;
    char left[128];
    nl_writer *writer;
    snprintf(left, sizeof(left), "%s/.nalagen-1-000000001-0.tmp", f->folder);
    assert_ok(f->context, nl_write_file(f->context, left, false, "left", 4));
    assert_ok(f->context, nl_writer_open(f->context, f->path, false, &writer));
    assert_ok(f->context, nl_writer_write(writer, "abc", 3));
    assert_int_equal(count_files(f->folder), 2);
    nl_remove_temporaries(f->context, f->folder);
    assert_int_equal(count_files(f->folder), 1);
    assert_false(nl_path_exists(left));
    assert_ok(f->context, nl_writer_commit(&writer));
    assert_content(f, f->path, "abc");
}

/* Known before there is anything to write, and said by the writer. */
static void assert_no_place(fixture *f, const char *path, nl_status status, const char *reason)
{
    assert_int_equal(nl_writer_check(f->context, path), status);
    assert_message(f, reason);
    assert_int_equal(nl_write_file(f->context, path, true, "a", 1), status);
    assert_message(f, reason);
}

static void test_places_that_cannot_be_written(void **state)
{
    fixture *f = *state;
    char path[512];
    assert_no_place(f, f->folder, NL_ERROR_WRITE, "folder");
    snprintf(path, sizeof(path), "%s/missing/file", f->folder);
    assert_no_place(f, path, NL_ERROR_WRITE, "No such file");
    assert_no_place(f, "", NL_ERROR_USAGE, "empty");
    snprintf(path, sizeof(path), "%s/%0300d", f->folder, 0);
    assert_no_place(f, path, NL_ERROR_WRITE, "too long");
    assert_ok(f->context, nl_write_file(f->context, f->path, false, "a", 1));
    snprintf(path, sizeof(path), "%s/within", f->path);
    assert_no_place(f, path, NL_ERROR_WRITE, "Not a directory");
    if (geteuid() != 0) {
        assert_int_equal(chmod(f->folder, 0500), 0);
        assert_no_place(f, f->path, NL_ERROR_WRITE, "Permission denied");
        assert_int_equal(chmod(f->folder, 0700), 0);
    }
    const char *good[] = {"-", "/dev/null", f->path, "not_there_yet"};
    for (int i = 0; i < NL_COUNT(good); i++)
        assert_ok(f->context, nl_writer_check(f->context, good[i]));
}

static void *read_a_little(void *path)
{
    char byte;
    int fd = open(path, O_RDONLY);
    ssize_t got = read(fd, &byte, 1);
    close(fd);
    return (void *)(intptr_t)got;
}

/* The reader goes away: an error, no signal. */
static void test_broken_pipe(void **state)
{
    fixture *f = *state;
    assert_int_equal(mkfifo(f->path, 0600), 0);
    pthread_t reader;
    assert_int_equal(pthread_create(&reader, NULL, read_a_little, f->path), 0);
    size_t size = 1 << 20; /* more than a pipe holds */
    char *data = calloc(1, size);
    assert_int_equal(nl_write_file(f->context, f->path, false, data, size), NL_ERROR_WRITE);
    assert_message(f, "Broken pipe");
    free(data);
    pthread_join(reader, NULL);
    sigset_t pending;
    sigpending(&pending);
    assert_false(sigismember(&pending, SIGPIPE));
}

static void *write_slowly(void *path)
{
    int fd = open(path, O_WRONLY);
    for (int i = 0; i < 200; i++) {
        char line[1000];
        memset(line, 'a' + i % 26, sizeof(line));
        if (write(fd, line, sizeof(line)) != (ssize_t)sizeof(line))
            break;
    }
    close(fd);
    return NULL;
}

static void test_read_pipe(void **state)
{
    fixture *f = *state;
    assert_int_equal(mkfifo(f->path, 0600), 0);
    pthread_t writer;
    assert_int_equal(pthread_create(&writer, NULL, write_slowly, f->path), 0);
    nl_mapping mapping;
    assert_ok(f->context, nl_map_file(f->context, f->path, &mapping));
    pthread_join(writer, NULL);
    assert_false(mapping.mapped);
    assert_int_equal(mapping.size, 200 * 1000);
    for (int i = 0; i < 200; i++)
        assert_int_equal(mapping.data[1000 * i + 999], 'a' + i % 26);
    nl_unmap(f->context, &mapping);
}

/* A file whose size reads as 0 and that is not empty. */
static void test_read_proc(void **state)
{
    fixture *f = *state;
    nl_mapping mapping;
    assert_ok(f->context, nl_map_file(f->context, "/proc/self/status", &mapping));
    assert_true(mapping.size > 10);
    assert_memory_equal(mapping.data, "Name:", 5);
    nl_unmap(f->context, &mapping);
    nl_unmap(f->context, &mapping); /* nothing any more */
}

static void test_files_that_cannot_be_read(void **state)
{
    fixture *f = *state;
    nl_mapping mapping;
    assert_int_equal(nl_map_file(f->context, f->path, &mapping), NL_ERROR_INPUT);
    assert_message(f, f->path);
    assert_message(f, "No such file");
    assert_int_equal(nl_map_file(f->context, f->folder, &mapping), NL_ERROR_INPUT);
    assert_message(f, "folder");
    if (geteuid() != 0) {
        assert_ok(f->context, nl_write_file(f->context, f->path, false, "a", 1));
        assert_int_equal(chmod(f->path, 0), 0);
        assert_int_equal(nl_map_file(f->context, f->path, &mapping), NL_ERROR_INPUT);
    }
}

static void test_standard_streams(void **state)
{
    fixture *f = *state;
    int pipe_ends[2], saved_in = dup(STDIN_FILENO), saved_out = dup(STDOUT_FILENO);
    assert_int_equal(pipe(pipe_ends), 0);
    fflush(stdout);
    dup2(pipe_ends[1], STDOUT_FILENO);
    close(pipe_ends[1]);
    nl_status status = nl_write_file(f->context, "-", false, "through", 7);
    bool open_still = fcntl(STDOUT_FILENO, F_GETFD) >= 0;
    dup2(saved_out, STDOUT_FILENO);
    dup2(pipe_ends[0], STDIN_FILENO);
    nl_mapping mapping;
    nl_status read_status = nl_map_file(f->context, "-", &mapping);
    dup2(saved_in, STDIN_FILENO);
    close(pipe_ends[0]);
    close(saved_in);
    close(saved_out);
    assert_int_equal(status, NL_OK);
    assert_true(open_still);
    assert_int_equal(read_status, NL_OK);
    assert_int_equal(mapping.size, 7);
    assert_memory_equal(mapping.data, "through", 7);
    nl_unmap(f->context, &mapping);
}

static void test_folders(void **state)
{
    fixture *f = *state;
    char *path, *below;
    assert_ok(f->context, nl_path_join(f->context, f->folder, "a/b//c", &path));
    assert_ok(f->context, nl_make_folder(f->context, path));
    assert_true(nl_path_is_folder(path));
    assert_ok(f->context, nl_make_folder(f->context, path));
    assert_ok(f->context, nl_path_join(f->context, "x/", "y", &below));
    assert_string_equal(below, "x/y");
    nl_free(f->context, below);

    assert_ok(f->context, nl_write_file(f->context, f->path, false, "a", 1));
    assert_false(nl_path_is_folder(f->path));
    assert_int_equal(nl_make_folder(f->context, f->path), NL_ERROR_WRITE);
    assert_ok(f->context, nl_path_join(f->context, f->path, "below", &below));
    assert_int_equal(nl_make_folder(f->context, below), NL_ERROR_WRITE);
    assert_message(f, "Not a directory");
    nl_free(f->context, below);
    nl_free(f->context, path);
    assert_int_equal(nl_make_folder(f->context, ""), NL_ERROR_USAGE);
}

/* Examples of FIPS 180-4, and every length around the block size against one long update. */
static void test_within(void **state)
{
    fixture *f = *state;
    char inner[256], path[512];
    snprintf(inner, sizeof(inner), "%s/a", f->folder);
    assert_ok(f->context, nl_make_folder(f->context, inner));
    const char *within[] = {"", "/", "/new", "/new/newer/", "/../a/b", "/../b"};
    for (int i = 0; i < NL_COUNT(within); i++) {
        snprintf(path, sizeof(path), "%s%s", inner, within[i]);
        assert_true(nl_path_is_within(path, f->folder));
        assert_int_equal(nl_path_is_within(path, inner), i <= 4);
        assert_true(nl_path_is_within(path, "/"));
        assert_false(nl_path_is_within(path, "nowhere"));
    }
    snprintf(path, sizeof(path), "%sb", inner); /* another one whose name begins alike */
    assert_false(nl_path_is_within(path, inner));
    assert_false(nl_path_is_within(f->folder, inner));
    assert_true(nl_path_is_within("new", "."));
    assert_true(nl_path_is_within(".", "."));
    assert_true(nl_path_is_within("/", "/"));
}

static void test_sha256(void **state)
{
    (void)state;
    static const struct {
        const char *text, *hex;
    } known[] = {
        {"", "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"},
        {"abc", "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"},
        {"abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq",
         "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1"},
    };
    nl_sha256 sha;
    char hex[65], again[65];
    for (int i = 0; i < NL_COUNT(known); i++) {
        nl_sha256_init(&sha);
        nl_sha256_update(&sha, known[i].text, strlen(known[i].text));
        nl_sha256_hex(&sha, hex);
        assert_string_equal(hex, known[i].hex);
    }
    char *million = malloc(1000000);
    memset(million, 'a', 1000000);
    nl_sha256_init(&sha);
    for (size_t done = 0, part = 1; done < 1000000; done += part, part = part * 7 % 1009)
        nl_sha256_update(&sha, million, part = NL_MIN(part, 1000000 - done));
    nl_sha256_hex(&sha, hex);
    assert_string_equal(hex, "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
    for (size_t length = 0; length < 200; length++) {
        nl_sha256_init(&sha);
        nl_sha256_update(&sha, million, length);
        nl_sha256_hex(&sha, hex);
        nl_sha256_init(&sha);
        for (size_t i = 0; i < length; i++)
            nl_sha256_update(&sha, million, 1);
        nl_sha256_hex(&sha, again);
        assert_string_equal(hex, again);
    }
    free(million);
}

/* The portable compression against the one with special instructions, where there are some. */
static void test_sha256_blocks(void **state)
{
    (void)state;
    if (!nl_sha256_has_x86())
        print_message("no SHA instructions here\n");
    uint8_t data[64 * 64];
    uint32_t seed = 1, a[8], b[8];
    for (int i = 0; i < NL_COUNT(data); i++)
        data[i] = (uint8_t)((seed = seed * 1664525 + 1013904223) >> 24);
    for (size_t blocks = 0; blocks <= 64; blocks++) {
        memcpy(a, data + 32, sizeof(a));
        memcpy(b, data + 32, sizeof(b));
        nl_sha256_blocks(a, data, blocks);
        if (nl_sha256_has_x86())
            nl_sha256_blocks_x86(b, data, blocks);
        else
            for (size_t i = 0; i < blocks; i++)
                nl_sha256_blocks(b, data + 64 * i, 1);
        assert_memory_equal(a, b, sizeof(a));
    }
    const uint32_t initial[8] = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
    const uint8_t abc[64] = {'a', 'b', 'c', 0x80, [63] = 24}; /* the padded message */
    memcpy(a, initial, sizeof(a));
    nl_sha256_blocks(a, abc, 1);
    assert_int_equal(a[0], 0xba7816bf);
    assert_int_equal(a[7], 0xf20015ad);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_write_and_read),
        TEST(test_mode_follows_umask),
        TEST(test_existing_file_is_kept),
        TEST(test_race_for_the_name),
        TEST(test_abort),
        TEST(test_symbolic_link_stays),
        TEST(test_every_fault),
        TEST(test_failed_new_file_leaves_nothing),
        TEST(test_full_disk),
        TEST(test_append),
        TEST(test_temporaries),
        TEST(test_memory_available),
        TEST(test_group_processors),
        TEST(test_space),
        TEST(test_space_for_files),
        TEST(test_empty_file),
        TEST(test_places_that_cannot_be_written),
        TEST(test_broken_pipe),
        TEST(test_read_pipe),
        TEST(test_read_proc),
        TEST(test_files_that_cannot_be_read),
        TEST(test_standard_streams),
        TEST(test_folders),
        TEST(test_within),
        cmocka_unit_test(test_sha256),
        cmocka_unit_test(test_sha256_blocks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
