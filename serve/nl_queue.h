/* SPDX-License-Identifier: MIT */
/*
 * Jobs of many clients for one device. Any thread puts jobs in, asks for their state, takes pictures and cancels; one
 * thread, whose device it is, makes the pictures, those of jobs that agree in one batch.
 *
 * What a job is made of (task, texts) does not change after nl_queue_put; what becomes of it is guarded by the queue.
 */
#ifndef NL_QUEUE_H
#define NL_QUEUE_H

#include <pthread.h>

#include "nl_task.h"

typedef enum nl_job_state {
    NL_JOB_QUEUED,
    NL_JOB_RUNNING,
    NL_JOB_DONE,
    NL_JOB_FAILED,
    NL_JOB_CANCELLED
} nl_job_state;
extern const char *const nl_job_state_names[]; /* ended by NULL */

/* ---- Models */

enum { NL_SIZES = 4 /* a model is loaded in at a time */ };

typedef struct nl_sized_model {
    int height, width; /* in pixels */
    nl_model *model;
    cJSON *facts;
    uint64_t used; /* the larger the later */
} nl_sized_model;

/* A model under the name that clients know; its first size stays. */
typedef struct nl_served_model {
    char name[128];
    nl_task_options options; /* of its loading */
    const nl_config *config; /* of its own size */
    int unit;                /* both sides of a picture are multiples of it */
    nl_sized_model sizes[NL_SIZES];
    int count; /* of sizes */
} nl_served_model;

/* ---- Jobs */

typedef struct nl_made_picture {
    uint8_t *rgb; /* [height, width, 3]; NULL before it is made */
    cJSON *facts;
    uint8_t *png; /* when it was asked for */
    size_t png_size;
    int label;
    int64_t index;
} nl_made_picture;

/* What a client asks for. */
typedef struct nl_wanted {
    nl_context *
        context; /* of all memory of the job, and of messages about what is wanted; without a device */
    nl_texts texts; /* that the task's options point to */
    nl_task task;
    int model;         /* number of it */
    int height, width; /* in pixels */
    int64_t preview_every;
    bool background; /* made when nothing else waits */
    bool webui;      /* came by A1111's interface, whose interrupt is for all that did */
} nl_wanted;

nl_status nl_wanted_create(nl_wanted *wanted);
void nl_wanted_free(nl_wanted *wanted);

typedef struct nl_queued_job {
    char id[33]; /* 128 random bits: whoever knows it may ask for it */
    nl_wanted wanted;
    int holders; /* threads that use it, and the queue itself */
    nl_job_state state;
    int64_t begun, done; /* pictures */
    int64_t steps, step; /* of the batch at work */
    uint64_t changes;    /* since the job was put */
    uint64_t previews;
    uint8_t *preview; /* PNG of the last one */
    size_t preview_size;
    double put, started, ended; /* seconds, of nl_seconds; 0: not yet */
    char error[512];            /* for its client: names no file */
    nl_status status;
    nl_made_picture *pictures; /* [task.count] */
    struct nl_queued_job *next;
} nl_queued_job;

typedef struct nl_queue_limits {
    int64_t jobs;     /* waiting and at work */
    int64_t pictures; /* of a job */
    int64_t side;     /* of a picture, in pixels */
    double seconds;   /* from the start of a job to its end */
    int64_t
        bytes; /* of the pictures of all jobs that are not over; of those that are over, as many again are kept */
    int batch; /* pictures at once; 0: as fits */
} nl_queue_limits;

typedef struct nl_queue nl_queue;

/* context: for what belongs to no device. */
nl_status nl_queue_create(nl_context *context, const nl_queue_limits *limits, nl_queue **queue);
/* No thread may be using it. */
void nl_queue_destroy(nl_queue *queue);
const nl_queue_limits *nl_queue_get_limits(const nl_queue *queue);

/* Before there are clients. name: as clients shall know it; options: its texts have to stay. */
nl_status nl_queue_add_model(nl_queue *queue, nl_context *device, const nl_task_options *options);
int nl_queue_models(const nl_queue *queue);
const nl_served_model *nl_queue_model(const nl_queue *queue, int i);
/* NULL: none of that name. */
const nl_served_model *nl_queue_find_model(const nl_queue *queue, const char *name, int *i);

/* Takes *wanted over in every case. NL_ERROR_USAGE: more than the limits allow; NL_ERROR_MEMORY: too much waits already, come
 * again; NL_CANCELLED: the server is stopping. *job is held. */
nl_status nl_queue_put(nl_queue *queue, nl_context *context, nl_wanted *wanted,
                       nl_queued_job **job);
/* Held; NULL: there is none (any more). */
nl_queued_job *nl_queue_find(nl_queue *queue, const char *id);
/* Once more, of a job that is held. */
void nl_queue_hold(nl_queue *queue, nl_queued_job *job);
void nl_queue_release(nl_queue *queue, nl_queued_job *job);
void nl_queue_cancel(nl_queue *queue, nl_queued_job *job);
/* Every job that is not over; webui: only those. */
void nl_queue_cancel_all(nl_queue *queue, bool webui);
/* Held: the job at work, or the first that waits, of those that came by A1111's interface; NULL: none. */
nl_queued_job *nl_queue_find_webui(nl_queue *queue);

/* Waits until the job has changed since *changes, at most so many seconds; whether it has. */
bool nl_queue_wait(nl_queue *queue, nl_queued_job *job, uint64_t *changes, double seconds);

/* Copies under the lock. */
typedef struct nl_job_look {
    nl_job_state state;
    nl_status status;
    int64_t done, count, step, steps;
    int64_t before; /* jobs that come first */
    uint64_t changes, previews;
    double waited, worked; /* seconds */
    char error[512];
} nl_job_look;
void nl_queue_look(nl_queue *queue, nl_queued_job *job, nl_job_look *look);

/* Picture i as a PNG that says how it was made, encoded when it is first asked for; owned by the job. NL_ERROR_INPUT: it
 * is not made. */
nl_status nl_queue_png(nl_queue *queue, nl_context *context, nl_queued_job *job, int64_t i,
                       const uint8_t **png, size_t *size);
/* All pictures of the job in one PNG (allocated) that says how they were made: animated, each for so many milliseconds, or, with 0, a
 * grid of so many columns. NL_ERROR_INPUT: they are not all made. */
nl_status nl_queue_whole(nl_queue *queue, nl_context *context, nl_queued_job *job, int64_t columns,
                         int64_t milliseconds, uint8_t **png, size_t *size);
/* What picture i says; the job's. NULL: it is not made. */
const cJSON *nl_queue_facts(nl_queue *queue, nl_queued_job *job, int64_t i);
/* A copy of the last preview, a PNG; NULL: there is none. */
nl_status nl_queue_preview(nl_queue *queue, nl_context *context, nl_queued_job *job, uint8_t **png,
                           size_t *size);

typedef struct nl_queue_state {
    int64_t queued, running, kept;
    int64_t pictures, jobs, batches; /* since the start */
    double busy;                     /* seconds of making pictures */
    bool stopping;
} nl_queue_state;
void nl_queue_state_of(nl_queue *queue, nl_queue_state *state);

/* ---- The thread of the device */

/* Makes pictures until nl_queue_stop and everything put before is over. */
nl_status nl_queue_work(nl_queue *queue, nl_context *device);
/* The progress callback of that context; user: the queue. */
bool nl_queue_progress(void *user, const nl_progress *progress);
/* Any thread: takes no more jobs. */
void nl_queue_stop(nl_queue *queue);

#endif
