/* SPDX-License-Identifier: MIT */
/* Latents decoded and written, a batch at a time. */
#include "nl_decode.h"

#include <stdio.h>

#include "nl_latent_file.h"
#include "nl_picture_files.h"

enum { BATCH = 16, MOST_SIDE = 1 << 15 };

typedef struct nl_decoding {
    nl_context *context;
    const nl_decode_options *options;
    nl_latent_file latents;
    nl_picture_files files;
    float *x;     /* [batch, C, h, w] */
    uint8_t *rgb; /* [batch, h f, w f, 3] */
} nl_decoding;

static const char *name_of(void *user, int64_t index, char room[32])
{
    (void)user;
    snprintf(room, 32, "%06lld", (long long)index);
    return room;
}

static nl_status check(const nl_decoding *work, const nl_decode_result *result)
{
    const nl_latent_file *latents = &work->latents;
    int channels = nl_vae_latent_channels(work->options->vae);
    if (latents->channels != channels)
        return nl_fail(work->context, NL_ERROR_INPUT,
                       "%s: latents of %lld channels, and the autoencoder has %d: give theirs with "
                       "--vae",
                       latents->path, (long long)latents->channels, channels);
    if (result->height > MOST_SIDE || result->width > MOST_SIDE)
        return nl_fail(work->context, NL_ERROR_INPUT,
                       "%s: pictures of %d x %d pixels: expected at most %d a side", latents->path,
                       result->width, result->height, MOST_SIDE);
    if (latents->count > 1 && !work->files.folder && !work->files.archive)
        return nl_fail(work->context, NL_ERROR_USAGE,
                       "--out %s is one file and there are %lld pictures: use a folder (ending in "
                       "/) or an archive like out.npz",
                       work->options->out, (long long)latents->count);
    return NL_OK;
}

static nl_status report(const nl_decoding *work, const nl_picture_batch *batch)
{
    const nl_decode_options *options = work->options;
    nl_status status = NL_OK;
    char room[32], *path = NULL;
    for (int64_t i = 0; options->written && !work->files.archive && i < batch->count; i++) {
        NL_TRY(nl_picture_files_path(&work->files, name_of(NULL, batch->first + i, room), &path));
        NL_TRY(options->written(options->user, path));
        nl_free(work->context, path);
        path = NULL;
    }
cleanup:
    nl_free(work->context, path);
    return status;
}

static nl_status decode_all(nl_decoding *work, const nl_decode_result *result)
{
    const nl_decode_options *options = work->options;
    nl_latent_file *latents = &work->latents;
    int64_t most = NL_MIN(options->batch ? options->batch : BATCH, latents->count);
    int64_t each = latents->channels * latents->height * latents->width;
    NL_CHECK(NL_NEW_ARRAY(work->context, "latents", most * each, &work->x));
    NL_CHECK(NL_NEW_SIZED(work->context, "decoded pictures", most,
                          3 * (int64_t)result->height * result->width, &work->rgb));
    for (int64_t done = 0; done < latents->count; done += most) {
        nl_picture_batch batch = {.rgb = work->rgb,
                                  .first = done,
                                  .count = NL_MIN(most, latents->count - done),
                                  .height = result->height,
                                  .width = result->width};
        NL_CHECK(nl_check_cancelled(work->context));
        NL_CHECK(nl_latent_file_read(latents, batch.count, work->x));
        NL_CHECK(nl_vae_decode_rounded(options->vae, work->x, batch.count, latents->height,
                                       latents->width, options->rounding, work->rgb));
        NL_CHECK(nl_picture_files_write(&work->files, &batch, name_of, NULL));
        nl_progress progress = {.stage = "decoding",
                                .image = done + batch.count,
                                .images = latents->count,
                                .batch = batch.count};
        NL_CHECK(nl_report_progress(work->context, &progress));
        NL_CHECK(report(work, &batch));
    }
    NL_CHECK(nl_picture_files_end(&work->files));
    if (work->files.archive && options->written)
        NL_CHECK(options->written(options->user, options->out));
    return NL_OK;
}

nl_status nl_decode_file(nl_context *context, const nl_decode_options *options,
                         nl_decode_result *result)
{
    nl_decoding work = {.context = context, .options = options};
    nl_status status;
    *result = (nl_decode_result){0};
    NL_TRY(nl_picture_files_set(context, options->out, false, options->force, &work.files));
    NL_TRY(nl_latent_file_open(context, options->in, options->key, &work.latents));
    int factor = nl_vae_factor(options->vae);
    *result = (nl_decode_result){.count = work.latents.count,
                                 .height = (int)work.latents.height * factor,
                                 .width = (int)work.latents.width * factor};
    NL_TRY(check(&work, result));
    NL_TRY(nl_picture_files_begin(&work.files, result->count, result->height, result->width,
                                  options->about));
    NL_TRY(decode_all(&work, result));
cleanup:
    nl_picture_files_abandon(&work.files);
    nl_latent_file_close(&work.latents);
    nl_free(context, work.x);
    nl_free(context, work.rgb);
    return status;
}
