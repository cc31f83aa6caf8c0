/* SPDX-License-Identifier: MIT */
/*
 * A product of oneDNN arranges its weight anew in every call unless it lies as the product wants it, which costs up to half
 * as long as the product itself in bf16. A frozen weight is arranged once. The weight stays where it is, too: gradients,
 * products of few rows and whoever saves it read it there.
 *
 * Copies are a convenience. They are made only where SHARE times as much memory is left, and go when memory is short.
 */
#include "frozen.h"
#include "nl_arranged.h"
#include "nl_thread.h"

enum { SHARE = 8 };

typedef struct frozen_weight {
    const char *begin, *end;
    nl_dtype dtype;
    int64_t rows, columns;
    int64_t offset, part_bytes; /* of the copy; 0 bytes: there is none */
} frozen_weight;

/* Of one call of nl_freeze. */
struct nl_frozen_weights {
    struct nl_frozen_weights *next;
    const char *begin, *end; /* of all */
    char *copies;            /* or NULL */
    int count;
    frozen_weight weights[];
};
typedef struct nl_frozen_weights set;

static nl_cpu_state *state_of(const nl_device *device)
{
    return device->ops == &nl_cpu_ops ? device->state : NULL;
}

static bool meet(const char *begin, const char *end, const char *other, const char *other_end)
{
    return begin < other_end && other < end;
}

static int64_t parts_of(const frozen_weight *weight)
{
    return (weight->columns + NL_DNNL_K - 1) / NL_DNNL_K;
}

/* Gives each weight that is multiplied in BF16 a place among the copies; returns the bytes of all. A last part that is smaller has
 * the room of the others. */
static int64_t place(nl_device *device, set *made)
{
    nl_cpu_state *state = device->state;
    int64_t bytes = 0;
    for (int i = 0; i < made->count; i++) {
        frozen_weight *weight = &made->weights[i];
        if (weight->dtype != NL_BF16 || !nl_cpu_multiplies_bf16(device))
            continue;
        weight->part_bytes =
            nl_dnnl_arranged_bytes(state->dnnl, weight->rows, NL_MIN(weight->columns, NL_DNNL_K));
        weight->offset = bytes;
        bytes += weight->part_bytes * parts_of(weight);
    }
    return bytes;
}

static void fill(nl_device *device, const set *made)
{
    int team = nl_team(device->context, device->threads);
#pragma omp parallel for num_threads(team) schedule(dynamic)
    for (int i = 0; i < made->count; i++) {
        const frozen_weight *weight = &made->weights[i];
        const uint16_t *from = (const uint16_t *)(const void *)weight->begin;
        for (int64_t part = 0; weight->part_bytes > 0 && part < parts_of(weight); part++)
            nl_dnnl_arrange(weight->rows, NL_MIN(weight->columns - part * NL_DNNL_K, NL_DNNL_K),
                            from + part * NL_DNNL_K, weight->columns,
                            made->copies + weight->offset + part * weight->part_bytes);
    }
}

/* Where there is room for them. */
static void make_copies(nl_device *device, set *made)
{
    if (device->context->options.max_memory > 0)
        return;
    int64_t bytes = place(device, made);
    if (bytes > 0 && bytes <= nl_device_memory_left(device) / SHARE &&
        NL_NEW_SIZED(device->context, "arranged weights", bytes, 1, &made->copies) == NL_OK)
        fill(device, made);
}

nl_status nl_freeze(nl_device *device, const nl_tensor *const *weights, int count)
{
    nl_cpu_state *state = state_of(device);
    set *made;
    if (!state || count < 1)
        return NL_OK;
    NL_CHECK(NL_NEW_SIZED(device->context, "frozen weights", 1,
                          sizeof(*made) + (size_t)count * sizeof(*made->weights), &made));
    *made = (set){.count = count, .begin = weights[0]->data, .end = weights[0]->data};
    for (int i = 0; i < count; i++) {
        const char *begin = weights[i]->data, *end = begin + nl_tensor_bytes(weights[i]);
        made->weights[i] = (frozen_weight){.begin = begin,
                                           .end = end,
                                           .dtype = weights[i]->dtype,
                                           .rows = weights[i]->shape[0],
                                           .columns = weights[i]->shape[1]};
        made->begin = NL_MIN(made->begin, begin);
        made->end = NL_MAX(made->end, end);
    }
    make_copies(device, made);
    made->next = state->frozen;
    state->frozen = made;
    return NL_OK;
}

bool nl_frozen(const nl_device *device, const void *data, int64_t bytes)
{
    const nl_cpu_state *state = state_of(device);
    const char *begin = data, *end = begin + bytes;
    for (const set *s = state ? state->frozen : NULL; s; s = s->next)
        for (int i = 0; meet(begin, end, s->begin, s->end) && i < s->count; i++)
            if (meet(begin, end, s->weights[i].begin, s->weights[i].end))
                return true;
    return false;
}

nl_arranged nl_cpu_arranged(const nl_device *device, const nl_tensor *weight)
{
    const char *data = weight->data;
    const nl_cpu_state *state = device->state;
    for (const set *s = state->frozen; s; s = s->next)
        for (int i = 0; s->copies && data >= s->begin && data < s->end && i < s->count; i++) {
            const frozen_weight *w = &s->weights[i];
            if (w->begin == data && w->dtype == weight->dtype && w->rows == weight->shape[0] &&
                w->columns == weight->shape[1] && w->part_bytes > 0)
                return (nl_arranged){s->copies + w->offset, w->part_bytes};
        }
    return (nl_arranged){0};
}

void nl_cpu_thaw(nl_device *device, const void *data, int64_t bytes)
{
    nl_cpu_state *state = device->state;
    const char *begin = data;
    for (set **at = &state->frozen; *at;) {
        set *s = *at;
        if (!meet(begin, begin + bytes, s->begin, s->end)) {
            at = &s->next;
            continue;
        }
        *at = s->next;
        nl_free(device->context, s->copies);
        nl_free(device->context, s);
    }
}

bool nl_cpu_drop_arranged(nl_device *device)
{
    nl_cpu_state *state = device->state;
    bool had = false;
    for (set *s = state->frozen; s; s = s->next) {
        had |= s->copies != NULL;
        nl_free(device->context, s->copies);
        s->copies = NULL;
    }
    return had;
}
