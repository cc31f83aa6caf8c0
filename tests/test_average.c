/* SPDX-License-Identifier: MIT */
/* Averages chosen afterwards: power functions against closed forms, a run's snapshots against the averages of all its
 * weights, what is refused. */
#include <glob.h>

#include "data_folder.h"
#include "nl_average.h"
#include "nl_dit.h"
#include "nl_run.h"
#include "nl_train.h"
#include "schedule.h"

enum { STEPS = 64, EVERY = 4 };

static nl_context *context; /* on the CPU */

/* The run `run`: every step's weights in checkpoints, snapshots every four. */
static nl_train_options options_of(const char *out)
{
    nl_train_options options = nl_train_defaults;
    options.model = "NaLaSiT-1x32x1/4";
    options.data = in_folder("data");
    options.out = in_folder(out);
    options.batch = 8;
    options.steps = STEPS;
    options.rate = 1e-3;
    options.ema = "0.9";
    options.sample_every = 0;
    options.save_every = 1;
    options.keep = 0;
    options.snapshot_every = EVERY;
    options.seed = 5;
    return options;
}

/* ---- Formulas */

/* Mean and deviation of k in (0, 1] with the density (g + 1) k^g, by sums. */
static void width_of_a_power(void **state)
{
    (void)state;
    static const double widths[] = {0.01, 0.05, 0.1, 0.2, 0.28};
    assert_true(fabs(nl_power_exponent(0.05) - 16.97) < 0.01); /* published: 6.94 and 16.97 */
    assert_true(fabs(nl_power_exponent(0.10) - 6.94) < 0.01);
    assert_true(nl_power_exponent(NL_MOST_SIGMA_REL) < 1e-6);
    for (int i = 0; i < NL_COUNT(widths); i++) {
        double g = nl_power_exponent(widths[i]), mean = 0, square = 0;
        const int n = 1000000;
        for (int j = 0; j < n; j++) {
            double k = (j + 0.5) / n, p = (g + 1) * pow(k, g) / n;
            mean += p * k;
            square += p * k * k;
        }
        assert_true(fabs(sqrt(square - mean * mean) - widths[i]) < 1e-6);
    }
}

/* The updates give step k the weight (k/n)^(g+1) - ((k-1)/n)^(g+1), and the first weights none. */
static void decays_of_a_power(void **state)
{
    (void)state;
    const nl_train_options options = nl_train_defaults;
    const nl_average average = {.sigma_rel = 0.1};
    const double g = nl_power_exponent(0.1);
    enum { n = 200 };
    double weights[n], first = 1;
    for (int k = 0; k < n; k++) {
        double decay = nl_train_ema_decay(&options, &average, k);
        first *= decay;
        for (int j = 0; j < k; j++)
            weights[j] *= decay;
        weights[k] = 1 - decay;
    }
    assert_true(first == 0);
    for (int k = 0; k < n; k++) {
        double ideal = pow((k + 1.0) / n, g + 1) - pow((double)k / n, g + 1);
        assert_true(fabs(weights[k] - ideal) < 1e-14);
    }
}

static void averages_of_options(void **state)
{
    (void)state;
    static const char *const bad[] = {"",
                                      "0.9,",
                                      "power:",
                                      "power:0.3",
                                      "power:0",
                                      "power:-0.1",
                                      "power:nan",
                                      "power:0.1x",
                                      "power 0.1",
                                      "1",
                                      "0.9,power:0.1,0.9,0.9,0.9"};
    nl_train_options options = nl_train_defaults;
    nl_average averages[NL_MAX_EMA];
    int count;
    options.ema = "0.99,power:0.075";
    assert_ok(context, nl_train_averages(context, &options, averages, &count));
    assert_int_equal(count, 2);
    assert_true(averages[0].decay == 0.99 && averages[0].sigma_rel == 0);
    assert_true(averages[1].decay == 0 && averages[1].sigma_rel == 0.075);
    options.snapshot_every = 10; /* of the one that is named */
    assert_ok(context, nl_train_averages(context, &options, averages, &count));
    assert_int_equal(count, 2);
    options.ema = "0.99,0.999";
    assert_ok(context, nl_train_averages(context, &options, averages, &count));
    assert_int_equal(count, 4);
    assert_true(averages[2].sigma_rel == 0.05 && averages[3].sigma_rel == 0.1);
    options.ema = "0.99,0.999,0.9";
    assert_int_equal(nl_train_averages(context, &options, averages, &count), NL_ERROR_USAGE);
    options.snapshot_every = 0;
    for (int i = 0; i < NL_COUNT(bad); i++) {
        options.ema = bad[i];
        assert_int_equal(nl_train_averages(context, &options, averages, &count), NL_ERROR_USAGE);
    }
}

/* make_average_golden.py */
static void least_squares(void **state)
{
    (void)state;
    const struct {
        double sigma_rel, step, exponent, coefficients[8], error;
    } cases[] = {
        {0.15,
         1000,
         3.557868775,
         {-9.64379956e-06, 3.52284809e-05, -0.000626809233, 0.00191787383, -0.00519446445,
          0.0192921398, -0.348351186, 1.33293686},
         0.240421089},
        {0.03,
         1000,
         30.31737158,
         {1.52271427e-23, 8.24415372e-23, -1.64309369e-16, 1.01587685e-14, -1.56565744e-07,
          0.00084820192, 2.22103674, -1.22188478},
         0.231758959},
        {0.2,
         400,
         1.82621378,
         {-0.00868934774, 0.0245890478, -0.115610389, 0.301449374, -0.415946367, 1.21420768,
          -8.0367014e-19, 1.29724202e-18},
         0.361742242},
    };
    nl_profile given[8];
    for (int i = 0; i < 8; i++)
        given[i] = (nl_profile){(const double[]){100, 250, 400, 1000}[i / 2],
                                nl_power_exponent(i % 2 ? 0.1 : 0.05)};
    for (int i = 0; i < NL_COUNT(cases); i++) {
        const nl_profile wanted = {cases[i].step, nl_power_exponent(cases[i].sigma_rel)};
        double x[8], error, sum = 0;
        assert_true(fabs(wanted.exponent / cases[i].exponent - 1) < 1e-8);
        assert_ok(context, nl_average_solve(context, given, 8, &wanted, x, &error));
        assert_true(fabs(error - cases[i].error) < 1e-7);
        for (int j = 0; j < 8; j++) {
            sum += x[j];
            assert_true(fabs(x[j] - cases[i].coefficients[j]) < 1e-7);
        }
        assert_true(fabs(sum - 1) < 1e-12);
    }
    /* One that is there is itself; the same twice counts once. */
    double x[3], error;
    const nl_profile twice[] = {given[6], given[6], given[7]};
    assert_ok(context, nl_average_solve(context, twice, 3, &given[7], x, &error));
    assert_true(fabs(x[0]) < 1e-9 && x[1] == 0 && fabs(x[2] - 1) < 1e-9 && error < 1e-9);
}

/* ---- A run */

static const char *checkpoint_of(const char *out, const char *folder, int64_t step)
{
    char name[NL_RUN_NAME], path[160];
    snprintf(path, sizeof(path), "%s/%s/%s", out, folder, nl_run_checkpoint_name(step, name));
    return in_folder(path);
}

static nl_checkpoint *open_file(const char *path)
{
    nl_checkpoint *file;
    assert_ok(context, nl_checkpoint_open_shard(context, path, NULL, &file));
    assert_ok(context, nl_checkpoint_sort(file));
    return file;
}

static const char *const tensors[] = {"blocks.0.mlp.fc1.weight", "blocks.0.mlp.fc1.bias",
                                      "y_embedder.embedding_table.weight",
                                      "final_layer.linear.weight"};
static float *weights[STEPS][NL_COUNT(tensors)]; /* after each step of `run` */
static int64_t counts[NL_COUNT(tensors)];

static void read_weights(void)
{
    for (int k = 0; k < STEPS; k++) {
        nl_checkpoint *file = open_file(checkpoint_of("run", NL_RUN_CHECKPOINTS, k + 1));
        for (int t = 0; t < NL_COUNT(tensors); t++) {
            weights[k][t] = test_read(file, tensors[t], NULL);
            counts[t] = nl_entry_count(nl_checkpoint_find(file, tensors[t]));
        }
        nl_checkpoint_close(file);
    }
}

/* What each of the steps 1 to `last` counts in the average of width sigma_rel. */
static void list_parts(double sigma_rel, int64_t last, double *parts)
{
    double g = nl_power_exponent(sigma_rel), n = (double)last;
    for (int k = 0; k < last; k++)
        parts[k] = pow((k + 1.0) / n, g + 1) - pow(k / n, g + 1);
}

/* ||file - direct|| / ||direct - the average of another width||: the rounding, and what the combination is off. */
static double distance(const char *path, double sigma_rel, int64_t last, double other)
{
    double worst = 0, parts[2][STEPS];
    nl_checkpoint *file = open_file(path);
    list_parts(sigma_rel, last, parts[0]);
    list_parts(other, last, parts[1]);
    for (int t = 0; t < NL_COUNT(tensors); t++) {
        float *found = test_read(file, tensors[t], NULL);
        double off = 0, whole = 0;
        for (int64_t i = 0; i < counts[t]; i++) {
            double a = 0, b = 0;
            for (int k = 0; k < last; k++) {
                a += parts[0][k] * weights[k][t][i];
                b += parts[1][k] * weights[k][t][i];
            }
            off += (found[i] - a) * (found[i] - a);
            whole += (b - a) * (b - a);
        }
        assert_true(whole > 0);
        worst = fmax(worst, sqrt(off / whole));
        free(found);
    }
    nl_checkpoint_close(file);
    return worst;
}

static void snapshots_are_averages(void **state)
{
    (void)state;
    double far = distance(checkpoint_of("run", "snapshots/sigma-0.1", STEPS), 0.1, STEPS, 0.05);
    if (!(far < 0.05)) /* half precision */
        fail_msg("0.1 is off by %g", far);
    far = distance(checkpoint_of("run", "snapshots/sigma-0.05", 40), 0.05, 40, 0.1);
    if (!(far < 0.05)) /* half precision */
        fail_msg("0.05 is off by %g", far);
}

static void any_width_and_step(void **state)
{
    (void)state;
    const struct {
        double sigma_rel;
        int64_t step;
        double other;
    } cases[] = {{0.15, 0, 0.1}, {0.075, 0, 0.1}, {0.2, 0, 0.1}, {0.12, 32, 0.1}};
    char run[512], out[512]; /* in_folder's texts do not last so long */
    snprintf(run, sizeof(run), "%s", in_folder("run"));
    snprintf(out, sizeof(out), "%s", in_folder("average.safetensors"));
    for (int i = 0; i < NL_COUNT(cases); i++) {
        nl_average_result result;
        int64_t step = cases[i].step ? cases[i].step : STEPS;
        const nl_average_options options = {.run = run,
                                            .sigma_rel = cases[i].sigma_rel,
                                            .step = cases[i].step,
                                            .out = out,
                                            .dtype = NL_F32,
                                            .overwrite = true};
        assert_ok(context, nl_average_run(context, &options, &result));
        assert_int_equal(result.step, step);
        assert_int_equal(result.images, 8 * step);
        assert_true(result.snapshots == 2 * STEPS / EVERY && result.error < 0.05);
        double far = distance(options.out, cases[i].sigma_rel, step, cases[i].other);
        if (!(far < 0.1))
            fail_msg("%g of step %lld is off by %g", cases[i].sigma_rel, (long long)step, far);
        nl_checkpoint *file = open_file(options.out);
        nl_config config;
        int64_t parameters;
        assert_ok(context, nl_config_from_checkpoint(file, NULL, &config));
        assert_ok(context, nl_dit_fits(file, &config, &parameters));
        assert_true(config.ema_sigma_rel == cases[i].sigma_rel && config.ema_decay == 0);
        assert_int_equal(config.images_seen, 8 * step);
        nl_config_free(context, &config);
        nl_checkpoint_close(file);
    }
}

/* Paths of a pattern in the test's folder. */
static int count_files(const char *pattern)
{
    glob_t found;
    int count = glob(in_folder(pattern), 0, NULL, &found) == 0 ? (int)found.gl_pathc : 0;
    globfree(&found);
    return count;
}

static bool same_files(const char *a, const char *b)
{
    nl_mapping first, second;
    assert_ok(context, nl_map_file(context, a, &first));
    assert_ok(context, nl_map_file(context, b, &second));
    bool same = first.size == second.size && !memcmp(first.data, second.data, (size_t)first.size);
    nl_unmap(context, &first);
    nl_unmap(context, &second);
    return same;
}

/* A run that was stopped, and was once further than its last checkpoint, has the snapshots of one that was not; their
 * number stays bounded. */
static void snapshots_of_a_stopped_run(void **state)
{
    (void)state;
    nl_train_options options = options_of("parts");
    options.snapshots = 4;
    options.save_every = 0;
    options.steps = 30;
    assert_ok(context, nl_train(context, &options, NULL));
    assert_true(nl_path_exists(checkpoint_of("parts", "snapshots/sigma-0.1", 30))); /* the last */
    assert_int_equal(count_files("parts/snapshots/sigma-0.1/step-*"), 4); /* 8, 16, 24, 30 */
    char later[512];
    snprintf(later, sizeof(later), "%s", checkpoint_of("parts", "snapshots/sigma-0.1", 32));
    assert_ok(context, nl_write_file(context, later, true, "torn", 4));
    options.steps = STEPS;
    assert_ok(context, nl_train(context, &options, NULL));
    for (int sigma = 0; sigma < 2; sigma++) {
        const char *folder = sigma ? "snapshots/sigma-0.1" : "snapshots/sigma-0.05";
        for (int64_t step = 16; step <= STEPS; step += 16) {
            char whole[512];
            snprintf(whole, sizeof(whole), "%s", checkpoint_of("run", folder, step));
            assert_true(same_files(whole, checkpoint_of("parts", folder, step)));
        }
    }
    assert_int_equal(count_files("parts/snapshots/sigma-0.1/step-*.safetensors"), 4);
    assert_int_equal(count_files("parts/snapshots/sigma-0.05/step-*.safetensors"), 4);
    assert_true(
        same_files(in_folder("run/model.safetensors"), in_folder("parts/model.safetensors")));
    /* other widths are of no use to it */
    options.steps++;
    options.ema = "0.9,power:0.05,power:0.2";
    assert_int_equal(nl_train(context, &options, NULL), NL_ERROR_USAGE);
    assert_non_null(strstr(nl_last_error(context), "such a run cannot be resumed"));
}

static void refuse(const nl_average_options *options, nl_status expected, const char *message)
{
    nl_average_result result;
    nl_status status = nl_average_run(context, options, &result);
    if (status != expected || !strstr(nl_last_error(context), message))
        fail_msg("expected '%s', found %s: %s", message, nl_status_name(status),
                 nl_last_error(context));
    assert_false(nl_path_exists(options->out));
}

static void refuses(void **state)
{
    (void)state;
    nl_average_options options = {.run = in_folder("parts"),
                                  .sigma_rel = 0.1,
                                  .out = in_folder("refused.safetensors"),
                                  .dtype = NL_BF16};
    nl_average_options bad = options;
    bad.sigma_rel = 0.3;
    refuse(&bad, NL_ERROR_USAGE, "at most 0.2887");
    bad.sigma_rel = 0.01;
    refuse(&bad, NL_ERROR_USAGE, "is not among what 8 snapshots give");
    bad.sigma_rel = NAN;
    refuse(&bad, NL_ERROR_USAGE, "expected more than 0");
    bad = options;
    bad.step = STEPS + 1;
    refuse(&bad, NL_ERROR_USAGE, "the last snapshot is of step 64");
    bad.step = 56; /* between two of them */
    refuse(&bad, NL_ERROR_USAGE, "choose a step of which there is a snapshot");
    bad = options;
    bad.run = in_folder("data");
    refuse(&bad, NL_ERROR_INPUT, "--snapshot-every");

    /* of another model, without a width, not finite */
    char place[512];
    snprintf(place, sizeof(place), "%s", checkpoint_of("parts", "snapshots/sigma-0.1", 60));
    nl_train_options other = options_of("other");
    other.model = "NaLaSiT-2x32x1/4";
    other.steps = other.snapshot_every = 1;
    assert_ok(context, nl_train(context, &other, NULL));
    assert_int_equal(rename(checkpoint_of("other", "snapshots/sigma-0.1", 1), place), 0);
    refuse(&options, NL_ERROR_INPUT, "(\"depth\" differs)");
    assert_int_equal(rename(in_folder("parts/model.safetensors"), place), 0);
    refuse(&options, NL_ERROR_INPUT, "\"ema_sigma_rel\"");
    nl_mapping file;
    assert_ok(context,
              nl_map_file(context, checkpoint_of("parts", "snapshots/sigma-0.1", 64), &file));
    uint8_t *bytes = malloc((size_t)file.size);
    memcpy(bytes, file.data, (size_t)file.size);
    memset(bytes + file.size - 2, 0x7c,
           2); /* F16 or the upper half of F32: 0x7c7c is no number in F16 */
    memset(bytes + file.size - 4, 0xff, 4); /* and this is none in either */
    assert_ok(context, nl_write_file(context, place, true, bytes, (size_t)file.size));
    nl_unmap(context, &file);
    free(bytes);
    refuse(&options, NL_ERROR_INPUT, "the file is damaged");
    assert_int_equal(unlink(place), 0);
    nl_average_result result;
    assert_ok(context, nl_average_run(context, &options, &result));
}

/* A signal in the midst of it leaves no file. */
static void is_cancelled(void **state)
{
    (void)state;
    nl_average_result result;
    const nl_average_options options = {.run = in_folder("parts"),
                                        .sigma_rel = 0.1,
                                        .out = in_folder("cancelled.safetensors"),
                                        .dtype = NL_BF16};
    nl_cancel(context);
    assert_int_equal(nl_average_run(context, &options, &result), NL_CANCELLED);
    assert_false(nl_path_exists(options.out));
    for (int64_t i = 1, done = false; !done; i++) {
        context->fail_allocation = context->allocations + i;
        nl_status status = nl_average_run(context, &options, &result);
        done = status == NL_OK;
        if (!done)
            assert_int_equal(status, NL_ERROR_MEMORY);
        assert_int_equal(nl_path_exists(options.out), done);
    }
    context->fail_allocation = 0;
}

static int begin(void **state)
{
    nl_encode_result result;
    if (make_test_folder(state))
        return 1;
    context = test_context("cpu");
    write_classes(context, 8, 16, 16);
    const nl_encode_options data = pixel_options(8);
    assert_ok(context, nl_encode_dataset(context, &data, &result));
    const nl_train_options options = options_of("run");
    assert_ok(context, nl_train(context, &options, NULL));
    read_weights();
    return 0;
}

static int end(void **state)
{
    for (int k = 0; k < STEPS; k++)
        for (int t = 0; t < NL_COUNT(tensors); t++)
            free(weights[k][t]);
    nl_context_destroy(context);
    return remove_test_folder(state);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(width_of_a_power),
        cmocka_unit_test(decays_of_a_power),
        cmocka_unit_test(averages_of_options),
        cmocka_unit_test(least_squares),
        cmocka_unit_test(snapshots_are_averages),
        cmocka_unit_test(any_width_and_step),
        cmocka_unit_test(snapshots_of_a_stopped_run),
        cmocka_unit_test(refuses),
        cmocka_unit_test(is_cancelled),
    };
    return cmocka_run_group_tests(tests, begin, end);
}
