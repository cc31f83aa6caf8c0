/* SPDX-License-Identifier: MIT */
/*
 * REPA's checkpoints. Its network is a SiT whose time runs the other way: 0 is data, 1 is noise, and it predicts
 * noise - data. With s = 1 - t that is a SiT's velocity, v(x, s) = -f(x, 1 - s), and both signs go into the weights:
 * the features of 1 - s are a rotation of those of s,
 *
 *   cos((1 - s) w) = cos w cos(s w) + sin w sin(s w),   sin((1 - s) w) = sin w cos(s w) - cos w sin(s w),
 *
 * which the first layer of the time embedding takes over, and the last layer changes its sign. The projectors, which
 * only training needs, are left out.
 */
#include <math.h>
#include <string.h>

#include "params.h"

static const char projectors[] = "projectors.";

static bool is_repa(const nl_checkpoint *checkpoint)
{
    if (nl_checkpoint_metadata(checkpoint, "nalagen"))
        return false;
    bool found = nl_checkpoint_metadata(checkpoint, "args.proj_coeff") != NULL;
    for (int64_t i = 0; i < checkpoint->count && !found; i++)
        found = strncmp(checkpoint->entries[i].name, projectors, strlen(projectors)) == 0;
    return found && nl_checkpoint_find(checkpoint, "x_embedder.proj.weight");
}

nl_status nl_take_values(nl_checkpoint *checkpoint, nl_entry *entry, float **values)
{
    float *memory;
    int64_t count = nl_entry_count(entry);
    *values = NULL;
    NL_CHECK(NL_OWN_ARRAY(checkpoint, entry->name, count, &memory));
    NL_CHECK(nl_entry_read(checkpoint, entry, memory));
    entry->dtype = NL_F32;
    entry->data = memory;
    entry->strides = NULL;
    entry->scale = NULL;
    *values = memory;
    return NL_OK;
}

/* The entry's numbers, to be changed; NULL when there is no such tensor. */
static nl_status take_values(nl_checkpoint *checkpoint, const char *name, nl_entry **entry,
                             float **values)
{
    *values = NULL;
    *entry = (nl_entry *)nl_checkpoint_find(checkpoint, name);
    return *entry ? nl_take_values(checkpoint, *entry, values) : NL_OK;
}

static nl_status turn_time(nl_checkpoint *checkpoint)
{
    nl_entry *entry;
    float *weight;
    nl_status status = take_values(checkpoint, "t_embedder.mlp.0.weight", &entry, &weight);
    if (status != NL_OK || !weight || entry->ndim != 2)
        return status;
    int64_t rows = entry->shape[0], half = entry->shape[1] / 2;
    for (int64_t row = 0; row < rows; row++, weight += entry->shape[1])
        for (int64_t i = 0; i < half; i++) {
            double w = exp(-log(10000) * (double)i / (double)half);
            double of_cos = weight[i], of_sin = weight[half + i];
            weight[i] = (float)(of_cos * cos(w) + of_sin * sin(w));
            weight[half + i] = (float)(of_cos * sin(w) - of_sin * cos(w));
        }
    return NL_OK;
}

static nl_status turn_velocity(nl_checkpoint *checkpoint)
{
    static const char *const names[] = {"final_layer.linear.weight", "final_layer.linear.bias"};
    nl_entry *entry;
    float *values;
    for (int i = 0; i < NL_COUNT(names); i++) {
        nl_status status = take_values(checkpoint, names[i], &entry, &values);
        if (status != NL_OK)
            return status;
        for (int64_t j = 0; values && j < nl_entry_count(entry); j++)
            values[j] = -values[j];
    }
    return NL_OK;
}

nl_status nl_repa_turn(nl_checkpoint *checkpoint)
{
    nl_status status = NL_OK;
    int64_t kept = 0;
    if (!is_repa(checkpoint))
        return NL_OK;
    for (int64_t i = 0; i < checkpoint->count; i++)
        if (strncmp(checkpoint->entries[i].name, projectors, strlen(projectors)) != 0)
            checkpoint->entries[kept++] = checkpoint->entries[i];
    checkpoint->count = kept;
    NL_TRY(turn_time(checkpoint));
    NL_TRY(turn_velocity(checkpoint));
    checkpoint->spelling = nl_spelling_repa;
    nl_log(checkpoint->context, NL_LOG_INFO,
           "%s: a SiT of REPA, where time runs from data to noise; turned round", checkpoint->path);
cleanup:
    return status;
}
