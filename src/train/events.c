/* SPDX-License-Identifier: MIT */
/* TensorBoard's event files: framed protocol buffers with scalars and pictures. */
#include "events.h"

#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

uint32_t nl_crc32c(const void *data, size_t size)
{
    const uint8_t *byte = data;
    uint32_t crc = 0xffffffff;
    for (size_t i = 0; i < size; i++) {
        crc ^= byte[i];
        for (int bit = 0; bit < 8; bit++)
            crc = crc >> 1 ^ (crc & 1 ? 0x82f63b78 : 0);
    }
    return ~crc;
}

/* TFRecords mask their CRCs: the CRC of data that holds CRCs is a weak check. */
static uint32_t masked(uint32_t crc)
{
    return (crc >> 15 | crc << 17) + 0xa282ead8;
}

/* ---- Protocol buffers: a field is a varint (number << 3 | type) and its value. */

enum { VARINT = 0, FIXED64 = 1, BYTES = 2, FIXED32 = 5 };

/* Into `to`, or with NULL only counted. */
typedef struct nl_proto {
    uint8_t *to;
    size_t size;
} nl_proto;

static void put(nl_proto *proto, const void *data, size_t size)
{
    if (proto->to)
        memcpy(proto->to + proto->size, data, size);
    proto->size += size;
}

static void put_varint(nl_proto *proto, uint64_t value)
{
    for (; value >= 128; value >>= 7)
        put(proto, &(uint8_t){(uint8_t)(value | 128)}, 1);
    put(proto, &(uint8_t){(uint8_t)value}, 1);
}

static void put_little(nl_proto *proto, uint64_t value, int bytes)
{
    for (int i = 0; i < bytes; i++)
        put(proto, &(uint8_t){(uint8_t)(value >> 8 * i)}, 1);
}

static void field(nl_proto *proto, int number, int type)
{
    put_varint(proto, (uint64_t)(number << 3 | type));
}

static void field_varint(nl_proto *proto, int number, int64_t value)
{
    field(proto, number, VARINT);
    put_varint(proto, (uint64_t)value);
}

static void field_bytes(nl_proto *proto, int number, const void *data, size_t size)
{
    field(proto, number, BYTES);
    put_varint(proto, size);
    put(proto, data, size);
}

/* What an event says: `version`, `start`, `scalar` or `png`, and the others that go with it. */
typedef struct nl_event {
    const char *version; /* file_version */
    bool start;          /* session_log */
    const float *scalar;
    const uint8_t *png;
    const char *tag; /* of a scalar or a picture */
    size_t png_size;
    int height, width;
    int64_t step;
    double time;
} nl_event;

static void put_image(nl_proto *proto, const nl_event *event)
{
    field_varint(proto, 1, event->height);
    field_varint(proto, 2, event->width);
    field_varint(proto, 3, 3); /* RGB */
    field_bytes(proto, 4, event->png, event->png_size);
}

static void put_value(nl_proto *proto, const nl_event *event)
{
    uint32_t bits;
    field_bytes(proto, 1, event->tag, strlen(event->tag));
    if (event->scalar) {
        memcpy(&bits, event->scalar, sizeof(bits));
        field(proto, 2, FIXED32);
        put_little(proto, bits, 4);
    } else {
        nl_proto counted = {0};
        put_image(&counted, event);
        field(proto, 4, BYTES);
        put_varint(proto, counted.size);
        put_image(proto, event);
    }
}

static void put_event(nl_proto *proto, const nl_event *event)
{
    uint64_t bits;
    memcpy(&bits, &event->time, sizeof(bits));
    field(proto, 1, FIXED64);
    put_little(proto, bits, 8);
    field_varint(proto, 2, event->step);
    if (event->version) {
        field_bytes(proto, 3, event->version, strlen(event->version));
    } else if (event->start) {
        field_bytes(proto, 7, (const uint8_t[]){1 << 3 | VARINT, 1}, 2);
    } else {
        nl_proto value = {0}, summary = {0};
        put_value(&value, event);
        field(&summary, 1, BYTES);
        put_varint(&summary, value.size);
        field(proto, 5, BYTES);
        put_varint(proto, summary.size + value.size);
        field(proto, 1, BYTES);
        put_varint(proto, value.size);
        put_value(proto, event);
    }
}

static nl_status write_event(nl_append *file, nl_event *event)
{
    nl_proto counted = {0}, record = {0};
    uint8_t *bytes;
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    event->time = (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
    put_event(&counted, event);
    nl_status status = NL_NEW_ARRAY(file->context, "an event", counted.size + 16, &bytes);
    if (status != NL_OK)
        return status;
    record.to = bytes;
    put_little(&record, counted.size, 8);
    put_little(&record, masked(nl_crc32c(record.to, 8)), 4);
    put_event(&record, event);
    put_little(&record, masked(nl_crc32c(record.to + 12, counted.size)), 4);
    status = nl_append_write(file, record.to, record.size);
    nl_free(file->context, bytes);
    return status;
}

nl_status nl_events_open(nl_context *context, const char *folder, int64_t step, nl_append *file)
{
    nl_status status;
    char host[65] = "", name[128], *path = NULL;
    *file = (nl_append){.fd = -1};
    gethostname(host, sizeof(host) - 1);
    for (char *c = host; *c; c++)
        if (*c == '/')
            *c = '_';
    snprintf(name, sizeof(name), "events.out.tfevents.%lld.%s", (long long)time(NULL),
             host[0] ? host : "localhost");
    NL_TRY(nl_path_join(context, folder, name, &path));
    NL_TRY(nl_append_open(context, path, file));
    NL_TRY(write_event(file, &(nl_event){.version = "brain.Event:2"}));
    NL_TRY(write_event(file, &(nl_event){.start = true, .step = step}));
cleanup:
    nl_free(context, path);
    return status;
}

nl_status nl_events_scalar(nl_append *file, int64_t step, const char *tag, double value)
{
    return write_event(file,
                       &(nl_event){.scalar = &(float){(float)value}, .tag = tag, .step = step});
}

nl_status nl_events_image(nl_append *file, int64_t step, const char *tag, int height, int width,
                          const uint8_t *png, size_t size)
{
    return write_event(file, &(nl_event){.png = png,
                                         .png_size = size,
                                         .height = height,
                                         .width = width,
                                         .tag = tag,
                                         .step = step});
}
