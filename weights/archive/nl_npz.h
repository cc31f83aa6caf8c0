/* SPDX-License-Identifier: MIT */
/*
 * An archive of pictures as numpy.load and the public evaluation code read it: a stored zip64 of
 * arr_0.npy, uint8 [count, height, width, 3], and arr_1.npy, int64 [count] labels.
 *
 * Its size is known at the start, so PATH.part is allocated in full, every picture is written at its
 * own offset, in any order and by several processes, and its checksum noted in PATH.journal. Who
 * finds all pictures there writes headers and directory, syncs and renames PATH.part to PATH.
 * Whatever ends a process costs the pictures it had not finished: opening with the same parameters
 * goes on. Memory does not depend on the number of pictures.
 *
 * PATH.journal, little endian:
 *   OFFSET  SIZE  DESCRIPTION
 *        0    16  "nalagen journal\n"
 *       16     4  version, 1
 *       20     4  bytes of the parameters, P
 *       24     8  pictures, N
 *       32     4  height
 *       36     4  width
 *       40     8  token of the run that began it with force, or 0
 *       48     4  CRC-32 of the bytes 0 to 47 and of the parameters
 *       52    12  zero
 *       64     P  parameters, JSON
 *   records       at the next multiple of 64, N of 16 bytes, all zero until the picture is there:
 *        0     4  "done"
 *        4     4  CRC-32 of the picture's bytes
 *        8     4  label
 *       12     4  CRC-32 of the header's CRC-32, the picture's index (8 bytes) and bytes 4 to 11
 * A record that was torn fails its check and counts as none.
 */
#ifndef NL_NPZ_H
#define NL_NPZ_H

#include "nl_core.h"

typedef struct nl_npz nl_npz;

typedef struct nl_npz_options {
    const char *path;
    int64_t count;
    int height, width;
    /* JSON object of all that the pictures depend on; also the comment of the finished archive
     * (at most 65,535 bytes). Only an archive begun with the same one is resumed. */
    const char *parameters;
    bool force;      /* begin anew, whatever stands there */
    uint64_t token;  /* with force, of processes that share the work: the first begins anew, the
                       others, known by the same token, join it; 0: this process is alone */
    int rank, ranks; /* of the processes at work; ranks 0 counts as 1 */
} nl_npz_options;

/* Begins an archive, resumes one, or finds it finished. A full disk, other parameters, a file
 * that is not ours, another process at work in the same place: refused with advice. */
nl_status nl_npz_open(nl_context *context, const nl_npz_options *options, nl_npz **npz);

/* The finished archive stood there: nothing is to be done. */
bool nl_npz_finished(const nl_npz *npz);

/* Whether picture `index` is there, its bytes compared with their checksum. One thread at a time. */
nl_status nl_npz_has(nl_npz *npz, int64_t index, bool *there);
/* How many pictures are noted as there, by whichever process. */
nl_status nl_npz_done(nl_npz *npz, int64_t *done);

/* rgb [height, width, 3]. Different pictures may be written by several threads at once. */
nl_status nl_npz_write(nl_npz *npz, int64_t index, int label, const uint8_t *rgb);

/* Ends the archive when every picture is there, and frees `npz` in every case. *finished: this
 * process ended the archive, or found it finished; false when another one did or is still to do it. */
nl_status nl_npz_close(nl_npz **npz, bool *finished);
/* Leaves everything as it is, to be resumed. NULL inside is allowed. */
void nl_npz_abandon(nl_npz **npz);

#endif
