/* The bytes of the archive around the pictures: APPNOTE 4.3 (zip, zip64) and numpy's npy 1.0. Times are the zip
 * epoch, so that the same pictures give the same file. */
#include "npz.h"

enum {
    VERSION_NEEDED = 45, /* zip64 */
    DOS_DATE = 0x21,     /* 1980-01-01 */
    NAME_SIZE = 9,       /* arr_0.npy */
    ZIP64_ID = 1
};

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

/* Magic, version, length, then the dictionary padded with spaces to a multiple of 64. */
static void npy_header(nl_npz_member *member, const char *descr, const char *shape)
{
    char *text = member->header + 10;
    int length = snprintf(text, sizeof(member->header) - 10,
                          "{'descr': '%s', 'fortran_order': False, 'shape': (%s), }", descr, shape);
    int total = (10 + length + 1 + 63) / 64 * 64;
    memset(text + length, ' ', (size_t)(total - 10 - length));
    member->header[total - 1] = '\n';
    memcpy(member->header, "\x93NUMPY\x01\x00", 8);
    nl_put16((uint8_t *)member->header + 8, (uint32_t)(total - 10));
    member->header_size = total;
}

bool nl_npz_lay_out(int64_t count, int height, int width, int64_t comment_size,
                    nl_npz_layout *layout)
{
    char shape[96];
    nl_npz_member *pictures = &layout->members[0], *labels = &layout->members[1];
    *layout = (nl_npz_layout){.picture_bytes = 3 * (int64_t)height * width};
    strcpy(pictures->name, "arr_0.npy");
    strcpy(labels->name, "arr_1.npy");
    snprintf(shape, sizeof(shape), "%lld, %d, %d, 3", (long long)count, height, width);
    npy_header(pictures, "|u1", shape);
    snprintf(shape, sizeof(shape), "%lld,", (long long)count);
    npy_header(labels, "<i8", shape);
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

static uint64_t stored_size(const nl_npz_member *member)
{
    return (uint64_t)(member->header_size + member->data_size);
}

/* Version needed to name length, which local and central headers share: 26 bytes. */
static void common_header(const nl_npz_member *member, uint8_t *at)
{
    nl_put16(at, VERSION_NEEDED);
    nl_put16(at + 8, DOS_DATE);
    nl_put32(at + 10, member->crc);
    nl_put32(at + 14, UINT32_MAX); /* sizes are in the extra field */
    nl_put32(at + 18, UINT32_MAX);
    nl_put16(at + 22, NAME_SIZE);
}

static void zip64_extra(const nl_npz_member *member, bool offset, uint8_t *at)
{
    nl_put16(at, ZIP64_ID);
    nl_put16(at + 2, offset ? 24 : 16);
    nl_put64(at + 4, stored_size(member));
    nl_put64(at + 12, stored_size(member));
    if (offset)
        nl_put64(at + 20, (uint64_t)member->offset);
}

void nl_npz_local_header(const nl_npz_member *member, uint8_t bytes[NL_NPZ_LOCAL_SIZE])
{
    memset(bytes, 0, NL_NPZ_LOCAL_SIZE);
    nl_put32(bytes, 0x04034b50);
    common_header(member, bytes + 4);
    nl_put16(bytes + 28, 20);
    memcpy(bytes + 30, member->name, NAME_SIZE);
    zip64_extra(member, false, bytes + 30 + NAME_SIZE);
}

void nl_npz_tail(const nl_npz_layout *layout, int64_t comment_size, uint8_t bytes[NL_NPZ_TAIL_SIZE])
{
    uint8_t *at = bytes;
    memset(bytes, 0, NL_NPZ_TAIL_SIZE);
    for (int i = 0; i < NL_COUNT(layout->members); i++) {
        nl_put32(at, 0x02014b50);
        nl_put16(at + 4, 3 << 8 | VERSION_NEEDED); /* made on Unix */
        common_header(&layout->members[i], at + 6);
        nl_put16(at + 30, 28);
        nl_put32(at + 38, 0100644u << 16); /* a regular file, rw-r--r-- */
        nl_put32(at + 42, UINT32_MAX);
        memcpy(at + 46, layout->members[i].name, NAME_SIZE);
        zip64_extra(&layout->members[i], true, at + 46 + NAME_SIZE);
        at += 46 + NAME_SIZE + 28;
    }
    uint64_t directory_size = (uint64_t)(at - bytes);
    nl_put32(at, 0x06064b50); /* zip64 end of central directory */
    nl_put64(at + 4, 44);
    nl_put16(at + 12, 3 << 8 | VERSION_NEEDED);
    nl_put16(at + 14, VERSION_NEEDED);
    nl_put64(at + 24, NL_COUNT(layout->members));
    nl_put64(at + 32, NL_COUNT(layout->members));
    nl_put64(at + 40, directory_size);
    nl_put64(at + 48, (uint64_t)layout->directory);
    at += 56;
    nl_put32(at, 0x07064b50); /* its locator */
    nl_put64(at + 8, (uint64_t)layout->directory + directory_size);
    nl_put32(at + 16, 1);
    at += 20;
    nl_put32(at, 0x06054b50); /* end of central directory */
    nl_put16(at + 8, NL_COUNT(layout->members));
    nl_put16(at + 10, NL_COUNT(layout->members));
    nl_put32(at + 12, UINT32_MAX);
    nl_put32(at + 16, UINT32_MAX);
    nl_put16(at + 20, (uint32_t)comment_size);
}
