/* SPDX-License-Identifier: MIT */
/*
 * AutoencoderKL (docs/public-code.md D). The number of levels and of resnets in each come from the names, the
 * channels from the shapes.
 *
 *   encoder: conv_in, levels of resnets with a halving between them, mid, norm, conv_out,
 * quant_conv decoder: post_quant_conv, conv_in, mid, levels of resnets with a doubling between
 * them, norm, conv_out
 */
#include "layers.h"

#include <stdio.h>

enum { MAX_LEVELS = 6, MAX_RESNETS = 32 };

typedef struct nl_kl_shape {
    int levels;
    int64_t channels[MAX_LEVELS]; /* in the order of the layers */
    int resnets[MAX_LEVELS];
    int64_t first; /* channels out of conv_in */
    int64_t latent_channels;
} nl_kl_shape;

/* Reads the shape of a half; false and a problem when a tensor that tells it is missing. */
static bool read_shape(const nl_vae_inventory *inventory, nl_vae_half half, nl_kl_shape *shape,
                       nl_problems *problems)
{
    bool encoder = half == NL_VAE_ENCODER;
    const char *blocks = encoder ? "encoder.down_blocks" : "decoder.up_blocks";
    *shape = (nl_kl_shape){0};
    for (int i = 0; i < MAX_LEVELS; i++) {
        int64_t channels =
            nl_vae_item_size(inventory, 0, "%s.%d.resnets.0.conv1.weight", blocks, i);
        if (channels < 1)
            break;
        shape->channels[shape->levels++] = channels;
        int *resnets = &shape->resnets[i];
        while (*resnets < MAX_RESNETS &&
               nl_vae_find_item(inventory, "%s.%d.resnets.%d.conv1.weight", blocks, i, *resnets))
            (*resnets)++;
    }
    const char *conv_in = encoder ? "encoder.conv_in.weight" : "decoder.conv_in.weight";
    shape->first = nl_vae_item_size(inventory, 0, "%s", conv_in);
    /* conv_out gives mean and log variance */
    shape->latent_channels = encoder ? nl_vae_item_size(inventory, 0, "encoder.conv_out.weight") / 2
                                     : nl_vae_item_size(inventory, 1, "%s", conv_in);
    if (shape->levels < 1)
        nl_problem(problems, "%s.0.resnets.0.conv1.weight is missing", blocks);
    else if (shape->first < 1)
        nl_problem(problems, "%s is missing or not a convolution", conv_in);
    else if (shape->latent_channels < 1)
        nl_problem(problems, "%s is missing or not a convolution",
                   encoder ? "encoder.conv_out.weight" : conv_in);
    else
        return true;
    return false;
}

/* What both halves are made of; `channels` runs along. */
typedef struct nl_kl_builder {
    nl_context *context;
    const nl_vae_inventory *inventory;
    nl_vae_network *network;
    const char *half;
    const nl_kl_shape *shape;
    bool attention; /* in the middle */
    int64_t channels;
} nl_kl_builder;

static nl_status add_resnet(nl_kl_builder *builder, const char *block, int index, int64_t out)
{
    int64_t in = builder->channels;
    builder->channels = out;
    return nl_vae_add_layer(builder->context, builder->network, NL_LAYER_RESNET, in, out, 3, NULL,
                            "%s.%s.resnets.%d", builder->half, block, index);
}

static nl_status add_conv(nl_kl_builder *builder, int64_t in, int64_t out, const char *name)
{
    builder->channels = out;
    return nl_vae_add_layer(builder->context, builder->network, NL_LAYER_CONV, in, out, 3, NULL,
                            "%s.%s", builder->half, name);
}

static nl_status add_attention(nl_kl_builder *builder, const char *block, int index)
{
    int64_t channels = builder->channels;
    return nl_vae_add_layer(builder->context, builder->network, NL_LAYER_ATTENTION, channels,
                            channels, 1, NULL, "%s.%s.attentions.%d", builder->half, block, index);
}

/* VA-VAE has attention behind each resnet of its smallest level, too. */
static bool has_attention(const nl_kl_builder *builder, const char *block, int index)
{
    return nl_vae_find_item(builder->inventory, "%s.%s.attentions.%d.group_norm.weight",
                            builder->half, block, index) != NULL;
}

static nl_status add_mid(nl_kl_builder *builder)
{
    int64_t channels = builder->channels;
    NL_CHECK(add_resnet(builder, "mid_block", 0, channels));
    if (builder->attention)
        NL_CHECK(add_attention(builder, "mid_block", 0));
    return add_resnet(builder, "mid_block", 1, channels);
}

static nl_status add_levels(nl_kl_builder *builder, bool encoder)
{
    const nl_kl_shape *shape = builder->shape;
    for (int i = 0; i < shape->levels; i++) {
        int64_t channels = shape->channels[i];
        char block[32];
        snprintf(block, sizeof(block), "%s.%d", encoder ? "down_blocks" : "up_blocks", i);
        for (int j = 0; j < shape->resnets[i]; j++) {
            NL_CHECK(add_resnet(builder, block, j, channels));
            if (has_attention(builder, block, j))
                NL_CHECK(add_attention(builder, block, j));
        }
        if (i == shape->levels - 1)
            break;
        nl_vae_layer *layer;
        NL_CHECK(nl_vae_add_layer(builder->context, builder->network, NL_LAYER_CONV, channels,
                                  channels, 3, &layer, "%s.%s.%s.0.conv", builder->half, block,
                                  encoder ? "downsamplers" : "upsamplers"));
        if (encoder) {
            layer->stride = 2;
            layer->pad_before = 0; /* one row below and one column to the right only */
        } else {
            layer->doubled = true;
        }
    }
    return NL_OK;
}

static nl_status add_end(nl_kl_builder *builder, int64_t out)
{
    int64_t channels = builder->channels;
    NL_CHECK(nl_vae_add_layer(builder->context, builder->network, NL_LAYER_NORM, channels, channels,
                              1, NULL, "%s.conv_norm_out", builder->half));
    return add_conv(builder, channels, out, "conv_out");
}

static void set_groups(const nl_vae_network *network, int groups, nl_problems *problems)
{
    for (int i = 0; i < network->count; i++) {
        nl_vae_layer *layer = &network->layers[i];
        layer->groups = groups;
        bool normed = layer->kind == NL_LAYER_RESNET || layer->kind == NL_LAYER_NORM ||
                      layer->kind == NL_LAYER_ATTENTION;
        if (normed && (layer->in % groups || layer->out % groups))
            nl_problem(problems, "%s: %lld to %lld channels, not multiples of %d groups",
                       layer->name, (long long)layer->in, (long long)layer->out, groups);
    }
}

nl_status nl_vae_kl_network(nl_vae *vae, nl_vae_half half, const nl_vae_inventory *inventory,
                            nl_problems *problems)
{
    bool encoder = half == NL_VAE_ENCODER;
    const char *name = encoder ? "encoder" : "decoder";
    const char *quant = encoder ? "quant_conv" : "post_quant_conv";
    if (!nl_vae_find_item(inventory, "%s.conv_in.weight", name) &&
        !nl_vae_find_item(inventory, "%s.conv_out.weight", name))
        return NL_OK;
    nl_kl_shape shape;
    if (!read_shape(inventory, half, &shape, problems))
        return NL_OK;

    nl_context *context = vae->device->context;
    nl_vae_network *network = &vae->halves[half];
    nl_kl_builder builder = {context, inventory, network, name, &shape, vae->mid_attention, 0};
    /* Later autoencoders of the same kind leave the two 1 x 1 convolutions out. */
    bool quantised = nl_vae_find_item(inventory, "%s.weight", quant) != NULL;
    int64_t latent_channels = shape.latent_channels, moments = 2 * latent_channels;
    if (!encoder && quantised)
        NL_CHECK(nl_vae_add_layer(context, network, NL_LAYER_CONV, latent_channels, latent_channels,
                                  1, NULL, "%s", quant));
    NL_CHECK(add_conv(&builder, encoder ? 3 : latent_channels, shape.first, "conv_in"));
    if (!encoder)
        NL_CHECK(add_mid(&builder));
    NL_CHECK(add_levels(&builder, encoder));
    if (encoder)
        NL_CHECK(add_mid(&builder));
    NL_CHECK(add_end(&builder, encoder ? moments : 3));
    if (encoder && quantised)
        NL_CHECK(nl_vae_add_layer(context, network, NL_LAYER_CONV, moments, moments, 1, NULL, "%s",
                                  quant));
    set_groups(network, vae->groups, problems);
    nl_vae_set_geometry(vae, 1 << (shape.levels - 1), latent_channels, problems);
    return NL_OK;
}
