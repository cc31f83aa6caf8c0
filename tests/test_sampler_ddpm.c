/* SPDX-License-Identifier: MIT */
/* DDPM and DDIM: schedules, respacing, and samples of the public code. */
#include "nl_diffusion.h"
#include "stand_in.h"

enum { IMAGES = 2, COUNT = 2 * 4 * 4 * 4 };
static const int64_t shape[] = {2, 4, 4, 4};
static const char *const devices[] = {"reference", NULL}; /* NULL: the device of the tests */

static void assert_near(double value, double expected, double tolerance)
{
    if (!(fabs(value - expected) <= tolerance * fabs(expected)))
        fail_msg("%.16g, expected %.16g", value, expected);
}

static nl_diffusion_level *levels_of(nl_context *context, nl_schedule schedule,
                                     const char *respacing, int *count)
{
    nl_diffusion_level *levels = NULL;
    assert_ok(context, nl_diffusion_levels(context, &(nl_noise_schedule){schedule, 1000, 0, 0},
                                           respacing, &levels, count));
    return levels;
}

static void test_full_schedule(void **state)
{
    (void)state;
    static const struct {
        int i;
        double alpha_bar;
    } expected[] = {{0, .9999},
                    {1, .99978009207207208},
                    {2, .99964028298412155},
                    {249, .52408537382536058},
                    {250, .52142303061852746},
                    {499, .078587242881778208},
                    {500, .077796658365023863},
                    {749, .003350550438936774},
                    {750, .0033001583615694255},
                    {998, 4.1181936381384443e-05},
                    {999, 4.0358297653756754e-05}};
    nl_context *context = test_context(NULL);
    int count;
    nl_diffusion_level *levels = levels_of(context, NL_SCHEDULE_LINEAR, NULL, &count);
    assert_int_equal(count, 1000);
    for (int i = 0; i < NL_COUNT(expected); i++)
        assert_near(levels[expected[i].i].alpha_bar, expected[i].alpha_bar, 1e-12);
    assert_near(levels[1].beta, .00011991991991991993, 1e-10);
    assert_near(sqrt(levels[500].alpha_bar), .278920523, 1e-8);
    assert_near(levels[1].posterior_variance, 5.4531876613e-05, 1e-9);
    assert_near(levels[0].posterior_log_variance, -9.81672514, 1e-9);
    assert_near(log(levels[0].beta), -9.21034037, 1e-9);
    nl_free(context, levels);
    nl_core_context_destroy(context);
}

static void test_respaced_schedule(void **state)
{
    (void)state;
    static const double beta[] = {1e-4, .000599065564476, .000917602992817, .00123606426991};
    nl_context *context = test_context(NULL);
    int count;
    nl_diffusion_level *levels = levels_of(context, NL_SCHEDULE_LINEAR, "250", &count);
    assert_int_equal(count, 250);
    for (int i = 0; i < 4; i++)
        assert_near(levels[i].beta, beta[i], 1e-11);
    assert_near(levels[248].beta, .0772193054561, 1e-11);
    assert_near(levels[249].beta, .0775193449924, 1e-11);
    assert_near(levels[1].posterior_variance, 8.57025344056e-05, 1e-11);
    assert_near(levels[0].posterior_log_variance, -9.364628159803, 1e-12);
    assert_near(levels[1].posterior_log_variance, -9.364628159803, 1e-12);
    assert_near(levels[249].posterior_log_variance, -2.557231152561, 1e-12);
    assert_near(log(levels[249].beta), -2.557227760966, 1e-12);
    nl_free(context, levels);
    nl_core_context_destroy(context);
}

static void test_cosine_schedule(void **state)
{
    (void)state;
    nl_context *context = test_context(NULL);
    int count;
    nl_diffusion_level *levels = levels_of(context, NL_SCHEDULE_COSINE, NULL, &count);
    double first = cos(0.008 / 1.008 * M_PI / 2), half = cos(0.508 / 1.008 * M_PI / 2);
    assert_near(levels[499].alpha_bar, half * half / (first * first), 1e-12);
    assert_near(levels[999].beta, 0.999, 1e-12);
    nl_free(context, levels);
    nl_core_context_destroy(context);
}

/* docs/public-code.md A4; "7" has 166.5 and 832.5 (half to even), "20" the sum of (i + 1) t_i. */
static void test_respacing(void **state)
{
    (void)state;
    static const struct {
        const char *respacing;
        int count;
        int64_t weighted_sum;
    } expected[] = {{"20", 20, 139857},     {"50", 50, 849164},   {"100", 100, 3363345},
                    {"500", 500, 83426875}, {"10,15,20", 45, -1}, {"ddim50", 50, -1},
                    {"ddim1000", 1000, -1}, {"7", 7, 0}};
    static const int sections[] = {0,   37,  74,  111, 148, 185, 222, 259, 296, 333, 334, 358,
                                   381, 405, 429, 453, 476, 500, 524, 547, 571, 595, 619, 642,
                                   666, 667, 684, 702, 719, 737, 754, 772, 789, 807, 824, 842,
                                   859, 877, 894, 912, 929, 947, 964, 982, 999};
    static const int seven[] = {0, 166, 333, 500, 666, 832, 999};
    nl_context *context = test_context(NULL);
    for (int c = 0; c < NL_COUNT(expected); c++) {
        nl_sampler_options options = diffusion_options(NL_METHOD_DDPM, 0);
        nl_sampler *sampler;
        int count;
        int64_t sum = 0;
        options.respacing = expected[c].respacing;
        assert_ok(context, nl_sampler_create(context, &options, &sampler));
        const int *timesteps = nl_sampler_timesteps(sampler, &count);
        assert_int_equal(count, expected[c].count);
        assert_int_equal(nl_sampler_steps(sampler), count);
        for (int i = 0; i < count; i++) {
            sum += (int64_t)(i + 1) * timesteps[i];
            if (strcmp(expected[c].respacing, "10,15,20") == 0)
                assert_int_equal(timesteps[i], sections[i]);
            if (strcmp(expected[c].respacing, "7") == 0)
                assert_int_equal(timesteps[i], seven[i]);
            if (strncmp(expected[c].respacing, "ddim", 4) == 0)
                assert_int_equal(timesteps[i], i * (1000 / count));
        }
        if (expected[c].weighted_sum > 0)
            assert_int_equal(sum, expected[c].weighted_sum);
        nl_sampler_destroy(sampler);
    }
    nl_core_context_destroy(context);
}

static void test_golden_timesteps(void **state)
{
    (void)state;
    nl_context *context = test_context(NULL);
    nl_checkpoint *golden = test_golden(context, "ddpm.safetensors");
    static const int steps[] = {10, 25, 250};
    for (int c = 0; c < 3; c++) {
        char name[32];
        nl_tensor tensor;
        nl_sampler *sampler;
        int count;
        snprintf(name, sizeof(name), "timesteps%d", steps[c]);
        float *expected = test_read(golden, name, &tensor);
        nl_sampler_options options = diffusion_options(NL_METHOD_DDPM, steps[c]);
        assert_ok(context, nl_sampler_create(context, &options, &sampler));
        const int *timesteps = nl_sampler_timesteps(sampler, &count);
        assert_int_equal(count, tensor.shape[0]);
        for (int i = 0; i < count; i++)
            assert_int_equal(timesteps[i], (int)expected[i]);
        nl_sampler_destroy(sampler);
        free(expected);
    }
    nl_checkpoint_close(golden);
    nl_core_context_destroy(context);
}

static void test_refusals(void **state)
{
    (void)state;
    static const struct {
        const char *respacing, *reason;
    } bad[] = {{"", "expected numbers"},        {"abc", "expected numbers"},
               {"10,", "expected numbers"},     {"10;20", "expected numbers"},
               {"-5", "expected numbers"},      {"1001", "at most 1000"},
               {"400,400,400", "at most 334"},  {"0", "keeps no step"},
               {"ddim", "'ddim' and a number"}, {"ddim51x", "'ddim' and a number"},
               {"ddim333", "no whole stride"},  {"99999999999999999999", "expected numbers"}};
    nl_context *context = test_context(NULL);
    nl_sampler_options options = diffusion_options(NL_METHOD_DDPM, 10);
    for (int i = 0; i < NL_COUNT(bad); i++) {
        options.respacing = bad[i].respacing;
        assert_refused(context, &options, bad[i].reason);
    }
    options = diffusion_options(NL_METHOD_DDPM, 0);
    assert_refused(context, &options, "steps is 0");
    options = diffusion_options(NL_METHOD_DDPM, 1001);
    assert_refused(context, &options, "steps is 1001");
    options = diffusion_options(NL_METHOD_DDPM, 10);
    options.reverse = true;
    assert_refused(context, &options, "choose ddim");
    options = diffusion_options(NL_METHOD_DDIM, 10);
    options.eta = 1.5;
    assert_refused(context, &options, "eta is 1.5");
    options.eta = NAN;
    assert_refused(context, &options, "eta is");
    options.eta = 0.5;
    options.reverse = true;
    assert_refused(context, &options, "eta is 0.5");
    options = diffusion_options(NL_METHOD_DDIM, 10);
    options.diffusion_steps = 20; /* the last beta would be 1 */
    assert_refused(context, &options, "diffusion_steps is 20");
    nl_core_context_destroy(context);
}

static void check_golden_sample(nl_context *context, const nl_checkpoint *golden, const char *name,
                                nl_method method, int steps, double eta)
{
    char noise_name[64];
    snprintf(noise_name, sizeof(noise_name), "%s_noise", name);
    float *initial = test_read(golden, "x_T", NULL);
    float *noise = test_read(golden, noise_name, NULL);
    float *expected = test_read(golden, name, NULL);
    float result[COUNT];
    int64_t evaluations[IMAGES] = {0};
    stand_in network = {.output = golden_eps, .variance = golden_variance, .noise = noise};
    nl_sampler_options options = diffusion_options(method, steps);
    options.eta = eta;
    assert_ok(context,
              stand_in_sample(context, &options, &network, 4, shape, initial, evaluations, result));
    double error = test_relative_error(result, expected, COUNT);
    print_message("%s on %s: %.2g\n", name, context->device->name, error);
    assert_close(result, expected, COUNT, 1e-5);
    assert_int_equal(evaluations[0], steps);
    assert_int_equal(evaluations[1], steps);
    /* The last step is the mean and draws nothing. */
    assert_int_equal(network.draws, method == NL_METHOD_DDIM && eta == 0 ? 0 : steps - 1);
    free(initial);
    free(noise);
    free(expected);
}

static void test_golden_samples(void **state)
{
    (void)state;
    for (int d = 0; d < NL_COUNT(devices); d++) {
        nl_context *context = test_context(devices[d] ? devices[d] : test_device());
        nl_checkpoint *golden = test_golden(context, "ddpm.safetensors");
        check_golden_sample(context, golden, "ddpm10", NL_METHOD_DDPM, 10, 0);
        check_golden_sample(context, golden, "ddpm25", NL_METHOD_DDPM, 25, 0);
        check_golden_sample(context, golden, "ddpm250", NL_METHOD_DDPM, 250, 0);
        check_golden_sample(context, golden, "ddim25_eta0.0", NL_METHOD_DDIM, 25, 0);
        check_golden_sample(context, golden, "ddim25_eta0.5", NL_METHOD_DDIM, 25, 0.5);
        nl_checkpoint_close(golden);
        nl_context_destroy(context);
    }
}

/* One number through DDPM with the textbook's formulas (Ho et al. 2020, equations 7 and 11). */
static double direct_ddpm(nl_schedule schedule, bool fixed_large, bool x_start, int steps, double x,
                          const float *noise, int stride)
{
    nl_context *context = test_context(NULL);
    nl_diffusion_level *levels = NULL;
    int count;
    char respacing[16];
    snprintf(respacing, sizeof(respacing), "%d", steps);
    assert_ok(context, nl_diffusion_levels(context, &(nl_noise_schedule){schedule, 1000, 0, 0},
                                           respacing, &levels, &count));
    for (int i = count - 1; i >= 0; i--) {
        double a = levels[i].alpha_bar, before = i ? levels[i - 1].alpha_bar : 1;
        double alpha = a / before, beta = 1 - alpha;
        double eps = golden_eps((float)x, (float)levels[i].timestep);
        double x_0 = x_start ? eps : (x - sqrt(1 - a) * eps) / sqrt(a);
        double mean = (sqrt(before) * beta * x_0 + sqrt(alpha) * (1 - before) * x) / (1 - a);
        double variance = fixed_large ? beta : beta * (1 - before) / (1 - a);
        x = mean + (i ? sqrt(variance) * noise[(count - 1 - i) * stride] : 0);
    }
    nl_free(context, levels);
    nl_core_context_destroy(context);
    return x;
}

static void test_fixed_variances(void **state)
{
    (void)state;
    nl_context *context = test_context("reference");
    nl_checkpoint *golden = test_golden(context, "ddpm.safetensors");
    float *initial = test_read(golden, "x_T", NULL),
          *noise = test_read(golden, "ddpm25_noise", NULL);
    for (int c = 0; c < 8; c++) {
        bool large = c & 1, cosine = c & 2, x_start = c & 4;
        float result[COUNT], expected[COUNT];
        stand_in network = {.output = golden_eps, .noise = noise};
        nl_sampler_options options = diffusion_options(NL_METHOD_DDPM, 25);
        options.variance = large ? NL_VARIANCE_FIXED_LARGE : NL_VARIANCE_FIXED_SMALL;
        options.schedule = cosine ? NL_SCHEDULE_COSINE : NL_SCHEDULE_LINEAR;
        options.predicts = x_start ? NL_PREDICTS_X_START : NL_PREDICTS_EPSILON;
        assert_ok(context,
                  stand_in_sample(context, &options, &network, 4, shape, initial, NULL, result));
        for (int i = 0; i < COUNT; i++)
            expected[i] = (float)direct_ddpm(options.schedule, large, x_start, 25, initial[i],
                                             noise + i, COUNT);
        assert_close(result, expected, COUNT, 1e-5);
    }
    free(initial);
    free(noise);
    nl_checkpoint_close(golden);
    nl_context_destroy(context);
}

/* The best eps for data N(0, 1/4), on the full linear schedule. */
static const nl_diffusion_level *gaussian_levels;

static float gaussian_eps(float x, float t)
{
    double a = gaussian_levels[(int)t].alpha_bar;
    return (float)(sqrt(1 - a) * x / (0.25 * a + 1 - a));
}

/* Encoding maps N(0, 1/4) to N(0, 1), and decoding brings each number back, the closer the smaller the
 * steps: DDIM is of first order. */
static void test_ddim_there_and_back(void **state)
{
    (void)state;
    nl_context *context = test_context("reference");
    int count;
    nl_diffusion_level *levels = levels_of(context, NL_SCHEDULE_LINEAR, NULL, &count);
    float start[COUNT], code[COUNT], back[COUNT], expected[COUNT];
    double error[2];
    gaussian_levels = levels;
    for (int i = 0; i < COUNT; i++) {
        start[i] = 0.5f * sinf((float)i + 1);
        expected[i] = 2 * start[i];
    }
    stand_in network = {.output = gaussian_eps};
    for (int c = 0; c < 2; c++) {
        nl_sampler_options options = diffusion_options(NL_METHOD_DDIM, c ? 500 : 250);
        options.variance = NL_VARIANCE_FIXED_SMALL;
        options.reverse = true;
        assert_ok(context,
                  stand_in_sample(context, &options, &network, 4, shape, start, NULL, code));
        options.reverse = false;
        assert_ok(context,
                  stand_in_sample(context, &options, &network, 4, shape, code, NULL, back));
        assert_close(code, expected, COUNT, 0.02);
        error[c] = test_relative_error(back, start, COUNT);
        print_message("%d steps there and back: %.3g\n", options.steps, error[c]);
    }
    assert_true(error[1] < 0.015 && error[0] > 1.7 * error[1]);
    nl_free(context, levels);
    nl_context_destroy(context);
}

/* eta = 1 is DDPM with the small variance, up to the noise in its place. */
static void test_ddim_eta_one(void **state)
{
    (void)state;
    nl_context *context = test_context("reference");
    float start[COUNT], ddpm[COUNT], ddim[COUNT];
    for (int i = 0; i < COUNT; i++)
        start[i] = sinf((float)i);
    stand_in network = {.output = golden_eps};
    nl_sampler_options options = diffusion_options(NL_METHOD_DDPM, 40);
    options.variance = NL_VARIANCE_FIXED_SMALL;
    assert_ok(context, stand_in_sample(context, &options, &network, 4, shape, start, NULL, ddpm));
    options.method = NL_METHOD_DDIM;
    options.eta = 1;
    assert_ok(context, stand_in_sample(context, &options, &network, 4, shape, start, NULL, ddim));
    assert_close(ddim, ddpm, COUNT, 2e-4);
    nl_context_destroy(context);
}

static void test_clip_denoised(void **state)
{
    (void)state;
    nl_context *context = test_context("reference");
    float start[COUNT], result[COUNT];
    for (int i = 0; i < COUNT; i++)
        start[i] = 3 * sinf((float)i);
    stand_in network = {.output = golden_eps, .variance = golden_variance};
    nl_sampler_options options = diffusion_options(NL_METHOD_DDPM, 20);
    options.clip_denoised = true; /* the last mean is the last x_0 */
    assert_ok(context, stand_in_sample(context, &options, &network, 4, shape, start, NULL, result));
    for (int i = 0; i < COUNT; i++)
        assert_true(fabsf(result[i]) <= 1.0001f);
    nl_context_destroy(context);
}

static void test_not_finite_names_the_step(void **state)
{
    (void)state;
    nl_context *context = test_context("reference");
    float start[COUNT] = {0}, result[COUNT];
    stand_in network = {.output = golden_eps, .variance = golden_variance, .nan_at_call = 3};
    nl_sampler_options options = diffusion_options(NL_METHOD_DDPM, 10);
    assert_int_equal(stand_in_sample(context, &options, &network, 4, shape, start, NULL, result),
                     NL_ERROR_NOT_FINITE);
    assert_non_null(strstr(nl_last_error(context), "ddpm, step 3 of 10"));
    assert_int_equal(network.calls, 3);
    nl_context_destroy(context);
}

/* timestep_spacing of diffusers' DDIMScheduler, as its set_timesteps computes them. */
static void test_spacing(void **state)
{
    (void)state;
    static const struct {
        nl_spacing spacing;
        int steps, offset, first, second, last;
    } cases[] = {
        {NL_SPACING_LEADING, 50, 0, 0, 20, 980},   {NL_SPACING_LEADING, 50, 1, 1, 21, 981},
        {NL_SPACING_LEADING, 30, 0, 0, 33, 957},   {NL_SPACING_TRAILING, 50, 0, 19, 39, 999},
        {NL_SPACING_TRAILING, 30, 0, 32, 66, 999}, {NL_SPACING_TRAILING, 7, 0, 142, 285, 999},
        {NL_SPACING_LINSPACE, 50, 0, 0, 20, 999}};
    nl_context *context = test_context(NULL);
    for (int c = 0; c < NL_COUNT(cases); c++) {
        nl_sampler_options options = diffusion_options(NL_METHOD_DDIM, cases[c].steps);
        nl_sampler *sampler;
        int count;
        options.spacing = cases[c].spacing;
        options.steps_offset = cases[c].offset;
        assert_ok(context, nl_sampler_create(context, &options, &sampler));
        const int *timesteps = nl_sampler_timesteps(sampler, &count);
        assert_int_equal(count, cases[c].steps);
        assert_int_equal(timesteps[0], cases[c].first);
        assert_int_equal(timesteps[1], cases[c].second);
        assert_int_equal(timesteps[count - 1], cases[c].last);
        nl_sampler_destroy(sampler);
    }
    nl_sampler_options options = diffusion_options(NL_METHOD_DDIM, 1000);
    nl_sampler *sampler;
    options.spacing = NL_SPACING_LEADING;
    options.steps_offset = 1;
    assert_int_equal(nl_sampler_create(context, &options, &sampler), NL_ERROR_USAGE);
    nl_core_context_destroy(context);
}

/* Stable Diffusion's schedule: alpha_bar of its first, middle and last timestep in float64. */
static void test_scaled_linear(void **state)
{
    (void)state;
    nl_context *context = test_context(NULL);
    nl_diffusion_level *levels;
    int count;
    double low = sqrt(0.00085), high = sqrt(0.012), alpha_bar = 1;
    for (int given = 0; given < 2; given++) {
        nl_noise_schedule schedule = {NL_SCHEDULE_SCALED_LINEAR, 1000, given ? 0.00085 : 0,
                                      given ? 0.012 : 0};
        assert_ok(context, nl_diffusion_levels(context, &schedule, NULL, &levels, &count));
        alpha_bar = 1;
        for (int i = 0; i < 1000; i++) {
            alpha_bar *= 1 - pow(low + (high - low) * i / 999, 2);
            assert_near(levels[i].alpha_bar, alpha_bar, 1e-12);
        }
        nl_free(context, levels);
    }
    assert_near(alpha_bar, 0.0046600, 1e-4); /* known of Stable Diffusion */
    nl_noise_schedule own = {NL_SCHEDULE_LINEAR, 10, 0.1, 0.2};
    assert_ok(context, nl_diffusion_levels(context, &own, NULL, &levels, &count));
    assert_near(levels[9].beta, 0.2, 1e-12);
    assert_near(levels[0].alpha_bar, 0.9, 1e-12);
    nl_free(context, levels);
    nl_core_context_destroy(context);
}

/* v = sqrt(a) eps - sqrt(1 - a) x_0, by the textbook's formulas, DDIM and DDPM. */
static void test_v_prediction(void **state)
{
    (void)state;
    nl_context *context = test_context("reference");
    nl_checkpoint *golden = test_golden(context, "ddpm.safetensors");
    float *initial = test_read(golden, "x_T", NULL),
          *noise = test_read(golden, "ddpm25_noise", NULL);
    for (int c = 0; c < 4; c++) {
        bool ddim = c & 1, first = c & 2;
        int count;
        nl_diffusion_level *levels = levels_of(context, NL_SCHEDULE_LINEAR, "25", &count),
                           *all = levels_of(context, NL_SCHEDULE_LINEAR, NULL, &(int){0});
        float result[COUNT], expected[COUNT];
        stand_in network = {.output = golden_eps, .noise = noise};
        nl_sampler_options options = diffusion_options(ddim ? NL_METHOD_DDIM : NL_METHOD_DDPM, 25);
        options.variance = NL_VARIANCE_FIXED_SMALL;
        options.predicts = NL_PREDICTS_V;
        options.final_alpha_first = first;
        assert_ok(context,
                  stand_in_sample(context, &options, &network, 4, shape, initial, NULL, result));
        for (int j = 0; j < COUNT; j++) {
            double x = initial[j];
            for (int i = count - 1; i >= 0; i--) {
                double a = levels[i].alpha_bar, before = i ? levels[i - 1].alpha_bar : 1;
                double v = golden_eps((float)x, (float)levels[i].timestep), alpha = a / before;
                double x_0 = sqrt(a) * x - sqrt(1 - a) * v, eps = sqrt(a) * v + sqrt(1 - a) * x;
                if (ddim && first && i == 0)
                    before = all[0].alpha_bar;
                double mean =
                    (sqrt(before) * (1 - alpha) * x_0 + sqrt(alpha) * (1 - before) * x) / (1 - a);
                double deviation = sqrt((1 - alpha) * (1 - before) / (1 - a));
                x = ddim ? sqrt(before) * x_0 + sqrt(1 - before) * eps
                         : mean + (i ? deviation * noise[(count - 1 - i) * COUNT + j] : 0);
            }
            expected[j] = (float)x;
        }
        assert_close(result, expected, COUNT, 1e-5);
        nl_free(context, levels);
        nl_free(context, all);
    }
    free(initial);
    free(noise);
    nl_checkpoint_close(golden);
    nl_context_destroy(context);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_full_schedule),
        cmocka_unit_test(test_respaced_schedule),
        cmocka_unit_test(test_cosine_schedule),
        cmocka_unit_test(test_respacing),
        cmocka_unit_test(test_golden_timesteps),
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_golden_samples),
        cmocka_unit_test(test_fixed_variances),
        cmocka_unit_test(test_spacing),
        cmocka_unit_test(test_scaled_linear),
        cmocka_unit_test(test_v_prediction),
        cmocka_unit_test(test_ddim_there_and_back),
        cmocka_unit_test(test_ddim_eta_one),
        cmocka_unit_test(test_clip_denoised),
        cmocka_unit_test(test_not_finite_names_the_step),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
