/* SPDX-License-Identifier: MIT */
/* The cache of sha256: whatever stands in it, or in its place, what is told is 64 digits: those that it holds, or the file's. */
#include <dirent.h>

#include "fuzz_files.h"
#include "nl_pipeline.h"

static char entry[512], real[65]; /* of a file that is worth one */

static void make_file(nl_context *context, const char *path)
{
    char folder[256];
    int fd = open(path, O_WRONLY | O_CREAT, 0600);
    FUZZ_CHECK(fd >= 0 && ftruncate(fd, (8 << 20) + 1) == 0 && close(fd) == 0);
    setenv("XDG_CACHE_HOME", fuzz_folder, 1);
    FUZZ_CHECK(nl_file_sha256(context, path, real) == NL_OK);
    DIR *cache = opendir(fuzz_path("nalagen/sha256", folder));
    FUZZ_CHECK(cache);
    for (struct dirent *e; (e = readdir(cache));)
        if (e->d_name[0] != '.')
            snprintf(entry, sizeof(entry), "%s/%s", folder, e->d_name);
    closedir(cache);
    FUZZ_CHECK(entry[0]);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    nl_context *context = fuzz_context();
    int64_t used = context->memory_used;
    char path[256], hex[65] = "";
    fuzz_path("model", path);
    if (!entry[0])
        make_file(context, path);
    bool folder = size > 0 && data[0] == 0xff, kept;
    remove(entry);
    if (folder)
        FUZZ_CHECK(mkdir(entry, 0700) == 0);
    else
        fuzz_write(entry + strlen(fuzz_folder) + 1, data, size);
    nl_status status = nl_file_sha256(context, path, hex);
    kept = !folder && size >= 64 && !memcmp(hex, data, 64);
    FUZZ_CHECK(status == NL_OK && strlen(hex) == 64 && strspn(hex, "0123456789abcdef") == 64);
    FUZZ_CHECK(kept || !strcmp(hex, real));
    FUZZ_CHECK(nl_file_sha256(context, path, hex) == NL_OK && (kept || !strcmp(hex, real)));
    fuzz_end(context, used, status);
    return 0;
}
