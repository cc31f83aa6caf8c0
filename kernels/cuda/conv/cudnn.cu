/* SPDX-License-Identifier: MIT */
/* Convolutions through cuDNN. A shape's route is found once: the whole in one kernel where an
 * engine does that, otherwise the bare convolution between passes that pad x and finish y. */
#ifdef NL_CUDNN
#include <cstdlib>
#include <cstring>
#include <type_traits>

#include "plan.cuh"
#include "prim/is_hopper.cuh"

enum { MOST_WORKSPACE = 256 << 20, ROUTES = 3 };

struct nl_conv_cache {
    nl_conv_problem key;
    nl_conv_problem inner; /* what cuDNN runs */
    nl_conv_plan *plan;
    nl_conv_cache *next;
};

static cudnnHandle_t handle_of(nl_cuda *cuda)
{
    static_assert(sizeof(cudnnHandle_t) == sizeof(void *), "");
    return (cudnnHandle_t)cuda->dnn;
}

extern "C" void nl_cuda_convolutions_destroy(nl_cuda *cuda)
{
    while (cuda->convolutions) {
        nl_conv_cache *next = cuda->convolutions->next;
        nl_conv_plan_destroy(cuda->convolutions->plan);
        free(cuda->convolutions);
        cuda->convolutions = next;
    }
    if (cuda->dnn)
        cudnnDestroy(handle_of(cuda));
}

static bool same(const nl_conv_problem *a, const nl_conv_problem *b)
{
    static_assert(std::has_unique_object_representations_v<nl_conv_problem>, "");
    return memcmp(a, b, sizeof(*a)) == 0;
}

/* The ways to run a problem, from the best on; false: this one is not to be tried. Tensor cores
 * want pixels of whole 16 bytes. */
static bool route(const nl_conv_problem *p, int number, nl_conv_problem *inner)
{
    const int unit = p->type != NL_F32 ? 8 : p->tf32 ? 4 : 1;
    const bool whole = p->outputs % unit == 0 && !p->apart && !p->doubled;
    *inner = *p;
    inner->apart = 0;
    inner->channels = nl_conv_round_up(p->channels, unit);
    switch (number) {
    case 0: /* everything at once, and y copied to where its pixels lie apart: cuDNN copies it more slowly */
        inner->y_pixel = p->outputs;
        return whole;
    case 2: /* the bare convolution of x padded before */
        if (p->doubled)
            return false;
        inner->height += p->pad_top + p->pad_bottom;
        inner->width += p->pad_left + p->pad_right;
        inner->pad_top = inner->pad_left = inner->pad_bottom = inner->pad_right = 0;
        /* fallthrough */
    default: /* the bare convolution */
        inner->outputs = nl_conv_round_up(p->outputs, unit);
        inner->bias = inner->residual = 0;
        inner->activation = NL_ACT_NONE;
        inner->y_pixel = inner->outputs;
        return true;
    }
}

static cudnnStatus_t open_library(nl_cuda *cuda)
{
    cudnnHandle_t handle = NULL;
    if (cuda->dnn)
        return CUDNN_STATUS_SUCCESS;
    cudnnStatus_t status = cudnnCreate(&handle);
    if (status != CUDNN_STATUS_SUCCESS)
        return status;
    cuda->dnn = handle;
    return cudnnSetStream(handle, cuda->stream);
}

/* TILE_SIZE by cuDNN's numbers for the FID network, -1: the heuristics'. These take other tiles for 1 x 7 than for 7 x 1 and
 * other ones than the best for 8 x 8 (bench/results/evaluation.md: on an H200, batch 128, 6.04 ms of a batch to 5.66 in TF32,
 * 4.03 to 3.73 in fp16). */
static int tile_of(const nl_cuda *cuda, const nl_conv_problem *p)
{
    if (p->activation != NL_ACT_RELU || !nl_is_hopper(cuda->index))
        return -1;
    if (p->channels < 4)
        return 2;
    if (p->out_height > 17 || p->out_width > 17)
        return -1;
    return p->outputs <= 128 ? 7 : p->outputs <= 192 ? 18 : 19;
}

static cudnnStatus_t find(nl_cuda *cuda, const nl_conv_problem *p, nl_conv_cache **found)
{
    nl_conv_cache *entry = cuda->convolutions;
    while (entry && !same(&entry->key, p))
        entry = entry->next;
    *found = entry;
    if (entry)
        return CUDNN_STATUS_SUCCESS;
    entry = (nl_conv_cache *)calloc(1, sizeof(*entry));
    if (!entry)
        return CUDNN_STATUS_ALLOC_FAILED;
    entry->key = *p;
    cudnnStatus_t status = CUDNN_STATUS_NOT_SUPPORTED;
    for (int i = 0; i < ROUTES && status != CUDNN_STATUS_SUCCESS; i++)
        if (route(p, i, &entry->inner))
            status = nl_conv_plan_create(handle_of(cuda), &entry->inner, tile_of(cuda, p),
                                         MOST_WORKSPACE, &entry->plan);
    if (status != CUDNN_STATUS_SUCCESS) {
        free(entry);
        return status;
    }
    entry->next = cuda->convolutions;
    *found = cuda->convolutions = entry;
    return CUDNN_STATUS_SUCCESS;
}

static int64_t aligned(int64_t bytes)
{
    return (bytes + 255) / 256 * 256;
}

/* Runs the route, with x padded before and y finished after as it needs. bias: of the plan. */
static nl_status run_route(nl_device *device, const nl_conv_cache *entry,
                           const nl_conv_operands *operands, const void *bias, cudnnStatus_t *error)
{
    nl_cuda *cuda = nl_cuda_of(device);
    const nl_conv_problem *p = &entry->key, *inner = &entry->inner;
    const int64_t size = nl_dtype_size(p->type);
    const bool pad = inner->channels != p->channels || inner->height != p->height ||
                     inner->width != p->width || (uintptr_t)operands->x % 16;
    const bool apart = inner->y_pixel != p->y_pixel || p->apart;
    const int64_t x_bytes =
        pad ? aligned(size * inner->batch * inner->height * inner->width * inner->channels) : 0;
    const int64_t y_bytes =
        apart ? aligned(size * inner->batch * inner->out_height * inner->out_width * inner->y_pixel)
              : 0;
    void *scratch;
    nl_status status = nl_cuda_scratch(
        device, "a convolution", x_bytes + y_bytes + nl_conv_plan_workspace(entry->plan), &scratch);
    if (status != NL_OK)
        return status;
    nl_conv_operands o = *operands;
    o.bias = bias;
    if (pad) {
        nl_conv_pad(p, inner, operands->x, scratch, cuda->stream);
        o.x = scratch;
    }
    if (apart)
        o.y = (char *)scratch + x_bytes;
    *error =
        nl_conv_plan_run(handle_of(cuda), entry->plan, &o, (char *)scratch + x_bytes + y_bytes);
    if (*error == CUDNN_STATUS_SUCCESS)
        nl_conv_finish(p, inner, o.y, operands, cuda->stream);
    return NL_CUDA_LAUNCHED(device, "conv2d");
}

bool nl_conv_doubles(nl_device *device, const nl_conv_problem *p)
{
    nl_cuda *cuda = nl_cuda_of(device);
    nl_conv_cache *entry;
    return !nl_conv_is_alone(p) && open_library(cuda) == CUDNN_STATUS_SUCCESS &&
           find(cuda, p, &entry) == CUDNN_STATUS_SUCCESS;
}

nl_status nl_conv_run(nl_device *device, const nl_conv_problem *p, const nl_tensor *weight,
                      const nl_conv_operands *operands)
{
    nl_cuda *cuda = nl_cuda_of(device);
    nl_conv_cache *entry = NULL;
    nl_status status = NL_OK;
    if (nl_conv_is_alone(p))
        return nl_conv_gather(device, p, weight, operands);
    cudnnStatus_t error = open_library(cuda);
    if (error == CUDNN_STATUS_SUCCESS)
        error = find(cuda, p, &entry);
    if (error != CUDNN_STATUS_SUCCESS && p->batch == 1) /* none for a picture of 2^31 numbers */
        return nl_conv_gather(device, p, weight, operands);
    if (error == CUDNN_STATUS_SUCCESS) {
        const nl_conv_order order = {p->type, entry->inner.outputs, entry->inner.channels,
                                     p->doubled ? NL_CONV_FOLDED : NL_CONV_PLAIN};
        nl_conv_operands o = *operands;
        const void *bias = o.bias;
        status = nl_cuda_conv_weight(device, weight, &order, &o.weight);
        if (status == NL_OK && entry->inner.bias && nl_conv_plan_bias_type(p) != NL_F32)
            status = nl_cuda_conv_bias(device, o.bias, p->type, p->outputs, &bias);
        if (status == NL_OK)
            status = run_route(device, entry, &o, bias, &error);
    }
    if (error != CUDNN_STATUS_SUCCESS)
        return nl_fail(device->context, NL_ERROR_DEVICE,
                       "convolution %d x %d, %d to %d channels: cuDNN: %s", p->kernel_height,
                       p->kernel_width, p->channels, p->outputs, cudnnGetErrorString(error));
    return status;
}

#endif
