/* SPDX-License-Identifier: MIT */
/* From classes to pictures on small random models: what a picture may and may not depend on, and what happens when
 * something goes wrong half way. */
#include "nl_test.h"

#include <unistd.h>

#include "nl_pipeline.h"
#include "random_model.h"

enum { SIZE = 16, CHANNELS = 3, CLASSES = 5, PIXELS = CHANNELS * SIZE * SIZE };

static char sit_path[] = "/tmp/nalagen_sit_XXXXXX", dit_path[] = "/tmp/nalagen_dit_XXXXXX";

static int make_models(void **state)
{
    (void)state;
    close(mkstemp(sit_path));
    close(mkstemp(dit_path));
    nl_context *context = test_context("cpu");
    const char *sit = RANDOM_SIT_WITH(", \"class_names\": [\"a\", \"b\", \"c\", \"d\", \"e\"]");
    assert_ok(context, random_model_write(context, sit, sit_path));
    assert_ok(context, random_model_write(context, RANDOM_DIT, dit_path));
    nl_context_destroy(context);
    return 0;
}

static int remove_models(void **state)
{
    (void)state;
    unlink(sit_path);
    unlink(dit_path);
    return 0;
}

typedef struct nl_album {
    const char *sampler; /* of the request, for messages */
    int count;
    int64_t index[16], evaluations[16];
    int label[16];
    float latents[16][PIXELS];
    uint8_t rgb[16][PIXELS];
    nl_status answer; /* of the callback, after `answer_at` pictures */
    int answer_at;
    int cancel_at_step, steps_seen; /* of the progress callback; 0: never */
    int64_t memory;                 /* most of the device's that was held, bytes */
} nl_album;

static nl_status keep(void *user, const nl_picture *picture)
{
    nl_album *album = user;
    int i = album->count++;
    assert_int_equal(picture->latent_shape[0], CHANNELS);
    assert_int_equal(picture->height, SIZE);
    album->index[i] = picture->index;
    album->label[i] = picture->label;
    album->evaluations[i] = picture->evaluations;
    memcpy(album->latents[i], picture->latents, sizeof(album->latents[i]));
    memcpy(album->rgb[i], picture->rgb, sizeof(album->rgb[i]));
    return album->answer_at == album->count ? album->answer : NL_OK;
}

static bool count_steps(void *user, const nl_progress *progress)
{
    nl_album *album = user;
    album->steps_seen += progress->step > 0 && !strcmp(progress->stage, "sampling");
    return !album->cancel_at_step || progress->step < album->cancel_at_step;
}

static nl_status load(nl_context_options *options, const char *path, nl_context **context,
                      nl_model **model)
{
    nl_status status = nl_context_create(options, context);
    if (status == NL_OK)
        status = nl_model_load(*context, &(nl_model_options){.path = path}, model);
    return status;
}

static const int labels[16] = {0, 1, 2, 3, 4, 5, 0, 1, 2, 3, 4, 5, 0, 1, 2, 3};

/* Runs a request in a context of its own. */
static nl_status run(nl_context_options options, const char *path, nl_request request,
                     nl_album *album)
{
    nl_context *context = NULL;
    nl_model *model = NULL;
    memset(album->latents, 0, sizeof(album->latents));
    album->count = album->steps_seen = 0;
    options.progress = count_steps;
    options.user = album;
    album->sampler = request.sampling.sampler ? request.sampling.sampler : "the default sampler";
    nl_status status = load(&options, path, &context, &model);
    assert_int_equal(status, NL_OK);
    if (!request.labels)
        request.labels = labels;
    status = nl_generate(model, &request, keep, album);
    if (status != NL_OK)
        assert_true(nl_last_error(context)[0] != '\0');
    album->memory = atomic_load(&context->memory_peak);
    nl_model_destroy(model);
    nl_context_destroy(context);
    return status;
}

#define REQUEST(...) ((nl_request){.sampling = {.cfg_scale = -1, .steps = 4}, __VA_ARGS__})
#define ON(n)        ((nl_context_options){.device = test_device(), .dtype = "f32", .threads = n})

static nl_album one, other;

/* The largest relative error of a picture's latents. */
static double worst_error(const nl_album *a, int first, const nl_album *b, int count)
{
    double worst = 0;
    for (int i = 0; i < count; i++) {
        double error = test_relative_error(a->latents[first + i], b->latents[i], PIXELS);
        if (!(error <= worst) && !isnan(worst)) /* NaN stays */
            worst = error;
    }
    return worst;
}

static void same_pictures(const nl_album *a, int first, const nl_album *b, int count)
{
    double error = worst_error(a, first, b, count);
    if (!(error <= 1e-5))
        fail_msg("%s: latents differ by %.3g, allowed 1e-5", a->sampler, error);
    for (int i = 0; i < count; i++) {
        assert_int_equal(a->index[first + i], b->index[i]);
        assert_int_equal(a->label[first + i], b->label[i]);
        for (int k = 0; k < PIXELS; k++)
            assert_true(abs(a->rgb[first + i][k] - b->rgb[i][k]) <= 1);
    }
}

static const char *const sit_samplers[] = {"euler", "midpoint", "heun",      "heun2",    "rk4",
                                           "ab2",   "dopri5",   "sde-euler", "sde-heun", NULL};
static const char *const dit_samplers[] = {"ddpm",         "ddim",  "dpmpp-2m",
                                           "dpmpp-2m-sde", "unipc", NULL};

/* The noise of `seed`, every element moved by one rounding of fp32, up or down. */
static const float *moved_noise(uint64_t seed, int count)
{
    static float noise[16][PIXELS];
    for (int i = 0; i < count; i++)
        for (int k = 0; k < PIXELS; k += 4) {
            float signs[4];
            nl_philox_normal4(seed, (uint64_t)i, NL_STREAM_NOISE, (uint64_t)k, noise[i] + k);
            nl_philox_normal4(seed + 1, (uint64_t)i, NL_STREAM_NOISE, (uint64_t)k, signs);
            for (int j = 0; j < 4; j++)
                noise[i][k + j] *= 1 + copysignf(0x1p-23f, signs[j]);
        }
    return noise[0];
}

/* Products may round otherwise in another batch. Where one rounding of the noise moves a picture by more than a few
 * roundings, the request is ill-posed and says nothing about batches: dopri5 at rtol 1e-2 here, which makes its last step as
 * long as an error estimate of 6e-7 says (2.5e-5). */
static void batch_does_not_matter(void **state)
{
    (void)state;
    for (int dit = 0; dit < 2; dit++)
        for (const char *const *name = dit ? dit_samplers : sit_samplers; *name; name++) {
            const char *path = dit ? dit_path : sit_path;
            bool dopri5 = !strcmp(*name, "dopri5");
            nl_request request = REQUEST(.count = 7, .batch = 1, .seed = 3);
            request.sampling.sampler = *name;
            request.sampling.steps = dopri5 ? 0 : 4;
            request.sampling.rtol = request.sampling.atol = dopri5 ? 3e-2 : 0;
            assert_int_equal(run(ON(1), path, request, &one), NL_OK);
            request.noise = moved_noise(3, 7);
            assert_int_equal(run(ON(1), path, request, &other), NL_OK);
            double condition = worst_error(&one, 0, &other, 7);
            if (!(condition > 0 && condition <= 2e-6))
                fail_msg("%s: a rounding of the noise moves latents by %.3g", *name, condition);
            request.noise = NULL;
            request.batch = 4;
            assert_int_equal(run(ON(2), path, request, &other), NL_OK);
            assert_int_equal(other.count, 7);
            print_message("%s: other batch %.2g, a rounding of the noise %.2g\n", *name,
                          worst_error(&one, 0, &other, 7), condition);
            same_pictures(&one, 0, &other, 7);
            for (int i = 0; i < 7; i++)
                assert_int_equal(one.evaluations[i], other.evaluations[i]);
            /* Pictures of one seed differ, and are no noise left as it was. */
            assert_true(test_relative_error(one.latents[0], one.latents[6], PIXELS) > 0.1);
        }
}

static void a_run_may_be_split(void **state)
{
    (void)state;
    assert_int_equal(run(ON(0), sit_path, REQUEST(.count = 6, .seed = 9), &one), NL_OK);
    nl_request rest = REQUEST(.count = 3, .seed = 9, .first_index = 3, .labels = labels + 3);
    assert_int_equal(run(ON(0), sit_path, rest, &other), NL_OK);
    same_pictures(&one, 3, &other, 3);
    rest.seed = 10;
    assert_int_equal(run(ON(0), sit_path, rest, &other), NL_OK);
    assert_true(test_relative_error(one.latents[3], other.latents[0], PIXELS) > 0.1);
}

/* Requests of several seeds may share a batch. */
static void a_picture_has_its_own_seed(void **state)
{
    (void)state;
    static const uint64_t seeds[5] = {9, 9, 2, 2, 9};
    for (int dit = 0; dit < 2; dit++) {
        const char *path = dit ? dit_path : sit_path;
        nl_request request = REQUEST(.count = 5, .batch = 4, .seed = 7, .seeds = seeds);
        request.sampling.sampler = dit ? "ddpm" : "sde-euler"; /* noise in every step */
        assert_int_equal(run(ON(2), path, request, &one), NL_OK);
        request.seeds = NULL;
        request.seed = 9;
        assert_int_equal(run(ON(2), path, request, &other), NL_OK);
        same_pictures(&one, 0, &other, 2);
        assert_true(test_relative_error(one.latents[2], other.latents[2], PIXELS) > 0.1);
        request.seed = 2;
        request.count = 2;
        request.first_index = 2;
        request.labels = labels + 2;
        assert_int_equal(run(ON(2), path, request, &other), NL_OK);
        same_pictures(&one, 2, &other, 2);
    }
}

/* A mixture begins at the one picture and ends at the other, bit for bit, with noise in every step too; between them noise
 * and class are what they ought to be. */
static void mixtures(void **state)
{
    (void)state;
    enum { COUNT = 4 };
    static float noise[COUNT][PIXELS], away[4];
    static const int of[COUNT] = {1, 1, 3, 1}, to[COUNT] = {1, 3, 3, CLASSES};
    static const char *const samplers[] = {"heun", "sde-euler", "ddpm", "dpmpp-2m-sde"};
    nl_mix mixes[COUNT];
    for (int k = 0; k < NL_COUNT(samplers); k++) {
        const char *path = k < 2 ? sit_path : dit_path;
        nl_request request = REQUEST(.count = COUNT, .batch = COUNT, .seed = 7, .labels = of);
        request.sampling.sampler = samplers[k];
        for (int end = 0; end < 2; end++) {
            for (int i = 0; i < COUNT; i++)
                mixes[i] = (nl_mix){.label = to[i], .seed = 12, .index = i, .part = end};
            request.mixes = NULL;
            request.seed = end ? 12 : 7;
            request.labels = end ? to : of;
            assert_int_equal(run(ON(2), path, request, &one), NL_OK);
            request.mixes = mixes;
            request.seed = 7;
            request.labels = of;
            assert_int_equal(run(ON(2), path, request, &other), NL_OK);
            assert_memory_equal(one.latents, other.latents, sizeof(one.latents));
            assert_int_equal(other.label[1], 1);
        }
    }
    /* half way: cos(45 degrees) of both, of one class, then with the same noise between two classes */
    nl_request request = REQUEST(.count = COUNT, .batch = 3, .seed = 7, .labels = of);
    for (int i = 0; i < COUNT; i++) {
        mixes[i] = (nl_mix){.label = of[i], .seed = 12, .index = 5, .part = 0.5};
        for (int k = 0; k < PIXELS; k += 4) {
            nl_philox_normal4(7, (uint64_t)i, NL_STREAM_NOISE, (uint64_t)k, noise[i] + k);
            nl_philox_normal4(12, 5, NL_STREAM_NOISE, (uint64_t)k, away);
            for (int j = 0; j < 4; j++)
                noise[i][k + j] = (float)((noise[i][k + j] + away[j]) * sqrt(0.5));
        }
    }
    request.mixes = mixes;
    assert_int_equal(run(ON(2), sit_path, request, &one), NL_OK);
    request.mixes = NULL;
    request.noise = noise[0];
    assert_int_equal(run(ON(2), sit_path, request, &other), NL_OK);
    same_pictures(&one, 0, &other, COUNT);
    request = REQUEST(.count = COUNT, .seed = 7, .labels = of, .mixes = mixes);
    for (int i = 0; i < COUNT; i++)
        mixes[i] = (nl_mix){.label = to[i], .seed = 7, .index = i, .part = 0.5};
    assert_int_equal(run(ON(2), sit_path, request, &one), NL_OK);
    request.mixes = NULL;
    assert_int_equal(run(ON(2), sit_path, request, &other), NL_OK);
    for (int i = 0; i < COUNT; i++)
        assert_true((test_relative_error(one.latents[i], other.latents[i], PIXELS) <= 1e-5) ==
                    (of[i] == to[i]));
    const nl_mix wrong[] = {{.label = -1},  {.label = CLASSES + 1}, {.index = -1},
                            {.part = -0.1}, {.part = 1.1},          {.part = NAN}};
    for (int i = 0; i < NL_COUNT(wrong); i++) {
        request.mixes = mixes;
        mixes[2] = wrong[i];
        assert_int_equal(run(ON(0), sit_path, request, &other), NL_ERROR_USAGE);
    }
    mixes[2] = mixes[1];
    request.noise = noise[0];
    assert_int_equal(run(ON(0), sit_path, request, &other), NL_ERROR_USAGE);
}

static void given_noise_is_drawn_noise(void **state)
{
    (void)state;
    static float noise[3][PIXELS];
    for (int i = 0; i < 3; i++)
        for (int k = 0; k < PIXELS; k += 4)
            nl_philox_normal4(8, (uint64_t)i, NL_STREAM_NOISE, (uint64_t)k, noise[i] + k);
    assert_int_equal(run(ON(0), sit_path, REQUEST(.count = 3, .seed = 8), &one), NL_OK);
    nl_request given = REQUEST(.count = 3, .seed = 77, .batch = 2, .noise = noise[0]);
    assert_int_equal(run(ON(0), sit_path, given, &other), NL_OK);
    same_pictures(&one, 0, &other, 3);
    noise[2][5] = NAN;
    assert_int_equal(run(ON(0), sit_path, given, &other), NL_ERROR_NOT_FINITE);
    assert_int_equal(other.count, 2);
}

static void guidance_acts(void **state)
{
    (void)state;
    nl_request request = REQUEST(.count = 2, .seed = 1);
    request.sampling.cfg_scale = 1;
    assert_int_equal(run(ON(0), sit_path, request, &one), NL_OK);
    request.sampling.cfg_scale = 3;
    assert_int_equal(run(ON(0), sit_path, request, &other), NL_OK);
    assert_true(test_relative_error(one.latents[0], other.latents[0], PIXELS) > 1e-3);
    request.sampling.cfg_interval[0] = 2; /* never */
    request.sampling.cfg_interval[1] = 3;
    assert_int_equal(run(ON(0), sit_path, request, &other), NL_OK);
    same_pictures(&one, 0, &other, 2);
    /* The null class is its own unconditional half. */
    request = REQUEST(.count = 1, .labels = (int[]){CLASSES});
    request.sampling.cfg_scale = 1;
    assert_int_equal(run(ON(0), sit_path, request, &one), NL_OK);
    request.sampling.cfg_scale = 7;
    assert_int_equal(run(ON(0), sit_path, request, &other), NL_OK);
    assert_close(one.latents[0], other.latents[0], PIXELS, 1e-4);
}

/* A part of the picture is another one, whatever the batch; the whole is what comes unasked; guided or not. */
static void parts_can_be_asked_for(void **state)
{
    (void)state;
    char path[] = "/tmp/nalagen_crop_XXXXXX";
    close(mkstemp(path));
    nl_context *context = test_context("cpu");
    assert_ok(context,
              random_model_write(context, RANDOM_SIT_WITH(", \"crop_conditioning\": true"), path));
    nl_context_destroy(context);
    nl_request request = REQUEST(.count = 3, .seed = 1);
    assert_int_equal(run(ON(0), path, request, &one), NL_OK);
    request.sampling.crop[0] = 1;
    assert_int_equal(run(ON(0), path, request, &other), NL_OK);
    same_pictures(&one, 0, &other, 3);
    assert_memory_equal(one.latents, other.latents, sizeof(one.latents));
    for (int i = 0; i < 3; i++) {
        request.sampling.crop[0] = 0.5;
        request.sampling.crop[i] = i ? 0.25 : 0.8;
        assert_int_equal(run(ON(0), path, request, &other), NL_OK);
        assert_true(test_relative_error(one.latents[0], other.latents[0], PIXELS) > 1e-3);
        one = other;
        request.batch = 1 + i;
        assert_int_equal(run(ON(0), path, request, &other), NL_OK);
        same_pictures(&one, 0, &other, 3);
    }
    const double wrong[][3] = {{1.1, 0, 0}, {-0.5, 0, 0}, {0.5, 0.26, 0}, {0.5, 0, -0.26},
                               {1, 0.1, 0}, {0, 0, 0.1},  {0.001, 0, 0},  {NAN, 0, 0}};
    for (int i = 0; i < NL_COUNT(wrong); i++) {
        memcpy(request.sampling.crop, wrong[i], sizeof(wrong[i]));
        assert_int_equal(run(ON(0), path, request, &other), NL_ERROR_USAGE);
    }
    request = REQUEST(.count = 1);
    request.sampling.crop[0] = 0.5;
    assert_int_equal(run(ON(0), sit_path, request, &other), NL_ERROR_USAGE);
    unlink(path);
}

/* middle + w (head - middle): what one step of Euler makes is linear in w; class guidance works on it, half by half. */
static void guidance_from_within(void **state)
{
    (void)state;
    static nl_album made[3];
    char path[] = "/tmp/nalagen_middle_XXXXXX";
    close(mkstemp(path));
    nl_context *context = test_context("cpu");
    assert_ok(context, random_model_write(context, RANDOM_SIT_WITH(", \"middle_head\": 1"), path));
    nl_context_destroy(context);
    for (int guided = 0; guided < 2; guided++) {
        nl_request request = REQUEST(.count = 3, .seed = 1);
        request.sampling.sampler = "euler";
        request.sampling.steps = 1;
        request.sampling.cfg_scale = guided ? 2 : 1;
        for (int i = 0; i < 3; i++) {
            request.sampling.internal_guidance = 1 + i;
            assert_int_equal(run(ON(0), path, request, &made[i]), NL_OK);
        }
        request.sampling.internal_guidance = 0; /* none, as 1 */
        assert_int_equal(run(ON(0), path, request, &other), NL_OK);
        assert_memory_equal(made[0].latents, other.latents, sizeof(other.latents));
        assert_int_equal(made[1].evaluations[0], other.evaluations[0]);
        assert_true(test_relative_error(made[1].latents[0], made[0].latents[0], PIXELS) > 1e-3);
        for (int i = 0; i < 3; i++)
            for (int j = 0; j < PIXELS; j++)
                one.latents[i][j] = 2 * made[1].latents[i][j] - made[0].latents[i][j];
        for (int i = 0; i < 3; i++)
            assert_close(made[2].latents[i], one.latents[i], PIXELS, 1e-5);
        request.sampling.internal_guidance = 2;
        request.batch = 1;
        assert_int_equal(run(ON(0), path, request, &other), NL_OK);
        same_pictures(&made[1], 0, &other, 3);
    }
    nl_request request = REQUEST(.count = 1);
    const double wrong[] = {-1, 2000, NAN};
    for (int i = 0; i < NL_COUNT(wrong); i++) {
        request.sampling.internal_guidance = wrong[i];
        assert_int_equal(run(ON(0), path, request, &other), NL_ERROR_USAGE);
    }
    request.sampling.internal_guidance = 1.4;
    assert_int_equal(run(ON(0), sit_path, request, &other), NL_ERROR_USAGE);
    unlink(path);
}

static void cancelling_keeps_what_is_done(void **state)
{
    (void)state;
    one.cancel_at_step = 3;
    assert_int_equal(run(ON(0), sit_path, REQUEST(.count = 4, .batch = 1), &one), NL_CANCELLED);
    assert_int_equal(one.count, 0);
    assert_int_equal(one.steps_seen, 3);
    one.cancel_at_step = 0;
    one.answer = NL_ERROR_WRITE;
    one.answer_at = 2;
    nl_context *context = NULL;
    nl_model *model = NULL;
    nl_context_options options = ON(0);
    assert_int_equal(load(&options, sit_path, &context, &model), NL_OK);
    nl_request request = REQUEST(.count = 4, .batch = 1, .labels = labels);
    one.count = 0;
    assert_int_equal(nl_generate(model, &request, keep, &one), NL_ERROR_WRITE);
    assert_int_equal(one.count, 2);
    nl_cancel(context);
    one.count = one.answer_at = 0;
    assert_int_equal(nl_generate(model, &request, keep, &one), NL_CANCELLED);
    assert_int_equal(one.count, 0);
    /* And the model goes on as if nothing had been. */
    assert_int_equal(nl_generate(model, &request, keep, &one), NL_OK);
    nl_model_destroy(model);
    nl_context_destroy(context);
    assert_int_equal(run(ON(0), sit_path, request, &other), NL_OK);
    same_pictures(&one, 0, &other, 4);
}

/* What a device takes before it has any work. */
static int64_t device_memory(void)
{
    nl_context *context = NULL;
    nl_context_options options = ON(0);
    if (test_on_cpu())
        return 0;
    assert_int_equal(nl_context_create(&options, &context), NL_OK);
    int64_t bytes = atomic_load(&context->memory_used);
    nl_context_destroy(context);
    return bytes;
}

static void memory_only_sets_the_batch(void **state)
{
    (void)state;
    enum { BUDGETS = 24 };
    int refused = 0, smaller = 0;
    assert_int_equal(run(ON(0), sit_path, REQUEST(.count = 8, .batch = 1), &one), NL_OK);
    int64_t least = device_memory() + (one.memory - device_memory()) / 2; /* not enough for one */
    assert_int_equal(run(ON(0), sit_path, REQUEST(.count = 8, .batch = 8), &one), NL_OK);
    int steps_whole = one.steps_seen;
    for (int i = 0; i <= BUDGETS; i++) {
        int64_t budget = least + (one.memory - least) * i / BUDGETS;
        nl_context *context = NULL;
        nl_model *model = NULL;
        nl_context_options options = ON(0);
        options.max_memory = budget;
        options.progress = count_steps;
        options.user = &other;
        other.count = other.steps_seen = 0;
        nl_request request = REQUEST(.count = 8, .batch = 8, .labels = labels);
        nl_status status = load(&options, sit_path, &context, &model);
        if (status == NL_OK)
            status = nl_generate(model, &request, keep, &other);
        if (status == NL_OK) {
            same_pictures(&one, 0, &other, 8);
            smaller += other.steps_seen > steps_whole;
        } else {
            assert_int_equal(status, NL_ERROR_MEMORY);
            assert_int_equal(smaller, 0);
            assert_non_null(strstr(nl_last_error(context), "need"));
            refused++;
        }
        assert_true(atomic_load(&context->memory_peak) <= budget);
        nl_model_destroy(model);
        nl_context_destroy(context);
    }
    assert_true(refused > 0 && smaller > 0);
}

/* Every allocation fails once: a memory error or a smaller batch, no leak (ASan), no wrong picture. */
static void every_allocation_may_fail(void **state)
{
    (void)state;
    static const nl_mix mixes[3] = {{.seed = 1, .part = 0.5}, {.part = 0.5}, {.part = 1}};
    assert_int_equal(run(ON(1), sit_path, REQUEST(.count = 3, .batch = 3, .mixes = mixes), &one),
                     NL_OK);
    bool whole = false;
    for (int64_t n = 1; !whole; n++) {
        nl_context *context = NULL;
        nl_model *model = NULL;
        nl_context_options options = ON(1);
        assert_int_equal(nl_context_create(&options, &context), NL_OK);
        int64_t before = atomic_load(&context->allocations);
        context->fail_allocation = before + n;
        other.count = 0;
        nl_request request = REQUEST(.count = 3, .batch = 3, .labels = labels, .mixes = mixes);
        nl_status status = nl_model_load(context, &(nl_model_options){.path = sit_path}, &model);
        if (status == NL_OK)
            status = nl_generate(model, &request, keep, &other);
        whole = atomic_load(&context->allocations) < before + n;
        if (status == NL_OK)
            same_pictures(&one, 0, &other, 3);
        else
            assert_int_equal(status, NL_ERROR_MEMORY);
        nl_model_destroy(model);
        int64_t used = atomic_load(&context->memory_used);
        nl_context_destroy(context);
        assert_true(n < 10000 && used >= 0);
    }
}

static nl_status take_nothing(void *user, const nl_picture *picture)
{
    (void)user, (void)picture;
    return NL_OK;
}

/* Cleared sampling options are the defaults; a scale of 0, which 0 does not say, is the null class alone. */
static void sampling_left_out(void **state)
{
    (void)state;
    static int classes[] = {1, 2}, null[] = {CLASSES, CLASSES};
    nl_request request = {.count = 2, .labels = classes};
    assert_int_equal(run(ON(0), sit_path, request, &one), NL_OK);
    request.sampling = NL_SAMPLING_DEFAULT;
    assert_int_equal(run(ON(0), sit_path, request, &other), NL_OK);
    assert_true(worst_error(&one, 0, &other, 2) == 0);
    request.sampling.cfg_scale = NL_CFG_UNCONDITIONAL;
    assert_int_equal(run(ON(0), sit_path, request, &one), NL_OK);
    assert_true(worst_error(&one, 0, &other, 2) > 1e-3);
    request.labels = null;
    request.sampling.cfg_scale = 1;
    assert_int_equal(run(ON(0), sit_path, request, &other), NL_OK);
    assert_true(worst_error(&one, 0, &other, 2) < 1e-5);
}

static void wrong_requests(void **state)
{
    (void)state;
    static const double guidance[][3] = {{2, 0.8, 0.2},    {2, NAN, 1}, {2, 0.1, NAN}, {2, -1, 1},
                                         {2, 0, INFINITY}, {NAN},       {INFINITY}};
    for (int i = 0; i < NL_COUNT(guidance); i++) {
        nl_request guided = REQUEST(.count = 1);
        guided.sampling.cfg_scale = guidance[i][0];
        memcpy(guided.sampling.cfg_interval, guidance[i] + 1, 2 * sizeof(double));
        assert_int_equal(run(ON(0), sit_path, guided, &one), NL_ERROR_USAGE);
    }
    nl_request request = REQUEST(.count = 0);
    assert_int_equal(run(ON(0), sit_path, request, &one), NL_ERROR_USAGE);
    request = REQUEST(.count = 1, .labels = (int[]){CLASSES + 1});
    assert_int_equal(run(ON(0), sit_path, request, &one), NL_ERROR_USAGE);
    request = REQUEST(.count = 1, .labels = (int[]){-1});
    assert_int_equal(run(ON(0), sit_path, request, &one), NL_ERROR_USAGE);
    request.labels = NULL;
    nl_context *context = NULL;
    nl_model *model = NULL;
    nl_context_options options = ON(0);
    assert_int_equal(load(&options, sit_path, &context, &model), NL_OK);
    assert_int_equal(nl_generate(model, &request, take_nothing, NULL), NL_ERROR_USAGE);
    assert_non_null(strstr(nl_last_error(context), "labels"));
    request.labels = (int[]){0};
    assert_int_equal(nl_generate(model, &request, NULL, NULL), NL_ERROR_USAGE);
    assert_non_null(strstr(nl_last_error(context), "takes the pictures"));
    nl_model_destroy(model);
    nl_context_destroy(context);
    request = REQUEST(.count = 1, .batch = -1);
    assert_int_equal(run(ON(0), sit_path, request, &one), NL_ERROR_USAGE);
    const char *const wrong[] = {"ddpm", "hen", "", "sde"};
    for (int i = 0; i < NL_COUNT(wrong); i++) {
        request = REQUEST(.count = 1);
        request.sampling.sampler = wrong[i];
        assert_int_equal(run(ON(0), sit_path, request, &one), NL_ERROR_USAGE);
    }
    request = REQUEST(.count = 1);
    request.sampling.sampler = "sde-euler";
    request.sampling.sde_form = "sbdm"; /* 1 / 0 at t = 0 */
    assert_int_equal(run(ON(0), sit_path, request, &one), NL_ERROR_USAGE);
    request.sampling.sampler = "heun";
    assert_int_equal(run(ON(0), dit_path, request, &one), NL_ERROR_USAGE);
}

/* What a sampler does not have is refused by its name, and taken by those that have it. */
static void of_other_samplers(void **state)
{
    (void)state;
    const struct {
        const char *name;
        nl_sampling sampling;
        bool taken;
    } cases[] = {
        {"no eta, which is for ddim", {.eta = 0.5}, false},
        {"no atol", {.atol = 1e-3}, false},
        {"no rtol", {.rtol = 1e-3}, false},
        {"no sde_form", {.sde_form = "linear"}, false},
        {"no sde_norm", {.sde_norm = 2}, false},
        {"no last_step,", {.last_step = "euler"}, false},
        {"no last_step_size", {.last_step_size = 0.1}, false},
        {"no last_step_size",
         {.sampler = "sde-euler", .last_step = "none", .last_step_size = 0.1},
         false},
        {"no clip_denoised", {.clip_denoised = true}, false},
        {"cfg_interval says how", {.cfg_scale = 1, .cfg_interval = {0.2, 0.5}}, false},
        {"cfg_channels says how", {.cfg_scale = 1, .cfg_channels = 3}, false},
        {"", {.sampler = "dopri5", .atol = 1e-3, .rtol = 1e-3}, true},
        {"", {.sampler = "sde-euler", .sde_form = "linear", .last_step_size = 0.1}, true},
        {"", {.cfg_scale = 2, .cfg_interval = {0.2, 0.5}, .cfg_channels = 3}, true},
    };
    nl_context *context = NULL;
    nl_model *model = NULL;
    nl_context_options options = ON(0);
    nl_sampling resolved;
    assert_int_equal(load(&options, sit_path, &context, &model), NL_OK);
    for (int i = 0; i < NL_COUNT(cases); i++) {
        nl_status status = nl_sampling_resolve(context, nl_model_get_config(model), NULL,
                                               &cases[i].sampling, &resolved);
        if (status != (cases[i].taken ? NL_OK : NL_ERROR_USAGE) ||
            (!cases[i].taken && !strstr(nl_last_error(context), cases[i].name)))
            fail_msg("%d, %s: %s, %s", i, cases[i].name, nl_status_name(status),
                     nl_last_error(context));
    }
    nl_model_destroy(model);
    nl_context_destroy(context);
}

static void defaults_by_kind_of_model(void **state)
{
    (void)state;
    const char *const paths[] = {sit_path, dit_path}, *const samplers[] = {"heun", "ddpm"};
    const int steps[] = {10, 250};
    for (int i = 0; i < 2; i++) {
        nl_context *context = NULL;
        nl_model *model = NULL;
        nl_context_options options = ON(0);
        nl_sampling sampling = NL_SAMPLING_DEFAULT;
        assert_int_equal(load(&options, paths[i], &context, &model), NL_OK);
        assert_ok(context, nl_sampling_resolve(context, nl_model_get_config(model), NULL, &sampling,
                                               &sampling));
        assert_string_equal(sampling.sampler, samplers[i]);
        assert_int_equal(sampling.steps, steps[i]);
        assert_true(sampling.cfg_scale == (i ? 4 : 3));
        assert_true(sampling.cfg_interval[0] == (i ? 0 : 0.1) &&
                    sampling.cfg_interval[1] == (i ? 0 : 0.9));
        nl_sampling cleared = {0};
        assert_ok(context, nl_sampling_resolve(context, nl_model_get_config(model), NULL, &cleared,
                                               &cleared));
        cleared.size = sampling.size;
        assert_memory_equal(&cleared, &sampling, sizeof(sampling));
        sampling = NL_SAMPLING_DEFAULT;
        sampling.cfg_scale = 3; /* given, so without the default's interval */
        assert_ok(context, nl_sampling_resolve(context, nl_model_get_config(model), NULL, &sampling,
                                               &sampling));
        assert_true(sampling.cfg_interval[0] == 0 && sampling.cfg_interval[1] == 0);
        nl_model_destroy(model);
        nl_context_destroy(context);
    }
}

static void defaults_of_flow_maps(void **state)
{
    (void)state;
    const struct {
        nl_sampling given;
        const char *sampler;
        int steps;
        double shift;
    } cases[] = {
        {{0}, "flow-sde", 4, 0},
        {{.steps = 1}, "flow-sde", 1, 0},
        {{.steps = 2}, "flow-sde", 2, 0.7},
        {{.steps = 3}, "flow-sde", 3, 0.7},
        {{.steps = 3, .time_shift = 1}, "flow-sde", 3, 1},
        {{.steps = 3, .rho = 7}, "flow-sde", 3, 0},
        {{.sampler = "flow"}, "flow", 4, 0},
        {{.sampler = "flow", .steps = 2}, "flow", 2, 0},
    };
    nl_context *context = NULL;
    nl_context_options options = ON(0);
    nl_config config;
    assert_ok(NULL, nl_context_create(&options, &context));
    nl_config_init(&config);
    config.flow_map = true;
    for (int i = 0; i < NL_COUNT(cases); i++) {
        nl_sampling resolved;
        assert_ok(context, nl_sampling_resolve(context, &config, NULL, &cases[i].given, &resolved));
        assert_string_equal(resolved.sampler, cases[i].sampler);
        assert_int_equal(resolved.steps, cases[i].steps);
        assert_true(resolved.time_shift == cases[i].shift);
    }
    config.one_step = NL_ONE_STEP_BESIDE;
    for (int i = 0; i < NL_COUNT(cases); i++) {
        nl_sampling resolved;
        assert_ok(context, nl_sampling_resolve(context, &config, NULL, &cases[i].given, &resolved));
        assert_int_equal(resolved.steps, cases[i].steps);
        bool two = cases[i].steps == 2 && cases[i].shift != 0;
        assert_true(resolved.time_shift == (two ? 0.5 : cases[i].shift));
    }
    config.one_step = NL_ONE_STEP_ALONE;
    for (int i = 0; i < NL_COUNT(cases); i++) {
        nl_sampling resolved;
        bool taken = cases[i].given.steps < 2;
        assert_int_equal(nl_sampling_resolve(context, &config, NULL, &cases[i].given, &resolved),
                         taken ? NL_OK : NL_ERROR_USAGE);
        assert_true(!taken || resolved.steps == 1);
    }
    nl_sampling heun = {.sampler = "heun"}, resolved;
    assert_int_equal(nl_sampling_resolve(context, &config, NULL, &heun, &resolved), NL_ERROR_USAGE);
    assert_non_null(strstr(nl_last_error(context), "in one step"));
    nl_config_free(context, &config);
    nl_context_destroy(context);
}

static void classes_hashes_and_sizes(void **state)
{
    (void)state;
    nl_context *context = NULL;
    nl_model *model = NULL;
    nl_context_options options = ON(0);
    assert_int_equal(load(&options, sit_path, &context, &model), NL_OK);
    int index = -1;
    assert_ok(context, nl_model_class(model, "c", &index));
    assert_int_equal(index, 2);
    assert_int_equal(nl_model_class(model, "x", &index), NL_ERROR_USAGE);
    const char *hex;
    assert_ok(context, nl_model_sha256(model, &hex));
    nl_mapping file;
    nl_sha256 sha;
    char expected[65];
    assert_ok(context, nl_map_file(context, sit_path, &file));
    nl_sha256_init(&sha);
    nl_sha256_update(&sha, file.data, (size_t)file.size);
    nl_sha256_hex(&sha, expected);
    nl_unmap(context, &file);
    assert_string_equal(hex, expected);
    int draws[CLASSES] = {0};
    for (int64_t i = 0; i < 1000; i++)
        draws[nl_draw_class(5, i, CLASSES)]++;
    for (int i = 0; i < CLASSES; i++)
        assert_true(draws[i] > 140 && draws[i] < 260); /* 200, 4.7 sigma */
    nl_model_destroy(model);
    model = NULL;
    nl_model_options size = {.path = sit_path, .height = 20, .width = 8};
    assert_ok(context, nl_model_load(context, &size, &model));
    int shape[3];
    nl_model_latent_shape(model, shape);
    assert_true(shape[0] == 3 && shape[1] == 20 && shape[2] == 8);
    nl_model_destroy(model);
    size.height = 21;
    assert_int_equal(nl_model_load(context, &size, &model), NL_ERROR_USAGE);
    assert_null(model);
    nl_context_destroy(context);
}

enum { LATENT = 4 * 32 * 32, SIDE = 256, BYTES = 3 * SIDE * SIDE };

typedef struct nl_latents {
    int count;
    float data[2][LATENT];
    uint8_t rgb[2][BYTES];
} nl_latents;

static nl_status keep_latents(void *user, const nl_picture *picture)
{
    nl_latents *latents = user;
    memcpy(latents->data[latents->count], picture->latents, sizeof(latents->data[0]));
    memcpy(latents->rgb[latents->count++], picture->rgb, sizeof(latents->rgb[0]));
    return NL_OK;
}

typedef struct nl_golden_model {
    const char *path, *golden;
    double guidance;
} nl_golden_model;

/* A model that was trained, with guidance; and the one that ships, a flow map with guidance inside, whose weights are int8. */
static const nl_golden_model first_model = {NL_SHARED_DIR
                                            "/weights/nalasit-s2-imagenette-256.safetensors",
                                            "first_model_sample.safetensors", 3};
static const nl_golden_model shipped_model = {NL_SOURCE_DIR
                                              "/weights/shipped/nalasit-s2-256.safetensors",
                                              "shipped_model_sample.safetensors", 1};

/* The golden trajectory's noise and classes through the checkpoint; what it should be in *expected. */
static void golden_run(nl_context_options options, const nl_golden_model *of, const char *sampler,
                       int steps, nl_latents *latents, float **expected)
{
    nl_context *context = NULL;
    nl_model *model = NULL;
    char key[16];
    snprintf(key, sizeof(key), "%s%d", sampler, steps);
    assert_int_equal(nl_context_create(&options, &context), NL_OK);
    nl_model_options model_options = {.path = of->path};
    assert_ok(context, nl_model_load(context, &model_options, &model));
    nl_checkpoint *golden = test_golden(context, of->golden);
    float *noise = test_read(golden, "noise", NULL), *y = test_read(golden, "y", NULL);
    int golden_labels[] = {(int)y[0], (int)y[1]};
    nl_request request = {.labels = golden_labels, .count = 2, .noise = noise};
    request.sampling = (nl_sampling){.sampler = sampler, .steps = steps, .cfg_scale = of->guidance};
    assert_ok(context, nl_generate(model, &request, keep_latents, latents));
    assert_int_equal(latents->count, 2);
    if (expected)
        *expected = test_read(golden, key, NULL);
    free(noise);
    free(y);
    nl_checkpoint_close(golden);
    nl_model_destroy(model);
    nl_context_destroy(context);
}

static void golden_sample(const nl_golden_model *of, const char *sampler, int steps,
                          double tolerance)
{
    nl_latents latents = {0};
    float *expected;
    test_need(of->path);
    test_need_golden(of->golden);
    golden_run(ON(0), of, sampler, steps, &latents, &expected);
    print_message("%s, %s: relative error %.3g\n", of->path, sampler,
                  test_relative_error(latents.data[0], expected, 2 * LATENT));
    assert_close(latents.data[0], expected, 2 * LATENT, tolerance);
    free(expected);
}

static void golden_sample_euler(void **state)
{
    (void)state;
    test_need_values();
    golden_sample(&first_model, "euler", 10, test_on_cpu() ? 1e-4 : 1e-3);
}

static void golden_sample_heun(void **state)
{
    (void)state;
    test_need_values();
    golden_sample(&first_model, "heun", 10, test_on_cpu() ? 1e-4 : 1e-3);
}

static void golden_sample_shipped(void **state)
{
    (void)state;
    golden_sample(&shipped_model, "flow", 4, test_on_cpu() ? 1e-4 : 1e-3);
    if (test_compares())
        golden_sample(&shipped_model, "heun", 10, test_on_cpu() ? 1e-4 : 1e-3);
}

/* The other precision: its pictures differ from those of fp32 by less than the eye sees. */
static void bf16_is_close(void **state)
{
    (void)state;
    static nl_latents exact, rounded;
    nl_context_options options = ON(0);
    double squares = 0;
    exact.count = rounded.count = 0;
    golden_run(options, &shipped_model, "flow", 4, &exact, NULL);
    options.dtype = "bf16";
    golden_run(options, &shipped_model, "flow", 4, &rounded, NULL);
    for (int i = 0; i < 2 * BYTES; i++) {
        double difference = exact.rgb[i / BYTES][i % BYTES] - rounded.rgb[i / BYTES][i % BYTES];
        squares += difference * difference;
    }
    double psnr = 10 * log10(255.0 * 255 * 2 * BYTES / squares);
    print_message("bf16 against fp32: PSNR %.1f dB, latents %.2g\n", psnr,
                  test_relative_error(rounded.data[0], exact.data[0], 2 * LATENT));
    assert_true(squares > 0 && psnr >= 35);
}

/* The device of the tests against the CPU, in fp32. */
static void device_is_like_the_cpu(void **state)
{
    (void)state;
    static nl_latents here, there;
    nl_context_options cpu = ON(0);
    here.count = there.count = 0;
    cpu.device = "cpu";
    golden_run(cpu, &shipped_model, "flow", 4, &here, NULL);
    golden_run(ON(0), &shipped_model, "flow", 4, &there, NULL);
    double error = test_relative_error(there.data[0], here.data[0], 2 * LATENT);
    print_message("fp32 against the CPU: latents %.2g\n", error);
    assert_true(error <= 1e-3);
    for (int i = 0; i < 2 * BYTES; i++)
        assert_true(abs(here.rgb[i / BYTES][i % BYTES] - there.rgb[i / BYTES][i % BYTES]) <= 2);
}

/* Pixels in, pixels out; a preview has the size of the latent. */
static void pixels_pass_through(void **state)
{
    (void)state;
    nl_context *context = NULL;
    nl_model *model = NULL;
    nl_context_options options = ON(0);
    assert_int_equal(load(&options, sit_path, &context, &model), NL_OK);
    uint8_t rgb[PIXELS], back[PIXELS];
    float latents[PIXELS];
    for (int i = 0; i < PIXELS; i++)
        rgb[i] = (uint8_t)(i * 7);
    assert_ok(context, nl_encode(model, rgb, 1, SIZE, SIZE, latents));
    assert_ok(context, nl_decode(model, latents, 1, SIZE, SIZE, back));
    for (int i = 0; i < PIXELS; i++)
        assert_true(abs(rgb[i] - back[i]) <= 1);
    assert_int_equal(nl_decode(model, latents, 0, SIZE, SIZE, back), NL_ERROR_USAGE);
    uint8_t *preview = NULL;
    int shape[] = {CHANNELS, SIZE, SIZE}, height, width;
    assert_ok(context, nl_model_preview(model, latents, shape, &preview, &height, &width));
    assert_true(height == SIZE && width == SIZE);
    for (int i = 0; i < PIXELS; i++)
        assert_true(abs(rgb[i] - preview[i]) <= 1);
    nl_free(context, preview);
    nl_model_destroy(model);
    nl_context_destroy(context);
}

/* Weights from memory are those of the file, and the memory is not needed afterwards. */
static void weights_in_memory(void **state)
{
    (void)state;
    nl_context *context = NULL;
    nl_model *model = NULL, *of_file = NULL;
    nl_mapping file;
    const char *hex, *expected;
    assert_ok(context, load(&(nl_context_options){.device = "cpu"}, sit_path, &context, &of_file));
    assert_ok(context, nl_map_file(context, sit_path, &file));
    char *copy = malloc((size_t)file.size);
    memcpy(copy, file.data, (size_t)file.size);
    nl_model_options options = {.size = sizeof(options),
                                .path = "from a buffer",
                                .data = copy,
                                .data_size = (size_t)file.size};
    assert_ok(context, nl_model_load(context, &options, &model));
    memset(copy, 0, (size_t)file.size);
    assert_ok(context, nl_model_sha256(model, &hex));
    assert_ok(context, nl_model_sha256(of_file, &expected));
    assert_string_equal(hex, expected);
    assert_string_equal(nl_model_config(model), nl_model_config(of_file));
    nl_request request = {.labels = labels, .count = 2, .sampling = {.steps = 2}};
    one.count = other.count = 0;
    one.sampler = "weights in memory";
    assert_ok(context, nl_generate(model, &request, keep, &one));
    assert_ok(context, nl_generate(of_file, &request, keep, &other));
    same_pictures(&one, 0, &other, 2);
    nl_model_destroy(model);
    options.key = "ema";
    assert_int_equal(nl_model_load(context, &options, &model), NL_ERROR_USAGE);
    options.key = NULL; /* zeros now */
    assert_int_equal(nl_model_load(context, &options, &model), NL_ERROR_INPUT);
    assert_non_null(strstr(nl_last_error(context), "from a buffer"));
    free(copy);
    nl_unmap(context, &file);
    nl_model_destroy(of_file);
    nl_context_destroy(context);
}

int main(void)
{
    const struct CMUnitTest elsewhere[] = {
        cmocka_unit_test(weights_in_memory),
        cmocka_unit_test(batch_does_not_matter),
        cmocka_unit_test(a_run_may_be_split),
        cmocka_unit_test(a_picture_has_its_own_seed),
        cmocka_unit_test(mixtures),
        cmocka_unit_test(given_noise_is_drawn_noise),
        cmocka_unit_test(guidance_acts),
        cmocka_unit_test(parts_can_be_asked_for),
        cmocka_unit_test(guidance_from_within),
        cmocka_unit_test(cancelling_keeps_what_is_done),
        cmocka_unit_test(memory_only_sets_the_batch),
        cmocka_unit_test(pixels_pass_through),
        cmocka_unit_test(golden_sample_shipped),
        cmocka_unit_test(device_is_like_the_cpu),
        cmocka_unit_test(bf16_is_close),
        cmocka_unit_test(golden_sample_euler),
        cmocka_unit_test(golden_sample_heun),
    };
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(weights_in_memory),
        cmocka_unit_test(batch_does_not_matter),
        cmocka_unit_test(a_run_may_be_split),
        cmocka_unit_test(a_picture_has_its_own_seed),
        cmocka_unit_test(mixtures),
        cmocka_unit_test(given_noise_is_drawn_noise),
        cmocka_unit_test(guidance_acts),
        cmocka_unit_test(parts_can_be_asked_for),
        cmocka_unit_test(guidance_from_within),
        cmocka_unit_test(cancelling_keeps_what_is_done),
        cmocka_unit_test(memory_only_sets_the_batch),
        cmocka_unit_test(every_allocation_may_fail),
        cmocka_unit_test(wrong_requests),
        cmocka_unit_test(of_other_samplers),
        cmocka_unit_test(sampling_left_out),
        cmocka_unit_test(defaults_by_kind_of_model),
        cmocka_unit_test(defaults_of_flow_maps),
        cmocka_unit_test(classes_hashes_and_sizes),
        cmocka_unit_test(pixels_pass_through),
        cmocka_unit_test(golden_sample_shipped),
        cmocka_unit_test(bf16_is_close),
        cmocka_unit_test(golden_sample_euler),
        cmocka_unit_test(golden_sample_heun),
    };
    if (!test_on_cpu())
        nl_context_destroy(test_context(test_device()));
    return test_on_cpu() ? test_run(tests, 2, make_models, remove_models)
                         : test_run(elsewhere, 2, make_models, remove_models);
}
