/* SPDX-License-Identifier: MIT */
/* Samples that a model makes while they are evaluated: no picture is kept. The model may have a context of its own, because
 * its products may be in other types than those of the FID network: what that context says is then passed on. */
#include "nl_network.h"

#include <string.h>

#include "nl_pipeline.h"

enum { MANY = 4096 }; /* pictures of one request */

struct nl_model_pictures {
    nl_context *context; /* of the evaluation */
    nl_context *model_context;
    nl_context_options before; /* callbacks of the model's context */
    const nl_evaluation_options *options;
    int classes;           /* of the model */
    int *labels;           /* [MANY] */
    nl_picture_taker take; /* of the pass at work */
    void *taker;
    uint8_t *rgb;           /* [most, height, width, 3] */
    int64_t most, waiting;  /* pictures in rgb: room and how many there are */
    nl_picture_range range; /* that are to be made */
    int64_t made, taken;    /* pictures of those */
    int64_t evaluations;    /* of the network for those made */
    int64_t height, width;
    nl_status stopped; /* by the evaluation's context, which has the message */
};

/* Of one context the samples are made in the other: both are asked whether to go on. */
static bool progress(void *user, const nl_progress *now)
{
    nl_model_pictures *p = user;
    nl_progress samples = {.stage = "samples", .image = p->made, .images = p->range.count};
    bool go_on = !p->before.progress || p->before.progress(p->before.user, now);
    p->stopped = nl_report_progress(p->context, &samples);
    return go_on && p->stopped == NL_OK;
}

static void pass_log(void *user, nl_log_level level, const char *message)
{
    nl_model_pictures *p = user;
    if (p->before.log)
        p->before.log(p->before.user, level, message);
}

nl_status nl_model_pictures_open(nl_context *context, const nl_evaluation_options *options,
                                 nl_model_pictures **pictures)
{
    nl_model_pictures *p = NULL;
    nl_model *model = options->model;
    nl_status status;
    *pictures = NULL;
    if (!nl_model_has_autoencoder(model))
        return nl_fail(context, NL_ERROR_USAGE,
                       "an evaluation needs pictures, and --vae none makes latents only");
    if (options->count < 1 || options->count > INT64_C(1) << 40 || options->label_count < 0 ||
        (options->labels && !options->label_count))
        return nl_fail(context, NL_ERROR_USAGE,
                       "evaluation: expected 1 or more pictures, found %lld; labels: %lld",
                       (long long)options->count, (long long)options->label_count);
    NL_TRY(NL_NEW(context, "samples", &p));
    p->context = context;
    p->options = options;
    p->model_context = nl_model_context(model);
    p->classes = nl_model_get_config(model)->num_classes;
    NL_TRY(NL_NEW_ARRAY(context, "classes", MANY, &p->labels));
    *pictures = p;
    p = NULL;
cleanup:
    nl_model_pictures_close(p);
    return status;
}

void nl_model_pictures_close(nl_model_pictures *p)
{
    if (!p)
        return;
    nl_free(p->context, p->labels);
    nl_free(p->context, p->rgb);
    nl_free(p->context, p);
}

static nl_status hand_over(nl_model_pictures *p)
{
    nl_picture_batch batch = {.rgb = p->rgb,
                              .first = p->range.first + p->taken,
                              .count = p->waiting,
                              .height = p->height,
                              .width = p->width};
    p->taken += p->waiting;
    p->waiting = 0;
    nl_status status = batch.count ? p->take(p->taker, &batch) : NL_OK;
    p->stopped = status;
    return status;
}

/* Collects as many pictures as the FID network takes at once. */
static nl_status collect(void *user, const nl_picture *picture)
{
    nl_model_pictures *p = user;
    nl_status status = NL_OK;
    size_t bytes = 3 * (size_t)picture->height * (size_t)picture->width;
    if (!p->rgb &&
        (status = NL_NEW_SIZED(p->context, "pictures", p->most, bytes, &p->rgb)) != NL_OK)
        return p->stopped = status;
    p->height = picture->height;
    p->width = picture->width;
    memcpy(p->rgb + (size_t)p->waiting * bytes, picture->rgb, bytes);
    p->waiting++;
    p->made++;
    p->evaluations += picture->evaluations;
    return p->waiting == p->most ? hand_over(p) : NL_OK;
}

static int label_of(const nl_model_pictures *p, int64_t index)
{
    const nl_evaluation_options *o = p->options;
    if (o->labels)
        return o->labels[index % o->label_count];
    return p->classes ? nl_draw_class(o->seed, index, p->classes) : 0;
}

static nl_status make_all(nl_model_pictures *p)
{
    const nl_evaluation_options *o = p->options;
    nl_status status = NL_OK;
    int64_t end = p->range.first + p->range.count;
    for (int64_t first = p->range.first; first < end && status == NL_OK; first += MANY) {
        nl_request request = {.labels = p->labels,
                              .count = NL_MIN(MANY, end - first),
                              .seed = o->seed,
                              .first_index = o->first_index + first,
                              .batch = o->batch,
                              .rounding = o->rounding,
                              .sampling = o->sampling};
        for (int64_t i = 0; i < request.count; i++)
            p->labels[i] = label_of(p, request.first_index + i);
        status = nl_generate(o->model, &request, collect, p);
    }
    if (status == NL_OK)
        return hand_over(p);
    /* The message of the model's context becomes that of the evaluation's. */
    if (p->stopped == NL_OK && p->model_context != p->context)
        return nl_fail(p->context, status, "%s", nl_last_error(p->model_context));
    return p->stopped != NL_OK ? p->stopped : status;
}

static nl_status run(void *user, nl_picture_range range, int64_t most, nl_picture_taker take,
                     void *taker)
{
    nl_model_pictures *p = user;
    nl_context_options *callbacks = &p->model_context->options;
    bool own = p->model_context != p->context;
    p->range = range;
    p->take = take;
    p->taker = taker;
    p->most = most;
    p->before = *callbacks;
    if (own) {
        callbacks->log = pass_log;
        callbacks->progress = progress;
        callbacks->user = p;
    }
    nl_status status = make_all(p);
    *callbacks = p->before;
    return status;
}

int64_t nl_model_pictures_evaluations(const nl_model_pictures *p)
{
    return p->evaluations;
}

nl_picture_source nl_model_pictures_source(nl_model_pictures *p)
{
    return (nl_picture_source){
        .name = "the model's samples", .count = p->options->count, .run = run, .user = p};
}
