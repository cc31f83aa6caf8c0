/* SPDX-License-Identifier: MIT */
/* Pictures encoded, decoded and written, a batch at a time; how much they have lost. */
#include "nl_reconstruct.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "nl_image.h"
#include "nl_npz.h"
#include "nl_pictures.h"

enum { BATCH = 16 };

typedef struct nl_reconstruction {
    nl_context *context;
    const nl_reconstruct_options *options;
    nl_reconstruct_result *result;
    nl_pictures *pictures;
    nl_npz *npz; /* where an archive is written */
    bool folder;
    float *latents;
    uint8_t *rgb; /* what comes back */
    int64_t latent_room, rgb_room;
    double sum; /* of the ratios */
} nl_reconstruction;

double nl_psnr(const uint8_t *a, const uint8_t *b, int64_t count)
{
    int64_t squares = 0; /* at most 2^30 bytes of 255^2 each */
    for (int64_t i = 0; i < count; i++)
        squares += (int64_t)(a[i] - b[i]) * (a[i] - b[i]);
    return squares ? 10 * log10(255. * 255 * (double)count / (double)squares) : INFINITY;
}

/* ---- Where they go */

static bool ends_in(const char *path, const char *suffix)
{
    size_t length = strlen(path), end = strlen(suffix);
    return length > end && !strcasecmp(path + length - end, suffix);
}

/* "a/b.jpg" becomes "a/b.jpg.png", so that no two files have one name. */
static nl_status output_of(const nl_reconstruction *work, int64_t index, char **path)
{
    const char *out = work->options->out, *name = nl_pictures_name(work->pictures, index);
    size_t length = strlen(out);
    if (!work->folder)
        return nl_strdup(work->context, out, path);
    return nl_format(work->context, path, "%s%s%s%s", out, out[length - 1] == '/' ? "" : "/", name,
                     ends_in(name, ".png") ? "" : ".png");
}

static nl_status open_archive(nl_reconstruction *work)
{
    const nl_reconstruct_options *options = work->options;
    nl_context *context = work->context;
    nl_picture_size size = nl_pictures_size(work->pictures);
    nl_status status = NL_OK;
    char *parameters = NULL;
    if (!options->force && nl_path_exists(options->out))
        return nl_fail(context, NL_ERROR_WRITE, "%s is there already: use --force to overwrite it",
                       options->out);
    NL_TRY(nl_format(context, &parameters,
                     "{\"version\": \"%s\", \"reconstructed_by\": \"%s\", \"pictures\": %lld, "
                     "\"size\": [%d, %d]}",
                     nl_version(), options->vae_sha256,
                     (long long)nl_pictures_count(work->pictures), size.height, size.width));
    nl_npz_options archive = {.path = options->out,
                              .count = nl_pictures_count(work->pictures),
                              .height = size.height,
                              .width = size.width,
                              .parameters = parameters,
                              .force = options->force};
    NL_TRY(nl_npz_open(context, &archive, &work->npz));
cleanup:
    nl_free(context, parameters);
    return status;
}

static nl_status open_output(nl_reconstruction *work)
{
    const nl_reconstruct_options *options = work->options;
    nl_context *context = work->context;
    nl_pictures_kind kind = nl_pictures_get_kind(work->pictures);
    size_t length = strlen(options->out);
    bool archive = ends_in(options->out, ".npz");
    bool folder = nl_path_is_folder(options->out) || (length && options->out[length - 1] == '/');
    if (kind == NL_PICTURES_ARCHIVE && archive)
        return open_archive(work);
    if (kind == NL_PICTURES_ARCHIVE || archive)
        return nl_fail(context, NL_ERROR_USAGE, "%s: expected the same kind as %s: %s",
                       options->out, options->in,
                       archive ? "pictures of an archive alone go into an archive"
                               : "a name that ends in .npz");
    work->folder = folder || kind == NL_PICTURES_FOLDER;
    if (!work->folder && !ends_in(options->out, ".png"))
        return nl_fail(context, NL_ERROR_USAGE,
                       "%s: expected a name that ends in .png, or a folder (ending in /)",
                       options->out);
    if (kind == NL_PICTURES_FOLDER && nl_path_is_within(options->out, options->in))
        return nl_fail(context, NL_ERROR_USAGE,
                       "%s lies in %s and would be taken for a part of it the next time: choose a "
                       "folder elsewhere",
                       options->out, options->in);
    return work->folder ? nl_make_folder(context, options->out) : NL_OK;
}

static nl_status write_picture(const nl_reconstruction *work, int64_t index, int height, int width,
                               const uint8_t *rgb)
{
    nl_context *context = work->context;
    nl_status status = NL_OK;
    char *path = NULL;
    if (work->npz)
        return nl_npz_write(work->npz, index, 0, rgb);
    NL_TRY(output_of(work, index, &path));
    if (!work->options->force && nl_path_exists(path))
        NL_TRY(nl_fail(context, NL_ERROR_WRITE, "%s is there already: use --force to overwrite it",
                       path));
    NL_TRY(nl_make_parent(context, path));
    NL_TRY(nl_png_write(context, path, work->options->force, rgb, height, width, NULL));
cleanup:
    nl_free(context, path);
    return status;
}

/* Threads compress. The first failure is the one that is told. */
static nl_status write_batch(const nl_reconstruction *work, const nl_picture_batch *batch)
{
    int64_t bytes = 3 * batch->height * batch->width;
    nl_status failed = NL_OK;
#pragma omp parallel for num_threads(work->context->device->threads) schedule(dynamic)
    for (int64_t i = 0; i < batch->count; i++) {
        nl_status status = write_picture(work, batch->first + i, (int)batch->height,
                                         (int)batch->width, work->rgb + i * bytes);
        if (status != NL_OK) {
#pragma omp critical(nl_reconstruct_failed)
            failed = status;
        }
    }
    return failed;
}

/* ---- The work */

static nl_status make_room(nl_reconstruction *work, int64_t latents, int64_t bytes)
{
    nl_context *context = work->context;
    nl_status status = NL_OK;
    if (latents > work->latent_room) {
        nl_free(context, work->latents);
        work->latents = NULL;
        work->latent_room = 0;
        NL_TRY(NL_NEW_ARRAY(context, "latents", latents, &work->latents));
        work->latent_room = latents;
    }
    if (bytes > work->rgb_room) {
        nl_free(context, work->rgb);
        work->rgb = NULL;
        work->rgb_room = 0;
        NL_TRY(NL_NEW_ARRAY(context, "reconstructed pictures", bytes, &work->rgb));
        work->rgb_room = bytes;
    }
cleanup:
    return status;
}

static void compare(nl_reconstruction *work, const nl_picture_batch *batch)
{
    nl_reconstruct_result *result = work->result;
    int64_t bytes = 3 * batch->height * batch->width;
    for (int64_t i = 0; i < batch->count; i++) {
        double ratio = nl_psnr(batch->rgb + i * bytes, work->rgb + i * bytes, bytes);
        result->count++;
        result->exact += isinf(ratio);
        if (isinf(ratio))
            continue;
        work->sum += ratio;
        if (ratio >= result->worst) /* which is NaN at first */
            continue;
        const char *name = nl_pictures_name(work->pictures, batch->first + i);
        result->worst = ratio;
        result->worst_index = batch->first + i;
        snprintf(result->worst_name, sizeof(result->worst_name), "%s", name ? name : "");
    }
}

static nl_status check_size(const nl_reconstruction *work, const nl_picture_batch *batch)
{
    int factor = nl_vae_factor(work->options->vae);
    const char *name = nl_pictures_name(work->pictures, batch->first);
    if (batch->height % factor == 0 && batch->width % factor == 0)
        return NL_OK;
    return nl_fail(work->context, NL_ERROR_INPUT,
                   "%s%s%s: %lld x %lld pixels, and the autoencoder takes multiples of %d: give a "
                   "size to fit pictures to (--size)",
                   work->options->in, name ? ": " : "", name ? name : "", (long long)batch->width,
                   (long long)batch->height, factor);
}

static nl_status take(void *user, const nl_picture_batch *batch)
{
    nl_reconstruction *work = user;
    nl_vae *vae = work->options->vae;
    nl_status status = NL_OK;
    NL_TRY(check_size(work, batch));
    int64_t factor = nl_vae_factor(vae), rows = batch->height / factor,
            columns = batch->width / factor;
    NL_TRY(make_room(work, batch->count * nl_vae_latent_channels(vae) * rows * columns,
                     batch->count * 3 * batch->height * batch->width));
    NL_TRY(nl_vae_encode_pictures(vae, batch->rgb, batch->count, batch->height, batch->width,
                                  work->latents));
    NL_TRY(nl_check_cancelled(work->context));
    NL_TRY(nl_vae_decode_pictures(vae, work->latents, batch->count, rows, columns, work->rgb));
    NL_TRY(write_batch(work, batch));
    compare(work, batch);
    nl_progress progress = {.stage = "reconstructing",
                            .image = batch->first + batch->count,
                            .images = nl_pictures_count(work->pictures),
                            .batch = batch->count};
    NL_TRY(nl_report_progress(work->context, &progress));
cleanup:
    return status;
}

nl_status nl_reconstruct(nl_context *context, const nl_reconstruct_options *options,
                         nl_reconstruct_result *result)
{
    nl_reconstruction work = {.context = context, .options = options, .result = result};
    nl_status status = NL_OK;
    bool finished;
    *result = (nl_reconstruct_result){.mean = NAN, .worst = NAN, .worst_index = -1};
    int factor = nl_vae_factor(options->vae);
    if (options->height % factor || options->width % factor)
        NL_TRY(nl_fail(context, NL_ERROR_USAGE,
                       "--size %dx%d: the autoencoder takes multiples of %d", options->height,
                       options->width, factor));
    NL_TRY(nl_pictures_open(context, options->in, context->device->threads, &work.pictures));
    nl_pictures_fit(work.pictures, options->height, options->width, options->turn);
    NL_TRY(open_output(&work));
    nl_picture_source source = nl_pictures_source(work.pictures);
    NL_TRY(source.run(source.user, options->batch ? options->batch : BATCH, take, &work));
    if (result->count > result->exact)
        result->mean = work.sum / (double)(result->count - result->exact);
    if (work.npz)
        NL_TRY(nl_npz_close(&work.npz, &finished));
cleanup:
    nl_npz_abandon(&work.npz);
    nl_pictures_close(work.pictures);
    nl_free(context, work.latents);
    nl_free(context, work.rgb);
    return status;
}
