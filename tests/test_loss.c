/* SPDX-License-Identifier: MIT */
/* Training losses against those of the public DiT and SiT code on a stand-in network. */
#include "loss.h"
#include "nl_random.h"
#include "nl_test.h"

enum { B = 5, E = 64 /* elements of an image */ };

static nl_context *context;

/* loss [B] at the given times, of predictions made by `network` from x_t. */
typedef void (*stand_in_network)(const float *x, float t, float *prediction);

static void run_loss(const nl_config *config, nl_weighting weighting, const double *times,
                     const float *data, const float *noise, stand_in_network network, float *result)
{
    nl_device *device = context->device;
    nl_loss *loss = NULL;
    nl_loss_options options = {.weighting = weighting, .min_snr = 5};
    static float t[B], rows[B * NL_LOSS_COLUMNS], vb[B * NL_VB_COLUMNS], x[B * E], p[2 * B * E];
    assert_ok(context, nl_loss_create(context, config, &options, &loss));
    nl_loss_rows(loss, times, B, t, rows, vb);
    int64_t shape[] = {B, 4, 4, 4}, wide[] = {B, nl_loss_is_variational(loss) ? 8 : 4, 4, 4};
    nl_tensor of_x = nl_tensor_of(x, NL_F32, 4, shape);
    nl_tensor of_data = nl_tensor_of((void *)(uintptr_t)data, NL_F32, 4, shape);
    nl_tensor of_noise = nl_tensor_of((void *)(uintptr_t)noise, NL_F32, 4, shape);
    nl_tensor prediction = nl_tensor_of(p, NL_F32, 4, wide);
    nl_tensor of_loss = nl_tensor_of(result, NL_F32, 1, (int64_t[]){B});
    nl_tensor of_rows = nl_tensor_of(rows, NL_F32, 2, (int64_t[]){B, NL_LOSS_COLUMNS});
    nl_tensor of_vb = nl_tensor_of(vb, NL_F32, 2, (int64_t[]){B, NL_VB_COLUMNS});
    assert_ok(context, NL_OP(device, diffuse, .data = of_data, .noise = of_noise,
                             .coefficients = of_rows, .y = of_x));
    for (int b = 0; b < B; b++)
        network(x + b * E, t[b], p + b * wide[1] * 16);
    assert_ok(context, NL_OP(device, regression_loss, .prediction = prediction, .data = of_data,
                             .noise = of_noise, .coefficients = of_rows, .loss = of_loss));
    if (nl_loss_is_variational(loss))
        assert_ok(context, NL_OP(device, variational_loss, .prediction = prediction, .x = of_x,
                                 .data = of_data, .coefficients = of_vb, .loss = of_loss));
    nl_loss_destroy(loss);
}

static void transport_network(const float *x, float t, float *prediction)
{
    for (int i = 0; i < E; i++)
        prediction[i] = tanhf(0.8f * x[i]) * (1 + 0.5f * cosf(6 * t)) - 0.3f * x[i];
}

static void diffusion_network(const float *x, float t, float *prediction)
{
    for (int i = 0; i < E; i++) {
        prediction[i] = tanhf(0.8f * x[i] + 0.1f * cosf(0.01f * t));
        prediction[E + i] = 0.5f * sinf(3 * x[i]);
    }
}

static void transport_losses(void **state)
{
    (void)state;
    static const char *const paths[] = {"linear", "gvp", "vp"};
    static const char *const predictions[] = {"velocity", "noise", "score"};
    static const char *const weightings[] = {"None", "velocity", "likelihood"};
    test_need_golden("transport.safetensors");
    nl_checkpoint *golden = test_golden(context, "transport.safetensors");
    float *data = test_read(golden, "x1", NULL), *noise = test_read(golden, "x0", NULL);
    float *u = test_read(golden, "u", NULL);
    int compared = 0;
    for (int path = 0; path < 3; path++)
        for (int prediction = 0; prediction < 3; prediction++)
            for (int weighting = 0; weighting < 3; weighting++) {
                char name[64];
                float result[B];
                double times[B];
                snprintf(name, sizeof(name), "%s_%s_loss_%s", paths[path], predictions[prediction],
                         weightings[weighting]);
                if (!nl_checkpoint_find(golden, name))
                    continue;
                nl_config config;
                nl_config_init(&config);
                config.architecture = NL_ARCH_SIT;
                config.path = (nl_path)path;
                config.prediction = (nl_prediction)prediction;
                /* docs/public-code.md B3 */
                bool velocity = prediction == NL_PREDICTION_VELOCITY;
                double t0 = path == NL_PATH_VP || velocity ? 0 : 1e-3;
                double t1 = path == NL_PATH_VP ? 1 - 1e-5 : velocity ? 1 : 1 - 1e-3;
                for (int b = 0; b < B; b++)
                    times[b] = t0 + u[b] * (t1 - t0);
                float *expected = test_read(golden, name, NULL);
                run_loss(&config, (nl_weighting)weighting, times, data, noise, transport_network,
                         result);
                double error = test_relative_error(result, expected, B);
                if (!(error <= 1e-4))
                    fail_msg("%s: relative error %g", name, error);
                compared++;
                free(expected);
            }
    assert_int_equal(compared, 21);
    free(data);
    free(noise);
    free(u);
    nl_checkpoint_close(golden);
}

static void diffusion_losses(void **state)
{
    (void)state;
    test_need_golden("ddpm.safetensors");
    nl_checkpoint *golden = test_golden(context, "ddpm.safetensors");
    float *data = test_read(golden, "loss_x_start", NULL);
    float *noise = test_read(golden, "loss_noise", NULL);
    float *t = test_read(golden, "loss_t", NULL);
    float *both = test_read(golden, "loss", NULL), *mse = test_read(golden, "loss_mse", NULL);
    float result[B];
    double times[B];
    for (int b = 0; b < B; b++)
        times[b] = t[b];
    nl_config config;
    nl_config_init(&config);
    config.architecture = NL_ARCH_DIT;
    run_loss(&config, NL_WEIGHTING_NONE, times, data, noise, diffusion_network, result);
    assert_close(result, both, B, 1e-4);
    config.learn_sigma = false;
    config.variance = NL_VARIANCE_FIXED_LARGE;
    run_loss(&config, NL_WEIGHTING_NONE, times, data, noise, diffusion_network, result);
    assert_close(result, mse, B, 1e-4);
    free(data);
    free(noise);
    free(t);
    free(both);
    free(mse);
    nl_checkpoint_close(golden);
}

/* min(SNR, gamma) on x_0, whatever is predicted: the same prediction of x_0 in another guise has the same loss. */
static void min_snr(void **state)
{
    (void)state;
    const double times[] = {0.02, 0.3, 0.5, 0.9, 0.97};
    float rows[3][5 * NL_LOSS_COLUMNS], vb[5 * NL_VB_COLUMNS], t[5];
    for (int prediction = 0; prediction < 3; prediction++) {
        nl_config config;
        nl_loss *loss = NULL;
        nl_config_init(&config);
        config.architecture = NL_ARCH_SIT;
        config.prediction = (nl_prediction)prediction;
        nl_loss_options options = {.weighting = NL_WEIGHTING_MIN_SNR, .min_snr = 5};
        assert_ok(context, nl_loss_create(context, &config, &options, &loss));
        nl_loss_rows(loss, times, 5, t, rows[prediction], vb);
        nl_loss_destroy(loss);
    }
    for (int i = 0; i < 5; i++) {
        double alpha = times[i], sigma = 1 - alpha, snr = alpha * alpha / (sigma * sigma);
        double wanted = fmin(snr, 5);
        /* errors of v, noise, score by one of x_1 */
        const double error[] = {1 / sigma, alpha / sigma, alpha / (sigma * sigma)};
        for (int k = 0; k < 3; k++) {
            double weight = rows[k][i * NL_LOSS_COLUMNS + NL_LOSS_WEIGHT];
            assert_true(fabs(weight * error[k] * error[k] / wanted - 1) < 1e-5);
        }
    }
}

static void draws(void **state)
{
    (void)state;
    enum { N = 4000 };
    static int64_t samples[N];
    static float t[N], rows[N * NL_LOSS_COLUMNS], vb[N * NL_VB_COLUMNS], again[3];
    nl_config config;
    nl_loss *loss = NULL;
    nl_config_init(&config);
    config.architecture = NL_ARCH_SIT;
    for (int i = 0; i < N; i++)
        samples[i] = 1000000 + i;
    for (int times = 0; times < 2; times++) {
        double mean = 0, square = 0;
        nl_loss_options options = {.times = (nl_times)times, .times_deviation = 1};
        assert_ok(context, nl_loss_create(context, &config, &options, &loss));
        nl_loss_draw(loss, 3, samples, N, t, rows, vb);
        nl_loss_draw(loss, 3, samples + 7, 3, again, rows, vb);
        assert_memory_equal(again, t + 7, sizeof(again));
        for (int i = 0; i < N; i++) {
            assert_true(t[i] > 0 && t[i] < 1);
            mean += t[i] / N;
            square += (double)t[i] * t[i] / N;
        }
        /* variance 1/12 of the uniform, 0.0433 of the logistic of a normal */
        assert_true(fabs(mean - 0.5) < 0.02);
        assert_true(fabs(square - mean * mean - (times ? 0.0433 : 1.0 / 12)) < 0.004);
        nl_loss_destroy(loss);
    }
    config.architecture = NL_ARCH_DIT;
    assert_ok(context, nl_loss_create(context, &config, &(nl_loss_options){0}, &loss));
    nl_loss_draw(loss, 3, samples, N, t, rows, vb);
    float low = 1000, high = -1;
    for (int i = 0; i < N; i++) {
        assert_true(t[i] == floorf(t[i]));
        low = fminf(low, t[i]);
        high = fmaxf(high, t[i]);
    }
    assert_true(low >= 0 && low < 5 && high <= 999 && high > 994);
    nl_loss_destroy(loss);
}

static void refusals(void **state)
{
    (void)state;
    nl_config config;
    nl_loss *loss = (nl_loss *)1;
    nl_config_init(&config);
    config.architecture = NL_ARCH_SIT;
    assert_int_equal(nl_loss_create(context, &config,
                                    &(nl_loss_options){.weighting = NL_WEIGHTING_LIKELIHOOD},
                                    &loss),
                     NL_ERROR_USAGE);
    assert_null(loss);
    assert_non_null(strstr(nl_last_error(context), "predicts the velocity"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(transport_losses), cmocka_unit_test(diffusion_losses),
        cmocka_unit_test(min_snr),          cmocka_unit_test(draws),
        cmocka_unit_test(refusals),
    };
    context = test_context("cpu");
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    nl_context_destroy(context);
    return failed;
}
