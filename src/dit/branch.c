/* SPDX-License-Identifier: MIT */
/* The lists of mixers and MLPs, and what is asked of them without running them. */
#include <stdio.h>

#include "network.h"

#define NL_ROW(NAME, name, prefix) [NL_ATTENTION_##NAME] = &nl_mixer_##name,
static const nl_branch *const mixers[] = {NL_MIXERS(NL_ROW)};
#undef NL_ROW
#define NL_ROW(NAME, name) [NL_MLP_##NAME] = &nl_mlp_##name,
static const nl_branch *const mlps[] = {NL_MLPS(NL_ROW)};
#undef NL_ROW

const nl_branch *nl_branch_of(const nl_config *config, int kind)
{
    return kind == NL_BRANCH_MIXER ? mixers[config->attention] : mlps[config->mlp];
}

int64_t nl_wide_columns(const nl_config *config)
{
    int64_t columns = 0;
    for (int kind = 0; kind < NL_BRANCHES; kind++)
        columns = NL_MAX(columns, nl_branch_of(config, kind)->columns(config));
    return columns;
}

double nl_dit_block_work(const nl_config *config)
{
    double work = 0;
    for (int kind = 0; kind < NL_BRANCHES; kind++)
        work += nl_branch_of(config, kind)->work(config);
    return work;
}

const char *nl_branch_kept_name(const nl_config *config, int branch, int i)
{
    const char *const *names = nl_branch_of(config, branch)->kept_names;
    for (int j = 0; j < i; j++)
        if (!names[j])
            return NULL;
    return names[i];
}

static bool told(const nl_checkpoint *checkpoint, const nl_branch *branch)
{
    char name[NL_NAME_SIZE];
    snprintf(name, sizeof(name), "blocks.0.%s", branch->told_by);
    return nl_checkpoint_find(checkpoint, name) != NULL;
}

nl_attention nl_told_mixer(const nl_checkpoint *checkpoint)
{
    for (int i = NL_COUNT(mixers) - 1; i > 0; i--)
        if (told(checkpoint, mixers[i]))
            return (nl_attention)i;
    return 0;
}

nl_mlp nl_told_mlp(const nl_checkpoint *checkpoint)
{
    for (int i = NL_COUNT(mlps) - 1; i > 0; i--)
        if (told(checkpoint, mlps[i]))
            return (nl_mlp)i;
    return 0;
}
