/* The FID network against the golden file of TensorFlow's weights, and what it says about other files. */
#include "nl_inception.h"
#include "nl_test.h"

enum { HEIGHT = 224, WIDTH = 224, COUNT = 2 };

static const char *weights_path = NL_SHARED_DIR "/weights/inception-2015-12-05-partial.safetensors";

/* [COUNT, HEIGHT, WIDTH, 3] of the golden file's [COUNT, 3, HEIGHT, WIDTH]. malloc. */
static uint8_t *golden_pictures(const nl_checkpoint *golden)
{
    const nl_entry *entry = nl_checkpoint_find(golden, "rgb");
    assert_non_null(entry);
    const uint8_t *planes = entry->data;
    uint8_t *rgb = malloc(COUNT * HEIGHT * WIDTH * 3);
    for (int64_t i = 0; i < COUNT * 3 * HEIGHT * WIDTH; i++) {
        int64_t pixel = i % (HEIGHT * WIDTH), c = i / (HEIGHT * WIDTH) % 3;
        rgb[(i / (3 * HEIGHT * WIDTH) * HEIGHT * WIDTH + pixel) * 3 + c] = planes[i];
    }
    return rgb;
}

static nl_inception *load(nl_context *context)
{
    nl_checkpoint *checkpoint;
    nl_inception *net;
    assert_ok(context, nl_checkpoint_open(context, weights_path, &checkpoint));
    assert_ok(context, nl_inception_load(context->device, checkpoint, &net));
    nl_checkpoint_close(checkpoint);
    return net;
}

static void test_resized(void **state)
{
    test_need_golden("inception.safetensors");
    nl_context *context = test_context("cpu");
    nl_device *device = context->device;
    nl_checkpoint *golden = test_golden(context, "inception.safetensors");
    float *expected = test_read(golden, "resized", NULL);
    uint8_t *rgb = golden_pictures(golden);
    const int64_t size = 299 * 299;
    float *y = malloc((size_t)(3 * size) * sizeof(float)), *planes = malloc((size_t)(3 * size) * 4);
    (void)state;
    assert_ok(context, NL_OP(device, resize,
                             .x = nl_tensor_of(rgb, NL_U8, 4, (int64_t[]){1, HEIGHT, WIDTH, 3}),
                             .y = nl_tensor_of(y, NL_F32, 4, (int64_t[]){1, 299, 299, 3}),
                             .kind = NL_RESIZE_LEGACY, .scale = 1));
    for (int64_t i = 0; i < 3 * size; i++)
        planes[i] = y[i % size * 3 + i / size];
    assert_close(planes, expected, 3 * size, 1e-6);
    free(planes);
    free(y);
    free(rgb);
    free(expected);
    nl_checkpoint_close(golden);
    nl_context_destroy(context);
}

static void test_features(void **state)
{
    test_need(weights_path);
    test_need_golden("inception.safetensors");
    nl_context *context = test_context("cpu");
    nl_checkpoint *golden = test_golden(context, "inception.safetensors");
    nl_inception *net = load(context);
    uint8_t *rgb = golden_pictures(golden);
    float *spatial = test_read(golden, "spatial", NULL),
          *mixed_7 = test_read(golden, "mixed_7", NULL);
    float *features[NL_FEATURES] = {NULL}, single[768];
    (void)state;
    for (int f = 0; f < NL_FEATURES; f++)
        if (nl_inception_has(net, f))
            features[f] = calloc((size_t)(COUNT * nl_feature_size(f)), sizeof(float));
    assert_ok(context,
              nl_inception_run(net, &nl_preprocessings[0], rgb, COUNT, HEIGHT, WIDTH, features));
    assert_close(features[NL_FEATURE_SPATIAL], spatial, COUNT * 2023, 1e-5);
    assert_close(features[NL_FEATURE_MIXED_7], mixed_7, COUNT * 768, 1e-5);
    /* one picture by itself */
    float *alone[NL_FEATURES] = {[NL_FEATURE_MIXED_7] = single};
    assert_ok(context, nl_inception_run(net, &nl_preprocessings[0], rgb + HEIGHT * WIDTH * 3, 1,
                                        HEIGHT, WIDTH, alone));
    assert_close(single, mixed_7 + 768, 768, 1e-5);
    assert_close(single, features[NL_FEATURE_MIXED_7] + 768, 768, 2e-6);
    for (int f = 0; f < NL_FEATURES; f++)
        free(features[f]);
    free(mixed_7);
    free(spatial);
    free(rgb);
    nl_inception_destroy(net);
    nl_checkpoint_close(golden);
    nl_context_destroy(context);
}

static void test_partial(void **state)
{
    test_need(weights_path);
    nl_context *context = test_context("cpu");
    nl_inception *net = load(context);
    (void)state;
    assert_false(nl_inception_has(net, NL_FEATURE_POOL_3));
    assert_false(nl_inception_has(net, NL_FEATURE_LOGITS));
    assert_true(nl_inception_has(net, NL_FEATURE_MIXED_7));
    assert_non_null(strstr(nl_inception_missing(net), "mixed_9/tower_1/conv_1.weight"));
    assert_non_null(strstr(nl_inception_missing(net), "softmax.weight"));
    nl_inception_destroy(net);
    nl_context_destroy(context);
}

static void test_other_files(void **state)
{
    nl_context *context = test_context("cpu");
    nl_checkpoint *checkpoint;
    nl_inception *net;
    (void)state;
    assert_ok(context,
              nl_checkpoint_open(context, NL_SOURCE_DIR "/tests/golden/torch/dit.safetensors",
                                 &checkpoint));
    assert_int_equal(nl_inception_load(context->device, checkpoint, &net), NL_ERROR_INPUT);
    assert_non_null(strstr(nl_last_error(context), "not the weights of the FID network"));
    assert_null(net);
    nl_checkpoint_close(checkpoint);
    nl_context_destroy(context);
}

static void test_memory(void **state)
{
    test_need(weights_path);
    nl_context *context = test_context("cpu");
    nl_inception *net = load(context);
    int64_t free_batch, tight_batch;
    (void)state;
    assert_ok(context, nl_inception_batch(net, 256, 256, &free_batch));
    context->options.max_memory = context->memory_used + (120 << 20);
    assert_ok(context, nl_inception_batch(net, 256, 256, &tight_batch));
    assert_true(tight_batch >= 1 && tight_batch < free_batch);
    uint8_t *rgb = calloc((size_t)(9 * 64 * 64 * 3), 1);
    float *features[NL_FEATURES] = {[NL_FEATURE_MIXED_7] = calloc(9 * 768, sizeof(float))};
    assert_ok(context, nl_inception_run(net, &nl_preprocessings[0], rgb, 9, 64, 64, features));
    assert_true(context->memory_peak <= context->options.max_memory);
    free(features[NL_FEATURE_MIXED_7]);
    free(rgb);
    nl_inception_destroy(net);
    nl_context_destroy(context);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_resized), cmocka_unit_test(test_features),
        cmocka_unit_test(test_partial), cmocka_unit_test(test_other_files),
        cmocka_unit_test(test_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
