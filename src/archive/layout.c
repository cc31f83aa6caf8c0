/* SPDX-License-Identifier: MIT */
/* The bytes of the archive around the pictures. */
#include "nl_checkpoint.h"
#include "npz.h"
#include "zip.h"

void nl_put16(uint8_t *at, uint32_t value)
{
    at[0] = (uint8_t)value;
    at[1] = (uint8_t)(value >> 8);
}

void nl_put32(uint8_t *at, uint32_t value)
{
    nl_put16(at, value);
    nl_put16(at + 2, value >> 16);
}

void nl_put64(uint8_t *at, uint64_t value)
{
    nl_put32(at, (uint32_t)value);
    nl_put32(at + 4, (uint32_t)(value >> 32));
}

uint32_t nl_get32(const uint8_t *at)
{
    return at[0] | (uint32_t)at[1] << 8 | (uint32_t)at[2] << 16 | (uint32_t)at[3] << 24;
}

uint64_t nl_get64(const uint8_t *at)
{
    return nl_get32(at) | (uint64_t)nl_get32(at + 4) << 32;
}

static void make_member(nl_npz_member *member, const char *name, nl_dtype dtype, int ndim,
                        const int64_t *shape)
{
    snprintf(member->name, sizeof(member->name), "%s", name);
    member->header_size = nl_npy_put_header(dtype, ndim, shape, member->header);
}

bool nl_npz_lay_out(int64_t count, int height, int width, int64_t comment_size,
                    nl_npz_layout *layout)
{
    nl_npz_member *pictures = &layout->members[0], *labels = &layout->members[1];
    *layout = (nl_npz_layout){.picture_bytes = 3 * (int64_t)height * width};
    make_member(pictures, "arr_0.npy", NL_U8, 4, (int64_t[]){count, height, width, 3});
    make_member(labels, "arr_1.npy", NL_I64, 1, &count);
    pictures->data = NL_NPZ_LOCAL_SIZE + pictures->header_size;
    int64_t end, labels_size;
    if (!nl_mul_size(count, layout->picture_bytes, &pictures->data_size) ||
        !nl_mul_size(count, 8, &labels_size) ||
        !nl_add_size(pictures->data, pictures->data_size, &labels->offset) ||
        !nl_add_size(labels->offset, labels_size, &end) ||
        !nl_add_size(end, NL_NPZ_LOCAL_SIZE + labels->header_size + NL_NPZ_TAIL_SIZE + comment_size,
                     &layout->size))
        return false;
    labels->data_size = labels_size;
    labels->data = labels->offset + NL_NPZ_LOCAL_SIZE + labels->header_size;
    layout->directory = labels->data + labels->data_size;
    return true;
}

static nl_zip_member zip_member(const nl_npz_member *member)
{
    return (nl_zip_member){.name = member->name,
                           .offset = member->offset,
                           .size = member->header_size + member->data_size,
                           .crc = member->crc};
}

void nl_npz_local_header(const nl_npz_member *member, uint8_t bytes[NL_NPZ_LOCAL_SIZE])
{
    nl_zip_member zip = zip_member(member);
    nl_zip_put_local(&zip, bytes);
}

void nl_npz_tail(const nl_npz_layout *layout, int64_t comment_size, uint8_t bytes[NL_NPZ_TAIL_SIZE])
{
    uint8_t *at = bytes;
    for (int i = 0; i < NL_COUNT(layout->members); i++) {
        nl_zip_member zip = zip_member(&layout->members[i]);
        at += nl_zip_put_central(&zip, at);
    }
    nl_zip_put_end(NL_COUNT(layout->members), layout->directory, at - bytes, comment_size, at);
}
