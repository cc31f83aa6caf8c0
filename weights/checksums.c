/* SPDX-License-Identifier: MIT */
/* Checksums of tensors: read, looked up by where a tensor lies, compared. */
#include "checksums.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "nl_bytes.h"
#include "nl_crc.h"

uint32_t nl_checksum_table(uint32_t crc, const char *name, int64_t end)
{
    uint8_t bytes[8];
    nl_put_little(bytes, 8, (uint64_t)end);
    crc = nl_crc32(crc, NULL, name, (int64_t)strlen(name) + 1);
    return nl_crc32(crc, NULL, bytes, sizeof(bytes));
}

void nl_checksum_print(uint32_t crc, char digits[NL_CHECKSUM_DIGITS])
{
    char text[NL_CHECKSUM_DIGITS + 1];
    snprintf(text, sizeof(text), "%08x", (unsigned)crc);
    memcpy(digits, text, NL_CHECKSUM_DIGITS);
}

static uint32_t parse(const char *digits)
{
    char text[NL_CHECKSUM_DIGITS + 1] = "";
    memcpy(text, digits, NL_CHECKSUM_DIGITS);
    return (uint32_t)strtoul(text, NULL, 16);
}

static int compare_places(const void *a, const void *b)
{
    const nl_checksum *x = a, *y = b;
    if (x->data != y->data)
        return x->data < y->data ? -1 : 1;
    return (x->bytes > y->bytes) - (x->bytes < y->bytes); /* empty ones lie where others begin */
}

void nl_checksums_read(nl_checkpoint *checkpoint, const char *text, uint32_t table)
{
    int64_t count = checkpoint->checksum_count;
    size_t digits = text ? strlen(text) : 0;
    if (digits != NL_CHECKSUM_DIGITS * (size_t)(count + 1) ||
        strspn(text, "0123456789abcdef") != digits || parse(text) != table) {
        checkpoint->checksum_count = 0;
        return;
    }
    for (int64_t i = 0; i < count; i++)
        checkpoint->checksums[i].crc = parse(text + NL_CHECKSUM_DIGITS * (i + 1));
    if (count > 0)
        qsort(checkpoint->checksums, (size_t)count, sizeof(nl_checksum), compare_places);
}

static nl_status check(const nl_checkpoint *checkpoint, const nl_checksum *sum)
{
    if (nl_crc32(0, NULL, sum->data, sum->bytes) == sum->crc)
        return NL_OK;
    return nl_fail(checkpoint->context, NL_ERROR_INPUT,
                   "%s: tensor %s: its checksum does not fit: the file is damaged",
                   checkpoint->path, sum->name);
}

nl_status nl_checksum_check(const nl_checkpoint *checkpoint, const void *data, int64_t bytes)
{
    const nl_checksum key = {.data = data, .bytes = bytes}, *sum = NULL;
    if (checkpoint->checksum_count > 0)
        sum = bsearch(&key, checkpoint->checksums, (size_t)checkpoint->checksum_count, sizeof(key),
                      compare_places);
    nl_status status = sum ? check(checkpoint, sum) : NL_OK;
    for (int i = 0; !sum && status == NL_OK && i < checkpoint->shard_count; i++)
        status = nl_checksum_check(checkpoint->shards[i], data, bytes);
    return status;
}

static nl_status verify(const nl_checkpoint *checkpoint, int64_t *count, nl_problems *problems)
{
    nl_status status = NL_OK;
    *count += checkpoint->checksum_count;
    for (int64_t i = 0; i < checkpoint->checksum_count && status == NL_OK; i++) {
        const nl_checksum *sum = &checkpoint->checksums[i];
        if (nl_crc32(0, NULL, sum->data, sum->bytes) != sum->crc)
            nl_problem(problems, "%s: tensor %s", checkpoint->path, sum->name);
        nl_map_release(&checkpoint->mapping, sum->data, sum->bytes);
        status = nl_check_cancelled(checkpoint->context);
    }
    for (int i = 0; i < checkpoint->shard_count && status == NL_OK; i++)
        status = verify(checkpoint->shards[i], count, problems);
    return status;
}

nl_status nl_checkpoint_verify(const nl_checkpoint *checkpoint, int64_t *count)
{
    nl_problems problems = {0};
    *count = 0;
    nl_status status = verify(checkpoint, count, &problems);
    if (status == NL_OK && problems.count)
        status = nl_fail(checkpoint->context, NL_ERROR_INPUT,
                         "%s: damaged: %d of %lld checksums %s not fit:%s", checkpoint->path,
                         problems.count, (long long)*count, nl_plural(problems.count, "does", "do"),
                         problems.text);
    return status;
}
