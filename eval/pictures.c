/* SPDX-License-Identifier: MIT */
/* Pictures of a folder, a file or an archive in batches, decoded ahead by threads. */
#include "nl_failure.h"
#include "nl_image.h"
#include "nl_pictures.h"
#include "nl_thread.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

enum { QUEUE = 64, MAX_SIDE = 1 << 14, SLOTS = 3 };

/* A batch that is being read, waits, or is being used. */
typedef struct picture_slot {
    nl_picture_batch batch;
    nl_failure failure; /* of reading it */
    uint8_t *buffer;
    int64_t bytes; /* of the buffer */
} picture_slot;

struct nl_pictures {
    nl_context *context;
    char *path;
    int64_t count;
    int64_t next, end; /* index of the picture that is read next, and behind the last one */
    int64_t passed;    /* pictures of the archive's stream that were read, wanted or not */
    nl_arrays *arrays, *own_arrays; /* own_arrays: to be closed with the pictures */
    nl_array_stream *stream;
    int64_t height, width; /* of the array's pictures */
    int threads;
    int fit_height, fit_width; /* 0: as they are */
    bool turn;
    bool one;                   /* a file alone */
    char **files;               /* of a folder */
    int64_t capacity, decoded;  /* decoded: files that have gone into the queue */
    int64_t lying, first_lying; /* files that EXIF says to turn */
    nl_image queue[QUEUE];
    int queued;
    /* The reader fills slots in turn; at most SLOTS are taken. */
    pthread_t reader;
    bool reading;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    picture_slot slots[SLOTS];
    int64_t filled, used; /* batches read, and given back by who takes them */
    int64_t most;
    bool given; /* a batch is with who takes them */
    bool stop;
};

static nl_status reserve(nl_context *context, picture_slot *slot, int64_t bytes)
{
    if (bytes <= slot->bytes)
        return NL_OK;
    nl_free(context, slot->buffer);
    slot->buffer = NULL;
    slot->bytes = 0;
    nl_status status = NL_NEW_ARRAY(context, "pictures", bytes, &slot->buffer);
    if (status == NL_OK) {
        slot->bytes = bytes;
    }
    return status;
}

/* ---- Folders */

static nl_status add_file(nl_pictures *p, char *file)
{
    if (p->count == p->capacity) {
        char **files;
        int64_t capacity = p->capacity ? 2 * p->capacity : 1024;
        nl_status status = NL_NEW_ARRAY(p->context, "names of pictures", capacity, &files);
        if (status != NL_OK) {
            nl_free(p->context, file);
            return status;
        }
        if (p->count)
            memcpy(files, p->files, (size_t)p->count * sizeof(char *));
        nl_free(p->context, p->files);
        p->files = files;
        p->capacity = capacity;
    }
    p->files[p->count++] = file;
    return NL_OK;
}

static nl_status take_file(void *user, const char *name)
{
    nl_pictures *p = user;
    char *path = NULL;
    nl_status status = nl_path_join(p->context, p->path, name, &path);
    return status == NL_OK ? add_file(p, path) : status;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

static nl_status open_folder(nl_pictures *p)
{
    nl_picture_walk walk = {.take = take_file, .user = p};
    NL_CHECK(nl_walk_pictures(p->context, p->path, "", true, &walk));
    nl_picture_walk_warn(p->context, p->path, &walk);
    if (p->count == 0)
        return nl_fail(p->context, NL_ERROR_INPUT,
                       "%s: no PNG, JPEG or WebP in this folder or below it", p->path);
    qsort(p->files, (size_t)p->count, sizeof(char *), by_name);
    return NL_OK;
}

/* Turned and fitted, as was asked for. */
static nl_status prepare(const nl_pictures *p, nl_image *image)
{
    if (p->turn)
        NL_CHECK(nl_image_turn(p->context, image));
    if (p->fit_height)
        NL_CHECK(nl_image_fit(p->context, p->fit_height, p->fit_width, image));
    return NL_OK;
}

/* Decodes the next files behind those in the queue. */
static nl_status fill_queue(nl_pictures *p, int64_t most)
{
    int64_t lying = 0, first = INT64_MAX;
    int want = (int)NL_MIN(NL_MIN(most, QUEUE) - p->queued, p->end - p->decoded);
    nl_status failed = NL_OK;
    int team = nl_team(p->context, p->threads);
#pragma omp parallel for num_threads(team) schedule(dynamic) reduction(+ : lying) reduction(min : first)
    for (int i = 0; i < want; i++) {
        nl_image *image = &p->queue[p->queued + i];
        nl_status status = nl_image_read(p->context, p->files[p->decoded + i], image);
        bool lies = status == NL_OK && image->orientation > 1 && !p->turn;
        if (status != NL_OK)
            *image = (nl_image){0};
        else
            status = prepare(p, image);
        if (status != NL_OK) {
#pragma omp critical(nl_pictures_failed)
            failed = status;
        }
        if (lies) {
            lying++;
            first = NL_MIN(first, p->decoded + i);
        }
    }
    p->queued += NL_MAX(want, 0);
    p->decoded += NL_MAX(want, 0);
    if (lying && !p->lying)
        p->first_lying = first;
    p->lying += lying;
    if (want > 0 && p->decoded == p->end && p->lying)
        nl_log(p->context, NL_LOG_WARNING,
               "%s: %lld %s taken as stored, not turned as EXIF says (the first: %s)", p->path,
               (long long)p->lying, nl_plural(p->lying, "picture", "pictures"),
               p->files[p->first_lying]);
    return failed;
}

static nl_status next_of_folder(nl_pictures *p, int64_t most, picture_slot *slot)
{
    nl_status status;
    int count = 0;
    NL_TRY(fill_queue(p, most));
    if (p->queued == 0)
        goto cleanup;
    int height = p->queue[0].height, width = p->queue[0].width;
    while (count < NL_MIN(most, p->queued) && p->queue[count].height == height &&
           p->queue[count].width == width)
        count++;
    int64_t bytes = 3 * (int64_t)height * width;
    NL_TRY(reserve(p->context, slot, bytes * count));
    for (int i = 0; i < count; i++) {
        memcpy(slot->buffer + i * bytes, p->queue[i].rgb, (size_t)bytes);
        nl_image_free(p->context, &p->queue[i]);
    }
    p->queued -= count;
    memmove(p->queue, p->queue + count, (size_t)p->queued * sizeof(nl_image));
    memset(p->queue + p->queued, 0, (size_t)count * sizeof(nl_image));
    slot->batch.height = height;
    slot->batch.width = width;
cleanup:
    slot->batch.count = count;
    return status;
}

/* ---- Archives */

static nl_status open_array(nl_pictures *p)
{
    nl_array array;
    NL_CHECK(nl_array_open(p->arrays, "arr_0", &array, &p->stream));
    const int64_t *s = array.shape;
    char found[128];
    if (array.dtype != NL_U8 || array.ndim != 4 || s[3] != 3 || s[0] < 1 || s[1] < 1 || s[2] < 1 ||
        s[1] > MAX_SIDE || s[2] > MAX_SIDE)
        return nl_fail(p->context, NL_ERROR_INPUT,
                       "%s: arr_0 is %s %s, expected U8 [N, height, width, 3]: RGB pictures%s",
                       p->path, nl_dtype_name(array.dtype),
                       nl_shape_text(array.ndim, s, found, sizeof(found)),
                       array.ndim == 4 && s[1] == 3 ? " (not channels first)" : "");
    p->count = s[0];
    p->height = s[1];
    p->width = s[2];
    return NL_OK;
}

/* In place: the pictures of the array before, the fitted ones after. */
static nl_status fit_array(nl_pictures *p, int64_t count, picture_slot *slot)
{
    nl_status status = NL_OK;
    int64_t bytes = 3 * p->height * p->width, fitted = 3 * (int64_t)p->fit_height * p->fit_width;
    uint8_t *stored = NULL;
    nl_image image = {0};
    NL_TRY(NL_NEW_ARRAY(p->context, "pictures", bytes * count, &stored));
    memcpy(stored, slot->buffer, (size_t)(bytes * count));
    for (int64_t i = 0; i < count; i++) {
        image = (nl_image){.height = (int)p->height, .width = (int)p->width};
        NL_TRY(NL_NEW_ARRAY(p->context, "a picture", bytes, &image.rgb));
        memcpy(image.rgb, stored + i * bytes, (size_t)bytes);
        NL_TRY(nl_image_fit(p->context, p->fit_height, p->fit_width, &image));
        memcpy(slot->buffer + i * fitted, image.rgb, (size_t)fitted);
        nl_image_free(p->context, &image);
    }
cleanup:
    nl_image_free(p->context, &image);
    nl_free(p->context, stored);
    return status;
}

static nl_status next_of_array(nl_pictures *p, int64_t most, picture_slot *slot)
{
    int64_t bytes = 3 * p->height * p->width, count = NL_MIN(most, p->end - p->next);
    nl_picture_size size = nl_pictures_size(p);
    NL_CHECK(
        reserve(p->context, slot, NL_MAX(bytes, 3 * (int64_t)size.height * size.width) * count));
    for (; p->passed < p->next; p->passed += NL_MIN(count, p->next - p->passed))
        NL_CHECK(
            nl_array_read(p->stream, slot->buffer, bytes * NL_MIN(count, p->next - p->passed)));
    NL_CHECK(nl_array_read(p->stream, slot->buffer, bytes * count));
    p->passed += count;
    if (p->fit_height)
        NL_CHECK(fit_array(p, count, slot));
    slot->batch.height = size.height;
    slot->batch.width = size.width;
    slot->batch.count = count;
    return NL_OK;
}

/* ---- The thread that reads ahead */

/* The end is a batch without pictures. */
static nl_status read_batch(nl_pictures *p, picture_slot *slot)
{
    nl_status status = NL_OK;
    slot->batch = (nl_picture_batch){.first = p->next};
    if (p->next < p->end)
        status = p->arrays ? next_of_array(p, p->most, slot) : next_of_folder(p, p->most, slot);
    slot->batch.rgb = slot->buffer;
    p->next += slot->batch.count;
    return status;
}

static void *read_all(void *user)
{
    nl_pictures *p = user;
    for (bool more = true; more;) {
        pthread_mutex_lock(&p->lock);
        while (p->filled - p->used == SLOTS && !p->stop)
            pthread_cond_wait(&p->changed, &p->lock);
        picture_slot *slot = &p->slots[p->filled % SLOTS];
        more = !p->stop;
        pthread_mutex_unlock(&p->lock);
        if (!more)
            break;
        nl_failure_keep(p->context, read_batch(p, slot), &slot->failure);
        more = slot->failure.status == NL_OK && slot->batch.count > 0;
        pthread_mutex_lock(&p->lock);
        p->filled++;
        pthread_cond_signal(&p->changed);
        pthread_mutex_unlock(&p->lock);
    }
    return NULL;
}

static nl_status start_reading(nl_pictures *p, int64_t most)
{
    p->most = most;
    if (!p->end)
        p->end = p->count;
    int failed = nl_start_thread(&p->reader, read_all, p);
    if (failed)
        return nl_fail(p->context, NL_ERROR_MEMORY, "%s: no thread to read it: %s", p->path,
                       strerror(failed));
    p->reading = true;
    return NL_OK;
}

static void stop_reading(nl_pictures *p)
{
    if (!p->reading)
        return;
    pthread_mutex_lock(&p->lock);
    p->stop = true;
    pthread_cond_signal(&p->changed);
    pthread_mutex_unlock(&p->lock);
    pthread_join(p->reader, NULL);
    p->reading = false;
}

/* ---- Either */

static nl_status create(nl_context *context, const char *path, int threads, nl_pictures **out)
{
    nl_pictures *p = NULL;
    nl_status status;
    *out = NULL;
    NL_TRY(NL_NEW(context, "pictures", &p));
    p->context = context;
    p->threads = NL_MAX(threads, 1);
    NL_TRY(nl_strdup(context, path, &p->path));
    pthread_mutex_init(&p->lock, NULL);
    pthread_cond_init(&p->changed, NULL);
    *out = p;
    p = NULL;
cleanup:
    nl_free(context, p);
    return status;
}

/* Whether the file is a picture, by its content. */
static nl_status is_picture(nl_context *context, const char *path, bool *picture)
{
    nl_mapping file;
    NL_CHECK(nl_map_file(context, path, &file));
    *picture = nl_image_kind_of(file.data, file.size) != NL_IMAGE_NONE;
    nl_unmap(context, &file);
    return NL_OK;
}

static nl_status open_file(nl_pictures *p)
{
    char *path;
    nl_status status = nl_strdup(p->context, p->path, &path);
    p->one = true;
    return status == NL_OK ? add_file(p, path) : status;
}

nl_status nl_pictures_open(nl_context *context, const char *path, int threads, nl_pictures **out)
{
    nl_pictures *p = NULL;
    nl_status status;
    *out = NULL;
    NL_TRY(create(context, path, threads, &p));
    bool picture = false, folder = nl_path_is_folder(path);
    if (!folder)
        NL_TRY(is_picture(context, path, &picture));
    if (folder) {
        NL_TRY(open_folder(p));
    } else if (picture) {
        NL_TRY(open_file(p));
    } else {
        NL_TRY(nl_arrays_open(context, path, &p->own_arrays));
        p->arrays = p->own_arrays;
        NL_TRY(open_array(p));
    }
    *out = p;
    p = NULL;
cleanup:
    nl_pictures_close(p);
    return status;
}

nl_status nl_pictures_of(nl_context *context, const char *path, nl_arrays *arrays,
                         nl_pictures **out)
{
    nl_pictures *p = NULL;
    nl_status status;
    *out = NULL;
    NL_TRY(create(context, path, 1, &p));
    p->arrays = arrays;
    NL_TRY(open_array(p));
    *out = p;
    p = NULL;
cleanup:
    nl_pictures_close(p);
    return status;
}

void nl_pictures_close(nl_pictures *p)
{
    if (!p)
        return;
    nl_context *context = p->context;
    stop_reading(p);
    pthread_mutex_destroy(&p->lock);
    pthread_cond_destroy(&p->changed);
    for (int i = 0; i < SLOTS; i++)
        nl_free(context, p->slots[i].buffer);
    nl_array_close(p->stream);
    nl_arrays_close(p->own_arrays);
    for (int i = 0; i < QUEUE; i++)
        nl_image_free(context, &p->queue[i]);
    for (int64_t i = 0; p->files && i < p->count; i++)
        nl_free(context, p->files[i]);
    nl_free(context, p->files);
    nl_free(context, p->path);
    nl_free(context, p);
}

nl_pictures_kind nl_pictures_get_kind(const nl_pictures *p)
{
    return p->arrays ? NL_PICTURES_ARCHIVE : p->one ? NL_PICTURES_FILE : NL_PICTURES_FOLDER;
}

const char *nl_pictures_name(const nl_pictures *p, int64_t index)
{
    if (!p->files)
        return NULL;
    const char *slash = strrchr(p->path, '/'), *name = p->files[index];
    if (p->one)
        return slash ? name + (slash + 1 - p->path) : name;
    name += strlen(p->path);
    return name + strspn(name, "/");
}

void nl_pictures_fit(nl_pictures *p, int height, int width, bool turn)
{
    p->fit_height = height;
    p->fit_width = width;
    p->turn = turn;
}

/* Before the first batch: only these of the pictures come. */
static void select_range(nl_pictures *p, nl_picture_range range)
{
    p->next = p->decoded = range.first;
    p->end = range.first + range.count;
}

nl_picture_size nl_pictures_size(const nl_pictures *p)
{
    return p->fit_height ? (nl_picture_size){p->fit_height, p->fit_width}
                         : (nl_picture_size){(int)p->height, (int)p->width};
}

int64_t nl_pictures_count(const nl_pictures *p)
{
    return p->count;
}

nl_status nl_pictures_next(nl_pictures *p, int64_t most, nl_picture_batch *batch)
{
    nl_status status = NL_OK;
    *batch = (nl_picture_batch){.count = 0};
    if (!p->reading)
        NL_TRY(start_reading(p, most));
    pthread_mutex_lock(&p->lock);
    if (p->given) {
        p->given = false;
        p->used++;
        pthread_cond_signal(&p->changed);
    }
    while (p->filled == p->used)
        pthread_cond_wait(&p->changed, &p->lock);
    picture_slot *slot = &p->slots[p->used % SLOTS];
    status = nl_failure_tell(p->context, &slot->failure);
    if (status == NL_OK) /* after a failure or the end the reader is gone: the slot stays */
        *batch = slot->batch;
    p->given = batch->count > 0;
    pthread_mutex_unlock(&p->lock);
cleanup:
    return status;
}

static nl_status run(void *user, nl_picture_range range, int64_t most, nl_picture_taker take,
                     void *taker)
{
    nl_picture_batch batch;
    select_range(user, range);
    for (;;) {
        NL_CHECK(nl_pictures_next(user, most, &batch));
        if (batch.count == 0)
            return NL_OK;
        NL_CHECK(take(taker, &batch));
    }
    return NL_OK;
}

nl_picture_source nl_pictures_source(nl_pictures *p)
{
    return (nl_picture_source){.name = p->path, .count = p->count, .run = run, .user = p};
}
