/* SPDX-License-Identifier: MIT */
/* The FID network of an evaluation: its weights, its preset and precision, and the metrics that are wanted of it. */
#include "nl_network.h"

#include <stdio.h>
#include <string.h>

#include "nl_pipeline.h"

const char *const nl_feature_choices[] = {"pool_3", "mixed_7", "pool_192", "pool_64", NULL};

/* --weights, a path or a name among the data files; without it one of the usual names there. */
static nl_status find_weights(nl_context *context, const char *given, char **path)
{
    static const char *const usual[] = {"pt_inception-2015-12-05-6726825d.pth",
                                        "inception-2015-12-05.safetensors", NULL};
    *path = NULL;
    for (int i = 0; !given && usual[i]; i++) {
        nl_status status = nl_find_data(context, NULL, usual[i], path);
        if (status != NL_OK || *path)
            return status;
    }
    if (!given)
        return nl_data_missing(
            context, "Inception, the network of FID,", NULL, usual,
            "put pt_inception-2015-12-05-6726825d.pth (91 MiB, a release file of "
            "pytorch-fid) into one of these folders, or give --weights FILE");
    return nl_find_named(context, given, path);
}

/* Seen by nl_cancel and by the callback of the context. */
static bool report(void *user, const char *what, int64_t done, int64_t count)
{
    nl_progress progress = {.stage = what, .image = done, .images = count};
    return nl_report_progress(user, &progress) == NL_OK;
}

/* Of `names`, ended by NULL, or NULL. */
static nl_status check_choice(nl_context *context, const char *what, const char *name,
                              const char *const *names)
{
    char all[128] = "";
    for (int i = 0; names[i]; i++) {
        if (!name || !strcmp(name, names[i]))
            return NL_OK;
        snprintf(all + strlen(all), sizeof(all) - strlen(all), "%s%s", i ? ", " : "", names[i]);
    }
    return nl_fail(context, NL_ERROR_USAGE, "%s: expected %s, found '%s'", what, all, name);
}

static nl_status set_preset(nl_fid_network *network, const char *name)
{
    const nl_preprocessing *p = nl_preprocessings;
    while (p->name && name && strcmp(p->name, name))
        p++;
    if (!p->name)
        return nl_fail(network->context, NL_ERROR_USAGE,
                       "preset: expected openai, pytorch-fid, clean-fid or torch-fidelity, "
                       "found '%s'",
                       name);
    network->options = NL_METRIC_DEFAULT;
    network->options.preprocessing = p;
    network->options.progress = report;
    network->options.user = network->context;
    network->options.is_shuffled = !strcmp(p->name, "torch-fidelity");
    return NL_OK;
}

static nl_status parse_metrics(nl_context *context, const char *list, bool wanted[NL_METRICS])
{
    for (int m = 0; !list && m < NL_METRICS; m++)
        wanted[m] = m != NL_METRIC_FID_INFINITY;
    while (list && *list) {
        char word[32];
        int length = (int)strcspn(list, ","), found = -1;
        snprintf(word, sizeof(word), "%.*s", NL_MIN(length, 31), list);
        for (int m = 0; m < NL_METRICS; m++)
            if (!strcmp(word, nl_metric_names[m]))
                found = m;
        if (found < 0) {
            const char *near = nl_nearest(word, nl_metric_names);
            return nl_fail(context, NL_ERROR_USAGE,
                           "--metrics: expected fid, sfid, is, precision, recall, kid, found "
                           "'%s'%s%s%s",
                           word, near ? "; did you mean " : "", near ? near : "", near ? "?" : "");
        }
        wanted[found] = true;
        list += length + (list[length] == ',');
    }
    return NL_OK;
}

/* Refuses what was given for metrics that are not asked for. */
static nl_status check_idle(nl_context *context, const nl_evaluation_options *options,
                            const bool wanted[NL_METRICS])
{
    const nl_idle of_metrics[] = {
        {"kid-subsets", options->kid_subsets > 0, wanted[NL_METRIC_KID],
         "kid, which --metrics leaves out"},
        {"kid-subset-size", options->kid_subset_size > 0, wanted[NL_METRIC_KID],
         "kid, which --metrics leaves out"},
        {"is-split", options->is_split > 0, wanted[NL_METRIC_IS], "is, which --metrics leaves out"},
        {"bootstrap", options->bootstrap > 0, wanted[NL_METRIC_FID],
         "fid, which --metrics leaves out"},
        {"distances", options->half_distances,
         wanted[NL_METRIC_PRECISION] || wanted[NL_METRIC_RECALL],
         "precision or recall, which --metrics leaves out"},
    };
    return nl_refuse_idle(context, of_metrics, NL_COUNT(of_metrics));
}

/* All that can be refused without the network. */
static nl_status take_options(nl_fid_network *network, const nl_evaluation_options *options)
{
    nl_metric_options *o = &network->options;
    NL_CHECK(set_preset(network, options->preset));
    NL_CHECK(check_choice(network->context, "precision", options->precision, nl_precision_names));
    NL_CHECK(check_choice(network->context, "features", options->features, nl_feature_choices));
    NL_CHECK(parse_metrics(network->context, options->metrics, o->wanted));
    if (options->kid_subsets < 0 || options->kid_subset_size < 0 || options->kid_subset_size == 1 ||
        options->is_split < 0 || options->bootstrap < 0 || options->bootstrap == 1)
        return nl_fail(network->context, NL_ERROR_USAGE,
                       "evaluation: expected 1 or more subsets of KID of 2 or more pictures, a "
                       "positive split, and 2 or more resamplings");
    NL_CHECK(check_idle(network->context, options, o->wanted));
    o->wanted[NL_METRIC_FID_INFINITY] |= options->fid_infinity;
    o->allow_small = options->allow_small;
    if (options->kid_subsets)
        o->kid_subsets = options->kid_subsets;
    if (options->kid_subset_size)
        o->kid_subset_size = options->kid_subset_size;
    o->bootstrap = options->bootstrap;
    o->half_distances = options->half_distances;
    if (options->is_split) {
        o->is_split = options->is_split;
        o->is_shuffled = false;
    }
    return NL_OK;
}

/* On a GPU TF32, the fastest that moves every metric by less than 1e-3 of its value (docs/evaluation.md). */
static nl_status set_precision(nl_fid_network *s, const char *name)
{
    nl_precision precision =
        nl_device_queues(s->context->device) ? NL_PRECISION_TF32 : NL_PRECISION_FP32;
    for (int i = 0; name && i < NL_PRECISIONS; i++)
        if (!strcmp(name, nl_precision_names[i]))
            precision = i;
    return nl_inception_set_precision(s->net, precision);
}

static nl_status choose_feature(nl_fid_network *network, const char *name)
{
    nl_metric_options *o = &network->options;
    if (!nl_inception_has(network->net, NL_FEATURE_POOL_3))
        o->feature = NL_FEATURE_MIXED_7;
    for (int f = 0; name && f < NL_FEATURES; f++)
        if (!strcmp(name, nl_feature_name(f)))
            o->feature = f;
    if (nl_inception_has(network->net, o->feature))
        return NL_OK;
    return nl_fail(network->context, NL_ERROR_INPUT,
                   "--features %s: the weights are not complete. Missing:%s", name,
                   nl_inception_missing(network->net));
}

nl_status nl_fid_network_open(nl_context *context, const nl_evaluation_options *options,
                              nl_fid_network *network)
{
    char *path = NULL;
    nl_status status;
    *network = (nl_fid_network){.context = context};
    NL_TRY(take_options(network, options));
    NL_TRY(find_weights(context, options->weights, &path));
    NL_TRY(nl_checkpoint_open(context, path, &network->checkpoint));
    NL_TRY(nl_inception_load(context->device, network->checkpoint, &network->net));
    NL_TRY(set_precision(network, options->precision));
    NL_TRY(nl_checkpoint_sha256(network->checkpoint, network->sha256));
    if (!nl_inception_has(network->net, NL_FEATURE_LOGITS))
        nl_log(context, NL_LOG_WARNING, "%s is not complete%s. Missing:%s", path,
               nl_inception_has(network->net, NL_FEATURE_POOL_3)
                   ? ": no Inception Score"
                   : ": no FID of 2048 features, no Inception Score",
               nl_inception_missing(network->net));
    NL_TRY(choose_feature(network, options->features));
cleanup:
    nl_free(context, path);
    if (status != NL_OK)
        nl_fid_network_close(network);
    return status;
}

void nl_fid_network_close(nl_fid_network *network)
{
    nl_inception_destroy(network->net);
    nl_checkpoint_close(network->checkpoint);
    *network = (nl_fid_network){.context = NULL};
}
