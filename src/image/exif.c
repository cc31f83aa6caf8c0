/* SPDX-License-Identifier: MIT */
/* How EXIF says that a picture is to be turned, and turning it. */
#include <string.h>

#include "pixels.h"

enum { ORIENTATION = 0x0112, SHORT = 3, MAX_TAGS = 1000 };

static unsigned read16(const uint8_t *at, bool big)
{
    return big ? (unsigned)at[0] << 8 | at[1] : (unsigned)at[1] << 8 | at[0];
}

static uint32_t read32(const uint8_t *at, bool big)
{
    uint32_t high = read16(big ? at : at + 2, big), low = read16(big ? at + 2 : at, big);
    return high << 16 | low;
}

/* A TIFF header, then a directory of tags of 12 bytes each. */
int nl_exif_orientation(const uint8_t *data, int64_t size)
{
    if (size < 14 || (memcmp(data, "II*\0", 4) != 0 && memcmp(data, "MM\0*", 4) != 0))
        return 0;
    bool big = data[0] == 'M';
    int64_t at = read32(data + 4, big);
    if (at > size - 2)
        return 0;
    int count = (int)NL_MIN(read16(data + at, big), MAX_TAGS);
    at += 2;
    for (int i = 0; i < count && at <= size - 12; i++, at += 12)
        if (read16(data + at, big) == ORIENTATION && read16(data + at + 2, big) == SHORT) {
            unsigned value = read16(data + at + 8, big);
            return value <= 8 ? (int)value : 0;
        }
    return 0;
}

/* Orientations 2 to 8 by where a pixel of the upright picture (y, x) lies in the stored one. */
nl_status nl_image_turn(nl_context *context, nl_image *image)
{
    int orientation = image->orientation, height = image->height, width = image->width;
    bool swapped = orientation >= 5;
    int new_height = swapped ? width : height, new_width = swapped ? height : width;
    uint8_t *turned;
    if (orientation < 2)
        return NL_OK;
    NL_CHECK(NL_NEW_SIZED(context, "a picture", (int64_t)height * width, 3, &turned));
    bool down = orientation == 3 || orientation == 4 || orientation == 7 || orientation == 8;
    bool left = orientation == 2 || orientation == 3 || orientation == 6 || orientation == 7;
    for (int y = 0; y < new_height; y++)
        for (int x = 0; x < new_width; x++) {
            int row = swapped ? x : y, column = swapped ? y : x;
            row = (swapped ? left : down) ? height - 1 - row : row;
            column = (swapped ? down : left) ? width - 1 - column : column;
            memcpy(turned + 3 * ((size_t)y * (size_t)new_width + (size_t)x),
                   image->rgb + 3 * ((size_t)row * (size_t)width + (size_t)column), 3);
        }
    nl_free(context, image->rgb);
    image->rgb = turned;
    image->height = new_height;
    image->width = new_width;
    image->orientation = 1;
    return NL_OK;
}
