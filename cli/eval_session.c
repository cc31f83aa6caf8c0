/* SPDX-License-Identifier: MIT */
/* What eval, stats and nearest begin with: a context for the network, and the shared options. */
#include "nl_eval.h"

static const char *const presets[] = {"openai", "pytorch-fid", "clean-fid", "torch-fidelity", NULL};

#define FIELD(member) offsetof(nl_network_options, member)

const nl_option nl_network_rows[] = {
    {"weights", 'w', NL_OPTION_FILE, FIELD(weights), "FILE", .where = NL_COMMON,
     .help = "Inception: pytorch-fid's .pth, or .safetensors",
     .detail = "pt_inception-2015-12-05-6726825d.pth of pytorch-fid, or the TensorFlow graph's "
               "tensors under their names with batch norm folded. Without this option "
               "pt_inception-2015-12-05-6726825d.pth or inception-2015-12-05.safetensors in "
               "NALAGEN_WEIGHTS or ~/.local/share/nalagen."},
    {"preset", 'p', NL_OPTION_CHOICE, FIELD(preset), "NAME", .choices = presets, .where = NL_COMMON,
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

nl_status nl_eval_take_device(nl_command_line *line, const nl_network_options *options)
{
    nl_machine_options machine = options->machine;
    machine.dtype = "f32";
    return nl_command_take_device(line, &machine, nl_command_progress, line);
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
