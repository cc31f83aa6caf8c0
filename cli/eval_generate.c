/* SPDX-License-Identifier: MIT */
/* Samples that a model makes while they are evaluated: no picture is written. The model has a context of its own,
 * because its products may be in other types than those of the FID network. */
#include "nl_eval.h"

#include <string.h>

enum { MANY = 4096, SAMPLES = 50000 }; /* pictures of one request, and where no number is given */

struct nl_generated {
    nl_eval_session *session;
    nl_session model; /* with its context */
    nl_sample_options options;
    nl_sampling sampling; /* with the model's defaults */
    nl_classes classes;
    int *labels;           /* [MANY] */
    nl_picture_taker take; /* of the pass at work */
    void *taker;
    uint8_t *rgb;          /* [most, height, width, 3] */
    int64_t most, waiting; /* pictures in rgb: room and how many there are */
    int64_t made, taken;   /* pictures */
    int64_t height, width;
    bool refused; /* by the taker, whose context has the message */
};

static void log_message(void *user, nl_log_level level, const char *message)
{
    nl_console_log(((nl_generated *)user)->session->console, level, message);
}

static bool progress(void *user, const nl_progress *now)
{
    nl_generated *g = user;
    (void)now;
    nl_eval_progress(g->session, "samples", g->made, g->options.n);
    return !nl_interrupted();
}

/* The message of the model's context becomes that of the evaluation's. */
static nl_status passed_on(nl_generated *g, nl_status status)
{
    if (status == NL_OK || !g->model.context)
        return status;
    return nl_fail(g->session->context, status, "%s", nl_last_error(g->model.context));
}

static nl_status load(nl_generated *g)
{
    nl_context *context = g->model.context;
    nl_model *model;
    nl_status status;
    nl_sampling given = nl_sampling_of(&g->options);
    NL_TRY(nl_session_load(&g->model));
    model = g->model.model;
    if (!nl_model_has_autoencoder(model))
        NL_TRY(nl_fail(context, NL_ERROR_USAGE,
                       "an evaluation needs pictures, and --vae none makes latents only"));
    NL_TRY(nl_model_resolve(model, &given, &g->sampling));
    NL_TRY(nl_classes_parse(context, model, g->options.classes, &g->classes));
    NL_TRY(NL_NEW_ARRAY(context, "classes", MANY, &g->labels));
cleanup:
    return status;
}

nl_status nl_generated_open(nl_eval_session *session, const nl_network_options *network,
                            const nl_sample_options *options, nl_generated **generated)
{
    nl_generated *g = NULL;
    nl_status status;
    *generated = NULL;
    NL_TRY(NL_NEW(session->context, "samples", &g));
    g->session = session;
    g->options = *options;
    g->options.n = options->n ? options->n : SAMPLES;
    g->model.options = &g->options;
    nl_context_options context_options = {.device = network->machine.device,
                                          .dtype = options->machine.dtype,
                                          .threads = (int)network->machine.threads,
                                          .max_memory = network->machine.max_memory,
                                          .log = log_message,
                                          .progress = progress,
                                          .user = g};
    NL_TRY(nl_context_create(&context_options, &g->model.context));
    NL_TRY(passed_on(g, load(g)));
    *generated = g;
    g = NULL;
cleanup:
    nl_generated_close(g);
    return status;
}

void nl_generated_close(nl_generated *g)
{
    if (!g)
        return;
    nl_context *context = g->model.context;
    if (context) {
        nl_classes_free(context, &g->classes);
        nl_free(context, g->labels);
        nl_free(context, g->rgb);
    }
    cJSON_Delete(g->model.facts);
    nl_model_destroy(g->model.model);
    nl_context_destroy(context);
    nl_free(g->session->context, g);
}

static nl_status hand_over(nl_generated *g)
{
    nl_picture_batch batch = {.rgb = g->rgb,
                              .first = g->taken,
                              .count = g->waiting,
                              .height = g->height,
                              .width = g->width};
    g->taken += g->waiting;
    g->waiting = 0;
    nl_status status = batch.count ? g->take(g->taker, &batch) : NL_OK;
    g->refused = status != NL_OK;
    return status;
}

/* Collects as many pictures as the FID network takes at once. */
static nl_status collect(void *user, const nl_picture *picture)
{
    nl_generated *g = user;
    nl_status status = NL_OK;
    size_t bytes = 3 * (size_t)picture->height * (size_t)picture->width;
    if (!g->rgb)
        NL_TRY(NL_NEW_SIZED(g->model.context, "pictures", g->most, bytes, &g->rgb));
    g->height = picture->height;
    g->width = picture->width;
    memcpy(g->rgb + (size_t)g->waiting * bytes, picture->rgb, bytes);
    g->waiting++;
    g->made++;
    if (g->waiting == g->most)
        NL_TRY(hand_over(g));
cleanup:
    return status;
}

static nl_status run(void *user, int64_t most, nl_picture_taker take, void *taker)
{
    nl_generated *g = user;
    const nl_sample_options *o = &g->options;
    nl_status status = NL_OK;
    g->take = take;
    g->taker = taker;
    g->most = most;
    for (int64_t first = 0; first < o->n; first += MANY) {
        nl_request request = {.labels = g->labels,
                              .count = NL_MIN(MANY, o->n - first),
                              .seed = o->seed,
                              .first_index = o->first_index + first,
                              .batch = (int)o->batch,
                              .rounding = nl_rounding_of(o),
                              .sampling = g->sampling};
        for (int64_t i = 0; i < request.count; i++)
            g->labels[i] = nl_classes_at(&g->classes, o->seed, request.first_index + i);
        status = nl_generate(g->model.model, &request, collect, g);
        NL_TRY(g->refused ? status : passed_on(g, status));
    }
    NL_TRY(hand_over(g));
cleanup:
    return status;
}

nl_picture_source nl_generated_source(nl_generated *g)
{
    const char *model = g->options.model;
    return (nl_picture_source){
        .name = model ? model : nl_shipped_model, .count = g->options.n, .run = run, .user = g};
}

nl_status nl_generated_facts(nl_generated *g, cJSON **facts)
{
    return passed_on(g, nl_pictures_facts(&g->model, &g->options, &g->sampling, facts));
}
