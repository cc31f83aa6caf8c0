/* One job of `nalagen sample`: classes and names are worked out first, so that whatever can be refused is
 * refused before the first step; then pictures are written as they come. */
#include "nl_image.h"
#include "nl_sample.h"
#include "nl_writers.h"
#include "ops.h"

#include <math.h>
#include <string.h>

struct nl_job {
    nl_session *session;
    const nl_sample_options *options;
    nl_sampling sampling; /* with the model's defaults */
    nl_output output;
    nl_classes classes;
    nl_npy noise_file;
    float *noise; /* [count, C, H, W] or NULL */
    int64_t count;
    int64_t taken; /* pictures made */
    int64_t done;  /* of those, written and reported */
    nl_work_list work;
    int64_t *numbers; /* [room] numbers of the pictures of one request */
    int64_t *indices; /* [room] their image indices */
    int *labels;      /* [room] */
    int64_t room;
    int64_t before; /* pictures made before the request at work */
    nl_npz *archive;
    nl_writers *writers;
    float *latents; /* [count, C, H, W], for --latents */
    int latent_shape[3];
    uint8_t *grid; /* [count, height, width, 3] */
    int height, width;
    int64_t evaluations;
    double started, last; /* seconds */
    cJSON *pictures;
};

/* Latents as floats from a file of floats or doubles. */
static nl_status read_noise(nl_job *job)
{
    nl_context *context = job->session->context;
    const char *path = job->options->noise;
    const int *shape = job->latent_shape;
    const nl_npy *file = &job->noise_file;
    nl_status status = NL_OK;
    char found[64];
    NL_TRY(nl_npy_open(context, path, &job->noise_file));
    if (file->ndim != 4 || file->shape[0] < 1 || file->shape[1] != shape[0] ||
        file->shape[2] != shape[1] || file->shape[3] != shape[2] ||
        (file->dtype != NL_F32 && file->dtype != NL_F64))
        NL_TRY(nl_fail(context, NL_ERROR_INPUT,
                       "%s: expected initial latents [n, %d, %d, %d] of floats, found %s %s%s",
                       path, shape[0], shape[1], shape[2], nl_dtype_name(file->dtype),
                       nl_shape_text(file->ndim, file->shape, found, sizeof(found)),
                       file->ndim == 4 ? " (see --size)" : ""));
    int64_t elements = (int64_t)shape[0] * shape[1] * shape[2];
    NL_TRY(nl_alloc_array(context, "initial latents", file->shape[0] * elements, sizeof(float),
                          (void **)&job->noise));
    nl_convert_to_float(file->data, file->dtype, file->shape[0] * elements, job->noise);
    for (int64_t i = 0; i < file->shape[0] * elements; i++)
        if (!isfinite(job->noise[i]))
            NL_TRY(nl_fail(context, NL_ERROR_INPUT, "%s: picture %lld holds NaN or infinity", path,
                           (long long)(i / elements)));
cleanup:
    return status;
}

static nl_status choose_count(nl_job *job)
{
    nl_context *context = job->session->context;
    const nl_sample_options *options = job->options;
    int64_t room = options->grid[0] * options->grid[1];
    int64_t have = job->noise ? job->noise_file.shape[0] : 0;
    job->count = options->n ? options->n
                 : room     ? room
                 : have     ? have
                            : NL_MAX(job->classes.count, 1);
    if (room && job->count > room)
        return nl_fail(context, NL_ERROR_USAGE, "--grid %lldx%lld has no room for %lld pictures",
                       (long long)options->grid[0], (long long)options->grid[1],
                       (long long)job->count);
    if (have && job->count > have)
        return nl_fail(context, NL_ERROR_USAGE, "%s: expected noise for %lld pictures, found %lld",
                       options->noise, (long long)job->count, (long long)have);
    return NL_OK;
}

static int label_of(const nl_job *job, int64_t i)
{
    return nl_classes_at(&job->classes, job->options->seed, job->options->first_index + i);
}

static nl_status picture_name(nl_job *job, int64_t i, char **path)
{
    char text[128];
    nl_class_text(nl_model_get_config(job->session->model), label_of(job, i), text, sizeof(text));
    return nl_output_name(job->session->context, &job->output, text, job->options->first_index + i,
                          path);
}

static nl_status check_output(const nl_job *job)
{
    nl_context *context = job->session->context;
    const nl_sample_options *options = job->options;
    const nl_share *share = &job->session->share;
    bool pictures = nl_model_has_autoencoder(job->session->model), grid = options->grid[0] > 0;
    bool archive = nl_is_archive(options->out);
    const char *whole = grid ? "--grid" : options->latents ? "--latents" : NULL;
    if (!pictures && !options->latents)
        return nl_fail(context, NL_ERROR_USAGE,
                       "--vae none makes latents only: say where with --latents FILE.npy");
    if (!pictures && grid)
        return nl_fail(context, NL_ERROR_USAGE, "--vae none makes no pictures for --grid");
    if (whole && (archive || options->resume || share->ranks > 1))
        return nl_fail(context, NL_ERROR_USAGE,
                       "%s takes all pictures at once: it does not go with %s", whole,
                       archive           ? "an archive"
                       : options->resume ? "--resume"
                                         : "several processes");
    if (options->no_metadata && (archive || options->resume))
        return nl_fail(context, NL_ERROR_USAGE,
                       "--no-metadata: what is there already is known by its parameters, which %s "
                       "needs",
                       archive ? "an archive" : "--resume");
    if (options->resume && options->force)
        return nl_fail(context, NL_ERROR_USAGE,
                       "--resume keeps what is there and --force overwrites it: give one of them");
    return NL_OK;
}

static nl_status open_archive(nl_job *job)
{
    int factor = nl_model_factor(nl_model_get_config(job->session->model));
    return nl_archive_open(job->session, job->options, &job->sampling, job->count,
                           job->latent_shape[1] * factor, job->latent_shape[2] * factor,
                           &job->archive);
}

/* Room for the pictures of one request: some thousand, in whole batches. */
static nl_status make_work_list(nl_job *job)
{
    enum { MANY = 4096 };
    nl_session *session = job->session;
    nl_context *context = session->context;
    nl_status status = NL_OK;
    int64_t batch = session->options->batch;
    int64_t unit = NL_MIN(batch ? batch : nl_model_batch(session->model), job->count);
    bool whole = job->options->grid[0] || job->options->latents;
    nl_work_list_init(&job->work, job->count, unit, session->share.rank, session->share.ranks);
    job->room = whole ? job->count : NL_MIN(job->count, NL_MAX(1, MANY / unit) * unit);
    NL_TRY(nl_alloc_array(context, "picture numbers", job->room, sizeof(*job->numbers),
                          (void **)&job->numbers));
    NL_TRY(nl_alloc_array(context, "image indices", job->room, sizeof(*job->indices),
                          (void **)&job->indices));
    NL_TRY(
        nl_alloc_array(context, "classes", job->room, sizeof(*job->labels), (void **)&job->labels));
cleanup:
    return status;
}

static nl_status facts_for(nl_job *job, int label, int64_t index, cJSON **facts);

/* Whether picture i is there; refuses whatever else stands where something will be written, and one name for two
 * things. */
static nl_status is_there(void *user, int64_t i, bool *there)
{
    nl_job *job = user;
    nl_context *context = job->session->context;
    const nl_sample_options *options = job->options;
    nl_status status = NL_OK;
    char *path = NULL;
    cJSON *facts = NULL;
    *there = false;
    if (job->archive)
        return nl_npz_has(job->archive, i, there);
    NL_TRY(picture_name(job, i, &path));
    if (options->latents && !strcmp(path, options->latents))
        NL_TRY(nl_fail(context, NL_ERROR_USAGE,
                       "--latents %s: a picture has the same name: give another", path));
    if (options->resume) {
        NL_TRY(facts_for(job, label_of(job, i), options->first_index + i, &facts));
        NL_TRY(nl_resume_check(context, path, facts, there));
    } else if (!options->force) {
        NL_TRY(nl_output_refuse(context, path));
    }
cleanup:
    nl_free(context, path);
    cJSON_Delete(facts);
    return status;
}

static nl_status look_for_files(nl_job *job, int64_t files)
{
    const nl_session *session = job->session;
    nl_context *context = session->context;
    const nl_sample_options *options = job->options;
    nl_status status = NL_OK;
    bool there;
    if (options->latents && !options->force)
        NL_TRY(nl_output_refuse(context, options->latents));
    if (job->archive && nl_npz_finished(job->archive)) {
        job->work.there = job->count;
        job->work.units = job->work.todo = 0;
        nl_log(context, NL_LOG_INFO, "%s is finished: nothing to do", options->out);
    } else if (options->grid[0] && files) {
        NL_TRY(is_there(job, 0, &there));
    } else if (files && (!options->force || options->latents || job->archive)) {
        NL_TRY(nl_work_list_scan(context, &job->work, is_there, job));
        if (job->work.there && session->share.ranks == 1)
            nl_log(context, NL_LOG_INFO, "going on: %lld of %lld pictures are there",
                   (long long)job->work.there, (long long)(job->work.there + job->work.todo));
    }
cleanup:
    return status;
}

static nl_status prepare(nl_job *job)
{
    nl_session *session = job->session;
    nl_context *context = session->context;
    const nl_sample_options *options = job->options;
    nl_status status = NL_OK;
    bool pictures = nl_model_has_autoencoder(session->model), grid = options->grid[0] > 0;
    nl_sampling given = nl_sampling_of(options);
    NL_TRY(nl_model_resolve(session->model, &given, &job->sampling));
    NL_TRY(check_output(job));
    nl_model_latent_shape(session->model, job->latent_shape);
    if (options->noise)
        NL_TRY(read_noise(job));
    NL_TRY(nl_classes_parse(context, session->model, options->classes, &job->classes));
    NL_TRY(choose_count(job));
    int64_t files = !pictures ? 0 : grid ? 1 : job->count;
    NL_TRY(nl_output_open(context, options, files, &job->output));
    NL_TRY(make_work_list(job));
    if (job->output.kind == NL_OUTPUT_ARCHIVE && job->work.units)
        NL_TRY(open_archive(job));
    NL_TRY(look_for_files(job, files));
    if (options->latents) {
        int64_t elements =
            (int64_t)job->latent_shape[0] * job->latent_shape[1] * job->latent_shape[2];
        NL_TRY(nl_alloc_array(context, "latents to be written", job->count * elements,
                              sizeof(float), (void **)&job->latents));
    }
cleanup:
    return status;
}

static nl_status report_picture(nl_job *job, const char *path, cJSON *facts, int64_t evaluations)
{
    nl_session *session = job->session;
    nl_context *context = session->context;
    nl_status status = NL_OK;
    char *text = NULL;
    cJSON *item = NULL;
    double now = nl_seconds();
    nl_console_clear(session->console);
    if (!session->options->json && !job->pictures) {
        if (strcmp(path, "-") != 0)
            NL_TRY(nl_print_line(context, path));
        return status;
    }
    item = cJSON_CreateObject();
    cJSON_AddStringToObject(item, "file", path);
    cJSON_AddNumberToObject(item, "evaluations", (double)evaluations);
    cJSON_AddNumberToObject(item, "seconds", (double)(int64_t)((now - job->last) * 1e3) / 1e3);
    for (cJSON *fact = facts->child; fact; fact = fact->next)
        if (strcmp(fact->string, "config") != 0)
            cJSON_AddItemToObject(item, fact->string, cJSON_Duplicate(fact, true));
    job->last = now;
    if (job->pictures) {
        cJSON_AddItemToArray(job->pictures, item);
        item = NULL;
        return NL_OK;
    }
    text = cJSON_PrintUnformatted(item);
    NL_TRY(text ? nl_print_line(context, text)
                : nl_fail(context, NL_ERROR_MEMORY, "no memory for a line of JSON"));
cleanup:
    cJSON_free(text);
    cJSON_Delete(item);
    return status;
}

static nl_status write_picture(nl_job *job, const char *path, const uint8_t *rgb, int height,
                               int width, const cJSON *facts)
{
    nl_session *session = job->session;
    nl_context *context = session->context;
    const nl_sample_options *options = job->options;
    nl_status status = NL_OK;
    char software[32];
    char *json = NULL;
    snprintf(software, sizeof(software), "nalagen %s", nl_version());
    if (!options->no_metadata) {
        json = cJSON_PrintUnformatted(facts);
        if (!json)
            NL_TRY(nl_fail(context, NL_ERROR_MEMORY, "no memory for the text in %s", path));
    }
    const char *text[] = {NL_FACTS_KEY, json, "Software", software, NULL};
    NL_TRY(nl_png_write(context, path, options->force, rgb, height, width,
                        options->no_metadata ? NULL : text));
    if (options->show) {
        static const char *const hows[] = {"auto", "kitty", "iterm2", "blocks", NULL};
        int how = 0;
        while (hows[how] && strcmp(hows[how], options->show) != 0)
            how++;
        nl_console_clear(session->console);
        NL_TRY(nl_image_show(context, stderr, (nl_show)how, rgb, height, width, 80));
    }
cleanup:
    cJSON_free(json);
    return status;
}

/* Descriptions are made where somebody reads them. */
static nl_status facts_for(nl_job *job, int label, int64_t index, cJSON **facts)
{
    nl_session *session = job->session;
    *facts = NULL;
    if (job->options->no_metadata && !session->options->json && !job->pictures)
        return NL_OK;
    return nl_picture_facts(session, job->options, &job->sampling, label, index, facts);
}

static nl_status write_one(void *user, const nl_writing *writing)
{
    nl_job *job = user;
    if (job->archive)
        return nl_npz_write(job->archive, writing->number, writing->label, writing->rgb);
    return write_picture(job, writing->path, writing->rgb, writing->height, writing->width,
                         writing->facts);
}

static nl_status written_one(void *user, const nl_writing *writing)
{
    nl_job *job = user;
    job->done++;
    job->evaluations += writing->evaluations;
    nl_share_tell(&job->session->share, (nl_share_report){.made = 1});
    return job->archive ? NL_OK
                        : report_picture(job, writing->path, writing->facts, writing->evaluations);
}

/* While a GPU is at work the processors are free to write. */
static nl_status start_writers(nl_job *job)
{
    const nl_session *session = job->session;
    const nl_device *device = session->context->device;
    bool beside = nl_device_queues(device) && job->count > 1 && !job->options->show;
    return nl_writers_create(session->context, beside ? device->threads : 0, write_one, written_one,
                             job, &job->writers);
}

static nl_status keep_for_grid(nl_job *job, const nl_picture *picture)
{
    nl_status status = NL_OK;
    size_t bytes = 3 * (size_t)picture->height * (size_t)picture->width;
    job->height = picture->height;
    job->width = picture->width;
    if (!job->grid)
        NL_TRY(nl_alloc_array(job->session->context, "pictures of the grid", job->count, bytes,
                              (void **)&job->grid));
    memcpy(job->grid + (size_t)job->taken * bytes, picture->rgb, bytes);
cleanup:
    return status;
}

static nl_status take_picture(void *user, const nl_picture *picture)
{
    nl_job *job = user;
    nl_context *context = job->session->context;
    nl_status status = NL_OK;
    const int *shape = picture->latent_shape;
    int64_t elements = (int64_t)shape[0] * shape[1] * shape[2];
    bool file = picture->rgb && !job->options->grid[0];
    nl_writing writing = {.number = picture->index - job->options->first_index,
                          .evaluations = picture->evaluations,
                          .label = picture->label,
                          .height = picture->height,
                          .width = picture->width,
                          .rgb = picture->rgb};
    if (job->latents)
        memcpy(job->latents + job->taken * elements, picture->latents,
               (size_t)elements * sizeof(float));
    if (picture->rgb && !file)
        NL_TRY(keep_for_grid(job, picture));
    if (file && !job->archive)
        NL_TRY(picture_name(job, writing.number, &writing.path));
    bool told = !picture->rgb && (job->pictures || job->session->options->json);
    if (told)
        NL_TRY(nl_strdup(context, job->options->latents, &writing.path));
    if (writing.path)
        NL_TRY(facts_for(job, picture->label, picture->index, &writing.facts));
    job->taken++;
    if (file) {
        status = nl_writers_put(job->writers, &writing);
        writing = (nl_writing){0}; /* taken over */
        return status;
    }
    job->done++;
    job->evaluations += picture->evaluations;
    nl_share_tell(&job->session->share, (nl_share_report){.made = 1});
    if (told)
        NL_TRY(report_picture(job, writing.path, writing.facts, picture->evaluations));
cleanup:
    nl_free(context, writing.path);
    cJSON_Delete(writing.facts);
    return status;
}

static nl_status write_grid(nl_job *job)
{
    nl_context *context = job->session->context;
    const nl_sample_options *options = job->options;
    nl_status status = NL_OK;
    const uint8_t **pictures = NULL;
    nl_image grid = {0};
    char *path = NULL;
    cJSON *facts = NULL;
    NL_TRY(nl_alloc_array(context, "grid", job->done, sizeof(*pictures), (void **)&pictures));
    for (int64_t i = 0; i < job->done; i++)
        pictures[i] = job->grid + 3 * (size_t)i * (size_t)job->height * (size_t)job->width;
    NL_TRY(nl_image_grid(context, pictures, (int)job->done, job->height, job->width,
                         (int)options->grid[0], (int)options->grid[1], 2, &grid));
    NL_TRY(facts_for(job, label_of(job, 0), options->first_index, &facts));
    NL_TRY(picture_name(job, 0, &path));
    NL_TRY(write_picture(job, path, grid.rgb, grid.height, grid.width, facts));
    NL_TRY(report_picture(job, path, facts, job->evaluations));
cleanup:
    nl_free(context, pictures);
    nl_image_free(context, &grid);
    nl_free(context, path);
    cJSON_Delete(facts);
    return status;
}

/* Names the archive, or describes it and the work; to standard output or the answer of a request. */
static nl_status report_archive(nl_job *job)
{
    nl_session *session = job->session;
    nl_status status = NL_OK;
    double seconds = nl_seconds() - job->started;
    char *text = NULL;
    if (!session->options->json && !job->pictures)
        return nl_print_line(session->context, job->options->out);
    cJSON *item = cJSON_CreateObject(), *facts = NULL;
    NL_TRY(nl_pictures_facts(session, job->options, &job->sampling, &facts));
    cJSON_AddStringToObject(item, "file", job->options->out);
    cJSON_AddNumberToObject(item, "pictures", (double)job->count);
    if (session->share.ranks == 1) {
        cJSON_AddNumberToObject(item, "made", (double)job->done);
        cJSON_AddNumberToObject(item, "evaluations", (double)job->evaluations);
        cJSON_AddNumberToObject(item, "pictures_per_second", (double)job->done / seconds);
    }
    cJSON_AddNumberToObject(item, "seconds", (double)(int64_t)(seconds * 1e3) / 1e3);
    for (cJSON *fact = facts->child; fact; fact = fact->next)
        if (strcmp(fact->string, "config") != 0)
            cJSON_AddItemToObject(item, fact->string, cJSON_Duplicate(fact, true));
    if (job->pictures) {
        cJSON_AddItemToArray(job->pictures, item);
        item = NULL;
        goto cleanup;
    }
    text = cJSON_PrintUnformatted(item);
    NL_TRY(text ? nl_print_line(session->context, text)
                : nl_fail(session->context, NL_ERROR_MEMORY, "no memory for a line of JSON"));
cleanup:
    cJSON_free(text);
    cJSON_Delete(facts);
    cJSON_Delete(item);
    return status;
}

/* Who finds all pictures there ends the archive; others may be at work, or this process was stopped. */
static nl_status finish_archive(nl_job *job)
{
    nl_context *context = job->session->context;
    nl_status status = NL_OK;
    int64_t there = 0;
    const nl_share *share = &job->session->share;
    bool finished = false, stood = nl_npz_finished(job->archive);
    NL_TRY(nl_npz_done(job->archive, &there));
    NL_TRY(nl_npz_close(&job->archive, &finished));
    if (finished && (!stood || share->rank == 0))
        return report_archive(job);
    if (there == job->count)
        return NL_OK;
    nl_log(context, NL_LOG_INFO, "%lld of %lld pictures are in %s.part%s", (long long)there,
           (long long)job->count, job->options->out,
           share->ranks > 1 ? "" : ": the same command goes on");
cleanup:
    return status;
}

/* What is written at the end, also of a job that was interrupted. */
static nl_status finish(nl_job *job)
{
    nl_context *context = job->session->context;
    nl_status status = NL_OK;
    if (job->archive)
        return finish_archive(job);
    if (!job->done)
        return NL_OK;
    if (job->grid)
        NL_TRY(write_grid(job));
    if (job->latents) {
        int64_t shape[] = {job->done, job->latent_shape[0], job->latent_shape[1],
                           job->latent_shape[2]};
        NL_TRY(nl_npy_write(context, job->options->latents, job->options->force, NL_F32, 4, shape,
                            job->latents));
        bool plain = !job->session->options->json && !job->pictures;
        if (plain && job->output.kind != NL_OUTPUT_STDOUT && strcmp(job->options->latents, "-"))
            NL_TRY(nl_print_line(context, job->options->latents));
    }
cleanup:
    return status;
}

/* Request after request, so that memory does not depend on how many pictures there are. */
static nl_status make_pictures(nl_job *job)
{
    nl_session *session = job->session;
    const nl_sample_options *options = job->options;
    nl_status status = NL_OK;
    int64_t elements = (int64_t)job->latent_shape[0] * job->latent_shape[1] * job->latent_shape[2];
    int64_t count;
    while ((count = nl_work_list_next(&job->work, job->noise, job->room, job->numbers)) > 0) {
        for (int64_t i = 0; i < count; i++) {
            job->indices[i] = options->first_index + job->numbers[i];
            job->labels[i] = label_of(job, job->numbers[i]);
        }
        nl_request request = {.labels = job->labels,
                              .count = count,
                              .seed = options->seed,
                              .indices = job->indices,
                              .batch = (int)session->options->batch,
                              .preview_every = (int)options->preview_every,
                              .noise = job->noise ? job->noise + job->numbers[0] * elements : NULL,
                              .rounding = nl_rounding_of(options),
                              .sampling = job->sampling};
        job->before = job->taken;
        NL_TRY(nl_generate(session->model, &request, take_picture, job));
    }
cleanup:
    return status;
}

void nl_job_progress(const nl_session *session, nl_progress *progress)
{
    const nl_job *job = session->job;
    if (!job)
        return;
    progress->image += job->before;
    progress->images = job->work.todo;
    if (job->writers && nl_writers_report(job->writers) != NL_OK)
        nl_log(session->context, NL_LOG_DEBUG, "a picture was not written");
}

nl_status nl_job_run(nl_session *session, const nl_sample_options *options, cJSON *pictures)
{
    nl_context *context = session->context;
    nl_job job = {.session = session, .options = options, .pictures = pictures};
    nl_status status = NL_OK;
    NL_TRY(prepare(&job));
    job.started = job.last = nl_seconds();
    session->console->started = job.started;
    session->job = &job;
    session->console->there = job.work.there;
    nl_share_tell(&session->share,
                  (nl_share_report){.there = job.work.there, .todo = job.work.todo});
    status = start_writers(&job);
    if (status == NL_OK)
        status = make_pictures(&job);
    nl_status written = nl_writers_end(&job.writers);
    status = written != NL_OK ? written : status;
    nl_console_clear(session->console);
    if (status == NL_OK || status == NL_CANCELLED) {
        nl_status finished = finish(&job);
        status = finished != NL_OK ? finished : status;
    }
    if (status == NL_OK) {
        double seconds = nl_seconds() - job.started;
        nl_log(context, NL_LOG_DEBUG,
               "%lld pictures in %.2f s, %lld evaluations of the network (%s)", (long long)job.done,
               seconds, (long long)job.evaluations, job.sampling.sampler);
    }
cleanup:
    session->job = NULL;
    nl_classes_free(context, &job.classes);
    nl_npy_close(context, &job.noise_file);
    nl_free(context, job.noise);
    nl_npz_abandon(&job.archive);
    nl_work_list_free(context, &job.work);
    nl_free(context, job.numbers);
    nl_free(context, job.indices);
    nl_free(context, job.labels);
    nl_free(context, job.latents);
    nl_free(context, job.grid);
    return status;
}

static nl_status preview(nl_job *job, const nl_progress *progress)
{
    nl_session *session = job->session;
    nl_context *context = session->context;
    nl_status status = NL_OK;
    uint8_t *rgb = NULL;
    char *path = NULL, *name = NULL;
    int height, width;
    NL_TRY(nl_model_preview(session->model, progress->preview, progress->preview_shape, &rgb,
                            &height, &width));
    if (job->options->show) {
        nl_console_clear(session->console);
        NL_TRY(nl_image_show(context, stderr, NL_SHOW_AUTO, rgb, height, width, 40));
    } else if (job->output.kind != NL_OUTPUT_STDOUT && job->output.kind != NL_OUTPUT_ARCHIVE) {
        NL_TRY(picture_name(job, job->numbers[progress->image], &path));
        NL_TRY(nl_output_preview_name(context, path, progress->step, &name));
        NL_TRY(nl_png_write(context, name, true, rgb, height, width, NULL));
    }
cleanup:
    nl_free(context, rgb);
    nl_free(context, path);
    nl_free(context, name);
    return status;
}

/* A preview that fails is no reason to lose the picture. */
void nl_job_preview(nl_session *session, const nl_progress *progress)
{
    if (session->job && preview(session->job, progress) != NL_OK)
        nl_log(session->context, NL_LOG_WARNING, "no preview: %s", nl_last_error(session->context));
}
