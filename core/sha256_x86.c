/* SPDX-License-Identifier: MIT */
/*
 * SHA-256 by the SHA extensions of x86: a checkpoint of gigabytes is hashed at the speed of the disk.
 * The instructions keep the state as two vectors, {a, b, e, f} and {c, d, g, h}.
 */
#include "sha256_blocks.h"

#if defined(__x86_64__) && defined(__GNUC__)

#include <cpuid.h>
#include <immintrin.h>

bool nl_sha256_has_x86(void)
{
    unsigned a, b, c, d;
    const unsigned ssse3 = 1u << 9, sse4_1 = 1u << 19, sha = 1u << 29;
    if (!__get_cpuid(1, &a, &b, &c, &d) || !(c & ssse3) || !(c & sse4_1))
        return false;
    return __get_cpuid_count(7, 0, &a, &b, &c, &d) && (b & sha);
}

__attribute__((target("sha,ssse3,sse4.1"))) void
nl_sha256_blocks_x86(uint32_t state[8], const uint8_t *data, size_t blocks)
{
    const __m128i big_endian = _mm_set_epi64x(0x0c0d0e0f08090a0b, 0x0405060700010203);
    __m128i dcba = _mm_loadu_si128((const __m128i *)state);
    __m128i hgfe = _mm_loadu_si128((const __m128i *)(state + 4));
    __m128i cdab = _mm_shuffle_epi32(dcba, 0xB1), efgh = _mm_shuffle_epi32(hgfe, 0x1B);
    __m128i abef = _mm_alignr_epi8(cdab, efgh, 8), cdgh = _mm_blend_epi16(efgh, cdab, 0xF0);

    for (; blocks > 0; blocks--, data += 64) {
        __m128i abef_before = abef, cdgh_before = cdgh, w[4];
        for (int i = 0; i < 16; i++) { /* four rounds each */
            if (i < 4) {
                w[i] = _mm_shuffle_epi8(_mm_loadu_si128((const __m128i *)data + i), big_endian);
            } else {
                __m128i last = w[(i + 3) % 4], before_last = w[(i + 2) % 4];
                __m128i sum = _mm_add_epi32(_mm_sha256msg1_epu32(w[i % 4], w[(i + 1) % 4]),
                                            _mm_alignr_epi8(last, before_last, 4));
                w[i % 4] = _mm_sha256msg2_epu32(sum, last);
            }
            __m128i k = _mm_loadu_si128((const __m128i *)nl_sha256_constants + i);
            __m128i wk = _mm_add_epi32(w[i % 4], k);
            cdgh = _mm_sha256rnds2_epu32(cdgh, abef, wk);
            abef = _mm_sha256rnds2_epu32(abef, cdgh, _mm_shuffle_epi32(wk, 0x0E));
        }
        abef = _mm_add_epi32(abef, abef_before);
        cdgh = _mm_add_epi32(cdgh, cdgh_before);
    }

    __m128i feba = _mm_shuffle_epi32(abef, 0x1B), dchg = _mm_shuffle_epi32(cdgh, 0xB1);
    _mm_storeu_si128((__m128i *)state, _mm_blend_epi16(feba, dchg, 0xF0));
    _mm_storeu_si128((__m128i *)(state + 4), _mm_alignr_epi8(dchg, feba, 8));
}

#else

bool nl_sha256_has_x86(void)
{
    return false;
}

void nl_sha256_blocks_x86(uint32_t state[8], const uint8_t *data, size_t blocks)
{
    nl_sha256_blocks(state, data, blocks);
}

#endif
