/* SPDX-License-Identifier: MIT */
/* Pictures on their way from files to the encoder. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "encode.h"
#include "nl_random.h"
#include "nl_thread.h"

nl_status nl_chunk_create(const nl_encode_job *job, nl_chunk *chunk)
{
    nl_context *context = job->context;
    int64_t n = job->chunk_pictures;
    nl_status status;
    *chunk = (nl_chunk){0};
    NL_TRY(NL_NEW_SIZED(context, "pictures to encode", n, (size_t)job->picture_bytes, &chunk->rgb));
    NL_TRY(NL_NEW_ARRAY(context, "pictures to encode", n, &chunk->numbers));
    NL_TRY(NL_NEW_ARRAY(context, "pictures to encode", n, &chunk->status));
    NL_TRY(NL_NEW_ARRAY(context, "pictures to encode", n, &chunk->notes));
cleanup:
    return status;
}

void nl_chunk_free(nl_context *context, nl_chunk *chunk)
{
    nl_free(context, chunk->rgb);
    nl_free(context, chunk->numbers);
    nl_free(context, chunk->status);
    nl_free(context, chunk->notes);
    cJSON_Delete(chunk->broken);
    *chunk = (nl_chunk){0};
}

static void mirror(const uint8_t *rgb, int height, int width, uint8_t *to)
{
    for (int row = 0; row < height; row++, rgb += 3 * (int64_t)width)
        for (int x = width - 1; x >= 0; x--, to += 3)
            memcpy(to, rgb + 3 * (int64_t)x, 3);
}

/* The least side of a part, over the whole picture's: half of it, but the pixels of the file are enlarged at most 1.5
 * times, or, where the whole picture is enlarged already, 1.2 times as much as there. */
static double least_side(const nl_encode_job *job, const nl_image *image)
{
    const double least = 0.5, enlarged = 1.5, further = 1.2;
    double whole = fmax((double)job->height / image->height, (double)job->width / image->width);
    return fmin(fmax(least, whole / enlarged), 1 / further);
}

/* The whole picture, or a part of it: log2 of its side is u^1.5 times that of the least one, u and the place uniform, so
 * that large parts are more frequent. */
static nl_status fit(const nl_encode_job *job, int64_t number, nl_image *image,
                     nl_picture_note *note)
{
    int64_t picture = nl_encode_source(job, number), part = number / job->source->count;
    uint32_t words[4];
    nl_image_part cut;
    if (part == 0)
        return nl_image_fit(job->context, job->height, job->width, image);
    nl_philox(0, (uint64_t)picture, NL_STREAM_CROP, 4 * (uint64_t)part, words);
    double u = 0x1p-32 * words[0], least = least_side(job, image);
    NL_CHECK(nl_image_fit_part(job->context, job->height, job->width, pow(least, -u * sqrt(u)),
                               0x1p-32 * words[2], 0x1p-32 * words[1], image, &cut));
    note->crop[NL_CROP_SCALE] = (float)log2(cut.side);
    note->crop[NL_CROP_DOWN] = (float)cut.down;
    note->crop[NL_CROP_RIGHT] = (float)cut.right;
    note->limited = least > 0.5;
    return NL_OK;
}

/* One picture, fitted, and its mirror image where that is stored. */
static nl_status read_picture(const nl_encode_job *job, int64_t number, uint8_t *rgb,
                              nl_picture_note *note)
{
    nl_context *context = job->context;
    nl_image image = {0};
    char *name = NULL;
    nl_status status;
    int64_t picture = nl_encode_source(job, number);
    *note = (nl_picture_note){0};
    NL_TRY(nl_source_read(job->source, picture, &image));
    note->lying = image.orientation > 1;
    if (job->options->turn)
        NL_TRY(nl_image_turn(context, &image));
    status = fit(job, number, &image, note);
    if (status != NL_OK && nl_source_name(job->source, picture, &name) == NL_OK)
        nl_fail_in(context, status, "%s", name);
    NL_TRY(status);
    int64_t bytes = 3 * (int64_t)job->height * job->width;
    memcpy(rgb, image.rgb, (size_t)bytes);
    if (job->orientations == 2)
        mirror(rgb, job->height, job->width, rgb + bytes);
cleanup:
    nl_free(context, name);
    nl_image_free(context, &image);
    return status;
}

/* Notes a broken picture. The message of the context may be another thread's: the picture is read once more,
 * alone. */
static nl_status note_broken(const nl_encode_job *job, int64_t number, uint8_t *rgb, cJSON *broken)
{
    nl_context *context = job->context;
    char *name = NULL;
    nl_picture_note note;
    nl_status status = read_picture(job, number, rgb, &note);
    if (status != NL_ERROR_INPUT || job->options->strict)
        return status != NL_OK ? status
                               : nl_fail(context, NL_ERROR_INPUT,
                                         "picture %lld of %s was broken and now is not: "
                                         "is it being changed?",
                                         (long long)number, job->source->path);
    const char *message = nl_last_error(context);
    nl_log(context, NL_LOG_WARNING, "left out: %s", message);
    cJSON *pair = cJSON_CreateArray();
    NL_TRY(nl_source_name(job->source, nl_encode_source(job, number), &name));
    if (!pair || !cJSON_AddItemToArray(pair, cJSON_CreateString(name)) ||
        !cJSON_AddItemToArray(pair, cJSON_CreateString(message)) ||
        !cJSON_AddItemToArray(broken, pair)) {
        cJSON_Delete(pair);
        pair = NULL;
        NL_TRY(nl_fail(context, NL_ERROR_MEMORY, "no memory for the list of broken pictures"));
    }
    pair = NULL;
cleanup:
    cJSON_Delete(pair);
    nl_free(context, name);
    return status;
}

static nl_status count_lying(const nl_encode_job *job, int64_t number)
{
    nl_encode_result *result = job->result;
    char *name = NULL;
    if (number >= job->source->count) /* a crop of a picture that was counted */
        return NL_OK;
    if (!result->turned++) {
        NL_CHECK(nl_source_name(job->source, number, &name));
        snprintf(result->first_turned, sizeof(result->first_turned), "%s", name);
        nl_free(job->context, name);
    }
    return NL_OK;
}

nl_status nl_chunk_read(const nl_encode_job *job, nl_chunk *chunk)
{
    nl_status status = NL_OK;
    chunk->good = 0;
    cJSON_Delete(chunk->broken);
    chunk->broken = cJSON_CreateArray();
    if (!chunk->broken)
        return nl_fail(job->context, NL_ERROR_MEMORY, "no memory for a list");
    int team = nl_team(job->context, job->options->threads);
#pragma omp parallel for num_threads(team) schedule(dynamic)
    for (int64_t i = 0; i < chunk->count; i++)
        chunk->status[i] = read_picture(job, chunk->first + i, chunk->rgb + i * job->picture_bytes,
                                        &chunk->notes[i]);
    for (int64_t i = 0; i < chunk->count; i++) {
        uint8_t *to = chunk->rgb + chunk->good * job->picture_bytes;
        if (chunk->status[i] == NL_ERROR_INPUT) {
            NL_TRY(note_broken(job, chunk->first + i, to, chunk->broken));
            continue;
        }
        NL_TRY(chunk->status[i]);
        if (chunk->notes[i].lying)
            NL_TRY(count_lying(job, chunk->first + i));
        job->result->limited += chunk->notes[i].limited;
        if (chunk->good < i)
            memcpy(to, chunk->rgb + i * job->picture_bytes, (size_t)job->picture_bytes);
        chunk->notes[chunk->good] = chunk->notes[i];
        chunk->numbers[chunk->good++] = chunk->first + i;
    }
cleanup:
    return status;
}
