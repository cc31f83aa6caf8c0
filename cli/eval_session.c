/* SPDX-License-Identifier: MIT */
/* What eval, stats and nearest begin with: the FID network's weights, its preset and its precision. */
#include "nl_eval.h"
#include "nl_pipeline.h"

#include <stdio.h>
#include <string.h>

static const char *const presets[] = {"openai", "pytorch-fid", "clean-fid", "torch-fidelity", NULL};
const char *const nl_feature_choices[] = {"pool_3", "mixed_7", "pool_192", "pool_64", NULL};

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

bool nl_eval_progress(void *user, const char *what, int64_t done, int64_t count)
{
    nl_eval_session *session = user;
    nl_console *console = session->console;
    double now = nl_seconds();
    char text[128];
    if (!session->stage || strcmp(session->stage, what) != 0) {
        session->stage = what;
        session->stage_started = now;
        session->stage_done = 0;
        console->last = 0;
    }
    /* a model is ahead of the network that looks at its pictures */
    done = session->stage_done = NL_MAX(done, session->stage_done);
    if (console->quiet || now - console->last < (console->terminal ? 0.2 : 5))
        return true;
    console->last = now;
    double rate = (double)done / (now - session->stage_started + 1e-9);
    int64_t left = done > 0 ? (int64_t)((double)(count - done) / rate + 0.5) : 0;
    if (count == 0)
        snprintf(text, sizeof(text), "%s", what);
    else if (done == 0)
        snprintf(text, sizeof(text), "%s 0/%lld", what, (long long)count);
    else
        snprintf(text, sizeof(text), "%s %lld/%lld  %.1f/s  %lld:%02lld:%02lld left", what,
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

/* --weights, or one of the usual names among the shipped files. */
static nl_status find_weights(nl_context *context, const char *given, char **path)
{
    static const char *const names[] = {"pt_inception-2015-12-05-6726825d.pth",
                                        "inception-2015-12-05.safetensors"};
    if (given)
        return nl_strdup(context, given, path);
    for (int i = 0; i < NL_COUNT(names); i++) {
        nl_status status = nl_find_data(context, NULL, names[i], path);
        if (status != NL_OK || *path)
            return status;
    }
    return nl_fail(context, NL_ERROR_USAGE,
                   "the weights of Inception are needed: give --weights "
                   "pt_inception-2015-12-05-6726825d.pth (a release file of pytorch-fid, 91 MiB), "
                   "or put it into the folder that NALAGEN_WEIGHTS names");
}

static void set_preset(nl_eval_session *session, const char *name)
{
    const nl_preprocessing *p = nl_preprocessings;
    while (strcmp(p->name, name))
        p++;
    session->options = NL_EVALUATION_DEFAULT;
    session->options.preprocessing = p;
    session->options.progress = nl_eval_progress;
    session->options.user = session;
    session->options.is_shuffled = !strcmp(name, "torch-fidelity");
}

nl_status nl_eval_open(nl_command_line *line, const nl_network_options *options, nl_eval_session *s)
{
    nl_machine_options machine = options->machine;
    machine.dtype = "f32";
    *s = (nl_eval_session){.console = &line->console};
    nl_status status = nl_command_take_device(line, &machine, NULL, NULL);
    if (status != NL_OK)
        return status;
    s->context = line->context;
    set_preset(s, options->preset);
    return NL_OK;
}

/* On a GPU TF32, the fastest that moves every metric by less than 1e-3 of its value (docs/evaluation.md). */
static nl_status set_precision(nl_eval_session *s, const char *name)
{
    nl_precision precision =
        nl_device_queues(s->context->device) ? NL_PRECISION_TF32 : NL_PRECISION_FP32;
    for (int i = 0; name && i < NL_PRECISIONS; i++)
        if (!strcmp(name, nl_precision_names[i]))
            precision = i;
    return nl_inception_set_precision(s->net, precision);
}

nl_status nl_eval_load(const nl_network_options *options, nl_eval_session *s)
{
    char *path = NULL;
    nl_status status;
    NL_TRY(find_weights(s->context, options->weights, &path));
    NL_TRY(nl_checkpoint_open(s->context, path, &s->checkpoint));
    NL_TRY(nl_inception_load(s->context->device, s->checkpoint, &s->net));
    NL_TRY(set_precision(s, options->precision));
    NL_TRY(nl_checkpoint_sha256(s->checkpoint, s->sha256));
    if (!nl_inception_has(s->net, NL_FEATURE_POOL_3))
        s->options.feature = NL_FEATURE_MIXED_7;
    if (!nl_inception_has(s->net, NL_FEATURE_LOGITS))
        nl_log(s->context, NL_LOG_WARNING, "%s is not complete%s. Missing:%s", path,
               nl_inception_has(s->net, NL_FEATURE_POOL_3)
                   ? ": no Inception Score"
                   : ": no FID of 2048 features, no Inception Score",
               nl_inception_missing(s->net));
cleanup:
    nl_free(s->context, path);
    return status;
}

nl_status nl_eval_choose_feature(nl_eval_session *s, const char *name)
{
    for (int f = 0; name && f < NL_FEATURES; f++)
        if (!strcmp(name, nl_feature_name(f)))
            s->options.feature = f;
    if (nl_inception_has(s->net, s->options.feature))
        return NL_OK;
    return nl_fail(s->context, NL_ERROR_INPUT,
                   "--features %s: the weights are not complete. Missing:%s", name,
                   nl_inception_missing(s->net));
}

void nl_eval_close(nl_eval_session *s)
{
    nl_inception_destroy(s->net);
    nl_checkpoint_close(s->checkpoint);
    *s = (nl_eval_session){.context = NULL};
}
