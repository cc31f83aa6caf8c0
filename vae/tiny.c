/* SPDX-License-Identifier: MIT */
/*
 * TAESD's layout (reference: taesd_torch.py): three halvings or doublings of the picture with blocks
 * of three convolutions between them. A layer's name is its position in the PyTorch sequence, in
 * which the decoder's clamp, activations and upsamplings count too.
 */
#include "layers.h"

enum { SEQUENCE_END = 20 };

typedef struct nl_sequence {
    nl_context *context;
    nl_vae_network *network;
    const char *half;
    int64_t width; /* channels between the first and the last convolution */
    int position;
} nl_sequence;

static nl_status add(nl_sequence *sequence, nl_layer_kind kind, int64_t in, int64_t out,
                     nl_vae_layer **layer)
{
    return nl_vae_add_layer(sequence->context, sequence->network, kind, in, out, 3, layer, "%s.%d",
                            sequence->half, sequence->position++);
}

static nl_status add_blocks(nl_sequence *sequence, int count)
{
    nl_status status = NL_OK;
    for (int i = 0; i < count && status == NL_OK; i++)
        status = add(sequence, NL_LAYER_BLOCK, sequence->width, sequence->width, NULL);
    return status;
}

static nl_status build_encoder(nl_sequence *sequence, int64_t latent_channels)
{
    int64_t width = sequence->width;
    nl_vae_layer *layer;
    NL_CHECK(add(sequence, NL_LAYER_CONV, 3, width, NULL));
    NL_CHECK(add_blocks(sequence, 1));
    for (int i = 0; i < 3; i++) {
        NL_CHECK(add(sequence, NL_LAYER_CONV, width, width, &layer));
        layer->stride = 2;
        layer->bias = false;
        NL_CHECK(add_blocks(sequence, 3));
    }
    return add(sequence, NL_LAYER_CONV, width, latent_channels, NULL);
}

static nl_status build_decoder(nl_sequence *sequence, int64_t latent_channels)
{
    int64_t width = sequence->width;
    nl_vae_layer *layer;
    NL_CHECK(add(sequence, NL_LAYER_ACTIVATE, latent_channels, latent_channels, &layer));
    layer->activation = NL_ACT_SOFT_CLAMP;
    NL_CHECK(add(sequence, NL_LAYER_CONV, latent_channels, width, &layer));
    layer->activation = NL_ACT_RELU;
    sequence->position++;
    for (int i = 0; i < 3; i++) {
        NL_CHECK(add_blocks(sequence, 3));
        sequence->position++;
        NL_CHECK(add(sequence, NL_LAYER_CONV, width, width, &layer));
        layer->doubled = true;
        layer->bias = false;
    }
    NL_CHECK(add_blocks(sequence, 1));
    return add(sequence, NL_LAYER_CONV, width, 3, NULL);
}

nl_status nl_vae_tiny_network(nl_vae *vae, nl_vae_half half, const nl_vae_inventory *inventory,
                              nl_problems *problems)
{
    bool encoder = half == NL_VAE_ENCODER;
    nl_sequence sequence = {.context = vae->device->context,
                            .network = &vae->halves[half],
                            .half = encoder ? "encoder" : "decoder"};
    bool present = false;
    for (int i = 0; i < SEQUENCE_END && !present; i++)
        present = nl_vae_find_item(inventory, "%s.%d.weight", sequence.half, i) != NULL;
    if (!present)
        return NL_OK;

    const char *first = encoder ? "encoder.0.weight" : "decoder.1.weight";
    sequence.width = nl_vae_item_size(inventory, 0, "%s", first);
    int64_t latent_channels = encoder ? nl_vae_item_size(inventory, 0, "encoder.14.weight")
                                      : nl_vae_item_size(inventory, 1, "%s", first);
    if (sequence.width < 1 || latent_channels < 1) {
        nl_problem(problems, "%s is missing or not a convolution",
                   encoder && sequence.width > 0 ? "encoder.14.weight" : first);
        return NL_OK;
    }
    nl_vae_set_geometry(vae, 8, latent_channels, problems);
    return encoder ? build_encoder(&sequence, latent_channels)
                   : build_decoder(&sequence, latent_channels);
}
