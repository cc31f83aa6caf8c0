/* SPDX-License-Identifier: MIT */
/* Where data files lie: a folder given, the environment, the user's own, the installation, the source tree. */
#include <dlfcn.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "nl_io.h"
#include "nl_pipeline.h"

const char nl_shipped_model[] = "nalasit-s2-256.safetensors";
const char nl_shipped_autoencoder[] = "tae.safetensors";

enum { FOLDERS = 8, FOLDER_SIZE = PATH_MAX };

/* The file's name becomes `data`, seen from its folder; "" when that is unknown. */
static void go_beside(char folder[FOLDER_SIZE], const char *data)
{
    char *slash = strrchr(folder, '/');
    if (slash && (size_t)(slash - folder) + strlen(data) + 1 <= FOLDER_SIZE)
        strcpy(slash, data);
    else
        folder[0] = '\0';
}

static void find_program(char path[FOLDER_SIZE])
{
    ssize_t length = readlink("/proc/self/exe", path, FOLDER_SIZE - 1);
    path[length > 0 ? length : 0] = '\0';
}

/* Of an installation that was moved: bin/../share/nalagen beside the program. */
static void beside_program(char folder[FOLDER_SIZE])
{
    find_program(folder);
    go_beside(folder, "/../share/nalagen");
}

/* ... or beside the library, in another's program: lib/../share/nalagen, or from lib/x86_64-linux-gnu. */
static void beside_library(char folder[FOLDER_SIZE], const char *data)
{
    char program[FOLDER_SIZE];
    Dl_info info;
    find_program(program);
    if (!dladdr(&nl_shipped_model, &info) || !info.dli_fname || !realpath(info.dli_fname, folder) ||
        !strcmp(folder, program))
        folder[0] = '\0';
    go_beside(folder, data);
}

/* $XDG_DATA_HOME/nalagen, or ~/.local/share/nalagen; "" when neither is known. */
static void users_own(char *folder, size_t size)
{
    const char *data = getenv("XDG_DATA_HOME"), *home = getenv("HOME");
    bool given = data && data[0] == '/', known = given || (home && home[0] == '/');
    int length = known ? snprintf(folder, size, "%s%s/nalagen", given ? data : home,
                                  given ? "" : "/.local/share")
                       : 0;
    if (length <= 0 || (size_t)length >= size)
        folder[0] = '\0';
}

typedef struct nl_data_folders {
    char own[FOLDER_SIZE], moved[3][FOLDER_SIZE];
    const char *paths[FOLDERS]; /* NULL or "": none */
} nl_data_folders;

static void find_folders(const char *first, nl_data_folders *f)
{
    users_own(f->own, sizeof(f->own));
    beside_program(f->moved[0]);
    beside_library(f->moved[1], "/../share/nalagen");
    beside_library(f->moved[2], "/../../share/nalagen");
    const char *const paths[FOLDERS] = {
        first,       getenv("NALAGEN_WEIGHTS"),       f->own, f->moved[0], f->moved[1], f->moved[2],
        NL_DATA_DIR, NL_SOURCE_DIR "/weights/shipped"};
    memcpy(f->paths, paths, sizeof(paths));
}

nl_status nl_find_data(nl_context *context, const char *folder, const char *name, char **path)
{
    nl_data_folders f;
    find_folders(folder, &f);
    *path = NULL;
    for (int i = 0; i < FOLDERS; i++) {
        if (!f.paths[i] || !f.paths[i][0])
            continue;
        nl_status status = nl_path_join(context, f.paths[i], name, path);
        if (status != NL_OK || nl_path_exists(*path))
            return status;
        nl_free(context, *path);
        *path = NULL;
    }
    return NL_OK;
}

/* Joins to what is there with a comma, as far as there is room. */
static void add(char *text, size_t size, const char *piece)
{
    char *end = text + strlen(text);
    if ((size_t)(end - text) + strlen(piece) + sizeof(", ") <= size)
        strcpy(end > text ? stpcpy(end, ", ") : end, piece);
}

nl_status nl_data_missing(nl_context *context, const char *what, const char *folder,
                          const char *const *names, const char *advice)
{
    nl_data_folders f;
    char sought[1024] = "", where[2048] = "";
    find_folders(folder, &f);
    for (int i = 0; names[i]; i++)
        add(sought, sizeof(sought), names[i]);
    for (int i = 0; i < FOLDERS; i++)
        if (f.paths[i] && f.paths[i][0] &&
            (f.paths[i] == f.own || nl_path_is_folder(f.paths[i]))) /* the user's own may be made */
            add(where, sizeof(where), f.paths[i]);
    return nl_fail(context, NL_ERROR_INPUT,
                   "%s was not found\n  looked for: %s\n  in: %s\n  %s; docs/downloads.md says "
                   "where published files come from",
                   what, sought, where, advice);
}
