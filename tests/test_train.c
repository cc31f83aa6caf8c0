/* SPDX-License-Identifier: MIT */
/* Runs of nalagen train on a small model: what must agree bit by bit, what goes wrong, what is written. */
#include <glob.h>

#include "curves.h"
#include "data_folder.h"
#include "events.h"
#include "likelihood.h"
#include "nl_run.h"
#include "nl_train.h"
#include "random_model.h"
#include "schedule.h"

static const char *data_path; /* 24 pictures of 3 classes, 8 x 8 pixels */

/* One run: what it logged, and where it is to be cancelled. */
typedef struct nl_test_run {
    nl_context *context;
    char log[1 << 16];
    const char *cancel_at; /* the message that begins so */
} nl_test_run;

static void take_log(void *user, nl_log_level level, const char *message)
{
    nl_test_run *run = user;
    size_t used = strlen(run->log);
    (void)level;
    snprintf(run->log + used, sizeof(run->log) - used, "%s\n", message);
    if (run->cancel_at && !strncmp(message, run->cancel_at, strlen(run->cancel_at)))
        nl_cancel(run->context);
}

static nl_train_options small_run(const char *out)
{
    nl_train_options options = nl_train_defaults;
    options.model = "NaLaSiT-1x32x1/4";
    options.data = data_path;
    options.out = in_folder(out);
    options.batch = 8;
    options.steps = 10;
    options.rate = 1e-3;
    options.ema = "0.9,0.99";
    options.log_every = 1;
    options.sample_every = options.save_every = 0;
    options.seed = 5;
    return options;
}

/* hook: sets the context's faults. */
static nl_status train_with(const nl_train_options *options, int threads, nl_test_run *run,
                            int64_t fail_write, int64_t fail_allocation)
{
    nl_context_options of_context = {
        .device = "cpu", .dtype = "f32", .threads = threads, .log = take_log, .user = run};
    run->log[0] = '\0';
    assert_int_equal(nl_context_create(&of_context, &run->context), NL_OK);
    run->context->fail_write = fail_write;
    if (fail_allocation)
        run->context->fail_allocation = run->context->allocations + fail_allocation;
    nl_status status = nl_train(run->context, options, NULL);
    size_t used = strlen(run->log);
    if (status != NL_OK)
        snprintf(run->log + used, sizeof(run->log) - used, "%s\n", nl_last_error(run->context));
    nl_context_destroy(run->context);
    return status;
}

static void train(const nl_train_options *options)
{
    static nl_test_run run;
    nl_status status = train_with(options, 2, &run, 0, 0);
    if (status != NL_OK)
        fail_msg("%s: %s", nl_status_name(status), run.log);
}

static const char *last_checkpoint(const char *out)
{
    static char path[2][512];
    static int next;
    glob_t found;
    char pattern[512];
    snprintf(pattern, sizeof(pattern), "%s/checkpoints/step-*.safetensors", in_folder(out));
    if (glob(pattern, 0, NULL, &found) != 0)
        fail_msg("%s: no checkpoints", out);
    char *last = path[next++ % 2];
    snprintf(last, sizeof(path[0]), "%s", found.gl_pathv[found.gl_pathc - 1]);
    globfree(&found);
    return last;
}

/* Largest relative error of any tensor of two checkpoints; 0: the same bits. */
static double compare_checkpoints(const char *a, const char *b)
{
    nl_context *context = test_context(NULL);
    nl_checkpoint *first = NULL, *second = NULL;
    double worst = 0;
    assert_ok(context, nl_checkpoint_open_shard(context, a, NULL, &first));
    assert_ok(context, nl_checkpoint_sort(first));
    assert_ok(context, nl_checkpoint_open_shard(context, b, NULL, &second));
    assert_ok(context, nl_checkpoint_sort(second));
    assert_int_equal(first->count, second->count);
    assert_true(first->count > 5 * 20);
    for (int64_t i = 0; i < first->count; i++) {
        const nl_entry *x = &first->entries[i], *y = &second->entries[i];
        int64_t count = nl_entry_count(x);
        assert_string_equal(x->name, y->name);
        assert_int_equal(count, nl_entry_count(y));
        if (memcmp(x->data, y->data, (size_t)count * sizeof(float)) == 0)
            continue;
        float *p = malloc((size_t)count * sizeof(float)),
              *q = malloc((size_t)count * sizeof(float));
        nl_convert_to_float(x->data, x->dtype, count, p);
        nl_convert_to_float(y->data, y->dtype, count, q);
        worst = fmax(worst, fmax(test_relative_error(p, q, count), 1e-30));
        free(p);
        free(q);
    }
    nl_checkpoint_close(first);
    nl_checkpoint_close(second);
    nl_core_context_destroy(context);
    return worst;
}

static nl_curve read_curve(nl_context *context, const char *out, const char *file, const char *key)
{
    char name[128];
    nl_curve curve;
    snprintf(name, sizeof(name), "%s/%s", out, file);
    assert_ok(context, nl_curve_read(context, in_folder(name), "step", key, &curve));
    return curve;
}

static void assert_same_log(const char *a, const char *b)
{
    static const char *const keys[] = {"loss", "grad_norm", "lr", "epoch"};
    nl_context *context = test_context(NULL);
    for (int i = 0; i < NL_COUNT(keys); i++) {
        nl_curve first = read_curve(context, a, "log.jsonl", keys[i]);
        nl_curve second = read_curve(context, b, "log.jsonl", keys[i]);
        assert_int_equal(first.count, second.count);
        assert_true(first.count > 0);
        assert_memory_equal(first.points, second.points, (size_t)first.count * 2 * sizeof(double));
        nl_curve_free(context, &first);
        nl_curve_free(context, &second);
    }
    nl_core_context_destroy(context);
}

/* ---- Bits */

static void goes_on_exactly(void **state)
{
    (void)state;
    static nl_test_run run;
    nl_train_options options = small_run("whole");
    options.log_every = 3;
    train(&options);
    options.out = in_folder("parts");
    /* 24 samples and batches of 8: both stops are within an epoch. */
    run.cancel_at = "step 3/10";
    assert_int_equal(train_with(&options, 2, &run, 0, 0), NL_CANCELLED);
    assert_true(nl_path_exists(in_folder("parts/checkpoints/step-0000003.safetensors")));
    assert_false(nl_path_exists(in_folder("parts/done")));
    options.save_every = 5;
    run.cancel_at = "step 6/10";
    assert_int_equal(train_with(&options, 1, &run, 0, 0), NL_CANCELLED);
    assert_non_null(strstr(run.log, "resuming at step 3"));
    train(&options);
    assert_true(compare_checkpoints(last_checkpoint("whole"), last_checkpoint("parts")) == 0);
    assert_same_log("whole", "parts");
    assert_true(nl_path_exists(in_folder("parts/done")));
    train(&options); /* over already */
    assert_same_log("whole", "parts");
}

static void same_for_any_threads(void **state)
{
    (void)state;
    static nl_test_run run;
    nl_train_options options = small_run("one");
    assert_int_equal(train_with(&options, 1, &run, 0, 0), NL_OK);
    options.out = in_folder("two");
    assert_int_equal(train_with(&options, 2, &run, 0, 0), NL_OK);
    assert_true(compare_checkpoints(last_checkpoint("one"), last_checkpoint("two")) == 0);
    options.out = in_folder("other");
    options.seed = 6;
    assert_int_equal(train_with(&options, 2, &run, 0, 0), NL_OK);
    assert_true(compare_checkpoints(last_checkpoint("one"), last_checkpoint("other")) > 1e-3);
}

/* Looking at a run does not change it. */
static void watching_changes_nothing(void **state)
{
    (void)state;
    nl_train_options options = small_run("unwatched");
    train(&options);
    options.out = in_folder("watched");
    options.validation = data_path;
    options.validate_every = 3;
    options.sample_every = 4;
    options.samples = 3;
    options.sample_steps = 2;
    options.save_every = 2;
    options.keep = 2;
    train(&options);
    assert_true(compare_checkpoints(last_checkpoint("unwatched"), last_checkpoint("watched")) == 0);
    assert_true(nl_path_exists(in_folder("watched/samples/step-0000004.png")));
    assert_true(nl_path_exists(in_folder("watched/samples/step-0000008.png")));
    assert_true(nl_path_exists(in_folder("watched/checkpoints/step-0000008.safetensors")));
    assert_false(nl_path_exists(in_folder("watched/checkpoints/step-0000006.safetensors")));
    nl_context *context = test_context(NULL);
    nl_curve curve = read_curve(context, "watched", "metrics.jsonl", "val_loss");
    assert_int_equal(curve.count, 4); /* steps 3, 6, 9, and the last */
    assert_true(curve.points[6] == 10);
    assert_true(curve.points[5] < curve.points[1]); /* at the same times, with the same noise */
    nl_curve_free(context, &curve);
    /* A signal does not wait for the validation. */
    static nl_test_run run;
    options.out = in_folder("cut");
    run.cancel_at = "step 3/10";
    assert_int_equal(train_with(&options, 1, &run, 0, 0), NL_CANCELLED);
    assert_null(strstr(run.log, "validation loss"));
    assert_true(nl_path_exists(in_folder("cut/checkpoints/step-0000003.safetensors")));
    train(&options);
    assert_true(compare_checkpoints(last_checkpoint("unwatched"), last_checkpoint("cut")) == 0);
    nl_core_context_destroy(context);
}

static bool same_files(const char *a, const char *b)
{
    nl_context *context = test_context(NULL);
    nl_mapping first, second;
    assert_ok(context, nl_map_file(context, in_folder(a), &first));
    assert_ok(context, nl_map_file(context, in_folder(b), &second));
    bool same = first.size == second.size && !memcmp(first.data, second.data, (size_t)first.size);
    nl_unmap(context, &first);
    nl_unmap(context, &second);
    nl_core_context_destroy(context);
    return same;
}

/* The step of the least loss in metrics.jsonl. */
static int best_of(const char *out, int *last)
{
    nl_context *context = test_context(NULL);
    nl_curve curve = read_curve(context, out, "metrics.jsonl", "val_loss");
    int best = 0;
    for (int i = 1; i < curve.count; i++)
        if (curve.points[2 * i + 1] < curve.points[2 * best + 1])
            best = i;
    int step = (int)curve.points[2 * best];
    *last = (int)curve.points[2 * (curve.count - 1)];
    nl_curve_free(context, &curve);
    nl_core_context_destroy(context);
    return step;
}

/* The run ends by its held-out loss, with the average that a run to the best step has, however often it was stopped. */
static void patience(void **state)
{
    (void)state;
    static nl_test_run run;
    int last;
    nl_train_options options = small_run("patient");
    options.steps = 100;
    options.rate = 0.1; /* soon too much */
    options.validation = data_path;
    options.validate_every = 2;
    options.save_every = 3;
    options.keep = 1;
    options.patience = 3;
    train(&options);
    int best = best_of("patient", &last);
    assert_true(best > 2 && last == best + 3 * 2 && last < 100);
    assert_true(nl_path_exists(in_folder("patient/done")));
    nl_train_options short_run = options;
    short_run.out = in_folder("best");
    short_run.steps = best;
    short_run.patience = 0;
    train(&short_run);
    assert_true(same_files("best/model.safetensors", "patient/model.safetensors"));

    options.out = in_folder("impatient");
    run.cancel_at = "step 3/100";
    assert_int_equal(train_with(&options, 1, &run, 0, 0), NL_CANCELLED);
    char stop[64];
    snprintf(stop, sizeof(stop), "step %d/100", best + 1);
    run.cancel_at = stop;
    assert_int_equal(train_with(&options, 2, &run, 0, 0), NL_CANCELLED);
    run.cancel_at = NULL;
    assert_int_equal(train_with(&options, 2, &run, 0, 0), NL_OK);
    snprintf(stop, sizeof(stop), "was that of step %d: the run is over", best);
    assert_non_null(strstr(run.log, stop));
    assert_true(compare_checkpoints(last_checkpoint("patient"), last_checkpoint("impatient")) == 0);
    assert_true(same_files("best/model.safetensors", "impatient/model.safetensors"));
    assert_true(same_files("patient/metrics.jsonl", "impatient/metrics.jsonl"));
    train(&options); /* over already */
    assert_true(same_files("patient/metrics.jsonl", "impatient/metrics.jsonl"));

    /* An end between two validations: the last weights are looked at, and a longer run is none the wiser. */
    options.out = in_folder("between");
    options.steps = best + 1;
    train(&options);
    train(&options);
    assert_int_equal(best_of("between", &last), best);
    assert_int_equal(last, best + 1);
    assert_true(same_files("best/model.safetensors", "between/model.safetensors"));
    options.steps = 100;
    train(&options);
    assert_true(compare_checkpoints(last_checkpoint("patient"), last_checkpoint("between")) == 0);
    assert_true(same_files("best/model.safetensors", "between/model.safetensors"));

    /* More patience goes on, none forgets the best. */
    options.patience = 4;
    assert_int_equal(train_with(&options, 2, &run, 0, 0), NL_OK);
    snprintf(stop, sizeof(stop), "step %d/100", best + 4 * 2);
    assert_non_null(strstr(run.log, stop));
    assert_true(same_files("best/model.safetensors", "between/model.safetensors"));
    options.validation = NULL;
    assert_int_equal(train_with(&options, 2, &run, 0, 0), NL_ERROR_USAGE);
    assert_non_null(strstr(run.log, "give --val"));
}

static void parts_make_the_batch(void **state)
{
    (void)state;
    nl_train_options options = small_run("at-once");
    options.steps = 3;
    train(&options);
    options.out = in_folder("in-parts");
    options.accumulate = 4;
    options.checkpointing = true;
    train(&options);
    double error = compare_checkpoints(last_checkpoint("at-once"), last_checkpoint("in-parts"));
    if (!(error < 2e-4)) /* of Adam's moments, whose smallest entries are sums that cancel */
        fail_msg("relative error %g", error);
    nl_context *context = test_context(NULL);
    nl_curve a = read_curve(context, "at-once", "log.jsonl", "loss");
    nl_curve b = read_curve(context, "in-parts", "log.jsonl", "loss");
    for (int i = 0; i < 3; i++)
        assert_true(fabs(a.points[2 * i + 1] / b.points[2 * i + 1] - 1) < 1e-5);
    nl_curve_free(context, &a);
    nl_curve_free(context, &b);
    nl_core_context_destroy(context);
}

/* What is dropped is a function of seed and sample: neither checkpointing nor stopping nor the parts of a batch change
 * it. */
static void dropout_is_a_function(void **state)
{
    (void)state;
    nl_train_options options = small_run("undropped");
    options.steps = 3;
    train(&options);
    options.dropout = 0.3;
    options.out = in_folder("dropped");
    train(&options);
    assert_true(compare_checkpoints(last_checkpoint("undropped"), last_checkpoint("dropped")) > 0);
    options.out = in_folder("dropped-again");
    options.checkpointing = true;
    options.steps = 2;
    train(&options);
    options.steps = 3;
    train(&options);
    assert_true(compare_checkpoints(last_checkpoint("dropped"), last_checkpoint("dropped-again")) ==
                0);
    options.out = in_folder("dropped-in-parts");
    options.accumulate = 4;
    train(&options);
    double error =
        compare_checkpoints(last_checkpoint("dropped"), last_checkpoint("dropped-in-parts"));
    if (!(error < 2e-4))
        fail_msg("relative error %g", error);
}

/* ---- Learning */

static void overfits(void **state)
{
    (void)state;
    nl_train_options options = small_run("overfit");
    options.overfit = 8;
    options.steps = 150;
    options.rate = 3e-3;
    options.log_every = 10;
    options.no_flip = true;
    train(&options);
    nl_context *context = test_context(NULL);
    nl_curve curve = read_curve(context, "overfit", "log.jsonl", "loss");
    double end = (curve.points[2 * 14 + 1] + curve.points[2 * 13 + 1]) / 2;
    if (!(end < 0.6 * curve.points[1]))
        fail_msg("loss %g at first, %g at last", curve.points[1], end);
    nl_curve_free(context, &curve);
    nl_core_context_destroy(context);
}

/* Grids of a run of an hour: (how many, seconds that steps had) where a step and a grid take so long. */
static int grids_of_an_hour(double step, double grid, double *of_steps)
{
    nl_due due = {0};
    int count = 0;
    *of_steps = 0;
    for (double now = step; now < 3600; now += step) {
        *of_steps += step;
        if (nl_due_now(&due, 10, 0.1, now / 3600, now)) {
            now += grid;
            count++;
        }
    }
    return count;
}

static void grids_by_the_clock(void **state)
{
    double of_steps;
    (void)state;
    assert_int_equal(grids_of_an_hour(0.5, 2, &of_steps), 9);
    assert_int_equal(grids_of_an_hour(4, 30, &of_steps), 9);
    assert_in_range(grids_of_an_hour(8, 60, &of_steps), 4, 6);
    assert_true(of_steps > 0.88 * 3600);
    /* cores that others use: the first is seen, and the rest of the hour is trained */
    assert_int_equal(grids_of_an_hour(45, 13 * 60, &of_steps), 1);
    assert_true(of_steps > 0.75 * 3600);
    /* ranks that look at the clock every eighth step see the same time again */
    nl_due due = {0};
    assert_true(nl_due_now(&due, 10, 0.1, 0.1, 360));
    assert_false(nl_due_now(&due, 10, 0.1, 0.3, 360));
    assert_false(nl_due_now(&due, 10, 0.1, 0.4, 1000)); /* it took 640 seconds */
    assert_true(nl_due_now(&due, 10, 1, 0.4, 1001));
    assert_false(nl_due_now(&due, 10, 1, 1, 9999)); /* the end has its own */
}

static void schedules(void **state)
{
    (void)state;
    nl_train_options options = nl_train_defaults;
    options.rate = 2;
    assert_true(nl_train_rate(&options, 7, 0.99) == 2);
    options.warmup = 4;
    assert_true(nl_train_rate(&options, 0, 0) == 0.5 && nl_train_rate(&options, 3, 0) == 2);
    options.warmup = 0;
    options.schedule = "cosine";
    assert_true(fabs(nl_train_rate(&options, 0, 0.5) - 1) < 1e-12);
    assert_true(fabs(nl_train_rate(&options, 0, 1)) < 1e-12);
    options.schedule = "cooldown";
    options.last_rate = 0.1;
    assert_true(nl_train_rate(&options, 0, 0.8) == 2);
    assert_true(fabs(nl_train_rate(&options, 0, 0.9) - 1.1) < 1e-12);
    assert_true(fabs(nl_train_rate(&options, 0, 1) - 0.2) < 1e-12);
    assert_true(nl_train_ema_decay(&options, &(nl_average){.decay = 0.9999}, 5) == 0.9999);
    options.ema_warmup = true;
    assert_true(nl_train_ema_decay(&options, &(nl_average){.decay = 0.9999}, 5) == 0.4);
}

/* What is not given follows the length of the run; what is given stays. */
static void lengths(void **state)
{
    (void)state;
    static const struct {
        int64_t steps, log, validate, sample, save;
    } runs[] = {{0, 100, 5000, 10000, 5000},    {6, 10, 100, 100, 100},
                {300, 20, 100, 100, 100},       {2000, 100, 200, 200, 500},
                {12345, 100, 1000, 1000, 2000}, {49999, 100, 2000, 2000, 5000},
                {50000, 100, 5000, 5000, 5000}, {400000, 100, 5000, 10000, 5000}};
    const nl_average usual = {.decay = 0.9999}, power = {.sigma_rel = 0.1};
    for (int i = 0; i < NL_COUNT(runs); i++) {
        nl_train_options o = {.size = sizeof(o)};
        nl_train_recipe(&o);
        nl_train_follow_length(&o, runs[i].steps);
        assert_int_equal(o.log_every, runs[i].log);
        assert_int_equal(o.validate_every, runs[i].validate);
        assert_int_equal(o.sample_every, runs[i].sample);
        assert_int_equal(o.save_every, runs[i].save);
        assert_string_equal(o.ema, "0.9999");
        assert_true(o.ema_warmup);
        double part = nl_train_first_part(&o, &usual, runs[i].steps);
        assert_true(part < 0.01);
        o.ema_warmup = false;
        assert_true(nl_train_first_part(&o, &usual, 2000) > 0.8);
        assert_true(nl_train_first_part(&o, &power, 2000) == 0);
    }
    nl_train_options given = {.size = sizeof(given)};
    nl_train_recipe(&given);
    given.log_every = 7;
    given.sample_every = given.save_every = 0;
    given.validate_every = 3;
    given.ema = "0.9";
    nl_train_follow_length(&given, 2000);
    assert_true(given.log_every == 7 && given.sample_every == 0 && given.save_every == 0);
    assert_true(given.validate_every == 3 && !strcmp(given.ema, "0.9") && !given.ema_warmup);
}

static void names(void **state)
{
    (void)state;
    static const char *const others[] = {"step-000100.safetensors",  "step-0000100.safetensors.old",
                                         "step-.safetensors",        "step-0000100.safetensor",
                                         "step-00001x0.safetensors", "xstep-0000100.safetensors",
                                         "step--000100.safetensors", "step-0000100.png"};
    char name[NL_RUN_NAME];
    int64_t step;
    assert_string_equal(nl_run_checkpoint_name(100, name), "step-0000100.safetensors");
    assert_true(nl_run_checkpoint_step(name, &step));
    assert_int_equal(step, 100);
    assert_true(nl_run_checkpoint_step(nl_run_checkpoint_name(123456789012, name), &step));
    assert_true(step == 123456789012);
    assert_string_equal(nl_run_grid_name(8, name), "step-0000008.png");
    for (int i = 0; i < NL_COUNT(others); i++)
        if (nl_run_checkpoint_step(others[i], &step))
            fail_msg("%s", others[i]);
}

/* Tensor of the newest checkpoint, [*count]. */
static float *trained(nl_context *context, const char *out, const char *name, int64_t *count)
{
    nl_checkpoint *checkpoint = NULL;
    assert_ok(context, nl_checkpoint_open_shard(context, last_checkpoint(out), NULL, &checkpoint));
    assert_ok(context, nl_checkpoint_sort(checkpoint));
    const nl_entry *entry = nl_checkpoint_find(checkpoint, name);
    assert_non_null(entry);
    *count = nl_entry_count(entry);
    float *values = malloc((size_t)*count * sizeof(float));
    assert_ok(context, nl_entry_read(checkpoint, entry, values));
    nl_checkpoint_close(checkpoint);
    return values;
}

/* Trains a small model twice: with the configuration, and without it (plain) or with it and queries that start `scale`
 * times as large; the two must be the same model, the second one's queries shorter by that factor. */
static void same_but_for_queries(const char *config, bool plain, double scale)
{
    static const char *const names[] = {"blocks.0.attn.qkvg.weight", "blocks.0.attn.qkvg.bias",
                                        "blocks.0.mlp.fc1.weight", "final_layer.linear.weight"};
    nl_context *context = test_context(NULL);
    char text[2][64];
    snprintf(text[0], sizeof(text[0]), "long-%g", scale);
    snprintf(text[1], sizeof(text[1]), "short-%g", scale);
    nl_train_options options = small_run(text[0]);
    options.config = in_folder("queries.json");
    options.epsilon =
        1e-16; /* Adam's size of a step depends on that of the gradient through it alone */
    assert_ok(context, nl_write_file(context, options.config, true, config, strlen(config)));
    train(&options);
    options.out = in_folder(text[1]);
    options.config = plain ? NULL : options.config;
    options.query_scale = scale;
    train(&options);
    for (int i = 0; i < NL_COUNT(names); i++) {
        int64_t count, queries = i < 2 ? (i ? 32 : 32 * 32) : 0;
        float *x = trained(context, text[0], names[i], &count),
              *y = trained(context, text[1], names[i], &count);
        for (int64_t j = 0; j < queries; j++)
            y[j] /= (float)scale;
        double error = queries ? test_relative_error(y, x, queries) : 0;
        double others = test_relative_error(y + queries, x + queries, count - queries);
        if (!(error < 1e-3 && others < 1e-3))
            fail_msg("%s: %g of queries, %g of others", names[i], error, others);
        free(x);
        free(y);
    }
    nl_core_context_destroy(context);
}

/* Where the norm of a query does nothing, query_scale gives the same model with shorter queries; and with the root mean
 * square in place of the norm the model is that of queries shorter by the root of the head's size. */
static void scales_queries(void **state)
{
    (void)state;
    same_but_for_queries("{\"feature_map\": \"cosine_constant\"}", false, 0.25);
    same_but_for_queries("{\"query_norm\": \"rms\"}", true, 1 / sqrt(32));
}

/* ---- Going wrong */

static void not_finite(void **state)
{
    (void)state;
    static nl_test_run run;
    nl_train_options options = small_run("explodes");
    options.rate = 1e38;
    options.max_skipped = 3;
    assert_int_equal(train_with(&options, 2, &run, 0, 0), NL_ERROR_NOT_FINITE);
    assert_non_null(strstr(run.log, "3 steps in a row were not finite; first bad: "));
    assert_null(strstr(run.log, "nothing that a second look finds"));
    assert_true(nl_path_exists(in_folder("explodes/not-finite.safetensors")));
    assert_false(nl_path_exists(in_folder("explodes/done")));
}

/* at: from the end. */
static void flip_bit(const char *path, long at)
{
    FILE *file = fopen(path, "r+b");
    assert_non_null(file);
    assert_int_equal(fseek(file, at, SEEK_END), 0);
    int byte = fgetc(file);
    assert_int_equal(fseek(file, at, SEEK_END), 0);
    assert_int_equal(fputc(byte ^ 1, file), byte ^ 1);
    assert_int_equal(fclose(file), 0);
}

/* Cut off, of another kind, with another bit: the newest checkpoint that is whole is resumed from. */
static void damaged_checkpoint(void **state)
{
    (void)state;
    static nl_test_run run;
    nl_train_options options = small_run("torn");
    options.steps = 8;
    options.save_every = 2;
    options.keep = 4;
    train(&options);
    char whole[512];
    snprintf(whole, sizeof(whole), "%s", in_folder("torn-before"));
    assert_int_equal(rename(last_checkpoint("torn"), whole), 0);
    nl_context *context = test_context(NULL);
    write_bytes(context, "torn/checkpoints/step-0000008.safetensors", "torn", 4);
    nl_core_context_destroy(context);
    assert_int_equal(truncate(in_folder("torn/checkpoints/step-0000006.safetensors"), 20000), 0);
    flip_bit(in_folder("torn/checkpoints/step-0000004.safetensors"), -5000);
    assert_int_equal(train_with(&options, 2, &run, 0, 0), NL_OK);
    assert_non_null(strstr(run.log, "trying the one before"));
    assert_non_null(strstr(run.log, "its checksum does not fit: the file is damaged; trying"));
    assert_non_null(strstr(run.log, "resuming at step 2"));
    assert_true(compare_checkpoints(last_checkpoint("torn"), whole) == 0);
}

static void refuses(void **state)
{
    (void)state;
    static nl_test_run run;
    const struct {
        const char *message;
        nl_train_options options;
    } cases[] = {
#define CASE(message, ...)                                                                         \
    {                                                                                              \
        message,                                                                                   \
        {                                                                                          \
            __VA_ARGS__                                                                            \
        }                                                                                          \
    }
        CASE("asked for are 6, 8 and 24", .seed = 6),
        CASE("asked for are 5, 4 and 24", .batch = 4),
        CASE("2 moving averages, and --ema asks for 1", .ema = "0.9"),
        CASE("\"depth\" differs", .model = "NaLaSiT-2x32x1/4"),
        CASE("\"num_heads\" differs", .model = "NaLaSiT-1x32x2/4"),
        CASE("\"path\" differs", .config = in_folder("gvp.json")),
        CASE("a new folder", .resume = "none"),
        CASE("needs the run's end", .schedule = "cosine", .steps = -1),
        CASE("equal parts", .accumulate = 3),
        CASE("24 samples", .overfit = 25),
        CASE("velocity", .weighting = "likelihood"),
        CASE("(--vae) is not there", .vae = "no-vae.safetensors"),
        CASE("expected a name such as", .model = "NaLaSit-Q/2"),
        CASE("between 0 and 1", .ema = "1.5"),
#undef CASE
    };
    nl_train_options usual = small_run("refuses");
    nl_context *context = test_context(NULL);
    write_bytes(context, "gvp.json", "{\"path\": \"gvp\"}", 15);
    nl_core_context_destroy(context);
    usual.steps = 1;
    train(&usual);
    for (int i = 0; i < NL_COUNT(cases); i++) {
        nl_train_options options = usual;
        const nl_train_options *given = &cases[i].options;
        options.seed = given->seed ? given->seed : options.seed;
        options.batch = given->batch ? given->batch : options.batch;
        options.ema = given->ema ? given->ema : options.ema;
        options.resume = given->resume ? given->resume : options.resume;
        options.schedule = given->schedule ? given->schedule : options.schedule;
        options.steps = given->steps < 0 ? 0 : options.steps;
        options.accumulate = given->accumulate ? given->accumulate : options.accumulate;
        options.overfit = given->overfit;
        options.weighting = given->weighting ? given->weighting : options.weighting;
        options.model = given->model ? given->model : options.model;
        options.config = given->config;
        options.vae = given->vae;
        nl_status status = train_with(&options, 1, &run, 0, 0);
        if (status != NL_ERROR_USAGE && status != NL_ERROR_INPUT)
            fail_msg("%s: %s", cases[i].message, nl_status_name(status));
        if (!strstr(run.log, cases[i].message))
            fail_msg("expected '%s' in: %s", cases[i].message, run.log);
    }
}

/* What would change nothing is refused by its name, and what makes it act is named. */
static void idle_options(void **state)
{
    (void)state;
    static nl_test_run run;
    const struct {
        const char *message;
        size_t offset;
        double real;
        int64_t whole;
    } cases[] = {
#define CASE(field, text, ...) {text, offsetof(nl_train_options, field), __VA_ARGS__}
        CASE(cooldown, "--cooldown does nothing without --schedule cooldown", .real = 0.3),
        CASE(last_rate, "--last-lr does nothing", .real = 0.1),
        CASE(times_mean, "--times-mean does nothing without --times logit-normal", .real = 1),
        CASE(times_deviation, "--times-deviation does nothing", .real = 2),
        CASE(min_snr, "--min-snr does nothing without --weighting min-snr", .real = 3),
        CASE(validate_every, "--val-every does nothing without --val", .whole = 2),
        CASE(validation_count, "--val-count does nothing", .whole = 2),
        CASE(snapshots, "--snapshots does nothing without --snapshot-every", .whole = 4),
        CASE(samples, "--samples does nothing", .whole = 4),
        CASE(sample_steps, "--sample-steps does nothing", .whole = 4),
        CASE(cfg_scale, "--cfg-scale does nothing", .real = 2),
        CASE(match_from, "--match-from does nothing without --match", .real = 0.1),
        CASE(fake_rate, "--fake-lr does nothing without --match", .real = 0.1),
#undef CASE
    };
    for (int i = 0; i < NL_COUNT(cases); i++) {
        nl_train_options options = small_run("idle");
        options.validate_every = -1;
        options.sample_every = 0;
        void *field = (char *)&options + cases[i].offset;
        if (cases[i].whole)
            memcpy(field, &cases[i].whole, sizeof(int64_t));
        else
            memcpy(field, &cases[i].real, sizeof(double));
        nl_status status = train_with(&options, 1, &run, 0, 0);
        if (status != NL_ERROR_USAGE || !strstr(run.log, cases[i].message))
            fail_msg("expected '%s', found %s: %s", cases[i].message, nl_status_name(status),
                     run.log);
    }
}

/* A run whose checkpoints are gone is not begun anew over what is left of it. */
static void checkpoints_gone(void **state)
{
    (void)state;
    static nl_test_run run;
    nl_train_options options = small_run("lost");
    options.steps = 2;
    train(&options);
    nl_context *context = test_context(NULL);
    char folder[512], away[512];
    snprintf(folder, sizeof(folder), "%s", in_folder("lost/checkpoints"));
    snprintf(away, sizeof(away), "%s", in_folder("lost-checkpoints"));
    assert_int_equal(rename(folder, away), 0);
    static const char *const remains[] = {"lost/model.safetensors", "lost/done", "lost/log.jsonl"};
    for (int i = 0; i < NL_COUNT(remains); i++) {
        nl_train_options other = options;
        if (i == 0)
            other.model = "SiT-1x32x1/4";
        if (i == 1)
            other.resume = "none";
        assert_int_equal(train_with(&other, 1, &run, 0, 0), NL_ERROR_INPUT);
        assert_non_null(strstr(run.log, strchr(remains[i], '/') + 1));
        assert_non_null(strstr(run.log, "put its checkpoints back"));
        assert_null(strstr(run.log, "step 1"));
        nl_curve curve = read_curve(context, "lost", "log.jsonl", "loss");
        assert_int_equal(curve.count, 2);
        nl_curve_free(context, &curve);
        assert_int_equal(unlink(in_folder(remains[i])), 0);
        if (i == 2)
            break;
        assert_true(nl_path_exists(in_folder(remains[i + 1])));
    }
    /* where one of them is named, or all are back, it goes on */
    write_bytes(context, "lost/log.jsonl", "", 0);
    options.resume = in_folder("lost-checkpoints/step-0000002.safetensors");
    options.steps = 3;
    train(&options);
    assert_true(nl_path_exists(in_folder("lost/checkpoints/step-0000003.safetensors")));
    nl_core_context_destroy(context);
}

/* Saving is tried before the first step; a run that was killed before its first checkpoint begins again. */
static void saving_is_tried(void **state)
{
    (void)state;
    static nl_test_run run;
    nl_context *context = test_context(NULL);
    nl_train_options options = small_run("dangling");
    options.steps = 2;
    assert_ok(context, nl_make_folder(context, options.out));
    assert_int_equal(symlink("/nowhere/at/all", in_folder("dangling/checkpoints")), 0);
    assert_int_equal(train_with(&options, 1, &run, 0, 0), NL_ERROR_WRITE);
    assert_non_null(strstr(run.log, "leads nowhere"));
    assert_null(strstr(run.log, "step 1"));
    assert_false(nl_path_exists(in_folder("dangling/log.jsonl")));
    assert_int_equal(unlink(in_folder("dangling/checkpoints")), 0);
    assert_ok(context, nl_make_folder(context, in_folder("dangling/checkpoints")));
    write_bytes(context, "dangling/log.jsonl", "{\"step\": 1, \"loss\": 77}\n", 24);
    write_bytes(context, "dangling/checkpoints/" NL_RUN_UNSAVED, "", 0);
    train(&options);
    assert_false(nl_path_exists(in_folder("dangling/checkpoints/" NL_RUN_UNSAVED)));
    nl_curve curve = read_curve(context, "dangling", "log.jsonl", "loss");
    assert_true(curve.count == 2 && curve.points[1] < 70);
    nl_curve_free(context, &curve);
    nl_core_context_destroy(context);
}

/* RUN is one process' at a time; what a killed one left in it goes. */
static void one_at_a_time(void **state)
{
    (void)state;
    static nl_test_run run;
    nl_train_options options = small_run("shared");
    options.steps = 1;
    train(&options);
    nl_context *context = test_context(NULL);
    static const char *const left[] = {"shared/checkpoints/.nalagen-1-000000001-0.tmp",
                                       "shared/samples/.nalagen-1-000000001-0.tmp",
                                       "shared/.nalagen-1-000000001-0.tmp"};
    assert_ok(context, nl_make_folder(context, in_folder("shared/samples")));
    for (int i = 0; i < NL_COUNT(left); i++)
        write_bytes(context, left[i], "left", 4);
    options.steps = 2;
    int lock;
    assert_ok(context, nl_lock_folder(context, options.out, &lock));
    assert_int_equal(train_with(&options, 1, &run, 0, 0), NL_ERROR_WRITE);
    assert_non_null(strstr(run.log, "another process is writing there"));
    assert_null(strstr(run.log, "resuming at step")); /* nothing was read before it was ours */
    nl_unlock_folder(lock);
    for (int i = 0; i < NL_COUNT(left); i++)
        assert_true(nl_path_exists(in_folder(left[i])));
    train(&options);
    for (int i = 0; i < NL_COUNT(left); i++)
        if (nl_path_exists(in_folder(left[i])))
            fail_msg("%s is still there", left[i]);
    assert_ok(context, nl_lock_folder(context, options.out, &lock)); /* nobody's again */
    nl_unlock_folder(lock);
    nl_core_context_destroy(context);
}

/* A run that resumes from an older checkpoint is not overtaken by those that it left. */
static void from_an_older_checkpoint(void **state)
{
    (void)state;
    nl_train_options options = small_run("back");
    options.steps = 6;
    options.save_every = 2;
    train(&options);
    options.resume = in_folder("back/checkpoints/step-0000002.safetensors");
    options.steps = 4;
    options.keep = 1;
    train(&options);
    assert_true(nl_path_exists(in_folder("back/checkpoints/step-0000006.safetensors.old")));
    assert_false(nl_path_exists(in_folder("back/checkpoints/step-0000006.safetensors")));
    assert_true(nl_path_exists(in_folder("back/checkpoints/step-0000004.safetensors")));
}

/* Whatever write fails: the run goes on or says so, and the same command ends it as if nothing had been. */
static void full_disk(void **state)
{
    (void)state;
    static nl_test_run run;
    nl_train_options options = small_run("space");
    options.steps = 3;
    options.save_every = 1;
    options.validation = data_path;
    options.validate_every = 2;
    train(&options);
    char good[512];
    snprintf(good, sizeof(good), "%s", last_checkpoint("space"));
    options.out = in_folder("full");
    int went_on = 0, failed = 0, saves = 0;
    for (int64_t n = 1;; n += n < 40 ? 1 : 37) {
        remove_tree(options.out);
        nl_status status = train_with(&options, 1, &run, n, 0);
        bool noticed = strstr(run.log, "No space left") != NULL;
        went_on += status == NL_OK && noticed;
        saves += status == NL_OK &&
                 strstr(run.log, "the checkpoint was not written, training continues");
        failed += status == NL_ERROR_WRITE;
        if (status != NL_OK && status != NL_ERROR_WRITE)
            fail_msg("write %lld: %s: %s", (long long)n, nl_status_name(status), run.log);
        if (status == NL_OK && !noticed)
            break;
        train(&options);
        assert_true(compare_checkpoints(last_checkpoint("full"), good) == 0);
        assert_true(nl_path_exists(in_folder("full/done")));
    }
    assert_true(went_on > 5 && failed > 0 && saves > 2);
}

static void no_memory(void **state)
{
    (void)state;
    static nl_test_run run;
    nl_train_options options = small_run("starved");
    options.steps = 2;
    options.sample_every = 1;
    options.samples = 1;
    options.sample_steps = 1;
    options.validation = data_path;
    options.validate_every = 1;
    int failed = 0;
    for (int64_t n = 1;; n += n < 100 ? 3 : 41) {
        remove_tree(options.out);
        nl_status status = train_with(&options, 1, &run, 0, n);
        if (status == NL_OK && !strstr(run.log, "memory"))
            break;
        failed += status == NL_ERROR_MEMORY;
        if (status != NL_ERROR_MEMORY && status != NL_OK)
            fail_msg("allocation %lld: %s: %s", (long long)n, nl_status_name(status), run.log);
    }
    assert_true(failed > 30);
}

/* ---- Files */

static uint64_t little(const uint8_t *bytes, int count)
{
    uint64_t value = 0;
    for (int i = count - 1; i >= 0; i--)
        value = value << 8 | bytes[i];
    return value;
}

static uint32_t unmasked(uint32_t masked)
{
    uint32_t rotated = masked - 0xa282ead8;
    return rotated >> 17 | rotated << 15;
}

static void events(void **state)
{
    (void)state;
    assert_int_equal(nl_crc32c("123456789", 9), 0xe3069283);
    nl_train_options options = small_run("events");
    options.steps = 2;
    options.sample_every = 2;
    options.samples = 1;
    options.sample_steps = 1;
    train(&options);
    glob_t found;
    char pattern[512];
    snprintf(pattern, sizeof(pattern), "%s/events.out.tfevents.*", in_folder("events"));
    assert_int_equal(glob(pattern, 0, NULL, &found), 0);
    nl_context *context = test_context(NULL);
    nl_mapping file;
    assert_ok(context, nl_map_file(context, found.gl_pathv[0], &file));
    int records = 0, losses = 0, pictures = 0;
    for (int64_t at = 0; at < file.size; records++) {
        uint64_t size = little(file.data + at, 8);
        assert_true(at + 16 + (int64_t)size <= file.size);
        const uint8_t *event = file.data + at + 12;
        assert_int_equal(unmasked((uint32_t)little(file.data + at + 8, 4)),
                         nl_crc32c(file.data + at, 8));
        assert_int_equal(unmasked((uint32_t)little(event + size, 4)), nl_crc32c(event, size));
        losses += memmem(event, size, "\x0a\x0atrain/loss\x15", 13) != NULL;
        pictures += memmem(event, size, "\x89PNG", 4) != NULL;
        at += 16 + (int64_t)size;
    }
    assert_int_equal(losses, 2);
    assert_int_equal(pictures, 1);
    assert_true(records > 10);
    nl_unmap(context, &file);
    nl_core_context_destroy(context);
    globfree(&found);
}

/* What a killed run has written behind its checkpoint is written again, not twice. */
static void later_lines_go(void **state)
{
    (void)state;
    nl_train_options options = small_run("killed");
    options.steps = 4;
    train(&options);
    FILE *log = fopen(in_folder("killed/log.jsonl"), "a");
    fputs("{\"step\": 5, \"loss\": 77}\n{\"step\": 6, \"lo", log);
    fclose(log);
    options.steps = 6;
    train(&options);
    nl_context *context = test_context(NULL);
    nl_curve curve = read_curve(context, "killed", "log.jsonl", "loss");
    assert_int_equal(curve.count, 6);
    for (int i = 0; i < 6; i++)
        assert_true(curve.points[2 * i] == i + 1 && curve.points[2 * i + 1] < 70);
    nl_curve_free(context, &curve);
    nl_core_context_destroy(context);
}

static void starts_from_weights(void **state)
{
    (void)state;
    static nl_test_run run;
    nl_context *context = test_context(NULL);
    nl_train_options options = small_run("donor");
    options.steps = 2;
    train(&options);
    nl_encode_result result;
    nl_encode_options encode = {.source = in_folder("source"),
                                .out = in_folder("unlabelled"),
                                .unconditional = true,
                                .latent_scale = 1,
                                .height = 16,
                                .width = 16};
    assert_ok(context, nl_encode_dataset(context, &encode, &result));
    options.init = in_folder("donor/model.safetensors");
    options.model = NULL;
    options.data = in_folder("unlabelled");
    options.out = in_folder("heir");
    options.steps = 1;
    options.rate = 0;
    assert_int_equal(train_with(&options, 1, &run, 0, 0), NL_OK);
    assert_non_null(strstr(run.log, "y_embedder.embedding_table.weight is [4, 32] there"));
    nl_checkpoint *donor = NULL, *heir = NULL;
    assert_ok(context, nl_checkpoint_open(context, options.init, &donor));
    assert_ok(context, nl_checkpoint_open(context, in_folder("heir/model.safetensors"), &heir));
    const char *same = "blocks.0.mlp.fc1.weight";
    bool equal = false;
    assert_ok(context, nl_entry_equal(donor, nl_checkpoint_find(donor, same),
                                      nl_checkpoint_find(heir, same), &equal));
    assert_true(equal);
    assert_int_equal(nl_checkpoint_find(heir, "y_embedder.embedding_table.weight")->shape[0], 1);
    nl_checkpoint_close(donor);
    nl_checkpoint_close(heir);
    options.model = "NaLaSiT-2x32x1/4";
    options.out = in_folder("stranger");
    assert_int_equal(train_with(&options, 1, &run, 0, 0), NL_ERROR_INPUT);
    assert_non_null(strstr(run.log, "blocks.1."));
    nl_core_context_destroy(context);
}

/* ---- Crops */

static void encode_crops(nl_context *context, const char *out)
{
    nl_encode_result result;
    nl_encode_options encode = {.source = in_folder("source"),
                                .out = in_folder(out),
                                .crops = 3,
                                .latent_scale = 1,
                                .height = 8,
                                .width = 8};
    assert_ok(context, nl_encode_dataset(context, &encode, &result));
    assert_int_equal(result.count, 72);
}

/* A network that is told of crops begins as the one that is not, and learns otherwise; it goes on exactly, in parts too;
 * it is told the truth or refused. */
static void tells_of_crops(void **state)
{
    (void)state;
    static nl_test_run run;
    nl_context *context = test_context(NULL);
    encode_crops(context, "cropped");
    write_bytes(context, "crops.json", "{\"crop_conditioning\": true}", 27);
    nl_train_options options = small_run("untold");
    options.data = in_folder("cropped");
    options.steps = 4;
    train(&options);
    options.init = in_folder("untold/model.safetensors"); /* bf16: any weights do */
    options.out = in_folder("untold-on");
    train(&options);
    options.config = in_folder("crops.json");
    options.validation = data_path; /* whole pictures */
    options.validate_every = 2;
    options.out = in_folder("told");
    assert_int_equal(train_with(&options, 2, &run, 0, 0), NL_OK);
    assert_non_null(strstr(run.log, "crop_embedder.weight is missing there"));
    nl_curve a = read_curve(context, "untold-on", "log.jsonl", "loss");
    nl_curve b = read_curve(context, "told", "log.jsonl", "loss");
    assert_true(a.points[1] == b.points[1] && a.points[7] != b.points[7]);
    nl_curve_free(context, &a);
    nl_curve_free(context, &b);
    int64_t count;
    float *weight = trained(context, "told", "crop_embedder.weight", &count);
    assert_int_equal(count, 32 * NL_CROP_NUMBERS);
    for (int i = 0; i < NL_CROP_NUMBERS; i++)
        assert_true(weight[4 * 5 + i] != 0);
    free(weight);
    options.out = in_folder("told-twice");
    run.cancel_at = "step 2/4";
    assert_int_equal(train_with(&options, 1, &run, 0, 0), NL_CANCELLED);
    train(&options);
    assert_true(compare_checkpoints(last_checkpoint("told"), last_checkpoint("told-twice")) == 0);
    options.out = in_folder("told-in-parts");
    options.accumulate = 2;
    train(&options);
    double error = compare_checkpoints(last_checkpoint("told"), last_checkpoint("told-in-parts"));
    if (!(error < 2e-4))
        fail_msg("relative error %g", error);
    options.accumulate = 1;

    /* which parts they are is not known */
    nl_mapping file;
    assert_ok(context, nl_map_file(context, in_folder("cropped/dataset.json"), &file));
    char *text = strndup((const char *)file.data, (size_t)file.size);
    memset(strstr(text, "\"crops\":\ttrue,"), ' ', strlen("\"crops\":\ttrue,"));
    nl_unmap(context, &file);
    write_bytes(context, "cropped/dataset.json", text, strlen(text));
    free(text);
    options.out = in_folder("not-known");
    assert_int_equal(train_with(&options, 1, &run, 0, 0), NL_ERROR_USAGE);
    assert_non_null(strstr(run.log, "encode again"));
    options.validation = options.data;
    options.data = data_path;
    assert_int_equal(train_with(&options, 1, &run, 0, 0), NL_ERROR_USAGE);
    assert_non_null(strstr(run.log, "encode again"));
    options.config = options.validation = NULL;
    options.validate_every = -1;
    options.data = in_folder("cropped");
    train(&options);
    nl_core_context_destroy(context);
}

/* ---- A middle head */

/* It begins as if it were not there and is trained beside the head; goes on exactly, in parts too. */
static void trains_a_middle_head(void **state)
{
    (void)state;
    static nl_test_run run;
    nl_context *context = test_context(NULL);
    write_bytes(context, "middle.json", "{\"middle_head\": 1}", 18);
    nl_train_options options = small_run("one-head");
    options.model = "NaLaSiT-2x32x1/4";
    options.steps = 4;
    train(&options);
    /* first, when both predict 0, its gradient is half the head's */
    int64_t count;
    options.config = in_folder("middle.json");
    options.out = in_folder("first-step");
    options.steps = 1;
    train(&options);
    float *half = trained(context, "first-step", "adam.m.middle_layer.linear.bias", &count);
    float *whole = trained(context, "first-step", "adam.m.final_layer.linear.bias", &count);
    for (int64_t i = 0; i < count; i++)
        assert_true(whole[i] != 0 && half[i] == 0.5f * whole[i]);
    free(half);
    free(whole);
    options.config = NULL;
    options.steps = 4;
    options.init = in_folder("one-head/model.safetensors");
    options.out = in_folder("one-head-on");
    train(&options);
    options.config = in_folder("middle.json");
    options.out = in_folder("two-heads");
    assert_int_equal(train_with(&options, 2, &run, 0, 0), NL_OK);
    assert_non_null(strstr(run.log, "it has no middle head, which starts anew"));
    nl_curve a = read_curve(context, "one-head-on", "log.jsonl", "loss");
    nl_curve b = read_curve(context, "two-heads", "log.jsonl", "loss");
    assert_true(a.points[1] == b.points[1] && a.points[7] != b.points[7]);
    nl_curve_free(context, &a);
    nl_curve_free(context, &b);
    float *bias = trained(context, "two-heads", "middle_layer.linear.bias", &count);
    for (int64_t i = 0; i < count; i++)
        assert_true(bias[i] != 0);
    free(bias);
    options.out = in_folder("two-heads-twice");
    run.cancel_at = "step 2/4";
    assert_int_equal(train_with(&options, 1, &run, 0, 0), NL_CANCELLED);
    train(&options);
    assert_true(
        compare_checkpoints(last_checkpoint("two-heads"), last_checkpoint("two-heads-twice")) == 0);
    options.out = in_folder("two-heads-in-parts");
    options.accumulate = 2;
    options.checkpointing = true;
    train(&options);
    double error =
        compare_checkpoints(last_checkpoint("two-heads"), last_checkpoint("two-heads-in-parts"));
    if (!(error < 2e-4))
        fail_msg("relative error %g", error);
    nl_core_context_destroy(context);
}

/* ---- Likelihood */

/* A network that predicts 0 moves nothing: the density is the normal one of the data. */
static void likelihood_of_no_flow(void **state)
{
    (void)state;
    static nl_test_run run;
    nl_train_options options = small_run("still");
    options.rate = 0;
    options.steps = 1;
    train(&options);
    nl_context_options of_context = {
        .device = "cpu", .dtype = "f32", .log = take_log, .user = &run};
    run.log[0] = '\0';
    assert_int_equal(nl_context_create(&of_context, &run.context), NL_OK);
    nl_likelihood_options likelihood = {.model = in_folder("still/model.safetensors"),
                                        .data = data_path,
                                        .batch = 5,
                                        .steps = 2,
                                        .probes = 1};
    nl_likelihood_result result;
    assert_ok(run.context, nl_measure_likelihood(run.context, &likelihood, &result));
    nl_dataset *data = NULL;
    assert_ok(run.context, nl_dataset_open(run.context, data_path, &data));
    double square = 1 / (12 * 127.5 * 127.5); /* of dequantisation */
    for (int64_t i = 0; i < 24; i++) {
        float x[192];
        assert_ok(run.context, nl_dataset_read(data, i, false, x));
        for (int k = 0; k < 192; k++)
            square += (double)x[k] * x[k] / (24 * 192);
    }
    double wanted = (0.5 * square + 0.5 * log(2 * 3.14159265358979) + log(127.5)) / log(2);
    assert_true(fabs(result.bits_per_dimension - wanted) < 1e-3);
    assert_int_equal(result.count, 24);
    /* The error is one over pictures: more probes of the same ones, which here find the same, do not lower it. */
    double error = result.standard_error;
    likelihood.probes = 3;
    assert_ok(run.context, nl_measure_likelihood(run.context, &likelihood, &result));
    assert_true(fabs(result.bits_per_dimension - wanted) < 1e-3);
    assert_true(error > 0 && fabs(result.standard_error - error) < 1e-3 * error);
    nl_dataset_close(data);
    nl_context_destroy(run.context);
}

/* e . dv/dx e against central differences of the network. */
static void divergence(void **state)
{
    (void)state;
    enum { B = 2, E = 192 };
    nl_context *context = test_context("cpu");
    nl_device *device = context->device;
    nl_config config;
    nl_flow flow = {.device = device};
    nl_dit *dit = NULL;
    nl_config_init(&config);
    assert_ok(context, nl_config_from_name(context, "NaLaSiT-1x32x1/4", &config));
    config.input_height = config.input_width = 8;
    config.in_channels = 3;
    config.num_classes = 3;
    config.learn_sigma = false;
    assert_ok(context, nl_dit_create(device, &config, &dit));
    random_model_fill(dit, 0.2f);
    assert_ok(context, nl_dit_create_flat(device, &config, &flow.gradients));
    assert_ok(context, nl_arena_reserve(device, 1 << 24));
    float x[B * E], probe[B * E], moved[B * E], out[2][B * E], dx[B * E], t[B], host[2 * B * E];
    int32_t labels[B] = {1, 2};
    int64_t shape[] = {B, 3, 8, 8}, batch = B;
    for (int i = 0; i < B * E; i++) {
        x[i] = sinf((float)i);
        probe[i] = i % 3 ? 1 : -1;
    }
    flow.dit = dit;
    flow.host = host;
    flow.t = nl_tensor_of(t, NL_F32, 1, &batch);
    flow.labels = nl_tensor_of(labels, NL_I32, 1, &batch);
    flow.probe = nl_tensor_of(probe, NL_F32, 4, shape);
    flow.dx = nl_tensor_of(dx, NL_F32, 4, shape);
    nl_tensor of_x = nl_tensor_of(x, NL_F32, 4, shape);
    nl_tensor of_moved = nl_tensor_of(moved, NL_F32, 4, shape);
    double estimate[B], differences[B] = {0};
    nl_tensor prediction = nl_tensor_of(out[0], NL_F32, 4, shape);
    assert_ok(context, nl_flow_evaluate(&flow, &of_x, 0.4, &prediction, estimate));
    const float h = 0.01f;
    for (int side = 0; side < 2; side++) {
        for (int i = 0; i < B * E; i++)
            moved[i] = x[i] + (side ? h : -h) * probe[i];
        prediction.data = out[side];
        assert_ok(context, nl_dit_forward(dit, device, &of_moved, &flow.t, &flow.labels, NULL,
                                          &prediction, NULL));
    }
    for (int i = 0; i < B * E; i++)
        differences[i / E] += (double)probe[i] * (out[1][i] - out[0][i]) / (2 * h);
    for (int b = 0; b < B; b++)
        if (!(fabs(estimate[b] - differences[b]) < 5e-3 * fabs(differences[b]) + 5e-3))
            fail_msg("image %d: %g, by differences %g", b, estimate[b], differences[b]);
    assert_true(fabs(estimate[0]) > 0.1);
    nl_dit_destroy(flow.gradients);
    nl_dit_destroy(dit);
    nl_config_free(context, &config);
    nl_context_destroy(context);
}

static int setup(void **state)
{
    nl_encode_result result;
    if (make_test_folder(state))
        return 1;
    nl_context *context = test_context(NULL);
    write_classes(context, 8, 16, 16);
    nl_encode_options options = {.source = in_folder("source"),
                                 .out = in_folder("data"),
                                 .height = 8,
                                 .width = 8,
                                 .latent_scale = 1};
    assert_ok(context, nl_encode_dataset(context, &options, &result));
    nl_core_context_destroy(context);
    data_path = strdup(in_folder("data"));
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(goes_on_exactly),
        cmocka_unit_test(same_for_any_threads),
        cmocka_unit_test(watching_changes_nothing),
        cmocka_unit_test(patience),
        cmocka_unit_test(parts_make_the_batch),
        cmocka_unit_test(dropout_is_a_function),
        cmocka_unit_test(overfits),
        cmocka_unit_test(schedules),
        cmocka_unit_test(grids_by_the_clock),
        cmocka_unit_test(lengths),
        cmocka_unit_test(names),
        cmocka_unit_test(scales_queries),
        cmocka_unit_test(not_finite),
        cmocka_unit_test(damaged_checkpoint),
        cmocka_unit_test(refuses),
        cmocka_unit_test(idle_options),
        cmocka_unit_test(checkpoints_gone),
        cmocka_unit_test(saving_is_tried),
        cmocka_unit_test(one_at_a_time),
        cmocka_unit_test(from_an_older_checkpoint),
        cmocka_unit_test(full_disk),
        cmocka_unit_test(no_memory),
        cmocka_unit_test(events),
        cmocka_unit_test(later_lines_go),
        cmocka_unit_test(starts_from_weights),
        cmocka_unit_test(tells_of_crops),
        cmocka_unit_test(trains_a_middle_head),
        cmocka_unit_test(likelihood_of_no_flow),
        cmocka_unit_test(divergence),
    };
    return cmocka_run_group_tests(tests, setup, remove_test_folder);
}
