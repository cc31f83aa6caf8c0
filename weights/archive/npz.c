/* SPDX-License-Identifier: MIT */
/*
 * The life of an archive: begun or resumed under a lock, filled, ended by whoever finds it full.
 *
 * Locks lie on bytes of the journal that hold nothing: one while files are made or renamed, and a
 * range in which every process holds the part that its rank has of the work, so that the same work is
 * not begun twice. A process that waited for the first lock may find that the journal it opened is no
 * longer the one of that name: it looks again.
 */
#include "npz.h"

#include <errno.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

#define LOCK_SETUP     (INT64_C(1) << 61)
#define LOCK_WORK      (INT64_C(1) << 60)
#define LOCK_WORK_SIZE (INT64_C(1) << 40)

/* Where everything lies: a function of count, height, width and the length of the comment. */
typedef struct nl_npz_layout {
    nl_npz_member members[2]; /* pictures, labels */
    int64_t picture_bytes;
    int64_t directory, directory_size;
    int64_t size; /* of the whole file */
} nl_npz_layout;

struct nl_npz {
    nl_context *context;
    nl_npz_layout layout;
    char *path, *parameters;
    int64_t count;
    bool force, finished;
    bool created; /* this process made the journal's file */
    nl_npz_file part;
    nl_journal journal;
    uint8_t *picture; /* to compare checksums */
};

static nl_status check_options(nl_context *context, const nl_npz_options *options)
{
    size_t comment = strlen(options->parameters);
    if (options->count < 1 || options->height < 1 || options->width < 1 || options->rank < 0 ||
        (options->rank > 0 && options->rank >= options->ranks) || comment > UINT16_MAX)
        return nl_fail(context, NL_ERROR_USAGE,
                       "%s: expected at least one picture and pixel, a rank below %d and up to %d "
                       "bytes of parameters, found %lld x %d x %d, rank %d and %zu bytes",
                       options->path, options->ranks, UINT16_MAX, (long long)options->count,
                       options->height, options->width, options->rank, comment);
    return NL_OK;
}

/* Offset behind its last element. */
static int64_t end_of(const nl_npz_member *member)
{
    return nl_npz_data_offset(member) + member->zip.size - member->header_size;
}

static bool lay_out(const nl_npz_options *options, nl_npz_layout *layout)
{
    nl_npz_member *pictures = &layout->members[0], *labels = &layout->members[1];
    int64_t count = options->count, height = options->height, width = options->width;
    layout->picture_bytes = 3 * height * width;
    if (!nl_npz_make_member("arr_0", &(nl_array){NL_U8, 4, {count, height, width, 3}}, 0,
                            pictures) ||
        !nl_npz_make_member("arr_1", &(nl_array){NL_I64, 1, {count}}, end_of(pictures), labels))
        return false;
    layout->directory = end_of(labels);
    layout->directory_size =
        2 * NL_ZIP_CENTRAL + (int64_t)(strlen(pictures->zip.name) + strlen(labels->zip.name));
    return nl_add_size(layout->directory,
                       layout->directory_size + NL_ZIP_END + (int64_t)strlen(options->parameters),
                       &layout->size);
}

static nl_status create(nl_context *context, const nl_npz_options *options, nl_npz **npz)
{
    nl_npz *made = NULL;
    NL_CHECK(check_options(context, options));
    NL_CHECK(NL_NEW(context, "an archive", &made));
    *made = (nl_npz){.context = context, .count = options->count, .force = options->force};
    made->part = made->journal.file = (nl_npz_file){.context = context, .fd = -1};
    *npz = made;
    NL_CHECK(nl_strdup(context, options->path, &made->path));
    NL_CHECK(nl_strdup(context, options->parameters, &made->parameters));
    NL_CHECK(nl_format(context, &made->part.path, "%s.part", options->path));
    NL_CHECK(nl_format(context, &made->journal.file.path, "%s.journal", options->path));
    if (!lay_out(options, &made->layout))
        return nl_fail(context, NL_ERROR_USAGE, "%s: %lld pictures of %d x %d are too many",
                       options->path, (long long)options->count, options->height, options->width);
    return NL_NEW_ARRAY(context, "a picture", made->layout.picture_bytes, &made->picture);
}

static void close_file(nl_npz_file *file)
{
    if (file->fd >= 0)
        close(file->fd);
    file->fd = -1;
}

/* The archive at its path, whole and with these parameters? */
static bool stands_finished(const nl_npz *npz)
{
    struct stat info;
    nl_npz_file file = {.path = npz->path};
    size_t length = strlen(npz->parameters);
    char *comment = NULL;
    if (NL_NEW_ARRAY(npz->context, "a comment", length + 1, &comment) != NL_OK)
        return false;
    file.fd = open(npz->path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    bool same = file.fd >= 0 && fstat(file.fd, &info) == 0 && S_ISREG(info.st_mode) &&
                info.st_size == npz->layout.size &&
                nl_npz_get(&file, comment, length, info.st_size - (int64_t)length) == NL_OK &&
                !memcmp(comment, npz->parameters, length);
    close_file(&file);
    nl_free(npz->context, comment);
    return same;
}

static bool exists(const char *path)
{
    struct stat info;
    return lstat(path, &info) == 0;
}

/* A link could lead to a file of somebody else's, which would be written over. */
static nl_status refuse_open(const nl_npz_file *file, const char *advice)
{
    if (errno == ELOOP)
        return nl_fail(file->context, NL_ERROR_WRITE,
                       "%s: expected a file, found a symbolic link: remove it, or give another "
                       "--out",
                       file->path);
    return nl_fail(file->context, NL_ERROR_WRITE, "%s: cannot be opened: %s%s", file->path,
                   strerror(errno), advice);
}

/* The journal of that name, locked. */
static nl_status open_journal(nl_npz *npz)
{
    nl_npz_file *file = &npz->journal.file;
    nl_status status = NL_OK;
    struct stat opened, named;
    bool locked;
    for (;;) {
        file->fd = open(file->path, O_RDWR | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
        npz->created = false;
        if (file->fd < 0 && errno == ENOENT) {
            file->fd = open(file->path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
            npz->created = file->fd >= 0;
            if (file->fd < 0 && errno == EEXIST)
                continue;
        }
        if (file->fd < 0)
            return refuse_open(file, "");
        NL_TRY(nl_npz_lock(file, LOCK_SETUP, 1, true, &locked));
        if (fstat(file->fd, &opened) == 0 && lstat(file->path, &named) == 0 &&
            opened.st_ino == named.st_ino && opened.st_dev == named.st_dev)
            break;
        close_file(file);
    }
    if (!S_ISREG(opened.st_mode))
        status = nl_fail(npz->context, NL_ERROR_WRITE, "%s: expected a file", file->path);
cleanup:
    return status;
}

/* The share of the work that this rank takes of the range; with `all`, the whole of it. */
static nl_status claim(nl_npz *npz, const nl_npz_options *options, bool all)
{
    int64_t ranks = NL_MAX(options->ranks, 1), size = LOCK_WORK_SIZE / ranks;
    int64_t start = LOCK_WORK + options->rank * size;
    bool locked;
    if (all || ranks == 1) {
        start = LOCK_WORK;
        size = LOCK_WORK_SIZE;
    }
    nl_status status = nl_npz_lock(&npz->journal.file, start, size, false, &locked);
    if (status == NL_OK && !locked)
        status = nl_fail(npz->context, NL_ERROR_WRITE,
                         "%s: another process is at work on it: wait for it, or give another --out",
                         npz->part.path);
    return status;
}

static nl_status open_part(nl_npz *npz, int flags)
{
    npz->part.fd = open(npz->part.path, O_RDWR | O_NOFOLLOW | O_CLOEXEC | flags, 0666);
    return npz->part.fd >= 0 ? NL_OK
                             : refuse_open(&npz->part, flags ? "" : ": begin anew with --force");
}

nl_status nl_npz_done(nl_npz *npz, int64_t *done)
{
    nl_journal_entry entries[NL_JOURNAL_CHUNK];
    bool there[NL_JOURNAL_CHUNK];
    *done = npz->finished ? npz->count : 0;
    for (int64_t first = 0; first < npz->count && !npz->finished; first += NL_JOURNAL_CHUNK) {
        int64_t count = NL_MIN(npz->count - first, NL_JOURNAL_CHUNK);
        NL_CHECK(nl_journal_entries(&npz->journal, first, count, entries, there));
        for (int64_t i = 0; i < count; i++)
            *done += there[i];
    }
    return NL_OK;
}

/* Room for the whole archive; none of the two files is left without it. */
static nl_status make_part(nl_npz *npz)
{
    nl_status status = NL_OK;
    /* What stands there may have other names: it is left alone. */
    if (exists(npz->part.path) && unlink(npz->part.path) != 0)
        return nl_fail(npz->context, NL_ERROR_WRITE, "%s: cannot be removed: %s", npz->part.path,
                       strerror(errno));
    NL_TRY(open_part(npz, O_CREAT | O_EXCL));
    NL_TRY(nl_npz_reserve(&npz->part, npz->layout.size));
    return NL_OK;
cleanup:
    unlink(npz->part.path);
    unlink(npz->journal.file.path);
    return status;
}

static nl_status begin(nl_npz *npz, const nl_npz_options *options)
{
    if (!npz->force && exists(npz->part.path))
        return nl_fail(npz->context, NL_ERROR_WRITE,
                       "%s: is there without its journal: give another --out, or begin anew with "
                       "--force",
                       npz->part.path);
    nl_status status = nl_journal_begin(&npz->journal, options);
    return status == NL_OK ? make_part(npz) : status;
}

static nl_status go_on(nl_npz *npz)
{
    struct stat info;
    int64_t done;
    bool whole = lstat(npz->part.path, &info) == 0 && S_ISREG(info.st_mode) &&
                 info.st_size == npz->layout.size;
    if (whole)
        return open_part(npz, 0);
    NL_CHECK(nl_npz_done(npz, &done));
    if (done == 0) /* the process that began died before it had made the file */
        return make_part(npz);
    return nl_fail(npz->context, NL_ERROR_WRITE,
                   "%s: expected a file of %lld bytes, which %s says holds %lld pictures: begin "
                   "anew with --force",
                   npz->part.path, (long long)npz->layout.size, npz->journal.file.path,
                   (long long)done);
}

/* Under the setup lock. */
static nl_status begin_or_go_on(nl_npz *npz, const nl_npz_options *options)
{
    nl_status status = NL_OK;
    bool begun = false;
    bool joins = options->token && nl_journal_token(&npz->journal) == options->token;
    bool anew = options->force && !joins;
    if (!options->force && exists(npz->path)) {
        npz->finished = stands_finished(npz);
        /* A process that was killed after the rename leaves a journal of ours. Another file is left alone. */
        bool ours = npz->created ||
                    (npz->finished && nl_journal_read(&npz->journal, options, &begun) == NL_OK);
        if (ours)
            unlink(npz->journal.file.path);
        if (npz->finished)
            return NL_OK;
        return nl_fail(npz->context, NL_ERROR_WRITE,
                       "%s is there already, with other pictures: use --force to overwrite it, or "
                       "another --out",
                       npz->path);
    }
    NL_TRY(claim(npz, options, anew));
    if (!anew)
        NL_TRY(nl_journal_read(&npz->journal, options, &begun));
    if (begun)
        return go_on(npz);
    status = begin(npz, options);
    if (status == NL_OK && anew && options->ranks > 1) { /* keep only what is this rank's */
        nl_npz_unlock(&npz->journal.file, LOCK_WORK, LOCK_WORK_SIZE);
        status = claim(npz, options, false);
    }
cleanup:
    if (status != NL_OK && npz->created)
        unlink(npz->journal.file.path);
    return status;
}

nl_status nl_npz_open(nl_context *context, const nl_npz_options *options, nl_npz **npz)
{
    nl_npz *opened = NULL;
    nl_status status = NL_OK;
    *npz = NULL;
    NL_TRY(create(context, options, &opened));
    NL_TRY(open_journal(opened));
    NL_TRY(begin_or_go_on(opened, options));
    nl_npz_unlock(&opened->journal.file, LOCK_SETUP, 1);
    *npz = opened;
    opened = NULL;
cleanup:
    nl_npz_abandon(&opened);
    return status;
}

bool nl_npz_finished(const nl_npz *npz)
{
    return npz->finished;
}

static int64_t picture_offset(const nl_npz *npz, int64_t index)
{
    return nl_npz_data_offset(&npz->layout.members[0]) + index * npz->layout.picture_bytes;
}

static uint32_t picture_crc(const nl_npz *npz, const uint8_t *rgb)
{
    return (uint32_t)crc32_z(0, rgb, (size_t)npz->layout.picture_bytes);
}

static nl_status check_index(const nl_npz *npz, int64_t index)
{
    if (index >= 0 && index < npz->count && !npz->finished)
        return NL_OK;
    return nl_fail(npz->context, NL_ERROR_INTERNAL, "%s: picture %lld of %lld", npz->path,
                   (long long)index, (long long)npz->count);
}

nl_status nl_npz_has(nl_npz *npz, int64_t index, bool *there)
{
    nl_journal_entry entry;
    *there = false;
    nl_status status = check_index(npz, index);
    if (status == NL_OK)
        status = nl_journal_entries(&npz->journal, index, 1, &entry, there);
    if (status != NL_OK || !*there)
        return status;
    status = nl_npz_get(&npz->part, npz->picture, (size_t)npz->layout.picture_bytes,
                        picture_offset(npz, index));
    *there = status == NL_OK && picture_crc(npz, npz->picture) == entry.crc;
    return status;
}

nl_status nl_npz_write(nl_npz *npz, int64_t index, int label, const uint8_t *rgb)
{
    nl_journal_entry entry = {.crc = picture_crc(npz, rgb), .label = label};
    NL_CHECK(check_index(npz, index));
    NL_CHECK(
        nl_npz_put(&npz->part, rgb, (size_t)npz->layout.picture_bytes, picture_offset(npz, index)));
    return nl_journal_note(&npz->journal, index, entry);
}

/* Writes the labels and works both members' checksums out, a piece of the journal at a time. */
static nl_status write_labels(nl_npz *npz, bool *whole)
{
    nl_journal_entry entries[NL_JOURNAL_CHUNK];
    bool there[NL_JOURNAL_CHUNK];
    uint8_t labels[NL_JOURNAL_CHUNK * 8];
    nl_npz_member *pictures = &npz->layout.members[0], *label = &npz->layout.members[1];
    uLong joining = crc32_combine_gen(npz->layout.picture_bytes);
    uLong crc = pictures->zip.crc, label_crc = label->zip.crc;
    *whole = true;
    for (int64_t first = 0; first < npz->count; first += NL_JOURNAL_CHUNK) {
        int64_t count = NL_MIN(npz->count - first, NL_JOURNAL_CHUNK);
        NL_CHECK(nl_journal_entries(&npz->journal, first, count, entries, there));
        for (int64_t i = 0; i < count; i++) {
            if (!(*whole = there[i]))
                return NL_OK;
            crc = crc32_combine_op(crc, entries[i].crc, joining);
            nl_put_little(labels + 8 * i, 8, (uint64_t)(int64_t)entries[i].label);
        }
        label_crc = crc32_z(label_crc, labels, (size_t)(8 * count));
        NL_CHECK(nl_npz_put(&npz->part, labels, (size_t)(8 * count),
                            nl_npz_data_offset(label) + 8 * first));
    }
    pictures->zip.crc = (uint32_t)crc;
    label->zip.crc = (uint32_t)label_crc;
    return NL_OK;
}

static nl_status write_headers(nl_npz *npz)
{
    const nl_npz_layout *layout = &npz->layout;
    size_t comment = strlen(npz->parameters);
    uint8_t record[NL_NPZ_RECORD], *at = record;
    for (int i = 0; i < NL_COUNT(layout->members); i++) {
        const nl_npz_member *member = &layout->members[i];
        NL_CHECK(nl_npz_put(&npz->part, record, (size_t)nl_npz_put_member(member, record),
                            member->zip.offset));
    }
    for (int i = 0; i < NL_COUNT(layout->members); i++)
        at += nl_zip_put_central(&layout->members[i].zip, at);
    at += nl_zip_put_end(NL_COUNT(layout->members), layout->directory, layout->directory_size,
                         (int64_t)comment, at);
    NL_CHECK(nl_npz_put(&npz->part, record, (size_t)(at - record), layout->directory));
    return nl_npz_put(&npz->part, npz->parameters, comment,
                      layout->directory + (int64_t)(at - record));
}

static nl_status sync_folder(const nl_npz *npz)
{
    nl_status status = NL_OK;
    char *folder = NULL;
    const char *slash = strrchr(npz->path, '/');
    nl_npz_file file = {.context = npz->context, .fd = -1};
    NL_TRY(nl_format(npz->context, &folder, "%.*s", slash ? (int)(slash + 1 - npz->path) : 1,
                     slash ? npz->path : "."));
    file.path = folder;
    file.fd = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (file.fd >= 0) /* a folder may be writable and not readable */
        NL_TRY(nl_npz_sync(&file));
cleanup:
    close_file(&file);
    nl_free(npz->context, folder);
    return status;
}

static nl_status take_name(const nl_npz *npz)
{
    const char *from = npz->part.path, *to = npz->path;
    NL_CHECK(nl_npz_step(npz->context, to));
    int failed =
        npz->force ? rename(from, to) : renameat2(AT_FDCWD, from, AT_FDCWD, to, RENAME_NOREPLACE);
    if (failed && !npz->force && (errno == EINVAL || errno == ENOSYS) && !(failed = link(from, to)))
        unlink(from);
    if (failed)
        return nl_fail(npz->context, NL_ERROR_WRITE, "%s: cannot take its name: %s", to,
                       strerror(errno));
    return NL_OK;
}

/* Under the setup lock, so that one process alone does it. */
static nl_status finalise(nl_npz *npz, bool *finished)
{
    bool whole;
    if (!exists(npz->part.path)) /* another process did it */
        return NL_OK;
    NL_CHECK(write_labels(npz, &whole));
    if (!whole)
        return NL_OK;
    NL_CHECK(write_headers(npz));
    NL_CHECK(nl_npz_sync(&npz->part));
    NL_CHECK(take_name(npz));
    *finished = true;
    unlink(npz->journal.file.path);
    return sync_folder(npz);
}

nl_status nl_npz_close(nl_npz **npz, bool *finished)
{
    nl_npz *n = *npz;
    nl_status status = NL_OK;
    bool locked;
    *finished = n->finished;
    if (!n->finished) {
        NL_TRY(nl_npz_lock(&n->journal.file, LOCK_SETUP, 1, true, &locked));
        NL_TRY(finalise(n, finished));
    }
cleanup:
    nl_npz_abandon(npz);
    return status;
}

void nl_npz_abandon(nl_npz **npz)
{
    nl_npz *n = *npz;
    *npz = NULL;
    if (!n)
        return;
    close_file(
        &n->part); /* nothing is lost by it: a picture that was not written failed in pwrite */
    close_file(&n->journal.file);
    nl_free(n->context, n->part.path);
    nl_free(n->context, n->journal.file.path);
    nl_free(n->context, n->path);
    nl_free(n->context, n->parameters);
    nl_free(n->context, n->picture);
    nl_free(n->context, n);
}
