/* SPDX-License-Identifier: MIT */
/*
 * How good are pictures? Those of a folder or an archive, or those that a model makes, against others.
 *
 *   cc evaluate.c $(pkg-config --cflags --libs nalagen) -o evaluate
 *   ./evaluate samples.npz photographs/
 *   ./evaluate model.safetensors photographs/
 *
 * The weights of the FID network are found in the folder that NALAGEN_WEIGHTS names, or given as the third argument.
 */
#include <nalagen.h>
#include <stdio.h>
#include <string.h>

static bool show_progress(void *user, const nl_progress *progress)
{
    (void)user;
    fprintf(stderr, "\r%s %lld/%lld ", progress->stage, (long long)progress->image,
            (long long)progress->images);
    return true; /* false would stop it */
}

static bool is_model(const char *path)
{
    const char *dot = strrchr(path, '.');
    return dot && (!strcmp(dot, ".safetensors") || !strcmp(dot, ".pt"));
}

int main(int argc, char **argv)
{
    nl_context_options context_options;
    nl_model_options model_options;
    nl_context *context = NULL;
    nl_model *model = NULL;
    nl_evaluation_options options;
    nl_evaluation evaluation;
    if (argc < 3) {
        fprintf(stderr, "usage: evaluate PICTURES|MODEL REFERENCE [WEIGHTS]\n");
        return NL_ERROR_USAGE;
    }
    NL_INIT(&options);
    options.reference = argv[2];
    options.weights = argc > 3 ? argv[3] : NULL;
    options.allow_small =
        true; /* to try it with few pictures; such numbers are not comparable with other results */
    NL_INIT(&model_options);
    model_options.path = argv[1];
    NL_INIT(&context_options);
    context_options.dtype = "f32";
    context_options.progress = show_progress;
    nl_status status = nl_context_create(&context_options, &context);
    if (status == NL_OK && is_model(argv[1])) {
        status = nl_model_load(context, &model_options, &model);
        options.model = model;
        options.count = 64;
    } else {
        options.samples = argv[1];
    }
    if (status == NL_OK)
        status = nl_evaluate(context, &options, &evaluation);
    fprintf(stderr, "\n");
    for (nl_metric m = 0; status == NL_OK && m < NL_METRICS; m++) {
        const nl_metric_value *value = &evaluation.metrics[m];
        if (value->known)
            printf("%s %.6g\n", nl_metric_name(m), value->value);
        else if (value->missing[0])
            printf("%s - %s\n", nl_metric_name(m), value->missing);
    }
    if (status != NL_OK)
        fprintf(stderr, "%s: %s\n", nl_status_name(status), context ? nl_last_error(context) : "");
    nl_model_destroy(model);
    nl_context_destroy(context);
    return status;
}
