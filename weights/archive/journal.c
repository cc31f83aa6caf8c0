/* SPDX-License-Identifier: MIT */
/* Which pictures are there: see the table in nl_npz.h. */
#include "npz.h"

#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

#include "nl_json.h"

static const char magic[16] = "nalagen journal\n";
static const char done_word[4] = {'d', 'o', 'n', 'e'};
enum { VERSION = 1, MAX_PARAMETERS = UINT16_MAX };

static uint32_t checksum(uint32_t crc, const void *data, size_t size)
{
    return (uint32_t)crc32_z(crc, data, size);
}

static int64_t records_offset(int64_t parameters_size)
{
    return (NL_JOURNAL_HEADER + parameters_size + 63) / 64 * 64;
}

static void make_header(const nl_npz_options *options, uint8_t header[NL_JOURNAL_HEADER])
{
    size_t length = strlen(options->parameters);
    memset(header, 0, NL_JOURNAL_HEADER);
    memcpy(header, magic, sizeof(magic));
    nl_put_little(header + 16, 4, VERSION);
    nl_put_little(header + 20, 4, (uint32_t)length);
    nl_put_little(header + 24, 8, (uint64_t)options->count);
    nl_put_little(header + 32, 4, (uint32_t)options->height);
    nl_put_little(header + 36, 4, (uint32_t)options->width);
    nl_put_little(header + 40, 8, options->token);
    nl_put_little(header + 48, 4, checksum(checksum(0, header, 48), options->parameters, length));
}

static void take_header(nl_journal *journal, const uint8_t *header)
{
    journal->records = records_offset((uint32_t)nl_little(header + 20, 4));
    journal->count = (int64_t)nl_little(header + 24, 8);
    journal->token = nl_little(header + 40, 8);
    journal->crc = (uint32_t)nl_little(header + 48, 4);
}

nl_status nl_journal_begin(nl_journal *journal, const nl_npz_options *options)
{
    const nl_npz_file *file = &journal->file;
    uint8_t header[NL_JOURNAL_HEADER];
    int64_t size;
    make_header(options, header);
    take_header(journal, header);
    if (!nl_mul_size(options->count, NL_JOURNAL_RECORD, &size) ||
        !nl_add_size(size, journal->records, &size))
        return nl_fail(file->context, NL_ERROR_USAGE, "%s: %lld pictures are too many", file->path,
                       (long long)options->count);
    NL_CHECK(nl_npz_step(file->context, file->path));
    if (ftruncate(file->fd, 0) != 0)
        return nl_fail(file->context, NL_ERROR_WRITE, "%s: cannot be emptied", file->path);
    NL_CHECK(nl_npz_reserve(file, size));
    NL_CHECK(nl_npz_put(file, options->parameters, strlen(options->parameters), NL_JOURNAL_HEADER));
    NL_CHECK(nl_npz_put(file, header, sizeof(header), 0)); /* last: it makes the file a journal */
    return NL_OK;
}

static nl_status refuse(const nl_journal *journal, const char *key, const char *there,
                        const char *here)
{
    return nl_fail(journal->file.context, NL_ERROR_WRITE,
                   "%s: begun with %s %s, found %s %s now: repeat the command it was begun with, "
                   "give another --out, or begin anew with --force",
                   journal->file.path, key, there, key, here);
}

/* The first member that the two objects do not share, by name. */
static nl_status compare(const nl_journal *journal, const char *theirs, const char *ours)
{
    nl_context *context = journal->file.context;
    nl_status status = NL_OK;
    cJSON *there = NULL, *here = NULL;
    char *there_text = NULL, *here_text = NULL;
    NL_TRY(nl_json_parse(context, journal->file.path, theirs, strlen(theirs), &there));
    NL_TRY(nl_json_parse(context, "parameters", ours, strlen(ours), &here));
    for (int side = 0; side < 2; side++)
        for (const cJSON *one = (side ? there : here)->child; one; one = one->next) {
            const cJSON *other = cJSON_GetObjectItemCaseSensitive(side ? here : there, one->string);
            if (other && cJSON_Compare(one, other, true))
                continue;
            const cJSON *a = side ? one : other, *b = side ? other : one;
            there_text = a ? nl_json_print(a, false) : NULL;
            here_text = b ? nl_json_print(b, false) : NULL;
            NL_TRY(refuse(journal, one->string, there_text ? there_text : "left out",
                          here_text ? here_text : "left out"));
        }
    status = refuse(journal, "parameters", "in another form", "these"); /* equal but for spelling */
cleanup:
    cJSON_free(there_text);
    cJSON_free(here_text);
    cJSON_Delete(there);
    cJSON_Delete(here);
    return status;
}

static nl_status no_journal(const nl_journal *journal, const char *what)
{
    return nl_fail(journal->file.context, NL_ERROR_WRITE,
                   "%s: expected a journal of nalagen, found %s: give another --out, or begin anew "
                   "with --force",
                   journal->file.path, what);
}

static nl_status check_sizes(const nl_journal *journal, const uint8_t *header, int64_t size)
{
    int64_t parameters = (uint32_t)nl_little(header + 20, 4), expected;
    uint64_t count = nl_little(header + 24, 8);
    if ((uint32_t)nl_little(header + 16, 4) != VERSION)
        return no_journal(journal, "one of another version");
    if (parameters > MAX_PARAMETERS || count > INT64_MAX ||
        !nl_mul_size((int64_t)count, NL_JOURNAL_RECORD, &expected) ||
        !nl_add_size(expected, records_offset(parameters), &expected) || expected != size)
        return no_journal(journal, "one of another length than its header says");
    return NL_OK;
}

nl_status nl_journal_read(nl_journal *journal, const nl_npz_options *options, bool *begun)
{
    const nl_npz_file *file = &journal->file;
    nl_status status = NL_OK;
    struct stat info;
    uint8_t header[NL_JOURNAL_HEADER], wanted[NL_JOURNAL_HEADER];
    static const uint8_t zeros[NL_JOURNAL_HEADER];
    char *parameters = NULL;
    *begun = false;
    if (fstat(file->fd, &info) != 0)
        return no_journal(journal, "a file without a size");
    if (info.st_size == 0)
        return NL_OK;
    if (info.st_size < NL_JOURNAL_HEADER)
        return no_journal(journal, "something shorter");
    NL_TRY(nl_npz_get(file, header, sizeof(header), 0));
    if (!memcmp(header, zeros, sizeof(header)))
        return NL_OK;
    if (memcmp(header, magic, sizeof(magic)) != 0)
        NL_TRY(no_journal(journal, "something else"));
    NL_TRY(check_sizes(journal, header, info.st_size));
    size_t length = (uint32_t)nl_little(header + 20, 4);
    NL_TRY(NL_NEW_ARRAY(file->context, "parameters", length + 1, &parameters));
    NL_TRY(nl_npz_get(file, parameters, length, NL_JOURNAL_HEADER));
    parameters[length] = '\0';
    if (checksum(checksum(0, header, 48), parameters, length) !=
        (uint32_t)nl_little(header + 48, 4))
        NL_TRY(no_journal(journal, "a damaged one"));
    make_header(options, wanted);
    if (length != strlen(options->parameters) ||
        memcmp(parameters, options->parameters, length) != 0)
        NL_TRY(compare(journal, parameters, options->parameters));
    if (memcmp(header + 16, wanted + 16, 24) != 0) {
        char there[64], here[64];
        snprintf(there, sizeof(there), "%lld x %u x %u", (long long)nl_little(header + 24, 8),
                 (uint32_t)nl_little(header + 32, 4), (uint32_t)nl_little(header + 36, 4));
        snprintf(here, sizeof(here), "%lld x %d x %d", (long long)options->count, options->height,
                 options->width);
        NL_TRY(refuse(journal, "shape", there, here));
    }
    take_header(journal, header);
    *begun = true;
cleanup:
    nl_free(file->context, parameters);
    return status;
}

uint64_t nl_journal_token(const nl_journal *journal)
{
    uint8_t header[NL_JOURNAL_HEADER];
    bool whole = pread(journal->file.fd, header, sizeof(header), 0) == sizeof(header);
    return whole && !memcmp(header, magic, sizeof(magic)) ? nl_little(header + 40, 8) : 0;
}

static uint32_t record_check(const nl_journal *journal, int64_t index, const uint8_t *record)
{
    uint8_t bytes[12];
    nl_put_little(bytes, 4, journal->crc);
    nl_put_little(bytes + 4, 8, (uint64_t)index);
    return checksum(checksum(0, bytes, sizeof(bytes)), record + 4, 8);
}

nl_status nl_journal_note(const nl_journal *journal, int64_t index, nl_journal_entry entry)
{
    uint8_t record[NL_JOURNAL_RECORD];
    memcpy(record, done_word, sizeof(done_word));
    nl_put_little(record + 4, 4, entry.crc);
    nl_put_little(record + 8, 4, (uint32_t)entry.label);
    nl_put_little(record + 12, 4, record_check(journal, index, record));
    return nl_npz_put(&journal->file, record, sizeof(record),
                      journal->records + index * NL_JOURNAL_RECORD);
}

nl_status nl_journal_entries(const nl_journal *journal, int64_t first, int64_t count,
                             nl_journal_entry *entries, bool *there)
{
    uint8_t bytes[NL_JOURNAL_CHUNK * NL_JOURNAL_RECORD];
    nl_status status = nl_npz_get(&journal->file, bytes, (size_t)(count * NL_JOURNAL_RECORD),
                                  journal->records + first * NL_JOURNAL_RECORD);
    for (int64_t i = 0; i < count && status == NL_OK; i++) {
        const uint8_t *record = bytes + i * NL_JOURNAL_RECORD;
        entries[i] = (nl_journal_entry){(uint32_t)nl_little(record + 4, 4),
                                        (int)(uint32_t)nl_little(record + 8, 4)};
        there[i] = !memcmp(record, done_word, sizeof(done_word)) &&
                   (uint32_t)nl_little(record + 12, 4) == record_check(journal, first + i, record);
    }
    return status;
}
