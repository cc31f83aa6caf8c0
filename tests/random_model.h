/* SPDX-License-Identifier: MIT */
/* Small models whose every parameter is random: initial weights would predict zero. */
#ifndef NL_RANDOM_MODEL_H
#define NL_RANDOM_MODEL_H

#include <string.h>

#include "nl_dit.h"
#include "nl_random.h"

/* Five classes on 16 x 16 pixels; `more` is JSON that follows, such as ", \"tau\": 1". */
#define RANDOM_SIT_WITH(more)                                                                      \
    "{\"architecture\": \"SiT\", \"attention\": \"nala\", \"depth\": 2, \"hidden_size\": 64,"      \
    " \"num_heads\": 2, \"patch_size\": 2, \"input_size\": 16, \"in_channels\": 3,"                \
    " \"num_classes\": 5, \"learn_sigma\": false, \"autoencoder\": \"none\"" more "}"
#define RANDOM_SIT RANDOM_SIT_WITH("")
#define RANDOM_DIT                                                                                 \
    "{\"architecture\": \"DiT\", \"depth\": 2, \"hidden_size\": 64, \"num_heads\": 2,"             \
    " \"patch_size\": 2, \"input_size\": 16, \"in_channels\": 3, \"num_classes\": 5,"              \
    " \"learn_sigma\": true, \"autoencoder\": \"none\"}"

/* Of a model on the CPU, in F32. */
static inline void random_model_fill(nl_dit *dit, float scale)
{
    for (int p = 0; p < dit->param_count; p++) {
        float *data = dit->params[p].tensor->data;
        int64_t count = nl_tensor_count(dit->params[p].tensor);
        for (int64_t i = 0; i < count; i++) {
            float normals[4];
            nl_philox_normal4(1, (uint64_t)p, 0, (uint64_t)i, normals);
            data[i] = scale * normals[i % 4];
        }
    }
}

static inline nl_status random_model_write(nl_context *context, const char *json, const char *path)
{
    nl_config config;
    nl_dit *dit = NULL;
    nl_status status;
    nl_config_init(&config);
    NL_TRY(nl_config_parse(context, "test", json, strlen(json), &config));
    NL_TRY(nl_dit_create(context->device, &config, &dit));
    random_model_fill(dit, 0.1f);
    NL_TRY(nl_dit_save(dit, path, true, NL_F32));
cleanup:
    nl_dit_destroy(dit);
    nl_config_free(context, &config);
    return status;
}

#endif
