/* SPDX-License-Identifier: MIT */
/* nl_evaluate: pictures of files or of a model through the FID network, and what the numbers depend on. */
#include "gather.h"
#include "nl_network.h"

#include <stdio.h>
#include <string.h>

#include "nl_pipeline.h"

enum { SAMPLES = 50000 }; /* of a model, where nothing else is said */

const char *nl_metric_name(nl_metric metric)
{
    return (int)metric >= 0 && metric < NL_METRICS ? nl_metric_names[metric] : NULL;
}

static nl_status of_files(nl_fid_network *network, const nl_evaluation_options *options,
                          nl_evaluation *evaluation)
{
    nl_context *context = network->context;
    nl_pictures *pictures = NULL;
    nl_status status;
    NL_TRY(nl_pictures_open(context, options->samples, context->device->threads, &pictures));
    nl_picture_source source = nl_pictures_source(pictures);
    NL_TRY(nl_measure(network->net, &network->options, &source, options->reference, evaluation));
cleanup:
    nl_pictures_close(pictures);
    return status;
}

static nl_status of_model(nl_fid_network *network, const nl_evaluation_options *options,
                          nl_evaluation *evaluation)
{
    nl_model_pictures *pictures = NULL;
    nl_status status;
    NL_TRY(nl_model_pictures_open(network->context, options, &pictures));
    nl_picture_source source = nl_model_pictures_source(pictures);
    nl_group *group = network->options.group;
    status = nl_measure(network->net, &network->options, &source, options->reference, evaluation);
    NL_TRY(nl_group_agree(group, status));
    double evaluations = (double)nl_model_pictures_evaluations(pictures);
    NL_TRY(nl_gather_sums(group, &evaluations, 1));
    evaluation->evaluations = (int64_t)evaluations;
cleanup:
    nl_model_pictures_close(pictures);
    return status;
}

nl_status nl_evaluate_with(nl_fid_network *network, const nl_evaluation_options *given,
                           nl_evaluation *evaluation)
{
    const nl_metric_options *of_metrics = &network->options;
    nl_evaluation_options full = *given, *options = &full;
    options->count = options->count ? options->count : SAMPLES;
    NL_CHECK(options->samples ? of_files(network, options, evaluation)
                              : of_model(network, options, evaluation));
    evaluation->features = nl_feature_name(of_metrics->feature);
    evaluation->preset = of_metrics->preprocessing->name;
    evaluation->preprocessing = of_metrics->preprocessing->text;
    evaluation->precision = nl_precision_names[nl_inception_precision(network->net)];
    snprintf(evaluation->weights, sizeof(evaluation->weights), "%s", network->checkpoint->path);
    memcpy(evaluation->weights_sha256, network->sha256, sizeof(network->sha256));
    if (!nl_path_is_folder(options->reference))
        NL_CHECK(
            nl_file_sha256(network->context, options->reference, evaluation->reference_sha256));
    return NL_OK;
}

static nl_status check(nl_context *context, const nl_evaluation_options *options)
{
    if (!options->reference)
        return nl_fail(context, NL_ERROR_USAGE,
                       "evaluation: a reference is needed: statistics (.npz) or pictures");
    if (!options->samples == !options->model)
        return nl_fail(context, NL_ERROR_USAGE,
                       "evaluation: expected samples or a model that makes them, found %s",
                       options->model ? "both" : "neither");
    return NL_OK;
}

nl_status nl_evaluate(nl_context *context, const nl_evaluation_options *given,
                      nl_evaluation *evaluation)
{
    nl_evaluation_options options;
    nl_fid_network network = {.context = NULL};
    nl_status status;
    *evaluation = (nl_evaluation){.samples = 0};
    NL_TRY(nl_take_options(context, "options of an evaluation", given, sizeof(options), &options,
                           sizeof(options)));
    NL_TRY(check(context, &options));
    NL_TRY(nl_fid_network_open(context, &options, &network));
    NL_TRY(nl_evaluate_with(&network, &options, evaluation));
cleanup:
    nl_fid_network_close(&network);
    return status;
}
