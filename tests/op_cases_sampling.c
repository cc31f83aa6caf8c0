/* SPDX-License-Identifier: MIT */
/* Cases of the samplers' operations. */
#include "op_cases.h"

static const struct guide_case {
    const char *text;
    int64_t batch, channels, height, width, guided;
    float scale;
} guide_cases[] = {
    CASE(.batch = 1, .channels = 4, .height = 8, .width = 8, .guided = 4, .scale = 3),
    CASE(.batch = 3, .channels = 4, .height = 5, .width = 7, .guided = 3, .scale = 1.5f),
    CASE(.batch = 2, .channels = 8, .height = 3, .width = 3, .guided = 3, .scale = 4),
    CASE(.batch = 2, .channels = 8, .height = 3, .width = 3, .guided = 8, .scale = 0),
};

static nl_status run_guide(op_run *run, const void *op_case)
{
    const struct guide_case *c = op_case;
    int64_t size = c->channels * c->height * c->width;
    run->batch = c->batch;
    /* Image i of a batch has two rows of the prediction: i and batch + i. */
    float *prediction = op_normal(run, 2 * c->batch * size);
    for (int half = 0; run->only >= 0 && half < 2; half++)
        memmove(prediction + half * size, prediction + (half * c->batch + run->only) * size,
                (size_t)size * sizeof(float));
    nl_guide_args args = {.scale = c->scale, .channels = c->guided};
    args.prediction =
        OP_TENSOR(run, .shape = {2 * op_images(run), c->channels, c->height, c->width},
                  .shared = true, .values = prediction);
    args.y = OP_TENSOR(run, .shape = {c->batch, c->channels, c->height, c->width}, .output = "y");
    return nl_op_guide(run->device, &args);
}

static const struct combine_case {
    const char *text;
    int terms;
    int64_t batch, size;
    bool per_image;
    int in_place; /* 1 + the term that is y; 0: none */
} combine_cases[] = {
    CASE(.terms = 1, .batch = 1, .size = 1),
    CASE(.terms = 2, .batch = 3, .size = 331),
    CASE(.terms = 2, .batch = 3, .size = 331, .in_place = 1),
    CASE(.terms = 3, .batch = 3, .size = 255, .per_image = true, .in_place = 3),
    CASE(.terms = 9, .batch = 2, .size = 1024, .per_image = true),
    CASE(.terms = 9, .batch = 1, .size = 67, .in_place = 5),
};

static nl_status run_combine(op_run *run, const void *op_case)
{
    const struct combine_case *c = op_case;
    double coefficients[NL_MAX_TERMS * 8];
    run->batch = c->batch;
    int64_t images = op_images(run);
    const float *numbers = op_normal(run, c->terms * c->batch);
    for (int64_t term = 0; term < c->terms; term++)
        for (int64_t i = 0; i < images; i++)
            coefficients[c->per_image ? term * images + i : term] =
                numbers[term * c->batch + (c->per_image ? op_first_image(run) + i : 0)];
    nl_combine_args args = {
        .terms = c->terms, .coefficients = coefficients, .per_image = c->per_image};
    args.y =
        OP_TENSOR(run, .shape = {c->batch, c->size}, .output = "y", .in_place = c->in_place > 0);
    for (int term = 0; term < c->terms; term++)
        args.x[term] =
            term + 1 == c->in_place ? args.y : OP_TENSOR(run, .shape = {c->batch, c->size});
    return nl_op_combine(run->device, &args);
}

static const struct diffusion_step_case {
    const char *text;
    int64_t batch, channels, height, width;
    bool no_noise, predicts_x_start, learned_range, clip, ddim, in_place, surplus;
    float noise_scale;
} diffusion_step_cases[] = {
    CASE(.batch = 1, .channels = 4, .height = 8, .width = 8, .learned_range = true,
         .noise_scale = 1),
    CASE(.batch = 3, .channels = 4, .height = 5, .width = 7, .learned_range = true, .clip = true,
         .noise_scale = 1, .in_place = true),
    CASE(.batch = 3, .channels = 4, .height = 5, .width = 7, .learned_range = true,
         .no_noise = true),
    CASE(.batch = 2, .channels = 3, .height = 3, .width = 3, .noise_scale = 0.5f),
    CASE(.batch = 2, .channels = 3, .height = 3, .width = 3, .predicts_x_start = true, .clip = true,
         .noise_scale = 1),
    CASE(.batch = 2, .channels = 4, .height = 8, .width = 8, .ddim = true, .no_noise = true),
    CASE(.batch = 2, .channels = 4, .height = 5, .width = 7, .ddim = true, .clip = true,
         .in_place = true, .surplus = true),
    CASE(.batch = 2, .channels = 4, .height = 5, .width = 7, .ddim = true,
         .predicts_x_start = true),
};

static nl_status run_diffusion_step(op_run *run, const void *op_case)
{
    const struct diffusion_step_case *c = op_case;
    int64_t predicted = c->learned_range || c->surplus ? 2 * c->channels : c->channels;
    run->batch = c->batch;
    /* Coefficients as of a step in the middle of the linear schedule. */
    nl_diffusion_step_args args = {.predicts_x_start = c->predicts_x_start,
                                   .learned_range = c->learned_range,
                                   .clip = c->clip,
                                   .ddim = c->ddim,
                                   .x_0_from_x = 1.381f,
                                   .x_0_from_eps = 0.952f,
                                   .mean_from_x_0 = 0.0152f,
                                   .mean_from_x = 0.9846f,
                                   .log_beta = -5.29f,
                                   .log_posterior = -5.31f,
                                   .log_variance = -5.3f,
                                   .noise_scale = c->noise_scale,
                                   .ddim_x_0 = 0.742f,
                                   .ddim_eps = 0.65f,
                                   .ddim_noise = 0.164f};
    op_spec shape = {.shape = {c->batch, c->channels, c->height, c->width}};
    op_spec y = shape;
    y.output = "y";
    y.in_place = c->in_place;
    args.y = op_tensor(run, &y);
    args.x = c->in_place ? args.y : op_tensor(run, &shape);
    args.prediction = OP_TENSOR(run, .shape = {c->batch, predicted, c->height, c->width});
    if (!c->no_noise)
        args.noise = op_tensor(run, &shape);
    return nl_op_diffusion_step(run->device, &args);
}

static const struct scaled_norm_case {
    const char *text;
    int64_t batch, size;
    bool no_b;
} scaled_norm_cases[] = {
    CASE(.batch = 1, .size = 1),
    CASE(.batch = 3, .size = 331),
    CASE(.batch = 2, .size = 4096, .no_b = true),
};

static nl_status run_scaled_norm(op_run *run, const void *op_case)
{
    const struct scaled_norm_case *c = op_case;
    double rms[8];
    run->batch = c->batch;
    run->tolerance = 1e-6;
    run->batch_tolerance = 1e-12;
    nl_scaled_norm_args args = {.atol = 1e-6, .rtol = 1e-3, .rms = rms};
    args.x = OP_TENSOR(run, .shape = {c->batch, c->size}, .scale = 1e-3);
    args.a = OP_TENSOR(run, .shape = {c->batch, c->size});
    if (!c->no_b)
        args.b = OP_TENSOR(run, .shape = {c->batch, c->size});
    nl_status status = nl_op_scaled_norm(run->device, &args);
    if (status == NL_OK)
        op_host_output(run, "rms", rms, op_images(run));
    return status;
}

static const struct normal_case {
    const char *text;
    int64_t batch, size;
    uint64_t seed, stream;
} normal_cases[] = {
    CASE(.batch = 1, .size = 1),
    CASE(.batch = 3, .size = 331, .seed = 0x123456789abcdef0u, .stream = 17),
    CASE(.batch = 2, .size = 4096, .seed = UINT64_MAX, .stream = 1016),
};

static nl_status run_normal(op_run *run, const void *op_case)
{
    const struct normal_case *c = op_case;
    static const int64_t images[] = {0, 49999, INT64_C(1) << 40};
    run->batch = c->batch;
    run->tolerance = 1e-6;
    nl_normal_args args = {
        .seed = c->seed, .stream = c->stream, .images = images + op_first_image(run)};
    args.y = OP_TENSOR(run, .shape = {c->batch, c->size}, .output = "y");
    return nl_op_normal(run->device, &args);
}

static const struct finite_case {
    const char *text;
    int64_t size, at; /* where `value` stands */
    float value;
    float before; /* of the mark */
} finite_cases[] = {
    CASE(.size = 1, .at = 0, .value = 1),
    CASE(.size = 1, .at = 0, .value = NAN),
    CASE(.size = 331, .at = 330, .value = NAN),
    CASE(.size = 331, .at = 0, .value = INFINITY),
    CASE(.size = 4099, .at = 4098, .value = -INFINITY),
    CASE(.size = 4099, .at = 2000, .value = -NAN),
    CASE(.size = 331, .at = 330, .value = NAN, .before = 7),
    CASE(.size = 331, .at = 330, .value = 1, .before = 7),
    CASE(.size = 4099, .at = 7, .value = 3e38f), /* beside another such: their sum is not finite */
};

static nl_status run_finite(op_run *run, const void *op_case)
{
    const struct finite_case *c = op_case;
    float *x = op_normal(run, c->size);
    x[c->size / 2] = x[c->size / 3] = 3e38f;
    x[c->at] = c->value;
    nl_finite_args args = {.mark = 3};
    args.x = OP_TENSOR(run, .shape = {c->size}, .values = x);
    args.found = OP_TENSOR(run, .shape = {1}, .dtype = NL_I32, .output = "found", .in_place = true,
                           .values = &c->before);
    return nl_op_finite(run->device, &args);
}

static const struct scatter_matrix_case {
    const char *text;
    int64_t rows, size;
} scatter_matrix_cases[] = {
    CASE(.rows = 1, .size = 1),   CASE(.rows = 16, .size = 64),   CASE(.rows = 17, .size = 65),
    CASE(.rows = 5, .size = 130), CASE(.rows = 100, .size = 203), CASE(.rows = 128, .size = 192),
};

static nl_status run_scatter_matrix(op_run *run, const void *op_case)
{
    const struct scatter_matrix_case *c = op_case;
    nl_scatter_matrix_args args = {0};
    run->tolerance = 1e-13; /* numbers of a mean of 100 would not reach that in single precision */
    args.x = OP_TENSOR(run, .shape = {c->rows, c->size}, .shift = 100);
    args.shift = OP_TENSOR(run, .shape = {c->size}, .shift = 100);
    args.scatter = OP_TENSOR(run, .shape = {c->size, c->size}, .dtype = NL_F64, .output = "scatter",
                             .in_place = true);
    args.sums =
        OP_TENSOR(run, .shape = {c->size}, .dtype = NL_F64, .output = "sums", .in_place = true);
    return nl_op_scatter_matrix(run->device, &args);
}

const op_family op_sampling_families[] = {
    FAMILY(guide),  FAMILY(combine), FAMILY(diffusion_step), FAMILY(scaled_norm),
    FAMILY(normal), FAMILY(finite),  FAMILY(scatter_matrix), {0},
};
