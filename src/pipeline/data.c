#include <stdlib.h>

#include "nl_io.h"
#include "nl_pipeline.h"

const char nl_shipped_model[] = "nalasit-s2-imagenette-256.safetensors";

nl_status nl_find_data(nl_context *context, const char *folder, const char *name, char **path)
{
    const char *folders[] = {folder, getenv("NALAGEN_WEIGHTS"), NL_DATA_DIR,
                             NL_SOURCE_DIR "/weights"};
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
