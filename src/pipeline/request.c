/* SPDX-License-Identifier: MIT */
/* What of a request for pictures is refused before the first step. */
#include "model.h"

/* Of picture i. */
static nl_status check_label(const nl_model *model, int label, int64_t i)
{
    const nl_config *config = &model->config;
    if (label < 0 || label >= nl_config_label_rows(config))
        return nl_fail(model->context, NL_ERROR_USAGE,
                       "request: label %d of picture %lld: expected 0 to %d (%s)", label,
                       (long long)i, nl_config_label_rows(config) - 1,
                       config->no_null_class ? "there is no null class" : "the null class");
    if (model->guide && label >= nl_config_label_rows(&model->guide->config))
        return nl_fail(model->context, NL_ERROR_USAGE,
                       "request: picture %lld is of no class, and the guide has no null class",
                       (long long)i);
    return NL_OK;
}

static nl_status check_mix(const nl_model *model, const nl_request *request, int64_t i)
{
    const nl_mix *mix = &request->mixes[i];
    if (request->noise)
        return nl_fail(model->context, NL_ERROR_USAGE,
                       "request: mixes go with noise that is drawn: give no noise");
    if (!(mix->part >= 0 && mix->part <= 1) || mix->index < 0)
        return nl_fail(model->context, NL_ERROR_USAGE,
                       "request: picture %lld is mixed with index %lld, part %g: expected an index "
                       "from 0 and a part of 0 to 1",
                       (long long)i, (long long)mix->index, mix->part);
    return check_label(model, mix->label, i);
}

nl_status nl_check_request(const nl_model *model, const nl_request *request, bool taken)
{
    nl_context *context = model->context;
    if (!request->labels || !taken)
        return nl_fail(context, NL_ERROR_USAGE, "request: %s",
                       taken ? "no labels: give the class of each picture"
                             : "nothing takes the pictures: give a function");
    if (request->count < 1 || request->batch < 0 || request->preview_every < 0 ||
        request->first_index < 0 || request->first_index > INT64_MAX - request->count)
        return nl_fail(
            context, NL_ERROR_USAGE,
            "request: count %lld, first_index %lld, batch %d, preview_every %d: expected at "
            "least 1 picture and nothing negative",
            (long long)request->count, (long long)request->first_index, request->batch,
            request->preview_every);
    for (int64_t i = 0; i < request->count; i++)
        if (request->indices && request->indices[i] < 0)
            return nl_fail(context, NL_ERROR_USAGE, "request: index %lld of picture %lld",
                           (long long)request->indices[i], (long long)i);
    for (int64_t i = 0; i < request->count; i++) {
        nl_status status = check_label(model, request->labels[i], i);
        if (status == NL_OK && request->mixes)
            status = check_mix(model, request, i);
        if (status != NL_OK)
            return status;
    }
    return NL_OK;
}
