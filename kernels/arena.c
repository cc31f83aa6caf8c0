/* SPDX-License-Identifier: MIT */
/* The arena of a device: a stack of activations, in real memory or only counted. */
#include "arena.h"

enum { ARENA_ALIGNMENT = 256 };

/* Addresses of a measuring device: not NULL, never read or written. */
static uint8_t *const measured_arena = (uint8_t *)4096;

static bool align_up(int64_t bytes, int64_t *aligned)
{
    if (!nl_add_size(bytes, ARENA_ALIGNMENT - 1, aligned))
        return false;
    *aligned -= *aligned % ARENA_ALIGNMENT;
    return true;
}

static int64_t block_size(int64_t arena_size)
{
    return arena_size + ARENA_ALIGNMENT;
}

void nl_arena_free(nl_device *device)
{
    if (device->arena_block)
        device->ops->free(device, device->arena_block, block_size(device->arena_size));
    device->arena_block = NULL;
    device->arena = NULL;
    device->arena_size = 0;
}

nl_status nl_arena_reserve(nl_device *device, int64_t bytes)
{
    int64_t size;
    if (device->arena_used > 0)
        return nl_fail(device->context, NL_ERROR_INTERNAL,
                       "arena: reserved while %lld bytes of it are taken",
                       (long long)device->arena_used);
    if (!align_up(bytes, &size) || size > INT64_MAX - ARENA_ALIGNMENT)
        return nl_fail(device->context, NL_ERROR_INTERNAL, "arena: %lld bytes are no possible size",
                       (long long)bytes);
    if (device->measuring || size <= device->arena_size)
        return NL_OK;
    nl_arena_free(device); /* first, so that both never stand side by side */
    NL_CHECK(device->ops->alloc(device, "activations", block_size(size), &device->arena_block));
    uintptr_t past = (uintptr_t)device->arena_block % ARENA_ALIGNMENT;
    device->arena = (uint8_t *)device->arena_block + (past ? ARENA_ALIGNMENT - past : 0);
    device->arena_size = size;
    return NL_OK;
}

int64_t nl_arena_mark(const nl_device *device)
{
    return device->arena_used;
}

void nl_arena_release(nl_device *device, int64_t mark)
{
    device->arena_used = mark;
}

nl_status nl_arena_tensor(nl_device *device, nl_dtype dtype, int ndim, const int64_t *shape,
                          nl_tensor *tensor)
{
    int64_t bytes = nl_dtype_size(dtype), end;
    bool possible = ndim >= 0 && ndim <= NL_MAX_DIMS;
    for (int i = 0; possible && i < ndim; i++)
        possible = nl_mul_size(bytes, shape[i], &bytes);
    if (!possible || !align_up(bytes, &bytes) || !nl_add_size(device->arena_used, bytes, &end)) {
        char text[128];
        return nl_fail(device->context, NL_ERROR_INTERNAL,
                       "arena: a tensor of shape %s is no possible size",
                       nl_shape_text(NL_MIN(ndim, NL_MAX_DIMS), shape, text, sizeof(text)));
    }
    if (!device->measuring && end > device->arena_size)
        return nl_fail(
            device->context, NL_ERROR_INTERNAL,
            "arena: need %lld bytes, have %lld: the measured run took less than this one",
            (long long)end, (long long)device->arena_size);
    uint8_t *base = device->measuring ? measured_arena : device->arena;
    *tensor = nl_tensor_of(base + device->arena_used, dtype, ndim, shape);
    device->arena_used = end;
    device->arena_peak = NL_MAX(device->arena_peak, end);
    return NL_OK;
}
