/* SPDX-License-Identifier: MIT */
/* Pictures from files, by content. */
#include <string.h>

#include "pixels.h"

enum { MAX_PIXELS = 1 << 28 };

const uint8_t nl_png_signature[NL_PNG_SIGNATURE_SIZE] = {0x89, 'P',  'N',  'G',
                                                         '\r', '\n', 0x1a, '\n'};

nl_status nl_image_check_size(nl_context *context, nl_status status, const char *where,
                              int64_t height, int64_t width)
{
    if (height > 0 && width > 0 && height <= MAX_PIXELS && width <= MAX_PIXELS / height)
        return NL_OK;
    return nl_fail(context, status, "%s: %lld x %lld pixels: expected at least 1 x 1, at most 2^28",
                   where, (long long)width, (long long)height);
}

void nl_image_free(nl_context *context, nl_image *image)
{
    for (char **text = image->text; text && *text; text++)
        nl_free(context, *text);
    nl_free(context, image->text);
    nl_free(context, image->rgb);
    *image = (nl_image){0};
}

static nl_status read_mapping(nl_context *context, const char *path, const nl_mapping *mapping,
                              nl_image *image)
{
    *image = (nl_image){0};
    nl_status status;
    switch (nl_image_kind_of(mapping->data, mapping->size)) {
    case NL_IMAGE_PNG:
        status = nl_png_scan(context, path, mapping, image);
        if (status == NL_OK)
            status = nl_png_pixels(context, path, mapping, image);
        break;
    case NL_IMAGE_JPEG:
        status = nl_jpeg_pixels(context, path, mapping, image);
        break;
    case NL_IMAGE_WEBP:
        status = nl_webp_pixels(context, path, mapping, image);
        break;
    default:
        status =
            nl_fail(context, NL_ERROR_INPUT,
                    "%s: neither PNG nor JPEG nor WebP (%lld bytes): convert the picture to one "
                    "of them",
                    path, (long long)mapping->size);
    }
    if (status != NL_OK)
        nl_image_free(context, image);
    return status;
}

nl_status nl_image_read_bytes(nl_context *context, const char *where, const uint8_t *bytes,
                              size_t size, nl_image *image)
{
    return read_mapping(context, where, &(nl_mapping){.data = bytes, .size = (int64_t)size}, image);
}

nl_status nl_image_read(nl_context *context, const char *path, nl_image *image)
{
    *image = (nl_image){0};
    nl_mapping mapping = {0};
    nl_status status = nl_map_file(context, path, &mapping);
    if (status == NL_OK)
        status = read_mapping(context, path, &mapping, image);
    nl_unmap(context, &mapping);
    return status;
}

nl_status nl_png_read_text(nl_context *context, const char *path, nl_image *image)
{
    *image = (nl_image){0};
    nl_mapping mapping = {0};
    nl_status status;
    NL_TRY(nl_map_file(context, path, &mapping));
    if (nl_image_kind_of(mapping.data, mapping.size) == NL_IMAGE_PNG)
        status = nl_png_scan(context, path, &mapping, image);
    else
        status = nl_fail(context, NL_ERROR_INPUT, "%s: not a PNG", path);
cleanup:
    nl_unmap(context, &mapping);
    if (status != NL_OK)
        nl_image_free(context, image);
    return status;
}
