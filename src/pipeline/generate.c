/* SPDX-License-Identifier: MIT */
/* From classes to pictures: noise -> sampler (guidance -> backbone) -> latents -> autoencoder, a batch at a
 * time. A picture is a function of (model, sampling, seed, image index, class): the batch is chosen by memory
 * alone. */
#include <math.h>
#include <string.h>

#include "arena.h"
#include "model.h"
#include "nl_random.h"

typedef struct nl_work {
    nl_model *model;
    const nl_request *request;
    const nl_observer *observer; /* or NULL */
    int step;                    /* steps that the batch has taken */
    bool shown;                  /* this step to the observer */
    nl_sampling sampling;        /* resolved */
    nl_sampler *sampler;
    int shape[3];         /* of one latent */
    int64_t elements;     /* of one latent */
    int64_t most;         /* largest batch so far possible */
    int64_t most_decoded; /* the same of the autoencoder */
    nl_device *device;    /* of the batch at work; a measuring one while memory is measured */
    int64_t first, count; /* the batch at work */
    int64_t *images;      /* [most] image indices of the batch */
    int64_t *others;      /* [most] those of the pictures that they are mixed with */
    double *weights; /* [2 * most] of the noise: of the pictures themselves, then of the others */
    const nl_dit *dit, *one_step, *guide; /* that are asked: the model's, or `mixed` */
    nl_dit mixed[3];
    int32_t *labels;      /* [2 * most]: of the batch, then as many null classes */
    int64_t *evaluations; /* [most] */
    bool cropped;         /* a part of the picture is asked for */
    float crop_numbers[NL_CROP_NUMBERS];
    nl_tensor crop; /* the same on the device, [1, NL_CROP_NUMBERS]; left out for the whole */
    float *latents; /* [most, C, H, W] final */
    float *preview; /* [C, H, W] */
    uint8_t *rgb;   /* [most, height, width, 3] or NULL */
} nl_work;

static int64_t image_index(const nl_work *work, int64_t i)
{
    const nl_request *request = work->request;
    return request->indices ? request->indices[i] : request->first_index + i;
}

static nl_progress progress_of(const nl_work *work, const char *stage, int step, int steps)
{
    return (nl_progress){.stage = stage,
                         .step = step,
                         .steps = steps,
                         .image = work->first,
                         .images = work->request->count,
                         .batch = work->count};
}

/* x, labels: with guidance the unconditional half follows. */
static nl_status show(nl_work *work, const nl_tensor *x, float t, const nl_tensor *labels)
{
    nl_observation seen = {.dit = work->model->dit,
                           .device = work->device,
                           .step = work->step,
                           .steps = nl_sampler_steps(work->sampler),
                           .t = t,
                           .x = nl_tensor_rows(x, 0, work->count),
                           .labels = nl_tensor_rows(labels, 0, work->count),
                           .crop = work->crop.data ? &work->crop : NULL,
                           .first = work->first};
    work->shown = true;
    return work->observer->see(work->observer->user, &seen);
}

/* One of the networks, once; internal guidance is of the model's own alone. */
static nl_status ask(nl_work *work, const nl_dit *dit, const nl_tensor *x, const float *t,
                     int64_t t_count, const float *s, const nl_tensor *labels,
                     const nl_tensor *prediction)
{
    nl_device *device = work->device;
    nl_status status = NL_OK;
    int64_t mark = nl_arena_mark(device), both[] = {2, 1};
    nl_tensor times;
    NL_TRY(s ? nl_arena_tensor(device, NL_F32, 2, both, &times)
             : nl_arena_tensor(device, NL_F32, 1, &t_count, &times));
    NL_TRY(device->ops->upload(device, times.data, s ? (float[]){t[0], *s} : t,
                               nl_tensor_bytes(&times)));
    NL_TRY(nl_dit_replay(dit, device, x, &times, labels, work->crop.data ? &work->crop : NULL,
                         dit == work->dit ? work->sampling.internal_guidance : 0, prediction));
cleanup:
    nl_arena_release(device, mark);
    return status;
}

static nl_status network(void *user, const nl_tensor *x, const float *t, int64_t t_count,
                         const float *s, const nl_tensor *labels, const nl_tensor *prediction)
{
    nl_work *work = user;
    if (work->observer && !work->shown)
        NL_CHECK(show(work, x, t[0], labels));
    bool whole = work->one_step && s && t[0] == 0 && *s == 1;
    return ask(work, whole ? work->one_step : work->dit, x, t, t_count, s, labels, prediction);
}

/* Of picture i of the batch, or of the one that it is mixed with. */
static uint64_t seed_of(const nl_work *work, bool other, int64_t i)
{
    const nl_request *request = work->request;
    i += work->first;
    return other ? request->mixes[i].seed : request->seeds ? request->seeds[i] : request->seed;
}

/* By the seed of each picture: an operation for each run of one seed. */
static nl_status draw(nl_work *work, bool other, uint64_t stream, const nl_tensor *y)
{
    const int64_t *images = other ? work->others : work->images;
    for (int64_t start = 0, end; start < work->count; start = end) {
        uint64_t seed = seed_of(work, other, start);
        for (end = start + 1; end < work->count && seed_of(work, other, end) == seed; end++) {
        }
        NL_CHECK(NL_OP(work->device, normal, .y = nl_tensor_rows(y, start, end - start),
                       .seed = seed, .stream = stream, .images = images + start));
    }
    return NL_OK;
}

/* Noise of the batch. */
static nl_status draw_noise(nl_work *work, uint64_t stream, const nl_tensor *y)
{
    nl_device *device = work->device;
    nl_status status = NL_OK;
    int64_t mark = nl_arena_mark(device);
    nl_tensor other;
    NL_TRY(draw(work, false, stream, y));
    if (!work->request->mixes)
        return NL_OK;
    NL_TRY(nl_arena_tensor(device, NL_F32, y->ndim, y->shape, &other));
    NL_TRY(draw(work, true, stream, &other));
    NL_TRY(NL_OP(device, combine, .terms = 2, .x = {*y, other}, .coefficients = work->weights,
                 .per_image = true, .y = *y));
cleanup:
    nl_arena_release(device, mark);
    return status;
}

static nl_status guide_network(void *user, const nl_tensor *x, const float *t, int64_t t_count,
                               const float *s, const nl_tensor *labels, const nl_tensor *prediction)
{
    nl_work *work = user;
    return ask(work, work->guide, x, t, t_count, s, labels, prediction);
}

static nl_status step_noise(void *user, int k, const nl_tensor *noise)
{
    return draw_noise(user, (uint64_t)NL_STREAM_STEP + (uint64_t)k, noise);
}

static nl_status step_done(void *user, int step, int steps, double t, const nl_tensor *x)
{
    nl_work *work = user;
    int every = work->request->preview_every;
    nl_progress progress = progress_of(work, "sampling", step, steps);
    (void)t;
    work->step = step;
    work->shown = false;
    if (work->device->measuring)
        return NL_OK;
    if (every > 0 && step % every == 0 && step != steps) {
        NL_CHECK(work->device->ops->download(work->device, work->preview, x->data,
                                             work->elements * (int64_t)sizeof(float)));
        progress.preview = work->preview;
        memcpy(progress.preview_shape, work->shape, sizeof(work->shape));
    }
    return nl_report_progress(work->model->context, &progress);
}

static nl_status start_noise(nl_work *work, const nl_tensor *x)
{
    const float *given = work->request->noise;
    if (given)
        return work->device->ops->upload(work->device, x->data,
                                         given + work->first * work->elements, nl_tensor_bytes(x));
    return draw_noise(work, NL_STREAM_NOISE, x);
}

/* What the noise of picture i, as of one batch, is made of. */
static void weigh_noise(nl_work *work, int64_t i)
{
    const nl_mix *mix = &work->request->mixes[work->first + i];
    bool same = mix->index == work->images[i] && mix->seed == seed_of(work, false, i);
    double angle = mix->part * acos(0);
    work->others[i] = mix->index;
    work->weights[i] = same ? 1 : mix->part == 1 ? 0 : cos(angle);
    work->weights[work->count + i] = same ? 0 : sin(angle);
}

/* `dit` with a table of classes of its own: row i is that of picture i, the last one that of no class. */
static nl_status mix_labels(nl_work *work, const nl_dit *dit, nl_dit *mixed)
{
    nl_device *device = work->device;
    const nl_request *request = work->request;
    const nl_tensor *table = &dit->label_table;
    int64_t count = work->count;
    nl_tensor rows;
    NL_CHECK(nl_arena_tensor(device, NL_F32, 2, (int64_t[]){count + 1, table->shape[1]}, &rows));
    for (int64_t i = 0; i < count; i++) {
        const nl_mix *mix = &request->mixes[work->first + i];
        NL_CHECK(NL_OP(device, combine, .terms = 2,
                       .x = {nl_tensor_rows(table, request->labels[work->first + i], 1),
                             nl_tensor_rows(table, mix->label, 1)},
                       .coefficients = (double[]){1 - mix->part, mix->part},
                       .y = nl_tensor_rows(&rows, i, 1)));
    }
    NL_CHECK(NL_OP(device, combine, .terms = 1,
                   .x = {nl_tensor_rows(table, table->shape[0] - 1, 1)},
                   .coefficients = (double[]){1}, .y = nl_tensor_rows(&rows, count, 1)));
    *mixed = *dit;
    mixed->label_table = rows;
    return NL_OK;
}

/* The networks that the batch asks, and in work->labels which rows of their tables. */
static nl_status set_labels(nl_work *work)
{
    const nl_model *model = work->model;
    int64_t count = work->count;
    bool mixes = work->request->mixes;
    work->dit = model->dit;
    work->one_step = model->one_step;
    work->guide = model->guide;
    for (int64_t i = 0; i < count; i++) {
        work->labels[i] = mixes ? (int32_t)i : work->request->labels[work->first + i];
        work->labels[count + i] = mixes ? (int32_t)count : model->config.num_classes;
    }
    if (!mixes)
        return NL_OK;
    for (int64_t i = 0; i < count; i++)
        weigh_noise(work, i);
    NL_CHECK(mix_labels(work, model->dit, &work->mixed[0]));
    work->dit = &work->mixed[0];
    if (model->one_step) {
        NL_CHECK(mix_labels(work, model->one_step, &work->mixed[1]));
        work->one_step = &work->mixed[1];
    }
    if (model->guide) {
        NL_CHECK(mix_labels(work, model->guide, &work->mixed[2]));
        work->guide = &work->mixed[2];
    }
    return NL_OK;
}

/* One batch: latents on the host. On a measuring device only its memory is worked out. */
static nl_status sample_batch(nl_work *work)
{
    nl_device *device = work->device;
    const nl_sampling *sampling = &work->sampling;
    nl_status status = NL_OK;
    int64_t mark = nl_arena_mark(device), count = work->count;
    nl_tensor x, labels;
    work->step = 0;
    work->shown = false;
    for (int64_t i = 0; i < count; i++) {
        work->images[i] = image_index(work, work->first + i);
        work->evaluations[i] = 0;
    }
    NL_TRY(set_labels(work));
    NL_TRY(nl_arena_tensor(device, NL_F32, 4,
                           (int64_t[]){count, work->shape[0], work->shape[1], work->shape[2]}, &x));
    NL_TRY(nl_arena_tensor(device, NL_I32, 1, (int64_t[]){2 * count}, &labels));
    NL_TRY(device->ops->upload(device, labels.data, work->labels, nl_tensor_bytes(&labels)));
    if (work->cropped) {
        NL_TRY(nl_arena_tensor(device, NL_F32, 2, (int64_t[]){1, NL_CROP_NUMBERS}, &work->crop));
        NL_TRY(device->ops->upload(device, work->crop.data, work->crop_numbers,
                                   nl_tensor_bytes(&work->crop)));
    }
    NL_TRY(start_noise(work, &x));
    nl_guidance guidance = {.device = device,
                            .network = network,
                            .guide = work->guide ? guide_network : NULL,
                            .user = work,
                            .labels = labels,
                            .scale = nl_sampling_scale(sampling),
                            .channels = sampling->cfg_channels,
                            .low = sampling->cfg_interval[0],
                            .high = sampling->cfg_interval[1],
                            .guide_scale = sampling->guide_scale,
                            .guide_low = sampling->guide_interval[0],
                            .guide_high = sampling->guide_interval[1]};
    nl_sample_job job = {.device = device,
                         .model = nl_guidance_model(&guidance),
                         .noise = {step_noise, work},
                         .step = step_done,
                         .user = work,
                         .evaluations = work->evaluations};
    NL_TRY(nl_sampler_run(work->sampler, &job, &x));
    NL_TRY(device->ops->download(device, work->latents, x.data, nl_tensor_bytes(&x)));
cleanup:
    nl_arena_release(device, mark);
    return status;
}

/* Bytes of the arena for a batch of `count`. */
static nl_status measure(nl_work *work, int64_t count, int64_t *bytes)
{
    nl_device measuring;
    int64_t preview = 0;
    nl_status status = NL_OK;
    nl_device_measuring(work->model->context->device, &measuring);
    work->device = &measuring;
    work->first = 0;
    work->count = count;
    NL_TRY(sample_batch(work));
    if (work->request->preview_every > 0)
        NL_TRY(nl_preview_bytes(work->model, work->shape, &preview));
    *bytes = measuring.arena_peak + preview;
cleanup:
    work->device = work->model->context->device;
    return status;
}

static void free_batch(nl_work *work)
{
    nl_context *context = work->model->context;
    nl_free(context, work->images);
    nl_free(context, work->others);
    nl_free(context, work->weights);
    nl_free(context, work->labels);
    nl_free(context, work->evaluations);
    nl_free(context, work->latents);
    nl_free(context, work->rgb);
    work->images = work->others = work->evaluations = NULL;
    work->weights = NULL;
    work->labels = NULL;
    work->latents = NULL;
    work->rgb = NULL;
}

/* Host memory for batches of up to `most`. */
static nl_status allocate_batch(nl_work *work, int64_t most)
{
    nl_context *context = work->model->context;
    int64_t pixels = 0;
    work->most = most;
    NL_CHECK(NL_NEW_ARRAY(context, "image indices", most, &work->images));
    if (work->request->mixes) {
        NL_CHECK(NL_NEW_ARRAY(context, "image indices", most, &work->others));
        NL_CHECK(NL_NEW_ARRAY(context, "weights of noise", 2 * most, &work->weights));
    }
    NL_CHECK(NL_NEW_ARRAY(context, "labels", 2 * most, &work->labels));
    NL_CHECK(NL_NEW_ARRAY(context, "evaluations", most, &work->evaluations));
    NL_CHECK(NL_NEW_ARRAY(context, "latents", most * work->elements, &work->latents));
    /* The measuring device downloads zeros into it and reads noise from nowhere. */
    if (work->model->vae) {
        int64_t factor = nl_vae_factor(work->model->vae);
        pixels = work->shape[1] * factor * work->shape[2] * factor;
        NL_CHECK(NL_NEW_SIZED(context, "pictures", most * pixels, 3, &work->rgb));
    }
    return NL_OK;
}

/* Larger ones gain nothing: the products of a layer are large enough. */
int nl_model_batch(const nl_model *model)
{
    return !strncmp(model->context->device->ops->name, "cuda", 4) ? 64 : 4;
}

/* The largest batch up to the cap that the budget has room for; the memory of larger ones is given back. */
static nl_status choose_batch(nl_work *work)
{
    nl_context *context = work->model->context;
    nl_device *device = context->device;
    int64_t cap = work->request->batch > 0 ? work->request->batch : nl_model_batch(work->model);
    int64_t low = 1, high = NL_MIN(cap, work->request->count), bytes = 0;
    nl_status status = NL_OK;
    while (high > 1) { /* the host's share */
        status = allocate_batch(work, high);
        if (status != NL_ERROR_MEMORY)
            break;
        free_batch(work);
        high = (high + 1) / 2;
    }
    if (high == 1)
        status = allocate_batch(work, 1);
    NL_TRY(status);
    int64_t have = nl_memory_left(context);
    if (!nl_add_size(have, device->arena_size, &have))
        have = INT64_MAX;
    for (int64_t batch = high; low < high; batch = (low + high + 1) / 2) {
        NL_TRY(measure(work, batch, &bytes));
        if (bytes <= have)
            low = batch;
        else
            high = batch - 1;
    }
    work->most = work->most_decoded = low;
cleanup:
    return status;
}

/* The arena goes back too: what a back end takes beside it may be what was missing. */
static void halve(nl_work *work)
{
    nl_context *context = work->model->context;
    nl_arena_free(context->device);
    work->most = (work->most + 1) / 2;
    nl_log(context, NL_LOG_INFO, "not enough memory: a batch of %lld now", (long long)work->most);
}

/* Room for the batch, halving it while memory is short. */
static nl_status reserve(nl_work *work)
{
    nl_context *context = work->model->context;
    int64_t bytes = 0;
    for (;;) {
        nl_status status = measure(work, work->most, &bytes);
        if (status == NL_OK)
            status = nl_arena_reserve(context->device, bytes);
        if (status != NL_ERROR_MEMORY || work->most == 1)
            return status;
        halve(work);
    }
}

/* As many at once as the memory allows. Where it is short the sampler's arena goes first; what a back end takes
 * beside the arena nobody knows beforehand. */
static nl_status decode(nl_work *work, int64_t picture_bytes)
{
    nl_context *context = work->model->context;
    nl_status status = NL_OK;
    float shift = work->request->rounding == NL_ROUNDING_ADM ? 127.5f : 128;
    int64_t done = 0;
    bool freed = false;
    while (done < work->count) {
        int64_t count = NL_MIN(work->most_decoded, work->count - done);
        status = nl_vae_decode_rounded(work->model->vae, work->latents + done * work->elements,
                                       count, work->shape[1], work->shape[2], shift,
                                       work->rgb + done * picture_bytes);
        if (status == NL_OK)
            done += count;
        else if (status != NL_ERROR_MEMORY || (freed && count == 1))
            return status;
        else if (freed)
            work->most_decoded = (count + 1) / 2;
        if (status != NL_OK)
            nl_arena_free(context->device);
        freed |= status != NL_OK;
    }
    return NL_OK;
}

static nl_status deliver(nl_work *work, nl_status (*picture)(void *, const nl_picture *),
                         void *user)
{
    nl_model *model = work->model;
    int factor = model->vae ? nl_vae_factor(model->vae) : 0;
    int64_t height = work->shape[1] * factor, width = work->shape[2] * factor;
    if (model->vae) {
        nl_progress progress = progress_of(work, "decoding", nl_sampler_steps(work->sampler),
                                           nl_sampler_steps(work->sampler));
        NL_CHECK(nl_report_progress(model->context, &progress));
        NL_CHECK(decode(work, height * width * 3));
        nl_log(model->context, NL_LOG_DEBUG, "%lld pictures", (long long)work->count);
    }
    for (int64_t i = 0; i < work->count; i++) {
        nl_picture made = {.index = image_index(work, work->first + i),
                           .label = work->request->labels[work->first + i],
                           .height = (int)height,
                           .width = (int)width,
                           .rgb = work->rgb ? work->rgb + i * height * width * 3 : NULL,
                           .latents = work->latents + i * work->elements,
                           .evaluations = work->evaluations[i]};
        memcpy(made.latent_shape, work->shape, sizeof(work->shape));
        NL_CHECK(picture(user, &made));
    }
    return NL_OK;
}

static nl_status run_batches(nl_work *work, nl_status (*picture)(void *, const nl_picture *),
                             void *user)
{
    nl_status status = NL_OK;
    const nl_request *request = work->request;
    for (int64_t done = 0; done < request->count;) {
        NL_TRY(reserve(work)); /* decoding may have replaced the arena */
        nl_log(work->model->context, NL_LOG_DEBUG, "a batch of up to %lld in %.1f MiB",
               (long long)work->most, (double)work->device->arena_size / (1 << 20));
        work->first = done;
        work->count = NL_MIN(work->most, request->count - done);
        nl_progress progress = progress_of(work, "sampling", 0, nl_sampler_steps(work->sampler));
        NL_TRY(nl_report_progress(work->model->context, &progress));
        status = sample_batch(work);
        if (status == NL_ERROR_MEMORY && work->most > 1) {
            halve(work);
            continue;
        }
        NL_TRY(status);
        nl_log(work->model->context, NL_LOG_DEBUG, "%lld latents", (long long)work->count);
        NL_TRY(deliver(work, picture, user));
        done += work->count;
    }
cleanup:
    return status;
}

nl_status nl_generate(nl_model *model, const nl_request *request,
                      nl_status (*picture)(void *user, const nl_picture *picture), void *user)
{
    nl_request taken;
    nl_status status =
        nl_take_options(model->context, "request", request, sizeof(taken), &taken, sizeof(taken));
    return status != NL_OK ? status : nl_generate_observed(model, &taken, NULL, picture, user);
}

nl_status nl_generate_observed(nl_model *model, const nl_request *request,
                               const nl_observer *observer,
                               nl_status (*picture)(void *user, const nl_picture *picture),
                               void *user)
{
    nl_context *context = model->context;
    nl_status status = NL_OK;
    nl_work work = {
        .model = model, .request = request, .observer = observer, .device = context->device};
    nl_sampler_options options;
    NL_TRY(nl_check_request(model, request, picture != NULL));
    NL_TRY(nl_sampling_resolve(context, &model->config, nl_model_guide_config(model),
                               &request->sampling, &work.sampling));
    NL_TRY(nl_sampler_options_for(context, &model->config, &work.sampling, &options));
    if (observer && request->mixes)
        NL_TRY(nl_fail(context, NL_ERROR_USAGE, "request: mixes cannot be observed"));
    if (observer && nl_methods[options.method].family == NL_FAMILY_ADAPTIVE)
        NL_TRY(nl_fail(context, NL_ERROR_USAGE,
                       "sampler %s: each picture has times of its own; choose heun or another "
                       "with a fixed number of steps",
                       work.sampling.sampler));
    work.cropped = nl_sampling_crop(&work.sampling, work.crop_numbers);
    NL_TRY(nl_sampler_create(context, &options, &work.sampler));
    nl_model_latent_shape(model, work.shape);
    work.elements = (int64_t)work.shape[0] * work.shape[1] * work.shape[2];
    if (request->preview_every > 0)
        NL_TRY(NL_NEW_ARRAY(context, "preview", work.elements, &work.preview));
    NL_TRY(choose_batch(&work));
    NL_TRY(run_batches(&work, picture, user));
cleanup:
    free_batch(&work);
    nl_free(context, work.preview);
    nl_sampler_destroy(work.sampler);
    return status;
}
