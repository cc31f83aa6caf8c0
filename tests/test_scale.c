/* SPDX-License-Identifier: MIT */
/* Scaling and cutting pictures: PIL's numbers, byte for byte. */
#include "nl_test.h"

#include "nl_image.h"

static void load_picture(nl_context *context, const nl_checkpoint *golden, nl_image *image)
{
    const nl_entry *entry = nl_checkpoint_find(golden, "picture");
    assert_non_null(entry);
    *image = (nl_image){.height = (int)entry->shape[0], .width = (int)entry->shape[1]};
    assert_ok(context, NL_NEW_ARRAY(context, "picture", nl_entry_count(entry), &image->rgb));
    nl_entry_copy(entry, image->rgb);
}

static void assert_picture(const nl_checkpoint *golden, const char *name, const nl_image *image)
{
    const nl_entry *entry = nl_checkpoint_find(golden, name);
    assert_non_null(entry);
    assert_int_equal(image->height, entry->shape[0]);
    assert_int_equal(image->width, entry->shape[1]);
    const uint8_t *expected = entry->data;
    for (int64_t i = 0; i < nl_entry_count(entry); i++)
        if (image->rgb[i] != expected[i])
            fail_msg("%s: byte %lld is %d, PIL has %d", name, (long long)i, image->rgb[i],
                     expected[i]);
}

static void test_scale_as_pil(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        nl_filter filter;
        int height, width;
    } cases[] = {{"box_50x71", NL_FILTER_BOX, 50, 71},
                 {"bicubic_64x90", NL_FILTER_BICUBIC, 64, 90},
                 {"bicubic_105x60", NL_FILTER_BICUBIC, 105, 60}};
    nl_context *context = test_context(NULL);
    nl_checkpoint *golden = test_golden(context, "scale.safetensors");
    for (int i = 0; i < NL_COUNT(cases); i++) {
        nl_image image;
        load_picture(context, golden, &image);
        assert_ok(context, nl_image_scale(context, cases[i].filter, cases[i].height, cases[i].width,
                                          &image));
        assert_picture(golden, cases[i].name, &image);
        nl_image_free(context, &image);
    }
    nl_checkpoint_close(golden);
    nl_context_destroy(context);
}

static void test_fit_as_public_code(void **state)
{
    (void)state;
    static const int sizes[] = {24, 48, 64, 120};
    nl_context *context = test_context(NULL);
    nl_checkpoint *golden = test_golden(context, "scale.safetensors");
    for (int i = 0; i < NL_COUNT(sizes); i++) {
        char name[16];
        nl_image image;
        snprintf(name, sizeof(name), "fit_%d", sizes[i]);
        load_picture(context, golden, &image);
        assert_ok(context, nl_image_fit(context, sizes[i], sizes[i], &image));
        assert_picture(golden, name, &image);
        nl_image_free(context, &image);
    }
    nl_checkpoint_close(golden);
    nl_context_destroy(context);
}

/* Other proportions than the picture's; a line of pixels; without memory. */
static void test_fit_extremes(void **state)
{
    (void)state;
    static const int sizes[][4] = {{40, 10, 8, 16}, {10, 40, 16, 8}, {1, 1, 5, 7}, {1, 999, 4, 4}};
    nl_context *context = test_context(NULL);
    for (int i = 0; i < NL_COUNT(sizes); i++) {
        const int *s = sizes[i];
        nl_image image = {.height = s[0], .width = s[1]};
        assert_ok(context, NL_NEW_ARRAY(context, "picture", 3 * (int64_t)s[0] * s[1], &image.rgb));
        memset(image.rgb, 77, 3 * (size_t)s[0] * (size_t)s[1]);
        assert_ok(context, nl_image_fit(context, s[2], s[3], &image));
        assert_int_equal(image.height, s[2]);
        assert_int_equal(image.width, s[3]);
        for (int j = 0; j < 3 * s[2] * s[3]; j++)
            assert_int_equal(image.rgb[j], 77);
        nl_image_free(context, &image);
    }
    for (int64_t failing = 1;; failing++) {
        nl_image image = {.height = 30, .width = 20};
        assert_ok(context, NL_NEW_ZEROS(context, "picture", 3 * 30 * 20, &image.rgb));
        context->fail_allocation = atomic_load(&context->allocations) + failing;
        nl_status status = nl_image_fit(context, 7, 7, &image);
        context->fail_allocation = 0;
        nl_image_free(context, &image);
        assert_int_equal(atomic_load(&context->memory_used), 0);
        if (status == NL_OK)
            break;
        assert_int_equal(status, NL_ERROR_MEMORY);
    }
    nl_context_destroy(context);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_scale_as_pil),
        cmocka_unit_test(test_fit_as_public_code),
        cmocka_unit_test(test_fit_extremes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
