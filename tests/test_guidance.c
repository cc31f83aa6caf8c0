/* SPDX-License-Identifier: MIT */
/* Classifier-free guidance: what the network is asked, and what is made of its answers. */
#include "stand_in.h"

enum { CHANNELS = 4, SIZE = CHANNELS * 2 * 3, BATCH = 3, NULL_CLASS = 9 };
static const char *const devices[] = {"reference", NULL}; /* NULL: the device of the tests */
static const int labels[] = {2, 5, 7, NULL_CLASS, NULL_CLASS, NULL_CLASS};

/* f(x, t, label) = sin(x + label) + t; channels after the first four: cos(x + label) - t. Takes a tensor
 * of its own from the arena, as a network does for its conditioning. */
typedef struct labelled_network {
    nl_device *device;
    int calls;
    int64_t batch, t_count; /* of the last call */
    bool bad_call;
} labelled_network;

static float expected_output(float x, float t, int label, bool second_half)
{
    return second_half ? cosf(x + (float)label) - t : sinf(x + (float)label) + t;
}

static nl_status predict(void *user, const nl_tensor *x, const float *t, int64_t t_count,
                         const float *s, const nl_tensor *class, const nl_tensor *prediction)
{
    labelled_network *network = user;
    nl_device *device = network->device;
    nl_status status = NL_OK;
    int64_t batch = x->shape[0], outputs = nl_tensor_count(prediction) / batch;
    float *input = malloc((size_t)nl_tensor_bytes(x));
    float *output = malloc((size_t)nl_tensor_bytes(prediction));
    int32_t label[2 * BATCH];
    int64_t mark = nl_arena_mark(device);
    nl_tensor conditioning;
    (void)s;
    network->calls++;
    network->batch = batch;
    network->t_count = t_count;
    network->bad_call |= class->shape[0] != batch || prediction->shape[0] != batch ||
                         (t_count != 1 && t_count != batch);
    NL_TRY(nl_arena_tensor(device, NL_F32, 2, (int64_t[]){t_count, 100}, &conditioning));
    if (device->measuring)
        goto cleanup;
    NL_TRY(device->ops->download(device, input, x->data, nl_tensor_bytes(x)));
    NL_TRY(device->ops->download(device, label, class->data, batch * (int64_t)sizeof(*label)));
    for (int64_t image = 0; image < batch; image++)
        for (int64_t i = 0; i < outputs; i++)
            output[image * outputs + i] =
                expected_output(input[image * SIZE + i % SIZE], t[t_count > 1 ? image : 0],
                                label[image], i >= SIZE);
    NL_TRY(device->ops->upload(device, prediction->data, output, nl_tensor_bytes(prediction)));
cleanup:
    nl_arena_release(device, mark);
    free(input);
    free(output);
    return status;
}

typedef struct guidance_case {
    nl_context *context;
    nl_device *device;
    labelled_network network;
    nl_guidance guidance;
    nl_tensor x;
    float input[BATCH * SIZE];
} guidance_case;

static void set_up(guidance_case *f, const char *device_name)
{
    nl_context *context = test_context(device_name ? device_name : test_device());
    nl_device *device = context->device;
    *f = (guidance_case){.context = context, .device = device, .network = {.device = device}};
    assert_ok(context, nl_arena_reserve(device, 1 << 16));
    for (int i = 0; i < BATCH * SIZE; i++)
        f->input[i] = 0.1f * (float)i - 2;
    assert_ok(context,
              nl_arena_tensor(device, NL_F32, 4, (int64_t[]){BATCH, CHANNELS, 2, 3}, &f->x));
    assert_ok(context, device->ops->upload(device, f->x.data, f->input, nl_tensor_bytes(&f->x)));
    f->guidance =
        (nl_guidance){.device = device, .network = predict, .user = &f->network, .scale = 1};
    assert_ok(context,
              nl_arena_tensor(device, NL_I32, 1, (int64_t[]){2 * BATCH}, &f->guidance.labels));
    assert_ok(context,
              device->ops->upload(device, f->guidance.labels.data, labels, sizeof(labels)));
}

/* Evaluates at t and compares; guided[image] says which images are guided. */
static void check(guidance_case *f, const float *t, const bool *guided, int output_channels,
                  int64_t batch, int64_t t_count)
{
    nl_context *context = f->context;
    nl_device *device = f->device;
    const nl_guidance *guidance = &f->guidance;
    int outputs = output_channels * SIZE / CHANNELS;
    int channels = guidance->channels > 0 ? guidance->channels : CHANNELS;
    float result[BATCH * 2 * SIZE], expected[BATCH * 2 * SIZE];
    int64_t mark = nl_arena_mark(device);
    nl_tensor prediction;
    nl_model_function model = nl_guidance_model(&f->guidance);
    for (int i = 0; i < BATCH * outputs; i++) {
        int image = i / outputs, place = i % outputs;
        float x = f->input[image * SIZE + place % SIZE];
        float c = expected_output(x, t[image], labels[image], place >= SIZE);
        float u = expected_output(x, t[image], NULL_CLASS, place >= SIZE);
        bool here = guided[image] && place / (SIZE / CHANNELS) < channels;
        expected[i] = here ? u + (float)guidance->scale * (c - u) : c;
    }
    assert_ok(context, nl_arena_tensor(device, NL_F32, 4, (int64_t[]){BATCH, output_channels, 2, 3},
                                       &prediction));
    int64_t before = nl_arena_mark(device);
    assert_ok(context, model.call(model.user, &f->x, t, NULL, &prediction));
    assert_int_equal(nl_arena_mark(device), before);
    assert_ok(context,
              device->ops->download(device, result, prediction.data, nl_tensor_bytes(&prediction)));
    assert_close(result, expected, BATCH * outputs, 1e-6);
    assert_false(f->network.bad_call);
    assert_int_equal(f->network.batch, batch);
    assert_int_equal(f->network.t_count, t_count);
    nl_arena_release(device, mark);
}

static const bool all[] = {true, true, true}, none[] = {false, false, false};
static const float same[] = {0.5f, 0.5f, 0.5f};

static void test_one_batch_of_both(void **state)
{
    (void)state;
    for (int d = 0; d < NL_COUNT(devices); d++) {
        guidance_case f;
        set_up(&f, devices[d]);
        f.guidance.scale = 3;
        check(&f, same, all, CHANNELS, 2 * BATCH, 1);
        assert_int_equal(f.network.calls, 1);
        nl_context_destroy(f.context);
    }
}

static void test_scale_one_is_conditional(void **state)
{
    (void)state;
    guidance_case f;
    set_up(&f, "reference");
    check(&f, same, none, CHANNELS, BATCH, 1);
    check(&f, same, none, 2 * CHANNELS, BATCH, 1);
    f.guidance.scale = 0; /* unconditional */
    check(&f, same, all, CHANNELS, 2 * BATCH, 1);
    nl_context_destroy(f.context);
}

static void test_three_channels(void **state)
{
    (void)state;
    for (int d = 0; d < NL_COUNT(devices); d++) {
        guidance_case f;
        set_up(&f, devices[d]);
        f.guidance.scale = 4;
        f.guidance.channels = 3;
        check(&f, same, all, CHANNELS, 2 * BATCH, 1);
        check(&f, same, all, 2 * CHANNELS, 2 * BATCH, 1);
        nl_context_destroy(f.context);
    }
}

/* The variance channels are the conditional ones, also where more channels are asked for than there are. */
static void test_variance_is_not_guided(void **state)
{
    (void)state;
    guidance_case f;
    set_up(&f, "reference");
    f.guidance.scale = 2;
    check(&f, same, all, 2 * CHANNELS, 2 * BATCH, 1);
    f.guidance.channels = CHANNELS;
    check(&f, same, all, 2 * CHANNELS, 2 * BATCH, 1);
    nl_context_destroy(f.context);
}

static void test_interval(void **state)
{
    (void)state;
    guidance_case f;
    set_up(&f, "reference");
    f.guidance.scale = 2;
    f.guidance.low = 0.25;
    f.guidance.high = 0.75;
    static const float low[] = {0.25f, 0.25f, 0.25f}, high[] = {0.75f, 0.75f, 0.75f};
    static const float below[] = {0.24f, 0.24f, 0.24f}, above[] = {0.76f, 0.76f, 0.76f};
    static const float mixed[] = {0.1f, 0.5f, 0.9f}, outside[] = {0.1f, 0.2f, 0.9f};
    check(&f, low, all, CHANNELS, 2 * BATCH, 1);
    check(&f, high, all, CHANNELS, 2 * BATCH, 1);
    check(&f, below, none, CHANNELS, BATCH, 1);
    check(&f, above, none, CHANNELS, BATCH, 1);
    check(&f, mixed, (bool[]){false, true, false}, CHANNELS, 2 * BATCH, 2 * BATCH);
    check(&f, mixed, (bool[]){false, true, false}, 2 * CHANNELS, 2 * BATCH, 2 * BATCH);
    check(&f, outside, none, CHANNELS, BATCH, BATCH);
    f.guidance.low = f.guidance.high = 0; /* everywhere */
    check(&f, mixed, all, CHANNELS, 2 * BATCH, 2 * BATCH);
    nl_context_destroy(f.context);
}

/* Both ends belong to the interval wherever they are on a grid of steps, although the network's times are rounded to
 * single precision; the next time of the finest grid is outside. */
static void test_ends_of_intervals(void **state)
{
    (void)state;
    guidance_case f;
    set_up(&f, "reference");
    f.guidance.scale = 2;
    for (int steps = 1; steps <= 60; steps++)
        for (int k = 0; k <= steps; k++) {
            double end = (double)k / steps, finest = 1e-5;
            float inside[BATCH] = {(float)end, (float)(k * (1.0 / steps)), (float)end};
            float before[BATCH] = {(float)(end - finest), (float)(end - finest), (float)end};
            float after[BATCH] = {(float)end, (float)(end + finest), (float)(end + finest)};
            f.guidance.low = end;
            f.guidance.high = 2;
            check(&f, inside, all, CHANNELS, 2 * BATCH, inside[0] == inside[1] ? 1 : 2 * BATCH);
            check(&f, before, (bool[]){false, false, true}, CHANNELS, 2 * BATCH, 2 * BATCH);
            f.guidance.low = -1;
            f.guidance.high = end;
            check(&f, inside, all, CHANNELS, 2 * BATCH, inside[0] == inside[1] ? 1 : 2 * BATCH);
            check(&f, after, (bool[]){true, false, false}, CHANNELS, 2 * BATCH, 2 * BATCH);
        }
    /* timesteps of a diffusion are whole numbers */
    f.guidance.low = 999998;
    f.guidance.high = 999999;
    check(&f, (float[]){999997, 999998, 1000000}, (bool[]){false, true, false}, CHANNELS, 2 * BATCH,
          2 * BATCH);
    nl_context_destroy(f.context);
}

/* ---- Another network as guide */

static int guide_calls;

static float guide_output(float x, float t, int label, bool second_half)
{
    return second_half ? 7 - x : cosf(x) * (float)label - t;
}

/* The second network: the same arguments as `predict`, other values. */
static nl_status predict_badly(void *user, const nl_tensor *x, const float *t, int64_t t_count,
                               const float *s, const nl_tensor *class, const nl_tensor *prediction)
{
    labelled_network *network = user, unseen = {.device = network->device};
    nl_device *device = network->device;
    int64_t batch = x->shape[0], outputs = nl_tensor_count(prediction) / batch;
    float input[BATCH * SIZE], output[BATCH * 2 * SIZE];
    int32_t label[BATCH];
    guide_calls++;
    nl_status status = predict(&unseen, x, t, t_count, s, class, prediction);
    network->bad_call |= unseen.bad_call;
    if (status != NL_OK || device->measuring)
        return status;
    NL_TRY(device->ops->download(device, input, x->data, nl_tensor_bytes(x)));
    NL_TRY(device->ops->download(device, label, class->data, batch * (int64_t)sizeof(*label)));
    for (int64_t i = 0; i < batch * outputs; i++)
        output[i] =
            guide_output(input[i / outputs * SIZE + i % outputs % SIZE],
                         t[t_count > 1 ? i / outputs : 0], label[i / outputs], i % outputs >= SIZE);
    NL_TRY(device->ops->upload(device, prediction->data, output, nl_tensor_bytes(prediction)));
cleanup:
    return status;
}

static void evaluate(guidance_case *f, const float *t, int output_channels, float *result)
{
    nl_device *device = f->device;
    int64_t mark = nl_arena_mark(device);
    nl_tensor prediction;
    nl_model_function model = nl_guidance_model(&f->guidance);
    assert_ok(f->context, nl_arena_tensor(device, NL_F32, 4,
                                          (int64_t[]){BATCH, output_channels, 2, 3}, &prediction));
    int64_t before = nl_arena_mark(device);
    assert_ok(f->context, model.call(model.user, &f->x, t, NULL, &prediction));
    assert_int_equal(nl_arena_mark(device), before);
    assert_ok(f->context,
              device->ops->download(device, result, prediction.data, nl_tensor_bytes(&prediction)));
    assert_false(f->network.bad_call);
    nl_arena_release(device, mark);
}

/* v + (c - 1)(v - u) + (w - 1)(v - g), the first term on `channels`, the second on all, of the variance none. */
static void check_guided(guidance_case *f, const float *t, int output_channels)
{
    const nl_guidance *guidance = &f->guidance;
    int outputs = output_channels * SIZE / CHANNELS;
    int channels = guidance->channels > 0 ? guidance->channels : CHANNELS;
    float result[BATCH * 2 * SIZE], expected[BATCH * 2 * SIZE];
    for (int i = 0; i < BATCH * outputs; i++) {
        int image = i / outputs, place = i % outputs, channel = place / (SIZE / CHANNELS);
        bool second = place >= SIZE;
        float x = f->input[image * SIZE + place % SIZE], at = t[image];
        double v = expected_output(x, at, labels[image], second);
        double u = expected_output(x, at, NULL_CLASS, second);
        double g = guide_output(x, at, labels[image], second), y = v;
        if (channel < channels && nl_guided_between(guidance->low, guidance->high, at))
            y += (guidance->scale - 1) * (v - u);
        if (channel < CHANNELS && nl_guided_between(guidance->guide_low, guidance->guide_high, at))
            y += (guidance->guide_scale - 1) * (v - g);
        expected[i] = (float)y;
    }
    evaluate(f, t, output_channels, result);
    assert_close(result, expected, BATCH * outputs, 1e-6);
}

static void test_guide(void **state)
{
    (void)state;
    static const float mixed[] = {0.1f, 0.5f, 0.9f};
    for (int d = 0; d < NL_COUNT(devices); d++)
        for (int both = 0; both < 2; both++)
            for (int output_channels = CHANNELS; output_channels <= 2 * CHANNELS;
                 output_channels += CHANNELS) {
                guidance_case f;
                set_up(&f, devices[d]);
                f.guidance.guide = predict_badly;
                f.guidance.guide_scale = 2.25;
                f.guidance.scale = both ? 3 : 1;
                check_guided(&f, same, output_channels);
                f.guidance.channels = 3; /* of class guidance alone */
                check_guided(&f, mixed, output_channels);
                f.guidance.guide_low = 0.4;
                f.guidance.guide_high = 0.95;
                check_guided(&f, mixed, output_channels);
                f.guidance.low = 0.05;
                f.guidance.high = 0.6;
                check_guided(&f, mixed, output_channels);
                f.guidance.guide_scale = 0.5; /* half way to the guide */
                check_guided(&f, mixed, output_channels);
                nl_context_destroy(f.context);
            }
}

/* A scale of 1, or a time outside of its interval: the guide is not asked, and the bits are those without it. A guide
 * that is the network itself changes nothing, bit by bit. */
static void test_no_guide(void **state)
{
    (void)state;
    float plain[BATCH * SIZE], other[BATCH * SIZE];
    guidance_case f;
    set_up(&f, NULL);
    for (double scale = 1; scale <= 3; scale += 2) {
        f.guidance.scale = scale;
        f.guidance.guide = NULL;
        evaluate(&f, same, CHANNELS, plain);
        guide_calls = 0;
        f.guidance.guide = predict_badly;
        f.guidance.guide_scale = 1;
        evaluate(&f, same, CHANNELS, other);
        assert_memory_equal(plain, other, sizeof(plain));
        f.guidance.guide_scale = 4;
        f.guidance.guide_low = 0.6;
        f.guidance.guide_high = 0.7;
        evaluate(&f, same, CHANNELS, other);
        assert_memory_equal(plain, other, sizeof(plain));
        assert_int_equal(guide_calls, 0);
        f.guidance.guide_low = f.guidance.guide_high = 0;
        evaluate(&f, same, CHANNELS, other);
        assert_int_equal(guide_calls, 1);
        assert_memory_not_equal(plain, other, sizeof(plain));
        f.guidance.guide = predict;
        evaluate(&f, same, CHANNELS, other);
        if (scale == 1)
            assert_memory_equal(plain, other, sizeof(plain));
        else /* a sum of three */
            assert_close(other, plain, BATCH * SIZE, 1e-6);
    }
    nl_context_destroy(f.context);
}

static nl_status run_dopri5(nl_device *device, nl_sampler *sampler, const int32_t *class,
                            int64_t batch, const float *start, float *result)
{
    nl_status status = NL_OK;
    int64_t mark = nl_arena_mark(device), evaluations[BATCH] = {0};
    labelled_network network = {.device = device};
    nl_guidance guidance = {.device = device,
                            .network = predict,
                            .user = &network,
                            .scale = 2,
                            .low = 0.13,
                            .high = 0.29,
                            .guide = predict_badly,
                            .guide_scale = 1.5,
                            .guide_low = 0.2,
                            .guide_high = 0.4};
    nl_tensor x;
    NL_TRY(nl_arena_tensor(device, NL_I32, 1, (int64_t[]){2 * batch}, &guidance.labels));
    NL_TRY(nl_arena_tensor(device, NL_F32, 4, (int64_t[]){batch, CHANNELS, 2, 3}, &x));
    NL_TRY(device->ops->upload(device, guidance.labels.data, class,
                               nl_tensor_bytes(&guidance.labels)));
    NL_TRY(device->ops->upload(device, x.data, start, nl_tensor_bytes(&x)));
    nl_sample_job job = {
        .device = device, .model = nl_guidance_model(&guidance), .evaluations = evaluations};
    NL_TRY(nl_sampler_run(sampler, &job, &x));
    NL_TRY(device->ops->download(device, result, x.data, nl_tensor_bytes(&x)));
    assert_int_equal(network.calls >= evaluations[0], true);
cleanup:
    nl_arena_release(device, mark);
    return status;
}

/* dopri5 takes each image through the interval at times of its own, with the memory that was measured. */
static void test_dopri5_through_an_interval(void **state)
{
    (void)state;
    nl_context *context = test_context("reference");
    nl_device *device = context->device, measuring;
    nl_sampler *sampler;
    nl_sampler_options options;
    float start[BATCH * SIZE], together[BATCH * SIZE], alone[SIZE];
    for (int i = 0; i < BATCH * SIZE; i++)
        start[i] = sinf((float)i) * (float)(1 + i / SIZE * 4);
    nl_sampler_options_init(&options);
    options.method = NL_METHOD_DOPRI5;
    assert_ok(context, nl_sampler_create(context, &options, &sampler));
    nl_device_measuring(device, &measuring);
    assert_ok(context, run_dopri5(&measuring, sampler, labels, BATCH, start, together));
    assert_ok(context, nl_arena_reserve(device, measuring.arena_peak));
    assert_ok(context, run_dopri5(device, sampler, labels, BATCH, start, together));
    assert_int_equal(device->arena_peak, measuring.arena_peak);
    for (int image = 0; image < BATCH; image++) {
        int32_t pair[] = {labels[image], NULL_CLASS};
        assert_ok(context, run_dopri5(device, sampler, pair, 1, start + image * SIZE, alone));
        assert_memory_equal(alone, together + image * SIZE, sizeof(alone));
    }
    nl_sampler_destroy(sampler);
    nl_context_destroy(context);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_one_batch_of_both),
        cmocka_unit_test(test_scale_one_is_conditional),
        cmocka_unit_test(test_three_channels),
        cmocka_unit_test(test_variance_is_not_guided),
        cmocka_unit_test(test_interval),
        cmocka_unit_test(test_ends_of_intervals),
        cmocka_unit_test(test_guide),
        cmocka_unit_test(test_no_guide),
        cmocka_unit_test(test_dopri5_through_an_interval),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
