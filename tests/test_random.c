/* SPDX-License-Identifier: MIT */
/* Philox against published vectors and cuRAND, and the moments of what is made from it. */
#include "nl_random.h"
#include "nl_test.h"

/* kat_vectors of Random123, philox4x32 with 10 rounds. */
static void test_known_answers(void **state)
{
    (void)state;
    static const struct {
        uint32_t key[2], counter[4], words[4];
    } known[] = {
        {{0, 0}, {0, 0, 0, 0}, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
        {{0xffffffff, 0xffffffff},
         {0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff},
         {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
        {{0xa4093822, 0x299f31d0},
         {0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344},
         {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
    };
    for (int i = 0; i < NL_COUNT(known); i++) {
        uint32_t words[4];
        memcpy(words, known[i].counter, sizeof(words));
        nl_philox4x32_10(known[i].key[0], known[i].key[1], words);
        assert_memory_equal(words, known[i].words, sizeof(words));
    }
}

/* What curand4, curand_normal4 and curand_uniform give after
 * curand_init(seed, image, stream * 2^34 + element): cuRAND 13.0's headers compiled for the host. */
static const struct {
    uint64_t seed, image, stream, element;
    uint32_t words[4];
    float normals[4], uniform;
} curand[] = {
    {0,
     0,
     0,
     0,
     {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8},
     {-0.924662411f, 0.991137743f, -0.482068747f, -0.617608845f},
     0.399046481f},
    {1234,
     0,
     0,
     4,
     {0x9eeede35, 0x1cbe137c, 0xfa277093, 0x147edd50},
     {0.633082867f, 0.743367076f, 0.103621967f, 0.188317239f},
     0.620832324f},
    {42,
     7,
     16,
     100,
     {0x03e2ac9b, 0xb4b0c3e1, 0x095a5621, 0x63042110},
     {-2.78333116f, -0.793062091f, 1.67967165f, -1.94876611f},
     0.0151775246f},
    {0x123456789abcdef0,
     0xfedcba9876543210,
     5,
     1000000,
     {0xb572a05c, 0xd9f77ad2, 0x8465ae50, 0x5aa2680a},
     {-0.666832924f, 0.493713677f, 0.91161263f, -0.698358536f},
     0.708780289f},
    {42,
     3,
     (1 << 20) + 16,
     (uint64_t)3 << 32,
     {0x4c967e15, 0xaa702aca, 0x16565a65, 0x0c53194a},
     {-1.34102499f, -0.784301877f, 0.657935381f, 2.10830712f},
     0.299171329f},
    {9,
     1,
     0,
     ((uint64_t)1 << 34) - 4,
     {0x50200317, 0x8be09510, 0x026d985f, 0x0cf362b8},
     {-0.438055992f, -1.45989203f, 0.953924358f, 2.89933777f},
     0.31298846f},
};

static void test_as_curand(void **state)
{
    (void)state;
    for (int i = 0; i < NL_COUNT(curand); i++) {
        uint64_t seed = curand[i].seed, image = curand[i].image;
        uint64_t stream = curand[i].stream, element = curand[i].element;
        uint32_t words[4];
        float normals[4];
        nl_philox(seed, image, stream, element, words);
        assert_memory_equal(words, curand[i].words, sizeof(words));
        nl_philox_normal4(seed, image, stream, element, normals);
        for (int j = 0; j < 4; j++)
            assert_true(fabsf(normals[j] - curand[i].normals[j]) <=
                        4e-7f * fabsf(curand[i].normals[j])); /* 4 ulp: other libms */
        assert_true(nl_philox_uniform(seed, image, stream, element) == curand[i].uniform);
    }
}

/* Element e is word e % 4 of its block; streams follow one another 2^34 elements apart. */
static void test_addressing(void **state)
{
    (void)state;
    uint32_t block[4], words[4];
    nl_philox(42, 7, 16, 100, block);
    for (uint64_t e = 100; e < 104; e++) {
        nl_philox(42, 7, 16, e, words);
        assert_memory_equal(words, block, sizeof(block));
        assert_true(nl_philox_uniform(42, 7, 16, e) == (float)block[e % 4] * 0x1p-32f + 0x1p-33f);
    }
    /* curand() after curand_init(42, 7, 16 * 2^34 + 101) */
    assert_int_equal(block[101 % 4], 0xb4b0c3e1);
    nl_philox(42, 7, 16, 104, words);
    assert_memory_not_equal(words, block, sizeof(block));
    nl_philox(42, 7, 15, ((uint64_t)1 << 34) + 100, words);
    assert_memory_equal(words, block, sizeof(block));
    nl_philox(42, 7, 0, ((uint64_t)16 << 34) + 101, words);
    assert_memory_equal(words, block, sizeof(block));
}

/* Moments of 4 million normals of all images together. Their standard errors are 5e-4 for the mean,
 * 7e-4 for the variance, 5e-3 for the fourth moment; the bounds are five of them. */
static void test_moments(void **state)
{
    (void)state;
    double sum = 0, squares = 0, fourths = 0, neighbours = 0;
    const int images = 16, blocks = 65536;
    for (int image = 0; image < images; image++)
        for (int block = 0; block < blocks; block++) {
            float n[4];
            nl_philox_normal4(3, (uint64_t)image, NL_STREAM_NOISE, 4 * (uint64_t)block, n);
            for (int j = 0; j < 4; j++) {
                double x = n[j];
                assert_true(isfinite(x));
                sum += x;
                squares += x * x;
                fourths += x * x * x * x;
                neighbours += x * (double)n[(j + 1) % 4];
            }
        }
    double count = 4.0 * images * blocks;
    assert_true(fabs(sum / count) < 2.5e-3);
    assert_true(fabs(squares / count - 1) < 3.5e-3);
    assert_true(fabs(fourths / count - 3) < 2.5e-2);
    assert_true(fabs(neighbours / count) < 2.5e-3);
}

/* In (0, 1]: a uniform number of 0 would make a normal infinite. */
static void test_uniform_range(void **state)
{
    (void)state;
    double sum = 0, least = 1, most = 0;
    const int count = 1 << 20;
    for (int i = 0; i < count; i++) {
        double u = nl_philox_uniform(5, 2, NL_STREAM_TIME, (uint64_t)i);
        sum += u;
        least = NL_MIN(least, u);
        most = NL_MAX(most, u);
    }
    assert_true(least > 0 && most <= 1);
    assert_true(least < 1e-4 && most > 1 - 1e-4);
    assert_true(fabs(sum / count - 0.5) < 1.5e-3);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_known_answers), cmocka_unit_test(test_as_curand),
        cmocka_unit_test(test_addressing),    cmocka_unit_test(test_moments),
        cmocka_unit_test(test_uniform_range),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
