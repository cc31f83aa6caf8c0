/* SPDX-License-Identifier: MIT */
/* WebP pixels through libwebp; transparency lies on white. */
#include <string.h>

#include <webp/decode.h>

#include "pixels.h"

/* The payload of a chunk of the RIFF container, or NULL. */
static const uint8_t *find_chunk(const nl_mapping *file, const char *name, int64_t *size)
{
    int64_t at = 12;
    while (at + 8 <= file->size) {
        const uint8_t *chunk = file->data + at;
        int64_t length = (int64_t)chunk[4] | (int64_t)chunk[5] << 8 | (int64_t)chunk[6] << 16 |
                         (int64_t)chunk[7] << 24;
        if (length > file->size - at - 8)
            return NULL;
        if (memcmp(chunk, name, 4) == 0) {
            *size = length;
            return chunk + 8;
        }
        at += 8 + length + (length & 1);
    }
    return NULL;
}

static void read_orientation(const nl_mapping *file, nl_image *image)
{
    int64_t size;
    const uint8_t *exif = find_chunk(file, "EXIF", &size);
    if (exif && size > 6 && memcmp(exif, "Exif\0", 6) == 0)
        exif += 6, size -= 6;
    image->orientation = exif ? nl_exif_orientation(exif, size) : 0;
}

nl_status nl_webp_pixels(nl_context *context, const char *path, const nl_mapping *mapping,
                         nl_image *image)
{
    WebPBitstreamFeatures features;
    nl_status status;
    uint8_t *pixels = NULL, *done;
    if (WebPGetFeatures(mapping->data, (size_t)mapping->size, &features) != VP8_STATUS_OK)
        return nl_fail(context, NL_ERROR_INPUT, "%s: damaged WebP", path);
    if (features.has_animation)
        return nl_fail(context, NL_ERROR_INPUT, "%s: an animated WebP: take one of its pictures",
                       path);
    NL_TRY(nl_image_check_size(context, NL_ERROR_INPUT, path, features.height, features.width));
    int channels = features.has_alpha ? 4 : 3;
    int64_t count = (int64_t)features.height * features.width, bytes = count * channels;
    NL_TRY(NL_NEW_SIZED(context, "a picture", count, (size_t)channels, &pixels));
    done = (channels == 4 ? WebPDecodeRGBAInto : WebPDecodeRGBInto)(
        mapping->data, (size_t)mapping->size, pixels, (size_t)bytes, features.width * channels);
    if (!done)
        NL_TRY(nl_fail(context, NL_ERROR_INPUT, "%s: damaged WebP", path));
    if (channels == 4)
        nl_drop_alpha(pixels, (size_t)count);
    image->height = features.height;
    image->width = features.width;
    image->rgb = pixels;
    pixels = NULL;
    read_orientation(mapping, image);
cleanup:
    nl_free(context, pixels);
    return status;
}
