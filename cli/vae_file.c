/* SPDX-License-Identifier: MIT */
/* The autoencoder of a command that has no model: the one that ships, or a file of one or two halves. */
#include "nl_encode_command.h"

#include <string.h>

#include "nl_pipeline.h"

/* sha256 of the file; of two halves, that of their hashes one behind the other. */
static nl_status hash_vae(nl_vae_file *v)
{
    char other[65];
    nl_sha256 sha;
    NL_CHECK(nl_checkpoint_sha256(v->file, v->sha256));
    if (!v->other)
        return NL_OK;
    NL_CHECK(nl_checkpoint_sha256(v->other, other));
    bool in_order = strcmp(v->file->path, v->other->path) < 0;
    nl_sha256_init(&sha);
    nl_sha256_update(&sha, in_order ? v->sha256 : other, 64);
    nl_sha256_update(&sha, in_order ? other : v->sha256, 64);
    nl_sha256_hex(&sha, v->sha256);
    return NL_OK;
}

nl_status nl_vae_file_open(nl_context *context, const char *name, nl_vae_file *v)
{
    nl_status status = NL_OK;
    *v = (nl_vae_file){.file = NULL};
    if (!strcmp(name, "none"))
        return NL_OK;
    NL_TRY(nl_open_autoencoder(context, name, &v->file));
    NL_TRY(nl_open_other_half(context, name, &v->other));
    NL_TRY(nl_vae_load(context->device, v->file, v->other, 1, 0, &v->vae));
    NL_TRY(hash_vae(v));
cleanup:
    return status;
}

void nl_vae_file_close(nl_vae_file *v)
{
    nl_vae_destroy(v->vae);
    nl_checkpoint_close(v->file);
    nl_checkpoint_close(v->other);
    *v = (nl_vae_file){.file = NULL};
}
