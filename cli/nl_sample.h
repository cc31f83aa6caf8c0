/* SPDX-License-Identifier: MIT */
/*
 * `nalagen sample`: one session (options, context, model) that carries out one job, or one for each
 * line of --requests.
 */
#ifndef NL_SAMPLE_H
#define NL_SAMPLE_H

#include "nl_command.h"
#include "nl_image.h"
#include "nl_launch.h"
#include "nl_npz.h"
#include "nl_task.h"

typedef struct nl_sample_options {
    nl_machine_options machine;
    nl_task_options task;
    const char *noise;
    const char *out, *latents, *show;
    int64_t grid[2]; /* rows, columns; 0: none */
    int64_t animate; /* milliseconds of a picture; 0: not */
    int64_t preview_every;
    bool json, no_metadata, force, resume;
    const char *requests, *root, *from;
    const char *gpus, *rank;
    int64_t processes, batch;
} nl_sample_options;

/* All pictures become one: a grid, or an animated one. */
static inline bool nl_sample_in_one(const nl_sample_options *options)
{
    return options->grid[0] || options->animate;
}

extern const nl_command nl_sample_command;
extern const nl_sample_options nl_sample_defaults;
nl_status nl_sample_main(int argc, char **argv);

/* ---- Output names */

typedef struct nl_output {
    enum {
        NL_OUTPUT_NAMED,
        NL_OUTPUT_FILE,
        NL_OUTPUT_PATTERN,
        NL_OUTPUT_STDOUT,
        NL_OUTPUT_ARCHIVE
    } kind;
    const char *text;  /* of --out; NAMED: the folder, "" for the current one */
    bool numbered;     /* NAMED: the index stands in the name */
    const char *whole; /* NAMED, all pictures in one: "grid", "animation"; or NULL */
    uint64_t seed;
    int copy; /* NAMED: from 2 on it stands in the name, behind the seed */
} nl_output;

/* files: how many will be written. Creates missing folders. */
nl_status nl_output_open(nl_context *context, const nl_sample_options *options, int64_t files,
                         nl_output *output);
/* Allocated name of the picture; "-" is standard output. NAMED: of the class, and never beginning with a dash. */
nl_status nl_output_name(nl_context *context, const nl_output *output, const nl_config *config,
                         int label, int64_t index, char **path);
/* Allocated: "a/b.png" and 5 become "a/b-step0005.png". */
nl_status nl_output_preview_name(nl_context *context, const char *path, int64_t step, char **name);

/* ---- Several processes */

/* What this process has of the work. */
typedef struct nl_share {
    int rank, ranks;
    int local;       /* number of this process on its machine, -1: not known */
    uint64_t token;  /* of the processes that one command started; 0: started by others */
    char device[16]; /* of this process, where its share decides that */
    int report;      /* descriptor that takes nl_share_report, or -1 */
} nl_share;

/* From the parent process, --rank, or the environment of mpirun and srun. May set device and threads
 * in options. */
nl_status nl_share_read(nl_context *context, nl_sample_options *options, nl_share *share);

void nl_share_tell(const nl_share *share, nl_share_report report);

/* The pictures that this process makes, by their number in the job, in units of one batch. */
typedef struct nl_work_list {
    int64_t count; /* of the whole job */
    int64_t unit;  /* pictures of a batch */
    int rank, ranks;
    int64_t units;       /* of this process: every ranks-th */
    bool *finished;      /* [units], or NULL: none is */
    int64_t there, todo; /* pictures of this process */
    int64_t next;        /* unit */
} nl_work_list;

void nl_work_list_init(nl_work_list *list, int64_t count, int64_t unit, int rank, int ranks);
/* Units whose every picture is `there` need not be made. */
nl_status nl_work_list_scan(nl_context *context, nl_work_list *list,
                            nl_status (*there)(void *user, int64_t picture, bool *is), void *user);
/* The next pictures to be made, at most `room` >= unit; 0: none is left. consecutive: up to a gap. */
int64_t nl_work_list_next(nl_work_list *list, bool consecutive, int64_t room, int64_t *pictures);
void nl_work_list_free(nl_context *context, nl_work_list *list);

/* ---- A session */

typedef struct nl_job nl_job;

typedef struct nl_session {
    nl_console *console;
    nl_context *context;
    nl_model *model;
    const nl_sample_options *options;
    nl_share share;
    cJSON *facts; /* of the model, for metadata and answers */
    nl_job *job;  /* at work, for the progress callback */
} nl_session;

/* The model that session->options name, and what pictures say about it. */
nl_status nl_session_load(nl_session *session);

/* Makes the pictures that `options` asks for. pictures: an array that takes a description of each,
 * or NULL: they go to standard output. */
nl_status nl_job_run(nl_session *session, const nl_sample_options *options, cJSON *pictures);
void nl_job_preview(nl_session *session, const nl_progress *progress);
/* Counts of a request become those of the job. */
void nl_job_progress(const nl_session *session, nl_progress *progress);

/* Reads JSON lines from options->requests and answers each with a line. */
nl_status nl_requests_run(nl_session *session);
/* NL_ERROR_USAGE for a file that no request may read or write: where the answers go, and outside of --root. */
nl_status nl_requests_allow(const nl_session *session, const char *path);

/* Lines of a file, within the budget of memory. */
typedef struct nl_lines {
    nl_context *context;
    const char *path; /* for messages */
    int fd;
    char *bytes;
    size_t start, end, room; /* bytes[start .. end) is not given out yet */
    bool over;               /* nothing more can be read */
    bool skips;              /* the rest of a line that was too long comes first */
} nl_lines;

/* The next line, without its end, until the next call; NULL behind the last. NL_ERROR_MEMORY: it is too long for the budget
 * and passed over. Waits where the file is a pipe that does not; NL_CANCELLED when a signal comes meanwhile. */
nl_status nl_lines_next(nl_lines *lines, const char **line, size_t *size);

/* ---- What a picture says about itself */

/* Everything needed to make picture `index` again (or all of them: nl_sample_in_one). */
nl_status nl_picture_facts(nl_session *session, const nl_sample_options *options,
                           const nl_sampling *sampling, int label, int64_t index, cJSON **facts);
/* The same of all pictures of the job together. */
nl_status nl_pictures_facts(nl_session *session, const nl_sample_options *options,
                            const nl_sampling *sampling, cJSON **facts);
/* Whether the picture that `facts` describe stands at `path`; another one there is refused. */
nl_status nl_resume_check(nl_context *context, const char *path, const cJSON *facts, bool *there);
/* The text of that object in a PNG's chunks; NULL: nalagen has not made it. */
const char *nl_image_facts(const nl_image *image);
/* The object; NL_ERROR_INPUT where there is none. */
nl_status nl_read_picture_facts(nl_context *context, const char *path, cJSON **facts);
/* Options from a picture, texts kept in `texts`; leaves alone what the facts do not name. */
nl_status nl_options_from_picture(nl_context *context, const char *path, const cJSON *facts,
                                  nl_texts *texts, nl_sample_options *options);
/* Warns when the model or its configuration is not the one that made the picture. */
nl_status nl_compare_facts(nl_session *session, const char *path, const cJSON *facts);

/* ---- --out NAME.npz */

bool nl_is_archive(const char *out);
nl_status nl_archive_open(nl_session *session, const nl_sample_options *options,
                          const nl_sampling *sampling, int64_t count, int height, int width,
                          nl_npz **npz);
/* How the pictures of an archive were made, as those of nalagen say; NULL of others. */
nl_status nl_read_archive_facts(nl_context *context, const char *path, cJSON **facts);

#endif
