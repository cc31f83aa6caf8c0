/* SPDX-License-Identifier: MIT */
/* Threads that encode and write pictures while the next batch is sampled; reports stay in the pictures' order. */
#include "nl_writers.h"

#include <string.h>

#include "nl_failure.h"
#include "nl_thread.h"

enum { MAX_THREADS = 8, ROOM = 128 }; /* pictures on their way; two batches of a GPU */

typedef struct nl_place {
    nl_writing writing;
    uint8_t *rgb; /* of `writing`, owned */
    bool done;
} nl_place;

/* A ring: first <= next <= end count pictures since the beginning; number i lies at i % ROOM. */
struct nl_writers {
    nl_context *context;
    nl_status (*write)(void *user, const nl_writing *writing);
    nl_status (*report)(void *user, const nl_writing *writing);
    void *user;
    pthread_t threads[MAX_THREADS];
    int thread_count;
    pthread_mutex_t lock;
    pthread_cond_t work, written;
    int64_t first; /* not reported yet */
    int64_t next;  /* not taken by a thread yet */
    int64_t end;
    bool ending;
    nl_failure failure; /* the first one */
    nl_place places[ROOM];
};

/* With the lock. */
static void note(nl_writers *writers, nl_status status)
{
    if (writers->failure.status == NL_OK)
        nl_failure_keep(writers->context, status, &writers->failure);
}

static void free_place(nl_writers *writers, nl_place *place)
{
    nl_free(writers->context, place->rgb);
    nl_free(writers->context, place->writing.path);
    cJSON_Delete(place->writing.facts);
    *place = (nl_place){0};
}

static void *work(void *user)
{
    nl_writers *writers = user;
    pthread_mutex_lock(&writers->lock);
    for (;;) {
        while (writers->next == writers->end && !writers->ending)
            pthread_cond_wait(&writers->work, &writers->lock);
        if (writers->next == writers->end)
            break;
        nl_place *place = &writers->places[writers->next++ % ROOM];
        bool drop = writers->failure.status != NL_OK;
        pthread_mutex_unlock(&writers->lock);
        nl_status status = drop ? NL_CANCELLED : writers->write(writers->user, &place->writing);
        pthread_mutex_lock(&writers->lock);
        place->done = true;
        note(writers, status);
        pthread_cond_signal(&writers->written);
    }
    pthread_mutex_unlock(&writers->lock);
    return NULL;
}

nl_status nl_writers_create(nl_context *context, int threads,
                            nl_status (*write)(void *user, const nl_writing *writing),
                            nl_status (*report)(void *user, const nl_writing *writing), void *user,
                            nl_writers **writers)
{
    nl_writers *made;
    nl_status status = NL_NEW(context, "writers", &made);
    *writers = NULL;
    if (status != NL_OK)
        return status;
    made->context = context;
    made->write = write;
    made->report = report;
    made->user = user;
    pthread_mutex_init(&made->lock, NULL);
    pthread_cond_init(&made->work, NULL);
    pthread_cond_init(&made->written, NULL);
    for (int i = 0; i < NL_MIN(threads, MAX_THREADS); i++)
        if (nl_start_thread(&made->threads[made->thread_count], work, made) == 0)
            made->thread_count++;
    *writers = made;
    return NL_OK;
}

/* Reports the first pictures on their way as far as they are written; with `wait`, waits until at most `most` are on
 * their way. */
static nl_status advance(nl_writers *writers, bool wait, int64_t most)
{
    pthread_mutex_lock(&writers->lock);
    while (writers->first < writers->end) {
        nl_place *place = &writers->places[writers->first % ROOM];
        if (!place->done && (!wait || writers->end - writers->first <= most))
            break;
        if (!place->done) {
            pthread_cond_wait(&writers->written, &writers->lock);
            continue;
        }
        nl_status status = writers->failure.status;
        pthread_mutex_unlock(&writers->lock);
        if (status == NL_OK)
            status = writers->report(writers->user, &place->writing);
        free_place(writers, place);
        pthread_mutex_lock(&writers->lock);
        writers->first++;
        note(writers, status);
    }
    nl_status status = nl_failure_tell(writers->context, &writers->failure);
    pthread_mutex_unlock(&writers->lock);
    return status;
}

/* In this thread, after all that went before. */
static nl_status write_here(nl_writers *writers, nl_place *place)
{
    nl_status status = advance(writers, true, 0);
    if (status == NL_OK)
        status = writers->write(writers->user, &place->writing);
    if (status == NL_OK)
        status = writers->report(writers->user, &place->writing);
    free_place(writers, place);
    return status;
}

nl_status nl_writers_put(nl_writers *writers, const nl_writing *writing)
{
    nl_place place = {.writing = *writing};
    size_t bytes = 3 * (size_t)writing->height * (size_t)writing->width;
    if (writers->thread_count == 0 ||
        NL_NEW_ARRAY(writers->context, "a picture on its way to its file", bytes, &place.rgb) !=
            NL_OK)
        return write_here(writers, &place);
    memcpy(place.rgb, writing->rgb, bytes);
    place.writing.rgb = place.rgb;
    nl_status status = advance(writers, true, ROOM - 1);
    if (status != NL_OK) {
        free_place(writers, &place);
        return status;
    }
    pthread_mutex_lock(&writers->lock);
    writers->places[writers->end++ % ROOM] = place;
    pthread_cond_signal(&writers->work);
    pthread_mutex_unlock(&writers->lock);
    return advance(writers, false, 0);
}

nl_status nl_writers_report(nl_writers *writers)
{
    return advance(writers, false, 0);
}

nl_status nl_writers_end(nl_writers **writers)
{
    nl_writers *w = *writers;
    *writers = NULL;
    if (!w)
        return NL_OK;
    nl_status status = advance(w, true, 0);
    pthread_mutex_lock(&w->lock);
    w->ending = true;
    pthread_cond_broadcast(&w->work);
    pthread_mutex_unlock(&w->lock);
    for (int i = 0; i < w->thread_count; i++)
        pthread_join(w->threads[i], NULL);
    pthread_cond_destroy(&w->written);
    pthread_cond_destroy(&w->work);
    pthread_mutex_destroy(&w->lock);
    nl_free(w->context, w);
    return status;
}
