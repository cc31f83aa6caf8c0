/* SPDX-License-Identifier: MIT */
/* The lines of a file or a pipe, which may be one that does not wait, in memory that is counted. */
#include "nl_sample.h"

#include <errno.h>
#include <poll.h>
#include <string.h>
#include <unistd.h>

enum { PIECE = 1 << 16 };

/* Bytes behind lines->end, which moves; lines->over at the end. */
static nl_status read_more(nl_lines *lines)
{
    for (;;) {
        ssize_t got = read(lines->fd, lines->bytes + lines->end, lines->room - lines->end);
        if (got >= 0) {
            lines->end += (size_t)got;
            lines->over = got == 0;
            return NL_OK;
        }
        if (errno == EAGAIN || errno == EWOULDBLOCK)
            poll(&(struct pollfd){.fd = lines->fd, .events = POLLIN}, 1, -1);
        else if (errno != EINTR)
            return nl_fail(lines->context, NL_ERROR_INPUT, "%s: %s", lines->path, strerror(errno));
        if (nl_interrupted())
            return nl_fail(lines->context, NL_CANCELLED, "interrupted");
    }
}

/* Room for more bytes: what is given out goes, then the room doubles. */
static nl_status make_room(nl_lines *lines)
{
    char *bytes = NULL;
    size_t left = lines->end - lines->start;
    if (lines->start) {
        memmove(lines->bytes, lines->bytes + lines->start, left);
        lines->start = 0;
        lines->end = left;
    }
    if (lines->end < lines->room)
        return NL_OK;
    size_t room = lines->room ? 2 * lines->room : PIECE;
    NL_CHECK(NL_NEW_ARRAY(lines->context, "a line of requests", (int64_t)room, &bytes));
    if (left)
        memcpy(bytes, lines->bytes, left);
    nl_free(lines->context, lines->bytes);
    lines->bytes = bytes;
    lines->room = room;
    return NL_OK;
}

nl_status nl_lines_next(nl_lines *lines, const char **line, size_t *size)
{
    nl_status status = NL_OK;
    size_t looked = 0; /* bytes without an end of a line */
    *line = NULL;
    for (;;) {
        char *from = lines->bytes + lines->start;
        size_t left = lines->end - lines->start;
        char *end = left > looked ? memchr(from + looked, '\n', left - looked) : NULL;
        bool last = lines->over && left && !end;
        if (end || last) {
            *line = from;
            *size = end ? (size_t)(end - from) : left;
            lines->start += *size + (end != NULL);
            if (!lines->skips)
                return NL_OK;
            lines->skips = false;
            *line = NULL;
            looked = 0;
            continue;
        }
        if (lines->over)
            return NL_OK;
        if (lines->skips)
            lines->start = lines->end;
        looked = lines->end - lines->start;
        status = make_room(lines);
        if (status != NL_OK) {
            lines->skips = true;
            lines->start = lines->end;
            lines->over = lines->over || !lines->room;
            return status;
        }
        status = read_more(lines);
        if (status != NL_OK)
            return status;
    }
}
