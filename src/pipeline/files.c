/* SPDX-License-Identifier: MIT */
/* Which file stands for a network when a folder is named. */
#include <errno.h>
#include <string.h>

#include "model.h"
#include "nl_run.h"

nl_status nl_find_named(nl_context *context, const char *path, char **found)
{
    *found = NULL;
    if (!strchr(path, '/') && !nl_path_exists(path)) {
        nl_status status = nl_find_data(context, NULL, path, found);
        if (status != NL_OK || *found)
            return status;
    }
    return nl_strdup(context, path, found);
}

/* Allocated: path, or its folder `part` when it is that of a whole diffusers pipeline. NL_ERROR_INPUT: nothing there. */
static nl_status find_part(nl_context *context, const char *path, const char *part, char **found)
{
    nl_status status = NL_OK;
    char *inner = NULL, *named = NULL;
    NL_TRY(nl_find_named(context, path, &named));
    if (!nl_path_exists(named) && errno == ENOENT) {
        NL_TRY(strchr(path, '/')
                   ? nl_fail(context, NL_ERROR_INPUT,
                             "%s: there is no such file or folder; docs/downloads.md says where "
                             "published weights come from",
                             path)
                   : nl_data_missing(context, path, NULL, (const char *const[]){path, NULL},
                                     "it is no file or folder here either"));
    }
    NL_TRY(nl_path_join(context, named, part, &inner));
    *found = nl_path_is_folder(inner) ? inner : named;
cleanup:
    if (status != NL_OK || *found != inner)
        nl_free(context, inner);
    if (status != NL_OK || *found != named)
        nl_free(context, named);
    return status;
}

nl_status nl_backbone_path(nl_context *context, const char *path, char **found)
{
    if (nl_path_is_folder(path) && nl_is_run(context, path)) {
        nl_status status = nl_run_find_model(context, path, found);
        if (status == NL_OK)
            nl_log(context, NL_LOG_INFO, "%s: taking %s", path, *found);
        return status;
    }
    return find_part(context, path, "transformer", found);
}

nl_status nl_open_backbone(nl_context *context, const char *path, const char *key,
                           nl_checkpoint **checkpoint)
{
    char *found = NULL;
    *checkpoint = NULL;
    nl_status status = nl_backbone_path(context, path, &found);
    if (status == NL_OK)
        status = nl_dit_open(context, found, key, checkpoint);
    nl_free(context, found);
    return status;
}

nl_status nl_open_autoencoder(nl_context *context, const char *path, nl_checkpoint **checkpoint)
{
    char *found = NULL;
    nl_status status;
    *checkpoint = NULL;
    if (!strcmp(path, "tiny")) {
        NL_TRY(nl_find_data(context, NULL, nl_shipped_autoencoder, &found));
        if (!found)
            NL_TRY(nl_data_missing(context, "the tiny autoencoder", NULL,
                                   (const char *const[]){nl_shipped_autoencoder, NULL},
                                   "give a file with --vae FILE"));
    } else {
        NL_TRY(find_part(context, path, "vae", &found));
    }
    NL_TRY(nl_checkpoint_open(context, found, checkpoint));
cleanup:
    nl_free(context, found);
    return status;
}
