/* SPDX-License-Identifier: MIT */
/* Distillation of flow maps: the numbers of a target, what a step makes of teacher and student, whole small runs. */
#include "data_folder.h"
#include "nl_run.h"
#include "nl_train.h"
#include "random_model.h"
#include "step.h"

#define TEACHER                                                                                    \
    "{\"architecture\": \"SiT\", \"attention\": \"nala\", \"depth\": 3, \"hidden_size\": 32,"      \
    " \"num_heads\": 1, \"patch_size\": 4, \"input_size\": 8, \"in_channels\": 3,"                 \
    " \"num_classes\": 3, \"learn_sigma\": false, \"autoencoder\": \"none\"" NAMES "}"
#define NAMES ", \"class_names\": [\"a\", \"b\", \"c\"]"

static nl_context *context;

enum { N = 4, E = 3 * 8 * 8 };

static const nl_distill_options usual = {
    .guidance = 3, .low = 0.1, .high = 0.9, .floor = 0.05, .adaptive = 1e-3};

/* ---- Numbers */

static void alpha_falls(void **state)
{
    (void)state;
    double before = 1;
    assert_true(nl_distill_alpha(&usual, 0) > 0.9999);
    assert_true(fabs(nl_distill_alpha(&usual, 0.325) - 0.5) < 1e-12);
    for (int i = 0; i <= 100; i++) {
        double alpha = nl_distill_alpha(&usual, i / 100.0);
        assert_true(alpha <= before && alpha >= usual.floor);
        before = alpha;
    }
    assert_true(before == usual.floor);
}

static void times_of_samples(void **state)
{
    (void)state;
    enum { COUNT = 40000 };
    static int64_t samples[COUNT];
    static double t[COUNT], s[COUNT];
    double one_t, one_s;
    int at_rest = 0, to_the_end = 0, grid = 0;
    for (int i = 0; i < COUNT; i++)
        samples[i] = i;
    nl_distill_times(7, samples, COUNT, t, s);
    for (int i = 0; i < COUNT; i++) {
        assert_true(t[i] >= 0 && t[i] <= s[i] && s[i] <= 1);
        at_rest += t[i] == s[i];
        to_the_end += s[i] == 1;
        grid += t[i] * 4 == floor(t[i] * 4) && s[i] * 4 == floor(s[i] * 4);
    }
    /* A quarter; 7.5 %, and of 22.5 % on grids those that end there, one in 1, 2 and 4; five standard deviations */
    assert_true(fabs(at_rest / (double)COUNT - 0.25) < 0.011);
    assert_true(fabs(to_the_end / (double)COUNT - (0.075 + 0.225 * 7 / 12)) < 0.011);
    assert_true(fabs(grid / (double)COUNT - 0.225) < 0.011);
    nl_distill_times(7, samples + 100, 1, &one_t, &one_s); /* alone as among others */
    assert_true(one_t == t[100] && one_s == s[100]);
}

static void rows_of_a_target(void **state)
{
    (void)state;
    const double t[N] = {0, 0.5, 0.1, 0.9}, s[N] = {1, 0.5, 0.6, 0.95};
    const int32_t labels[N] = {2, 0, 1, 2};
    float times[2 * N], later[2 * N], of_teacher[2 * N];
    float guide[N][NL_LOSS_COLUMNS], move[N][NL_LOSS_COLUMNS], target[N][NL_LOSS_COLUMNS];
    int32_t both[2 * N];
    nl_distill_rows rows = {times, later, of_teacher, both, guide[0], move[0], target[0]};
    nl_distill_fill(&usual, 0.25, t, s, labels, 3, N, &rows);
    for (int i = 0; i < N; i++) {
        double a = i == 1 ? 1 : 0.25, m = t[i] + a * (s[i] - t[i]), w = i == 0 ? 1 : 3;
        assert_true(times[i] == (float)t[i] && times[N + i] == (float)s[i]);
        assert_true(later[i] == (float)m && later[N + i] == (float)s[i]);
        assert_true(of_teacher[i] == (float)t[i] && of_teacher[N + i] == (float)t[i]);
        assert_true(both[i] == labels[i] && both[N + i] == 3);
        assert_true(guide[i][NL_LOSS_DATA] == (float)w &&
                    guide[i][NL_LOSS_NOISE] == (float)(1 - w));
        assert_true(move[i][NL_LOSS_DATA] == 1 && move[i][NL_LOSS_NOISE] == (float)(m - t[i]));
        assert_true(target[i][NL_LOSS_TARGET_DATA] == (float)a);
        assert_true(target[i][NL_LOSS_TARGET_NOISE] == (float)(1 - a));
        assert_true(target[i][NL_LOSS_WEIGHT] == 1);
    }
    nl_distill_options everywhere = usual; /* as a sampler's interval of 0 and 0 */
    everywhere.low = everywhere.high = 0;
    nl_distill_fill(&everywhere, 0.25, t, s, labels, 3, N, &rows);
    for (int i = 0; i < N; i++)
        assert_true(guide[i][NL_LOSS_DATA] == 3);
}

/* ---- A step, held against its parts one by one */

static nl_dit *model_of(const char *json, float scale)
{
    nl_config config;
    nl_dit *dit = NULL;
    nl_config_init(&config);
    assert_ok(context, nl_config_parse(context, "test", json, strlen(json), &config));
    assert_ok(context, nl_dit_create(context->device, &config, &dit));
    nl_config_free(context, &config);
    random_model_fill(dit, scale);
    return dit;
}

/* The network at one sample: times [1] or [2]. */
static void ask(const nl_dit *dit, const float *x, const float *times, int count, int32_t label,
                float *y)
{
    nl_device *device = context->device;
    int64_t shape[] = {1, 3, 8, 8}, two[] = {2, 1}, one = 1;
    nl_tensor input = nl_tensor_of((void *)(uintptr_t)x, NL_F32, 4, shape);
    nl_tensor output = nl_tensor_of(y, NL_F32, 4, shape);
    nl_tensor t = nl_tensor_of((void *)(uintptr_t)times, NL_F32, count, count > 1 ? two : &one);
    nl_tensor labels = nl_tensor_of(&label, NL_I32, 1, &one);
    assert_ok(context, nl_dit_forward(dit, device, &input, &t, &labels, NULL, &output, NULL));
}

static void step_is_its_parts(void **state)
{
    (void)state;
    nl_device *device = context->device;
    nl_dit *teacher = model_of(TEACHER, 0.1f);
    nl_dit *student =
        model_of("{\"architecture\": \"SiT\", \"attention\": \"nala\", \"depth\": 3,"
                 " \"hidden_size\": 32, \"num_heads\": 1, \"patch_size\": 4,"
                 " \"input_size\": 8, \"in_channels\": 3, \"num_classes\": 3,"
                 " \"learn_sigma\": false, \"autoencoder\": \"none\", \"flow_map\": 2}",
                 0.12f);
    nl_dataset *data = NULL;
    nl_loss *loss = NULL;
    nl_feed feed;
    nl_noised noised;
    nl_loss_options of_loss = {.times = NL_TIMES_UNIFORM};
    nl_feed_options options = {.loader = {.seed = 3, .batch = N},
                               .parts = 1,
                               .times_seed = 3,
                               .teacher = teacher,
                               .distill = usual};
    assert_ok(context, nl_arena_reserve(device, 64 << 20));
    assert_ok(context, nl_dataset_open(context, in_folder("data"), &data));
    assert_ok(context, nl_loss_create(context, &student->config, &of_loss, &loss));
    assert_ok(context, nl_feed_open(device, data, loss, &options, &feed));
    feed.done = 0.325; /* a = 1/2 */
    int64_t mark = nl_arena_mark(device), n = N;
    nl_tensor losses;
    assert_ok(context, nl_feed_next(&feed));
    assert_ok(context, nl_noised_take(&feed, &student->config, device, &noised));
    assert_ok(context, nl_arena_tensor(device, NL_F32, 1, &n, &losses));
    assert_ok(context, nl_noised_draw(&feed, device, 3, &noised));
    assert_ok(context, nl_noised_mix(&feed, student, device, &noised));
    assert_ok(context, nl_dit_forward(student, device, &noised.x, nl_noised_times(&feed),
                                      &feed.labels, NULL, &noised.prediction, NULL));
    assert_ok(context, nl_noised_loss(&feed, &student->config, device, &noised, &losses, NULL, 0));
    double t[N], s[N];
    nl_distill_times(3, nl_feed_samples(&feed), N, t, s);
    for (int i = 0; i < N; i++) {
        float x[E], with[E], without[E], moved[E], onward[E], u[E];
        double a = s[i] == t[i] ? 1 : 0.5, m = t[i] + a * (s[i] - t[i]), sum = 0;
        int32_t label = ((int32_t *)feed.labels.data)[i];
        for (int j = 0; j < E; j++)
            x[j] = (float)(t[i] * ((float *)noised.data.data)[i * E + j] +
                           (1 - t[i]) * ((float *)noised.noise.data)[i * E + j]);
        ask(teacher, x, (float[]){(float)t[i]}, 1, label, with);
        ask(teacher, x, (float[]){(float)t[i]}, 1, 3, without);
        for (int j = 0; j < E; j++) {
            if (t[i] >= usual.low && t[i] <= usual.high)
                with[j] = without[j] + 3 * (with[j] - without[j]);
            moved[j] = x[j] + (float)(m - t[i]) * with[j];
        }
        ask(student, moved, (float[]){(float)m, (float)s[i]}, 2, label, onward);
        ask(student, x, (float[]){(float)t[i], (float)s[i]}, 2, label, u);
        for (int j = 0; j < E; j++) {
            double target = a * with[j] + (1 - a) * onward[j];
            sum += (u[j] - target) * (u[j] - target) / E;
        }
        double found = ((float *)losses.data)[i];
        if (!(fabs(found - sum) <= 1e-5 * sum))
            fail_msg("sample %d, t %g, s %g: loss %g, by its parts %g", i, t[i], s[i], found, sum);
    }
    nl_arena_release(device, mark);
    nl_feed_close(&feed);
    nl_loss_destroy(loss);
    nl_dataset_close(data);
    nl_dit_destroy(teacher);
    nl_dit_destroy(student);
}

/* ---- Runs */

static nl_train_options small_run(const char *out)
{
    nl_train_options options = nl_distill_defaults;
    options.teacher = in_folder("teacher.safetensors");
    options.data = options.validation = in_folder("data");
    options.out = in_folder(out);
    options.batch = 8;
    options.steps = 6;
    options.rate = 1e-3;
    options.ema = "0.9";
    options.log_every = 1;
    options.validate_every = 3;
    options.save_every = 3;
    options.sample_every = options.keep = 0;
    return options;
}

static void assert_same_file(const char *a, const char *b)
{
    nl_mapping x, y;
    assert_ok(context, nl_map_file(context, in_folder(a), &x));
    assert_ok(context, nl_map_file(context, in_folder(b), &y));
    assert_int_equal(x.size, y.size);
    assert_memory_equal(x.data, y.data, (size_t)x.size);
    nl_unmap(context, &x);
    nl_unmap(context, &y);
}

static void resumes_exactly(void **state)
{
    (void)state;
    nl_train_options options = small_run("whole");
    assert_ok(context, nl_train(context, &options, NULL));
    options = small_run("parts");
    assert_ok(context, nl_train(context, &options, NULL));
    remove(in_folder("parts/checkpoints/step-0000006.safetensors"));
    remove(in_folder("parts/model.safetensors"));
    remove(in_folder("parts/done"));
    assert_ok(context, nl_train(context, &options, NULL));
    assert_same_file("whole/model.safetensors", "parts/model.safetensors");

    nl_checkpoint *file = NULL;
    nl_config config;
    assert_ok(context, nl_checkpoint_open(context, in_folder("whole/model.safetensors"), &file));
    assert_ok(context, nl_config_from_checkpoint(file, NULL, &config));
    assert_int_equal(config.flow_map, 2);
    assert_true(config.guided);
    assert_true(config.class_dropout_prob == 0);
    nl_config_free(context, &config);
    nl_checkpoint_close(file);
}

static void refused(const nl_train_options *options, const char *why)
{
    nl_status status = nl_train(context, options, NULL);
    if (status != NL_ERROR_USAGE || !strstr(nl_last_error(context), why))
        fail_msg("expected '%s', found %s: %s", why, nl_status_name(status),
                 nl_last_error(context));
}

static void what_does_not_fit_is_refused(void **state)
{
    (void)state;
    nl_train_options options = small_run("refused");
    options.teacher = in_folder("whole/model.safetensors");
    refused(&options, "is a flow map itself");
    options = small_run("refused");
    options.dump = 1;
    refused(&options, "--dump");
    options = small_run("whole");
    options.steps = 12;
    options.teacher = NULL;
    options.alpha_floor = 0;
    options.init = in_folder("whole/model.safetensors");
    refused(&options, "teacher");

    assert_ok(context,
              random_model_write(context, RANDOM_SIT_WITH(""), in_folder("other.safetensors")));
    options = small_run("refused");
    options.teacher = in_folder("other.safetensors");
    refused(&options, "differ in");
    assert_ok(context, nl_make_folder(context, in_folder("names")));
    static const char other_names[] =
        "{\"architecture\": \"SiT\", \"attention\": \"nala\", \"depth\": 3, \"hidden_size\": 32,"
        " \"num_heads\": 1, \"patch_size\": 4, \"input_size\": 8, \"in_channels\": 3,"
        " \"num_classes\": 3, \"learn_sigma\": false, \"autoencoder\": \"none\","
        " \"class_names\": [\"a\", \"c\", \"b\"]}";
    assert_ok(context,
              random_model_write(context, other_names, in_folder("names/teacher.safetensors")));
    options.teacher = in_folder("names/teacher.safetensors");
    refused(&options, "class 1 has another name");
}

static int setup(void **state)
{
    nl_encode_result result;
    if (make_test_folder(state))
        return 1;
    context = test_context("cpu");
    write_classes(context, 8, 16, 16);
    nl_encode_options options = {.source = in_folder("source"),
                                 .out = in_folder("data"),
                                 .height = 8,
                                 .width = 8,
                                 .latent_scale = 1};
    assert_ok(context, nl_encode_dataset(context, &options, &result));
    assert_ok(context, random_model_write(context, TEACHER, in_folder("teacher.safetensors")));
    return 0;
}

static int teardown(void **state)
{
    nl_context_destroy(context);
    return remove_test_folder(state);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(alpha_falls),      cmocka_unit_test(times_of_samples),
        cmocka_unit_test(rows_of_a_target), cmocka_unit_test(step_is_its_parts),
        cmocka_unit_test(resumes_exactly),  cmocka_unit_test(what_does_not_fit_is_refused),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
