/* SPDX-License-Identifier: MIT */
/* stb_image_write behind one function. */
#ifndef NL_STB_H
#define NL_STB_H

#include <stdbool.h>
#include <stdint.h>

/* A PNG of rgb [height, width, 3], given to `take` in one piece that it must copy. false: no memory.
 * At most 2^28 pixels. */
bool nl_stb_png(const uint8_t *rgb, int height, int width,
                void (*take)(void *user, void *bytes, int size), void *user);

#endif
