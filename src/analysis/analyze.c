/* SPDX-License-Identifier: MIT */
/* Queries and keys of a sampling run: at the chosen steps the network runs once more, beside the run, and keeps
 * what every block computes (nl_dit_forward_saving). */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "nl_analysis.h"
#include "nl_dit_train.h"

typedef struct nl_looking {
    nl_analysis *analysis;
    nl_status (*picture)(void *user, const nl_analysis *analysis, const nl_picture *picture);
    void *user;
    float *qkv;      /* [tokens, columns] of a layer */
    void *bytes;     /* the same as the device has it */
    double *weights; /* [tokens] */
} nl_looking;

enum { MAX_HEADS = 4096 }; /* of a configuration */

static int step_at(double at, int steps)
{
    return (int)floor(at * (steps - 1) + 0.5 + 1e-9); /* 0.58 of 25 is 14.499999999999998 */
}

/* Place of the first token of a head among the points. */
static int64_t point(const nl_analysis *analysis, int64_t picture, int time, int layer,
                     int64_t head)
{
    const nl_analysis_options *options = &analysis->options;
    int64_t place = (picture * options->times + time) * options->layer_count + layer;
    return (place * analysis->heads + head) * analysis->tokens;
}

static void add_to_maps(nl_analysis *analysis, int time, int layer, int64_t token,
                        const double *weights)
{
    const nl_analysis_options *options = &analysis->options;
    int64_t place = (int64_t)(time * options->layer_count + layer) * options->query_count;
    for (int i = 0; i < options->query_count; i++)
        for (int64_t to = 0; options->queries[i] == token && to < analysis->tokens; to++)
            analysis->maps[(place + i) * analysis->tokens + to] +=
                weights[to] / (double)analysis->heads;
}

nl_attention_rule nl_analysis_rule(const nl_analysis *analysis, nl_attention rule, int64_t layer,
                                   int64_t head)
{
    nl_attention_rule own = analysis->rules[rule];
    own.lambda = analysis->lambda[layer * analysis->heads + head];
    own.tau = analysis->tau[layer * analysis->heads + head];
    return own;
}

/* q, k: of one head, rows `stride` apart. */
static nl_status look_at_head(nl_looking *looking, const float *q, const float *k, int64_t stride,
                              int64_t picture, int time, int layer, int64_t head)
{
    nl_status status = NL_OK;
    nl_analysis *analysis = looking->analysis;
    int64_t d = analysis->config->hidden_size / analysis->heads, tokens = analysis->tokens;
    int64_t first = point(analysis, picture, time, layer, head);
    nl_keys *keys = NULL;
    for (int64_t token = 0; token < tokens; token++) {
        double squares = 0;
        for (int64_t i = 0; i < d; i++)
            squares += (double)q[token * stride + i] * q[token * stride + i];
        analysis->norm[first + token] = sqrt(squares);
    }
    for (int rule = 0; rule < NL_RULES; rule++) {
        nl_attention_rule own = nl_analysis_rule(analysis, (nl_attention)rule, layer, head);
        NL_TRY(nl_keys_create(analysis->context, &own, k, tokens, d, stride, &keys));
        for (int64_t token = 0; token < tokens; token++) {
            nl_keys_weights(keys, q + token * stride, looking->weights);
            analysis->entropy[rule][first + token] = nl_entropy(looking->weights, tokens);
            if (rule == (int)analysis->config->attention)
                add_to_maps(analysis, time, layer, token, looking->weights);
        }
        nl_keys_destroy(keys);
        keys = NULL;
    }
cleanup:
    nl_keys_destroy(keys);
    return status;
}

/* qkv [tokens, columns] of one picture and layer, columns q | k | ..., each head-major. */
static nl_status look_at_layer(nl_looking *looking, nl_device *device, const nl_tensor *qkv,
                               int64_t picture, int time, int layer)
{
    nl_analysis *analysis = looking->analysis;
    int64_t columns = qkv->shape[1], size = analysis->config->hidden_size;
    int64_t d = size / analysis->heads;
    NL_CHECK(device->ops->download(device, looking->bytes, qkv->data, nl_tensor_bytes(qkv)));
    nl_convert_to_float(looking->bytes, qkv->dtype, nl_tensor_count(qkv), looking->qkv);
    for (int64_t head = 0; head < analysis->heads; head++) {
        const float *q = looking->qkv + head * d;
        NL_CHECK(look_at_head(looking, q, q + size, columns, picture, time, layer, head));
    }
    return NL_OK;
}

static nl_status allocate_qkv(nl_looking *looking, const nl_tensor *qkv)
{
    nl_context *context = looking->analysis->context;
    if (!looking->qkv) {
        NL_CHECK(NL_NEW_ARRAY(context, "queries and keys", nl_tensor_count(qkv), &looking->qkv));
        NL_CHECK(NL_NEW_SIZED(context, "queries and keys", nl_tensor_count(qkv),
                              (size_t)nl_dtype_size(qkv->dtype), &looking->bytes));
    }
    return NL_OK;
}

static const nl_tensor *kept_qkv(const nl_dit_saved *saved, int layer)
{
    return &saved->blocks[layer].branches[NL_BRANCH_MIXER].kept[NL_KEPT_QKV];
}

/* Of the layers, from a parameter [heads] of each: the exponentials of its numbers. */
static nl_status read_exponents(const nl_analysis *analysis, const nl_dit *dit, const char *name,
                                double *exponents)
{
    nl_device *device = dit->device;
    for (int layer = 0; layer < analysis->options.layer_count; layer++) {
        float values[MAX_HEADS] = {0};
        char full[64];
        snprintf(full, sizeof(full), "blocks.%d.%s", analysis->options.layers[layer], name);
        for (int i = 0; i < dit->param_count; i++)
            if (strcmp(dit->params[i].name, full) == 0)
                NL_CHECK(device->ops->download(device, values, dit->params[i].tensor->data,
                                               analysis->heads * (int64_t)sizeof(float)));
        for (int64_t head = 0; head < analysis->heads; head++)
            exponents[layer * analysis->heads + head] = exp(values[head]);
    }
    return NL_OK;
}

/* The network at one state, once more; all that is kept on a measuring device. */
static nl_status look(nl_looking *looking, const nl_observation *seen, int time)
{
    nl_status status = NL_OK;
    nl_analysis *analysis = looking->analysis;
    nl_device *device = seen->device;
    int64_t mark = nl_arena_mark(device);
    float t = (float)seen->t;
    nl_tensor times, prediction;
    nl_dit_saved saved = {0};
    NL_TRY(nl_arena_tensor(device, NL_F32, 1, (int64_t[]){1}, &times));
    NL_TRY(nl_arena_tensor(device, NL_F32, 4, seen->x.shape, &prediction));
    NL_TRY(device->ops->upload(device, times.data, &t, sizeof(t)));
    NL_TRY(nl_dit_forward_saving(seen->dit, device, &seen->x, &times, &seen->labels, seen->crop,
                                 false, NULL, &prediction, NULL, &saved));
    if (!device->measuring && analysis->config->attention == NL_ATTENTION_NALA &&
        analysis->config->learn_exponents) {
        NL_TRY(read_exponents(analysis, seen->dit, "attn.log_lambda", analysis->lambda));
        NL_TRY(read_exponents(analysis, seen->dit, "attn.log_tau", analysis->tau));
    }
    for (int layer = 0; !device->measuring && layer < analysis->options.layer_count; layer++) {
        const nl_tensor *qkv = kept_qkv(&saved, analysis->options.layers[layer]);
        NL_TRY(nl_check_cancelled(analysis->context));
        NL_TRY(allocate_qkv(looking, qkv));
        NL_TRY(look_at_layer(looking, device, qkv, seen->first, time, layer));
    }
    NL_TRY(device->ops->sync(device)); /* t is on the stack */
cleanup:
    nl_dit_saved_free(device, &saved);
    nl_arena_release(device, mark);
    return status;
}

static nl_status see(void *user, const nl_observation *seen)
{
    nl_looking *looking = user;
    nl_analysis *analysis = looking->analysis;
    const nl_analysis_options *options = &analysis->options;
    if (seen->step == 0)
        memset(analysis->maps, 0,
               (size_t)(options->times * options->layer_count * options->query_count) *
                   (size_t)analysis->tokens * sizeof(double));
    analysis->steps = seen->steps;
    for (int time = 0; time < options->times; time++) {
        if (step_at(options->at[time], seen->steps) != seen->step)
            continue;
        analysis->step[time] = seen->step;
        analysis->t[time] = seen->t;
        NL_CHECK(look(looking, seen, time));
    }
    return NL_OK;
}

static nl_status take(void *user, const nl_picture *picture)
{
    nl_looking *looking = user;
    looking->analysis->pictures++;
    return looking->picture ? looking->picture(looking->user, looking->analysis, picture) : NL_OK;
}

static nl_status check_options(nl_context *context, const nl_config *config,
                               const nl_analysis_options *options)
{
    if ((int)config->attention >= NL_RULES)
        return nl_fail(
            context, NL_ERROR_USAGE,
            "analysis: a model of \"attention\": \"%s\" has no queries and keys to look at",
            nl_mixer_names[config->attention]);
    if (options->times < 1 || options->layer_count < 1 || options->query_count < 0)
        return nl_fail(context, NL_ERROR_USAGE,
                       "analysis: expected at least one time and one layer");
    for (int i = 0; i < options->times; i++)
        if (!(options->at[i] >= 0 && options->at[i] <= 1))
            return nl_fail(context, NL_ERROR_USAGE,
                           "time %g: expected a part of the run from 0 to 1", options->at[i]);
    for (int i = 0; i < options->layer_count; i++)
        if (options->layers[i] < 0 || options->layers[i] >= config->depth)
            return nl_fail(context, NL_ERROR_USAGE, "layer %d: the model has 0 to %d",
                           options->layers[i], config->depth - 1);
    for (int i = 0; i < options->query_count; i++)
        if (options->queries[i] < 0 || options->queries[i] >= nl_config_tokens(config))
            return nl_fail(context, NL_ERROR_USAGE, "query %d: a picture has tokens 0 to %lld",
                           options->queries[i], (long long)nl_config_tokens(config) - 1);
    return NL_OK;
}

/* Room for the points of `pictures`. */
static nl_status allocate(nl_analysis *analysis, int64_t pictures)
{
    nl_context *context = analysis->context;
    const nl_analysis_options *options = &analysis->options;
    int64_t looks = (int64_t)options->times * options->layer_count, count = pictures;
    if (!nl_mul_size(count, looks, &count) || !nl_mul_size(count, analysis->heads, &count) ||
        !nl_mul_size(count, analysis->tokens, &count))
        return nl_fail(context, NL_ERROR_MEMORY, "%lld pictures have too many queries",
                       (long long)pictures);
    NL_CHECK(NL_NEW_ARRAY(context, "norms", count, &analysis->norm));
    for (int rule = 0; rule < NL_RULES; rule++)
        NL_CHECK(NL_NEW_ARRAY(context, "entropies", count, &analysis->entropy[rule]));
    NL_CHECK(NL_NEW_ARRAY(context, "attention maps",
                          looks * options->query_count * analysis->tokens, &analysis->maps));
    int64_t exponents = options->layer_count * analysis->heads;
    NL_CHECK(NL_NEW_ARRAY(context, "exponents", exponents, &analysis->lambda));
    NL_CHECK(NL_NEW_ARRAY(context, "exponents", exponents, &analysis->tau));
    for (int64_t i = 0; i < exponents; i++) {
        analysis->lambda[i] = analysis->config->lambda;
        analysis->tau[i] = analysis->config->tau;
    }
    NL_CHECK(NL_NEW_ARRAY(context, "times", options->times, &analysis->step));
    return NL_NEW_ARRAY(context, "times", options->times, &analysis->t);
}

static nl_status create(nl_context *context, const nl_config *config,
                        const nl_analysis_options *options, int64_t pictures,
                        nl_analysis **analysis)
{
    nl_status status = NL_OK;
    nl_analysis *made = NULL;
    NL_TRY(NL_NEW(context, "analysis", &made));
    *made = (nl_analysis){.context = context,
                          .config = config,
                          .options = *options,
                          .tokens = nl_config_tokens(config),
                          .heads = config->num_heads};
    for (int rule = 0; rule < NL_RULES; rule++)
        made->rules[rule] = (nl_attention_rule){.attention = (nl_attention)rule,
                                                .feature_map = config->feature_map,
                                                .lambda = config->lambda,
                                                .tau = config->tau,
                                                .norm_scale = nl_config_norm_scale(config)};
    NL_TRY(allocate(made, pictures));
    *analysis = made;
    made = NULL;
cleanup:
    nl_analysis_destroy(made);
    return status;
}

nl_status nl_analyze(nl_context *context, nl_model *model, const nl_request *request,
                     const nl_analysis_options *options,
                     nl_status (*picture)(void *user, const nl_analysis *analysis,
                                          const nl_picture *picture),
                     void *user, nl_analysis **analysis)
{
    nl_status status = NL_OK;
    const nl_config *config = nl_model_get_config(model);
    nl_looking looking = {.picture = picture, .user = user};
    nl_request one_by_one = *request;
    *analysis = NULL;
    one_by_one.batch = 1;
    NL_TRY(check_options(context, config, options));
    NL_TRY(create(context, config, options, NL_MAX(request->count, 0), &looking.analysis));
    NL_TRY(NL_NEW_ARRAY(context, "weights", looking.analysis->tokens, &looking.weights));
    NL_TRY(nl_generate_observed(model, &one_by_one, &(nl_observer){see, &looking}, take, &looking));
    looking.analysis->count = looking.analysis->pictures * options->times * options->layer_count *
                              looking.analysis->heads * looking.analysis->tokens;
    *analysis = looking.analysis;
    looking.analysis = NULL;
cleanup:
    nl_free(context, looking.qkv);
    nl_free(context, looking.bytes);
    nl_free(context, looking.weights);
    nl_analysis_destroy(looking.analysis);
    return status;
}

void nl_analysis_destroy(nl_analysis *analysis)
{
    if (!analysis)
        return;
    nl_context *context = analysis->context;
    nl_free(context, analysis->step);
    nl_free(context, analysis->t);
    nl_free(context, analysis->norm);
    nl_free(context, analysis->lambda);
    nl_free(context, analysis->tau);
    for (int rule = 0; rule < NL_RULES; rule++)
        nl_free(context, analysis->entropy[rule]);
    nl_free(context, analysis->maps);
    nl_free(context, analysis);
}

/* Whether point i is selected; its layer and head, as places in the options. */
static bool selected(const nl_analysis *analysis, nl_selection selection, int64_t i, int64_t *layer,
                     int64_t *head)
{
    const nl_analysis_options *options = &analysis->options;
    int64_t place = i / analysis->tokens;
    *head = place % analysis->heads;
    int64_t time = place / analysis->heads / options->layer_count % options->times;
    *layer = place / analysis->heads % options->layer_count;
    return (selection.time < 0 || selection.time == time) &&
           (selection.layer < 0 || selection.layer == *layer) &&
           (selection.head < 0 || selection.head == *head);
}

int64_t nl_analysis_select(const nl_analysis *analysis, nl_attention rule, nl_selection selection,
                           double *x, double *y)
{
    int64_t count = 0, layer, head;
    for (int64_t i = 0; i < analysis->count; i++) {
        double entropy = analysis->entropy[rule][i];
        if (isnan(entropy) || !selected(analysis, selection, i, &layer, &head))
            continue;
        x[count] = analysis->norm[i];
        y[count++] = entropy;
    }
    return count;
}

int64_t nl_analysis_exponents(const nl_analysis *analysis, nl_selection selection,
                              double *exponents)
{
    double scale = nl_config_norm_scale(analysis->config);
    int64_t count = 0, layer, head;
    for (int64_t i = 0; i < analysis->count; i++) {
        if (isnan(analysis->entropy[NL_ATTENTION_NALA][i]) ||
            !selected(analysis, selection, i, &layer, &head))
            continue;
        int64_t of = layer * analysis->heads + head;
        exponents[count++] =
            analysis->lambda[of] * (analysis->tau[of] + tanh(scale * analysis->norm[i]));
    }
    return count;
}
