/* SPDX-License-Identifier: MIT */
/*
 * The shortest way through the library: four pictures of one class.
 *
 *   cc generate.c $(pkg-config --cflags --libs nalagen) -o generate
 *   ./generate church
 */
#include <nalagen.h>
#include <stdio.h>

static nl_status write_picture(void *user, const nl_picture *picture)
{
    char path[64];
    snprintf(path, sizeof(path), "picture-%d.png", (int)picture->index);
    printf("%s\n", path);
    return nl_write_png(user, path, picture->rgb, picture->height, picture->width, NULL);
}

int main(int argc, char **argv)
{
    nl_context *context = NULL;
    nl_model *model = NULL;
    nl_context_options options;
    char reason[256] = "";
    int label = 0;
    NL_INIT(&options);
    options.message = reason;
    options.message_size = sizeof(reason);
    nl_status status = nl_context_create(&options, &context);
    if (status == NL_OK)
        status = nl_model_load(context, NULL, &model); /* the model that ships */
    if (status == NL_OK)
        status = nl_model_class(model, argc > 1 ? argv[1] : "church", &label);
    if (status == NL_OK) {
        int labels[] = {label, label, label, label};
        nl_request request;
        NL_INIT(&request); /* everything else by default */
        request.labels = labels;
        request.count = 4;
        request.seed = 7;
        status = nl_generate(model, &request, write_picture, context);
    }
    if (status != NL_OK)
        fprintf(stderr, "%s: %s\n", nl_status_name(status),
                context ? nl_last_error(context) : reason);
    nl_model_destroy(model);
    nl_context_destroy(context);
    return status;
}
