/* SPDX-License-Identifier: MIT */
/* Transports: samples of the public code, orders of convergence, forms that no golden covers, dopri5's
 * step control, refusals. */
#include "nl_path.h"
#include "stand_in.h"

enum { IMAGES = 2, SIZE = 4 * 4 * 4, COUNT = IMAGES * SIZE };
static const int64_t shape[] = {IMAGES, 4, 4, 4};
static const char *const devices[] = {"reference", NULL}; /* NULL: the device of the tests */
static const char *const paths[] = {"linear", "gvp", "vp"};
static const char *const predictions[] = {"velocity", "noise", "score"};

static float golden_output(float x, float t)
{
    return tanhf(0.8f * x) * (1 + 0.5f * cosf(6 * t)) - 0.3f * x;
}

static double golden_output_double(double x, double t)
{
    return tanh(0.8 * x) * (1 + 0.5 * cos(6 * t)) - 0.3 * x;
}

static nl_sampler_options transport_options(nl_method method, int steps, nl_path path,
                                            nl_prediction prediction)
{
    nl_sampler_options options;
    nl_sampler_options_init(&options);
    options.method = method;
    options.steps = steps;
    options.path = path;
    options.prediction = prediction;
    return options;
}

static void start_numbers(float *start, int count)
{
    for (int i = 0; i < count; i++)
        start[i] = 1.5f * sinf(1.7f * (float)i + 0.3f);
}

/* Compares with the golden row; false when there is none. */
static bool check_row(nl_context *context, const nl_checkpoint *golden,
                      const nl_sampler_options *options, const char *name, double tolerance,
                      double *worst)
{
    if (!nl_checkpoint_find(golden, name))
        return false;
    float *initial = test_read(golden, "noise", NULL),
          *noise = test_read(golden, "sde_noise", NULL);
    float *expected = test_read(golden, name, NULL), result[COUNT];
    stand_in network = {.output = golden_output, .noise = noise};
    assert_ok(context,
              stand_in_sample(context, options, &network, 4, shape, initial, NULL, result));
    double error = test_relative_error(result, expected, COUNT);
    if (!(error <= tolerance))
        fail_msg("%s on %s: relative error %.3g, allowed %.3g", name, context->device->name, error,
                 tolerance);
    *worst = fmax(*worst, error / tolerance);
    free(initial);
    free(noise);
    free(expected);
    return true;
}

static int check_ode_rows(nl_context *context, const nl_checkpoint *golden)
{
    static const nl_method methods[] = {NL_METHOD_EULER, NL_METHOD_HEUN2, NL_METHOD_MIDPOINT,
                                        NL_METHOD_RK4, NL_METHOD_DOPRI5};
    int rows = 0;
    double worst = 0;
    for (int c = 0; c < 3 * 3 * NL_COUNT(methods); c++) {
        nl_method method = methods[c % NL_COUNT(methods)];
        nl_prediction prediction = (nl_prediction)(c / NL_COUNT(methods) % 3);
        nl_path path = (nl_path)(c / NL_COUNT(methods) / 3);
        char name[64];
        snprintf(name, sizeof(name), "%s_%s_ode_%s", paths[path], predictions[prediction],
                 nl_method_names[method]);
        /* num_steps 11 of the public code counts points. */
        nl_sampler_options options = transport_options(method, 10, path, prediction);
        double tolerance = path == NL_PATH_VP && prediction == NL_PREDICTION_NOISE ? 1e-4 : 1e-5;
        if (method == NL_METHOD_DOPRI5) {
            rows += check_row(context, golden, &options, name, 1e-3, &worst);
            options.batch_control = true;
            tolerance = 1e-4;
        }
        rows += check_row(context, golden, &options, name, tolerance, &worst);
    }
    print_message("%s: %d ODE rows, the worst at %.2g of its tolerance\n", context->device->name,
                  rows, worst);
    return rows;
}

static int check_sde_rows(nl_context *context, const nl_checkpoint *golden)
{
    static const char *const forms[] = {"", "SBDM", "sigma", "linear", "decreasing"};
    static const char *const lasts[] = {"None", "Mean", "Tweedie", "Euler"};
    int rows = 0;
    double worst = 0;
    for (int c = 0; c < 3 * 3 * 2 * 4 * 4; c++) {
        nl_last_step last = (nl_last_step)(c % 4);
        nl_sde_form form = (nl_sde_form)(c / 4 % 4 + 1);
        bool heun = c / 16 % 2;
        nl_prediction prediction = (nl_prediction)(c / 32 % 3);
        nl_path path = (nl_path)(c / 96);
        char name[96];
        snprintf(name, sizeof(name), "%s_%s_sde_%s_%s_%s", paths[path], predictions[prediction],
                 heun ? "Heun" : "Euler", forms[form], lasts[last]);
        /* 12 points: 11 moves, and a last step where there is one. */
        nl_sampler_options options =
            transport_options(heun ? NL_METHOD_SDE_HEUN : NL_METHOD_SDE_EULER,
                              last == NL_LAST_NONE ? 11 : 12, path, prediction);
        options.sde_form = form;
        options.sde_norm = 0.7;
        options.last_step = last;
        if (form == NL_SDE_SBDM && path != NL_PATH_VP && prediction == NL_PREDICTION_VELOCITY)
            assert_refused(context, &options, "divides by zero at t = 0: choose another SDE form");
        else
            rows += check_row(context, golden, &options, name, 1e-5, &worst);
    }
    print_message("%s: %d SDE rows, the worst at %.2g of its tolerance\n", context->device->name,
                  rows, worst);
    return rows;
}

static void test_golden_rows(void **state)
{
    (void)state;
    for (int d = 0; d < NL_COUNT(devices); d++) {
        nl_context *context = test_context(devices[d] ? devices[d] : test_device());
        nl_checkpoint *golden = test_golden(context, "transport.safetensors");
        /* 9 combinations by 5 methods, dopri5 under both controls, without vp_noise_ode_dopri5 */
        assert_int_equal(check_ode_rows(context, golden), 9 * 6 - 2);
        /* 9 combinations by 11 rows, without the four that are NaN */
        assert_int_equal(check_sde_rows(context, golden), 9 * 11 - 4);
        nl_checkpoint_close(golden);
        nl_context_destroy(context);
    }
}

/* The drift of one number, straight from docs/public-code.md B2 and B5. */
typedef struct direct_sampler {
    nl_path path;
    nl_prediction prediction;
    nl_sde_form form;
    double norm;
} direct_sampler;

static double direct_weight(const direct_sampler *direct, double t, double sigma, double drift_var)
{
    switch (direct->form) {
    case NL_SDE_CONSTANT:
        return direct->norm;
    case NL_SDE_SBDM:
        return direct->norm * drift_var;
    case NL_SDE_SIGMA:
        return direct->norm * sigma;
    case NL_SDE_LINEAR:
        return direct->norm * (1 - t);
    case NL_SDE_DECREASING:
        return 0.25 * pow(direct->norm * cos(M_PI * t) + 1, 2);
    default:
        return direct->norm * pow(sin(M_PI * t), 2);
    }
}

static void direct_terms(const direct_sampler *direct, double x, double t, double *velocity,
                         double *score, double *weight)
{
    double alpha = t, sigma = 1 - t, alpha_rate = 1, sigma_rate = -1;
    if (direct->path == NL_PATH_GVP) {
        alpha = sin(M_PI * t / 2);
        sigma = cos(M_PI * t / 2);
        alpha_rate = M_PI / 2 * sigma;
        sigma_rate = -M_PI / 2 * alpha;
    } else if (direct->path == NL_PATH_VP) {
        double log_alpha = -0.25 * pow(1 - t, 2) * 19.9 - 0.5 * (1 - t) * 0.1;
        double rate = 0.5 * (1 - t) * 19.9 + 0.05;
        alpha = exp(log_alpha);
        sigma = sqrt(1 - alpha * alpha);
        alpha_rate = alpha * rate;
        sigma_rate = -alpha * alpha * rate / sigma;
    }
    double rho = alpha_rate / alpha, drift_var = rho * sigma * sigma - sigma * sigma_rate;
    double f = golden_output_double(x, t), r = alpha / alpha_rate;
    if (direct->prediction == NL_PREDICTION_VELOCITY) {
        *velocity = f;
        *score = (r * f - x) / (sigma * sigma - r * sigma_rate * sigma);
    } else {
        *score = direct->prediction == NL_PREDICTION_NOISE ? -f / sigma : f;
        *velocity = rho * x + drift_var * *score;
    }
    *weight = direct_weight(direct, t, sigma, drift_var);
}

static double direct_drift(const direct_sampler *direct, double x, double t, double *weight)
{
    double velocity, score;
    direct_terms(direct, x, t, &velocity, &score, weight);
    return velocity + *weight * score;
}

/* The share t of the way when u = 1 - t of an even grid becomes shift u / (1 + (shift - 1) u), as in SD3. */
static double shifted(double t, double shift)
{
    double u = 1 - t;
    return 1 - shift * u / (1 + (shift - 1) * u);
}

/* moves from t0 to 1 - size, then x + size * drift (mean) */
static double direct_sde(const direct_sampler *direct, bool heun, int moves, double t0, double size,
                         double shift, double x, const float *noise, int stride)
{
    double weight, unused;
    for (int k = 0; k < moves; k++) {
        double t = t0 + (1 - size - t0) * shifted((double)k / moves, shift);
        double h = t0 + (1 - size - t0) * shifted((k + 1.0) / moves, shift) - t;
        double drift = direct_drift(direct, x, t, &weight);
        double kick = sqrt(2 * weight * h) * noise[k * stride];
        if (heun) {
            x += kick;
            double first = direct_drift(direct, x, t, &unused);
            x += h / 2 * (first + direct_drift(direct, x + h * first, t + h, &unused));
        } else {
            x += h * drift + kick;
        }
    }
    return x + size * direct_drift(direct, x, 1 - size, &unused);
}

static void test_sde_forms_directly(void **state)
{
    (void)state;
    nl_context *context = test_context("reference");
    nl_checkpoint *golden = test_golden(context, "transport.safetensors");
    float *initial = test_read(golden, "noise", NULL),
          *noise = test_read(golden, "sde_noise", NULL);
    for (int c = 0; c < 2 * 6 * 9; c++) {
        bool heun = c % 2;
        direct_sampler direct = {.form = (nl_sde_form)(c / 2 % 6),
                                 .path = (nl_path)(c / 12 % 3),
                                 .prediction = (nl_prediction)(c / 36),
                                 .norm = 0.6};
        nl_sampler_options options = transport_options(
            heun ? NL_METHOD_SDE_HEUN : NL_METHOD_SDE_EULER, 12, direct.path, direct.prediction);
        options.sde_form = direct.form;
        options.sde_norm = direct.norm;
        options.time_shift = c % 5 ? 1 : 2.5;
        options.last_step_size = 0.05;
        options.sample_eps = 0.01;
        double t0 = direct.path != NL_PATH_VP && (direct.prediction != NL_PREDICTION_VELOCITY ||
                                                  direct.form == NL_SDE_SBDM)
                        ? 0.01
                        : 0;
        float result[COUNT], expected[COUNT];
        stand_in network = {.output = golden_output, .noise = noise};
        assert_ok(context,
                  stand_in_sample(context, &options, &network, 4, shape, initial, NULL, result));
        for (int i = 0; i < COUNT; i++)
            expected[i] = (float)direct_sde(&direct, heun, 11, t0, 0.05, options.time_shift,
                                            initial[i], noise + i, COUNT);
        assert_close(result, expected, COUNT, 1e-5);
        assert_int_equal(network.draws, 11);
        assert_int_equal(network.last_draw, 10);
    }
    free(initial);
    free(noise);
    nl_checkpoint_close(golden);
    nl_context_destroy(context);
}

/* Where each of the steps arrives. */
typedef struct nl_arrivals {
    int count;
    double t[64];
} nl_arrivals;

static nl_status note_arrival(void *user, int step, int steps, double t, const nl_tensor *x)
{
    nl_arrivals *arrivals = user;
    (void)steps, (void)x;
    assert_int_equal(step, arrivals->count + 1);
    arrivals->t[arrivals->count++] = t;
    return NL_OK;
}

static nl_arrivals arrivals_of(nl_context *context, const nl_sampler_options *options)
{
    nl_arrivals arrivals = {0};
    nl_device *device = context->device;
    nl_sampler *sampler;
    nl_tensor x;
    float start[4] = {1, -1, 0.5f, 0.2f};
    int64_t mark = nl_arena_mark(device);
    stand_in network = {.device = device, .output = golden_output};
    nl_sample_job job = {.device = device,
                         .model = {stand_in_predict, &network},
                         .noise = {stand_in_draw, &network},
                         .step = note_arrival,
                         .user = &arrivals};
    assert_ok(context, nl_sampler_create(context, options, &sampler));
    if (mark == 0)
        assert_ok(context, nl_arena_reserve(device, 1 << 16));
    assert_ok(context, nl_arena_tensor(device, NL_F32, 2, (int64_t[]){1, 4}, &x));
    assert_ok(context, device->ops->upload(device, x.data, start, sizeof(start)));
    assert_ok(context, nl_sampler_run(sampler, &job, &x));
    nl_arena_release(device, mark);
    nl_sampler_destroy(sampler);
    return arrivals;
}

/* diffusers' FlowMatchEulerDiscreteScheduler with shift 3 (make_solvers_golden.py), and its times. */
static void test_time_shift(void **state)
{
    (void)state;
    for (int d = 0; d < NL_COUNT(devices); d++) {
        nl_context *context = test_context(devices[d] ? devices[d] : test_device());
        nl_checkpoint *golden = test_golden(context, "solvers.safetensors");
        nl_tensor rows;
        float *start = test_read(golden, "x", NULL),
              *sigmas = test_read(golden, "flow_shift_3_sigmas", NULL),
              *expected = test_read(golden, "flow_shift_3", &rows), result[32];
        int64_t count = nl_tensor_count(&rows) / 10;
        assert_int_equal(count, NL_COUNT(result));
        stand_in network = {.output = golden_output};
        nl_sampler_options options =
            transport_options(NL_METHOD_EULER, 10, NL_PATH_LINEAR, NL_PREDICTION_VELOCITY);
        options.time_shift = 3;
        assert_ok(context, stand_in_sample(context, &options, &network, 4, rows.shape + 1, start,
                                           NULL, result));
        assert_close(result, expected + 9 * count, count, 1e-5);
        nl_arrivals arrivals = arrivals_of(context, &options);
        for (int k = 0; k < 10; k++)
            assert_true(fabs(1 - arrivals.t[k] - sigmas[k + 1]) < 1e-6);
        free(start);
        free(sigmas);
        free(expected);
        nl_checkpoint_close(golden);
        nl_context_destroy(context);
    }
}

/* The levels of diffusers' EDMEulerScheduler (0.002 to 80, rho 7), the first of which is the path's beginning here; and what
 * follows where a path ends before its data. */
static void test_rho(void **state)
{
    (void)state;
    nl_context *context = test_context("reference");
    nl_checkpoint *golden = test_golden(context, "solvers.safetensors");
    float *sigmas = test_read(golden, "edm_sigmas", NULL);
    for (int c = 0; c < 6; c++) {
        nl_path path = (nl_path)(c % 3);
        bool sde = c >= 3;
        nl_sampler_options options = transport_options(sde ? NL_METHOD_SDE_EULER : NL_METHOD_HEUN,
                                                       10 + sde, path, NL_PREDICTION_VELOCITY);
        options.rho = 7;
        nl_arrivals arrivals = arrivals_of(context, &options);
        double t_1 = sde ? 0.96 : path == NL_PATH_VP ? 0.999 : 1;
        nl_path_point end = nl_path_at(path, t_1);
        assert_int_equal(arrivals.count, 10 + sde);
        for (int k = 0; k < 10; k++) {
            nl_path_point at = nl_path_at(path, arrivals.t[k]);
            double ratio = at.sigma / at.alpha;
            /* What has noise left at its end goes there in 10 steps, not in 9 and one to no noise. */
            double expected =
                t_1 < 1 ? pow(pow(80, 1.0 / 7) +
                                  (k + 1) / 10.0 *
                                      (pow(end.sigma / end.alpha, 1.0 / 7) - pow(80, 1.0 / 7)),
                              7)
                        : (double)sigmas[k + 1];
            assert_true(fabs(ratio - expected) <= 2e-6 * expected + 1e-12);
        }
        assert_true(fabs(arrivals.t[9] - t_1) < 1e-12);
    }
    for (int path = 0; path < 3; path++)
        for (double ratio = 1e-3; ratio < 100; ratio *= 3) {
            nl_path_point at = nl_path_at((nl_path)path, nl_path_time((nl_path)path, ratio));
            assert_true(fabs(at.sigma / at.alpha - ratio) < 1e-9 * ratio);
        }
    for (int steps = 1; steps <= 3; steps++) {
        nl_sampler_options options =
            transport_options(NL_METHOD_EULER, steps, NL_PATH_LINEAR, NL_PREDICTION_VELOCITY);
        options.rho = 7;
        nl_arrivals arrivals = arrivals_of(context, &options);
        assert_int_equal(arrivals.count, steps);
        assert_true(arrivals.t[steps - 1] == 1);
        assert_true(steps == 1 || fabs(arrivals.t[steps - 2] - 1 / 1.002) < 1e-9);
    }
    free(sigmas);
    nl_checkpoint_close(golden);
    nl_context_destroy(context);
}

static void test_evaluations(void **state)
{
    (void)state;
    static const struct {
        nl_method method;
        int steps, evaluations;
    } expected[] = {
        {NL_METHOD_EULER, 1, 1}, {NL_METHOD_EULER, 7, 7},     {NL_METHOD_MIDPOINT, 7, 14},
        {NL_METHOD_HEUN, 1, 1},  {NL_METHOD_HEUN, 7, 13},     {NL_METHOD_HEUN2, 7, 14},
        {NL_METHOD_AB2, 1, 2},   {NL_METHOD_AB2, 2, 4},       {NL_METHOD_AB2, 7, 9},
        {NL_METHOD_RK4, 7, 28},  {NL_METHOD_SDE_EULER, 7, 7}, {NL_METHOD_SDE_HEUN, 7, 13}};
    nl_context *context = test_context("reference");
    float start[COUNT], result[COUNT];
    start_numbers(start, COUNT);
    for (int c = 0; c < NL_COUNT(expected); c++) {
        int64_t evaluations[IMAGES] = {100, 200};
        stand_in network = {.output = golden_output};
        nl_sampler_options options = transport_options(expected[c].method, expected[c].steps,
                                                       NL_PATH_LINEAR, NL_PREDICTION_VELOCITY);
        assert_ok(context, stand_in_sample(context, &options, &network, 4, shape, start,
                                           evaluations, result));
        assert_int_equal(network.calls, expected[c].evaluations);
        assert_int_equal(evaluations[0], 100 + expected[c].evaluations);
        assert_int_equal(evaluations[1], 200 + expected[c].evaluations);
        assert_true(network.largest_t <= 1);
    }
    nl_context_destroy(context);
}

/* Adams-Bashforth 2 by its formula for steps of any length, in double: the trapezoid where `anew` says so. */
static double direct_ab2(double x, int steps, double shift, const bool *anew)
{
    double before = 0, length = 1;
    for (int k = 0; k < steps; k++) {
        double t = shifted((double)k / steps, shift), next = shifted((k + 1.0) / steps, shift);
        double h = next - t, drift = golden_output_double(x, t);
        if (anew[k])
            x += h / 2 * (drift + golden_output_double(x + h * drift, next));
        else
            x += h * (drift + h / (2 * length) * (drift - before));
        before = drift;
        length = h;
    }
    return x;
}

static void test_adams(void **state)
{
    (void)state;
    static const struct {
        double low, high, shift;
        double guide[2]; /* interval of the guiding network */
        bool anew[10];   /* beside the first and the last */
    } cases[] = {
        {0, 0, 1, {0}, {0}},
        {0, 0, 3, {0}, {0}},
        {0.3, 0.6, 1, {0}, {[3] = true, [7] = true}},   /* guided from 0.3 to 0.6, both included */
        {0.25, 0.65, 1, {0}, {[3] = true, [7] = true}}, /* switched within a step */
        {0.05, 1, 1, {0}, {[1] = true}},
        {0, 0.5, 0.5, {0}, {[4] = true}}, /* which begins at 0.571, the one before at 0.462 */
        {0, 0, 1, {0.3, 0.6}, {[3] = true, [7] = true}},
        {0.2, 1, 1, {0.3, 0.6}, {[2] = true, [3] = true, [7] = true}},
    };
    for (int d = 0; d < NL_COUNT(devices); d++) {
        nl_context *context = test_context(devices[d] ? devices[d] : test_device());
        float start[COUNT], result[COUNT], expected[COUNT];
        start_numbers(start, COUNT);
        for (int c = 0; c < NL_COUNT(cases); c++) {
            bool anew[10];
            int evaluations = 10;
            for (int k = 0; k < 10; k++) {
                anew[k] = cases[c].anew[k] || k == 0 || k == 9;
                evaluations += anew[k];
            }
            for (int i = 0; i < COUNT; i++)
                expected[i] = (float)direct_ab2(start[i], 10, cases[c].shift, anew);
            stand_in network = {.output = golden_output};
            nl_sampler_options options =
                transport_options(NL_METHOD_AB2, 10, NL_PATH_LINEAR, NL_PREDICTION_VELOCITY);
            options.time_shift = cases[c].shift;
            options.cfg_interval[0] = cases[c].low;
            options.cfg_interval[1] = cases[c].high;
            memcpy(options.guide_interval, cases[c].guide, sizeof(options.guide_interval));
            assert_ok(context,
                      stand_in_sample(context, &options, &network, 4, shape, start, NULL, result));
            assert_close(result, expected, COUNT, 1e-5);
            assert_int_equal(network.calls, evaluations);
        }
        nl_context_destroy(context);
    }
}

static float jumps(float x, float t)
{
    (void)x;
    return t > 0.45f && t < 0.85f ? 3 : 1;
}

/* A field that is constant on both sides of a switch: begun anew, the method is exact where it falls on the grid; unknown, the
 * step after it is off by half the jump. */
static void test_adams_at_a_switch(void **state)
{
    (void)state;
    nl_context *context = test_context("reference");
    float start[COUNT] = {0}, result[COUNT];
    for (int known = 0; known < 2; known++) {
        stand_in network = {.output = jumps};
        nl_sampler_options options =
            transport_options(NL_METHOD_AB2, 10, NL_PATH_LINEAR, NL_PREDICTION_VELOCITY);
        options.cfg_interval[0] = known ? 0.5 : 0;
        options.cfg_interval[1] = known ? 0.8 : 0;
        assert_ok(context,
                  stand_in_sample(context, &options, &network, 4, shape, start, NULL, result));
        /* Four steps of 3 and six of 1; the last one is trapezoidal in any case. */
        assert_true(fabs(result[0] - (known ? 1.8 : 1.8 + 0.1 * 2 / 2)) < 1e-5);
    }
    nl_context_destroy(context);
}

static float flow_output(float x, float t)
{
    return 2 * x + t;
}

/* A flow map is asked for whole steps: each ends where the next begins, the last at 1. */
static void test_flow_map(void **state)
{
    (void)state;
    nl_context *context = test_context("reference");
    float start[COUNT], result[COUNT];
    start_numbers(start, COUNT);
    for (int steps = 1; steps <= 7; steps++) {
        stand_in network = {.output = flow_output};
        nl_sampler_options options =
            transport_options(NL_METHOD_FLOW, steps, NL_PATH_LINEAR, NL_PREDICTION_VELOCITY);
        assert_ok(context,
                  stand_in_sample(context, &options, &network, 4, shape, start, NULL, result));
        assert_int_equal(network.calls, steps);
        assert_true(network.last_s == 1);
        for (int i = 0; i < COUNT; i++) {
            double x = start[i];
            for (int k = 0; k < steps; k++)
                x += (2 * x + (double)k / steps) / steps;
            assert_true(fabs(result[i] - x) <= 1e-5 * (1 + fabs(x)));
        }
    }
    stand_in network = {.output = flow_output};
    nl_sampler_options options =
        transport_options(NL_METHOD_EULER, 2, NL_PATH_LINEAR, NL_PREDICTION_VELOCITY);
    assert_ok(context, stand_in_sample(context, &options, &network, 4, shape, start, NULL, result));
    assert_true(isnan(network.last_s)); /* a velocity has one time */
    nl_context_destroy(context);
}

/* Every jump but the last ends between its step's end, s, and the data, half way with few steps (the first at the data, if it is
 * whole), and noise leads back, so that there is as
 * much noise as on the path: 1 - s. */
static void test_flow_map_with_noise(void **state)
{
    (void)state;
    nl_context *context = test_context("reference");
    float start[COUNT], result[COUNT], noise[6 * COUNT];
    start_numbers(start, COUNT);
    for (int i = 0; i < NL_COUNT(noise); i++)
        noise[i] = start[(7 * i + 1) % COUNT] - start[i % COUNT];
    for (int run = 0; run < 14; run++) {
        int steps = 1 + run / 2;
        bool whole = run % 2;
        stand_in network = {.output = flow_output, .noise = noise};
        nl_sampler_options options =
            transport_options(NL_METHOD_FLOW_SDE, steps, NL_PATH_LINEAR, NL_PREDICTION_VELOCITY);
        options.whole_first = whole;
        assert_ok(context,
                  stand_in_sample(context, &options, &network, 4, shape, start, NULL, result));
        assert_int_equal(network.calls, steps);
        assert_int_equal(network.draws, steps - 1);
        assert_true(network.last_s == 1);
        for (int i = 0; i < COUNT; i++) {
            double x = start[i];
            for (int k = 0; k < steps; k++) {
                double t = (double)k / steps, s = (k + 1.0) / steps;
                double share = k == 0 && whole ? 1 : steps < 5 ? 0.5 : 2.4 / steps;
                double end = s + share * (1 - s);
                x += (2 * x + t) * (end - t);
                double keep = s / end, variance = (1 - s) * (1 - s) - pow(keep * (1 - end), 2);
                if (k + 1 < steps)
                    x = keep * x + sqrt(variance) * noise[k * COUNT + i];
            }
            assert_true(fabs(result[i] - x) <= 1e-5 * (1 + fabs(x)));
        }
    }
    nl_context_destroy(context);
}

/* 5000 steps of the classical Runge-Kutta method in double. */
static void solve_exactly(const direct_sampler *direct, double t0, double t1, const float *start,
                          float *end)
{
    double h = (t1 - t0) / 5000, s, w, k1, k2, k3, k4;
    for (int i = 0; i < COUNT; i++) {
        double x = start[i];
        for (int k = 0; k < 5000; k++) {
            double t = t0 + k * h;
            direct_terms(direct, x, t, &k1, &s, &w);
            direct_terms(direct, x + h / 2 * k1, t + h / 2, &k2, &s, &w);
            direct_terms(direct, x + h / 2 * k2, t + h / 2, &k3, &s, &w);
            direct_terms(direct, x + h * k3, t + h, &k4, &s, &w);
            x += h / 6 * (k1 + 2 * k2 + 2 * k3 + k4);
        }
        end[i] = (float)x;
    }
}

static double ode_error(nl_context *context, nl_method method, int steps, const float *start,
                        const float *exact)
{
    float result[COUNT];
    stand_in network = {.output = golden_output};
    nl_sampler_options options =
        transport_options(method, steps, NL_PATH_LINEAR, NL_PREDICTION_VELOCITY);
    assert_ok(context, stand_in_sample(context, &options, &network, 4, shape, start, NULL, result));
    return test_relative_error(result, exact, COUNT);
}

static void test_orders(void **state)
{
    (void)state;
    static const struct {
        nl_method method;
        int steps, order;
    } expected[] = {{NL_METHOD_EULER, 40, 1}, {NL_METHOD_MIDPOINT, 20, 2}, {NL_METHOD_HEUN, 20, 2},
                    {NL_METHOD_HEUN2, 20, 2}, {NL_METHOD_AB2, 80, 2},      {NL_METHOD_RK4, 6, 4}};
    nl_context *context = test_context("reference");
    float start[COUNT], exact[COUNT];
    direct_sampler velocity = {NL_PATH_LINEAR, NL_PREDICTION_VELOCITY, NL_SDE_SIGMA, 1};
    start_numbers(start, COUNT);
    solve_exactly(&velocity, 0, 1, start, exact);
    for (int c = 0; c < NL_COUNT(expected); c++) {
        nl_method method = expected[c].method;
        double coarse = ode_error(context, method, expected[c].steps, start, exact);
        double fine = ode_error(context, method, 2 * expected[c].steps, start, exact);
        double order = log2(coarse / fine);
        print_message("%s: %.3g, %.3g, order %.2f\n", nl_method_names[method], coarse, fine, order);
        assert_true(fabs(order - expected[c].order) < 0.5);
    }
    /* heun's last step is Euler: not heun2, and a little behind it here. */
    assert_true(ode_error(context, NL_METHOD_HEUN, 10, start, exact) !=
                ode_error(context, NL_METHOD_HEUN2, 10, start, exact));
    nl_context_destroy(context);
}

/* docs/public-code.md B4: 3 accepted and 1 rejected step; the last overshoots. */
static void test_dopri5_checkpoint(void **state)
{
    (void)state;
    nl_context *context = test_context("reference");
    nl_checkpoint *golden = test_golden(context, "transport.safetensors");
    float *initial = test_read(golden, "noise", NULL), result[COUNT];
    int64_t evaluations[IMAGES] = {0};
    stand_in network = {.output = golden_output};
    nl_sampler_options options =
        transport_options(NL_METHOD_DOPRI5, 0, NL_PATH_LINEAR, NL_PREDICTION_VELOCITY);
    options.batch_control = true;
    assert_ok(context,
              stand_in_sample(context, &options, &network, 4, shape, initial, evaluations, result));
    assert_int_equal(evaluations[0], 26);
    assert_int_equal(evaluations[1], 26);
    print_message("seen up to t = %.4f\n", (double)network.largest_t);
    assert_true(fabsf(network.largest_t - 1.33f) < 0.005f);
    free(initial);
    nl_checkpoint_close(golden);
    nl_context_destroy(context);
}

/* An image alone, and among others whose equations are harder or end sooner: the same bits. */
static void check_per_image(nl_context *context, nl_path path, nl_prediction prediction)
{
    enum { BATCH = 5 };
    float start[BATCH * SIZE], together[BATCH * SIZE], alone[SIZE];
    int64_t together_evaluations[BATCH] = {0}, fewest = INT64_MAX, most = 0;
    start_numbers(start, BATCH * SIZE);
    for (int i = 0; i < BATCH * SIZE; i++)
        start[i] *= powf(4, (float)(i / SIZE - 3));
    stand_in network = {.output = golden_output};
    nl_sampler_options options = transport_options(NL_METHOD_DOPRI5, 0, path, prediction);
    assert_ok(context, stand_in_sample(context, &options, &network, 4, (int64_t[]){BATCH, 4, 4, 4},
                                       start, together_evaluations, together));
    for (int image = 0; image < BATCH; image++) {
        int64_t evaluations = 0;
        assert_ok(context, stand_in_sample(context, &options, &network, 4, (int64_t[]){1, 4, 4, 4},
                                           start + image * SIZE, &evaluations, alone));
        assert_int_equal(evaluations, together_evaluations[image]);
        assert_memory_equal(alone, together + image * SIZE, sizeof(alone));
        fewest = NL_MIN(fewest, evaluations);
        most = NL_MAX(most, evaluations);
    }
    print_message("%s, %s %s: %d to %d evaluations\n", context->device->name, paths[path],
                  predictions[prediction], (int)fewest, (int)most);
    assert_true(fewest < most);
}

static void test_dopri5_is_per_image(void **state)
{
    (void)state;
    for (int d = 0; d < NL_COUNT(devices); d++) {
        nl_context *context = test_context(devices[d] ? devices[d] : test_device());
        for (int c = 0; c < 9; c++)
            check_per_image(context, (nl_path)(c / 3), (nl_prediction)(c % 3));
        nl_context_destroy(context);
    }
}

/* Where sigma does not exist beyond t = 1, steps over it are rejected, and the result is still right. */
static void test_dopri5_rejects_nan(void **state)
{
    (void)state;
    nl_context *context = test_context("reference");
    float start[COUNT], exact[COUNT], result[COUNT];
    direct_sampler noise = {NL_PATH_VP, NL_PREDICTION_NOISE, NL_SDE_SIGMA, 1};
    start_numbers(start, COUNT);
    solve_exactly(&noise, 0, 1 - 1e-3, start, exact);
    stand_in network = {.output = golden_output};
    nl_sampler_options options =
        transport_options(NL_METHOD_DOPRI5, 0, NL_PATH_VP, NL_PREDICTION_NOISE);
    options.rtol = 1e-5;
    options.atol = 1e-8;
    assert_ok(context, stand_in_sample(context, &options, &network, 4, shape, start, NULL, result));
    print_message("vp noise: %d evaluations, up to t = %.4f\n", network.calls,
                  (double)network.largest_t);
    assert_true(network.largest_t > 1);
    assert_close(result, exact, COUNT, 1e-4);
    nl_context_destroy(context);
}

/* The tolerance bounds the error of a step, not that of the result, and which steps are taken hangs on the rounding of the
 * first one, so on the mathematical library too: whatever they are, the result is within a small multiple of the
 * tolerance (measured over 200 starts: 10 at 1e-3 and 1e-5, 8 at 1e-6, 5 at 1e-7). */
static void test_dopri5_tolerance(void **state)
{
    (void)state;
    static const double tolerances[] = {1e-3, 1e-4, 1e-5, 1e-6, 1e-7};
    nl_context *context = test_context("reference");
    float first[COUNT], start[COUNT], exact[COUNT], result[COUNT];
    direct_sampler velocity = {NL_PATH_LINEAR, NL_PREDICTION_VELOCITY, NL_SDE_SIGMA, 1};
    start_numbers(first, COUNT);
    stand_in network = {.output = golden_output};
    nl_sampler_options options =
        transport_options(NL_METHOD_DOPRI5, 0, NL_PATH_LINEAR, NL_PREDICTION_VELOCITY);
    for (int k = 0; k < 20; k++) {
        int64_t evaluations[NL_COUNT(tolerances)][IMAGES] = {{0}};
        for (int i = 0; i < COUNT; i++)
            start[i] = first[i] * (1 + 1e-6f * (float)k);
        solve_exactly(&velocity, 0, 1, start, exact);
        for (int n = 0; n < NL_COUNT(tolerances); n++) {
            options.rtol = options.atol = tolerances[n];
            assert_ok(context, stand_in_sample(context, &options, &network, 4, shape, start,
                                               evaluations[n], result));
            assert_close(result, exact, COUNT, 12 * tolerances[n]);
        }
        assert_close(result, exact, COUNT, 2e-6);
        assert_true(evaluations[NL_COUNT(tolerances) - 1][0] > evaluations[0][0]);
    }
    options.rtol = 0;
    options.atol = 1e-12; /* beyond fp32: still ends, or says why not */
    nl_status status = stand_in_sample(context, &options, &network, 4, shape, start, NULL, result);
    if (status == NL_OK)
        assert_close(result, exact, COUNT, 1e-5);
    else
        assert_int_equal(status, NL_ERROR_USAGE);
    nl_context_destroy(context);
}

static void assert_not_finite(nl_context *context, nl_method method, int nan_at_call,
                              const char *where)
{
    float start[COUNT], result[COUNT];
    start_numbers(start, COUNT);
    stand_in network = {.output = golden_output, .nan_at_call = nan_at_call};
    nl_sampler_options options =
        transport_options(method, 10, NL_PATH_LINEAR, NL_PREDICTION_VELOCITY);
    assert_int_equal(stand_in_sample(context, &options, &network, 4, shape, start, NULL, result),
                     NL_ERROR_NOT_FINITE);
    if (!strstr(nl_last_error(context), where))
        fail_msg("'%s' does not say '%s'", nl_last_error(context), where);
}

static float blows_up(float x, float t)
{
    return t > 0.5f ? NAN : x;
}

static void test_not_finite(void **state)
{
    (void)state;
    nl_context *context = test_context("reference");
    float start[COUNT], result[COUNT];
    start_numbers(start, COUNT);
    assert_not_finite(context, NL_METHOD_EULER, 4, "euler, step 4 of 10, t = 0.4");
    assert_not_finite(context, NL_METHOD_HEUN, 4, "heun, step 2 of 10, t = 0.2");
    assert_not_finite(context, NL_METHOD_SDE_EULER, 10, "sde-euler, step 10 of 10");
    assert_not_finite(context, NL_METHOD_DOPRI5, 1, "dopri5, step 1, t = 0");
    assert_not_finite(context, NL_METHOD_DOPRI5, 2, "dopri5, step 1, t = 0");
    stand_in network = {.output = blows_up};
    nl_sampler_options options =
        transport_options(NL_METHOD_DOPRI5, 0, NL_PATH_LINEAR, NL_PREDICTION_VELOCITY);
    assert_int_equal(stand_in_sample(context, &options, &network, 4, shape, start, NULL, result),
                     NL_ERROR_NOT_FINITE);
    assert_non_null(strstr(nl_last_error(context), "t = 0.5"));
    /* One bad evaluation is only a rejected step. */
    network = (stand_in){.output = golden_output, .nan_at_call = 5};
    assert_ok(context, stand_in_sample(context, &options, &network, 4, shape, start, NULL, result));
    nl_context_destroy(context);
}

static void test_refusals(void **state)
{
    (void)state;
    nl_context *context = test_context("reference");
    nl_sampler_options options =
        transport_options(NL_METHOD_EULER, 10, NL_PATH_LINEAR, NL_PREDICTION_NOISE);
    options.sample_eps = 0;
    assert_refused(context, &options,
                   "euler on the path linear with prediction noise divides by zero "
                   "at t = 0: choose a \"sample_eps\" above 0 in the configuration");
    options.method = NL_METHOD_DOPRI5;
    assert_refused(context, &options, "divides by zero at t = 0");
    options = transport_options(NL_METHOD_HEUN2, 10, NL_PATH_VP, NL_PREDICTION_NOISE);
    options.sample_eps = 0;
    assert_refused(
        context, &options,
        "divides by zero at t = 1: choose a \"sample_eps\" above 0 in the configuration");
    for (int c = 2; c < 120; c++) { /* the second stage of the last step stands at t = 1 */
        options =
            transport_options(NL_METHOD_SDE_HEUN, c / 2, (nl_path)(c % 2), NL_PREDICTION_VELOCITY);
        options.last_step = NL_LAST_NONE;
        assert_refused(context, &options, "divides by zero at t = 1: choose a last step");
    }
    options = transport_options(NL_METHOD_SDE_EULER, 1, NL_PATH_LINEAR, NL_PREDICTION_VELOCITY);
    assert_refused(context, &options, "steps is 1");
    options.steps = 10;
    options.last_step_size = 0;
    assert_refused(context, &options, "last_step_size is 0");
    options.last_step_size = 0.04;
    options.sde_norm = -1;
    assert_refused(context, &options, "sde_norm is -1");
    options = transport_options(NL_METHOD_HEUN, 0, NL_PATH_LINEAR, NL_PREDICTION_VELOCITY);
    assert_refused(context, &options, "steps is 0");
    options.steps = 10;
    options.reverse = true;
    assert_refused(context, &options, "does not run from data to noise");
    options.reverse = false;
    options.respacing = "250";
    assert_refused(context, &options, "respacing '250'");
    options.respacing = NULL;
    options.sample_eps = NAN;
    assert_refused(context, &options, "sample_eps is nan");
    options = transport_options(NL_METHOD_HEUN, 10, NL_PATH_LINEAR, NL_PREDICTION_VELOCITY);
    options.time_shift = 0;
    assert_refused(context, &options, "time_shift is 0");
    options.time_shift = NAN;
    assert_refused(context, &options, "time_shift is nan");
    options.time_shift = 3;
    options.rho = 7;
    assert_refused(context, &options, "rho 7 and time_shift both say where steps lie");
    options.method = NL_METHOD_DOPRI5;
    assert_refused(context, &options,
                   "time_shift 3 is for the fixed steps of a SiT: dopri5 has none");
    options.time_shift = 1;
    assert_refused(context, &options, "does not fit dopri5");
    options.method = NL_METHOD_EULER;
    options.rho = 0.5;
    assert_refused(context, &options, "rho is 0.5");
    options.rho = NAN;
    assert_refused(context, &options, "rho is nan");
    options = transport_options(NL_METHOD_DOPRI5, 0, NL_PATH_LINEAR, NL_PREDICTION_VELOCITY);
    options.atol = 0;
    assert_refused(context, &options, "atol is 0");
    options.atol = 1e-6;
    options.rtol = NAN;
    assert_refused(context, &options, "rtol is");
    nl_context_destroy(context);
}

static nl_status stop_at_three(void *user, int step, int steps, double t, const nl_tensor *x)
{
    int *seen = user;
    assert_int_equal(step, ++*seen);
    assert_int_equal(steps, 10);
    assert_true(fabs(t - step / 10.0) < 1e-12);
    assert_int_equal(x->shape[0], IMAGES);
    return step == 3 ? NL_CANCELLED : NL_OK;
}

/* The step function ends a run, and so does nl_cancel. */
static void test_cancelling(void **state)
{
    (void)state;
    nl_context *context = test_context("reference");
    nl_device *device = context->device;
    nl_sampler *sampler;
    nl_tensor x;
    int seen = 0;
    float start[COUNT];
    start_numbers(start, COUNT);
    stand_in network = {.device = device, .output = golden_output};
    nl_sampler_options options =
        transport_options(NL_METHOD_EULER, 10, NL_PATH_LINEAR, NL_PREDICTION_VELOCITY);
    nl_sample_job job = {.device = device,
                         .model = {stand_in_predict, &network},
                         .step = stop_at_three,
                         .user = &seen};
    assert_ok(context, nl_sampler_create(context, &options, &sampler));
    assert_ok(context, nl_arena_reserve(device, 1 << 16));
    assert_ok(context, nl_arena_tensor(device, NL_F32, 4, shape, &x));
    assert_ok(context, device->ops->upload(device, x.data, start, nl_tensor_bytes(&x)));
    int64_t mark = nl_arena_mark(device);
    assert_int_equal(nl_sampler_run(sampler, &job, &x), NL_CANCELLED);
    assert_int_equal(seen, 3);
    assert_int_equal(network.calls, 3);
    assert_int_equal(nl_arena_mark(device), mark);
    nl_cancel(context);
    job.step = NULL;
    assert_int_equal(nl_sampler_run(sampler, &job, &x), NL_CANCELLED);
    assert_int_equal(network.calls, 4);
    nl_sampler_destroy(sampler);
    nl_context_destroy(context);
}

/* Whatever allocation fails: a clear error, nothing lost, and the arena as it was. */
static void test_failing_allocations(void **state)
{
    (void)state;
    static const nl_method methods[] = {NL_METHOD_DDPM, NL_METHOD_UNIPC, NL_METHOD_DPMPP_2M_SDE,
                                        NL_METHOD_SDE_HEUN, NL_METHOD_DOPRI5};
    nl_context *context = test_context("reference");
    float start[COUNT], result[COUNT];
    start_numbers(start, COUNT);
    stand_in network = {.output = golden_output};
    for (int c = 0; c < NL_COUNT(methods); c++) {
        nl_sampler_options options =
            transport_options(methods[c], 3, NL_PATH_LINEAR, NL_PREDICTION_VELOCITY);
        options.variance = NL_VARIANCE_FIXED_SMALL;
        assert_ok(context,
                  stand_in_sample(context, &options, &network, 4, shape, start, NULL, result));
        int64_t used = context->memory_used, before = context->allocations;
        assert_ok(context,
                  stand_in_sample(context, &options, &network, 4, shape, start, NULL, result));
        int64_t allocations = context->allocations - before;
        assert_true(allocations >= 3);
        for (int64_t n = 1; n <= allocations; n++) {
            context->fail_allocation = context->allocations + n;
            assert_int_equal(
                stand_in_sample(context, &options, &network, 4, shape, start, NULL, result),
                NL_ERROR_MEMORY);
            context->fail_allocation = 0;
            assert_int_equal(context->memory_used, used);
            assert_int_equal(nl_arena_mark(context->device), 0);
        }
    }
    nl_context_destroy(context);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_golden_rows),         cmocka_unit_test(test_sde_forms_directly),
        cmocka_unit_test(test_time_shift),          cmocka_unit_test(test_rho),
        cmocka_unit_test(test_evaluations),         cmocka_unit_test(test_adams),
        cmocka_unit_test(test_adams_at_a_switch),   cmocka_unit_test(test_flow_map),
        cmocka_unit_test(test_flow_map_with_noise), cmocka_unit_test(test_orders),
        cmocka_unit_test(test_dopri5_checkpoint),   cmocka_unit_test(test_dopri5_is_per_image),
        cmocka_unit_test(test_dopri5_rejects_nan),  cmocka_unit_test(test_dopri5_tolerance),
        cmocka_unit_test(test_not_finite),          cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_cancelling),          cmocka_unit_test(test_failing_allocations),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
