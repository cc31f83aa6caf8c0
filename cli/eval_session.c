/* SPDX-License-Identifier: MIT */
/* What eval, stats and nearest begin with: a context whose progress is a line of pictures, and the shared options. */
#include "nl_eval.h"

#include <stdio.h>
#include <string.h>

static const char *const presets[] = {"openai", "pytorch-fid", "clean-fid", "torch-fidelity", NULL};

#define FIELD(member) offsetof(nl_network_options, member)

const nl_option nl_network_rows[] = {
    {"weights", 'w', NL_OPTION_FILE, FIELD(weights), "FILE",
     .help = "Inception: pytorch-fid's .pth, or .safetensors",
     .detail = "pt_inception-2015-12-05-6726825d.pth of pytorch-fid, or the TensorFlow graph's "
               "tensors under their names with batch norm folded. Without this option "
               "pt_inception-2015-12-05-6726825d.pth or inception-2015-12-05.safetensors in "
               "NALAGEN_WEIGHTS."},
    {"preset", 'p', NL_OPTION_CHOICE, FIELD(preset), "NAME", .choices = presets,
     .help = "openai, pytorch-fid, clean-fid, torch-fidelity",
     .detail = "openai: bilinear as TensorFlow 1; pytorch-fid: bilinear with half-pixel centres; "
               "clean-fid: antialiased bicubic; torch-fidelity: as openai, the Inception Score "
               "in ten splits."},
    {"precision", 0, NL_OPTION_CHOICE, FIELD(precision), "TYPE", .choices = nl_precision_names,
     .help = "of Inception on a GPU: fp32, tf32, fp16 (tf32)",
     .detail = "fp16 keeps weights and activations in 16 bits, tf32 rounds the factors of "
               "products to 10 bits of mantissa; sums are fp32. "
               "A CPU computes in fp32 only."},
    {0},
};

/* "samples 640/50000  8.3/s  1:23:45 left", pictures. */
static bool progress(void *user, const nl_progress *now)
{
    nl_eval_progress *line = user;
    nl_console *console = line->console;
    double time = nl_seconds();
    char text[128];
    if (!line->stage || strcmp(line->stage, now->stage) != 0) {
        line->stage = now->stage;
        line->started = time;
        line->done = 0;
        console->last = 0;
    }
    /* a model is ahead of the network that looks at its pictures */
    int64_t count = now->images, done = line->done = NL_MAX(now->image, line->done);
    if (console->quiet || time - console->last < (console->terminal ? 0.2 : 5))
        return true;
    console->last = time;
    double rate = (double)done / (time - line->started + 1e-9);
    int64_t left = done > 0 ? (int64_t)((double)(count - done) / rate + 0.5) : 0;
    if (count == 0)
        snprintf(text, sizeof(text), "%s", line->stage);
    else if (done == 0)
        snprintf(text, sizeof(text), "%s 0/%lld", line->stage, (long long)count);
    else
        snprintf(text, sizeof(text), "%s %lld/%lld  %.1f/s  %lld:%02lld:%02lld left", line->stage,
                 (long long)done, (long long)count, rate, (long long)(left / 3600),
                 (long long)(left / 60 % 60), (long long)(left % 60));
    if (console->terminal)
        fprintf(stderr, "\r%s\033[K", text);
    else
        fprintf(stderr, "nalagen: %s\n", text);
    fflush(stderr);
    console->drawn = console->terminal;
    return true;
}

nl_status nl_eval_take_device(nl_command_line *line, const nl_network_options *options,
                              nl_eval_progress *drawn)
{
    nl_machine_options machine = options->machine;
    machine.dtype = "f32";
    *drawn = (nl_eval_progress){.console = &line->console};
    return nl_command_take_device(line, &machine, progress, drawn);
}

nl_evaluation_options nl_eval_options_of(const nl_network_options *options)
{
    nl_evaluation_options o;
    NL_INIT(&o);
    o.weights = options->weights;
    o.preset = options->preset;
    o.precision = options->precision;
    return o;
}
