/* SPDX-License-Identifier: MIT */
/* The recipe "small": what it chooses by pictures, classes and device, and what it leaves as it was given. */
#include "data_folder.h"
#include "recipe.h"

static nl_train_options choose(nl_recipe_facts facts)
{
    nl_train_options options = nl_train_defaults;
    nl_recipe_choose(&facts, &options);
    return options;
}

/* The table, at the ends of its rows. */
static void choices_follow_the_pictures(void **state)
{
    (void)state;
    static const struct {
        int64_t pictures;
        int classes;
        bool starts, cpu;
        int64_t batch, steps;
        double rate, dropout, minutes;
    } cases[] = {
        {1, 0, true, false, 64, 2000, 1e-4, 0.2, 0},
        {200, 2, true, false, 64, 2000, 1e-4, 0.2, 0},
        {500, 2, true, false, 64, 2000, 1e-4, 0.2, 0},
        {501, 2, true, false, 128, 8000, 2e-4, 0.15, 0},
        {2000, 10, true, false, 128, 8000, 2e-4, 0.15, 0},
        {20000, 20, true, false, 512, 24000, 1e-3, 0.1, 0},
        {1281167, 1000, true, false, 512, 100000, 1e-3, 0, 0},
        {200, 2, false, false, 64, 10000, 5e-4, 0.2, 0},
        {2000, 10, false, false, 128, 16000, 1e-3, 0.15, 0},
        {400, 100, true, false, 64, 3125, 1e-4, 0.2, 0}, /* each class 2,000 times */
        {200, 2, true, true, 16, 2000, 1e-4, 0.2, 60},
        {20000, 20, true, true, 16, 2000, 1e-3, 0.1, 60},
    };
    for (int i = 0; i < NL_COUNT(cases); i++) {
        nl_train_options o = choose((nl_recipe_facts){.pictures = cases[i].pictures,
                                                      .classes = cases[i].classes,
                                                      .starts = cases[i].starts,
                                                      .cpu = cases[i].cpu});
        if (o.batch != cases[i].batch || o.steps != cases[i].steps || o.rate != cases[i].rate ||
            o.dropout != cases[i].dropout || o.minutes != cases[i].minutes)
            fail_msg("%lld pictures, case %d: batch %lld, %lld steps, rate %g, dropout %g, %g min",
                     (long long)cases[i].pictures, i, (long long)o.batch, (long long)o.steps,
                     o.rate, o.dropout, o.minutes);
        assert_string_equal(o.schedule, cases[i].cpu ? "constant" : "cooldown");
        assert_int_equal(o.patience, 0); /* nothing to look at */
        assert_true(o.hold_out == 0);
        assert_int_equal(o.snapshot_every, o.steps / 8);
    }
}

static void validations_are_whole_passes(void **state)
{
    (void)state;
    static const struct {
        int64_t held;
        bool cpu;
        int64_t count, every;
    } cases[] = {{20, false, 520, 50}, {500, false, 1000, 50},
                 {512, false, 0, 50},  {6000, false, 0, 156}, /* a fifth of the time at most */
                 {20, true, 80, 50},   {64, true, 0, 50}};
    for (int i = 0; i < NL_COUNT(cases); i++) {
        nl_train_options o = choose((nl_recipe_facts){.pictures = 200,
                                                      .held_out = cases[i].held,
                                                      .classes = 2,
                                                      .starts = true,
                                                      .cpu = cases[i].cpu});
        assert_int_equal(o.validation_count, cases[i].count);
        assert_int_equal(o.validate_every, cases[i].every);
        assert_int_equal(o.patience, 8);
    }
}

static void a_length_that_is_given_stays(void **state)
{
    (void)state;
    nl_recipe_facts facts = {.pictures = 200, .classes = 2, .starts = true, .cpu = true};
    nl_train_options options = nl_train_defaults;
    options.minutes = 5;
    nl_recipe_choose(&facts, &options);
    assert_true(options.minutes == 5 && options.steps == 0);
    options = nl_train_defaults;
    options.steps = 80;
    options.batch = 4;
    nl_recipe_choose(&facts, &options);
    assert_true(options.minutes == 0 && options.steps == 80 && options.batch == 4);
    assert_int_equal(options.snapshot_every, 10);
    assert_int_equal(options.log_every, 10);
}

static void pictures_to_hold_out(void **state)
{
    (void)state;
    assert_int_equal(nl_recipe_held_out_every(&(nl_recipe_facts){.pictures = 20000, .classes = 20}),
                     10);
    assert_int_equal(
        nl_recipe_held_out_every(&(nl_recipe_facts){.pictures = 6400, .classes = 2, .cpu = true}),
        100);
    assert_int_equal(
        nl_recipe_held_out_every(&(nl_recipe_facts){.pictures = 6400, .classes = 100, .cpu = true}),
        64);
}

/* Of a data set: a model where no weights fit, crops that the network is told of, what was named. */
static void recipe_of_a_data_set(void **state)
{
    (void)state;
    nl_context *context = NULL;
    assert_int_equal(
        nl_context_create(&(nl_context_options){.device = "cpu", .threads = 1}, &context), NL_OK);
    nl_recipe recipe;
    nl_train_options options = nl_train_defaults;
    write_classes(context, 10, 8, 8);
    nl_encode_options encode = pixel_options(8);
    encode.crops = 2;
    nl_dataset_close(encode_and_open(context, &encode));
    options.data = in_folder("data");
    assert_ok(context, nl_recipe_small(context, &options, &recipe));
    assert_string_equal(options.model, "NaLaSiT-S/2");
    assert_null(options.init);
    assert_string_equal(options.config,
                        "{\"middle_head\": 4, \"crop_conditioning\": true, \"lepe\": true}");
    assert_true(recipe.facts.pictures == 30 && recipe.facts.held_out == 3);
    assert_true(fabs(options.hold_out - 0.1) < 1e-12 && options.patience == 8);
    assert_true(recipe.minutes == 60);
    options = nl_train_defaults;
    options.data = in_folder("data");
    options.model = "SiT-2x64x2/4";
    options.validation = options.data;
    options.minutes = 1;
    assert_ok(context, nl_recipe_small(context, &options, &recipe));
    assert_string_equal(options.model, "SiT-2x64x2/4");
    assert_string_equal(options.config, "{\"middle_head\": 0, \"crop_conditioning\": true}");
    assert_true(options.hold_out == 0 && recipe.facts.held_out == 60 && recipe.minutes == 0);
    nl_context_destroy(context);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(choices_follow_the_pictures),
        cmocka_unit_test(validations_are_whole_passes),
        cmocka_unit_test(a_length_that_is_given_stays),
        cmocka_unit_test(pictures_to_hold_out),
        cmocka_unit_test_setup_teardown(recipe_of_a_data_set, make_test_folder, remove_test_folder),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
