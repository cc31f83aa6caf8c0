/*
 * Forward passes of whole backbones a second, on any device, random weights:
 *
 *   nl_bench_forward [--device cuda] [--dtype bf16] [MODEL:BATCH[:INPUT]]...
 *
 * MODEL is a name such as NaLaSiT-S/2; INPUT the latent's height and width (default 32). One line each:
 * model, batch, tokens, milliseconds (median), images a second, bytes of activations.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "nl_dit.h"

enum { WARM_UP = 3, REPEATS = 15 };

static double now_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return 1e3 * (double)t.tv_sec + 1e-6 * (double)t.tv_nsec;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* x ~ N(0, 1), t of one value, labels 0: what the arithmetic does not depend on. */
static nl_status run(nl_context *context, const char *model, int batch, int input)
{
    nl_status status;
    nl_device *device = context->device, measuring;
    nl_config config;
    nl_dit *dit = NULL;
    nl_config_init(&config);
    NL_TRY(nl_config_from_name(context, model, &config));
    config.input_height = config.input_width = input;
    NL_TRY(nl_dit_create(device, &config, &dit));
    NL_TRY(nl_dit_initialize(dit, 1));
    int64_t side[] = {batch, config.in_channels, input, input};
    int64_t out_side[] = {batch, nl_config_head_channels(&config), input, input};
    float t = 0.5f;
    int64_t bytes = 0;
    double times[REPEATS];
    for (int pass = 0; pass < 2; pass++) {
        nl_device *d = pass ? device : &measuring;
        nl_tensor x, y, labels, time;
        if (pass == 0)
            nl_device_measuring(device, &measuring);
        else
            NL_TRY(nl_arena_reserve(device, bytes));
        NL_TRY(nl_arena_tensor(d, NL_F32, 4, side, &x));
        NL_TRY(nl_arena_tensor(d, NL_F32, 4, out_side, &y));
        NL_TRY(nl_arena_tensor(d, NL_I32, 1, side, &labels));
        NL_TRY(nl_arena_tensor(d, NL_F32, 1, (int64_t[]){1}, &time));
        if (pass == 0) {
            NL_TRY(nl_dit_forward(dit, d, &x, &time, &labels, &y));
            bytes = measuring.arena_peak;
            continue;
        }
        int64_t *images = NULL;
        int32_t *zeros = NULL;
        NL_TRY(nl_alloc_zero(context, "labels", (size_t)batch * sizeof(*zeros), (void **)&zeros));
        NL_TRY(nl_alloc_zero(context, "images", (size_t)batch * sizeof(*images), (void **)&images));
        for (int i = 0; i < batch; i++)
            images[i] = i;
        NL_TRY(device->ops->upload(device, labels.data, zeros, batch * (int64_t)sizeof(*zeros)));
        NL_TRY(device->ops->upload(device, time.data, &t, sizeof(t)));
        NL_TRY(NL_OP(device, normal, .y = x, .images = images));
        for (int i = -WARM_UP; i < REPEATS; i++) {
            NL_TRY(device->ops->sync(device));
            double start = now_ms();
            NL_TRY(nl_dit_replay(dit, device, &x, &time, &labels, &y));
            NL_TRY(device->ops->sync(device));
            if (i >= 0)
                times[i] = now_ms() - start;
        }
        nl_arena_release(device, 0);
        nl_free(context, images);
        nl_free(context, zeros);
    }
    qsort(times, REPEATS, sizeof(times[0]), by_value);
    printf("%-14s batch %4d tokens %6lld  %9.3f ms  %10.1f /s  %8.1f MiB\n", model, batch,
           (long long)nl_config_tokens(&config), times[REPEATS / 2],
           1e3 * batch / times[REPEATS / 2], (double)bytes / 1048576);
    fflush(stdout);
cleanup:
    if (status != NL_OK)
        printf("%-14s batch %4d: %s\n", model, batch, nl_last_error(context));
    nl_dit_destroy(dit);
    nl_config_free(context, &config);
    return status;
}

int main(int argc, char **argv)
{
    static const char *const standard[] = {"NaLaSiT-S/2:256", "SiT-S/2:256", "NaLaDiT-XL/2:64",
                                           "DiT-XL/2:64"};
    nl_context_options options = {0};
    int first = 1;
    for (; first + 1 < argc && !strncmp(argv[first], "--", 2); first += 2) {
        if (!strcmp(argv[first], "--device"))
            options.device = argv[first + 1];
        else if (!strcmp(argv[first], "--dtype"))
            options.dtype = argv[first + 1];
        else
            return 2;
    }
    nl_context *context;
    if (nl_context_create(&options, &context) != NL_OK) {
        fprintf(stderr, "no device\n");
        return NL_ERROR_DEVICE;
    }
    printf("%s, %s\n", context->device->name, nl_dtype_name(context->device->dtype));
    int failures = 0, count = first < argc ? argc - first : NL_COUNT(standard);
    for (int i = 0; i < count; i++) {
        char model[64];
        int batch = 1, input = 32;
        if (sscanf(first < argc ? argv[first + i] : standard[i], "%63[^:]:%d:%d", model, &batch,
                   &input) < 1)
            return 2;
        failures += run(context, model, batch, input) != NL_OK;
    }
    nl_context_destroy(context);
    return failures != 0;
}
