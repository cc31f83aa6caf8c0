/* SPDX-License-Identifier: MIT */
/* Where pictures go that come a batch at a time: a PNG, a folder of PNGs, or an .npz. */
#ifndef NL_PICTURE_FILES_H
#define NL_PICTURE_FILES_H

#include "nl_npz.h"
#include "nl_pictures.h"

typedef struct nl_picture_files {
    nl_context *context;
    const char *out;
    bool force;   /* overwrite what is there */
    bool folder;  /* it is one, or ends in / */
    bool archive; /* it ends in .npz */
    nl_npz *npz;  /* of an archive, once it is begun */
} nl_picture_files;

/* What `out`, which is not empty, is by its name: nothing is made. folder: it is one whatever its name. NL_ERROR_USAGE:
 * none of the three. */
nl_status nl_picture_files_set(nl_context *context, const char *out, bool folder, bool force,
                               nl_picture_files *files);
/* Before the first picture: begins or resumes an archive, makes a folder, looks for room on the disk. height, width: 0 where
 * pictures have sizes of their own, which those of an archive do not. parameters: of an archive, see nl_npz_options. */
nl_status nl_picture_files_begin(nl_picture_files *files, int64_t count, int height, int width,
                                 const char *parameters);
/* Writes a batch by several threads. name: of a picture below the folder, with or without .png, into `room` or
 * elsewhere; one file is `out` whatever its name. The first failure is the one that is told. */
typedef const char *nl_picture_namer(void *user, int64_t index, char room[32]);
nl_status nl_picture_files_write(const nl_picture_files *files, const nl_picture_batch *batch,
                                 nl_picture_namer *name, void *user);
/* Allocated: where the picture of this name is. "a/b.jpg" becomes "a/b.jpg.png", so that no two files have one name. */
nl_status nl_picture_files_path(const nl_picture_files *files, const char *name, char **path);
/* Ends an archive whose pictures are all there. */
nl_status nl_picture_files_end(nl_picture_files *files);
/* Leaves what is there: of an archive its parts, with which the same call goes on. Also after the end. */
void nl_picture_files_abandon(nl_picture_files *files);

#endif
