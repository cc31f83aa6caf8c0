/* SPDX-License-Identifier: MIT */
/* The bytes around an array in an archive: what both writers of .npz share. */
#include "npz.h"

#include <zlib.h>

bool nl_npz_make_member(const char *name, const nl_array *array, int64_t offset,
                        nl_npz_member *member)
{
    int64_t size = nl_dtype_size(array->dtype), end;
    *member = (nl_npz_member){.zip.offset = offset};
    int length = snprintf(member->zip.name, sizeof(member->zip.name), "%s.npy", name);
    member->header_size =
        nl_npy_put_header(array->dtype, array->ndim, array->shape, member->header);
    for (int i = 0; i < array->ndim; i++)
        if (!nl_mul_size(size, array->shape[i], &size))
            return false;
    member->zip.crc =
        (uint32_t)crc32_z(0, (const Bytef *)member->header, (size_t)member->header_size);
    return length < (int)sizeof(member->zip.name) && member->header_size > 0 &&
           nl_add_size(member->header_size, size, &member->zip.size) &&
           nl_add_size(offset, NL_ZIP_LOCAL + length, &end) &&
           nl_add_size(end, member->zip.size, &end);
}

int64_t nl_npz_data_offset(const nl_npz_member *member)
{
    return member->zip.offset + NL_ZIP_LOCAL + (int64_t)strlen(member->zip.name) +
           member->header_size;
}

int nl_npz_put_member(const nl_npz_member *member, uint8_t bytes[NL_NPZ_RECORD])
{
    int size = nl_zip_put_local(&member->zip, bytes);
    memcpy(bytes + size, member->header, (size_t)member->header_size);
    return size + member->header_size;
}
