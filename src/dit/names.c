/* SPDX-License-Identifier: MIT */
/*
 * The names that backbone files use. Ours are those of the public DiT and SiT code; the other ones
 * are those of diffusers' DiTTransformer2DModel, which holds the same numbers:
 *
 * - to_q, to_k and to_v are the rows of qkv in that order;
 * - every block has its own copy of the embeddings of time and label, and the one of block 0
 *   conditions the final layer as well. Copies that differ are another network: they are refused;
 * - diffusers spaces the time frequencies by 1 / 127 and the public code by 1 / 128 of ln 10000.
 *   Here they are always the public code's, which the released weights were trained with.
 */
#include <ctype.h>
#include <stdio.h>
#include <string.h>

#include "params.h"

/* Stems, which ".weight", ".bias" or nothing follows. '#' is the number of a block. */
static const struct name_row {
    const char *dit;
    const char *diffusers[3]; /* more than one: its rows one below the other */
    bool copied;              /* one in every block */
} rows[] = {
    {"pos_embed", {"pos_embed.pos_embed"}, false},
    {"x_embedder.proj", {"pos_embed.proj"}, false},
    {"t_embedder.mlp.0", {"transformer_blocks.#.norm1.emb.timestep_embedder.linear_1"}, true},
    {"t_embedder.mlp.2", {"transformer_blocks.#.norm1.emb.timestep_embedder.linear_2"}, true},
    {"y_embedder.embedding_table",
     {"transformer_blocks.#.norm1.emb.class_embedder.embedding_table"},
     true},
    {"blocks.#.attn.qkv",
     {"transformer_blocks.#.attn1.to_q", "transformer_blocks.#.attn1.to_k",
      "transformer_blocks.#.attn1.to_v"},
     false},
    {"blocks.#.attn.proj", {"transformer_blocks.#.attn1.to_out.0"}, false},
    {"blocks.#.mlp.fc1", {"transformer_blocks.#.ff.net.0.proj"}, false},
    {"blocks.#.mlp.fc2", {"transformer_blocks.#.ff.net.2"}, false},
    {"blocks.#.adaLN_modulation.1", {"transformer_blocks.#.norm1.linear"}, false},
    {"final_layer.adaLN_modulation.1", {"proj_out_1"}, false},
    {"final_layer.linear", {"proj_out_2"}, false},
};

const char nl_spelling_diffusers[] = "diffusers", nl_spelling_repa[] = "REPA";
const char nl_spelling_dig[] = "DiG";
const char nl_spelling_lightning[] = "LightningDiT", nl_spelling_lightning_rope[] = "LightningDiT";

enum { PARTS = 3 };

/* A name taken apart. */
typedef struct nl_spelled {
    const struct name_row *row;
    int part;
    int block;          /* 0 without '#' */
    const char *suffix; /* in the name */
} nl_spelled;

static int parts_of(const struct name_row *row)
{
    int parts = 1;
    while (parts < PARTS && row->diffusers[parts])
        parts++;
    return parts;
}

/* Whether the name is the stem with a suffix. */
static bool match(const char *stem, const char *name, nl_spelled *spelled)
{
    spelled->block = 0;
    for (; *stem; stem++) {
        if (*stem != '#') {
            if (*name++ != *stem)
                return false;
            continue;
        }
        int digits = 0;
        while (digits < 5 && isdigit((unsigned char)name[digits]))
            spelled->block = 10 * spelled->block + (name[digits++] - '0');
        if (digits == 0 || digits == 5 || (name[0] == '0' && digits > 1))
            return false;
        name += digits;
    }
    spelled->suffix = name;
    return !*name || strcmp(name, ".weight") == 0 || strcmp(name, ".bias") == 0;
}

static bool take_apart(const char *name, bool diffusers, nl_spelled *spelled)
{
    for (int i = 0; i < NL_COUNT(rows); i++)
        for (int part = 0; part < (diffusers ? parts_of(&rows[i]) : 1); part++)
            if (match(diffusers ? rows[i].diffusers[part] : rows[i].dit, name, spelled)) {
                spelled->row = &rows[i];
                spelled->part = part;
                return true;
            }
    return false;
}

static void put_together(const char *stem, int block, const char *suffix, char name[NL_NAME_SIZE])
{
    const char *number = strchr(stem, '#');
    if (number)
        snprintf(name, NL_NAME_SIZE, "%.*s%d%s%s", (int)(number - stem), stem, block, number + 1,
                 suffix);
    else
        snprintf(name, NL_NAME_SIZE, "%s%s", stem, suffix);
}

int nl_diffusers_parts(const char *name)
{
    nl_spelled spelled;
    return take_apart(name, false, &spelled) ? parts_of(spelled.row) : 0;
}

bool nl_diffusers_copied(const char *name)
{
    nl_spelled spelled;
    return take_apart(name, false, &spelled) && spelled.row->copied;
}

void nl_diffusers_name(const char *name, int part, int block, char text[NL_NAME_SIZE])
{
    nl_spelled spelled;
    text[0] = '\0';
    if (take_apart(name, false, &spelled))
        put_together(spelled.row->diffusers[part], spelled.row->copied ? block : spelled.block,
                     spelled.suffix, text);
}

/* ---- From diffusers' names to ours */

typedef struct nl_renaming {
    nl_checkpoint *checkpoint; /* its entries still have their names */
    nl_problems problems;
    nl_entry *entries; /* the new ones */
    int64_t count;
    nl_entry *parts; /* room for those that are put together */
    char *names;     /* room for the names */
} nl_renaming;

static const nl_entry *find_spelled(const nl_renaming *renaming, const nl_spelled *spelled,
                                    int part, int block, char name[NL_NAME_SIZE])
{
    put_together(spelled->row->diffusers[part], block, spelled->suffix, name);
    return nl_checkpoint_find(renaming->checkpoint, name);
}

static nl_entry *add_entry(nl_renaming *renaming, const nl_spelled *spelled, const nl_entry *entry)
{
    nl_entry *added = &renaming->entries[renaming->count];
    char *name = renaming->names + renaming->count * NL_NAME_SIZE;
    renaming->count++;
    put_together(spelled->row->dit, spelled->block, spelled->suffix, name);
    *added = *entry;
    added->name = name;
    return added;
}

/* A copy in a later block: it has to be one. */
static nl_status compare_copy(nl_renaming *renaming, const nl_spelled *spelled,
                              const nl_entry *entry)
{
    char name[NL_NAME_SIZE];
    const nl_entry *first = find_spelled(renaming, spelled, 0, 0, name);
    bool equal = false;
    nl_status status = NL_OK;
    if (first)
        status = nl_entry_equal(renaming->checkpoint, first, entry, &equal);
    if (status == NL_OK && !equal)
        nl_problem(&renaming->problems, "%s %s %s", entry->name,
                   first ? "differs from" : "is there without", name);
    return status;
}

static bool same_rows(const nl_entry *a, const nl_entry *b)
{
    return a->ndim == b->ndim && a->ndim > 0 &&
           memcmp(a->shape + 1, b->shape + 1, (size_t)(a->ndim - 1) * sizeof(a->shape[0])) == 0;
}

/* to_q comes before the other two by name or is missing: then each of these says so. */
static void assemble(nl_renaming *renaming, const nl_spelled *spelled)
{
    char name[NL_NAME_SIZE];
    nl_entry *parts = renaming->parts;
    int64_t height = 0, count = 0;
    for (int part = 0; part < PARTS; part++) {
        const nl_entry *entry = find_spelled(renaming, spelled, part, spelled->block, name);
        if (!entry) {
            nl_problem(&renaming->problems, "%s is missing", name);
            return;
        }
        parts[part] = *entry;
        if (!same_rows(&parts[0], entry) || !nl_add_size(height, entry->shape[0], &height) ||
            !nl_add_size(count, nl_entry_count(entry), &count)) {
            nl_problem(&renaming->problems, "%s does not have the shape of %s", name,
                       parts[0].name);
            return;
        }
    }
    nl_entry *added = add_entry(renaming, spelled, &parts[0]);
    added->shape[0] = height;
    added->data = NULL;
    added->strides = NULL;
    added->scale = NULL;
    added->parts = parts;
    added->part_count = PARTS;
    renaming->parts += PARTS;
}

static nl_status rename_entry(nl_renaming *renaming, const nl_entry *entry)
{
    nl_spelled spelled;
    char name[NL_NAME_SIZE];
    if (!take_apart(entry->name, true, &spelled)) {
        renaming->entries[renaming->count] = *entry; /* to be named as unexpected */
        renaming->count++;
        return NL_OK;
    }
    if (spelled.row->copied && spelled.block > 0)
        return compare_copy(renaming, &spelled, entry);
    if (parts_of(spelled.row) == 1)
        add_entry(renaming, &spelled, entry);
    else if (spelled.part == 0)
        assemble(renaming, &spelled);
    else if (!find_spelled(renaming, &spelled, 0, spelled.block, name))
        nl_problem(&renaming->problems, "%s is there without %s", entry->name, name);
    return NL_OK;
}

nl_status nl_dit_rename(nl_checkpoint *checkpoint)
{
    nl_context *context = checkpoint->context;
    nl_renaming renaming = {.checkpoint = checkpoint};
    nl_status status;
    if (!nl_checkpoint_find(checkpoint, "transformer_blocks.0.attn1.to_q.weight")) {
        status = nl_lightning_read(checkpoint);
        if (status == NL_OK)
            status = nl_dig_turn(checkpoint);
        return status == NL_OK ? nl_repa_turn(checkpoint) : status;
    }
    int64_t count = checkpoint->count;
    NL_TRY(NL_OWN_ARRAY(checkpoint, "names of tensors", count * NL_NAME_SIZE, &renaming.names));
    NL_TRY(NL_OWN_ARRAY(checkpoint, "parts of tensors", count, &renaming.parts));
    NL_TRY(NL_NEW_ARRAY(context, "a checkpoint's table", count, &renaming.entries));
    for (int64_t i = 0; i < count; i++)
        NL_TRY(rename_entry(&renaming, &checkpoint->entries[i]));
    if (renaming.problems.count > 0) {
        status = nl_fail(context, NL_ERROR_INPUT, "%s: %d %s not of a DiT:%s", checkpoint->path,
                         renaming.problems.count,
                         nl_plural(renaming.problems.count, "tensor is", "tensors are"),
                         renaming.problems.text);
        goto cleanup;
    }
    nl_free(context, checkpoint->entries);
    checkpoint->entries = renaming.entries;
    checkpoint->count = renaming.count;
    checkpoint->spelling = nl_spelling_diffusers;
    renaming.entries = NULL;
    NL_TRY(nl_checkpoint_sort(checkpoint));
cleanup:
    nl_free(context, renaming.entries);
    return status;
}

/* The average of a training checkpoint of ours, the second set of weights beside the others, and the names of our own. */
static nl_status settle(nl_checkpoint **checkpoint, bool average)
{
    nl_status status = NL_OK;
    if (average && nl_checkpoint_has_average(*checkpoint))
        NL_TRY(nl_checkpoint_select(*checkpoint, "ema"));
    NL_TRY(nl_checkpoint_set_aside(*checkpoint, NL_ONE_STEP_KEY));
    NL_TRY(nl_dit_rename(*checkpoint));
    return NL_OK;
cleanup:
    nl_checkpoint_close(*checkpoint);
    *checkpoint = NULL;
    return status;
}

nl_status nl_dit_open(nl_context *context, const char *path, const char *key,
                      nl_checkpoint **checkpoint)
{
    nl_status status = nl_checkpoint_open_key(context, path, key, checkpoint);
    return status == NL_OK ? settle(checkpoint, !key) : status;
}

nl_status nl_dit_open_memory(nl_context *context, const char *name, const void *data, int64_t size,
                             nl_checkpoint **checkpoint)
{
    nl_status status = nl_checkpoint_open_memory(context, name, data, size, checkpoint);
    return status == NL_OK ? settle(checkpoint, true) : status;
}
