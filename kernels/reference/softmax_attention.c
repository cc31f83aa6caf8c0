/* SPDX-License-Identifier: MIT */
/* Softmax attention, one query at a time. */
#include "reference.h"

/* One query of one head. weights [T] holds its scores, then their exponentials. */
static void attend(const nl_softmax_attention_args *args, int64_t image, int64_t token,
                   int64_t head, double *weights)
{
    int64_t d = args->head_size, size = args->heads * d, column = head * d;
    int64_t first = image * args->tokens;
    double maximum = -INFINITY, sum = 0;
    for (int64_t t = 0; t < args->tokens; t++) {
        weights[t] = 0;
        for (int64_t i = 0; i < d; i++)
            weights[t] += nl_get(&args->qkv, first + token, column + i) *
                          nl_get(&args->qkv, first + t, size + column + i);
        weights[t] *= args->scale;
        maximum = weights[t] > maximum ? weights[t] : maximum;
    }
    for (int64_t t = 0; t < args->tokens; t++) {
        weights[t] = exp(weights[t] - maximum);
        sum += weights[t];
    }
    for (int64_t i = 0; i < d; i++) {
        double value = 0;
        for (int64_t t = 0; t < args->tokens; t++)
            value += weights[t] * nl_get(&args->qkv, first + t, 2 * size + column + i);
        nl_put(&args->out, first + token, column + i, value / sum);
    }
    if (args->lse.data)
        nl_put(&args->lse, image * args->heads + head, token, maximum + log(sum));
}

/* qkv [B * T, >= 3D] -> out [B * T, D], lse [B * h, T] */
nl_status nl_reference_softmax_attention(nl_device *device, const nl_softmax_attention_args *args)
{
    double *weights = NULL;
    nl_status status = NL_OK;
    NL_TRY(NL_NEW_ARRAY(device->context, "attention weights", args->tokens, &weights));
    for (int64_t image = 0; image < args->batch; image++)
        for (int64_t token = 0; token < args->tokens; token++)
            for (int64_t head = 0; head < args->heads; head++)
                attend(args, image, token, head, weights);
cleanup:
    nl_free(device->context, weights);
    return status;
}
