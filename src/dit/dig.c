/* SPDX-License-Identifier: MIT */
/*
 * DiG's checkpoints (docs/public-code.md F): a DiT with gated linear attention under names of their own. The products of an
 * attention become one, the SwiGLU gets biases of zeros, and the convolutions are turned as the picture lies, since
 * nalagen scans it in four orders where DiG turns the tokens round.
 */
#include <stdio.h>
#include <string.h>

#include "params.h"

static const char *const products[] = {"q_proj", "k_proj", "v_proj", "g_proj", "gk_proj.0"};
enum { PRODUCTS = NL_COUNT(products) };
static const struct {
    const char *theirs, *ours;
} names[] = {{"attn.q_proj.weight", "attn.in_proj.weight"},
             {"attn.gk_proj.1.weight", "attn.gk_proj.weight"},
             {"attn.gk_proj.1.bias", "attn.gk_proj.bias"},
             {"attn.g_norm_swish_gate.weight", "attn.norm.weight"},
             {"attn.g_norm.weight", "attn.norm.weight"},
             {"attn.o_proj.weight", "attn.out_proj.weight"},
             {"mlp.gate_proj.weight", "mlp.w12.weight"},
             {"mlp.down_proj.weight", "mlp.w3.weight"}};

static nl_status refuse(const nl_checkpoint *checkpoint, const char *what)
{
    return nl_fail(checkpoint->context, NL_ERROR_INPUT, "%s: a DiG with %s", checkpoint->path,
                   what);
}

/* "blocks.3.attn.q_proj.weight": 3, and what comes behind; NULL of other names. */
static const char *in_block(const char *name, int *block)
{
    int end = 0;
    return sscanf(name, "blocks.%4d.%n", block, &end) == 1 && end ? name + end : NULL;
}

static nl_status rename_to(nl_checkpoint *checkpoint, nl_entry *entry, int block, const char *name)
{
    char *text;
    nl_status status = NL_OWN_ARRAY(checkpoint, "a name", NL_NAME_SIZE, &text);
    if (status != NL_OK)
        return status;
    snprintf(text, NL_NAME_SIZE, "blocks.%d.%s", block, name);
    entry->name = text;
    return NL_OK;
}

/* The first product of a block becomes all of them, one below the other. */
static nl_status join_products(nl_checkpoint *checkpoint, nl_entry *first, int block)
{
    nl_entry *parts;
    int64_t rows = 0;
    NL_CHECK(NL_OWN_ARRAY(checkpoint, "products of an attention", PRODUCTS, &parts));
    for (int i = 0; i < PRODUCTS; i++) {
        char name[NL_NAME_SIZE];
        snprintf(name, sizeof(name), "blocks.%d.attn.%s.weight", block, products[i]);
        const nl_entry *part = nl_checkpoint_find(checkpoint, name);
        if (!part || part->ndim != 2 || first->ndim != 2 || part->shape[1] != first->shape[1] ||
            part->shape[0] < 1 || part->shape[0] > INT32_MAX)
            return nl_fail(checkpoint->context, NL_ERROR_INPUT,
                           "%s: %s is missing or has another shape than a DiG's", checkpoint->path,
                           name);
        parts[i] = *part;
        rows += part->shape[0];
    }
    first->shape[0] = rows;
    first->data = NULL;
    first->strides = NULL;
    first->scale = NULL;
    first->parts = parts;
    first->part_count = PRODUCTS;
    return NL_OK;
}

/* A convolution's taps [channels, 1, k, k], from how the block sees the picture to how it lies. */
static nl_status turn_taps(nl_checkpoint *checkpoint, nl_entry *entry, int block)
{
    float *values, *taps = NULL;
    nl_status status = NL_OK;
    int64_t k = entry->shape[3], area = k * k;
    if (entry->ndim != 4 || entry->shape[1] != 1 || entry->shape[2] != k || k < 1 || k > 15)
        return refuse(checkpoint, "a convolution of another shape than [channels, 1, k, k]");
    NL_TRY(nl_take_values(checkpoint, entry, &values));
    NL_TRY(NL_NEW_ARRAY(checkpoint->context, "taps of a convolution", area, &taps));
    for (int64_t c = 0; c < entry->shape[0]; c++, values += area) {
        memcpy(taps, values, (size_t)area * sizeof(float));
        for (int64_t i = 0; i < area; i++) {
            int64_t from = block % 2 ? area - 1 - i : i;
            values[i] = taps[block / 2 % 2 ? from % k * k + from / k : from];
        }
    }
cleanup:
    nl_free(checkpoint->context, taps);
    return status;
}

static nl_status add_zeros(nl_checkpoint *checkpoint, nl_entry *entry, int block, const char *name,
                           int64_t count)
{
    float *zeros;
    nl_status status = NL_OWN_ARRAY(checkpoint, name, count, &zeros);
    if (status != NL_OK)
        return status;
    memset(zeros, 0, (size_t)count * sizeof(float));
    *entry = (nl_entry){.dtype = NL_F32, .ndim = 1, .shape = {count}, .data = zeros};
    return rename_to(checkpoint, entry, block, name);
}

static bool is_joined(const char *name)
{
    for (int i = 1; i < PRODUCTS; i++) {
        char product[32];
        snprintf(product, sizeof(product), "attn.%s.weight", products[i]);
        if (!strcmp(name, product))
            return true;
    }
    return false;
}

/* One entry of a block, which stays under another name. */
static nl_status turn_entry(nl_checkpoint *checkpoint, nl_entry *entry, int block, const char *name)
{
    if (!strncmp(name, "skip_linear.", strlen("skip_linear.")))
        return refuse(checkpoint, "skips between its blocks (a -skip model), which nalagen does "
                                  "not have");
    if (!strcmp(name, "mlp.gate_proj.weight") &&
        (entry->ndim != 2 || entry->shape[1] > INT32_MAX ||
         entry->shape[0] != 2 * (int64_t)(2.0 / 3.0 * (4.0 * (double)entry->shape[1]))))
        return refuse(checkpoint, "an MLP that is rounded up to a multiple of 256, as DiG-L's of "
                                  "2816, which \"mlp\": \"swiglu\" is not");
    if (!strcmp(name, "attn.q_proj.weight"))
        NL_CHECK(join_products(checkpoint, entry, block));
    if (!strcmp(name, "dw_conv.weight"))
        NL_CHECK(turn_taps(checkpoint, entry, block));
    for (int i = 0; i < NL_COUNT(names); i++)
        if (!strcmp(name, names[i].theirs))
            NL_CHECK(rename_to(checkpoint, entry, block, names[i].ours));
    return NL_OK;
}

nl_status nl_dig_turn(nl_checkpoint *checkpoint)
{
    nl_context *context = checkpoint->context;
    nl_status status = NL_OK;
    nl_entry *entries = NULL;
    int64_t count = 0;
    int block, depth = 0;
    if (!nl_checkpoint_find(checkpoint, "blocks.0.attn.gk_proj.0.weight") ||
        nl_checkpoint_metadata(checkpoint, "nalagen"))
        return NL_OK;
    /* Of a block's products four go, and two biases come. */
    NL_TRY(NL_NEW_ARRAY(context, "a table of tensors", 2 * checkpoint->count, &entries));
    for (int64_t i = 0; i < checkpoint->count; i++) {
        nl_entry *entry = &entries[count];
        const char *name = in_block(checkpoint->entries[i].name, &block);
        *entry = checkpoint->entries[i];
        if (name && is_joined(name))
            continue;
        count++;
        if (!name)
            continue;
        depth = NL_MAX(depth, block + 1);
        NL_TRY(turn_entry(checkpoint, entry, block, name));
        bool w12 = !strcmp(name, "mlp.gate_proj.weight");
        if ((w12 || !strcmp(name, "mlp.down_proj.weight")) && entry->shape[0] <= INT32_MAX)
            NL_TRY(add_zeros(checkpoint, &entries[count++], block,
                             w12 ? "mlp.w12.bias" : "mlp.w3.bias", entry->shape[0]));
    }
    if (depth % 4)
        NL_TRY(refuse(checkpoint, "blocks that are no multiple of four: it leaves the picture "
                                  "turned, which nalagen does not"));
    nl_free(context, checkpoint->entries);
    checkpoint->entries = entries;
    checkpoint->count = count;
    checkpoint->spelling = nl_spelling_dig;
    entries = NULL;
    NL_TRY(nl_checkpoint_sort(checkpoint));
cleanup:
    nl_free(context, entries);
    return status;
}
