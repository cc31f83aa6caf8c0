/* SPDX-License-Identifier: MIT */
/* Dropout of an MLP's hidden layer. */
#include "mlp.h"

#include "nl_random.h"

nl_status nl_drop(nl_device *device, const nl_dropout *dropout, int64_t tokens, int number,
                  const nl_tensor *x)
{
    if (!(dropout->probability > 0))
        return NL_OK;
    /* Each branch has a piece of the stream; the lengths are equal in a network. */
    uint64_t size = (uint64_t)(tokens * x->shape[1] + 3) / 4 * 4;
    return NL_OP(device, dropout, .x = *x, .samples = dropout->samples, .rows_per_image = tokens,
                 .seed = dropout->seed, .stream = NL_STREAM_MLP_DROPOUT,
                 .first = (uint64_t)(number / NL_BRANCHES) * size,
                 .probability = dropout->probability);
}
