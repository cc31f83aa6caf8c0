/* SPDX-License-Identifier: MIT */
/* Norm-aware linear attention backward, equation by equation (docs/nala-attention.md): the features are computed
 * again, S and z are those of the forward pass. */
#include "nala_features.h"

#include <string.h>

/* Derivative of x^p for x >= 0; 0 at x = 0 whatever p. */
static double power_slope(double x, double p)
{
    return x > 0 ? p * pow(x, p - 1) : 0;
}

/* r = relu(x), phi = |r| r^lambda / (|r^lambda| + 1e-6) */
static void power_backward(const double *x, int64_t d, double lambda, const double *dphi,
                           double *dx)
{
    double squares = 0, powers = 0, product = 0;
    for (int64_t i = 0; i < d; i++) {
        double power = nl_relu_power(x[i], lambda);
        squares += x[i] > 0 ? x[i] * x[i] : 0;
        powers += power * power;
        product += dphi[i] * power;
    }
    double norm = sqrt(squares), power_norm = sqrt(powers), sum = power_norm + nl_nala_epsilon;
    for (int64_t i = 0; i < d; i++) {
        double power = nl_relu_power(x[i], lambda);
        double dpower = norm / sum * dphi[i];
        if (power_norm > 0)
            dpower -= product * norm / (sum * sum) * power / power_norm;
        dx[i] = dpower * power_slope(x[i], lambda);
        if (x[i] > 0)
            dx[i] += product / sum * x[i] / norm;
    }
}

/* The gradient by the logarithms of a head's lambda and tau. */
typedef struct log_exponents {
    double lambda, tau;
} log_exponents;

/* The maps in which magnitude = |base|^exponent, base the direction of a query or the key itself, stands in the
 * cosine and sine of an angle or on the side of the sign. dphi [2d] -> dx [d]; *gradient is added to */
static void magnitude_backward(const nl_nala_attention_args *args, bool query, const double *x,
                               const double *dphi, double *dx, log_exponents *gradient)
{
    int64_t d = args->head_size;
    double norm = nl_norm2(x, d), sum = norm + nl_nala_epsilon;
    bool varies = query && nl_feature_map_norm_aware(args->feature_map);
    bool split = args->feature_map == NL_FEATURES_SPLIT;
    double growth = tanh(args->norm_scale * norm);
    double p = varies ? args->lambda * (args->tau + growth) : args->lambda;
    double dexponent = 0, along = 0; /* along: gradient of the direction times x */
    for (int64_t i = 0; i < d; i++) {
        double direction = x[i] / sum, base = query ? direction : x[i], magnitude = fabs(base);
        double tangent = tanh(direction), angle = nl_pi / 4 * tangent, dbase, ddirection = 0;
        double power = nl_relu_power(magnitude, p), dpower;
        if (split) {
            dpower = base > 0 ? dphi[i] : dphi[d + i];
        } else {
            dpower = dphi[i] * cos(angle) + dphi[d + i] * sin(angle);
            ddirection = power * nl_pi / 4 * (1 - tangent * tangent) *
                         (dphi[d + i] * cos(angle) - dphi[i] * sin(angle));
        }
        dexponent += magnitude > 0 ? power * log(magnitude) * dpower : 0;
        dbase = power_slope(magnitude, p) * (base < 0 ? -dpower : dpower);
        if (query)
            ddirection += dbase;
        along += ddirection * x[i];
        dx[i] = ddirection / sum + (query ? 0 : dbase);
    }
    double dnorm = -along / (sum * sum);
    if (varies)
        dnorm += dexponent * args->lambda * args->norm_scale * (1 - growth * growth);
    gradient->lambda += dexponent * p;
    gradient->tau += varies ? dexponent * args->lambda * args->tau : 0;
    for (int64_t i = 0; i < d; i++)
        dx[i] += norm > 0 ? dnorm * x[i] / norm : 0;
}

/* dphi [F] -> dx [d], of nl_features(x) */
static void features_backward(const nl_nala_attention_args *args, bool query, const double *x,
                              const double *dphi, double *dx, log_exponents *gradient)
{
    int64_t d = args->head_size;
    switch (args->feature_map) {
    case NL_FEATURES_COSINE:
    case NL_FEATURES_COSINE_CONSTANT:
    case NL_FEATURES_SPLIT:
        magnitude_backward(args, query, x, dphi, dx, gradient);
        break;
    case NL_FEATURES_RELU:
        for (int64_t i = 0; i < d; i++)
            dx[i] = x[i] > 0 ? dphi[i] : 0;
        break;
    case NL_FEATURES_ELU1:
        for (int64_t i = 0; i < d; i++)
            dx[i] = x[i] > 0 ? dphi[i] : dphi[i] * exp(x[i]);
        break;
    case NL_FEATURES_POWER:
        power_backward(x, d, args->lambda, dphi, dx);
        break;
    }
}

/* One image and head. */
typedef struct head_view {
    const nl_nala_attention_backward_args *args;
    nl_nala_attention_args forward; /* the options, with the head's own exponents */
    int64_t index, row, column;     /* image * heads + head; of the first token; of the head */
    int64_t width;                  /* F */
    double *dstate, *dtotal;        /* [F, d], [F] */
    double *phi, *rotated, *dphi;   /* [F] */
    double *x, *u, *dx;             /* [d] */
    log_exponents *dexponents;
} head_view;

/* x of a token and its features; part: 0 for queries, 1 for keys. */
static void load(const head_view *view, int64_t token, int64_t part)
{
    int64_t size = view->forward.heads * view->forward.head_size;
    for (int64_t i = 0; i < view->forward.head_size; i++)
        view->x[i] = nl_get(&view->args->qkvg, view->row + token, part * size + view->column + i);
    nl_features(&view->forward, part == 0, view->x, view->phi);
    memcpy(view->rotated, view->phi, (size_t)view->width * sizeof(double));
    if (view->forward.rope)
        nl_rotate(&view->forward, token, view->width, 1, view->rotated);
}

static void store(const head_view *view, int64_t token, int64_t part)
{
    int64_t size = view->forward.heads * view->forward.head_size;
    for (int64_t i = 0; i < view->forward.head_size; i++)
        nl_put(&view->args->dqkv, view->row + token, part * size + view->column + i, view->dx[i]);
}

/* u = do / denominator: dphi = S u - (u o) z; dS += phi^T u, dz -= (u o) phi. */
static void query_backward(const head_view *view, int64_t token)
{
    const nl_nala_attention_backward_args *a = view->args;
    int64_t d = a->head_size;
    double denominator = nl_nala_epsilon, product = 0;
    load(view, token, 0);
    for (int64_t f = 0; f < view->width; f++)
        denominator += view->phi[f] * nl_get(&a->total, view->index, f);
    for (int64_t i = 0; i < d; i++) {
        view->u[i] = nl_get(&a->dout, view->row + token, view->column + i) / denominator;
        product += view->u[i] * nl_get(&a->out, view->row + token, view->column + i);
    }
    for (int64_t f = 0; f < view->width; f++) {
        view->dphi[f] = 0;
        for (int64_t i = 0; i < d; i++) {
            view->dphi[f] += nl_get(&a->state, view->index * view->width + f, i) * view->u[i];
            view->dstate[f * d + i] += view->rotated[f] * view->u[i];
        }
        view->dtotal[f] -= product * view->phi[f];
    }
    if (a->rope)
        nl_rotate(&view->forward, token, view->width, -1, view->dphi);
    for (int64_t f = 0; f < view->width; f++)
        view->dphi[f] -= product * nl_get(&a->total, view->index, f);
    features_backward(&view->forward, true, view->x, view->dphi, view->dx, view->dexponents);
    store(view, token, 0);
}

/* dphi = (dS v + dz) / N, dv = phi dS / N. */
static void key_backward(const head_view *view, int64_t token)
{
    const nl_nala_attention_backward_args *a = view->args;
    int64_t d = a->head_size, size = a->heads * d;
    load(view, token, 1);
    for (int64_t f = 0; f < view->width; f++) {
        view->dphi[f] = 0;
        for (int64_t i = 0; i < d; i++)
            view->dphi[f] += view->dstate[f * d + i] / a->tokens *
                             nl_get(&a->qkvg, view->row + token, 2 * size + view->column + i);
    }
    if (a->rope)
        nl_rotate(&view->forward, token, view->width, -1, view->dphi);
    for (int64_t f = 0; f < view->width; f++)
        view->dphi[f] += view->dtotal[f] / a->tokens;
    features_backward(&view->forward, false, view->x, view->dphi, view->dx, view->dexponents);
    store(view, token, 1);
    for (int64_t i = 0; i < d; i++) {
        view->dx[i] = 0;
        for (int64_t f = 0; f < view->width; f++)
            view->dx[i] += view->rotated[f] * view->dstate[f * d + i] / a->tokens;
    }
    store(view, token, 2);
}

/* qkvg [B * T, >= 3D]; out, dout [B * T, D]; state [B * h, F, d], total [B * h, F] -> dqkv [B * T, >= 3D] */
nl_status nl_reference_nala_attention_backward(nl_device *device,
                                               const nl_nala_attention_backward_args *args)
{
    int64_t d = args->head_size, width = nl_feature_width(args->feature_map, d);
    nl_status status = NL_OK;
    head_view view = {.args = args, .width = width};
    nl_nala_attention_args forward = nl_nala_forward_of(args);
    NL_TRY(NL_NEW_ARRAY(device->context, "gradients of a head", width * (d + 4) + 3 * d,
                        &view.dstate));
    view.dtotal = view.dstate + width * d;
    view.phi = view.dtotal + width;
    view.rotated = view.phi + width;
    view.dphi = view.rotated + width;
    view.x = view.dphi + width;
    view.u = view.x + d;
    view.dx = view.u + d;
    for (view.index = 0; view.index < args->batch * args->heads; view.index++) {
        view.row = view.index / args->heads * args->tokens;
        int64_t head = view.index % args->heads;
        log_exponents dexponents = {0, 0};
        view.column = head * d;
        view.forward = nl_nala_of_head(&forward, head);
        view.dexponents = &dexponents;
        memset(view.dstate, 0, (size_t)(width * (d + 1)) * sizeof(double)); /* and dtotal */
        for (int64_t token = 0; token < args->tokens; token++)
            query_backward(&view, token);
        for (int64_t token = 0; token < args->tokens; token++)
            key_backward(&view, token);
        if (args->dlog_lambda.data) {
            nl_add(&args->dlog_lambda, 0, head, dexponents.lambda);
            nl_add(&args->dlog_tau, 0, head, dexponents.tau);
        }
    }
    nl_reference_column_sums(&args->dqkv, &args->sums);
cleanup:
    nl_free(device->context, view.dstate);
    return status;
}
