/* SPDX-License-Identifier: MIT */
/* `nalagen encode`: pictures to training data; `decode`: latents to pictures; `reconstruct`: to latents and back. */
#ifndef NL_ENCODE_COMMAND_H
#define NL_ENCODE_COMMAND_H

#include "nl_options.h"
#include "nl_vae.h"

extern const nl_command nl_encode_command, nl_decode_command, nl_reconstruct_command;

/* An autoencoder without a model: loaded with scale 1 and shift 0. */
typedef struct nl_vae_file {
    nl_checkpoint *file, *other; /* other: of two halves */
    nl_vae *vae;                 /* NULL: "none" */
    char sha256[65];
} nl_vae_file;

/* name: a file or folder, "tiny" (the one that ships) or "none". Closed in every case. */
nl_status nl_vae_file_open(nl_context *context, const char *name, nl_vae_file *vae);
void nl_vae_file_close(nl_vae_file *vae);

#endif
