/* SPDX-License-Identifier: MIT */
/* The table of sampling methods, and the tableaus of those that are Runge-Kutta. */
#include <stdio.h>
#include <string.h>

#include "nl_plan.h"

static const nl_tableau euler = {.stages = 1, .b = {1}};
static const nl_tableau midpoint = {.stages = 2, .c = {0, 0.5}, .a = {{0}, {0.5}}, .b = {0, 1}};
static const nl_tableau trapezoid = {.stages = 2, .c = {0, 1}, .a = {{0}, {1}}, .b = {0.5, 0.5}};
static const nl_tableau three_eighths = {.stages = 4,
                                         .c = {0, 1.0 / 3, 2.0 / 3, 1},
                                         .a = {{0}, {1.0 / 3}, {-1.0 / 3, 1}, {1, -1, 1}},
                                         .b = {1.0 / 8, 3.0 / 8, 3.0 / 8, 1.0 / 8}};
static const nl_tableau none = {0};

#define NL_ROW(constant, method, of, steps, noise, inner, end)                                     \
    {method, NL_FAMILY_##of, steps, NL_NOISE_##noise, &inner, &end},
const nl_method_row nl_methods[] = {NL_METHODS(NL_ROW)};
#undef NL_ROW
const char *const nl_method_names[] = {NL_METHODS(NL_LIST_NAME) NULL};

bool nl_method_is_diffusion(nl_method method)
{
    nl_family family = nl_methods[method].family;
    return family == NL_FAMILY_DIFFUSION || family == NL_FAMILY_MULTISTEP;
}

bool nl_method_is_sde(nl_method method)
{
    return nl_methods[method].family == NL_FAMILY_SDE;
}

bool nl_method_is_flow(nl_method method)
{
    return nl_methods[method].family == NL_FAMILY_FLOW;
}

const char *nl_method_list(bool diffusion, char *text, size_t size)
{
    int left = 0;
    text[0] = '\0';
    for (int method = 0; method < NL_METHOD_COUNT; method++)
        left += nl_method_is_diffusion((nl_method)method) == diffusion;
    for (int method = 0; method < NL_METHOD_COUNT; method++) {
        size_t used = strlen(text);
        if (nl_method_is_diffusion((nl_method)method) == diffusion)
            snprintf(text + used, size - used, "%s%s", nl_methods[method].name,
                     --left > 1 ? ", "
                     : left     ? " or "
                                : "");
    }
    return text;
}
