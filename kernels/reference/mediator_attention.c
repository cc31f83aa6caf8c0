/* SPDX-License-Identifier: MIT */
/* Attention through mediators and its gradients, one head at a time. */
#include "reference.h"

/* One head of one image. Scores of a token are [T, M], of mediators too. */
typedef struct head_view {
    const nl_tensor *qkv;
    const nl_mediators *sizes;
    int64_t first, tokens, count, d, hidden, column; /* first row, T, M, d, D, first column */
    double scale;
} head_view;

static head_view head_of(const nl_tensor *qkv, const nl_mediators *sizes, int64_t index,
                         float scale)
{
    int64_t tokens = sizes->grid_height * sizes->grid_width;
    return (head_view){.qkv = qkv,
                       .sizes = sizes,
                       .first = index / sizes->heads * tokens,
                       .tokens = tokens,
                       .count = sizes->side * sizes->side,
                       .d = sizes->head_size,
                       .hidden = sizes->heads * sizes->head_size,
                       .column = index % sizes->heads * sizes->head_size,
                       .scale = scale};
}

/* Element i of q (part 0), k (1) or v (2) of a token. */
static double part(const head_view *v, int which, int64_t token, int64_t i)
{
    return nl_get(v->qkv, v->first + token, which * v->hidden + v->column + i);
}

static double dot(const double *a, const double *b, int64_t count)
{
    double sum = 0;
    for (int64_t i = 0; i < count; i++)
        sum += a[i] * b[i];
    return sum;
}

/* weights [M] of a token's query on the mediators [M, d]. */
static void weigh_mediators(const head_view *v, int64_t token, const double *mediators,
                            double *weights)
{
    double maximum = -INFINITY, sum = 0;
    for (int64_t a = 0; a < v->count; a++) {
        weights[a] = 0;
        for (int64_t i = 0; i < v->d; i++)
            weights[a] += v->scale * part(v, 0, token, i) * mediators[a * v->d + i];
        maximum = fmax(maximum, weights[a]);
    }
    for (int64_t a = 0; a < v->count; a++)
        sum += weights[a] = exp(weights[a] - maximum);
    for (int64_t a = 0; a < v->count; a++)
        weights[a] /= sum;
}

/* The weight of a token's key for a mediator [d], before the sum's division. */
static double score(const head_view *v, int64_t token, const double *mediator)
{
    double sum = 0;
    for (int64_t i = 0; i < v->d; i++)
        sum += mediator[i] * part(v, 1, token, i);
    return v->scale * sum;
}

/* mediators [M, d]: means of q over their cells; values [M, d], lse [M] */
static void gather(const head_view *v, double *mediators, double *values, double *lse)
{
    for (int64_t a = 0; a < v->count; a++) {
        nl_cell cell = nl_mediator_cell(v->sizes, a);
        double *mediator = mediators + a * v->d, maximum = -INFINITY, sum = 0;
        for (int64_t i = 0; i < v->d; i++) {
            mediator[i] = values[a * v->d + i] = 0;
            for (int64_t y = cell.top; y < cell.bottom; y++)
                for (int64_t x = cell.left; x < cell.right; x++)
                    mediator[i] += part(v, 0, y * v->sizes->grid_width + x, i);
            mediator[i] /= (double)((cell.bottom - cell.top) * (cell.right - cell.left));
        }
        for (int64_t t = 0; t < v->tokens; t++)
            maximum = fmax(maximum, score(v, t, mediator));
        for (int64_t t = 0; t < v->tokens; t++) {
            double weight = exp(score(v, t, mediator) - maximum);
            sum += weight;
            for (int64_t i = 0; i < v->d; i++)
                values[a * v->d + i] += weight * part(v, 2, t, i);
        }
        for (int64_t i = 0; i < v->d; i++)
            values[a * v->d + i] /= sum;
        lse[a] = maximum + log(sum);
    }
}

/* qkv [B * T, >= 3D] -> out [B * T, D], mediators, values [B * h, M, d], lse [B * h, M] */
nl_status nl_reference_mediator_attention(nl_device *device, const nl_mediator_attention_args *args)
{
    nl_status status = NL_OK;
    int64_t count = args->sizes.side * args->sizes.side, size = count * args->sizes.head_size;
    double *mediators = NULL;
    NL_TRY(NL_NEW_ARRAY(device->context, "mediators", 2 * size + 2 * count, &mediators));
    double *values = mediators + size, *lse = values + size, *weights = lse + count;
    for (int64_t index = 0; index < args->sizes.batch * args->sizes.heads; index++) {
        head_view v = head_of(&args->qkv, &args->sizes, index, args->scale);
        gather(&v, mediators, values, lse);
        for (int64_t a = 0; a < count; a++)
            nl_put(&args->lse, 0, index * count + a, lse[a]);
        for (int64_t i = 0; i < size; i++) {
            nl_put(&args->mediators, 0, index * size + i, mediators[i]);
            nl_put(&args->values, 0, index * size + i, values[i]);
        }
        for (int64_t t = 0; t < v.tokens; t++) {
            weigh_mediators(&v, t, mediators, weights);
            for (int64_t i = 0; i < v.d; i++) {
                double sum = 0;
                for (int64_t a = 0; a < count; a++)
                    sum += weights[a] * values[a * v.d + i];
                nl_put(&args->out, v.first + t, v.column + i, sum);
            }
        }
    }
cleanup:
    nl_free(device->context, mediators);
    return status;
}

/* What a head's backward pass carries: [M, d] each. */
typedef struct head_memory {
    double *mediators, *values, *dmediators, *dvalues, *weights, *row; /* weights [M], row [d] */
} head_memory;

/* A token as a query: dq without its part in mediators; dvalues and dmediators are added to. */
static void query_backward(const nl_mediator_attention_backward_args *args, const head_view *v,
                           int64_t token, const head_memory *m)
{
    double mean = 0;
    weigh_mediators(v, token, m->mediators, m->weights);
    for (int64_t i = 0; i < v->d; i++)
        m->row[i] = nl_get(&args->dout, v->first + token, v->column + i);
    for (int64_t a = 0; a < v->count; a++) {
        mean += m->weights[a] * dot(m->row, m->values + a * v->d, v->d);
        for (int64_t i = 0; i < v->d; i++)
            m->dvalues[a * v->d + i] += m->weights[a] * m->row[i];
    }
    for (int64_t i = 0; i < v->d; i++)
        m->row[v->d + i] = 0;
    for (int64_t a = 0; a < v->count; a++) {
        double change = v->scale * m->weights[a] * (dot(m->row, m->values + a * v->d, v->d) - mean);
        for (int64_t i = 0; i < v->d; i++) {
            m->row[v->d + i] += change * m->mediators[a * v->d + i];
            m->dmediators[a * v->d + i] += change * part(v, 0, token, i);
        }
    }
    for (int64_t i = 0; i < v->d; i++)
        nl_put(&args->dqkv, v->first + token, v->column + i, m->row[v->d + i]);
}

/* A token as key and value. */
static void key_backward(const nl_mediator_attention_backward_args *args, const head_view *v,
                         int64_t index, int64_t token, const head_memory *m)
{
    for (int64_t i = 0; i < 2 * v->d; i++)
        m->row[i] = 0;
    for (int64_t a = 0; a < v->count; a++) {
        const double *mediator = m->mediators + a * v->d, *dvalue = m->dvalues + a * v->d;
        double weight = exp(score(v, token, mediator) - nl_at(&args->lse, index * v->count + a));
        double change = -dot(dvalue, m->values + a * v->d, v->d);
        for (int64_t i = 0; i < v->d; i++)
            change += dvalue[i] * part(v, 2, token, i);
        change *= v->scale * weight;
        for (int64_t i = 0; i < v->d; i++) {
            m->row[i] += change * mediator[i];
            m->row[v->d + i] += weight * dvalue[i];
            m->dmediators[a * v->d + i] += change * part(v, 1, token, i);
        }
    }
    for (int64_t i = 0; i < v->d; i++) {
        nl_put(&args->dqkv, v->first + token, v->hidden + v->column + i, m->row[i]);
        nl_put(&args->dqkv, v->first + token, 2 * v->hidden + v->column + i, m->row[v->d + i]);
    }
}

/* What a mediator's gradient is to the queries of its cell. */
static void cell_backward(const nl_mediator_attention_backward_args *args, const head_view *v,
                          int64_t a, const double *dmediator)
{
    nl_cell cell = nl_mediator_cell(v->sizes, a);
    double share = 1.0 / (double)((cell.bottom - cell.top) * (cell.right - cell.left));
    for (int64_t y = cell.top; y < cell.bottom; y++)
        for (int64_t x = cell.left; x < cell.right; x++)
            for (int64_t i = 0; i < v->d; i++)
                nl_add(&args->dqkv, v->first + y * v->sizes->grid_width + x, v->column + i,
                       share * dmediator[i]);
}

/* qkv, mediators, values, lse as forward, dout [B * T, D] -> dqkv [B * T, >= 3D] */
nl_status nl_reference_mediator_attention_backward(nl_device *device,
                                                   const nl_mediator_attention_backward_args *args)
{
    nl_status status = NL_OK;
    int64_t count = args->sizes.side * args->sizes.side, size = count * args->sizes.head_size;
    double *memory = NULL;
    NL_TRY(NL_NEW_ARRAY(device->context, "gradients of mediators",
                        4 * size + count + 2 * args->sizes.head_size, &memory));
    head_memory m = {memory,
                     memory + size,
                     memory + 2 * size,
                     memory + 3 * size,
                     memory + 4 * size,
                     memory + 4 * size + count};
    for (int64_t index = 0; index < args->sizes.batch * args->sizes.heads; index++) {
        head_view v = head_of(&args->qkv, &args->sizes, index, args->scale);
        for (int64_t i = 0; i < size; i++) {
            m.mediators[i] = nl_at(&args->mediators, index * size + i);
            m.values[i] = nl_at(&args->values, index * size + i);
            m.dmediators[i] = m.dvalues[i] = 0;
        }
        for (int64_t t = 0; t < v.tokens; t++)
            query_backward(args, &v, t, &m);
        for (int64_t t = 0; t < v.tokens; t++)
            key_backward(args, &v, index, t, &m);
        for (int64_t a = 0; a < count; a++)
            cell_backward(args, &v, a, m.dmediators + a * v.d);
    }
cleanup:
    nl_free(device->context, memory);
    return status;
}
