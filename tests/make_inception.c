/* SPDX-License-Identifier: MIT */
/* make_inception PATH [partial]: an FID network of seeded weights, whole or without its last features, for `nalagen
 * eval --weights` where the published file is not at hand. Its numbers compare devices and programs, not models. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "seeded_inception.h"

int main(int argc, char **argv)
{
    nl_context *context = NULL;
    uint8_t *file = NULL;
    int64_t size;
    nl_status status = NL_ERROR_USAGE;
    bool whole = argc == 2;
    if (!whole && (argc != 3 || strcmp(argv[2], "partial") != 0)) {
        fprintf(stderr, "usage: make_inception PATH [partial]\n");
        return status;
    }
    NL_TRY(nl_context_create(&(nl_context_options){.device = "cpu"}, &context));
    NL_TRY(seeded_inception(context->device, whole, &file, &size));
    FILE *to = fopen(argv[1], "wb");
    if (!to || fwrite(file, 1, (size_t)size, to) != (size_t)size || fclose(to))
        NL_TRY(nl_fail(context, NL_ERROR_WRITE, "%s: not written", argv[1]));
cleanup:
    if (status != NL_OK && context)
        fprintf(stderr, "make_inception: %s\n", nl_last_error(context));
    free(file);
    nl_context_destroy(context);
    return status;
}
