/* SPDX-License-Identifier: MIT */
/* The one file that holds stb_image_write. Its functions stay in here, so that a program which links
 * both nalagen and stb has no symbol twice; its compressor is zlib's, which checks its allocations. */
#include "stb.h"

#include <stdlib.h>
#include <string.h>
#include <zlib.h>

enum { COMPRESSION_LEVEL = 6 };

static unsigned char *zlib_compress(unsigned char *data, int size, int *compressed_size)
{
    uLongf length = compressBound((uLong)size);
    unsigned char *compressed = malloc(length);
    if (compressed &&
        (compress2(compressed, &length, data, (uLong)size, COMPRESSION_LEVEL) != Z_OK ||
         length > INT32_MAX - 1024)) {
        free(compressed);
        compressed = NULL;
    }
    *compressed_size = compressed ? (int)length : 0;
    return compressed;
}

#if defined(__GNUC__) /* some of these are reported at the end of the file: no push and pop */
#pragma GCC diagnostic ignored "-Wunused-function"
#pragma GCC diagnostic ignored "-Wmissing-prototypes"
#pragma GCC diagnostic ignored "-Wshadow"
#pragma GCC diagnostic ignored "-Wmissing-field-initializers"
#pragma GCC diagnostic ignored "-Wsign-compare"
#endif
#define STB_IMAGE_WRITE_IMPLEMENTATION
#define STB_IMAGE_WRITE_STATIC
#define STBI_WRITE_NO_STDIO
#define STBIW_ASSERT(condition) ((void)0)
#define STBIW_ZLIB_COMPRESS(data, size, compressed_size, quality)                                  \
    ((void)(quality), zlib_compress(data, size, compressed_size))
#include <stb_image_write.h>

bool nl_stb_png(const uint8_t *rgb, int height, int width,
                void (*take)(void *user, void *bytes, int size), void *user)
{
    return stbi_write_png_to_func(take, user, width, height, 3, rgb, 3 * width) != 0;
}
