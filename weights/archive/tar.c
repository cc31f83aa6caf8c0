/* SPDX-License-Identifier: MIT */
/*
 * Tar (POSIX.1-2017, pax; GNU tar's manual, "Basic Tar Format"): headers of 512 bytes, each followed by its content in whole
 * blocks of 512. Numbers are octal texts, or, where the first byte is 0x80, big endian.
 *
 *   OFFSET  SIZE  DESCRIPTION                      OFFSET  SIZE  DESCRIPTION
 *        0   100  name                                156     1  type
 *      124    12  size                                257     6  "ustar" and NUL, "ustar " of GNU's, or older
 *      148     8  checksum: sum of all bytes,         345   155  ustar: what stands before the name, with a /
 *                 these eight counted as blanks
 *
 * Types: '0', NUL and '7' are files; 'x' holds pax records ("LENGTH KEY=VALUE\n") of the next header, 'g' of all that follow;
 * 'L' and 'K' GNU's long names of the next file and link; 'S' a sparse file.
 */
#include "nl_tar.h"

#include <string.h>

enum { BLOCK = 512, MOST_NAME = 4096, MOST_RECORDS = 1 << 20 };

/* What is said of the next file in front of its header. */
typedef struct nl_tar_next {
    char name[MOST_NAME]; /* "": nothing */
    int64_t size;         /* -1: nothing */
} nl_tar_next;

typedef struct nl_tar {
    nl_context *context;
    const char *where;
    const uint8_t *data;
    int64_t size, at; /* at: of the present header */
    nl_tar_next next;
} nl_tar;

static nl_status damaged(const nl_tar *tar, const char *what)
{
    return nl_fail(tar->context, NL_ERROR_INPUT, "%s: damaged tar archive: %s, at byte %lld",
                   tar->where, what, (long long)tar->at);
}

/* A number of a header; -1: none, or beyond 63 bits. */
static int64_t number(const uint8_t *field, int size)
{
    int64_t value = 0;
    int i = 0;
    if (field[0] == 0x80) {
        for (i = 1; i < size; i++) {
            if (value >> 55)
                return -1;
            value = value << 8 | field[i];
        }
        return value;
    }
    while (i < size && field[i] == ' ')
        i++;
    int first = i;
    for (; i < size && field[i] >= '0' && field[i] <= '7'; i++) {
        if (value >> 60)
            return -1;
        value = value << 3 | (field[i] - '0');
    }
    return i > first && (i == size || field[i] == ' ' || !field[i]) ? value : -1;
}

static bool good_checksum(const uint8_t *header)
{
    int64_t sum = 0, signed_sum = 0; /* old programs added signed bytes */
    for (int i = 0; i < BLOCK; i++) {
        uint8_t byte = i >= 148 && i < 156 ? ' ' : header[i];
        sum += byte;
        signed_sum += (int8_t)byte;
    }
    int64_t said = number(header + 148, 8);
    return said >= 0 && (said == sum || said == signed_sum);
}

bool nl_tar_recognizes(const uint8_t *data, int64_t size)
{
    return size >= BLOCK && data[0] && (!memcmp(data + 257, "ustar", 5) || good_checksum(data));
}

/* A text of a header, which NUL ends where it is shorter. */
static int text_size(const uint8_t *field, int size)
{
    const uint8_t *end = memchr(field, 0, (size_t)size);
    return end ? (int)(end - field) : size;
}

static nl_status set_name(nl_tar *tar, const uint8_t *text, int64_t size)
{
    if (size < 1 || size >= MOST_NAME || memchr(text, 0, (size_t)size))
        return damaged(tar, "a name that is empty, longer than 4095 bytes or has a NUL in it");
    memcpy(tar->next.name, text, (size_t)size);
    tar->next.name[size] = '\0';
    return NL_OK;
}

/* "27 path=a/long/name.png\n" and the like. */
static nl_status read_records(nl_tar *tar, const uint8_t *data, int64_t size)
{
    if (size > MOST_RECORDS)
        return damaged(tar, "a header of more than 1 MiB");
    for (int64_t at = 0; at < size;) {
        int64_t length = 0, start = at;
        while (at < size && data[at] >= '0' && data[at] <= '9' && length < MOST_RECORDS)
            length = 10 * length + (data[at++] - '0');
        if (at == start || at == size || data[at] != ' ' || length > size - start ||
            start + length <= at + 1 || data[start + length - 1] != '\n')
            return damaged(tar, "a pax header whose records do not fit");
        const uint8_t *key = data + at + 1, *end = data + start + length - 1;
        const uint8_t *equals = memchr(key, '=', (size_t)(end - key));
        nl_status status = NL_OK;
        if (!equals)
            return damaged(tar, "a pax record without =");
        if (equals - key == 4 && !memcmp(key, "path", 4))
            status = set_name(tar, equals + 1, end - equals - 1);
        if (status != NL_OK)
            return status;
        if (equals - key >= 10 && !memcmp(key, "GNU.sparse", 10))
            return nl_fail(tar->context, NL_ERROR_INPUT,
                           "%s: holds sparse files: unpack it into a folder", tar->where);
        if (equals - key == 4 && !memcmp(key, "size", 4)) {
            int64_t value = 0;
            const uint8_t *digit = equals + 1;
            for (; digit < end && *digit >= '0' && *digit <= '9' && value < INT64_MAX / 10 - 9;
                 digit++)
                value = 10 * value + (*digit - '0');
            if (digit == equals + 1 || digit != end)
                return damaged(tar, "a pax size that is no number");
            tar->next.size = value;
        }
        at = start + length;
    }
    return NL_OK;
}

/* The name of the header itself: prefix/name. */
static nl_status take_name(nl_tar *tar, const uint8_t *header)
{
    uint8_t name[155 + 1 + 100];
    int size = 0, rest = text_size(header, 100);
    if (!memcmp(header + 257, "ustar\0", 6) && header[345]) {
        size = text_size(header + 345, 155);
        memcpy(name, header + 345, (size_t)size);
        name[size++] = '/';
    }
    memcpy(name + size, header, (size_t)rest);
    return set_name(tar, name, size + rest);
}

/* Without "./" and "/" in front; ".." leads out of the archive. */
static nl_status clean_name(nl_tar *tar, const char **name)
{
    const char *text = tar->next.name;
    while (text[0] == '/' || (text[0] == '.' && text[1] == '/'))
        text += text[0] == '/' ? 1 : 2;
    for (const char *part = text; part; part = strchr(part, '/')) {
        part += *part == '/';
        if (part[0] == '.' && part[1] == '.' && (part[2] == '/' || !part[2]))
            return damaged(tar, "a name with ..");
    }
    *name = text;
    return NL_OK;
}

static nl_status give(nl_tar *tar, const uint8_t *header, const uint8_t *content, int64_t size,
                      nl_status (*take)(void *user, const nl_tar_file *file), void *user)
{
    nl_tar_file file = {.data = content, .size = size};
    if (!tar->next.name[0])
        NL_CHECK(take_name(tar, header));
    NL_CHECK(clean_name(tar, &file.name));
    size_t length = strlen(file.name);
    if (length > 0 && file.name[length - 1] != '/') /* before ustar a folder was a file so named */
        NL_CHECK(take(user, &file));
    return NL_OK;
}

/* The header at tar->at and its content. */
static nl_status read_one(nl_tar *tar, nl_status (*take)(void *user, const nl_tar_file *file),
                          void *user, int64_t *others)
{
    const uint8_t *header = tar->data + tar->at, *content = header + BLOCK;
    char type = (char)header[156];
    bool file = type == '0' || type == '7' || !type;
    bool about = type == 'x' || type == 'g' || type == 'L' || type == 'K';
    int64_t size = number(header + 124, 12), left = tar->size - tar->at - BLOCK;
    nl_status status = NL_OK;
    if (!good_checksum(header))
        return damaged(tar, "a header whose checksum does not fit");
    if (type == 'S')
        return nl_fail(tar->context, NL_ERROR_INPUT,
                       "%s: holds sparse files: unpack it into a folder", tar->where);
    if (file && tar->next.size >= 0)
        size = tar->next.size;
    if (!file && !about && type != '5' && size < 0)
        size = 0;
    if (type >= '1' && type <= '6') /* links, devices, folders, pipes: nothing follows */
        size = 0;
    if (size < 0 || size > left || (size + BLOCK - 1) / BLOCK * BLOCK > left)
        return damaged(tar, size < 0 ? "a size that is no number" : "a file that is cut off");
    if (type == 'x')
        status = read_records(tar, content, size);
    else if (type == 'L')
        status = set_name(tar, content, text_size(content, (int)NL_MIN(size, MOST_NAME)));
    else if (file)
        status = give(tar, header, content, size, take, user);
    else if (!about && type != '5' && others)
        (*others)++;
    if (!about)
        tar->next = (nl_tar_next){.size = -1};
    tar->at += BLOCK + (size + BLOCK - 1) / BLOCK * BLOCK;
    return status;
}

nl_status nl_tar_walk(nl_context *context, const char *where, const uint8_t *data, int64_t size,
                      nl_status (*take)(void *user, const nl_tar_file *file), void *user,
                      int64_t *others)
{
    static const uint8_t zeros[BLOCK];
    nl_tar tar = {
        .context = context, .where = where, .data = data, .size = size, .next = {.size = -1}};
    while (tar.size - tar.at >= BLOCK && memcmp(data + tar.at, zeros, BLOCK) != 0) {
        NL_CHECK(read_one(&tar, take, user, others));
    }
    if (tar.at < size && size - tar.at < BLOCK)
        return damaged(&tar, "it ends within a header");
    return NL_OK;
}
