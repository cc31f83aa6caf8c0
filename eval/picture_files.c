/* SPDX-License-Identifier: MIT */
/* Pictures written as a PNG, into a folder or into an archive. */
#include "nl_picture_files.h"

#include <string.h>
#include <strings.h>

#include "nl_image.h"
#include "nl_thread.h"
#include "ops.h"

static bool ends_in(const char *path, const char *suffix)
{
    size_t length = strlen(path), end = strlen(suffix);
    return length > end && !strcasecmp(path + length - end, suffix);
}

static nl_status refuse(const nl_picture_files *files, const char *path)
{
    return nl_fail(files->context, NL_ERROR_WRITE,
                   "%s is there already: use --force to overwrite it", path);
}

nl_status nl_picture_files_set(nl_context *context, const char *out, bool folder, bool force,
                               nl_picture_files *files)
{
    folder = folder || nl_path_is_folder(out) || out[strlen(out) - 1] == '/';
    *files = (nl_picture_files){.context = context,
                                .out = out,
                                .force = force,
                                .folder = folder,
                                .archive = ends_in(out, ".npz")};
    if (files->folder || files->archive || ends_in(out, ".png"))
        return NL_OK;
    return nl_fail(context, NL_ERROR_USAGE,
                   "%s: expected a name that ends in .png or .npz, or a folder (ending in /)", out);
}

nl_status nl_picture_files_begin(nl_picture_files *files, int64_t count, int height, int width,
                                 const char *parameters)
{
    nl_npz_options archive = {.path = files->out,
                              .count = count,
                              .height = height,
                              .width = width,
                              .parameters = parameters,
                              .force = files->force};
    if (files->archive && !files->force && nl_path_exists(files->out))
        return refuse(files, files->out);
    if (files->archive)
        return nl_npz_open(files->context, &archive, &files->npz);
    if (files->folder)
        NL_CHECK(nl_make_folder(files->context, files->out));
    if (!files->force) /* otherwise they may take the place of others */
        NL_CHECK(nl_check_space_for_files(files->context, files->out, count,
                                          3 * (int64_t)height * width));
    return NL_OK;
}

nl_status nl_picture_files_path(const nl_picture_files *files, const char *name, char **path)
{
    const char *out = files->out;
    if (!files->folder)
        return nl_strdup(files->context, out, path);
    return nl_format(files->context, path, "%s%s%s%s", out, out[strlen(out) - 1] == '/' ? "" : "/",
                     name, ends_in(name, ".png") ? "" : ".png");
}

static nl_status write_one(const nl_picture_files *files, const char *name, int height, int width,
                           const uint8_t *rgb)
{
    nl_context *context = files->context;
    nl_status status;
    char *path = NULL;
    NL_TRY(nl_picture_files_path(files, name, &path));
    if (!files->force && nl_path_exists(path))
        NL_TRY(refuse(files, path));
    NL_TRY(nl_make_parent(context, path));
    NL_TRY(nl_png_write(context, path, files->force, rgb, height, width, NULL));
cleanup:
    nl_free(context, path);
    return status;
}

nl_status nl_picture_files_write(const nl_picture_files *files, const nl_picture_batch *batch,
                                 nl_picture_namer *name, void *user)
{
    int64_t bytes = 3 * batch->height * batch->width;
    nl_status failed = NL_OK;
    int team = nl_team(files->context, files->context->device->threads);
#pragma omp parallel for num_threads(team) schedule(dynamic)
    for (int64_t i = 0; i < batch->count; i++) {
        char room[32];
        const uint8_t *rgb = batch->rgb + i * bytes;
        nl_status status = files->npz ? nl_npz_write(files->npz, batch->first + i, 0, rgb)
                                      : write_one(files, name(user, batch->first + i, room),
                                                  (int)batch->height, (int)batch->width, rgb);
        if (status != NL_OK) {
#pragma omp critical(nl_picture_files_failed)
            failed = status;
        }
    }
    return failed;
}

nl_status nl_picture_files_end(nl_picture_files *files)
{
    bool finished;
    return files->npz ? nl_npz_close(&files->npz, &finished) : NL_OK;
}

void nl_picture_files_abandon(nl_picture_files *files)
{
    nl_npz_abandon(&files->npz);
}
