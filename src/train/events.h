/* SPDX-License-Identifier: MIT */
/*
 * TensorBoard's event files. TFRecords of the protocol buffer Event:
 *
 *   8 bytes   length, little endian
 *   4         masked CRC-32C of these eight
 *   length    Event
 *   4         masked CRC-32C of the Event
 */
#ifndef NL_EVENTS_H
#define NL_EVENTS_H

#include "nl_io.h"

/* Castagnoli's CRC-32C (reflected 0x82f63b78). */
uint32_t nl_crc32c(const void *data, size_t size);

/* events.out.tfevents.TIME.HOST in the folder; what earlier files have from `step` on is void. */
nl_status nl_events_open(nl_context *context, const char *folder, int64_t step, nl_append *file);
nl_status nl_events_scalar(nl_append *file, int64_t step, const char *tag, double value);
nl_status nl_events_image(nl_append *file, int64_t step, const char *tag, int height, int width,
                          const uint8_t *png, size_t size);

#endif
