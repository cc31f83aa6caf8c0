/* SPDX-License-Identifier: MIT */
/* make_model PATH [dit]: a small SiT or DiT of five classes on 16 x 16 pixels, every parameter random (initial weights would
 * predict zero), for tests of the command line that make many pictures. */
#include <stdio.h>

#include "random_model.h"

int main(int argc, char **argv)
{
    nl_context *context = NULL;
    nl_status status = NL_ERROR_USAGE;
    if (argc != 2 && !(argc == 3 && !strcmp(argv[2], "dit")))
        return status;
    NL_TRY(nl_context_create(&(nl_context_options){.device = "cpu"}, &context));
    NL_TRY(random_model_write(context, argc == 3 ? RANDOM_DIT : RANDOM_SIT, argv[1]));
cleanup:
    if (status != NL_OK && context)
        fprintf(stderr, "make_model: %s\n", nl_last_error(context));
    nl_context_destroy(context);
    return status;
}
