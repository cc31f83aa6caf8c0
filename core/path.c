/* SPDX-License-Identifier: MIT */
/* Paths: what exists, what lies within what, folders made with their parents, names joined. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "nl_io.h"

bool nl_path_exists(const char *path)
{
    struct stat info;
    return stat(path, &info) == 0;
}

bool nl_path_is_folder(const char *path)
{
    struct stat info;
    return stat(path, &info) == 0 && S_ISDIR(info.st_mode);
}

/* Shortens a path to its parent, in place. false: it has none. */
static bool to_parent(char *path)
{
    char *slash = strrchr(path, '/');
    if (!strcmp(path, ".") || !strcmp(path, "/") || !*path)
        return false;
    if (!slash)
        strcpy(path, ".");
    else
        slash[slash == path] = '\0';
    return true;
}

/* Whether the path, as far as it is there and with its links followed, leads into the folder or to it. A link that leads
 * nowhere leads out. */
bool nl_path_is_within(const char *path, const char *folder)
{
    struct stat info;
    char *outer = realpath(folder, NULL), *part = strdup(path), *inner = NULL;
    bool nowhere = false;
    while (part && !nowhere && !(inner = realpath(part, NULL)))
        nowhere = lstat(part, &info) == 0 || !to_parent(part);
    size_t length = outer && strcmp(outer, "/") ? strlen(outer) : 0;
    bool into = outer && inner && !strncmp(inner, outer, length) &&
                (inner[length] == '/' || inner[length] == '\0');
    free(outer);
    free(part);
    free(inner);
    return into;
}

bool nl_path_stays_in(const char *path, const char *folder)
{
    for (const char *part = path; *part; part += strcspn(part, "/"), part += strspn(part, "/"))
        if (!strncmp(part, "..", 2) && (part[2] == '/' || part[2] == '\0'))
            return false;
    return nl_path_is_within(path, folder);
}

nl_status nl_make_folder(nl_context *context, const char *path)
{
    char *part = NULL;
    nl_status status = NL_OK;
    if (path[0] == '\0')
        return nl_fail(context, NL_ERROR_USAGE, "the name of a folder is empty");
    NL_TRY(nl_strdup(context, path, &part));
    for (char *end = part + 1;; end++) {
        if (*end != '/' && *end != '\0')
            continue;
        char saved = *end;
        *end = '\0';
        int reason = mkdir(part, 0777) == 0 ? 0 : errno;
        if (reason && !nl_path_is_folder(part)) {
            bool file = nl_path_exists(part), nowhere = !file && reason == EEXIST;
            NL_TRY(nl_fail(context, NL_ERROR_WRITE, "%s: folder %s cannot be made: %s", path, part,
                           nowhere ? "it is a link that leads nowhere"
                                   : strerror(file ? ENOTDIR : reason)));
        }
        *end = saved;
        if (saved == '\0')
            break;
    }
cleanup:
    nl_free(context, part);
    return status;
}

nl_status nl_make_parent(nl_context *context, const char *path)
{
    const char *slash = strrchr(path, '/');
    char *folder = NULL;
    nl_status status = NL_OK;
    if (!slash || slash == path)
        return NL_OK;
    NL_TRY(nl_format(context, &folder, "%.*s", (int)(slash - path), path));
    NL_TRY(nl_make_folder(context, folder));
cleanup:
    nl_free(context, folder);
    return status;
}

nl_status nl_path_join(nl_context *context, const char *folder, const char *name, char **path)
{
    size_t length = strlen(folder);
    const char *separator = length == 0 || folder[length - 1] == '/' ? "" : "/";
    return nl_format(context, path, "%s%s%s", folder, separator, name);
}
