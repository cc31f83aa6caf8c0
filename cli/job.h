/* SPDX-License-Identifier: MIT */
/* A job of `nalagen sample` from its plan to its files; inside of job*.c only. */
#ifndef NL_JOB_H
#define NL_JOB_H

#include "nl_npy.h"
#include "nl_sample.h"
#include "nl_writers.h"

struct nl_job {
    nl_session *session;
    const nl_sample_options *options;
    nl_task task;
    nl_output output;
    int64_t noise_count;
    float *noise;  /* [noise_count, C, H, W] or NULL */
    int64_t taken; /* pictures made */
    int64_t done;  /* of those, written and reported */
    nl_work_list work;
    int64_t *numbers;        /* [room] numbers of the pictures that are made at once */
    nl_task_picture *wanted; /* [room] the same */
    int64_t room;
    int64_t before; /* pictures made before the request at work */
    nl_npz *archive;
    nl_writers *writers;
    float *latents; /* [count, C, H, W], for --latents */
    int latent_shape[3];
    uint8_t *whole; /* [count, height, width, 3], of a grid or an animated picture */
    int height, width;
    int64_t evaluations;
    double started, last; /* seconds */
    cJSON *pictures;
};

/* ---- job_plan.c */

/* Works out classes, counts and names, and refuses whatever can be refused before the first step. */
nl_status nl_job_plan(nl_job *job);
/* Of picture i of the job; allocated. */
nl_status nl_job_picture_name(nl_job *job, int64_t i, char **path);
/* How a picture is made, for whoever reads it; NULL where nobody does. */
nl_status nl_job_facts(nl_job *job, int label, int64_t index, cJSON **facts);

/* ---- job_files.c */

/* Names or describes a picture that is done: to standard output, or in the answer of a request. */
nl_status nl_job_report_picture(nl_job *job, const char *path, const cJSON *facts,
                                int64_t evaluations);
nl_status nl_job_start_writers(nl_job *job);
/* Writes what is written at the end, also of a job that was interrupted. */
nl_status nl_job_finish(nl_job *job);

#endif
