/* SPDX-License-Identifier: MIT */
/* A model around a network that belongs to somebody else. */
#include <string.h>

#include "model.h"

nl_status nl_model_around(nl_dit *dit, const char *path, const char *vae, nl_model **out)
{
    nl_context *context = dit->device->context;
    nl_model *model = NULL;
    nl_status status = NL_OK;
    *out = NULL;
    NL_TRY(NL_NEW(context, "model", &model));
    model->context = context;
    nl_config_init(&model->config);
    NL_TRY(nl_config_copy(context, &dit->config, &model->config));
    NL_TRY(nl_strdup(context, path, &model->path));
    NL_TRY(nl_model_open_vae(model, vae));
    NL_TRY(nl_config_print(context, &model->config, &model->config_text));
    model->dit = dit;
    *out = model;
    return NL_OK;
cleanup:
    nl_model_destroy(model);
    return status;
}

void nl_model_leave(nl_model *model)
{
    if (model)
        model->dit = NULL;
    nl_model_destroy(model);
}
