/* SPDX-License-Identifier: MIT */
/* Inside src/image: what the readers and writers share. */
#ifndef NL_PIXELS_H
#define NL_PIXELS_H

#include "nl_image.h"

enum { NL_PNG_SIGNATURE_SIZE = 8, NL_PNG_MAX_KEYWORD = 79 };
extern const uint8_t nl_png_signature[NL_PNG_SIGNATURE_SIZE];

/* Refuses sizes that are not positive or more than 2^28 pixels; `status` is that of the failure. */
nl_status nl_image_check_size(nl_context *context, nl_status status, const char *where,
                              int64_t height, int64_t width);

/* Size and text of the PNG in a mapping; checks structure and every CRC. */
nl_status nl_png_scan(nl_context *context, const char *path, const nl_mapping *mapping,
                      nl_image *image);
/* Pixels; image->rgb is allocated. */
nl_status nl_png_pixels(nl_context *context, const char *path, const nl_mapping *mapping,
                        nl_image *image);
/* RGBA over white to RGB, in place. */
void nl_drop_alpha(uint8_t *pixels, size_t count);
/* Of a TIFF header and what follows, as EXIF has it: 1 to 8, or 0 when it says nothing. */
int nl_exif_orientation(const uint8_t *data, int64_t size);
nl_status nl_webp_pixels(nl_context *context, const char *path, const nl_mapping *mapping,
                         nl_image *image);
nl_status nl_jpeg_pixels(nl_context *context, const char *path, const nl_mapping *mapping,
                         nl_image *image);

#endif
