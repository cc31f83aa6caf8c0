/* SPDX-License-Identifier: MIT */
/* Philox4x32-10, and normal and uniform numbers from it by the Box-Muller transform, as cuRAND gives them. */
#include "nl_random.h"

#include <math.h>

/* D. E. Shaw Research, "Parallel random numbers: as easy as 1, 2, 3" (SC 2011). */
void nl_philox4x32_10(uint32_t key0, uint32_t key1, uint32_t c[4])
{
    for (int round = 0; round < 10; round++) {
        uint64_t product0 = (uint64_t)0xD2511F53 * c[0];
        uint64_t product1 = (uint64_t)0xCD9E8D57 * c[2];
        c[0] = (uint32_t)(product1 >> 32) ^ c[1] ^ key0;
        c[1] = (uint32_t)product1;
        c[2] = (uint32_t)(product0 >> 32) ^ c[3] ^ key1;
        c[3] = (uint32_t)product0;
        key0 += 0x9E3779B9;
        key1 += 0xBB67AE85;
    }
}

void nl_philox(uint64_t seed, uint64_t image, uint64_t stream, uint64_t element, uint32_t words[4])
{
    uint64_t block = ((stream << 34) + element) / 4;
    words[0] = (uint32_t)block;
    words[1] = (uint32_t)(block >> 32);
    words[2] = (uint32_t)image;
    words[3] = (uint32_t)(image >> 32);
    nl_philox4x32_10((uint32_t)seed, (uint32_t)(seed >> 32), words);
}

/* In (0, 1]: the float nearest to x may be 2^32. */
static float uniform(uint32_t x)
{
    return (float)x * 0x1p-32f + 0x1p-33f;
}

static void box_muller(uint32_t x, uint32_t y, float normals[2])
{
    const float unit = 0x1p-32f * 6.2831855f; /* 2 pi 2^-32 */
    float radius = sqrtf(-2.0f * logf(uniform(x)));
    float angle = (float)y * unit + unit / 2;
    normals[0] = radius * sinf(angle);
    normals[1] = radius * cosf(angle);
}

void nl_philox_normal4(uint64_t seed, uint64_t image, uint64_t stream, uint64_t element,
                       float normals[4])
{
    uint32_t words[4];
    nl_philox(seed, image, stream, element, words);
    box_muller(words[0], words[1], normals);
    box_muller(words[2], words[3], normals + 2);
}

float nl_philox_uniform(uint64_t seed, uint64_t image, uint64_t stream, uint64_t element)
{
    uint32_t words[4];
    nl_philox(seed, image, stream, element, words);
    return uniform(words[element % 4]);
}
