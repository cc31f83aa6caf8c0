/* SPDX-License-Identifier: MIT */
/* Bits per dimension: the flow from data to noise with the divergence estimated by random probes. */
#include "likelihood.h"

#include <math.h>
#include <string.h>

#include "nl_data.h"
#include "nl_path.h"
#include "nl_pipeline.h"
#include "nl_random.h"
#include "nl_train.h"

enum { STREAM_PROBE = NL_STREAM_STEP, STREAM_DEQUANTIZE = NL_STREAM_STEP - 1 };

typedef struct nl_likelihood {
    nl_context *context;
    nl_device *device; /* the context's or a measuring one */
    const nl_likelihood_options *options;
    nl_dataset *data;
    const nl_dataset_info *info;
    nl_dit *dit;
    nl_flow flow;
    double t0, t1;
    int64_t batch, elements; /* images of a batch; numbers of an image */
    nl_tensor x, half, first,
        second;                    /* [B, C, H, W]: state, state of the second stage, predictions */
    float *host;                   /* [2, batch * elements] */
    double *divergence, *integral; /* [batch] */
    double *bits;                  /* [batch] per dimension, mean of the probes */
    double sum, square;            /* of bits */
} nl_likelihood;

nl_status nl_flow_evaluate(nl_flow *flow, const nl_tensor *x, double t, const nl_tensor *prediction,
                           double *estimate)
{
    nl_status status = NL_OK;
    nl_device *device = flow->device;
    nl_dit_saved saved = {0};
    int64_t batch = x->shape[0], count = nl_tensor_count(x), mark = nl_arena_mark(device);
    for (int64_t b = 0; b < batch; b++)
        flow->host[b] = (float)t;
    NL_TRY(device->ops->upload(device, flow->t.data, flow->host, nl_tensor_bytes(&flow->t)));
    NL_TRY(device->ops->sync(device)); /* host is used again */
    NL_TRY(nl_dit_forward_saving(flow->dit, device, x, &flow->t, &flow->labels,
                                 flow->crop.data ? &flow->crop : NULL, false, NULL, prediction,
                                 NULL, &saved));
    NL_TRY(nl_dit_backward(flow->dit, device, &saved, &flow->probe, NULL, flow->gradients,
                           &flow->dx, NULL, NULL));
    float *dx = flow->host, *probe = flow->host + count;
    NL_TRY(device->ops->download(device, dx, flow->dx.data, nl_tensor_bytes(&flow->dx)));
    NL_TRY(device->ops->download(device, probe, flow->probe.data, nl_tensor_bytes(&flow->probe)));
    for (int64_t b = 0; b < batch; b++) {
        double sum = 0;
        for (int64_t i = b * (count / batch); i < (b + 1) * (count / batch); i++)
            sum += (double)dx[i] * probe[i];
        estimate[b] = sum;
    }
cleanup:
    nl_dit_saved_free(device, &saved);
    nl_arena_release(device, mark);
    return status;
}

/* y = sum of coefficients times tensors. */
static nl_status combine(nl_likelihood *work, int terms, const nl_tensor *const *x,
                         const double *coefficients, const nl_tensor *y)
{
    nl_combine_args args = {.terms = terms, .coefficients = coefficients, .y = *y};
    for (int i = 0; i < terms; i++)
        args.x[i] = *x[i];
    return nl_op_combine(work->device, &args);
}

/* One step of the trapezoidal rule from t to t - h; integral += that of the divergence. */
static nl_status step(nl_likelihood *work, double t, double h)
{
    const nl_config *config = &work->dit->config;
    nl_flow *flow = &work->flow;
    nl_linear_form a = nl_path_velocity(config->path, config->prediction, t);
    nl_linear_form b = nl_path_velocity(config->path, config->prediction, t - h);
    if (!isfinite(a.x) || !isfinite(a.f) || !isfinite(b.x) || !isfinite(b.f))
        return nl_fail(work->context, NL_ERROR_USAGE,
                       "the drift divides by zero between t = %g and %g: choose a \"sample_eps\" "
                       "above 0 with --config",
                       t, t - h);
    NL_CHECK(nl_flow_evaluate(flow, &work->x, t, &work->first, work->divergence));
    for (int64_t i = 0; i < work->batch; i++)
        work->integral[i] += h / 2 * (a.x * (double)work->elements + a.f * work->divergence[i]);
    NL_CHECK(combine(work, 2, (const nl_tensor *[]){&work->x, &work->first},
                     (double[]){1 - h * a.x, -h * a.f}, &work->half));
    NL_CHECK(nl_flow_evaluate(flow, &work->half, t - h, &work->second, work->divergence));
    for (int64_t i = 0; i < work->batch; i++)
        work->integral[i] += h / 2 * (b.x * (double)work->elements + b.f * work->divergence[i]);
    return combine(work, 4,
                   (const nl_tensor *[]){&work->x, &work->first, &work->half, &work->second},
                   (double[]){1 - h / 2 * a.x, -h / 2 * a.f, -h / 2 * b.x, -h / 2 * b.f}, &work->x);
}

/* +1 or -1 by (seed, image, repetition, element). */
static void draw_probe(const nl_likelihood *work, int64_t image, int64_t repetition, float *probe)
{
    uint32_t words[4];
    for (int64_t i = 0; i < work->elements; i++) {
        if (i % 4 == 0)
            nl_philox(work->options->seed, (uint64_t)image, (uint64_t)(STREAM_PROBE + repetition),
                      (uint64_t)i, words);
        probe[i] = words[i % 4] >> 31 ? 1.0f : -1.0f;
    }
}

/* The model's x of an image: latents scaled, moments drawn, pixels dequantised by uniform noise as wide as a
 * level. */
static nl_status read_image(const nl_likelihood *work, int64_t image, float *raw, float *x)
{
    nl_status status = nl_dataset_read(work->data, image, false, raw);
    const nl_config *config = &work->dit->config;
    uint64_t seed = work->options->seed;
    if (status != NL_OK)
        return status;
    for (int64_t i = 0; i < work->elements; i++) {
        double value = raw[i];
        if (work->info->kind == NL_DATA_MOMENTS) {
            float normals[4];
            nl_philox_normal4(seed, (uint64_t)image, NL_STREAM_POSTERIOR, (uint64_t)i, normals);
            value += exp(0.5 * raw[work->elements + i]) * normals[i % 4];
        } else if (work->info->kind == NL_DATA_PIXELS) {
            value +=
                (nl_philox_uniform(seed, (uint64_t)image, STREAM_DEQUANTIZE, (uint64_t)i) - 0.5) /
                127.5;
        }
        x[i] = (float)(config->latent_scale * (value - config->latent_shift));
    }
    return NL_OK;
}

/* Images first, first + 1, ...; the last ones repeat where the data end. */
static nl_status load_batch(nl_likelihood *work, int64_t first, int64_t count, int64_t repetition)
{
    nl_status status = NL_OK;
    nl_device *device = work->device;
    float *raw = NULL;
    int32_t *labels = NULL;
    float *crops = NULL;
    int64_t elements = work->elements;
    float *x = work->host, *probe = work->host + work->batch * elements;
    NL_TRY(NL_NEW_ARRAY(work->context, "a sample", 2 * elements, &raw));
    NL_TRY(NL_NEW_ARRAY(work->context, "labels", work->batch, &labels));
    NL_TRY(NL_NEW_ARRAY(work->context, "crops", work->batch * NL_CROP_NUMBERS, &crops));
    for (int64_t b = 0; b < work->batch; b++) {
        int64_t image = NL_MIN(first + b, count - 1);
        NL_TRY(read_image(work, image, raw, x + b * elements));
        draw_probe(work, image, repetition, probe + b * elements);
        labels[b] = nl_dataset_label(work->data, image);
        nl_dataset_crop(work->data, image, false, crops + b * NL_CROP_NUMBERS);
        work->integral[b] = 0;
    }
    NL_TRY(device->ops->upload(device, work->x.data, x, nl_tensor_bytes(&work->x)));
    NL_TRY(device->ops->upload(device, work->flow.probe.data, probe, nl_tensor_bytes(&work->x)));
    NL_TRY(device->ops->upload(device, work->flow.labels.data, labels,
                               nl_tensor_bytes(&work->flow.labels)));
    if (work->flow.crop.data)
        NL_TRY(device->ops->upload(device, work->flow.crop.data, crops,
                                   nl_tensor_bytes(&work->flow.crop)));
    NL_TRY(device->ops->sync(device));
cleanup:
    nl_free(work->context, raw);
    nl_free(work->context, crops);
    nl_free(work->context, labels);
    return status;
}

/* log p(x_1) = log N(x_0; 0, 1) - integral of the divergence; then in bits of one of 256 levels for pixels. */
static nl_status add_probe(nl_likelihood *work)
{
    nl_device *device = work->device;
    const double log_tau = log(2 * 3.14159265358979323846);
    double scale = work->dit->config.latent_scale;
    double level = work->info->kind == NL_DATA_PIXELS ? log(127.5 / scale) : -log(scale);
    nl_status status =
        device->ops->download(device, work->host, work->x.data, nl_tensor_bytes(&work->x));
    for (int64_t b = 0; status == NL_OK && b < work->batch; b++) {
        double log_p = -work->integral[b], elements = (double)work->elements;
        for (int64_t i = 0; i < work->elements; i++) {
            double z = work->host[b * work->elements + i];
            log_p -= (z * z + log_tau) / 2;
        }
        work->bits[b] += (level - log_p / elements) / log(2) / (double)work->options->probes;
    }
    return status;
}

static nl_status take_memory(nl_likelihood *work)
{
    nl_device *device = work->device;
    const nl_config *config = &work->dit->config;
    int64_t shape[4] = {work->batch, config->in_channels, config->input_height,
                        config->input_width};
    nl_tensor *const all[] = {&work->x,      &work->half,       &work->first,
                              &work->second, &work->flow.probe, &work->flow.dx};
    work->flow.device = device;
    for (int i = 0; i < NL_COUNT(all); i++)
        NL_CHECK(nl_arena_tensor(device, NL_F32, 4, shape, all[i]));
    NL_CHECK(nl_arena_tensor(device, NL_F32, 1, shape, &work->flow.t));
    NL_CHECK(nl_arena_tensor(device, NL_I32, 1, shape, &work->flow.labels));
    if (config->crop_conditioning)
        NL_CHECK(nl_arena_tensor(device, NL_F32, 2, (int64_t[]){work->batch, NL_CROP_NUMBERS},
                                 &work->flow.crop));
    return NL_OK;
}

static nl_status reserve(nl_likelihood *work)
{
    nl_device measuring;
    nl_status status = NL_OK;
    nl_device_measuring(work->context->device, &measuring);
    work->device = &measuring;
    NL_TRY(take_memory(work));
    NL_TRY(nl_flow_evaluate(&work->flow, &work->x, 0.5, &work->first, work->divergence));
    NL_TRY(nl_arena_reserve(work->context->device, measuring.arena_peak));
    work->device = work->context->device;
    NL_TRY(take_memory(work));
cleanup:
    work->device = work->context->device;
    return status;
}

static nl_status open_model(nl_likelihood *work)
{
    nl_status status = NL_OK;
    nl_context *context = work->context;
    const nl_likelihood_options *options = work->options;
    nl_checkpoint *file = NULL;
    nl_config config;
    nl_config_init(&config);
    NL_TRY(nl_open_backbone(context, options->model, options->key, &file));
    NL_TRY(nl_read_config(file, &(nl_model_options){.config_path = options->config}, &config));
    if (config.architecture != NL_ARCH_SIT)
        NL_TRY(nl_fail(context, NL_ERROR_USAGE,
                       "%s: the probability flow of a SiT is wanted, found a DiT", options->model));
    const nl_dataset_info *info = work->info;
    if (config.in_channels != info->channels || config.input_height != info->height ||
        config.input_width != info->width || config.num_classes != info->classes)
        NL_TRY(
            nl_fail(context, NL_ERROR_USAGE,
                    "%s is a model of %d x %d x %d and %d classes, and %s has %d x %d x %d and %d",
                    options->model, config.in_channels, config.input_height, config.input_width,
                    config.num_classes, options->data, info->channels, info->height, info->width,
                    info->classes));
    if (config.crop_conditioning && !info->crops_known)
        NL_TRY(
            nl_fail(context, NL_ERROR_USAGE,
                    "%s: its samples are parts of pictures, and an older nalagen did not write "
                    "down which, as the model (\"crop_conditioning\") has to be told: encode again",
                    options->data));
    for (int i = 0; config.class_names && i < info->classes; i++) {
        const nl_class_name *name = &config.class_names[i];
        const nl_class_name data = {(char *)info->class_ids[i], (char *)info->class_names[i]};
        if (!nl_class_name_equal(name, &data))
            NL_TRY(nl_fail(context, NL_ERROR_USAGE,
                           "%s and %s: class %d is '%s' there, '%s' here: encode data of the "
                           "model's classes, in their order",
                           options->model, options->data, i, name->name ? name->name : name->wnid,
                           info->class_names[i]));
    }
    nl_path_interval(config.path, config.prediction, false, NL_SDE_SIGMA, config.sample_eps, 0,
                     &work->t0, &work->t1);
    NL_TRY(nl_dit_create(context->device, &config, &work->dit));
    NL_TRY(nl_dit_load(work->dit, file));
    NL_TRY(nl_dit_create_flat(context->device, &config, &work->flow.gradients));
    work->flow.dit = work->dit;
    work->elements = (int64_t)info->channels * info->height * info->width;
cleanup:
    nl_config_free(context, &config);
    nl_checkpoint_close(file);
    return status;
}

/* The batch with one probe, from the data to the noise. */
static nl_status run_probe(nl_likelihood *work, int64_t first, int64_t count, int64_t repetition)
{
    const nl_likelihood_options *options = work->options;
    double h = (work->t1 - work->t0) / (double)options->steps;
    NL_CHECK(load_batch(work, first, count, repetition));
    for (int64_t k = 0; k < options->steps; k++) {
        nl_progress progress = {.stage = "likelihood",
                                .step = repetition * options->steps + k,
                                .steps = options->probes * options->steps,
                                .image = first,
                                .images = count,
                                .batch = work->batch};
        NL_CHECK(nl_report_progress(work->context, &progress));
        NL_CHECK(step(work, work->t1 - (double)k * h, h));
    }
    return add_probe(work);
}

static nl_status run(nl_likelihood *work, int64_t count)
{
    for (int64_t first = 0; first < count; first += work->batch) {
        memset(work->bits, 0, (size_t)work->batch * sizeof(*work->bits));
        for (int64_t repetition = 0; repetition < work->options->probes; repetition++)
            NL_CHECK(run_probe(work, first, count, repetition));
        for (int64_t b = 0; b < NL_MIN(work->batch, count - first); b++) {
            work->sum += work->bits[b];
            work->square += work->bits[b] * work->bits[b];
        }
    }
    return NL_OK;
}

nl_status nl_measure_likelihood(nl_context *context, const nl_likelihood_options *options,
                                nl_likelihood_result *result)
{
    nl_status status = NL_OK;
    nl_likelihood work = {.context = context, .device = context->device, .options = options};
    NL_TRY(nl_dataset_open(context, options->data, &work.data));
    work.info = nl_dataset_get_info(work.data);
    NL_TRY(open_model(&work));
    int64_t count = options->count ? NL_MIN(options->count, work.info->count) : work.info->count;
    work.batch = NL_MIN(options->batch, count);
    NL_TRY(NL_NEW_ARRAY(context, "images", 2 * work.batch * work.elements, &work.host));
    work.flow.host = work.host;
    NL_TRY(NL_NEW_ARRAY(context, "divergences", 3 * work.batch, &work.divergence));
    work.integral = work.divergence + work.batch;
    work.bits = work.integral + work.batch;
    NL_TRY(reserve(&work));
    NL_TRY(run(&work, count));
    double n = (double)count, mean = work.sum / n;
    *result =
        (nl_likelihood_result){.bits_per_dimension = mean,
                               .standard_error = sqrt(fmax(work.square / n - mean * mean, 0) / n),
                               .count = count};
cleanup:
    nl_arena_release(context->device, 0);
    nl_free(context, work.host);
    nl_free(context, work.divergence);
    nl_dit_destroy(work.flow.gradients);
    nl_dit_destroy(work.dit);
    nl_dataset_close(work.data);
    return status;
}
