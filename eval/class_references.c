/* SPDX-License-Identifier: MIT */
/* References of the classes of a folder: one file for each folder in it. */
#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "nl_measure.h"

typedef struct nl_class_folders {
    nl_inception *net;
    const nl_metric_options *options;
    const char *pictures, *folder;
    bool overwrite;
    int64_t images;
} nl_class_folders;

/* Before the work. */
static nl_status check_out(nl_context *context, const char *path, bool overwrite)
{
    nl_status status = nl_writer_check(context, path);
    if (status == NL_OK && !overwrite && nl_path_exists(path))
        status = nl_fail(context, NL_ERROR_WRITE,
                         "%s is there already: use --force to overwrite it", path);
    return status;
}

/* Of the class folder `name`, unless it is none. */
static nl_status make_class(const nl_class_folders *all, const char *name, bool *made)
{
    nl_context *context = nl_inception_context(all->net);
    char *folder = NULL, *out = NULL;
    nl_status status;
    NL_TRY(nl_path_join(context, all->pictures, name, &folder));
    if (name[0] == '.' || !nl_path_is_folder(folder))
        goto cleanup;
    NL_TRY(nl_format(context, &out, "%s/%s.npz", all->folder, name));
    NL_TRY(check_out(context, out, all->overwrite));
    NL_TRY(nl_make_reference(all->net, all->options, folder, out, all->overwrite, all->images));
    *made = true;
cleanup:
    nl_free(context, folder);
    nl_free(context, out);
    return status;
}

nl_status nl_make_class_references(nl_inception *net, const nl_metric_options *options,
                                   const char *pictures, const char *folder, bool overwrite,
                                   int64_t images)
{
    const nl_class_folders all = {net, options, pictures, folder, overwrite, images};
    nl_context *context = nl_inception_context(net);
    struct dirent **entries = NULL;
    nl_status status = NL_OK;
    bool made = false;
    int count = scandir(pictures, &entries, NULL, alphasort);
    if (count < 0)
        NL_TRY(nl_fail(context, NL_ERROR_INPUT,
                       "%s: --per-class takes a folder with a folder for each class: %s", pictures,
                       strerror(errno)));
    NL_TRY(nl_make_folder(context, folder));
    for (int i = 0; i < count; i++)
        NL_TRY(make_class(&all, entries[i]->d_name, &made));
    if (!made)
        NL_TRY(nl_fail(context, NL_ERROR_INPUT, "%s: no folders of classes in it", pictures));
cleanup:
    for (int i = 0; i < count; i++)
        free(entries[i]);
    free(entries);
    return status;
}
