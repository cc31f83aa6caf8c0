/* SPDX-License-Identifier: MIT */
/* What a client wants: three ways to say it, one task. */
#include "nl_wanted.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/random.h>

typedef struct nl_fields {
    nl_task_options task;
    int64_t preview_every;
} nl_fields;

static const nl_option fields_table[] = {
    {.include = nl_sampling_options, .offset = offsetof(nl_fields, task)},
    {.include = nl_walk_options, .offset = offsetof(nl_fields, task)},
    {"size", 0, NL_OPTION_EXTENT, offsetof(nl_fields, task.size), "HxW", 1, 16384,
     .where = NL_IN_REQUEST, .help = "pixels, N or HxW (the model's own)"},
    /* Models here have no guide. */
    {.name = "guide-scale", .where = 0},
    {.name = "guide-interval", .where = 0},
    {"preview-every", 0, NL_OPTION_INT, offsetof(nl_fields, preview_every), "K", 1, 10000,
     .where = NL_IN_REQUEST, .help = "an event with a preview every K steps"},
    {0},
};

const nl_command nl_wanted_command = {.name = "job", .options = fields_table};

/* ---- What all three share */

bool nl_takes_guidance(const nl_config *config)
{
    return config->num_classes && nl_config_learnt_null(config) && !config->guided &&
           !config->flow_map;
}

bool nl_takes_sampler(const nl_config *config, nl_method method)
{
    return nl_method_is_diffusion(method) == (config->architecture == NL_ARCH_DIT) &&
           (!nl_method_is_flow(method) || config->flow_map);
}

static nl_status choose_model(const nl_queue *queue, nl_context *context, const cJSON *body,
                              int *model)
{
    const char *name = NULL;
    nl_json json = {.context = context, .where = "request", .object = body};
    nl_status status = nl_json_string(&json, "model", &name);
    if (status != NL_OK || !name || nl_queue_find_model(queue, name, model))
        return status;
    const char *names[32];
    int count = NL_MIN(nl_queue_models(queue), NL_COUNT(names) - 1);
    for (int i = 0; i < count; i++)
        names[i] = nl_queue_model(queue, i)->name;
    names[count] = NULL;
    const char *near = nl_nearest(name, names);
    return nl_fail(context, NL_ERROR_USAGE, "model \"%.100s\" is not served here; there is \"%s\"",
                   name, near ? near : names[0]);
}

/* The size of the pictures, and the task for the model. */
static nl_status plan(const nl_queue *queue, const nl_fields *fields, nl_wanted *wanted)
{
    nl_context *context = wanted->context;
    const nl_served_model *model = nl_queue_model(queue, wanted->model);
    nl_task_options options = model->options;
    const nl_task_options *asked = &fields->task;
    int64_t limit = nl_queue_get_limits(queue)->side;
    bool other = false; /* than the model's own size, which needs no mention */
    for (int i = 0; i < 2; i++) {
        int own = i ? model->sizes[0].width : model->sizes[0].height;
        int64_t side = asked->size[i] ? asked->size[i] : own;
        other |= side != own;
        if (side % model->unit || side > limit)
            return nl_fail(context, NL_ERROR_USAGE,
                           "size %lldx%lld: expected multiples of %d up to %lld pixels",
                           (long long)asked->size[0], (long long)asked->size[1], model->unit,
                           (long long)limit);
        *(i ? &wanted->width : &wanted->height) = (int)side;
    }
    if (other) {
        options.size[0] = wanted->height;
        options.size[1] = wanted->width;
    }
    options.classes = asked->classes;
    options.n = asked->n;
    options.seed = asked->seed;
    options.first_index = asked->first_index;
    options.sampling = asked->sampling;
    options.cfg_channels = asked->cfg_channels;
    options.rounding = asked->rounding;
    options.walk = asked->walk;
    options.to_class = asked->to_class;
    options.to_seed = asked->to_seed;
    wanted->preview_every = fields->preview_every;
    return nl_task_plan(context, model->config, NULL, &options, 0, &wanted->task);
}

/* nulls: members that are null count as left out, as clients of others write what they leave out. */
static nl_status read_object(nl_wanted *wanted, const char *body, size_t size, bool nulls,
                             cJSON **object)
{
    nl_status status = nl_json_parse(wanted->context, "request", body, size, object);
    if (status == NL_OK && !cJSON_IsObject(*object)) {
        cJSON_Delete(*object);
        *object = NULL;
        status = nl_fail(wanted->context, NL_ERROR_INPUT, "request: expected an object {...}");
    }
    for (cJSON *item = nulls && *object ? (*object)->child : NULL, *next; item; item = next) {
        next = item->next;
        if (cJSON_IsNull(item))
            cJSON_Delete(cJSON_DetachItemViaPointer(*object, item));
    }
    return status;
}

/* Text that lives as long as what is wanted. */
static nl_status keep_text(nl_wanted *wanted, const char *text, const char **kept)
{
    char *copy;
    nl_status status = nl_strdup(wanted->context, text, &copy);
    *kept = copy;
    return status == NL_OK ? nl_texts_add(&wanted->texts, copy) : status;
}

bool nl_size_read(const char *text, int *first, int *second)
{
    char *end;
    *first = *second = 0;
    if (!strcmp(text, "auto"))
        return true;
    long a = *text >= '0' && *text <= '9' ? strtol(text, &end, 10) : 0, b = a;
    if (a < 1 || a > 16384)
        return false;
    if (*end == 'x' && end[1] >= '0' && end[1] <= '9')
        b = strtol(end + 1, &end, 10);
    *first = (int)a;
    *second = (int)b;
    return !*end && b >= 1 && b <= 16384;
}

/* ---- The own interface */

nl_status nl_wanted_own(const nl_queue *queue, const char *body, size_t size, nl_wanted *wanted)
{
    static const char *const own_keys[] = {"model", NULL};
    nl_context *context = wanted->context;
    nl_fields fields = {.task = nl_task_defaults};
    nl_status status = NL_OK;
    cJSON *object = NULL;
    NL_TRY(read_object(wanted, body, size, false, &object));
    NL_TRY(choose_model(queue, context, object, &wanted->model));
    NL_TRY(nl_options_apply(context, &nl_wanted_command, "request", object, NL_IN_REQUEST, own_keys,
                            &wanted->texts, &fields));
    NL_TRY(plan(queue, &fields, wanted));
cleanup:
    cJSON_Delete(object);
    return status;
}

/* ---- OpenAI */

nl_status nl_wanted_openai(const nl_queue *queue, const char *body, size_t size, nl_wanted *wanted)
{
    /* Some mean nothing here (moderation); the values of others are checked. "n" is the own field. */
    static const char *const their_keys[] = {"prompt",     "model",         "size",
                                             "user",       "quality",       "style",
                                             "background", "moderation",    "output_compression",
                                             "stream",     "output_format", "response_format",
                                             NULL};
    static const char *const formats[] = {"png", NULL}, *const responses[] = {"b64_json", NULL};
    nl_context *context = wanted->context;
    nl_fields fields = {.task = nl_task_defaults};
    nl_status status = NL_OK;
    cJSON *object = NULL;
    const char *prompt = NULL, *extent = NULL;
    bool stream = false;
    int choice, height, width;
    NL_TRY(read_object(wanted, body, size, true, &object));
    nl_json json = {.context = context, .where = "request", .object = object};
    NL_TRY(choose_model(queue, context, object, &wanted->model));
    NL_TRY(nl_json_string(&json, "prompt", &prompt));
    NL_TRY(nl_json_string(&json, "size", &extent));
    NL_TRY(nl_json_choice(&json, "output_format", formats, &choice));
    NL_TRY(nl_json_choice(&json, "response_format", responses, &choice));
    NL_TRY(nl_json_bool(&json, "stream", &stream));
    if (!prompt || !*prompt)
        NL_TRY(nl_fail(context, NL_ERROR_USAGE,
                       "request: \"prompt\": expected classes, such as \"church\" or \"1,4\""));
    if (stream)
        NL_TRY(nl_fail(context, NL_ERROR_USAGE, "request: \"stream\": not here; see /api/jobs"));
    if (extent && !nl_size_read(extent, &width, &height))
        NL_TRY(nl_fail(context, NL_ERROR_USAGE,
                       "request: \"size\": expected \"WIDTHxHEIGHT\" or \"auto\", found \"%.40s\"",
                       extent));
    NL_TRY(nl_options_apply(context, &nl_wanted_command, "request", object, NL_IN_REQUEST,
                            their_keys, &wanted->texts, &fields));
    if (extent) {
        fields.task.size[0] = height;
        fields.task.size[1] = width;
    }
    NL_TRY(keep_text(wanted, prompt, &fields.task.classes));
    if (!fields.task.n)
        fields.task.n = 1;
    NL_TRY(plan(queue, &fields, wanted));
cleanup:
    cJSON_Delete(object);
    return status;
}

/* ---- A1111 */

/* The method of sampling that A1111's interface means by the name, our own ones among them; "": the model's default; NULL:
 * unknown. */
static const char *sampler_of(const char *name)
{
    static const char *const usual[] = {"", "Automatic", "Euler a", NULL};
    for (int i = 0; usual[i]; i++)
        if (!strcasecmp(name, usual[i]))
            return "";
    for (int i = 0; nl_method_names[i]; i++)
        if (!strcasecmp(name, nl_method_names[i]))
            return nl_method_names[i];
    return NULL;
}

static nl_status webui_sampling(nl_wanted *wanted, const nl_json *json, const nl_config *config,
                                nl_fields *fields)
{
    nl_context *context = wanted->context;
    nl_task_options *task = &fields->task;
    const char *name = NULL;
    double scale = -1;
    NL_CHECK(nl_json_string(json, "sampler_name", &name));
    if (!name)
        NL_CHECK(nl_json_string(json, "sampler_index", &name));
    const char *sampler = sampler_of(name ? name : "");
    if (!sampler)
        return nl_fail(context, NL_ERROR_USAGE, "Sampler not found: \"%.60s\"", name);
    task->sampling.sampler = *sampler ? sampler : NULL;
    NL_CHECK(nl_json_int(json, "steps", 1, 10000, &task->sampling.steps));
    NL_CHECK(nl_json_double(json, "cfg_scale", 0, 1000, &scale));
    if (nl_takes_guidance(config)) /* their clients always say one */
        task->sampling.cfg_scale = scale;
    return NL_OK;
}

static nl_status webui_seed(const nl_json *json, nl_task_options *task)
{
    int64_t seed = -1;
    nl_status status = nl_json_int(json, "seed", -1, INT64_MAX, &seed);
    uint32_t drawn = 0;
    if (status != NL_OK)
        return status;
    if (seed < 0 && getrandom(&drawn, sizeof(drawn), 0) != sizeof(drawn))
        return nl_fail(json->context, NL_ERROR_INTERNAL, "no random numbers: %s", strerror(errno));
    task->seed = seed < 0 ? drawn : (uint64_t)seed;
    return NL_OK;
}

nl_status nl_wanted_webui(const nl_queue *queue, int model, const char *body, size_t size,
                          nl_wanted *wanted, cJSON **echo)
{
    nl_context *context = wanted->context;
    nl_fields fields = {.task = nl_task_defaults};
    nl_task_options *task = &fields.task;
    const char *prompt = NULL;
    int64_t batch = 1, turns = 1;
    *echo = NULL;
    wanted->model = model;
    wanted->webui = true;
    fields.preview_every = 2;
    NL_CHECK(read_object(wanted, body, size, true, echo));
    nl_json json = {.context = context, .where = "request", .object = *echo};
    NL_CHECK(nl_json_string(&json, "prompt", &prompt));
    NL_CHECK(nl_json_int(&json, "width", 1, 16384, &task->size[1]));
    NL_CHECK(nl_json_int(&json, "height", 1, 16384, &task->size[0]));
    NL_CHECK(nl_json_int(&json, "batch_size", 1, 100000, &batch));
    NL_CHECK(nl_json_int(&json, "n_iter", 1, 100000, &turns));
    NL_CHECK(webui_sampling(wanted, &json, nl_queue_model(queue, model)->config, &fields));
    NL_CHECK(webui_seed(&json, task));
    task->n = batch * turns;
    if (prompt && *prompt)
        NL_CHECK(keep_text(wanted, prompt, &task->classes));
    return plan(queue, &fields, wanted);
}
