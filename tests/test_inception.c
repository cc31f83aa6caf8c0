/* SPDX-License-Identifier: MIT */
/* The FID network against the golden file of TensorFlow's weights, and what it says about other files. */
#include "inception.h"
#include "nl_measure.h"
#include "nl_npz.h"
#include "nl_test.h"
#include "seeded_inception.h"

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
    nl_context *context = test_context(test_device());
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
    for (int p = NL_PRECISION_TF32; p < NL_PRECISIONS && !test_on_cpu(); p++) {
        assert_ok(context, nl_inception_set_precision(net, p));
        assert_ok(context, nl_inception_run(net, &nl_preprocessings[0], rgb, COUNT, HEIGHT, WIDTH,
                                            features));
        /* Rounding the factors of every convolution to 10 bits gives 2.7e-3 on a CPU, cutting them off 7.7e-3
         * (bench/results/gpu-sh.md). */
        assert_close(features[NL_FEATURE_SPATIAL], spatial, COUNT * 2023, 4e-3);
        assert_close(features[NL_FEATURE_MIXED_7], mixed_7, COUNT * 768, 2e-3);
    }
    assert_ok(context, nl_inception_set_precision(net, NL_PRECISION_FP32));
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

/* ---- A network of seeded weights */

/* The network and the file that it was loaded from. */
static nl_inception *load_seeded(nl_context *context, bool whole, uint8_t **file)
{
    nl_checkpoint *checkpoint;
    nl_inception *net;
    int64_t size;
    assert_ok(context, seeded_inception(context->device, whole, file, &size));
    assert_ok(context, nl_checkpoint_open_memory(context, "seeded", *file, size, &checkpoint));
    assert_ok(context, nl_inception_load(context->device, checkpoint, &net));
    nl_checkpoint_close(checkpoint);
    return net;
}

static void test_partial(void **state)
{
    nl_context *context = test_context("cpu");
    uint8_t *file;
    nl_inception *net = load_seeded(context, false, &file);
    (void)state;
    assert_false(nl_inception_has(net, NL_FEATURE_POOL_3));
    assert_false(nl_inception_has(net, NL_FEATURE_LOGITS));
    assert_true(nl_inception_has(net, NL_FEATURE_MIXED_7));
    assert_non_null(strstr(nl_inception_missing(net), "mixed_9/tower_1/conv_1.weight"));
    assert_non_null(strstr(nl_inception_missing(net), "softmax.weight"));
    nl_inception_destroy(net);
    free(file);
    nl_context_destroy(context);
}

static void test_memory(void **state)
{
    nl_context *context = test_context("cpu");
    uint8_t *file;
    nl_inception *net = load_seeded(context, false, &file);
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
    free(file);
    nl_context_destroy(context);
}

static void test_complete(void **state)
{
    enum { H = 60, W = 84 };
    nl_context *context = test_context("cpu");
    nl_checkpoint *golden = test_golden(context, "inception_seeded.safetensors");
    float *pool_3 = test_read(golden, "pool_3", NULL), *logits = test_read(golden, "logits", NULL);
    float *features[NL_FEATURES] = {[NL_FEATURE_POOL_3] = calloc(2 * 2048, sizeof(float)),
                                    [NL_FEATURE_LOGITS] = calloc(2 * 1008, sizeof(float))};
    uint8_t *rgb = malloc(2 * H * W * 3);
    uint8_t *file;
    (void)state;
    for (int i = 0; i < 2 * H * W * 3; i++)
        rgb[i] = (uint8_t)(seeded_uniform("pictures", i) * 256);
    nl_inception *net = load_seeded(context, true, &file);
    assert_string_equal(nl_inception_missing(net), "");
    assert_int_equal(nl_inception_set_precision(net, NL_PRECISION_FP16), NL_ERROR_USAGE);
    const nl_preprocessing *p = nl_preprocessings;
    while (strcmp(p->name, "pytorch-fid"))
        p++;
    assert_ok(context, nl_inception_run(net, p, rgb, 2, H, W, features));
    assert_close(features[NL_FEATURE_POOL_3], pool_3, 2 * 2048, 1e-5);
    assert_close(features[NL_FEATURE_LOGITS], logits, 2 * 1008, 1e-5);
    nl_inception_destroy(net);
    nl_checkpoint_close(golden);
    free(file);
    free(rgb);
    free(features[NL_FEATURE_POOL_3]);
    free(features[NL_FEATURE_LOGITS]);
    free(pool_3);
    free(logits);
    nl_context_destroy(context);
}

/* ---- A device that queues, as a GPU does: what is downloaded is there when it is waited for, not before */

static struct {
    void *to, *bytes;
    int64_t size;
} late[NL_DOWNLOAD_SLOTS][NL_FEATURES];
static int late_marks; /* downloads of nothing, which only say when the work before them is done */

static nl_status late_start(nl_device *device, int slot, void *to, const void *from, int64_t bytes)
{
    int n = 0;
    (void)device;
    late_marks += bytes == 0;
    if (bytes == 0)
        return NL_OK;
    while (late[slot][n].to)
        assert_true(++n < NL_FEATURES);
    late[slot][n].to = to;
    late[slot][n].size = bytes;
    late[slot][n].bytes = malloc((size_t)bytes);
    memcpy(late[slot][n].bytes, from, (size_t)bytes);
    memset(to, 0xff, (size_t)bytes);
    return NL_OK;
}

static nl_status late_wait(nl_device *device, int slot)
{
    (void)device;
    for (int n = 0; n < NL_FEATURES && late[slot][n].to; n++) {
        memcpy(late[slot][n].to, late[slot][n].bytes, (size_t)late[slot][n].size);
        free(late[slot][n].bytes);
        late[slot][n].to = NULL;
    }
    return NL_OK;
}

/* Several batches, with little memory; then one batch in several pieces, and another behind it. */
static void test_queue(void **state)
{
    enum { N = 9, S = 32 };
    nl_context *context = test_context("cpu");
    nl_ops ops = *context->device->ops;
    uint8_t *file, *rgb = malloc(N * S * S * 3);
    float *expected[NL_FEATURES] = {NULL}, *found[NL_FEATURES] = {NULL};
    const float *ended[NL_FEATURES];
    const nl_feature some[] = {NL_FEATURE_POOL_64, NL_FEATURE_SPATIAL};
    nl_inception *net = load_seeded(context, true, &file);
    nl_inception_queue *queue;
    bool wanted[NL_FEATURES] = {false};
    int64_t batch, count;
    (void)state;
    for (int i = 0; i < N * S * S * 3; i++)
        rgb[i] = (uint8_t)(seeded_uniform("queue", i) * 256);
    for (int i = 0; i < NL_COUNT(some); i++) {
        wanted[some[i]] = true;
        expected[some[i]] = calloc((size_t)(N * nl_feature_size(some[i])), sizeof(float));
        found[some[i]] = calloc((size_t)(N * nl_feature_size(some[i])), sizeof(float));
    }
    context->options.max_memory = context->memory_used + (40 << 20);
    assert_ok(context, nl_inception_run(net, &nl_preprocessings[0], rgb, N, S, S, expected));
    ops.download_start = late_start;
    ops.download_wait = late_wait;
    context->device->ops = &ops;
    assert_ok(context, nl_inception_batch(net, S, S, &batch));
    assert_in_range(batch, 1, 4);
    assert_ok(context, nl_inception_run(net, &nl_preprocessings[0], rgb, N, S, S, found));
    for (int i = 0; i < NL_COUNT(some); i++)
        assert_close(found[some[i]], expected[some[i]], N * nl_feature_size(some[i]), 2e-6);
    assert_ok(context, nl_inception_queue_create(net, &nl_preprocessings[0], wanted, &queue));
    assert_int_equal(nl_inception_end(queue, &count, ended), NL_ERROR_INTERNAL);
    assert_ok(context, nl_inception_begin(queue, rgb, N, S, S));
    assert_ok(context, nl_inception_begin(queue, rgb + S * S * 3, 1, S, S));
    assert_int_equal(nl_inception_begin(queue, rgb, 1, S, S), NL_ERROR_INTERNAL);
    assert_ok(context, nl_inception_end(queue, &count, ended));
    assert_ok(context, nl_inception_begin(queue, rgb, 1, S, S)); /* leaves what has ended alone */
    assert_int_equal(count, N);
    assert_null(ended[NL_FEATURE_LOGITS]);
    for (int i = 0; i < NL_COUNT(some); i++)
        assert_close(ended[some[i]], expected[some[i]], N * nl_feature_size(some[i]), 2e-6);
    assert_ok(context, nl_inception_end(queue, &count, ended));
    assert_int_equal(count, 1);
    assert_close(ended[some[1]], expected[some[1]] + nl_feature_size(some[1]),
                 nl_feature_size(some[1]), 2e-6);
    assert_ok(context, nl_inception_end(queue, &count, ended));
    nl_inception_queue_destroy(queue);
    assert_true(context->memory_peak <= context->options.max_memory);
    for (int i = 0; i < NL_COUNT(some); i++) {
        free(expected[some[i]]);
        free(found[some[i]]);
    }
    nl_inception_destroy(net);
    free(file);
    free(rgb);
    nl_context_destroy(context);
}

/* Pictures whose features stay on the device, in pieces. */
static void test_queue_sums(void **state)
{
    enum { N = 9, S = 32, SIZE = 64 };
    const nl_feature feature = NL_FEATURE_POOL_64;
    nl_context *context = test_context("cpu");
    nl_ops ops = *context->device->ops;
    uint8_t *file, *rgb = malloc(N * S * S * 3);
    static float rows[N * SIZE];
    static double mean[2][SIZE], covariance[2][SIZE * SIZE];
    float *features[NL_FEATURES] = {[NL_FEATURE_POOL_64] = rows};
    const float *ended[NL_FEATURES];
    const bool wanted[NL_FEATURES] = {false};
    nl_inception *net = load_seeded(context, true, &file);
    nl_inception_queue *queue;
    nl_device_moments *sums;
    nl_moments *moments[2];
    int64_t count;
    (void)state;
    for (int i = 0; i < N * S * S * 3; i++)
        rgb[i] = (uint8_t)(seeded_uniform("queue", i) * 256);
    for (int i = 0; i < 2; i++)
        assert_ok(context, nl_moments_create(context, SIZE, &moments[i]));
    assert_ok(context, nl_inception_run(net, &nl_preprocessings[0], rgb, N, S, S, features));
    nl_moments_add(moments[0], rows, N);
    ops.download_start = late_start;
    ops.download_wait = late_wait;
    context->device->ops = &ops;
    context->options.max_memory = context->memory_used + (40 << 20);
    assert_ok(context, nl_device_moments_create(context->device, SIZE, &sums));
    assert_ok(context, nl_inception_queue_create(net, &nl_preprocessings[0], wanted, &queue));
    nl_inception_queue_sum(queue, feature, sums);
    assert_ok(context, nl_device_moments_read(sums, moments[1]));
    assert_int_equal(nl_moments_count(moments[1]), 0);
    late_marks = 0;
    assert_ok(context, nl_inception_begin(queue, rgb, N - 2, S, S));
    assert_true(late_marks >
                0); /* otherwise nothing would tell when the pictures may be overwritten */
    assert_ok(context, nl_inception_begin(queue, rgb + (N - 2) * S * S * 3, 2, S, S));
    for (int i = 0; i < 2; i++) {
        assert_ok(context, nl_inception_end(queue, &count, ended));
        assert_int_equal(count, i ? 2 : N - 2);
        assert_null(ended[feature]);
    }
    assert_ok(context, nl_device_moments_read(sums, moments[1]));
    assert_int_equal(nl_moments_count(moments[1]), N);
    for (int i = 0; i < 2; i++)
        assert_ok(context, nl_moments_read(moments[i], mean[i], covariance[i]));
    for (int i = 0; i < SIZE; i++)
        assert_true(fabs(mean[1][i] - mean[0][i]) <= 1e-6 * (1 + fabs(mean[0][i])));
    for (int i = 0; i < SIZE * SIZE; i++)
        assert_true(fabs(covariance[1][i] - covariance[0][i]) <=
                    1e-5 * sqrt(covariance[0][i / SIZE * (SIZE + 1)] *
                                covariance[0][i % SIZE * (SIZE + 1)]) +
                        1e-12);
    for (int i = 0; i < 2; i++)
        nl_moments_destroy(moments[i]);
    nl_inception_queue_destroy(queue);
    nl_device_moments_destroy(sums);
    nl_inception_destroy(net);
    free(file);
    free(rgb);
    nl_context_destroy(context);
}

/* Each batch takes more memory than the one before; the last is the first, three times. */
static void test_queue_of_several_shapes(void **state)
{
    enum { S = 32, SHAPES = 4 };
    const int64_t shapes[SHAPES][3] = {{1, S, S}, {1, S, 9 * S}, {1, 20 * S, 9 * S}, {3, S, S}};
    nl_context *context = test_context("cpu");
    int64_t size = nl_feature_size(NL_FEATURE_POOL_64), count;
    float *first = malloc((size_t)size * sizeof(float));
    uint8_t *file, *rgb = malloc(20 * 9 * S * S * 3);
    const float *ended[NL_FEATURES];
    nl_inception *net = load_seeded(context, true, &file);
    nl_inception_queue *queue;
    bool wanted[NL_FEATURES] = {[NL_FEATURE_POOL_64] = true};
    (void)state;
    for (int i = 0; i < 20 * 9 * S * S * 3; i++)
        rgb[i] = (uint8_t)(seeded_uniform("queue", i % (S * S * 3)) * 256);
    assert_ok(context, nl_inception_queue_create(net, &nl_preprocessings[0], wanted, &queue));
    for (int i = 0; i < SHAPES; i++) {
        const int64_t *shape = shapes[i];
        assert_ok(context, nl_inception_begin(queue, rgb, shape[0], shape[1], shape[2]));
        assert_ok(context, nl_inception_end(queue, &count, ended));
        assert_int_equal(count, shape[0]);
        if (i == 0)
            memcpy(first, ended[NL_FEATURE_POOL_64], (size_t)size * sizeof(float));
    }
    for (int i = 0; i < 3; i++)
        assert_memory_equal(ended[NL_FEATURE_POOL_64] + i * size, first,
                            (size_t)size * sizeof(float));
    nl_inception_queue_destroy(queue);
    nl_inception_destroy(net);
    free(first);
    free(file);
    free(rgb);
    nl_context_destroy(context);
}

/* ---- nl_measure of pictures that no file holds */

enum { SIDE = 24, SAMPLES = 21, PORTION = 96 };

/* Runs of 50 bytes, each of one value between two of the picture's own. */
static void sample(int64_t i, uint8_t *rgb)
{
    char name[32];
    snprintf(name, sizeof(name), "sample %d", (int)i);
    double low = 128 * seeded_uniform(name, -1), high = 255 - 128 * seeded_uniform(name, -2);
    for (int k = 0; k < SIDE * SIDE * 3; k++)
        rgb[k] = (uint8_t)(low + (high - low) * seeded_uniform(name, k / 50));
}

typedef struct maker {
    int64_t portion, stop; /* pictures at once, at most; in all */
    int64_t copy;          /* the picture that is picture 0 again, or 0 */
} maker;

static nl_status make(void *user, nl_picture_range range, int64_t most, nl_picture_taker take,
                      void *taker)
{
    const maker *m = user;
    static uint8_t rgb[PORTION][SIDE * SIDE * 3];
    nl_status status = NL_OK;
    assert_int_equal(range.first, 0); /* one process has all of them */
    for (int64_t first = 0, count; first < m->stop; first += count) {
        count = NL_MIN(NL_MIN(m->portion, most), m->stop - first);
        for (int64_t i = 0; i < count; i++)
            sample(first + i == m->copy ? 0 : first + i, rgb[i]);
        nl_picture_batch batch = {
            .rgb = rgb[0], .first = first, .count = count, .height = SIDE, .width = SIDE};
        NL_TRY(take(taker, &batch));
    }
cleanup:
    return status;
}

/* exp of the mean divergence of the rows `chosen` from their mean. */
static double score_of(const float *logits, const int64_t *chosen, int64_t count)
{
    enum { CLASSES = 1008 };
    double *p = calloc((size_t)(count + 1) * CLASSES, sizeof(double)), *mean = p + count * CLASSES;
    double sum = 0;
    for (int64_t i = 0; i < count; i++) {
        const float *row = logits + chosen[i] * CLASSES;
        double total = 0;
        for (int c = 0; c < CLASSES; c++)
            total += p[i * CLASSES + c] = exp((double)row[c]);
        for (int c = 0; c < CLASSES; c++)
            mean[c] += (p[i * CLASSES + c] /= total) / (double)count;
    }
    for (int64_t i = 0; i < count; i++)
        for (int c = 0; c < CLASSES; c++)
            sum += p[i * CLASSES + c] * log(p[i * CLASSES + c] / mean[c]) / (double)count;
    free(p);
    return exp(sum);
}

/* The Inception Score in three splits, in order and as torch-fidelity shuffles; copies; portions. */
static void test_evaluate(void **state)
{
    nl_context *context = test_context("cpu");
    uint8_t *file, *rgb = malloc(SAMPLES * SIDE * SIDE * 3);
    nl_inception *net = load_seeded(context, true, &file);
    float *features[NL_FEATURES] = {[NL_FEATURE_LOGITS] = calloc(SAMPLES * 1008, sizeof(float))};
    nl_metric_options options = NL_METRIC_DEFAULT;
    nl_evaluation found;
    int64_t order[SAMPLES];
    maker m = {.portion = 7, .stop = SAMPLES};
    nl_picture_source source = {.name = "made", .count = SAMPLES, .run = make, .user = &m};
    (void)state;
    for (int i = 0; i < SAMPLES; i++)
        sample(i, rgb + i * SIDE * SIDE * 3);
    assert_ok(context,
              nl_inception_run(net, options.preprocessing, rgb, SAMPLES, SIDE, SIDE, features));
    options.wanted[NL_METRIC_IS] = true;
    options.is_split = 9; /* 9, 9, 3 */
    for (int shuffled = 0; shuffled < 2; shuffled++) {
        options.is_shuffled = shuffled;
        options.is_splits = 4; /* of 21: from 0, 5, 10, 15 on */
        const int64_t begins[2][5] = {{0, 9, 18, 21}, {0, 5, 10, 15, 21}};
        double expected = 0;
        int splits = shuffled ? 4 : 3;
        for (int64_t i = 0; i < SAMPLES; i++)
            order[i] = i;
        if (shuffled)
            assert_ok(context, nl_numpy_permutation(context, 2020, SAMPLES, order));
        for (int s = 0; s < splits; s++)
            expected += score_of(features[NL_FEATURE_LOGITS], order + begins[shuffled][s],
                                 begins[shuffled][s + 1] - begins[shuffled][s]) /
                        splits;
        assert_ok(context, nl_measure(net, &options, &source, NL_SOURCE_DIR "/docs", &found));
        assert_true(found.metrics[NL_METRIC_IS].known);
        assert_false(found.metrics[NL_METRIC_FID].known);
        if (!(fabs(found.metrics[NL_METRIC_IS].value / expected - 1) < 1e-5))
            fail_msg("%.9g, expected %.9g", found.metrics[NL_METRIC_IS].value, expected);
        assert_int_equal(found.samples, SAMPLES);
        assert_int_equal(found.repeated, 0);
        m.portion = 5;
    }
    m.copy = 20;
    assert_ok(context, nl_measure(net, &options, &source, NL_SOURCE_DIR "/docs", &found));
    assert_int_equal(found.repeated, 1);
    m.stop = 20; /* one picture does not come */
    assert_int_equal(nl_measure(net, &options, &source, NL_SOURCE_DIR "/docs", &found),
                     NL_ERROR_INTERNAL);
    nl_inception_destroy(net);
    free(features[NL_FEATURE_LOGITS]);
    free(file);
    free(rgb);
    nl_context_destroy(context);
}

/* ---- The same metrics on every device, with every batch and precision */

/* An archive of `count` other pictures than the samples. */
static void write_reference(const char *path, int64_t count)
{
    nl_context *context = test_context(NULL);
    nl_npz *npz;
    bool finished;
    uint8_t rgb[SIDE * SIDE * 3];
    assert_ok(context, nl_npz_open(context,
                                   &(nl_npz_options){.path = path,
                                                     .count = count,
                                                     .height = SIDE,
                                                     .width = SIDE,
                                                     .parameters = "{}",
                                                     .force = true},
                                   &npz));
    for (int64_t i = 0; i < count; i++) {
        sample(1000000 + i, rgb);
        for (int k = 0; k < SIDE * SIDE * 3; k++)
            rgb[k] = (uint8_t)(rgb[k] * 7 / 8 + 16);
        assert_ok(context, nl_npz_write(npz, i, 0, rgb));
    }
    assert_ok(context, nl_npz_close(&npz, &finished));
    assert_true(finished);
    nl_core_context_destroy(context);
}

/* "late": the CPU as a device that queues. */
static void evaluate_on(const char *device, nl_precision precision, int64_t portion, int64_t count,
                        nl_feature feature, const char *reference, nl_evaluation *found)
{
    bool is_late = !strcmp(device, "late");
    nl_context_options on = {.device = is_late ? "cpu" : device, .dtype = "f32"};
    nl_context *context;
    uint8_t *file;
    assert_int_equal(nl_context_create(&on, &context), NL_OK);
    nl_ops ops = *context->device->ops;
    ops.download_start = late_start;
    ops.download_wait = late_wait;
    if (is_late)
        context->device->ops = &ops;
    nl_inception *net = load_seeded(context, true, &file);
    nl_metric_options options = NL_METRIC_DEFAULT;
    maker m = {.portion = portion, .stop = count};
    nl_picture_source source = {.name = "made", .count = count, .run = make, .user = &m};
    options.feature = feature;
    options.kid_subset_size = count / 2;
    for (int metric = 0; metric < NL_METRIC_FID_INFINITY; metric++)
        options.wanted[metric] = true;
    options.wanted[NL_METRIC_SFID] = !test_on_cpu();
    assert_ok(context, nl_inception_set_precision(net, precision));
    assert_ok(context, nl_measure(net, &options, &source, reference, found));
    nl_inception_destroy(net);
    free(file);
    nl_context_destroy(context);
}

/* Relative difference to what the CPU finds: at most 1e-3 in the precisions that eval takes by itself; fp16, which moved sFID
 * by 1.0e-3 here, is a user's choice. Pictures are enough for covariances of full rank, without which roots of
 * rounding errors are added up: on a CPU, where they take long, of 64 numbers and without sFID. */
static void test_devices(void **state)
{
    static const struct run {
        nl_precision precision;
        int64_t portion;
        double limit;
    } runs[] = {{NL_PRECISION_FP32, PORTION, 1e-3},
                {NL_PRECISION_FP32, 11, 1e-3},
                {NL_PRECISION_TF32, PORTION, 1e-3},
                {NL_PRECISION_FP16, PORTION, 3e-3}};
    static const nl_metric held[] = {NL_METRIC_FID, NL_METRIC_SFID, NL_METRIC_IS};
    const char *reference = "inception-reference.npz";
    int64_t count = test_on_cpu() ? 96 : 2304;
    nl_feature feature = test_on_cpu() ? NL_FEATURE_POOL_64 : NL_FEATURE_POOL_192;
    nl_evaluation expected, found;
    (void)state;
    test_need_values();
    nl_context_destroy(test_context(test_device())); /* ends the program where there is none */
    write_reference(reference, count);
    evaluate_on("cpu", NL_PRECISION_FP32, PORTION, count, feature, reference, &expected);
    if (test_on_cpu()) {
        evaluate_on("late", NL_PRECISION_FP32, 11, count, feature, reference, &found);
        double e = expected.metrics[NL_METRIC_FID].value, f = found.metrics[NL_METRIC_FID].value;
        assert_true(fabs(f - e) <= 1e-9 * e);
        assert_true(found.metrics[NL_METRIC_KID].value == expected.metrics[NL_METRIC_KID].value);
        e = expected.metrics[NL_METRIC_IS].value;
        assert_true(e > 0 && fabs(found.metrics[NL_METRIC_IS].value - e) <= 1e-5 * e);
    }
    for (int r = 0; !test_on_cpu() && r < NL_COUNT(runs); r++) {
        evaluate_on(test_device(), runs[r].precision, runs[r].portion, count, feature, reference,
                    &found);
        print_message("%s %s, batches of %d, against the CPU's:", test_device(),
                      nl_precision_names[runs[r].precision], (int)runs[r].portion);
        for (int m = 0; m < NL_METRIC_FID_INFINITY; m++)
            if (found.metrics[m].known)
                print_message(" %s %.6g %+.1e", nl_metric_names[m], expected.metrics[m].value,
                              found.metrics[m].value / expected.metrics[m].value - 1);
        print_message("\n");
        for (int h = 0; h < 3; h++) {
            double e = expected.metrics[held[h]].value, f = found.metrics[held[h]].value;
            assert_true(expected.metrics[held[h]].known && found.metrics[held[h]].known);
            assert_true(e > 0 && fabs(f - e) <= runs[r].limit * e);
        }
    }
    assert_int_equal(remove(reference), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {

        cmocka_unit_test(test_partial),    cmocka_unit_test(test_other_files),
        cmocka_unit_test(test_memory),     cmocka_unit_test(test_complete),
        cmocka_unit_test(test_queue),      cmocka_unit_test(test_queue_of_several_shapes),
        cmocka_unit_test(test_evaluate),   cmocka_unit_test(test_devices),
        cmocka_unit_test(test_queue_sums), cmocka_unit_test(test_resized),
        cmocka_unit_test(test_features),
    };
    return test_run(tests, 2, NULL, NULL);
}
