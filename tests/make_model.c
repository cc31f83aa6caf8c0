/* make_model PATH: a small SiT of five classes on 16 x 16 pixels, every parameter random (initial weights would
 * predict zero), for tests of the command line that make many pictures. */
#include <stdio.h>
#include <string.h>

#include "nl_dit.h"
#include "nl_random.h"

static const char json[] =
    "{\"architecture\": \"SiT\", \"attention\": \"nala\", \"depth\": 2, \"hidden_size\": 64,"
    " \"num_heads\": 2, \"patch_size\": 2, \"input_size\": 16, \"in_channels\": 3,"
    " \"num_classes\": 5, \"learn_sigma\": false, \"autoencoder\": \"none\"}";

int main(int argc, char **argv)
{
    nl_context *context = NULL;
    nl_config config;
    nl_dit *dit = NULL;
    nl_status status = NL_ERROR_USAGE;
    if (argc != 2)
        return status;
    nl_config_init(&config);
    NL_TRY(nl_context_create(&(nl_context_options){.device = "cpu"}, &context));
    NL_TRY(nl_config_parse(context, "make_model", json, strlen(json), &config));
    NL_TRY(nl_dit_create(context->device, &config, &dit));
    for (int p = 0; p < dit->param_count; p++) {
        float *data = dit->params[p].tensor->data;
        for (int64_t i = 0; i < nl_tensor_count(dit->params[p].tensor); i++) {
            float normals[4];
            nl_philox_normal4(1, (uint64_t)p, 0, (uint64_t)i, normals);
            data[i] = 0.1f * normals[i % 4];
        }
    }
    NL_TRY(nl_dit_save(dit, argv[1], true, NL_F32));
cleanup:
    if (status != NL_OK && context)
        fprintf(stderr, "make_model: %s\n", nl_last_error(context));
    nl_dit_destroy(dit);
    if (context)
        nl_config_free(context, &config);
    nl_context_destroy(context);
    return status;
}
