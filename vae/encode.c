/* SPDX-License-Identifier: MIT */
/* Training samples: pictures of one size from bytes to what is stored of them. */
#include "arena.h"
#include "layers.h"

enum { MAX_ENCODE_BATCH = 64 };

/* A batch gains nothing above this; bytes of the arena. */
static const int64_t encode_cap = INT64_C(2) << 30;

int nl_vae_sample_channels(const nl_vae *vae)
{
    return (int)vae->latent_channels * (vae->kind == NL_VAE_KL ? 2 : 1);
}

/* Copies the planes of one tensor [B, C, h, w] to its place among the channels of the samples. */
static nl_status fetch(nl_device *device, const nl_tensor *planes, int64_t channel,
                       int64_t channels, float *samples)
{
    int64_t size = nl_tensor_count(planes) / planes->shape[0], area = size / planes->shape[1];
    for (int64_t i = 0; i < planes->shape[0]; i++) {
        nl_tensor one = nl_tensor_rows(planes, i, 1);
        NL_CHECK(device->ops->download(device, samples + (i * channels + channel) * area, one.data,
                                       size * (int64_t)sizeof(float)));
    }
    return NL_OK;
}

/* On a measuring device nothing is moved. */
static nl_status run_batch(const nl_vae *vae, nl_device *device, const uint8_t *rgb, int64_t batch,
                           int64_t height, int64_t width, float *samples)
{
    int64_t rgb_shape[] = {batch, height, width, 3}, channels = nl_vae_sample_channels(vae);
    int64_t shape[] = {batch, vae->latent_channels, height / vae->factor, width / vae->factor};
    int64_t mark = nl_arena_mark(device);
    nl_tensor bytes, pictures, mean, logvar;
    bool moments = vae->kind == NL_VAE_KL;
    nl_status status;
    NL_TRY(nl_arena_tensor(device, NL_U8, 4, rgb_shape, &bytes));
    NL_TRY(nl_arena_tensor(device, NL_F32, 4, rgb_shape, &pictures));
    NL_TRY(nl_arena_tensor(device, NL_F32, 4, shape, &mean));
    NL_TRY(nl_arena_tensor(device, NL_F32, 4, shape, &logvar));
    if (!device->measuring)
        NL_TRY(device->ops->upload(device, bytes.data, rgb, nl_tensor_bytes(&bytes)));
    /* to the same size: byte / 127.5 - 1 */
    NL_TRY(NL_OP(device, resize, .x = bytes, .y = pictures, .kind = NL_RESIZE_LEGACY,
                 .scale = 1 / 127.5f, .shift = -1));
    NL_TRY(nl_vae_encode(vae, device, &pictures, &mean, moments ? &logvar : NULL));
    if (!device->measuring) {
        NL_TRY(fetch(device, &mean, 0, channels, samples));
        if (moments)
            NL_TRY(fetch(device, &logvar, vae->latent_channels, channels, samples));
    }
cleanup:
    nl_arena_release(device, mark);
    return status;
}

static nl_status measure(const nl_vae *vae, int64_t batch, int64_t height, int64_t width,
                         int64_t *bytes)
{
    nl_device measuring;
    nl_device_measuring(vae->device, &measuring);
    nl_status status = run_batch(vae, &measuring, NULL, batch, height, width, NULL);
    *bytes = measuring.arena_peak;
    return status;
}

nl_status nl_vae_encode_batch(const nl_vae *vae, int64_t height, int64_t width, int64_t *batch)
{
    nl_context *context = vae->device->context;
    int64_t need, left = nl_memory_left(context), room = encode_cap;
    if (height < 1 || width < 1 || height % vae->factor || width % vae->factor)
        return nl_fail(context, NL_ERROR_USAGE,
                       "pictures of %lld x %lld cannot be encoded: expected multiples of %d",
                       (long long)height, (long long)width, vae->factor);
    if (left < INT64_MAX)
        room = NL_MIN(room, left + vae->device->arena_size);
    for (*batch = MAX_ENCODE_BATCH;; *batch /= 2) {
        NL_CHECK(measure(vae, *batch, height, width, &need));
        if (need <= room || *batch == 1)
            break;
    }
    return NL_OK;
}

nl_status nl_vae_encode_samples(const nl_vae *vae, const uint8_t *rgb, int64_t count,
                                int64_t height, int64_t width, float *samples)
{
    nl_device *device = vae->device;
    int64_t batch, need;
    int64_t rgb_size = height * width * 3;
    int64_t size = nl_vae_sample_channels(vae) * (height / vae->factor) * (width / vae->factor);
    NL_CHECK(nl_vae_encode_batch(vae, height, width, &batch));
    batch = NL_MIN(batch, count);
    NL_CHECK(measure(vae, batch, height, width, &need));
    NL_CHECK(nl_arena_reserve(device, need));
    for (int64_t first = 0; first < count; first += batch) {
        NL_CHECK(nl_check_cancelled(device->context));
        NL_CHECK(run_batch(vae, device, rgb + first * rgb_size, NL_MIN(batch, count - first),
                           height, width, samples + first * size));
    }
    return NL_OK;
}
