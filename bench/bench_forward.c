/* SPDX-License-Identifier: MIT */
/*
 * Forward passes of whole backbones, on any device, random weights:
 *
 *   nl_bench_forward [--device cuda] [--dtype bf16] [--seconds N] [MODEL:BATCH[:INPUT]]...
 *
 * Each goes on for --seconds at least. MODEL is a name such as NaLaSiT-S/2; INPUT the latent's height and width (default 32). Lines of figures (measure.h):
 * images a second, milliseconds of a batch, and the memory of weights and activations; with --dtype fp8 their names say so.
 */
#include <string.h>

#include "measure.h"
#include "nl_dit.h"

typedef struct pass {
    nl_dit *dit;
    nl_tensor x, prediction, labels, time;
} pass;

static nl_status run_pass(void *user)
{
    const pass *p = user;
    return nl_dit_replay(p->dit, p->dit->device, &p->x, &p->time, &p->labels, NULL, 0,
                         &p->prediction);
}

static nl_status take(pass *p, nl_device *device, int batch)
{
    const nl_config *config = &p->dit->config;
    int64_t height = config->input_height, width = config->input_width;
    nl_status status;
    NL_TRY(nl_arena_tensor(device, NL_F32, 4,
                           (int64_t[]){batch, config->in_channels, height, width}, &p->x));
    NL_TRY(nl_arena_tensor(device, NL_F32, 4,
                           (int64_t[]){batch, nl_config_head_channels(config), height, width},
                           &p->prediction));
    NL_TRY(nl_arena_tensor(device, NL_I32, 1, (int64_t[]){batch}, &p->labels));
    NL_TRY(nl_arena_tensor(device, NL_F32, 1, (int64_t[]){1}, &p->time));
cleanup:
    return status;
}

/* x ~ N(0, 1), t of one value, labels 0: what the arithmetic does not depend on. */
static nl_status fill(const pass *p, int batch)
{
    nl_device *device = p->dit->device;
    nl_context *context = device->context;
    int64_t *images = NULL;
    int32_t *zeros = NULL;
    float t = 0.5f;
    nl_status status;
    NL_TRY(NL_NEW_ZEROS(context, "labels", batch, &zeros));
    NL_TRY(NL_NEW_ZEROS(context, "images", batch, &images));
    for (int i = 0; i < batch; i++)
        images[i] = i;
    NL_TRY(device->ops->upload(device, p->labels.data, zeros, batch * (int64_t)sizeof(*zeros)));
    NL_TRY(device->ops->upload(device, p->time.data, &t, sizeof(t)));
    NL_TRY(NL_OP(device, normal, .y = p->x, .images = images));
    NL_TRY(device->ops->sync(device));
cleanup:
    nl_free(context, images);
    nl_free(context, zeros);
    return status;
}

static nl_status run(nl_context *context, const char *model, int batch, int input)
{
    nl_device *device = context->device, measuring;
    nl_config config;
    pass p = {0};
    char name[128];
    int64_t before = context->memory_used;
    double ms;
    nl_status status;
    nl_config_init(&config);
    NL_TRY(nl_config_from_name(context, model, &config));
    config.input_height = config.input_width = input;
    NL_TRY(nl_dit_create(device, &config, &p.dit));
    NL_TRY(nl_dit_initialize(p.dit, 1));
    NL_TRY(nl_dit_freeze(p.dit));
    nl_device_measuring(device, &measuring);
    NL_TRY(take(&p, &measuring, batch));
    NL_TRY(nl_dit_forward(p.dit, &measuring, &p.x, &p.time, &p.labels, NULL, &p.prediction, NULL));
    NL_TRY(nl_arena_reserve(device, measuring.arena_peak));
    NL_TRY(take(&p, device, batch));
    NL_TRY(fill(&p, batch));
    NL_TRY(measure(device, 1, run_pass, &p, &ms));
    int length = snprintf(name, sizeof(name), "forward %s %d x %lld tokens%s", model, batch,
                          (long long)nl_config_tokens(&config), device->fp8 ? " fp8" : "");
    measure_note(name, 1e3 * batch / ms, "images/s");
    snprintf(name + length, sizeof(name) - (size_t)length, " time");
    measure_note(name, ms, "ms");
    snprintf(name + length, sizeof(name) - (size_t)length, " memory");
    measure_note(name, (double)(context->memory_used - before) / 1048576, "MiB");
cleanup:
    if (status != NL_OK)
        fprintf(stderr, "%s batch %d: %s\n", model, batch, nl_last_error(context));
    nl_arena_release(device, 0);
    nl_dit_destroy(p.dit);
    nl_config_free(context, &config);
    return status;
}

int main(int argc, char **argv)
{
    static const char *const standard[] = {"NaLaSiT-S/2:256", "SiT-S/2:256",     "NaLaSiT-B/2:128",
                                           "SiT-B/2:128",     "NaLaDiT-XL/2:64", "DiT-XL/2:64"};
    nl_context_options options = {0};
    int first = measure_options(argc, argv, &options), failures = 0;
    if (!first)
        return 2;
    int count = first < argc ? argc - first : NL_COUNT(standard);
    for (int i = 0; i < count; i++) {
        nl_context *context; /* of its own, so that what it allocates is what this model needs */
        char model[64];
        int batch = 1, input = 32;
        if (sscanf(first < argc ? argv[first + i] : standard[i], "%63[^:]:%d:%d", model, &batch,
                   &input) < 1)
            return 2;
        if (nl_context_create(&options, &context) != NL_OK) {
            fprintf(stderr, "no device\n");
            return NL_ERROR_DEVICE;
        }
        failures += run(context, model, batch, input) != NL_OK;
        nl_context_destroy(context);
    }
    return failures != 0;
}
