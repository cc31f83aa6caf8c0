/* SPDX-License-Identifier: MIT */
/* libzip apart from the tests, whose include path has another zip.h. */
#ifndef NL_TEST_LIBZIP_H
#define NL_TEST_LIBZIP_H

#include <stdbool.h>
#include <stddef.h>

bool libzip_there(void); /* built with it */
/* A stored member as libzip reads it, structure and checksum checked, and the archive's comment.
 * Its size, or -1. */
long libzip_read(const char *path, const char *name, void *data, size_t room, char *comment,
                 size_t comment_room);

#endif
