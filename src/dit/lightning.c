/* SPDX-License-Identifier: MIT */
/*
 * LightningDiT's checkpoints: a SiT in time and prediction, under the public names, with SwiGLU, RMSNorm and rotary positions,
 * whose cosines and sines lie in the file (feat_rope). They are computed here for any grid; what differs from that is refused.
 */
#include <math.h>
#include <string.h>
#include <strings.h>

#include "params.h"

static const char prefix[] = "feat_rope.";
static const char *const tables[] = {"feat_rope.freqs_cos", "feat_rope.freqs_sin"};

/* By the file's name, where it has no rotary positions. */
static bool is_named_so(const nl_checkpoint *checkpoint)
{
    const char *slash = strrchr(checkpoint->path, '/');
    return strcasestr(slash ? slash + 1 : checkpoint->path, "lightningdit") != NULL;
}

static nl_status refuse(const nl_checkpoint *checkpoint, const char *what)
{
    return nl_fail(checkpoint->context, NL_ERROR_INPUT, "%s: a LightningDiT with %s",
                   checkpoint->path, what);
}

/* Each value stands twice, for both elements of a pair. */
static nl_status check_tables(const nl_checkpoint *checkpoint)
{
    nl_context *context = checkpoint->context;
    const nl_entry *first = nl_checkpoint_find(checkpoint, tables[0]);
    nl_status status = NL_OK;
    float *room = NULL;
    int64_t tokens = first && first->ndim == 2 ? first->shape[0] : 0;
    int64_t size = tokens ? first->shape[1] : 0, side = llround(sqrt((double)tokens)), count;
    if (tokens < 1 || size < 4 || size % 4 || side * side != tokens || size > 4096 ||
        !nl_mul_size(tokens, size, &count))
        return refuse(checkpoint, "feat_rope of another shape than [tokens, head size]");
    NL_TRY(NL_NEW_ARRAY(context, "tables of angles", 2 * count, &room));
    float *found = room, *table = room + count;
    nl_rope_table(side, side, size, table);
    for (int part = 0; part < NL_COUNT(tables); part++) {
        const nl_entry *entry = nl_checkpoint_find(checkpoint, tables[part]);
        if (!entry || entry->ndim != 2 || entry->shape[0] != tokens || entry->shape[1] != size)
            NL_TRY(refuse(checkpoint, "half of feat_rope"));
        NL_TRY(nl_entry_read(checkpoint, entry, found));
        for (int64_t i = 0; i < count; i++) {
            float expected = table[i / size * size + part * size / 2 + i % size / 2];
            if (fabsf(found[i] - expected) > 1e-2f) /* as far as bf16 goes */
                NL_TRY(refuse(checkpoint, "rotary positions of another kind than its code's"));
        }
    }
cleanup:
    nl_free(context, room);
    return status;
}

nl_status nl_lightning_read(nl_checkpoint *checkpoint)
{
    const nl_entry *patches = nl_checkpoint_find(checkpoint, "x_embedder.proj.weight");
    const nl_entry *adaln = nl_checkpoint_find(checkpoint, "blocks.0.adaLN_modulation.1.weight");
    bool rope = nl_checkpoint_find(checkpoint, tables[0]) != NULL;
    int64_t kept = 0;
    if (!patches || (!rope && !is_named_so(checkpoint)) ||
        nl_checkpoint_metadata(checkpoint, "nalagen"))
        return NL_OK;
    if (adaln && adaln->ndim == 2 && adaln->shape[0] == 4 * adaln->shape[1])
        return refuse(checkpoint,
                      "wo_shift, modulations without shifts, which nalagen does not have");
    if (rope)
        NL_CHECK(check_tables(checkpoint));
    for (int64_t i = 0; i < checkpoint->count; i++)
        if (strncmp(checkpoint->entries[i].name, prefix, strlen(prefix)) != 0)
            checkpoint->entries[kept++] = checkpoint->entries[i];
    checkpoint->spelling = rope ? nl_spelling_lightning_rope : nl_spelling_lightning;
    checkpoint->count = kept;
    return NL_OK;
}
