/* SPDX-License-Identifier: MIT */
/* Pictures encoded, decoded and written, a batch at a time; how much they have lost. */
#include "nl_reconstruct.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "nl_picture_files.h"

enum { BATCH = 16 };

typedef struct nl_reconstruction {
    nl_context *context;
    const nl_reconstruct_options *options;
    nl_reconstruct_result *result;
    nl_pictures *pictures;
    nl_picture_files files;
    float *latents;
    uint8_t *rgb; /* what comes back */
    int64_t latent_room, rgb_room;
    double sum; /* of the ratios */
} nl_reconstruction;

/* The ratio of two pictures of `count` bytes; infinity where they are equal. */
static double psnr(const uint8_t *a, const uint8_t *b, int64_t count)
{
    int64_t squares = 0; /* at most 2^30 bytes of 255^2 each */
    for (int64_t i = 0; i < count; i++)
        squares += (int64_t)(a[i] - b[i]) * (a[i] - b[i]);
    return squares ? 10 * log10(255. * 255 * (double)count / (double)squares) : INFINITY;
}

/* ---- Where they go */

static const char *name_of(void *user, int64_t index, char room[32])
{
    (void)room;
    return nl_pictures_name(((nl_reconstruction *)user)->pictures, index);
}

static nl_status open_archive(nl_reconstruction *work)
{
    const nl_reconstruct_options *options = work->options;
    nl_context *context = work->context;
    nl_picture_size size = nl_pictures_size(work->pictures);
    nl_status status = NL_OK;
    char *parameters = NULL;
    NL_TRY(nl_format(context, &parameters,
                     "{\"version\": \"%s\", \"reconstructed_by\": \"%s\", \"pictures\": %lld, "
                     "\"size\": [%d, %d]}",
                     nl_version(), options->vae_sha256,
                     (long long)nl_pictures_count(work->pictures), size.height, size.width));
    NL_TRY(nl_picture_files_begin(&work->files, nl_pictures_count(work->pictures), size.height,
                                  size.width, parameters));
cleanup:
    nl_free(context, parameters);
    return status;
}

static nl_status open_output(nl_reconstruction *work)
{
    const nl_reconstruct_options *options = work->options;
    nl_context *context = work->context;
    nl_picture_files *files = &work->files;
    nl_pictures_kind kind = nl_pictures_get_kind(work->pictures);
    NL_CHECK(nl_picture_files_set(context, options->out, kind == NL_PICTURES_FOLDER, options->force,
                                  files));
    if (kind == NL_PICTURES_ARCHIVE && files->archive)
        return open_archive(work);
    if (kind == NL_PICTURES_ARCHIVE || files->archive)
        return nl_fail(context, NL_ERROR_USAGE, "%s: expected the same kind as %s: %s",
                       options->out, options->in,
                       files->archive ? "pictures of an archive alone go into an archive"
                                      : "a name that ends in .npz");
    if (kind == NL_PICTURES_FOLDER && nl_path_is_within(options->out, options->in))
        return nl_fail(context, NL_ERROR_USAGE,
                       "%s lies in %s and would be taken for a part of it the next time: choose a "
                       "folder elsewhere",
                       options->out, options->in);
    return nl_picture_files_begin(files, nl_pictures_count(work->pictures), options->height,
                                  options->width, NULL);
}

/* ---- The work */

static nl_status make_room(nl_reconstruction *work, int64_t latents, int64_t bytes)
{
    nl_context *context = work->context;
    if (latents > work->latent_room) {
        nl_free(context, work->latents);
        work->latents = NULL;
        work->latent_room = 0;
        NL_CHECK(NL_NEW_ARRAY(context, "latents", latents, &work->latents));
        work->latent_room = latents;
    }
    if (bytes > work->rgb_room) {
        nl_free(context, work->rgb);
        work->rgb = NULL;
        work->rgb_room = 0;
        NL_CHECK(NL_NEW_ARRAY(context, "reconstructed pictures", bytes, &work->rgb));
        work->rgb_room = bytes;
    }
    return NL_OK;
}

static void compare(nl_reconstruction *work, const nl_picture_batch *batch)
{
    nl_reconstruct_result *result = work->result;
    int64_t bytes = 3 * batch->height * batch->width;
    for (int64_t i = 0; i < batch->count; i++) {
        double ratio = psnr(batch->rgb + i * bytes, work->rgb + i * bytes, bytes);
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
    NL_CHECK(check_size(work, batch));
    int64_t factor = nl_vae_factor(vae), rows = batch->height / factor,
            columns = batch->width / factor;
    NL_CHECK(make_room(work, batch->count * nl_vae_latent_channels(vae) * rows * columns,
                       batch->count * 3 * batch->height * batch->width));
    NL_CHECK(nl_vae_encode_pictures(vae, batch->rgb, batch->count, batch->height, batch->width,
                                    work->latents));
    NL_CHECK(nl_check_cancelled(work->context));
    NL_CHECK(nl_vae_decode_pictures(vae, work->latents, batch->count, rows, columns, work->rgb));
    nl_picture_batch made = *batch;
    made.rgb = work->rgb;
    NL_CHECK(nl_picture_files_write(&work->files, &made, name_of, work));
    compare(work, batch);
    nl_progress progress = {.stage = "reconstructing",
                            .image = batch->first + batch->count,
                            .images = nl_pictures_count(work->pictures),
                            .batch = batch->count};
    return nl_report_progress(work->context, &progress);
}

nl_status nl_reconstruct(nl_context *context, const nl_reconstruct_options *options,
                         nl_reconstruct_result *result)
{
    nl_reconstruction work = {.context = context, .options = options, .result = result};
    nl_status status = NL_OK;
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
    NL_TRY(source.run(source.user, NL_ALL_PICTURES(&source),
                      options->batch ? options->batch : BATCH, take, &work));
    if (result->count > result->exact)
        result->mean = work.sum / (double)(result->count - result->exact);
    NL_TRY(nl_picture_files_end(&work.files));
cleanup:
    nl_picture_files_abandon(&work.files);
    nl_pictures_close(work.pictures);
    nl_free(context, work.latents);
    nl_free(context, work.rgb);
    return status;
}
