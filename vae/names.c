/* SPDX-License-Identifier: MIT */
/*
 * The names that autoencoder files use. Canonical are diffusers' for AutoencoderKL,
 *
 *   encoder.down_blocks.0.resnets.1.conv1.weight, decoder.mid_block.attentions.0.to_q.bias, ...
 *
 * and TAESD's position in its sequence for the tiny one, with the half in front: encoder.14.weight,
 * decoder.3.conv.2.bias.
 */
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "layers.h"

/* Applied in order, each to the first place where it fits. '#' stands for a number, which '#' in the
 * replacement repeats and '~' counts from the other end of the decoder's levels. */
static const struct name_rule {
    const char *from, *to;
} name_rules[] = {
    /* CompVis */
    {".down.#.block.#.", ".down_blocks.#.resnets.#."},
    {".down.#.downsample.", ".down_blocks.#.downsamplers.0."},
    {".up.#.block.#.", ".up_blocks.~.resnets.#."},
    {".up.#.upsample.", ".up_blocks.~.upsamplers.0."},
    {".mid.block_1.", ".mid_block.resnets.0."},
    {".mid.block_2.", ".mid_block.resnets.1."},
    {".down.#.attn.#.", ".down_blocks.#.attentions.#."},
    {".up.#.attn.#.", ".up_blocks.~.attentions.#."},
    {".mid.attn_1.", ".mid_block.attentions.0."},
    {".attentions.#.norm.", ".attentions.#.group_norm."},
    {".attentions.#.q.", ".attentions.#.to_q."},
    {".attentions.#.k.", ".attentions.#.to_k."},
    {".attentions.#.v.", ".attentions.#.to_v."},
    {".attentions.#.proj_out.", ".attentions.#.to_out.0."},
    {".nin_shortcut.", ".conv_shortcut."},
    {".norm_out.", ".conv_norm_out."},
    /* diffusers before 0.18 */
    {".attentions.#.query.", ".attentions.#.to_q."},
    {".attentions.#.key.", ".attentions.#.to_k."},
    {".attentions.#.value.", ".attentions.#.to_v."},
    {".attentions.#.proj_attn.", ".attentions.#.to_out.0."},
};

/* Other parts of training checkpoints that hold an autoencoder; the last two of VA-VAE's. */
static const char *const ignored_prefixes[] = {"loss.", "model_ema.", "foundation_model.",
                                               "linear_proj."};

static bool starts_with(const char *text, const char *prefix)
{
    return strncmp(text, prefix, strlen(prefix)) == 0;
}

/* Reads a number of at most three digits; false when there is none. */
static bool read_number(const char **text, int *number)
{
    int digits = 0;
    *number = 0;
    while (digits < 4 && isdigit((unsigned char)(*text)[digits]))
        *number = 10 * *number + ((*text)[digits++] - '0');
    *text += digits;
    return digits > 0 && digits < 4;
}

/* Characters of text that the pattern takes, 0 when it does not fit; the numbers that it met. */
static size_t match(const char *pattern, const char *text, int numbers[2])
{
    const char *start = text;
    int count = 0;
    for (; *pattern; pattern++) {
        if (*pattern == '#') {
            if (!read_number(&text, &numbers[count++]))
                return 0;
        } else if (*text++ != *pattern) {
            return 0;
        }
    }
    return (size_t)(text - start);
}

static void apply(const struct name_rule *rule, int up_levels, char name[NL_VAE_NAME_SIZE])
{
    int numbers[2] = {0};
    size_t taken = 0;
    char *place = name;
    for (; *place && !taken; place += taken ? 0 : 1)
        taken = match(rule->from, place, numbers);
    if (!taken)
        return;

    char replaced[2 * NL_VAE_NAME_SIZE];
    int length = (int)(place - name), number = 0;
    memcpy(replaced, name, (size_t)length);
    for (const char *to = rule->to; *to; to++) {
        size_t room = sizeof(replaced) - (size_t)length;
        if (*to == '#')
            length += snprintf(replaced + length, room, "%d", numbers[number++]);
        else if (*to == '~')
            length += snprintf(replaced + length, room, "%d", up_levels - 1 - numbers[number++]);
        else
            replaced[length++] = *to;
    }
    snprintf(replaced + length, sizeof(replaced) - (size_t)length, "%s", place + taken);
    snprintf(name, NL_VAE_NAME_SIZE, "%.*s", NL_VAE_NAME_SIZE - 1, replaced);
}

/* "encoder.3.conv.0.weight", "3.conv.0.weight", "decoder.layers.2.conv.0.weight" */
static bool tiny_name(nl_vae_half bare, const char *name, char canonical[NL_VAE_NAME_SIZE])
{
    static const char *const halves[] = {"encoder", "decoder"};
    nl_vae_half half = bare;
    for (int i = 0; i < 2; i++) {
        size_t length = strlen(halves[i]);
        if (starts_with(name, halves[i]) && name[length] == '.') {
            half = (nl_vae_half)i;
            name += length + 1;
        }
    }
    bool diffusers = starts_with(name, "layers.");
    if (diffusers)
        name += strlen("layers.");
    int position;
    if (!read_number(&name, &position) || *name != '.')
        return false;
    /* TAESD's decoder sequence begins with the soft clamp, which diffusers keeps outside of it. */
    if (diffusers && half == NL_VAE_DECODER)
        position++;
    return snprintf(canonical, NL_VAE_NAME_SIZE, "%s.%d%s", halves[half], position, name) <
           NL_VAE_NAME_SIZE;
}

bool nl_vae_canonical_name(const nl_vae_spelling *spelling, const char *name,
                           char canonical[NL_VAE_NAME_SIZE])
{
    if (!starts_with(name, spelling->prefix))
        return false;
    for (int i = 0; i < NL_COUNT(ignored_prefixes); i++)
        if (starts_with(name, ignored_prefixes[i]))
            return false;
    const char *own = name + strlen(spelling->prefix);
    if (spelling->kind == NL_VAE_TINY && tiny_name(spelling->bare, own, canonical))
        return true;
    bool fits = snprintf(canonical, NL_VAE_NAME_SIZE, "%s", own) < NL_VAE_NAME_SIZE;
    if (spelling->kind == NL_VAE_KL && fits)
        for (int i = 0; i < NL_COUNT(name_rules); i++)
            apply(&name_rules[i], spelling->up_levels, canonical);
    return true;
}

bool nl_vae_find_spelling(const nl_checkpoint *checkpoint, nl_vae_spelling *spelling)
{
    *spelling = (nl_vae_spelling){.kind = NL_VAE_NONE, .prefix = "", .bare = NL_VAE_DECODER};
    for (int64_t i = 0; i < checkpoint->count; i++)
        if (starts_with(checkpoint->entries[i].name, "first_stage_model."))
            spelling->prefix = "first_stage_model.";
    for (int64_t i = 0; i < checkpoint->count; i++) {
        const char *name = checkpoint->entries[i].name;
        if (!starts_with(name, spelling->prefix))
            continue;
        name += strlen(spelling->prefix);
        int numbers[2];
        char canonical[NL_VAE_NAME_SIZE];
        if (match("decoder.up.#.", name, numbers))
            spelling->up_levels = NL_MAX(spelling->up_levels, numbers[0] + 1);
        if (starts_with(name, "encoder.conv_in.") || starts_with(name, "decoder.conv_in."))
            spelling->kind = NL_VAE_KL;
        else if (spelling->kind == NL_VAE_NONE && tiny_name(NL_VAE_DECODER, name, canonical))
            spelling->kind = NL_VAE_TINY;
        if (strcmp(name, "0.weight") == 0)
            spelling->bare = NL_VAE_ENCODER; /* position 0 of a decoder has no parameters */
    }
    return spelling->kind != NL_VAE_NONE;
}
