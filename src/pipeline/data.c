/* SPDX-License-Identifier: MIT */
/* Where shipped files lie: a folder given, the environment, the installation, the source tree. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "nl_io.h"
#include "nl_pipeline.h"

const char nl_shipped_model[] = "nalasit-s2-imagenette-256.safetensors";

/* Of an installation that was moved: bin/../share/nalagen beside the program. "" when unknown. */
static void beside_program(char *folder, size_t size)
{
    static const char data[] = "/../share/nalagen";
    ssize_t length = readlink("/proc/self/exe", folder, size - 1);
    folder[length > 0 ? length : 0] = '\0';
    char *slash = strrchr(folder, '/');
    if (slash && (size_t)(slash - folder) + sizeof(data) <= size)
        memcpy(slash, data, sizeof(data));
    else
        folder[0] = '\0';
}

nl_status nl_find_data(nl_context *context, const char *folder, const char *name, char **path)
{
    char moved[4096];
    const char *folders[] = {folder, getenv("NALAGEN_WEIGHTS"), moved, NL_DATA_DIR,
                             NL_SOURCE_DIR "/weights/shipped"};
    beside_program(moved, sizeof(moved));
    *path = NULL;
    for (int i = 0; i < NL_COUNT(folders); i++) {
        if (!folders[i] || !folders[i][0])
            continue;
        nl_status status = nl_path_join(context, folders[i], name, path);
        if (status != NL_OK || nl_path_exists(*path))
            return status;
        nl_free(context, *path);
        *path = NULL;
    }
    return NL_OK;
}
