/* SPDX-License-Identifier: MIT */
/* Gradients of softmax attention, one pair of query and key at a time. */
#include "reference.h"

/* Row of a token's q (part 0), k (1) or v (2) is column part * D + head * d of qkv and of dqkv. */
typedef struct head_view {
    const nl_softmax_attention_backward_args *args;
    int64_t row, column, size; /* first row of the image, first column of the head, D */
} head_view;

static double part(const head_view *view, int which, int64_t token, int64_t i)
{
    return nl_get(&view->args->qkv, view->row + token, which * view->size + view->column + i);
}

/* One query and key: P = exp(scale q k - lse), dv += P do, ds = P (do v - do o), dq += scale ds k,
 * dk += scale ds q. dqkv [3, T, d] */
static void backward_pair(const head_view *view, int64_t index, int64_t query, int64_t key,
                          double *dqkv)
{
    const nl_softmax_attention_backward_args *a = view->args;
    int64_t d = a->head_size, part_size = a->tokens * d;
    double score = 0, dweight = 0;
    for (int64_t i = 0; i < d; i++) {
        double dout = nl_get(&a->dout, view->row + query, view->column + i);
        score += part(view, 0, query, i) * part(view, 1, key, i);
        dweight +=
            dout * (part(view, 2, key, i) - nl_get(&a->out, view->row + query, view->column + i));
    }
    double weight = exp(a->scale * score - nl_get(&a->lse, index, query));
    double dscore = weight * dweight * a->scale;
    for (int64_t i = 0; i < d; i++) {
        dqkv[query * d + i] += dscore * part(view, 1, key, i);
        dqkv[part_size + key * d + i] += dscore * part(view, 0, query, i);
        dqkv[2 * part_size + key * d + i] +=
            weight * nl_get(&a->dout, view->row + query, view->column + i);
    }
}

/* qkv [B * T, >= 3D]; out, dout [B * T, D]; lse [B * h, T] -> dqkv [B * T, >= 3D] */
nl_status nl_reference_softmax_attention_backward(nl_device *device,
                                                  const nl_softmax_attention_backward_args *args)
{
    nl_status status = NL_OK;
    double *dqkv = NULL;
    int64_t d = args->head_size, tokens = args->tokens, count = 3 * tokens * d;
    NL_TRY(NL_NEW_ARRAY(device->context, "gradients of a head", count, &dqkv));
    for (int64_t index = 0; index < args->batch * args->heads; index++) {
        head_view view = {args, index / args->heads * tokens, index % args->heads * d,
                          args->heads * d};
        for (int64_t i = 0; i < count; i++)
            dqkv[i] = 0;
        for (int64_t query = 0; query < tokens; query++)
            for (int64_t key = 0; key < tokens; key++)
                backward_pair(&view, index, query, key, dqkv);
        for (int64_t i = 0; i < count; i++) {
            int64_t which = i / (tokens * d), token = i / d % tokens;
            nl_put(&args->dqkv, view.row + token, which * view.size + view.column + i % d, dqkv[i]);
        }
    }
cleanup:
    nl_free(device->context, dqkv);
    return status;
}
