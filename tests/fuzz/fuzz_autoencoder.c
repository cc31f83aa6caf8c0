/* SPDX-License-Identifier: MIT */
/* config.json of an autoencoder; the first byte chooses which kind its tensors are. */
#include <math.h>

#include "layers.h"
#include "nl_fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    nl_context *context = fuzz_context();
    int64_t used = context->memory_used;
    nl_device device = {.context = context};
    nl_status status = NL_OK;
    double scale, shift;
    if (size > 0) {
        char *text = malloc(size);
        memcpy(text, data + 1, size - 1);
        text[size - 1] = '\0';
        char *metadata[] = {"config.json", text, NULL};
        nl_checkpoint checkpoint = {.context = context, .path = "fuzz", .metadata = metadata};
        nl_vae vae = {.device = &device,
                      .path = "fuzz",
                      .kind = data[0] & 1 ? NL_VAE_KL : NL_VAE_TINY,
                      .latent_channels = 4,
                      .said_scale = NAN,
                      .said_shift = NAN};
        status = nl_vae_read_config(&checkpoint, &vae);
        if (status == NL_OK) {
            FUZZ_CHECK(nl_vae_latent_scale(&vae, &scale, &shift) == NL_OK);
            FUZZ_CHECK(isfinite(scale) && scale > 0 && isfinite(shift));
            FUZZ_CHECK(vae.groups >= 0);
        }
        free(text);
    }
    fuzz_end(context, used, status);
    return 0;
}
