/* SPDX-License-Identifier: MIT */
/* Norm-aware linear attention, equation by equation: the features are written out, the state is
 * summed over the tokens, every query reads the state. */
#include "nala_features.h"

static void load(const nl_nala_attention_args *args, int64_t row, int64_t column, double *x)
{
    for (int64_t i = 0; i < args->head_size; i++)
        x[i] = nl_get(&args->qkvg, row, column + i);
}

typedef struct head_memory {
    double *state; /* S [F, d], of rotated keys with rope */
    double *total; /* z [F], never rotated */
    double *phi;   /* [F] */
    double *x, *v; /* [d] */
} head_memory;

/* S = 1/N sum phi_k(k)^T v, z = 1/N sum phi_k(k), over the tokens of one image and head. */
static void sum_state(const nl_nala_attention_args *args, int64_t image, int64_t head,
                      const head_memory *memory)
{
    int64_t d = args->head_size, width = nl_feature_width(args->feature_map, d);
    int64_t size = args->heads * d;
    for (int64_t i = 0; i < width * (d + 1); i++)
        memory->state[i] = 0; /* and total, which follows */
    for (int64_t token = 0; token < args->tokens; token++) {
        int64_t row = image * args->tokens + token;
        load(args, row, size + head * d, memory->x);
        load(args, row, 2 * size + head * d, memory->v);
        nl_features(args, false, memory->x, memory->phi);
        for (int64_t f = 0; f < width; f++)
            memory->total[f] += memory->phi[f] / args->tokens;
        if (args->rope)
            nl_rotate(args, token, width, 1, memory->phi);
        for (int64_t f = 0; f < width; f++)
            for (int64_t i = 0; i < d; i++)
                memory->state[f * d + i] += memory->phi[f] * memory->v[i] / args->tokens;
    }
}

/* o = phi_q(q) S / (phi_q(q) . z + 1e-6) for the tokens of one image and head. */
static void apply_state(const nl_nala_attention_args *args, int64_t image, int64_t head,
                        const head_memory *memory)
{
    int64_t d = args->head_size, width = nl_feature_width(args->feature_map, d);
    for (int64_t token = 0; token < args->tokens; token++) {
        int64_t row = image * args->tokens + token;
        load(args, row, head * d, memory->x);
        nl_features(args, true, memory->x, memory->phi);
        double denominator = nl_nala_epsilon;
        for (int64_t f = 0; f < width; f++)
            denominator += memory->phi[f] * memory->total[f];
        if (args->rope)
            nl_rotate(args, token, width, 1, memory->phi);
        for (int64_t i = 0; i < d; i++) {
            double sum = 0;
            for (int64_t f = 0; f < width; f++)
                sum += memory->phi[f] * memory->state[f * d + i];
            nl_put(&args->out, row, head * d + i, sum / denominator);
        }
    }
}

/* qkvg [B * T, >= 3D] -> out [B * T, D], state [B * h, F, d], total [B * h, F] */
nl_status nl_reference_nala_attention(nl_device *device, const nl_nala_attention_args *args)
{
    int64_t d = args->head_size, width = nl_feature_width(args->feature_map, d);
    double *memory = NULL;
    nl_status status = NL_OK;
    NL_TRY(NL_NEW_ARRAY(device->context, "attention state", width * (d + 2) + 2 * d, &memory));
    head_memory parts = {.state = memory};
    parts.total = parts.state + width * d;
    parts.phi = parts.total + width;
    parts.x = parts.phi + width;
    parts.v = parts.x + d;
    for (int64_t image = 0; image < args->batch; image++)
        for (int64_t head = 0; head < args->heads; head++) {
            int64_t index = image * args->heads + head;
            nl_nala_attention_args own = nl_nala_of_head(args, head);
            sum_state(&own, image, head, &parts);
            apply_state(&own, image, head, &parts);
            for (int64_t i = 0; args->state.data && i < width * d; i++)
                nl_put(&args->state, 0, index * width * d + i, parts.state[i]);
            for (int64_t i = 0; args->total.data && i < width; i++)
                nl_put(&args->total, 0, index * width + i, parts.total[i]);
        }
cleanup:
    nl_free(device->context, memory);
    return status;
}
