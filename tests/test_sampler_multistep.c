/* SPDX-License-Identifier: MIT */
/* DPM-Solver++ and UniPC: trajectories of diffusers' schedulers (make_solvers_golden.py), orders of convergence, noise, refusals. */
#include "nl_diffusion.h"
#include "nl_random.h"
#include "stand_in.h"

enum { IMAGES = 2, COUNT = IMAGES * 4 * 2 * 2, MOST_STEPS = 320 };
static const int64_t shape[] = {IMAGES, 4, 2, 2};
static const nl_method methods[] = {NL_METHOD_DPMPP_2M, NL_METHOD_DPMPP_2M_SDE, NL_METHOD_UNIPC};

typedef struct trajectory {
    nl_device *device;
    int steps;
    int timesteps[MOST_STEPS];
    float x[MOST_STEPS][COUNT]; /* after each step */
    int64_t evaluations[IMAGES];
} trajectory;

static nl_status keep_step(void *user, int step, int steps, double t, const nl_tensor *x)
{
    trajectory *path = user;
    assert_int_equal(step, ++path->steps);
    assert_true(step <= steps && steps <= MOST_STEPS);
    path->timesteps[step - 1] = (int)t;
    return path->device->ops->download(path->device, path->x[step - 1], x->data,
                                       nl_tensor_bytes(x));
}

static void follow(nl_context *context, const nl_sampler_options *options, stand_in *network,
                   const float *start, trajectory *path)
{
    nl_sampler *sampler;
    nl_device *device = context->device;
    nl_tensor x;
    int64_t mark = nl_arena_mark(device);
    *path = (trajectory){.device = device};
    network->device = device;
    network->calls = network->draws = 0;
    nl_sample_job job = {.device = device,
                         .model = {stand_in_predict, network},
                         .noise = {stand_in_draw, network},
                         .step = keep_step,
                         .user = path,
                         .evaluations = path->evaluations};
    assert_ok(context, nl_sampler_create(context, options, &sampler));
    if (mark == 0)
        assert_ok(context, nl_arena_reserve(device, 1 << 18));
    assert_ok(context, nl_arena_tensor(device, NL_F32, 4, shape, &x));
    assert_ok(context, device->ops->upload(device, x.data, start, nl_tensor_bytes(&x)));
    assert_ok(context, nl_sampler_run(sampler, &job, &x));
    assert_int_equal(path->steps, nl_sampler_steps(sampler));
    nl_arena_release(device, mark);
    nl_sampler_destroy(sampler);
}

static const struct setting {
    const char *name;
    nl_spacing spacing;
    int offset;
    nl_predicts predicts;
    nl_schedule schedule;
    double rho;
} settings[] = {
    {.name = "linspace"},
    {.name = "leading", .spacing = NL_SPACING_LEADING, .offset = 1},
    {.name = "trailing", .spacing = NL_SPACING_TRAILING},
    {.name = "karras", .rho = 7},
    {.name = "v", .predicts = NL_PREDICTS_V},
    {.name = "x_start", .predicts = NL_PREDICTS_X_START},
    {.name = "scaled", .schedule = NL_SCHEDULE_SCALED_LINEAR},
    {.name = "cosine", .schedule = NL_SCHEDULE_COSINE},
};

/* The largest relative error of a state on the way, and of the last one. */
static bool check_golden(nl_context *context, const nl_checkpoint *golden, nl_method method,
                         const struct setting *setting, int steps)
{
    static trajectory path;
    char name[64], times[72];
    snprintf(name, sizeof(name), "%s_%s_%d", nl_method_names[method], setting->name, steps);
    snprintf(times, sizeof(times), "%s_t", name);
    if (!nl_checkpoint_find(golden, name))
        return false;
    float *start = test_read(golden, "x", NULL), *noise = test_read(golden, "noise", NULL);
    float *expected = test_read(golden, name, NULL), *timesteps = test_read(golden, times, NULL);
    double worst = 0;
    stand_in network = {.output = golden_eps, .variance = golden_variance, .noise = noise};
    nl_sampler_options options = diffusion_options(method, steps);
    options.spacing = setting->spacing;
    options.steps_offset = setting->offset;
    options.predicts = setting->predicts;
    options.schedule = setting->schedule;
    options.rho = setting->rho;
    follow(context, &options, &network, start, &path);
    assert_int_equal(path.steps, steps);
    for (int k = 0; k < steps; k++) {
        double error = test_relative_error(path.x[k], expected + k * COUNT, COUNT);
        assert_int_equal(path.timesteps[k], (int)timesteps[k]);
        worst = fmax(worst, error);
    }
    /* Karras' levels end at diffusers' lowest, which has 1 - 0.9999 in fp32 for its variance. */
    double allowed = setting->rho > 0 ? 1e-4 : 2e-5;
    print_message("%s on %s: %.2g\n", name, context->device->name, worst);
    if (!(worst <= allowed))
        fail_msg("%s on %s: relative error %.3g, allowed %.3g", name, context->device->name, worst,
                 allowed);
    for (int image = 0; image < IMAGES; image++)
        assert_int_equal(path.evaluations[image], steps);
    /* The last step ends at the predicted x_0 and draws nothing. */
    assert_int_equal(network.draws, method == NL_METHOD_DPMPP_2M_SDE ? steps - 1 : 0);
    free(start);
    free(noise);
    free(expected);
    free(timesteps);
    return true;
}

static void test_golden_trajectories(void **state)
{
    (void)state;
    static const int steps[] = {1, 2, 5, 7, 20};
    for (int device = 0; device < 2; device++) {
        nl_context *context = test_context(device ? test_device() : "reference");
        nl_checkpoint *golden = test_golden(context, "solvers.safetensors");
        int seen = 0;
        for (int method = 0; method < NL_COUNT(methods); method++)
            for (int setting = 0; setting < NL_COUNT(settings); setting++)
                for (int n = 0; n < NL_COUNT(steps); n++)
                    seen += check_golden(context, golden, methods[method], &settings[setting],
                                         steps[n]);
        assert_int_equal(seen, NL_COUNT(methods) * (2 * 4 + NL_COUNT(settings) - 2));
        nl_checkpoint_close(golden);
        nl_context_destroy(context);
    }
}

/* The best eps for data N(0, 1/4): the flow is x / sqrt(alpha_bar / 4 + 1 - alpha_bar), which is constant. */
static const nl_diffusion_level *all_levels;

static double spread(int timestep)
{
    double alpha_bar = all_levels[timestep].alpha_bar;
    return sqrt(0.25 * alpha_bar + 1 - alpha_bar);
}

static float gaussian_eps(float x, float t)
{
    double deviation = spread((int)t);
    return (float)(sqrt(1 - all_levels[(int)t].alpha_bar) * x / (deviation * deviation));
}

/* Relative error at the level where the step after `taken` of `steps` begins. */
static double gaussian_error(nl_context *context, nl_method method, int steps, int taken)
{
    static trajectory path;
    float start[COUNT];
    for (int i = 0; i < COUNT; i++)
        start[i] = sinf((float)i + 1);
    stand_in network = {.output = gaussian_eps};
    nl_sampler_options options = diffusion_options(method, steps);
    options.variance = NL_VARIANCE_FIXED_SMALL;
    follow(context, &options, &network, start, &path);
    double exact = spread(path.timesteps[taken]) / spread(999);
    return fabs(path.x[taken - 1][0] / (start[0] * exact) - 1);
}

static void test_orders(void **state)
{
    (void)state;
    nl_context *context = test_context("reference");
    nl_diffusion_level *levels = NULL;
    int count;
    assert_ok(context,
              nl_diffusion_levels(context, &(nl_noise_schedule){NL_SCHEDULE_LINEAR, 1000, 0, 0},
                                  NULL, &levels, &count));
    all_levels = levels;
    for (int c = 0; c < 2; c++) {
        nl_method method = c ? NL_METHOD_UNIPC : NL_METHOD_DPMPP_2M;
        double coarse = gaussian_error(context, method, 27, 18),
               fine = gaussian_error(context, method, 54, 36), order = log2(coarse / fine);
        print_message("%s: %.3g, %.3g, order %.2f\n", nl_method_names[method], coarse, fine, order);
        assert_true(fabs(order - (c ? 3 : 2)) < 0.3); /* the corrector gives one more */
    }
    nl_free(context, levels);
    nl_context_destroy(context);
}

/* Noise in, data out: the samples of the SDE have the data's spread, and another noise gives others. */
static void test_sde_spread(void **state)
{
    (void)state;
    nl_context *context = test_context("reference");
    nl_diffusion_level *levels = NULL;
    int count;
    enum { MANY = 4096 };
    static float start[MANY], result[MANY], deterministic[MANY];
    double mean = 0, squares = 0, with_start = 0;
    assert_ok(context,
              nl_diffusion_levels(context, &(nl_noise_schedule){NL_SCHEDULE_LINEAR, 1000, 0, 0},
                                  NULL, &levels, &count));
    all_levels = levels;
    for (uint64_t i = 0; i < MANY; i += 4)
        nl_philox_normal4(1, 0, 1000, i, start + i);
    stand_in network = {.output = gaussian_eps};
    nl_sampler_options options = diffusion_options(NL_METHOD_DPMPP_2M_SDE, 100);
    options.variance = NL_VARIANCE_FIXED_SMALL;
    assert_ok(context, stand_in_sample(context, &options, &network, 2, (int64_t[]){1, MANY}, start,
                                       NULL, result));
    assert_int_equal(network.draws, 99);
    assert_int_equal(network.last_draw, 98);
    options.method = NL_METHOD_DPMPP_2M;
    assert_ok(context, stand_in_sample(context, &options, &network, 2, (int64_t[]){1, MANY}, start,
                                       NULL, deterministic));
    for (int i = 0; i < MANY; i++) {
        mean += result[i] / MANY;
        squares += (double)result[i] * result[i] / MANY;
        with_start += (double)result[i] * start[i] / MANY;
        /* Without noise each number is the start's, scaled. */
        assert_true(fabs(deterministic[i] - 0.5 * start[i]) <= 0.01 * fabs(start[i]));
    }
    print_message("mean %.3f, deviation %.3f, covariance with the start %.3f\n", mean,
                  sqrt(squares), with_start);
    assert_true(fabs(mean) < 0.03 && fabs(sqrt(squares) - 0.5) < 0.02 && fabs(with_start) < 0.03);
    nl_free(context, levels);
    nl_context_destroy(context);
}

/* What is clamped is x_0, at which the last step ends. */
static void test_clip_denoised(void **state)
{
    (void)state;
    nl_context *context = test_context("reference");
    float start[COUNT], result[COUNT];
    for (int i = 0; i < COUNT; i++)
        start[i] = 3 * sinf((float)i);
    for (int c = 0; c < NL_COUNT(methods); c++)
        for (int clip = 0; clip < 2; clip++) {
            float largest = 0;
            stand_in network = {.output = golden_eps, .variance = golden_variance};
            nl_sampler_options options = diffusion_options(methods[c], 20);
            options.clip_denoised = clip;
            assert_ok(context,
                      stand_in_sample(context, &options, &network, 4, shape, start, NULL, result));
            for (int i = 0; i < COUNT; i++)
                largest = fmaxf(largest, fabsf(result[i]));
            assert_true((largest <= 1) == clip);
        }
    nl_context_destroy(context);
}

/* Kept timesteps that are given are those that the network sees. */
static void test_respacing(void **state)
{
    (void)state;
    static trajectory path;
    static const int kept[] = {999, 833, 667, 666, 334};
    float start[COUNT] = {1};
    nl_context *context = test_context("reference");
    stand_in network = {.output = golden_eps, .variance = golden_variance};
    nl_sampler_options options = diffusion_options(NL_METHOD_UNIPC, 0);
    options.respacing = "0,2,3";
    follow(context, &options, &network, start, &path);
    assert_int_equal(path.steps, 5);
    for (int k = 0; k < 5; k++)
        assert_int_equal(path.timesteps[k], kept[k]);
    nl_context_destroy(context);
}

static void test_refusals(void **state)
{
    (void)state;
    nl_context *context = test_context(NULL);
    for (int c = 0; c < NL_COUNT(methods); c++) {
        char reason[64];
        nl_sampler_options options = diffusion_options(methods[c], 1000);
        assert_refused(context, &options, "steps is 1000: expected 1 to 999");
        options.steps = 0;
        assert_refused(context, &options, "steps is 0");
        options.steps = 10;
        options.reverse = true;
        snprintf(reason, sizeof(reason), "%s does not run from data to noise: choose ddim",
                 nl_method_names[methods[c]]);
        assert_refused(context, &options, reason);
        options.reverse = false;
        options.time_shift = 3;
        assert_refused(context, &options, "time_shift 3 is for the fixed steps of a SiT");
        options.time_shift = 1;
        options.rho = 7;
        options.respacing = "20";
        assert_refused(context, &options, "rho 7 and respacing both say where steps lie");
        options.rho = 0;
        options.respacing = "linspace1001";
        assert_refused(context, &options, "does not fit 1000 timesteps");
        options.respacing = "linspacex";
        assert_refused(context, &options, "expected 'leading', 'trailing' or 'linspace'");
    }
    nl_sampler_options options = diffusion_options(NL_METHOD_DDIM, 10);
    options.rho = 7;
    assert_refused(context, &options, "it does not fit ddim");
    nl_core_context_destroy(context);
}

static void test_not_finite(void **state)
{
    (void)state;
    nl_context *context = test_context("reference");
    float start[COUNT] = {0}, result[COUNT];
    for (int c = 0; c < NL_COUNT(methods); c++) {
        char where[64];
        stand_in network = {.output = golden_eps, .variance = golden_variance, .nan_at_call = 3};
        nl_sampler_options options = diffusion_options(methods[c], 10);
        assert_int_equal(
            stand_in_sample(context, &options, &network, 4, shape, start, NULL, result),
            NL_ERROR_NOT_FINITE);
        snprintf(where, sizeof(where), "%s, step 3 of 10", nl_method_names[methods[c]]);
        assert_non_null(strstr(nl_last_error(context), where));
        assert_int_equal(network.calls, 3);
    }
    nl_context_destroy(context);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_golden_trajectories), cmocka_unit_test(test_orders),
        cmocka_unit_test(test_sde_spread),          cmocka_unit_test(test_clip_denoised),
        cmocka_unit_test(test_respacing),           cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_not_finite),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
