/* SPDX-License-Identifier: MIT */
/*
 * Tar archives in memory: their files, in order, where they lie, so that several threads can read them at once later. POSIX's
 * ustar and pax, GNU's long names and large sizes, and the form before them. Not packed ones: those cannot be read from the middle.
 */
#ifndef NL_TAR_H
#define NL_TAR_H

#include "nl_core.h"

typedef struct nl_tar_file {
    const char *name; /* valid during the call; no "./" in front, no NUL or ".." in it */
    const uint8_t *data;
    int64_t size;
} nl_tar_file;

/* Whether the bytes begin with the header of a tar archive; 512 of them are enough. */
bool nl_tar_recognizes(const uint8_t *data, int64_t size);
/* Hands over every regular file. others: counts links, devices and the like, which have no content; or NULL. A damaged or cut
 * off archive and sparse files are NL_ERROR_INPUT with `where` and the offset; a failure of `take` ends it. */
nl_status nl_tar_walk(nl_context *context, const char *where, const uint8_t *data, int64_t size,
                      nl_status (*take)(void *user, const nl_tar_file *file), void *user,
                      int64_t *others);

#endif
