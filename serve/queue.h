/* SPDX-License-Identifier: MIT */
/* The queue from inside: queue*.c only. */
#ifndef NL_QUEUE_INSIDE_H
#define NL_QUEUE_INSIDE_H

#include "nl_queue.h"

enum { NL_MODELS = 16 };

struct nl_queue {
    nl_context *context;
    nl_queue_limits limits;
    nl_served_model models[NL_MODELS];
    int model_count;
    pthread_mutex_t lock;
    pthread_cond_t changed; /* a job, of whoever waits for one */
    pthread_cond_t work;    /* there is some, or the end */
    nl_queued_job *jobs;    /* in the order in which they are served; ended ones too */
    int64_t promised;       /* bytes of pictures of jobs that are not over */
    int64_t kept;           /* bytes of pictures of jobs that are */
    nl_queue_state state;
    bool stopping;
    uint64_t uses; /* of sized models */
    struct nl_batch *batch;
};

/* The pictures at work. */
typedef struct nl_batch {
    nl_queue *queue;
    nl_sized_model *sized;
    nl_task_picture *pictures;
    nl_queued_job **jobs; /* of each picture, held */
    int64_t count, taken;
} nl_batch;

/* With the lock. */
bool nl_job_over(const nl_queued_job *job);
void nl_job_change(nl_queue *queue, nl_queued_job *job);
void nl_job_end(nl_queue *queue, nl_queued_job *job, nl_job_state state);
void nl_job_release(nl_queue *queue, nl_queued_job *job);
int64_t nl_job_bytes(const nl_queued_job *job);

#endif
