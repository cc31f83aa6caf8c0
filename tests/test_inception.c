/* The FID network against the golden file of TensorFlow's weights, and what it says about other files. */
#include "inception.h"
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

/* ---- A complete network from the generator of make_inception_golden.py */

/* splitmix64 of FNV-1a(name) + i, its upper 24 bits as a number in [0, 1). */
static double uniform(const char *name, int64_t i)
{
    uint64_t z = 0xcbf29ce484222325u;
    for (; *name; name++)
        z = (z ^ (uint8_t)*name) * 0x100000001b3u;
    z += (uint64_t)(i + 1) * 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return (double)((z ^ (z >> 31)) >> 40) / 16777216;
}

typedef struct seeded_tensor {
    char name[96];
    int ndim;
    int64_t shape[4];
    double low, high;
} seeded_tensor;

enum { SEEDED = 5 * NL_INCEPTION_CONVOLUTIONS + 2 };

static void seed_tensor(seeded_tensor *t, const char *name, const char *suffix, int ndim,
                        const int64_t *shape, double low, double high)
{
    snprintf(t->name, sizeof(t->name), "%s.%s", name, suffix);
    t->ndim = ndim;
    memcpy(t->shape, shape, (size_t)ndim * sizeof(*shape));
    t->low = low;
    t->high = high;
}

/* The tensors of pytorch-fid's file. */
static void list_seeded(nl_context *context, seeded_tensor *t)
{
    nl_inception *net = calloc(1, sizeof(*net));
    net->device = context->device;
    assert_ok(context, nl_inception_list(net));
    assert_int_equal(net->count, NL_INCEPTION_CONVOLUTIONS);
    for (int i = 0; i < net->count; i++) {
        const nl_convolution *c = &net->convolutions[i];
        double reach = sqrt(6.0 / (double)(c->shape[1] * c->shape[2] * c->shape[3]));
        seed_tensor(t++, c->torch, "conv.weight", 4, c->shape, -reach, reach);
        seed_tensor(t++, c->torch, "bn.weight", 1, c->shape, 0.5, 1.5);
        seed_tensor(t++, c->torch, "bn.bias", 1, c->shape, -0.25, 0.25);
        seed_tensor(t++, c->torch, "bn.running_mean", 1, c->shape, -0.125, 0.125);
        seed_tensor(t++, c->torch, "bn.running_var", 1, c->shape, 0.5, 1.5);
    }
    seed_tensor(t++, "fc", "weight", 2, (int64_t[]){1008, 2048}, -0.0625, 0.0625);
    seed_tensor(t++, "fc", "bias", 1, (int64_t[]){1008}, -1, 1);
    free(net);
}

/* As safetensors in memory. malloc. */
static uint8_t *seeded_file(const seeded_tensor *tensors, int64_t *size)
{
    char *header = calloc(SEEDED, 256), *end = header + 8;
    int64_t bytes = 0;
    *end++ = '{';
    for (int n = 0; n < SEEDED; n++) {
        const seeded_tensor *t = &tensors[n];
        int64_t count = 4;
        end += sprintf(end, "%s\"%s\":{\"dtype\":\"F32\",\"shape\":[", n ? "," : "", t->name);
        for (int i = 0; i < t->ndim; i++) {
            end += sprintf(end, "%s%lld", i ? "," : "", (long long)t->shape[i]);
            count *= t->shape[i];
        }
        end += sprintf(end, "],\"data_offsets\":[%lld,%lld]}", (long long)bytes,
                       (long long)(bytes + count));
        bytes += count;
    }
    *end++ = '}';
    while ((end - header) % 8)
        *end++ = ' ';
    uint64_t length = (uint64_t)(end - header - 8);
    memcpy(header, &length, 8);
    *size = end - header + bytes;
    uint8_t *file = malloc((size_t)*size);
    memcpy(file, header, (size_t)(end - header));
    float *to = (float *)(file + (end - header));
    for (int n = 0; n < SEEDED; n++) {
        const seeded_tensor *t = &tensors[n];
        int64_t count = 1;
        for (int i = 0; i < t->ndim; i++)
            count *= t->shape[i];
        for (int64_t i = 0; i < count; i++)
            *to++ = (float)(t->low + (t->high - t->low) * uniform(t->name, i));
    }
    free(header);
    return file;
}

static void test_complete(void **state)
{
    enum { H = 60, W = 84 };
    nl_context *context = test_context("cpu");
    nl_checkpoint *golden = test_golden(context, "inception_seeded.safetensors"), *checkpoint;
    seeded_tensor *tensors = calloc(SEEDED, sizeof(*tensors));
    float *pool_3 = test_read(golden, "pool_3", NULL), *logits = test_read(golden, "logits", NULL);
    float *features[NL_FEATURES] = {[NL_FEATURE_POOL_3] = calloc(2 * 2048, sizeof(float)),
                                    [NL_FEATURE_LOGITS] = calloc(2 * 1008, sizeof(float))};
    uint8_t *rgb = malloc(2 * H * W * 3);
    nl_inception *net;
    int64_t size;
    (void)state;
    for (int i = 0; i < 2 * H * W * 3; i++)
        rgb[i] = (uint8_t)(uniform("pictures", i) * 256);
    list_seeded(context, tensors);
    uint8_t *file = seeded_file(tensors, &size);
    assert_ok(context, nl_checkpoint_open_memory(context, "seeded", file, size, &checkpoint));
    assert_ok(context, nl_inception_load(context->device, checkpoint, &net));
    assert_string_equal(nl_inception_missing(net), "");
    const nl_preprocessing *p = nl_preprocessings;
    while (strcmp(p->name, "pytorch-fid"))
        p++;
    assert_ok(context, nl_inception_run(net, p, rgb, 2, H, W, features));
    assert_close(features[NL_FEATURE_POOL_3], pool_3, 2 * 2048, 1e-5);
    assert_close(features[NL_FEATURE_LOGITS], logits, 2 * 1008, 1e-5);
    nl_inception_destroy(net);
    nl_checkpoint_close(checkpoint);
    nl_checkpoint_close(golden);
    free(file);
    free(rgb);
    free(features[NL_FEATURE_POOL_3]);
    free(features[NL_FEATURE_LOGITS]);
    free(pool_3);
    free(logits);
    free(tensors);
    nl_context_destroy(context);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_resized), cmocka_unit_test(test_features),
        cmocka_unit_test(test_partial), cmocka_unit_test(test_other_files),
        cmocka_unit_test(test_memory),  cmocka_unit_test(test_complete),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
