/* SPDX-License-Identifier: MIT */
/* Autoencoders: golden numbers, every spelling of the names, strict loading, tiles, faults. */
#include "nl_test.h"

#include <unistd.h>

#include "arena.h"
#include "nl_image.h"
#include "nl_vae.h"

enum { MAX_TENSORS = 400 };

/* ---- Files made from others: a list of tensors, written as a safetensors file */

typedef struct test_file {
    int count;
    nl_tensor_header headers[MAX_TENSORS];
    char names[MAX_TENSORS][160];
    float *values[MAX_TENSORS];
} test_file;

static float *file_add(test_file *file, const char *name, int ndim, const int64_t *shape)
{
    assert_true(file->count < MAX_TENSORS);
    int i = file->count++;
    snprintf(file->names[i], sizeof(file->names[i]), "%s", name);
    file->headers[i] = (nl_tensor_header){.dtype = NL_F32, .ndim = ndim};
    int64_t count = 1;
    for (int axis = 0; axis < ndim; axis++)
        count *= file->headers[i].shape[axis] = shape[axis];
    file->values[i] = calloc((size_t)count + 1, sizeof(float));
    return file->values[i];
}

static int file_find(const test_file *file, const char *name)
{
    for (int i = 0; i < file->count; i++)
        if (strcmp(file->names[i], name) == 0)
            return i;
    fail_msg("the test made no tensor %s", name);
    return -1;
}

static void file_remove(test_file *file, const char *name)
{
    int i = file_find(file, name), last = --file->count;
    free(file->values[i]);
    if (i != last) {
        memcpy(file->names[i], file->names[last], sizeof(file->names[i]));
        file->headers[i] = file->headers[last];
        file->values[i] = file->values[last];
    }
}

static void file_free(test_file *file)
{
    for (int i = 0; i < file->count; i++)
        free(file->values[i]);
    free(file);
}

static int64_t header_count(const nl_tensor_header *header)
{
    int64_t count = 1;
    for (int axis = 0; axis < header->ndim; axis++)
        count *= header->shape[axis];
    return count;
}

static nl_checkpoint *file_open(nl_context *context, test_file *file)
{
    char path[] = "/tmp/nl_test_vae_XXXXXX";
    int descriptor = mkstemp(path);
    assert_true(descriptor >= 0);
    close(descriptor);
    nl_safetensors_writer *writer;
    for (int i = 0; i < file->count; i++)
        file->headers[i].name = file->names[i];
    assert_ok(context, nl_safetensors_create(context, path, true, NULL, file->headers, file->count,
                                             &writer));
    for (int i = 0; i < file->count; i++)
        assert_ok(context, nl_safetensors_write(writer, file->values[i],
                                                header_count(&file->headers[i]) * 4));
    assert_ok(context, nl_safetensors_commit(&writer));
    nl_checkpoint *checkpoint;
    assert_ok(context, nl_checkpoint_open(context, path, &checkpoint));
    unlink(path); /* the mapping stays */
    return checkpoint;
}

/* The weights of a golden file, "w." taken off. */
static test_file *golden_weights(const nl_checkpoint *golden)
{
    test_file *file = calloc(1, sizeof(*file));
    for (int64_t i = 0; i < golden->count; i++) {
        const nl_entry *entry = &golden->entries[i];
        if (strncmp(entry->name, "w.", 2) != 0)
            continue;
        float *values = file_add(file, entry->name + 2, entry->ndim, entry->shape);
        nl_convert_to_float(entry->data, entry->dtype, nl_entry_count(entry), values);
    }
    return file;
}

static void replace(char *name, size_t size, const char *from, const char *to)
{
    char *place = strstr(name, from), rest[160];
    if (!place)
        return;
    snprintf(rest, sizeof(rest), "%s", place + strlen(from));
    snprintf(place, size - (size_t)(place - name), "%s%s", to, rest);
}

/* ---- Running an autoencoder on host data */

static nl_tensor device_tensor(nl_device *device, int ndim, const int64_t *shape, const float *from)
{
    nl_tensor tensor;
    assert_ok(device->context, nl_arena_tensor(device, NL_F32, ndim, shape, &tensor));
    if (from)
        assert_ok(device->context,
                  device->ops->upload(device, tensor.data, from, nl_tensor_bytes(&tensor)));
    return tensor;
}

/* latents [B, C, h, w] -> picture [B, 3, H, W] (malloc), as the golden files have it */
static float *decode(const nl_vae *vae, nl_device *device, const float *latents,
                     const int64_t shape[4])
{
    nl_context *context = device->context;
    int64_t factor = nl_vae_factor(vae), batch = shape[0], height = shape[2] * factor;
    int64_t width = shape[3] * factor, count = batch * 3 * height * width;
    assert_ok(context, nl_arena_reserve(device, 256 << 20));
    int64_t mark = nl_arena_mark(device);
    nl_tensor z = device_tensor(device, 4, shape, latents);
    nl_tensor rgb = device_tensor(device, 4, (int64_t[]){batch, height, width, 3}, NULL);
    assert_ok(context, nl_vae_decode(vae, device, &z, &rgb));
    float *nhwc = malloc((size_t)count * sizeof(float)), *nchw = malloc((size_t)count * 4);
    assert_ok(context, device->ops->download(device, nhwc, rgb.data, count * 4));
    nl_arena_release(device, mark);
    for (int64_t b = 0; b < batch; b++)
        for (int64_t i = 0; i < height * width; i++)
            for (int64_t c = 0; c < 3; c++)
                nchw[(b * 3 + c) * height * width + i] = nhwc[(b * height * width + i) * 3 + c];
    free(nhwc);
    return nchw;
}

/* picture [B, 3, H, W] -> latents [B, C, h, w] (malloc); logvar too when asked for */
static float *encode(const nl_vae *vae, nl_device *device, const float *rgb, const int64_t shape[4],
                     float **logvar)
{
    nl_context *context = device->context;
    int64_t factor = nl_vae_factor(vae), batch = shape[0], area = shape[2] * shape[3];
    int64_t latent_shape[] = {batch, nl_vae_latent_channels(vae), shape[2] / factor,
                              shape[3] / factor};
    float *nhwc = malloc((size_t)(batch * 3 * area) * sizeof(float));
    for (int64_t b = 0; b < batch; b++)
        for (int64_t i = 0; i < area; i++)
            for (int64_t c = 0; c < 3; c++)
                nhwc[(b * area + i) * 3 + c] = rgb[(b * 3 + c) * area + i];
    assert_ok(context, nl_arena_reserve(device, 256 << 20));
    int64_t mark = nl_arena_mark(device);
    nl_tensor picture = device_tensor(device, 4, (int64_t[]){batch, shape[2], shape[3], 3}, nhwc);
    nl_tensor z = device_tensor(device, 4, latent_shape, NULL);
    nl_tensor variance = device_tensor(device, 4, latent_shape, NULL);
    assert_ok(context, nl_vae_encode(vae, device, &picture, &z, logvar ? &variance : NULL));
    int64_t bytes = nl_tensor_bytes(&z);
    float *latents = malloc((size_t)bytes);
    assert_ok(context, device->ops->download(device, latents, z.data, bytes));
    if (logvar) {
        *logvar = malloc((size_t)bytes);
        assert_ok(context, device->ops->download(device, *logvar, variance.data, bytes));
    }
    nl_arena_release(device, mark);
    free(nhwc);
    return latents;
}

/* ---- AutoencoderKL */

static void check_kl(nl_device *device, const nl_checkpoint *golden, test_file *file,
                     double tolerance)
{
    nl_context *context = device->context;
    nl_checkpoint *checkpoint = file_open(context, file);
    nl_vae *vae;
    assert_ok(context, nl_vae_load(device, checkpoint, NULL, 1, 0, &vae));
    assert_int_equal(nl_vae_get_kind(vae), NL_VAE_KL);
    assert_int_equal(nl_vae_factor(vae), 4);
    assert_int_equal(nl_vae_latent_channels(vae), 4);
    nl_tensor z, rgb, decoded;
    float *z_values = test_read(golden, "z", &z), *rgb_values = test_read(golden, "rgb", &rgb);
    float *expected = test_read(golden, "decoded", &decoded);
    float *mean = test_read(golden, "mean", NULL), *logvar = test_read(golden, "logvar", NULL);

    float *got = decode(vae, device, z_values, z.shape), *got_logvar;
    assert_close(got, expected, nl_tensor_count(&decoded), tolerance);
    free(got);
    got = encode(vae, device, rgb_values, rgb.shape, &got_logvar);
    assert_close(got, mean, nl_tensor_count(&z), tolerance);
    assert_close(got_logvar, logvar, nl_tensor_count(&z), tolerance);
    free(got), free(got_logvar);
    got = encode(vae, device, rgb_values, rgb.shape, NULL);
    assert_close(got, mean, nl_tensor_count(&z), tolerance);
    free(got), free(z_values), free(rgb_values), free(expected), free(mean), free(logvar);
    nl_vae_destroy(vae);
    nl_checkpoint_close(checkpoint);
}

static void check_kl_on(const char *name, const char *dtype, double tolerance)
{
    nl_context *context = NULL;
    nl_context_options options = {.device = name, .dtype = dtype};
    assert_int_equal(nl_context_create(&options, &context), NL_OK);
    nl_checkpoint *golden = test_golden(context, "autoencoder_kl.safetensors");
    test_file *file = golden_weights(golden);
    check_kl(context->device, golden, file, tolerance);
    file_free(file);
    nl_checkpoint_close(golden);
    nl_context_destroy(context);
}

static void test_kl_reference(void **state)
{
    (void)state;
    check_kl_on("reference", "f32", 1e-5);
}

static void test_kl_device(void **state)
{
    (void)state;
    nl_context_destroy(test_context(test_device())); /* ends the program where there is none */
    check_kl_on(test_device(), "f32", 1e-5);
}

static void test_kl_bf16(void **state)
{
    (void)state;
    if (test_on_cpu())
        skip();
    check_kl_on(test_device(), "bf16", 3e-2);
}

static void old_diffusers_name(char *name, size_t size)
{
    replace(name, size, "to_q", "query");
    replace(name, size, "to_k", "key");
    replace(name, size, "to_v", "value");
    replace(name, size, "to_out.0", "proj_attn");
}

static void compvis_name(char *name, size_t size)
{
    char from[64], to[64];
    for (int i = 0; i < 3; i++) {
        snprintf(from, sizeof(from), "up_blocks.%d.", i);
        snprintf(to, sizeof(to), "up.%d.", 2 - i);
        replace(name, size, from, to);
    }
    replace(name, size, "mid_block.resnets.0", "mid.block_1");
    replace(name, size, "mid_block.resnets.1", "mid.block_2");
    replace(name, size, "mid_block.attentions.0.group_norm", "mid.attn_1.norm");
    replace(name, size, "mid_block.attentions.0.to_out.0", "mid.attn_1.proj_out");
    replace(name, size, "mid_block.attentions.0.to_", "mid.attn_1.");
    replace(name, size, "down_blocks", "down");
    replace(name, size, "resnets", "block");
    replace(name, size, "downsamplers.0", "downsample");
    replace(name, size, "upsamplers.0", "upsample");
    replace(name, size, "conv_shortcut", "nin_shortcut");
    replace(name, size, "conv_norm_out", "norm_out");
}

static void test_kl_old_diffusers_names(void **state)
{
    (void)state;
    nl_context *context = test_context("cpu");
    nl_checkpoint *golden = test_golden(context, "autoencoder_kl.safetensors");
    test_file *file = golden_weights(golden);
    for (int i = 0; i < file->count; i++)
        old_diffusers_name(file->names[i], sizeof(file->names[i]));
    file_find(file, "decoder.mid_block.attentions.0.proj_attn.weight");
    check_kl(context->device, golden, file, 1e-5);
    file_free(file);
    nl_checkpoint_close(golden);
    nl_context_destroy(context);
}

static void make_compvis(test_file *file, const char *prefix)
{
    for (int i = 0; i < file->count; i++) {
        char name[160];
        snprintf(name, sizeof(name), "%s", file->names[i]);
        compvis_name(name, sizeof(name));
        snprintf(file->names[i], sizeof(file->names[i]), "%s%.140s", prefix, name);
        nl_tensor_header *header = &file->headers[i];
        if (strstr(name, "attn_1") && header->ndim == 2) {
            header->ndim = 4;
            header->shape[2] = header->shape[3] = 1;
        }
    }
}

static void test_kl_compvis_names(void **state)
{
    (void)state;
    nl_context *context = test_context("cpu");
    nl_checkpoint *golden = test_golden(context, "autoencoder_kl.safetensors");
    test_file *file = golden_weights(golden);
    make_compvis(file, "");
    file_find(file, "decoder.up.0.block.0.nin_shortcut.weight");
    file_find(file, "encoder.mid.attn_1.q.weight");
    *file_add(file, "loss.logvar", 0, NULL) = 1;
    file_add(file, "model_ema.decay", 0, NULL);
    check_kl(context->device, golden, file, 1e-5);
    file_free(file);

    /* a whole Stable Diffusion checkpoint */
    file = golden_weights(golden);
    make_compvis(file, "first_stage_model.");
    file_add(file, "model.diffusion_model.out.2.weight", 2, (int64_t[]){3, 4});
    file_add(file, "encoder.conv_in.weight", 1, (int64_t[]){5}); /* not ours: no prefix */
    check_kl(context->device, golden, file, 1e-5);
    file_free(file);
    nl_checkpoint_close(golden);
    nl_context_destroy(context);
}

/* latent = scale (encoded - shift) */
static void test_kl_scale_and_shift(void **state)
{
    (void)state;
    const double scale = 0.3, shift = 0.25;
    nl_context *context = test_context("cpu");
    nl_checkpoint *golden = test_golden(context, "autoencoder_kl.safetensors");
    test_file *file = golden_weights(golden);
    nl_checkpoint *checkpoint = file_open(context, file);
    nl_vae *vae;
    assert_ok(context, nl_vae_load(context->device, checkpoint, NULL, scale, shift, &vae));
    nl_tensor z, rgb;
    float *z_values = test_read(golden, "z", &z), *rgb_values = test_read(golden, "rgb", &rgb);
    float *decoded = test_read(golden, "decoded", NULL), *mean = test_read(golden, "mean", NULL);
    for (int64_t i = 0; i < nl_tensor_count(&z); i++) {
        z_values[i] = (float)(scale * (z_values[i] - shift));
        mean[i] = (float)(scale * (mean[i] - shift));
    }
    float *got = decode(vae, context->device, z_values, z.shape);
    assert_close(got, decoded, nl_tensor_count(&rgb), 1e-5);
    free(got);
    got = encode(vae, context->device, rgb_values, rgb.shape, NULL);
    assert_close(got, mean, nl_tensor_count(&z), 1e-5);
    free(got), free(z_values), free(rgb_values), free(decoded), free(mean);
    nl_vae *bad;
    assert_int_equal(nl_vae_load(context->device, checkpoint, NULL, 0, 0, &bad), NL_ERROR_USAGE);
    assert_int_equal(nl_vae_load(context->device, checkpoint, NULL, NAN, 0, &bad), NL_ERROR_USAGE);
    nl_vae_destroy(vae);
    nl_checkpoint_close(checkpoint);
    file_free(file);
    nl_checkpoint_close(golden);
    nl_context_destroy(context);
}

/* A file without the two 1 x 1 convolutions is a valid one: identities in their place change nothing. */
static void test_kl_without_quant_conv(void **state)
{
    (void)state;
    nl_context *context = test_context("cpu");
    nl_checkpoint *golden = test_golden(context, "autoencoder_kl.safetensors");
    float *results[2];
    nl_tensor z;
    float *z_values = test_read(golden, "z", &z);
    for (int without = 0; without < 2; without++) {
        test_file *file = golden_weights(golden);
        static const char *const names[] = {"quant_conv", "post_quant_conv"};
        for (int i = 0; i < 2; i++) {
            char weight[64], bias[64];
            snprintf(weight, sizeof(weight), "%s.weight", names[i]);
            snprintf(bias, sizeof(bias), "%s.bias", names[i]);
            if (without) {
                file_remove(file, weight);
                file_remove(file, bias);
                continue;
            }
            nl_tensor_header *header = &file->headers[file_find(file, weight)];
            float *w = file->values[file_find(file, weight)];
            float *b = file->values[file_find(file, bias)];
            memset(w, 0, (size_t)header_count(header) * sizeof(float));
            for (int64_t c = 0; c < header->shape[0]; c++)
                w[c * header->shape[1] + c] = 1, b[c] = 0;
        }
        nl_checkpoint *checkpoint = file_open(context, file);
        nl_vae *vae;
        assert_ok(context, nl_vae_load(context->device, checkpoint, NULL, 1, 0, &vae));
        results[without] = decode(vae, context->device, z_values, z.shape);
        nl_vae_destroy(vae);
        nl_checkpoint_close(checkpoint);
        file_free(file);
    }
    assert_close(results[1], results[0], z.shape[0] * 3 * z.shape[2] * z.shape[3] * 16, 1e-6);
    free(results[0]), free(results[1]), free(z_values);
    nl_checkpoint_close(golden);
    nl_context_destroy(context);
}

/* ---- Strict loading: every fault is named */

static void expect_refusal(nl_context *context, test_file *file, const char *part)
{
    nl_checkpoint *checkpoint = file_open(context, file);
    int64_t used = context->memory_used;
    nl_vae *vae;
    nl_status status = nl_vae_load(context->device, checkpoint, NULL, 1, 0, &vae);
    if (status != NL_ERROR_INPUT || !strstr(nl_last_error(context), part) || vae)
        fail_msg("expected a refusal that says \"%s\", got %s: %s", part, nl_status_name(status),
                 nl_last_error(context));
    assert_int_equal(used, context->memory_used);
    nl_checkpoint_close(checkpoint);
    file_free(file);
}

static void test_kl_refusals(void **state)
{
    (void)state;
    nl_context *context = test_context("reference");
    nl_checkpoint *golden = test_golden(context, "autoencoder_kl.safetensors");

    test_file *file = golden_weights(golden);
    file_remove(file, "decoder.up_blocks.1.resnets.0.conv2.bias");
    expect_refusal(context, file, "missing decoder.up_blocks.1.resnets.0.conv2.bias [64]");

    file = golden_weights(golden);
    file_remove(file, "decoder.mid_block.attentions.0.to_k.weight");
    expect_refusal(context, file, "missing decoder.mid_block.attentions.0.to_k.weight");

    file = golden_weights(golden);
    file_add(file, "decoder.extra.weight", 1, (int64_t[]){3});
    expect_refusal(context, file, "unexpected decoder.extra.weight");

    file = golden_weights(golden);
    file->headers[file_find(file, "encoder.conv_out.weight")].shape[1] = 16;
    file->headers[file_find(file, "encoder.conv_out.weight")].shape[2] = 6;
    expect_refusal(context, file,
                   "encoder.conv_out.weight is [8, 16, 6, 3], expected [8, 32, 3, 3]");

    file = golden_weights(golden);
    float *twice = file_add(file, "encoder.mid_block.attentions.0.query.bias", 1, (int64_t[]){32});
    twice[0] = 1;
    expect_refusal(context, file, "encoder.mid_block.attentions.0.to_q.bias is there twice");

    file = golden_weights(golden);
    file->values[file_find(file, "decoder.conv_in.bias")][3] = NAN;
    expect_refusal(context, file, "decoder.conv_in.bias");

    file = golden_weights(golden);
    file_remove(file, "decoder.conv_in.weight");
    expect_refusal(context, file, "decoder.conv_in.weight is missing");

    file = golden_weights(golden);
    file_remove(file, "encoder.down_blocks.0.resnets.0.conv1.weight");
    expect_refusal(context, file, "encoder.down_blocks.0.resnets.0.conv1.weight is missing");

    file = golden_weights(golden);
    file->headers[file_find(file, "encoder.conv_in.bias")].dtype = NL_I32;
    expect_refusal(context, file, "encoder.conv_in.bias holds I32");

    file = calloc(1, sizeof(*file));
    file_add(file, "blocks.0.attn.qkv.weight", 2, (int64_t[]){3, 3});
    expect_refusal(context, file, "no autoencoder");

    /* a name longer than any of ours */
    file = golden_weights(golden);
    char name[160];
    memset(name, 'x', sizeof(name));
    memcpy(name, "decoder.", 8);
    name[sizeof(name) - 1] = '\0';
    file_add(file, name, 1, (int64_t[]){1});
    expect_refusal(context, file, "unexpected decoder.xxxx");

    /* channels that do not divide into 32 groups */
    file = calloc(1, sizeof(*file));
    file_add(file, "decoder.conv_in.weight", 4, (int64_t[]){8, 4, 3, 3});
    file_add(file, "decoder.up_blocks.0.resnets.0.conv1.weight", 4, (int64_t[]){8, 8, 3, 3});
    expect_refusal(context, file, "not multiples of 32 groups");

    nl_checkpoint_close(golden);
    nl_context_destroy(context);
}

/* ---- The tiny one, with random weights and few channels */

enum { TINY_WIDTH = 8 };

static float noise(uint64_t *seed)
{
    *seed = *seed * 6364136223846793005u + 1442695040888963407u;
    return (float)((double)(*seed >> 11) / (double)(UINT64_C(1) << 53)) - 0.5f;
}

static void add_conv(test_file *file, const char *name, int64_t out, int64_t in, bool bias,
                     uint64_t *seed)
{
    char full[160];
    snprintf(full, sizeof(full), "%s.weight", name);
    float *weight = file_add(file, full, 4, (int64_t[]){out, in, 3, 3});
    for (int64_t i = 0; i < out * in * 9; i++)
        weight[i] = noise(seed) * 1.5f / sqrtf((float)in);
    snprintf(full, sizeof(full), "%s.bias", name);
    float *values = bias ? file_add(file, full, 1, (int64_t[]){out}) : NULL;
    for (int64_t i = 0; bias && i < out; i++)
        values[i] = noise(seed) * 0.2f;
}

/* The positions of taesd_torch.py: 'c' a convolution, 'n' one without bias, 'b' a block, '.' what has no
 * parameters. */
static const char encoder_sequence[] = "cbnbbbnbbbnbbbc",
                  decoder_sequence[] = ".c.bbb.nbbb.nbbb.nbc";

static void add_half(test_file *file, const char *prefix, bool encoder, int shift)
{
    uint64_t seed = encoder ? 1 : 2;
    const char *sequence = encoder ? encoder_sequence : decoder_sequence;
    int last = (int)strlen(sequence) - 1;
    for (int i = 0; i <= last; i++) {
        char name[96];
        if (sequence[i] == 'b') {
            for (int j = 0; j < 6; j += 2) {
                snprintf(name, sizeof(name), "%s%d.conv.%d", prefix, i - shift, j);
                add_conv(file, name, TINY_WIDTH, TINY_WIDTH, true, &seed);
            }
        } else if (sequence[i] != '.') {
            bool first = i == (encoder ? 0 : 1);
            int64_t in = first ? (encoder ? 3 : 4) : TINY_WIDTH;
            int64_t out = i == last ? (encoder ? 4 : 3) : TINY_WIDTH;
            snprintf(name, sizeof(name), "%s%d", prefix, i - shift);
            add_conv(file, name, out, in, sequence[i] == 'c', &seed);
        }
    }
}

static test_file *tiny_file(const char *encoder_prefix, const char *decoder_prefix, int shift)
{
    test_file *file = calloc(1, sizeof(*file));
    if (encoder_prefix)
        add_half(file, encoder_prefix, true, 0);
    if (decoder_prefix)
        add_half(file, decoder_prefix, false, shift);
    return file;
}

static nl_vae *tiny_vae(nl_device *device)
{
    nl_context *context = device->context;
    test_file *file = tiny_file("encoder.", "decoder.", 0);
    nl_checkpoint *checkpoint = file_open(context, file);
    nl_vae *vae;
    assert_ok(context, nl_vae_load(device, checkpoint, NULL, 1, 0, &vae));
    nl_checkpoint_close(checkpoint); /* nothing of it is needed any more */
    file_free(file);
    return vae;
}

static float *random_values(int64_t count, uint64_t seed, float size)
{
    float *values = malloc((size_t)count * sizeof(float));
    for (int64_t i = 0; i < count; i++)
        values[i] = noise(&seed) * size;
    return values;
}

static void test_tiny_names(void **state)
{
    (void)state;
    static const struct {
        const char *encoder, *decoder;
        int shift;
        bool two_files, swapped;
    } variants[] = {
        {"encoder.", "decoder.", 0, false, false},
        {"", "", 0, true, false},
        {"", "", 0, true, true},
        {"encoder.", "decoder.", 0, true, true},
        {"encoder.layers.", "decoder.layers.", 1, false, false},
    };
    const int64_t latent_shape[] = {2, 4, 5, 3}, rgb_shape[] = {2, 3, 40, 24};
    nl_context *context = test_context("cpu");
    float *z = random_values(2 * 4 * 5 * 3, 5, 4), *rgb = random_values(2 * 3 * 40 * 24, 6, 2);
    float *first_decoded = NULL, *first_latents = NULL;
    for (int i = 0; i < NL_COUNT(variants); i++) {
        bool two = variants[i].two_files;
        test_file *a =
            tiny_file(variants[i].encoder, two ? NULL : variants[i].decoder, variants[i].shift);
        test_file *b = tiny_file(NULL, two ? variants[i].decoder : NULL, variants[i].shift);
        nl_checkpoint *files[] = {file_open(context, a), two ? file_open(context, b) : NULL};
        bool swapped = variants[i].swapped;
        nl_vae *vae;
        assert_ok(context,
                  nl_vae_load(context->device, files[swapped], files[!swapped], 1, 0, &vae));
        assert_int_equal(nl_vae_get_kind(vae), NL_VAE_TINY);
        assert_int_equal(nl_vae_factor(vae), 8);
        assert_int_equal(nl_vae_latent_channels(vae), 4);
        float *decoded = decode(vae, context->device, z, latent_shape);
        float *latents = encode(vae, context->device, rgb, rgb_shape, NULL);
        if (i == 0) {
            first_decoded = decoded, first_latents = latents;
        } else {
            assert_close(decoded, first_decoded, 2 * 3 * 40 * 24, 0);
            assert_close(latents, first_latents, 2 * 4 * 5 * 3, 0);
            free(decoded), free(latents);
        }
        nl_vae_destroy(vae);
        nl_checkpoint_close(files[0]);
        nl_checkpoint_close(files[1]);
        file_free(a), file_free(b);
    }
    free(first_decoded), free(first_latents), free(z), free(rgb);
    nl_context_destroy(context);
}

static void test_tiny_refusals(void **state)
{
    (void)state;
    nl_context *context = test_context("reference");
    test_file *file = tiny_file("encoder.", "decoder.", 0);
    file_remove(file, "decoder.3.conv.2.weight");
    expect_refusal(context, file, "missing decoder.3.conv.2.weight [8, 8, 3, 3]");

    file = tiny_file("encoder.", "decoder.", 0);
    file_add(file, "decoder.21.weight", 1, (int64_t[]){1});
    expect_refusal(context, file, "unexpected decoder.21.weight");

    file = tiny_file("encoder.", "decoder.", 0);
    file_add(file, "encoder.2.bias", 1, (int64_t[]){8}); /* strided convolutions have none */
    expect_refusal(context, file, "unexpected encoder.2.bias");

    file = tiny_file("encoder.", "decoder.", 0);
    file_remove(file, "decoder.1.weight");
    expect_refusal(context, file, "decoder.1.weight is missing");

    file = tiny_file("encoder.", "encoder.layers.", 0); /* the same half twice */
    expect_refusal(context, file, "is there twice");
    nl_context_destroy(context);
}

/* A file with one half serves that half and refuses the other. */
static void test_one_half(void **state)
{
    (void)state;
    nl_context *context = test_context("reference");
    test_file *file = tiny_file(NULL, "decoder.", 0);
    nl_checkpoint *checkpoint = file_open(context, file);
    nl_vae *vae;
    assert_ok(context, nl_vae_load(context->device, checkpoint, NULL, 1, 0, &vae));
    float latents[4] = {0};
    uint8_t rgb[8 * 8 * 3] = {0};
    assert_ok(context, nl_vae_decode_pictures(vae, latents, 1, 1, 1, rgb));
    assert_int_equal(nl_vae_encode_pictures(vae, rgb, 1, 8, 8, latents), NL_ERROR_INPUT);
    assert_non_null(strstr(nl_last_error(context), "has no encoder"));
    assert_int_equal(nl_vae_decode_pictures(vae, latents, 1, 0, 1, rgb), NL_ERROR_USAGE);
    assert_int_equal(nl_vae_decode_pictures(vae, latents, INT64_MAX, 1 << 20, 1 << 20, rgb),
                     NL_ERROR_USAGE);
    nl_vae_destroy(vae);
    nl_checkpoint_close(checkpoint);
    file_free(file);
    nl_context_destroy(context);
}

static void test_none(void **state)
{
    (void)state;
    nl_context *context = test_context("cpu");
    nl_vae *vae;
    assert_ok(context, nl_vae_none(context->device, &vae));
    assert_int_equal(nl_vae_factor(vae), 1);
    assert_int_equal(nl_vae_latent_channels(vae), 3);
    enum { SIDE = 16 };
    uint8_t rgb[SIDE * SIDE * 3], back[SIDE * SIDE * 3];
    float latents[SIDE * SIDE * 3];
    for (int i = 0; i < SIDE * SIDE * 3; i++)
        rgb[i] = (uint8_t)i;
    assert_ok(context, nl_vae_encode_pictures(vae, rgb, 1, SIDE, SIDE, latents));
    assert_float_equal(latents[0], -1, 1e-6);
    assert_float_equal(latents[SIDE * SIDE], 1 / 127.5 - 1, 1e-6); /* planes: green of pixel 0 */
    assert_ok(context, nl_vae_decode_pictures(vae, latents, 1, SIDE, SIDE, back));
    assert_memory_equal(rgb, back, sizeof(rgb));
    /* uint8 = trunc(127.5 x + 128), clamped */
    const float edges[] = {-1.1f, -1, 0, 0.999f, 1, 7, NAN, -1 + 1 / 127.5f, 0.5f, -0.5f, 0, 0};
    const uint8_t expected[] = {0, 0, 128, 255, 255, 255, 0, 1, 191, 64, 128, 128};
    uint8_t bytes[12];
    float planes[12];
    for (int i = 0; i < 12; i++)
        planes[i % 3 * 4 + i / 3] = edges[i];
    assert_ok(context, nl_vae_decode_pictures(vae, planes, 1, 2, 2, bytes));
    for (int i = 0; i < 12; i++)
        if (!isnan(edges[i]))
            assert_int_equal(bytes[i], expected[i]);
    nl_vae_destroy(vae);
    nl_context_destroy(context);
}

/* ---- Golden numbers of TAESD itself; weights and photographs are not in the repository */

#define TAESD_ENCODER NL_SHARED_DIR "/weights/taesd_encoder.safetensors"
#define TAESD_DECODER NL_SHARED_DIR "/weights/taesd_decoder.safetensors"

static nl_vae *taesd(nl_device *device)
{
    nl_checkpoint *halves[2];
    assert_ok(device->context, nl_checkpoint_open(device->context, TAESD_ENCODER, &halves[0]));
    assert_ok(device->context, nl_checkpoint_open(device->context, TAESD_DECODER, &halves[1]));
    nl_vae *vae;
    assert_ok(device->context, nl_vae_load(device, halves[0], halves[1], 1, 0, &vae));
    nl_checkpoint_close(halves[0]);
    nl_checkpoint_close(halves[1]);
    return vae;
}

/* golden rgb is uint8, decoded in [0, 1] */
static void check_tiny_pair(nl_device *device, const nl_vae *vae, const nl_checkpoint *golden,
                            double tolerance)
{
    nl_tensor rgb, latents;
    float *rgb_values = test_read(golden, "rgb", &rgb);
    float *expected = test_read(golden, "latents", &latents);
    float *decoded = test_read(golden, "decoded", NULL);
    for (int64_t i = 0; i < nl_tensor_count(&rgb); i++) {
        rgb_values[i] = rgb_values[i] / 127.5f - 1;
        decoded[i] = 2 * decoded[i] - 1;
    }
    float *got = encode(vae, device, rgb_values, rgb.shape, NULL);
    assert_close(got, expected, nl_tensor_count(&latents), tolerance);
    free(got);
    got = decode(vae, device, expected, latents.shape);
    assert_close(got, decoded, nl_tensor_count(&rgb), tolerance);
    free(got), free(rgb_values), free(expected), free(decoded);
}

static void test_taesd(void **state)
{
    (void)state;
    test_need(TAESD_ENCODER);
    test_need_golden("taesd.safetensors");
    nl_context *context = test_context(test_device());
    nl_checkpoint *golden = test_golden(context, "taesd.safetensors");
    nl_vae *vae = taesd(context->device);
    check_tiny_pair(context->device, vae, golden, 1e-5);
    nl_vae_destroy(vae);
    nl_checkpoint_close(golden);
    nl_context_destroy(context);
}

static void test_taesd_first_model(void **state)
{
    (void)state;
    test_need(TAESD_DECODER);
    test_need_golden("first_model_sample.safetensors");
    nl_context *context = test_context(test_device());
    nl_checkpoint *golden = test_golden(context, "first_model_sample.safetensors");
    nl_vae *vae = taesd(context->device);
    nl_tensor latents, rgb;
    float *values = test_read(golden, "heun10", &latents);
    float *expected = test_read(golden, "heun10_rgb", &rgb);
    float *got = decode(vae, context->device, values, latents.shape);
    for (int64_t i = 0; i < nl_tensor_count(&rgb); i++)
        got[i] = (got[i] + 1) / 2;
    assert_close(got, expected, nl_tensor_count(&rgb), 1e-4);
    free(got), free(values), free(expected);
    nl_vae_destroy(vae);
    nl_checkpoint_close(golden);
    nl_context_destroy(context);
}

/* The pair that tests/make_tiny_golden.py makes from a drawn picture with the weights that ship. */
static void test_shipped_tiny(void **state)
{
    (void)state;
    const char *path = NL_SOURCE_DIR "/weights/shipped/tae.safetensors";
    test_need(path);
    nl_context *context = test_context(test_device());
    nl_checkpoint *golden = test_golden(context, "tiny_autoencoder.safetensors"), *checkpoint;
    nl_vae *vae;
    assert_ok(context, nl_checkpoint_open(context, path, &checkpoint));
    assert_ok(context, nl_vae_load(context->device, checkpoint, NULL, 1, 0, &vae));
    check_tiny_pair(context->device, vae, golden, 1e-5);
    nl_vae_destroy(vae);
    nl_checkpoint_close(checkpoint);
    nl_checkpoint_close(golden);
    nl_context_destroy(context);
}

/* ---- Batches and tiles */

static void test_batch_is_single(void **state)
{
    (void)state;
    enum { COUNT = 3, HEIGHT = 4, WIDTH = 6 };
    nl_context *context = test_context("cpu");
    nl_vae *vae = tiny_vae(context->device);
    float *z = random_values(COUNT * 4 * HEIGHT * WIDTH, 9, 4);
    size_t size = 64 * HEIGHT * WIDTH * 3;
    uint8_t *together = malloc(COUNT * size), *alone = malloc(size);
    float *latents = malloc(COUNT * 4 * HEIGHT * WIDTH * sizeof(float));
    float *latent = malloc(4 * HEIGHT * WIDTH * sizeof(float));
    assert_ok(context, nl_vae_decode_pictures(vae, z, COUNT, HEIGHT, WIDTH, together));
    assert_ok(context,
              nl_vae_encode_pictures(vae, together, COUNT, 8 * HEIGHT, 8 * WIDTH, latents));
    for (int i = 0; i < COUNT; i++) {
        assert_ok(context,
                  nl_vae_decode_pictures(vae, z + i * 4 * HEIGHT * WIDTH, 1, HEIGHT, WIDTH, alone));
        assert_memory_equal(alone, together + (size_t)i * size, size);
        assert_ok(context, nl_vae_encode_pictures(vae, alone, 1, 8 * HEIGHT, 8 * WIDTH, latent));
        assert_close(latent, latents + i * 4 * HEIGHT * WIDTH, 4 * HEIGHT * WIDTH, 1e-6);
    }
    assert_int_equal(nl_vae_encode_pictures(vae, alone, 1, 7, 8, latent), NL_ERROR_USAGE);
    free(z), free(together), free(alone), free(latents), free(latent);
    nl_vae_destroy(vae);
    nl_context_destroy(context);
}

/* Largest and mean difference of two pictures. */
static int largest_difference(const uint8_t *a, const uint8_t *b, size_t size, double *mean)
{
    int largest = 0;
    double sum = 0;
    for (size_t i = 0; i < size; i++) {
        int difference = abs(a[i] - b[i]);
        largest = NL_MAX(largest, difference);
        sum += difference;
    }
    *mean = sum / (double)size;
    return largest;
}

/* Bytes that a device takes to encode or decode `side` x `side` latents. */
static int64_t measured(const nl_vae *vae, nl_device *device, bool decode, int64_t side)
{
    nl_context *context = device->context;
    int64_t channels = nl_vae_latent_channels(vae), pixels = side * nl_vae_factor(vae);
    nl_tensor latents, rgb;
    nl_device measuring;
    nl_device_measuring(device, &measuring);
    assert_ok(context, nl_arena_tensor(&measuring, NL_F32, 4, (int64_t[]){1, channels, side, side},
                                       &latents));
    assert_ok(context,
              nl_arena_tensor(&measuring, NL_F32, 4, (int64_t[]){1, pixels, pixels, 3}, &rgb));
    assert_ok(context, decode ? nl_vae_decode(vae, &measuring, &latents, &rgb)
                              : nl_vae_encode(vae, &measuring, &rgb, &latents, NULL));
    return measuring.arena_peak;
}

/* Encodes a picture and decodes its latents whole, then with the memory that a tile of `tile` latents takes on
 * this device. `load` makes the same autoencoder on any device; height, width in latents. */
static void check_tiles(nl_vae *(*load)(nl_device *device), const uint8_t *rgb, int64_t height,
                        int64_t width, int64_t tile, int allowed, double allowed_mean,
                        double allowed_latent)
{
    nl_context *contexts[] = {test_context(test_device()), test_context(test_device())};
    nl_vae *vaes[] = {load(contexts[0]->device), load(contexts[1]->device)};
    int64_t whole[2];
    int64_t factor = nl_vae_factor(vaes[0]);
    int64_t count = nl_vae_latent_channels(vaes[0]) * height * width;
    int64_t sum = 3 * factor * factor * height * width, most = 3 * factor * factor * tile * tile;
    size_t bytes = (size_t)sum;
    float *latents[2];
    uint8_t *pictures[2];
    for (int i = 0; i < 2; i++) {
        pictures[i] = malloc(bytes);
        latents[i] = malloc((size_t)count * sizeof(float));
    }
    /* What a device keeps beside the arena once it has run: weights in another order, scratch memory. */
    assert_ok(contexts[1],
              nl_vae_encode_pictures(vaes[1], rgb, 1, tile * factor, tile * factor, latents[1]));
    assert_ok(contexts[1], nl_vae_decode_pictures(vaes[1], latents[1], 1, tile, tile, pictures[1]));
    int64_t kept = contexts[1]->memory_used - contexts[1]->device->arena_size;
    for (int i = 0; i < 2; i++) {
        memset(pictures[i], 0x55, bytes);
        for (int decode = 0; decode < 2; decode++) {
            nl_device *device = contexts[i]->device;
            int64_t host = 4 * (most + count) + (decode ? 4 * sum : 0) + (1 << 20);
            nl_arena_free(device);
            if (i == 1)
                contexts[1]->options.max_memory =
                    kept + host + measured(vaes[1], device, decode, tile);
            contexts[i]->memory_peak = 0;
            assert_ok(contexts[i], decode ? nl_vae_decode_pictures(vaes[i], latents[0], 1, height,
                                                                   width, pictures[i])
                                          : nl_vae_encode_pictures(vaes[i], rgb, 1, height * factor,
                                                                   width * factor, latents[i]));
            if (i == 0) {
                whole[decode] = device->arena_size;
            } else {
                assert_true(device->arena_size < whole[decode]);
                assert_true(contexts[1]->memory_peak <= contexts[1]->options.max_memory);
            }
        }
    }
    double mean, error = test_relative_error(latents[1], latents[0], count);
    int largest = largest_difference(pictures[1], pictures[0], bytes, &mean);
    print_message("tiles against whole: pixels differ by at most %d, %.4f in the mean; latents by "
                  "%.2g\n",
                  largest, mean, error);
    assert_true(largest <= allowed);
    assert_true(mean <= allowed_mean);
    assert_true(error <= allowed_latent);
    for (int i = 0; i < 2; i++) {
        free(pictures[i]), free(latents[i]);
        nl_vae_destroy(vaes[i]);
        nl_context_destroy(contexts[i]);
    }
}

/* Smooth waves with a fine texture. */
static uint8_t *drawn_picture(int64_t height, int64_t width)
{
    uint8_t *rgb = malloc((size_t)(height * width * 3));
    uint64_t seed = 4;
    for (int64_t y = 0; y < height; y++)
        for (int64_t x = 0; x < width; x++)
            for (int64_t c = 0; c < 3; c++)
                rgb[(y * width + x) * 3 + c] =
                    (uint8_t)(128 + 60 * sin(0.11 * (double)((c + 1) * x) + 0.07 * (double)y) +
                              40 * noise(&seed));
    return rgb;
}

static void test_tiles(void **state)
{
    (void)state;
    uint8_t *rgb = drawn_picture(112 * 8, 100 * 8);
    check_tiles(tiny_vae, rgb, 112, 100, 72, 1, 0.01, 1e-3);
    free(rgb);
}

static void test_tiles_taesd(void **state)
{
    (void)state;
    enum { SIDE = 64 };
    const char *path = NL_SHARED_DIR "/images/first-model-grid-cfg1.5.png";
    test_need(path);
    test_need(TAESD_ENCODER);
    nl_context *context = test_context(NULL);
    nl_image grid;
    assert_ok(context, nl_image_read(context, path, &grid));
    uint8_t *rgb = malloc(SIDE * SIDE * 64 * 3);
    for (int y = 0; y < SIDE * 8; y++)
        memcpy(rgb + y * SIDE * 8 * 3, grid.rgb + y * grid.width * 3, SIDE * 8 * 3);
    check_tiles(taesd, rgb, SIDE, SIDE, 56, 1, 0.01, 1e-3);
    free(rgb);
    nl_image_free(context, &grid);
    nl_core_context_destroy(context);
}

static nl_vae *small_kl(nl_device *device)
{
    nl_context *context = device->context;
    nl_checkpoint *golden = test_golden(context, "autoencoder_kl.safetensors");
    test_file *file = golden_weights(golden);
    nl_checkpoint *checkpoint = file_open(context, file);
    nl_vae *vae;
    assert_ok(context, nl_vae_load(device, checkpoint, NULL, 1, 0, &vae));
    nl_checkpoint_close(checkpoint);
    nl_checkpoint_close(golden);
    file_free(file);
    return vae;
}

/* Group norms and the mid attention see one tile alone: near the whole picture, not equal to it. This
 * network is the worst case, with a group norm over every single channel; PyTorch shows the same. */
static void test_tiles_kl(void **state)
{
    (void)state;
    uint8_t *rgb = drawn_picture(96 * 4, 80 * 4);
    check_tiles(small_kl, rgb, 96, 80, 64, 255, 8, 0.06);
    free(rgb);
}

static void test_too_little_memory(void **state)
{
    (void)state;
    nl_context *context = test_context("cpu");
    nl_vae *vae = tiny_vae(context->device);
    float *z = random_values(4 * 96 * 96, 3, 1);
    uint8_t *rgb = malloc(64 * 96 * 96 * 3);
    context->options.max_memory = context->memory_used + (1 << 20);
    assert_int_equal(nl_vae_decode_pictures(vae, z, 1, 96, 96, rgb), NL_ERROR_MEMORY);
    assert_non_null(strstr(nl_last_error(context), "MiB"));
    context->options.max_memory = 0;
    assert_ok(context, nl_vae_decode_pictures(vae, z, 1, 8, 8, rgb));
    nl_cancel(context);
    assert_int_equal(nl_vae_decode_pictures(vae, z, 1, 8, 8, rgb), NL_CANCELLED);
    free(z), free(rgb);
    nl_vae_destroy(vae);
    nl_context_destroy(context);
}

/* ---- Every allocation fails once: a clear error, and nothing is lost */

static void test_faults(void **state)
{
    (void)state;
    nl_context *context = test_context("reference");
    test_file *file = tiny_file("encoder.", "decoder.", 0);
    nl_checkpoint *checkpoint = file_open(context, file);
    float z[4 * 4] = {0};
    uint8_t rgb[16 * 16 * 3];
    nl_status status = NL_ERROR_MEMORY;
    int failures = 0;
    for (int64_t n = 1; status != NL_OK; n++, failures++) {
        int64_t used = context->memory_used - context->device->arena_size;
        nl_vae *vae;
        context->fail_allocation = context->allocations + n;
        status = nl_vae_load(context->device, checkpoint, NULL, 1, 0, &vae);
        if (status == NL_OK)
            status = nl_vae_decode_pictures(vae, z, 1, 2, 2, rgb);
        if (status == NL_OK)
            status = nl_vae_encode_pictures(vae, rgb, 1, 16, 16, z);
        nl_vae_destroy(vae);
        if (status != NL_OK) {
            assert_int_equal(status, NL_ERROR_MEMORY);
            assert_non_null(strstr(nl_last_error(context), "memory for"));
        }
        assert_true(llabs((long long)(context->memory_used - context->device->arena_size - used)) <=
                    256); /* the arena's alignment */
        assert_true(n < 1000);
    }
    assert_true(failures > 8);
    context->fail_allocation = 0;
    nl_checkpoint_close(checkpoint);
    file_free(file);
    nl_context_destroy(context);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_kl_reference),
        cmocka_unit_test(test_kl_device),
        cmocka_unit_test(test_kl_bf16),
        cmocka_unit_test(test_kl_old_diffusers_names),
        cmocka_unit_test(test_kl_compvis_names),
        cmocka_unit_test(test_kl_scale_and_shift),
        cmocka_unit_test(test_kl_without_quant_conv),
        cmocka_unit_test(test_kl_refusals),
        cmocka_unit_test(test_tiny_names),
        cmocka_unit_test(test_tiny_refusals),
        cmocka_unit_test(test_one_half),
        cmocka_unit_test(test_none),

        cmocka_unit_test(test_shipped_tiny),
        cmocka_unit_test(test_batch_is_single),
        cmocka_unit_test(test_tiles),

        cmocka_unit_test(test_tiles_kl),
        cmocka_unit_test(test_too_little_memory),
        cmocka_unit_test(test_faults),
        cmocka_unit_test(test_taesd),
        cmocka_unit_test(test_taesd_first_model),
        cmocka_unit_test(test_tiles_taesd),
    };
    return test_run(tests, 3, NULL, NULL);
}
