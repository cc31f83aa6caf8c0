/* SPDX-License-Identifier: MIT */
/*
 * Files that grow as a run goes on: lines of JSON, and TensorBoard's event files. A record is written whole or
 * not at all, so that a full disk leaves a file that can be read and grows again later.
 */
#ifndef NL_EVENTS_H
#define NL_EVENTS_H

#include "nl_core.h"

/* ---- A file that records are appended to */

typedef struct nl_append {
    nl_context *context;
    char *path;
    int fd;
} nl_append;

nl_status nl_append_open(nl_context *context, const char *path, nl_append *file);
nl_status nl_append_write(nl_append *file, const void *data, size_t size);
void nl_append_close(nl_append *file); /* {.fd = -1} and {0} are allowed */

/* ---- TensorBoard: TFRecords of the protocol buffer Event
 *
 *   8 bytes   length, little endian
 *   4         masked CRC-32C of these eight
 *   length    Event
 *   4         masked CRC-32C of the Event
 */

/* Castagnoli's CRC-32C (reflected 0x82f63b78). */
uint32_t nl_crc32c(const void *data, size_t size);

/* events.out.tfevents.TIME.HOST in the folder; what earlier files have from `step` on is void. */
nl_status nl_events_open(nl_context *context, const char *folder, int64_t step, nl_append *file);
nl_status nl_events_scalar(nl_append *file, int64_t step, const char *tag, double value);
nl_status nl_events_image(nl_append *file, int64_t step, const char *tag, int height, int width,
                          const uint8_t *png, size_t size);

#endif
