/* SPDX-License-Identifier: MIT */
/* Lists that people read are those that the program works by: the documents, the public header, --help. */
#include "nl_test.h"

#include <ctype.h>

#include "nl_sampler.h"

/* The file with runs of anything but letters, digits, '_' and '-' made one space. */
static char *words_of(const char *name)
{
    char path[4096];
    snprintf(path, sizeof(path), "%s/%s", NL_SOURCE_DIR, name);
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    size_t room = 1 << 20, size = 0;
    char *text = malloc(room);
    assert_non_null(text);
    for (int c; (c = fgetc(file)) != EOF && size + 1 < room;) {
        bool escape = c == '\\';
        if (escape)
            fgetc(file); /* "\n" in a string of the program */
        if (!escape && (isalnum(c) || c == '_' || c == '-'))
            text[size++] = (char)c;
        else if (size && text[size - 1] != ' ')
            text[size++] = ' ';
    }
    fclose(file);
    text[size] = '\0';
    return text;
}

static void find(const char *file, const char *expected)
{
    char *text = words_of(file);
    if (!strstr(text, expected))
        fail_msg("%s does not say: %s", file, expected);
    free(text);
}

/* "before ddpm ddim ... between euler midpoint ..." */
static void methods_are(const char *file, const char *before, const char *between)
{
    char expected[512];
    snprintf(expected, sizeof(expected), "%s", before);
    for (int pass = 0; pass < 2; pass++) {
        for (int method = 0; method < NL_METHOD_COUNT; method++)
            if (nl_method_is_diffusion((nl_method)method) == !pass) {
                strcat(expected, " ");
                strcat(expected, nl_methods[method].name);
            }
        if (!pass)
            strcat(expected, between);
    }
    strcat(expected, " ");
    find(file, expected);
}

static void names_are(const char *file, const char *before, const char *const *names)
{
    char expected[512];
    snprintf(expected, sizeof(expected), "%s", before);
    for (; *names; names++) {
        strcat(expected, " ");
        strcat(expected, *names);
    }
    strcat(expected, " ");
    find(file, expected);
}

static void test_methods(void **state)
{
    (void)state;
    methods_are("docs/usage.md", "Samplers DiT", " SiT");
    methods_are("include/nalagen.h", "sampler", "");
    methods_are(SAMPLING_TABLE, "dpmpp-2m DiT", " SiT");
    char text[128];
    assert_string_equal(nl_method_list(true, text, sizeof(text)),
                        "ddpm, ddim, dpmpp-2m, dpmpp-2m-sde or unipc");
    assert_string_equal(
        nl_method_list(false, text, sizeof(text)),
        "euler, midpoint, heun, heun2, rk4, ab2, dopri5, sde-euler, sde-heun, flow or flow-sde");
}

static void test_other_names(void **state)
{
    (void)state;
    names_are("include/nalagen.h", "sde_form", nl_sde_form_names);
    names_are("include/nalagen.h", "last_step", nl_last_step_names);
    names_are("include/nalagen.h", "architecture", nl_architecture_names);
    names_are("include/nalagen.h", "transport_path", nl_path_names);
    names_are("include/nalagen.h", "prediction", nl_prediction_names);
    names_are("docs/formats.md", "feature_map", nl_feature_map_names);
    names_are(SAMPLING_TABLE, "detail", nl_architecture_names);
}

/* Each row stands where its constant says, and says all that its family needs. */
static void test_rows(void **state)
{
    (void)state;
    for (int method = 0; method < NL_METHOD_COUNT; method++) {
        const nl_method_row *row = &nl_methods[method];
        bool fixed = row->family != NL_FAMILY_ADAPTIVE;
        assert_string_equal(row->name, nl_method_names[method]);
        assert_true((row->default_steps == 0) == (row->family == NL_FAMILY_ADAPTIVE));
        if (row->family == NL_FAMILY_SDE)
            assert_int_equal(row->noise, NL_NOISE_ALWAYS);
        nl_sampler_options options;
        nl_sampler_options_init(&options);
        options.method = (nl_method)method;
        options.steps = row->default_steps ? row->default_steps : options.steps;
        nl_context *context = test_context(NULL);
        nl_sampler *sampler;
        assert_ok(context, nl_sampler_create(context, &options, &sampler));
        assert_int_equal(nl_sampler_needs_noise(sampler), row->noise == NL_NOISE_ALWAYS);
        assert_int_equal(nl_sampler_steps(sampler), fixed ? options.steps : 0);
        nl_sampler_destroy(sampler);
        nl_context_destroy(context);
    }
    assert_null(nl_method_names[NL_METHOD_COUNT]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_methods),
        cmocka_unit_test(test_other_names),
        cmocka_unit_test(test_rows),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
