/* SPDX-License-Identifier: MIT */
/* Distillation of flow maps: the numbers of a target, what a step makes of teacher and student, whole small runs. */
#include "data_folder.h"
#include "nl_run.h"
#include "nl_train.h"
#include "random_model.h"
#include "step.h"
#include "trainer.h"

#define TEACHER                                                                                    \
    "{\"architecture\": \"SiT\", \"attention\": \"nala\", \"depth\": 3, \"hidden_size\": 32,"      \
    " \"num_heads\": 1, \"patch_size\": 4, \"input_size\": 8, \"in_channels\": 3,"                 \
    " \"num_classes\": 3, \"learn_sigma\": false, \"autoencoder\": \"none\"" NAMES "}"
#define NAMES ", \"class_names\": [\"a\", \"b\", \"c\"]"

/* The same with a middle head. */
#define TWO_HEADS                                                                                  \
    "{\"architecture\": \"SiT\", \"attention\": \"nala\", \"depth\": 3, \"hidden_size\": 32,"      \
    " \"num_heads\": 1, \"patch_size\": 4, \"input_size\": 8, \"in_channels\": 3,"                 \
    " \"num_classes\": 3, \"learn_sigma\": false, \"autoencoder\": \"none\", \"middle_head\": "    \
    "1" NAMES "}"

#define STUDENT                                                                                    \
    "{\"architecture\": \"SiT\", \"attention\": \"nala\", \"depth\": 3, \"hidden_size\": 32,"      \
    " \"num_heads\": 1, \"patch_size\": 4, \"input_size\": 8, \"in_channels\": 3,"                 \
    " \"num_classes\": 3, \"learn_sigma\": false, \"autoencoder\": \"none\", \"flow_map\": 2}"

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
    /* Two fifths; 7.5 %, and of 22.5 % on grids those that end there, one in 1, 2 and 4; five standard deviations */
    assert_true(fabs(at_rest / (double)COUNT - 0.4) < 0.0125);
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

/* The network at one sample: times [1] or [2]. middle: of the middle head, or NULL. */
static void ask_heads(const nl_dit *dit, const float *x, const float *times, int count,
                      int32_t label, float *y, float *middle)
{
    nl_device *device = context->device;
    int64_t shape[] = {1, 3, 8, 8}, two[] = {2, 1}, one = 1;
    nl_tensor input = nl_tensor_of((void *)(uintptr_t)x, NL_F32, 4, shape);
    nl_tensor output = nl_tensor_of(y, NL_F32, 4, shape);
    nl_tensor before = nl_tensor_of(middle, NL_F32, 4, shape);
    nl_tensor t = nl_tensor_of((void *)(uintptr_t)times, NL_F32, count, count > 1 ? two : &one);
    nl_tensor labels = nl_tensor_of(&label, NL_I32, 1, &one);
    assert_ok(context, nl_dit_forward(dit, device, &input, &t, &labels, NULL, &output,
                                      middle ? &before : NULL));
}

/* internal: middle + internal (head - middle); 0: the head. */
static void ask(const nl_dit *dit, const float *x, const float *times, int count, int32_t label,
                double internal, float *y)
{
    float middle[E];
    ask_heads(dit, x, times, count, label, y, internal > 0 ? middle : NULL);
    for (int i = 0; internal > 0 && i < E; i++)
        y[i] = (float)(middle[i] + internal * (y[i] - middle[i]));
}

static void hold_step_against_parts(const char *of_teacher, double internal)
{
    nl_device *device = context->device;
    nl_dit *teacher = model_of(of_teacher, 0.1f);
    nl_dit *student = model_of(STUDENT, 0.12f);
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
    options.distill.internal = internal;
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
        ask(teacher, x, (float[]){(float)t[i]}, 1, label, internal, with);
        ask(teacher, x, (float[]){(float)t[i]}, 1, 3, internal, without);
        for (int j = 0; j < E; j++) {
            if (t[i] >= usual.low && t[i] <= usual.high)
                with[j] = without[j] + 3 * (with[j] - without[j]);
            moved[j] = x[j] + (float)(m - t[i]) * with[j];
        }
        ask(student, moved, (float[]){(float)m, (float)s[i]}, 2, label, 0, onward);
        ask(student, x, (float[]){(float)t[i], (float)s[i]}, 2, label, 0, u);
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

static void step_is_its_parts(void **state)
{
    (void)state;
    hold_step_against_parts(TEACHER, 0);
}

static void teacher_is_guided_from_within(void **state)
{
    (void)state;
    hold_step_against_parts(TWO_HEADS, 1.7);
}

/* ---- Distribution matching */

static void numbers_of_draws(void **state)
{
    (void)state;
    enum { COUNT = 20000 };
    static int64_t samples[COUNT];
    static int32_t labels[COUNT], both[2 * COUNT];
    static float jump[NL_MATCHING_JUMPS][2 * COUNT], last[2 * COUNT], t[2 * COUNT];
    static float move[NL_MATCHING_JUMPS][COUNT][NL_LOSS_COLUMNS], end[COUNT][NL_LOSS_COLUMNS];
    static float mix[COUNT][NL_LOSS_COLUMNS], guide[COUNT][NL_LOSS_COLUMNS];
    nl_matching_options options = {.weight = 2, .guidance = 3, .low = 0.1, .high = 0.9, .seed = 7};
    nl_matching_rows rows = {.jump = {jump[0], jump[1]},
                             .last = last,
                             .t = t,
                             .labels = both,
                             .move = {move[0][0], move[1][0]},
                             .end = end[0],
                             .mix = mix[0],
                             .guide = guide[0]};
    double mean = 0;
    int from[4] = {0}; /* quarters */
    for (int i = 0; i < COUNT; i++)
        samples[i] = i, labels[i] = i % 3;
    nl_matching_fill(&options, samples, labels, 3, COUNT, 1, &rows);
    for (int i = 0; i < COUNT; i++) {
        float t0 = last[i];
        assert_true(t0 == 0 || t0 == 0.5f || t0 == 0.75f);
        assert_true(jump[0][i] == 0 && jump[0][COUNT + i] == fminf(t0, 0.5f));
        assert_true(jump[1][i] == jump[0][COUNT + i] && jump[1][COUNT + i] == t0);
        for (int j = 0; j < NL_MATCHING_JUMPS; j++)
            assert_true(move[j][i][NL_LOSS_DATA] == 1 &&
                        move[j][i][NL_LOSS_NOISE] == jump[j][COUNT + i] - jump[j][i]);
        assert_true(last[COUNT + i] == 1);
        assert_true(end[i][NL_LOSS_DATA] == 1 && end[i][NL_LOSS_NOISE] == 1 - t0);
        assert_true(end[i][NL_LOSS_WEIGHT] == 2 * (1 - t0));
        assert_true(t[i] >= 0.02f && t[i] <= 0.98f && t[COUNT + i] == t[i]);
        assert_true(mix[i][NL_LOSS_DATA] == t[i] &&
                    fabsf(mix[i][NL_LOSS_NOISE] - (1 - t[i])) < 1e-6);
        assert_true(mix[i][NL_LOSS_TARGET_DATA] == 1 && mix[i][NL_LOSS_TARGET_NOISE] == -1);
        assert_true(mix[i][NL_LOSS_WEIGHT] == 1);
        assert_true(guide[i][NL_LOSS_DATA] == (t[i] >= 0.1f && t[i] <= 0.9f ? 3 : 1));
        assert_true(both[i] == labels[i] && both[COUNT + i] == 3);
        from[(int)(4 * t0)]++;
        mean += t[i] / COUNT;
    }
    assert_true(fabs(from[0] / (double)COUNT - 0.5) < 0.018); /* five standard deviations */
    assert_true(fabs(from[2] / (double)COUNT - 0.25) < 0.0154);
    assert_true(fabs(from[3] / (double)COUNT - 0.25) < 0.0154);
    assert_true(fabs(mean - 0.5) < 0.01);
    options.alone = true;
    nl_matching_fill(&options, samples, labels, 3, COUNT, 1, &rows);
    for (int i = 0; i < COUNT; i++)
        assert_true(last[i] == 0 && last[COUNT + i] == 1 && end[i][NL_LOSS_NOISE] == 1);
    options.alone = false;
    float one_t = t[100], others[2];
    rows.t = others;
    nl_matching_fill(&options, samples + 100, labels, 3, 1, 1, &rows); /* alone as among others */
    assert_true(others[0] == one_t);
    nl_matching_fill(&options, samples + 100, labels, 3, 1, 2,
                     &rows); /* and anew in another draw */
    assert_true(others[0] != one_t);
}

static void stages_of_a_run(void **state)
{
    (void)state;
    nl_matching_options options = {.weight = 1, .from = 0.5};
    assert_int_equal(nl_matching_stage_at(&options, 0.49), NL_MATCHING_NONE);
    assert_int_equal(nl_matching_stage_at(&options, 0.5), NL_MATCHING_FAKE);
    assert_int_equal(nl_matching_stage_at(&options, 0.54), NL_MATCHING_FAKE);
    assert_int_equal(nl_matching_stage_at(&options, 0.56), NL_MATCHING_BOTH);
    assert_int_equal(nl_matching_stage_at(&options, 1), NL_MATCHING_BOTH);
    options.weight = 0;
    assert_int_equal(nl_matching_stage_at(&options, 1), NL_MATCHING_NONE);
}

static void head_of_the_discriminator(void **state)
{
    (void)state;
    nl_config student;
    nl_config_init(&student);
    student.depth = 12;
    student.flow_map = 8;
    assert_int_equal(nl_state_fake_config(&student).middle_head, 0);
    student.middle_head = 4;
    student.internal_guidance = 2;
    nl_config fake = nl_state_fake_config(&student);
    assert_true(fake.middle_head == 8 && !fake.flow_map && !fake.internal_guidance);
    student.flow_map = 12; /* it stands before a block */
    assert_int_equal(nl_state_fake_config(&student).middle_head, 11);
}

/* A student, a fake and a teacher of random weights, and one draw at work. */
typedef struct matching {
    nl_dit *teacher;
    nl_train_state student, fake;
    nl_matcher matcher;
    nl_matched matched;
    nl_tensor losses;
    float loss[N];
} matching;

static void open_matching(matching *m, double guidance, double adversarial, bool alone)
{
    static const int64_t samples[N] = {0, 1, 2, 5}, count = N;
    static float data[N * E];
    static const int32_t labels[N] = {0, 2, 1, 1};
    nl_device *device = context->device;
    nl_matching_options options = {.weight = 0.7,
                                   .guidance = guidance,
                                   .low = 0.1,
                                   .high = 0.9,
                                   .internal = guidance == 1 ? 0 : 1.7,
                                   .adversarial = adversarial,
                                   .alone = alone,
                                   .channels = 3,
                                   .updates = 1,
                                   .size = N,
                                   .seed = 4,
                                   .gradient_scale = 1.0f / N};
    nl_dit *student = model_of(STUDENT, 0.12f);
    nl_dit *fake = model_of(adversarial > 0 ? TWO_HEADS : TEACHER, 0.11f);
    for (int i = 0; i < N * E; i++)
        data[i] = sinf((float)i);
    m->teacher = model_of(guidance == 1 ? TEACHER : TWO_HEADS, 0.1f);
    assert_ok(context, nl_arena_reserve(device, 64 << 20));
    assert_ok(context, nl_state_create(device, &student->config, 0, false, 1, 1, &m->student));
    assert_ok(context, nl_state_create(device, &fake->config, 0, false, 1, 1, &m->fake));
    assert_ok(context, nl_dit_copy(student, m->student.model));
    assert_ok(context, nl_dit_copy(guidance == 1 ? m->teacher : fake, m->fake.model));
    assert_ok(context, nl_matcher_open(m->teacher, &m->student, &m->fake, &options, &m->matcher));
    m->losses = nl_tensor_of(m->loss, NL_F32, 1, &count);
    assert_ok(context, nl_matcher_next(&m->matcher, samples, labels, data, 0));
    assert_ok(context, nl_matched_take(&m->matcher, device, &m->matched));
    assert_ok(context, nl_matched_draw(&m->matcher, device, samples, 0, &m->matched));
    nl_dit_destroy(student);
    nl_dit_destroy(fake);
}

static void close_matching(matching *m)
{
    nl_arena_release(context->device, 0);
    nl_matcher_close(&m->matcher);
    nl_state_free(&m->student);
    nl_state_free(&m->fake);
    nl_dit_destroy(m->teacher);
}

/* Where the last jumps begin. */
static const float *beginning(const matching *m)
{
    return m->matcher.options.alone ? m->matched.noise.data : m->matched.start.data;
}

/* That of a sample: one step of `flow` there from noise where it is 1/2, two of unequal length to 3/4. */
static void check_beginning(const matching *m, int sample)
{
    float x[E], u[E], t0 = ((float *)m->matcher.last.data)[sample];
    float times[] = {0, fminf(t0, 0.5f), t0};
    memcpy(x, (float *)m->matched.noise.data + sample * E, sizeof(x));
    for (int step = 0; step < 2 && times[step] < t0; step++) {
        ask(m->student.model, x, times + step, 2, ((int32_t *)m->matcher.labels.data)[sample], 0,
            u);
        for (int j = 0; j < E; j++)
            x[j] += (times[step + 1] - times[step]) * u[j];
    }
    for (int j = 0; j < E; j++)
        assert_true(fabsf(x[j] - beginning(m)[sample * E + j]) < 1e-5f);
}

/* The student's samples with its present weights, from where the last jump begins, times `direction`: mean over the
 * numbers of a sample, weighted as the term is, mean over samples. */
static double along(const matching *m, const float *direction)
{
    const float *times = m->matcher.last.data;
    double sum = 0;
    for (int i = 0; i < N; i++) {
        float u[E], two[2] = {times[i], times[N + i]};
        ask(m->student.model, beginning(m) + i * E, two, 2, ((int32_t *)m->matcher.labels.data)[i],
            0, u);
        for (int j = 0; j < E; j++)
            sum += 0.7 / N / E * direction[i * E + j] * (1 - times[i]) * u[j];
    }
    return sum;
}

/* Sum of (score - 1)^2 over the scores that the fake's middle head gives a sample. */
static double unconvinced(const matching *m, const float *x, float t, int32_t label)
{
    float y[E], middle[E];
    double sum = 0;
    ask_heads(m->fake.model, x, &t, 1, label, y, middle);
    for (int j = 0; j < E; j++)
        sum += (middle[j] - 1) * (middle[j] - 1);
    return sum;
}

/* Adds to `direction` what fools the discriminator, as much as `weight` says. */
static void add_fooling(const matching *m, int sample, double weight, float *direction)
{
    float at[E], t = ((float *)m->matcher.t.data)[sample], step = 0.01f;
    int32_t label = ((int32_t *)m->matcher.labels.data)[sample];
    double slope[E], mean = 0;
    memcpy(at, (float *)m->matched.mixed.data + sample * E, sizeof(at));
    for (int j = 0; j < E; j++) {
        float kept = at[j];
        at[j] = kept + step;
        double up = unconvinced(m, at, t, label);
        at[j] = kept - step;
        slope[j] = (up - unconvinced(m, at, t, label)) / (2 * step);
        at[j] = kept;
        mean += fabs(slope[j]) / E;
    }
    for (int j = 0; j < E; j++)
        direction[j] += (float)(weight * t * slope[j] / mean);
}

static void moves_along_the_gradient(double adversarial, bool alone)
{
    matching m;
    static float direction[N * E];
    double difference = 0, norm = 0, farthest = 0;
    open_matching(&m, 3, adversarial, alone);
    assert_ok(context, nl_match_student(&m.matcher, context->device, &m.matched, &m.losses, NULL));
    for (int i = 0; i < N; i++) {
        check_beginning(&m, i);
        farthest = fmax(farthest, ((float *)m.matcher.last.data)[i]);
    }
    assert_true(farthest == (alone ? 0 : 0.75));
    for (int i = 0; i < N; i++) { /* g, by the two predictions of data */
        const float *x = (float *)m.matched.x.data + i * E;
        const float *at = (float *)m.matched.mixed.data + i * E;
        float t = ((float *)m.matcher.t.data)[i], with[E], without[E], fake[E];
        double internal = m.matcher.options.internal;
        int32_t label = ((int32_t *)m.matcher.labels.data)[i];
        double error = 0, sum = 0;
        ask(m.teacher, at, &t, 1, label, internal, with);
        ask(m.teacher, at, &t, 1, 3, internal, without);
        ask(m.fake.model, at, &t, 1, label, 0, fake);
        for (int j = 0; j < E; j++) {
            float v = t >= 0.1f && t <= 0.9f ? without[j] + 3 * (with[j] - without[j]) : with[j];
            float of_teacher = at[j] + (1 - t) * v, of_fake = at[j] + (1 - t) * fake[j];
            direction[i * E + j] = of_fake - of_teacher;
            error += fabsf(x[j] - of_teacher) / E;
        }
        for (int j = 0; j < E; j++) {
            direction[i * E + j] /= (float)error;
            sum += direction[i * E + j] * direction[i * E + j] / E / 2;
        }
        assert_true(fabs(m.loss[i] - sum) <= 1e-4 * sum);
        if (adversarial > 0) /* beside a term of weight 0.7 */
            add_fooling(&m, i, adversarial / 0.7, direction + i * E);
    }
    for (int p = 0; p < m.student.model->param_count; p++) {
        const nl_tensor *values = m.student.model->params[p].tensor;
        const nl_tensor *gradient = m.student.gradient->params[p].tensor;
        int64_t count = nl_tensor_count(values);
        for (int64_t i = 0; i < 3; i++) {
            int64_t at = (i * 7919 + 13) % count;
            float *value = (float *)values->data + at, kept = *value, step = 0.01f;
            *value = kept + step;
            double up = along(&m, direction);
            *value = kept - step;
            double wanted = (up - along(&m, direction)) / (2 * step);
            *value = kept;
            double found = ((float *)gradient->data)[at];
            difference += (found - wanted) * (found - wanted);
            norm += wanted * wanted;
        }
    }
    if (!(sqrt(difference / norm) <= 5e-3))
        fail_msg("relative error %g of norm %g", sqrt(difference / norm), sqrt(norm));
    close_matching(&m);
}

static void matching_moves_samples_along_its_gradient(void **state)
{
    (void)state;
    moves_along_the_gradient(0, false);
}

static void and_along_that_of_a_discriminator(void **state)
{
    (void)state;
    moves_along_the_gradient(0.4, false);
    moves_along_the_gradient(0.4, true);
}

static void a_fake_that_is_the_teacher_moves_nothing(void **state)
{
    (void)state;
    matching m;
    open_matching(&m, 1, 0, false);
    assert_ok(context, nl_match_student(&m.matcher, context->device, &m.matched, &m.losses, NULL));
    nl_tensor gradient = nl_dit_flat(m.student.gradient);
    for (int64_t i = 0; i < nl_tensor_count(&gradient); i++)
        assert_true(((float *)gradient.data)[i] == 0);
    for (int i = 0; i < N; i++)
        assert_true(m.loss[i] == 0);
    /* and its own loss is that of flow matching on the student's samples */
    assert_ok(context,
              nl_match_fake(&m.matcher, context->device, &m.matched, &m.losses, NULL, NULL));
    for (int i = 0; i < N; i++) {
        double sum = 0;
        for (int j = i * E; j < (i + 1) * E; j++) {
            double e = ((float *)m.matched.x.data)[j] - ((float *)m.matched.other.data)[j] -
                       ((float *)m.matched.fake.data)[j];
            sum += e * e / E;
        }
        assert_true(fabs(m.loss[i] - sum) <= 1e-5 * sum);
    }
    close_matching(&m);
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

/* A teacher that is guided by its middle head alone: before the first step the student is that, bit by bit. */
static void student_begins_as_the_teacher_guided_from_within(void **state)
{
    (void)state;
    nl_train_options options = small_run("heads");
    nl_device *device = context->device;
    nl_checkpoint *file = NULL;
    nl_dataset *data = NULL;
    nl_dit *teacher = NULL, *student = NULL;
    nl_config config;
    static float x[E], of_teacher[E], of_student[E];
    static const int64_t shape[] = {1, 3, 8, 8}, pair[] = {2, 1};
    static float times[] = {0.4f, 0.4f};
    static int32_t label = 1;
    for (int i = 0; i < E; i++)
        x[i] = sinf((float)i);
    assert_ok(context, random_model_write(context, TWO_HEADS, in_folder("heads.safetensors")));
    options.teacher = in_folder("heads.safetensors");
    options.guidance = 1;
    options.internal_guidance = 1.7;
    assert_ok(context, nl_checkpoint_open(context, options.teacher, &file));
    assert_ok(context, nl_config_from_checkpoint(file, NULL, &config));
    assert_ok(context, nl_dit_create(device, &config, &teacher));
    nl_config_free(context, &config);
    assert_ok(context, nl_dataset_open(context, options.data, &data));
    assert_ok(context,
              nl_trainer_configure(context, &options, nl_dataset_get_info(data), file, &config));
    assert_ok(context, nl_dit_create(device, &config, &student));
    assert_true(config.flow_map == 2 && config.middle_head == 1 && config.guided);
    assert_true(config.internal_guidance == 1.7);
    assert_ok(context, nl_dit_load(teacher, file));
    assert_ok(context, nl_dit_load(student, file));
    nl_tensor input = nl_tensor_of(x, NL_F32, 4, shape);
    nl_tensor labels = nl_tensor_of(&label, NL_I32, 1, shape);
    nl_tensor once = nl_tensor_of(times, NL_F32, 1, shape);
    nl_tensor twice = nl_tensor_of(times, NL_F32, 2, pair);
    nl_tensor y = nl_tensor_of(of_teacher, NL_F32, 4, shape);
    nl_tensor z = nl_tensor_of(of_student, NL_F32, 4, shape);
    assert_ok(context, nl_arena_reserve(device, 64 << 20));
    assert_ok(context,
              nl_dit_forward_guided(teacher, device, &input, &once, &labels, NULL, 1.7, &y));
    assert_ok(context, nl_dit_forward(student, device, &input, &twice, &labels, NULL, &z, NULL));
    assert_memory_equal(of_teacher, of_student, sizeof(of_teacher));
    nl_dit_destroy(teacher);
    nl_dit_destroy(student);
    nl_config_free(context, &config);
    nl_checkpoint_close(file);
    nl_dataset_close(data);

    options.data = options.validation = NULL; /* from what that teacher draws */
    options.validate_every = 0;
    options.teacher_samples = 12;
    options.match = 1;
    options.match_from = 0;
    assert_ok(context, nl_train(context, &options, NULL));
}

static void refused(const nl_train_options *options, const char *why)
{
    nl_status status = nl_train(context, options, NULL);
    if (status != NL_ERROR_USAGE || !strstr(nl_last_error(context), why))
        fail_msg("expected '%s', found %s: %s", why, nl_status_name(status),
                 nl_last_error(context));
}

/* Run "matched", and others that are cut off before the fake, behind it and between both. */
static void cut_runs_are_the_whole_one(nl_train_options options)
{
    options.match = 1;
    if (!options.one_step)
        options.match_from = 0.3; /* the fake alone in step 3, both in steps 4 to 6 */
    options.fake_updates = 2;
    options.accumulate = 2;
    assert_ok(context, nl_train(context, &options, NULL));
    char whole[96];
    snprintf(whole, sizeof(whole), "%s/model.safetensors", strrchr(options.out, '/') + 1);
    for (int every = 2; every <= 4; every++) {
        char out[64], model[96], name[96];
        snprintf(out, sizeof(out), "matched %s to %d",
                 options.one_step          ? "in one step"
                 : options.adversarial > 0 ? "by a discriminator"
                                           : "alone",
                 every);
        snprintf(model, sizeof(model), "%s/model.safetensors", out);
        options.out = in_folder(out);
        options.save_every = every;
        assert_ok(context, nl_train(context, &options, NULL));
        static const char *const later[] = {"model.safetensors", "done",
                                            "checkpoints/step-0000006.safetensors",
                                            "checkpoints/step-0000004.safetensors"};
        for (int i = 0; i < (every == 2 ? 4 : 3); i++) {
            snprintf(name, sizeof(name), "%s/%s", out, later[i]);
            assert_int_equal(remove(in_folder(name)), 0);
        }
        assert_ok(context, nl_train(context, &options, NULL));
        assert_same_file(whole, model);
    }
}

static void matching_resumes_exactly(void **state)
{
    (void)state;
    nl_train_options options = small_run("matched");
    cut_runs_are_the_whole_one(options);
    options.accumulate = 2; /* nor can it be left out, or begin later */
    refused(&options, "with distribution matching (--match)");
    options = small_run("whole");
    options.match = 1;
    options.steps = 12;
    refused(&options, "without distribution matching (--match)");
}

static nl_train_options adversarial_run(const char *out)
{
    nl_train_options options = small_run(out);
    assert_ok(context, random_model_write(context, TWO_HEADS, in_folder("heads.safetensors")));
    options.teacher = in_folder("heads.safetensors");
    options.guidance = 1;
    options.internal_guidance = 1.7;
    options.adversarial = 0.5;
    return options;
}

static void so_it_does_with_a_discriminator(void **state)
{
    (void)state;
    cut_runs_are_the_whole_one(adversarial_run("matched adversarially"));
    nl_train_options options = adversarial_run("no match");
    refused(&options, "--match");
    options.match = 1;
    options.internal_guidance = 0;
    refused(&options, "--teacher-internal");
}

/* Learnt from a flow map, which has its guidance inside already. */
static nl_train_options one_step_run(const char *out)
{
    nl_train_options options = adversarial_run(out);
    options.teacher = in_folder("matched adversarially/model.safetensors");
    options.internal_guidance = 0;
    options.validation = NULL;
    options.validate_every = -1;
    options.match = 1;
    options.one_step = true;
    return options;
}

static void one_step_alone_resumes_exactly(void **state)
{
    (void)state;
    nl_train_options options = one_step_run("matched in one step");
    cut_runs_are_the_whole_one(options);
    options = one_step_run("refused");
    options.teacher = in_folder("matched in one step/model.safetensors");
    refused(&options, "knows no velocities");
    const struct {
        const char *what;
        double match, from, floor;
        const char *validation;
    } idle[] = {{"--one-step does nothing without --match", 0, 0.5, 0.02, NULL},
                {"--match-from does nothing without the target", 1, 0.2, 0.02, NULL},
                {"--alpha-floor does nothing without the target", 1, 0.5, 0.1, NULL},
                {"--val does nothing without the target", 1, 0.5, 0.02, in_folder("data")}};
    for (int i = 0; i < NL_COUNT(idle); i++) {
        options = one_step_run("refused");
        options.match = idle[i].match;
        options.match_from = idle[i].from;
        options.alpha_floor = idle[i].floor;
        options.validation = idle[i].validation;
        refused(&options, idle[i].what);
    }
}

/* ---- A distribution that one jump of target A does not reach: pictures that are dark or bright, and nothing between. */

enum { TWO_KINDS = 64, TINY = 4, ASKED = 256 };

static void write_two_kinds(void)
{
    char name[64];
    assert_ok(context, nl_make_folder(context, in_folder("kinds")));
    assert_ok(context, nl_make_folder(context, in_folder("kinds/all")));
    for (int i = 0; i < TWO_KINDS; i++) {
        uint8_t rgb[3 * TINY * TINY];
        for (int j = 0; j < NL_COUNT(rgb); j++)
            rgb[j] = (uint8_t)((i % 2 ? 60 : 195) + (37 * i + 11 * j + i * j) % 17 - 8);
        snprintf(name, sizeof(name), "kinds/all/%03d.png", i);
        assert_ok(context, nl_png_write(context, in_folder(name), true, rgb, TINY, TINY, NULL));
    }
}

/* Of ASKED pictures of one jump, those whose mean is in the middle third between dark and bright. */
static int between(const char *path)
{
    enum { SIZE = 3 * TINY * TINY };
    static float noise[ASKED * SIZE], u[ASKED * SIZE], times[2 * ASKED];
    static int32_t labels[ASKED];
    static int64_t samples[ASKED];
    int64_t shape[] = {ASKED, 3, TINY, TINY}, two[] = {2, ASKED};
    nl_tensor x = nl_tensor_of(noise, NL_F32, 4, shape), y = nl_tensor_of(u, NL_F32, 4, shape);
    nl_tensor t = nl_tensor_of(times, NL_F32, 2, two);
    nl_tensor classes = nl_tensor_of(labels, NL_I32, 1, shape);
    nl_checkpoint *file = NULL;
    nl_dit *dit = NULL;
    nl_config config;
    int count = 0;
    for (int i = 0; i < ASKED; i++)
        samples[i] = i, times[ASKED + i] = 1;
    assert_ok(context, nl_checkpoint_open(context, in_folder(path), &file));
    assert_ok(context, nl_config_from_checkpoint(file, NULL, &config));
    assert_ok(context, nl_dit_create(context->device, &config, &dit));
    assert_ok(context, nl_dit_load(dit, file));
    assert_ok(context, nl_arena_reserve(context->device, 64 << 20));
    assert_ok(context, NL_OP(context->device, normal, .y = x, .seed = 5, .images = samples));
    assert_ok(context, nl_dit_forward(dit, context->device, &x, &t, &classes, NULL, &y, NULL));
    for (int i = 0; i < ASKED; i++) {
        double mean = 0;
        for (int j = i * SIZE; j < (i + 1) * SIZE; j++)
            mean += (noise[j] + u[j]) / SIZE;
        count += fabs(mean) < 0.53 / 2; /* dark and bright: +- 0.53 */
    }
    nl_dit_destroy(dit);
    nl_config_free(context, &config);
    nl_checkpoint_close(file);
    return count;
}

static void matching_brings_one_jump_to_what_there_is(void **state)
{
    (void)state;
    test_need_values();
    nl_encode_result result;
    nl_encode_options encode = {.source = in_folder("kinds"),
                                .out = in_folder("kinds of data"),
                                .height = TINY,
                                .width = TINY,
                                .latent_scale = 1};
    nl_train_options options = nl_train_defaults;
    static const char *const runs[] = {"kinds without", "kinds with", "kinds in one step"};
    enum { RUNS = NL_COUNT(runs) };
    int counts[RUNS];
    char model[64];
    write_two_kinds();
    assert_ok(context, nl_encode_dataset(context, &encode, &result));
    options.model = "NaLaSiT-2x32x1/2";
    options.data = in_folder("kinds of data");
    options.out = in_folder("teacher of kinds");
    options.batch = 32;
    options.steps = 600;
    options.rate = 3e-3;
    options.schedule = "cosine";
    options.ema = "0.98";
    options.log_every = options.save_every = options.sample_every = options.validate_every = 0;
    assert_ok(context, nl_train(context, &options, NULL));
    for (int match = 0; match < RUNS; match++) {
        nl_train_options few = nl_distill_defaults;
        few.teacher = in_folder("teacher of kinds/model.safetensors");
        few.data = options.data;
        few.out = in_folder(runs[match]);
        few.guidance = 1;
        few.batch = 32;
        few.steps = 240;
        few.rate = 1e-3;
        few.schedule = "cooldown";
        few.cooldown = 0.4;
        few.ema = "0.95";
        few.log_every = few.save_every = few.sample_every = few.validate_every = 0;
        if (match) {
            few.match = 3;
            few.fake_rate = 3e-3;
        }
        if (match == 1)
            few.match_from = 0.3;
        if (match == 2) {
            few.teacher = in_folder("kinds without/model.safetensors");
            few.one_step = true;
        }
        assert_ok(context, nl_train(context, &few, NULL));
        snprintf(model, sizeof(model), "%s/model.safetensors", runs[match]);
        counts[match] = between(model);
    }
    if (!(counts[0] > 20 && counts[1] < counts[0] / 2 && counts[2] < counts[0] / 2))
        fail_msg("of %d pictures %d are between dark and bright, in one step alone %d, without the "
                 "term %d",
                 ASKED, counts[1], counts[2], counts[0]);
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
    options = small_run("refused");
    options.match = 1;
    options.fake_updates = 0;
    refused(&options, "--fake-updates: expected 1 to 100");
    options.fake_updates = 3;
    options.match_from = 1;
    refused(&options, "--match-from: expected 0 to 0.99");
    options = nl_train_defaults;
    options.data = in_folder("data");
    options.out = in_folder("refused");
    options.init = in_folder("teacher.safetensors");
    options.match = options.fake_updates = 1;
    refused(&options, "--match needs");
    static const char network[] =
        "{\"lepe\": true}"; /* an ordinary model: no target has two parts */
    write_bytes(context, "network.json", network, sizeof(network) - 1);
    options = small_run("refused");
    options.student_config = in_folder("network.json");
    options.alpha_floor = 0.5;
    refused(&options, "--alpha-floor does nothing");
    options = small_run("refused");
    options.teacher_samples = 7;
    refused(&options, "--teacher-samples does nothing");
    const nl_train_options of_whole = small_run("whole");
    options = nl_train_defaults;
    options.data = of_whole.data;
    options.out = of_whole.out;
    options.batch = of_whole.batch;
    options.steps = 12;
    options.init = in_folder("whole/model.safetensors"); /* to be an ordinary network again */
    refused(&options, "\"flow_map\" differs");
    static const char student[] = "{\"flow_map\": 2, \"guided\": true, \"class_dropout_prob\": 0}";
    write_bytes(context, "student.json", student, sizeof(student) - 1);
    options.config = in_folder("student.json");
    refused(&options, "nalagen distill makes it");

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
    nl_context_options one = {.device = "cpu", .dtype = "f32", .threads = 1}; /* tiny networks */
    if (nl_context_create(&one, &context) != NL_OK)
        return 1;
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
        cmocka_unit_test(alpha_falls),
        cmocka_unit_test(times_of_samples),
        cmocka_unit_test(rows_of_a_target),
        cmocka_unit_test(step_is_its_parts),
        cmocka_unit_test(teacher_is_guided_from_within),
        cmocka_unit_test(numbers_of_draws),
        cmocka_unit_test(stages_of_a_run),
        cmocka_unit_test(head_of_the_discriminator),
        cmocka_unit_test(and_along_that_of_a_discriminator),
        cmocka_unit_test(matching_moves_samples_along_its_gradient),
        cmocka_unit_test(a_fake_that_is_the_teacher_moves_nothing),
        cmocka_unit_test(resumes_exactly),
        cmocka_unit_test(student_begins_as_the_teacher_guided_from_within),
        cmocka_unit_test(matching_resumes_exactly),
        cmocka_unit_test(so_it_does_with_a_discriminator),
        cmocka_unit_test(one_step_alone_resumes_exactly),
        cmocka_unit_test(matching_brings_one_jump_to_what_there_is),
        cmocka_unit_test(what_does_not_fit_is_refused),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
