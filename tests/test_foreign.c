/* SPDX-License-Identifier: MIT */
/* Files of other programs: what they say of themselves is used or refused by name; nothing is taken by its shape
 * alone. */
#include "nl_test.h"

#include <unistd.h>

#include "arena.h"
#include "model.h"
#include "nalagen.h"
#include "nl_random.h"

static char folder[] = "/tmp/nalagen_foreign_XXXXXX";
static nl_context *context;

static int setup(void **state)
{
    (void)state;
    context = test_context("cpu");
    return mkdtemp(folder) ? 0 : -1;
}

static int teardown(void **state)
{
    (void)state;
    char command[64];
    int64_t left = context->memory_used;
    nl_context_destroy(context);
    snprintf(command, sizeof(command), "rm -rf %s", folder);
    return system(command) == 0 && left >= 0 ? 0 : -1;
}

/* folder/name, in one of some buffers that are used in turn. */
static const char *in_folder(const char *name)
{
    static char paths[4][256];
    static int next;
    char *path = paths[next++ % 4];
    snprintf(path, sizeof(paths[0]), "%s/%s", folder, name);
    return path;
}

static void write_text(const char *name, const char *text)
{
    const char *path = in_folder(name);
    char parent[256];
    snprintf(parent, sizeof(parent), "%.*s", (int)(strrchr(path, '/') - path), path);
    assert_ok(context, nl_make_folder(context, parent));
    assert_ok(context, nl_write_file(context, path, true, text, strlen(text)));
}

static void expect_refusal(nl_status status, nl_status expected, const char *part)
{
    if (status != expected || !strstr(nl_last_error(context), part))
        fail_msg("expected a refusal that says \"%s\", got %s: %s", part, nl_status_name(status),
                 nl_last_error(context));
}

/* A tensor that is to be written: of the weights, or made by the test. */
typedef struct test_tensor {
    char name[128];
    int ndim;
    int64_t shape[NL_MAX_DIMS];
    float *values;
} test_tensor;

typedef struct test_tensors {
    int count;
    test_tensor list[400];
} test_tensors;

static test_tensor *add_tensor(test_tensors *tensors, const char *name, int ndim,
                               const int64_t *shape)
{
    test_tensor *tensor = &tensors->list[tensors->count++];
    int64_t count = 1;
    snprintf(tensor->name, sizeof(tensor->name), "%s", name);
    tensor->ndim = ndim;
    for (int i = 0; i < ndim; i++)
        count *= tensor->shape[i] = shape[i];
    tensor->values = calloc((size_t)count, sizeof(float));
    return tensor;
}

/* The last ones. */
static void drop_tensors(test_tensors *tensors, int count)
{
    while (count-- > 0)
        free(tensors->list[--tensors->count].values);
}

static test_tensor *find_tensor(test_tensors *tensors, const char *name)
{
    for (int i = 0; i < tensors->count; i++)
        if (!strcmp(tensors->list[i].name, name))
            return &tensors->list[i];
    fail_msg("the test has no tensor %s", name);
    return NULL;
}

static int64_t tensor_count(const test_tensor *tensor)
{
    int64_t count = 1;
    for (int i = 0; i < tensor->ndim; i++)
        count *= tensor->shape[i];
    return count;
}

/* All of a checkpoint whose names begin with the prefix, which is taken off. */
static test_tensors *read_tensors(const nl_checkpoint *checkpoint, const char *prefix)
{
    test_tensors *tensors = calloc(1, sizeof(*tensors));
    size_t length = strlen(prefix);
    for (int64_t i = 0; i < checkpoint->count; i++) {
        const nl_entry *entry = &checkpoint->entries[i];
        if (strncmp(entry->name, prefix, length))
            continue;
        test_tensor *tensor = add_tensor(tensors, entry->name + length, entry->ndim, entry->shape);
        assert_ok(context, nl_entry_read(checkpoint, entry, tensor->values));
    }
    return tensors;
}

static void write_tensors(const test_tensors *tensors, const char *name)
{
    nl_tensor_header headers[400];
    nl_safetensors_writer *writer;
    for (int i = 0; i < tensors->count; i++) {
        const test_tensor *tensor = &tensors->list[i];
        headers[i] =
            (nl_tensor_header){.name = tensor->name, .dtype = NL_F32, .ndim = tensor->ndim};
        memcpy(headers[i].shape, tensor->shape, sizeof(tensor->shape));
    }
    assert_ok(context, nl_safetensors_create(context, in_folder(name), true, NULL, headers,
                                             tensors->count, &writer));
    for (int i = 0; i < tensors->count; i++)
        assert_ok(context, nl_safetensors_write(writer, tensors->list[i].values,
                                                4 * tensor_count(&tensors->list[i])));
    assert_ok(context, nl_safetensors_commit(&writer));
}

static void free_tensors(test_tensors *tensors)
{
    for (int i = 0; i < tensors->count; i++)
        free(tensors->list[i].values);
    free(tensors);
}

/* ---- Autoencoders: config.json beside the weights (diffusers) */

static const char vae_file[] = "vae/diffusion_pytorch_model.safetensors";

/* The folder vae with the golden's weights, some of them left out, and this config.json. */
static void write_vae(const char *without, const char *json)
{
    nl_checkpoint *golden = test_golden(context, "autoencoder_kl.safetensors");
    test_tensors *tensors = read_tensors(golden, "w.");
    for (int i = 0; without && i < tensors->count; i++)
        if (strstr(tensors->list[i].name, without)) {
            free(tensors->list[i].values);
            tensors->list[i--] = tensors->list[--tensors->count];
        }
    write_text("vae/config.json", json);
    write_tensors(tensors, vae_file);
    free_tensors(tensors);
    nl_checkpoint_close(golden);
}

static nl_status load_vae(const char *json, const char *without, nl_vae **vae)
{
    nl_checkpoint *checkpoint;
    write_vae(without, json);
    *vae = NULL;
    assert_ok(context, nl_open_autoencoder(context, in_folder("vae"), &checkpoint));
    nl_status status = nl_vae_load(context->device, checkpoint, NULL, 1, 0, vae);
    nl_checkpoint_close(checkpoint);
    return status;
}

#define KL_CLASS "{\"_class_name\": \"AutoencoderKL\""

static void test_vae_scale(void **state)
{
    (void)state;
    nl_vae *vae;
    double scale, shift;
    assert_ok(context, load_vae(KL_CLASS "}", NULL, &vae));
    assert_ok(context, nl_vae_latent_scale(vae, &scale, &shift));
    assert_true(scale == 0.18215 && shift == 0 && !nl_vae_says_scale(vae));
    nl_vae_destroy(vae);
    /* Stable Diffusion 3's and SDXL's ways to say it */
    assert_ok(context, load_vae(KL_CLASS ", \"scaling_factor\": 1.5305, \"shift_factor\": 0.0609}",
                                NULL, &vae));
    assert_ok(context, nl_vae_latent_scale(vae, &scale, &shift));
    assert_true(scale == 1.5305 && shift == 0.0609 && nl_vae_says_scale(vae));
    nl_vae_destroy(vae);
    assert_ok(context, load_vae(KL_CLASS ", \"scaling_factor\": 0.13025, \"shift_factor\": null, "
                                         "\"latents_mean\": null, \"force_upcast\": true}",
                                NULL, &vae));
    assert_ok(context, nl_vae_latent_scale(vae, &scale, &shift));
    assert_true(scale == 0.13025 && shift == 0);
    nl_vae_destroy(vae);
}

static void test_vae_groups_and_attention(void **state)
{
    (void)state;
    nl_vae *vae;
    nl_checkpoint *golden = test_golden(context, "autoencoder_kl.safetensors");
    nl_checkpoint *plain = test_golden(context, "autoencoder_kl_plain.safetensors");
    nl_tensor z, decoded, x, y;
    float *z_values = test_read(golden, "z", &z);
    float *expected = test_read(plain, "decoded", &decoded);
    assert_ok(context, load_vae(KL_CLASS ", \"norm_num_groups\": 16, \"act_fn\": \"silu\", "
                                         "\"mid_block_add_attention\": false}",
                                ".attentions.", &vae));
    nl_device *device = context->device;
    int64_t area = decoded.shape[2] * decoded.shape[3], count = nl_tensor_count(&decoded);
    assert_ok(context, nl_arena_reserve(device, 256 << 20));
    int64_t mark = nl_arena_mark(device);
    assert_ok(context, nl_arena_tensor(device, NL_F32, 4, z.shape, &x));
    assert_ok(context,
              nl_arena_tensor(device, NL_F32, 4,
                              (int64_t[]){decoded.shape[0], decoded.shape[2], decoded.shape[3], 3},
                              &y));
    memcpy(x.data, z_values, (size_t)nl_tensor_bytes(&z));
    assert_ok(context, nl_vae_decode(vae, device, &x, &y));
    float *got = malloc((size_t)count * sizeof(float));
    for (int64_t i = 0; i < count; i++)
        got[i] = ((float *)y.data)[(i / (3 * area) * area + i % area) * 3 + i / area % 3];
    assert_close(got, expected, count, 1e-5);
    nl_arena_release(device, mark);
    free(got), free(z_values), free(expected);
    nl_vae_destroy(vae);
    nl_checkpoint_close(plain);
    nl_checkpoint_close(golden);
}

/* ---- A mean and a deviation for each channel */

static const double channel_mean[4] = {0.5, -1, 0.25, 2}, channel_std[4] = {2, 0.5, 3, 1.25};
#define STATS "\"latents_mean\": [0.5, -1, 0.25, 2], \"latents_std\": [2, 0.5, 3, 1.25]"

/* What a half of the autoencoder makes of x [1, C, h, w] or a picture [1, h, w, 3]; *more: the log variance. */
static float *run_half(nl_vae *vae, bool decode, const float *x, int side, float **more)
{
    nl_device *device = context->device;
    int pixels = side * nl_vae_factor(vae);
    nl_tensor latents, logvar, rgb;
    assert_ok(context, nl_arena_reserve(device, 256 << 20));
    int64_t mark = nl_arena_mark(device), latent[] = {1, 4, side, side};
    assert_ok(context, nl_arena_tensor(device, NL_F32, 4, latent, &latents));
    assert_ok(context, nl_arena_tensor(device, NL_F32, 4, latent, &logvar));
    assert_ok(context, nl_arena_tensor(device, NL_F32, 4, (int64_t[]){1, pixels, pixels, 3}, &rgb));
    const nl_tensor *from = decode ? &latents : &rgb, *to = decode ? &rgb : &latents;
    memcpy(from->data, x, (size_t)nl_tensor_bytes(from));
    assert_ok(context, decode ? nl_vae_decode(vae, device, &latents, &rgb)
                              : nl_vae_encode(vae, device, &rgb, &latents, more ? &logvar : NULL));
    float *got = malloc((size_t)nl_tensor_bytes(to));
    memcpy(got, to->data, (size_t)nl_tensor_bytes(to));
    if (more) {
        *more = malloc((size_t)nl_tensor_bytes(&logvar));
        memcpy(*more, logvar.data, (size_t)nl_tensor_bytes(&logvar));
    }
    nl_arena_release(device, mark);
    return got;
}

/* `normalised` is `plain` with scale (z - mean) / deviation for z. */
static void expect_normalised(nl_vae *plain, nl_vae *normalised, double scale)
{
    enum { SIDE = 4, AREA = SIDE * SIDE };
    float x[4 * AREA], z[4 * AREA], *logvar, *plain_logvar;
    int pixels = SIDE * nl_vae_factor(plain), count = 3 * pixels * pixels;
    float *picture = malloc((size_t)count * sizeof(float));
    for (int i = 0; i < 4 * AREA; i++) {
        x[i] = (float)(sin(i * 0.7) * scale);
        z[i] = (float)(x[i] / scale * channel_std[i / AREA] + channel_mean[i / AREA]);
    }
    for (int i = 0; i < count; i++)
        picture[i] = (float)sin(i * 0.37);
    nl_vae_set_scale(normalised, scale, 0);
    nl_vae_set_scale(plain, 1, 0);
    float *got = run_half(normalised, true, x, SIDE, NULL);
    float *expected = run_half(plain, true, z, SIDE, NULL);
    assert_close(got, expected, count, 1e-5);
    free(got), free(expected);
    got = run_half(normalised, false, picture, SIDE, NULL);
    expected = run_half(plain, false, picture, SIDE, NULL);
    for (int i = 0; i < 4 * AREA; i++)
        expected[i] =
            (float)(scale * (expected[i] - channel_mean[i / AREA]) / channel_std[i / AREA]);
    assert_close(got, expected, 4 * AREA, 1e-5);
    free(got), free(expected);
    got = run_half(normalised, false, picture, SIDE, &logvar);
    expected = run_half(plain, false, picture, SIDE, &plain_logvar);
    for (int i = 0; i < 4 * AREA; i++) {
        expected[i] = (float)((expected[i] - channel_mean[i / AREA]) / channel_std[i / AREA]);
        plain_logvar[i] = (float)(plain_logvar[i] - 2 * log(channel_std[i / AREA]));
    }
    assert_close(got, expected, 4 * AREA, 1e-5);
    assert_close(logvar, plain_logvar, 4 * AREA, 1e-5);
    free(got), free(expected), free(logvar), free(plain_logvar), free(picture);
}

static void write_stats(const char *name, int64_t channels, double std)
{
    test_tensors tensors = {0};
    test_tensor *mean = add_tensor(&tensors, "mean", 4, (int64_t[]){1, channels, 1, 1});
    for (int i = 0; i < channels; i++)
        mean->values[i] = (float)channel_mean[i % 4];
    test_tensor *deviation = add_tensor(&tensors, "std", 4, (int64_t[]){1, channels, 1, 1});
    for (int i = 0; i < channels; i++)
        deviation->values[i] = (float)(std * channel_std[i % 4]);
    write_tensors(&tensors, name);
    drop_tensors(&tensors, 2);
}

static void test_vae_stats(void **state)
{
    (void)state;
    static const char beside[] = "vae/latents_stats.safetensors";
    nl_vae *plain, *vae;
    nl_checkpoint *checkpoint;
    double scale, shift;
    assert_ok(context, load_vae(KL_CLASS "}", NULL, &plain));
    assert_ok(context, load_vae(KL_CLASS ", \"scaling_factor\": 0.5, " STATS "}", NULL, &vae));
    assert_ok(context, nl_vae_latent_scale(vae, &scale, &shift));
    assert_true(scale == 0.5 && shift == 0);
    expect_normalised(plain, vae, scale);
    nl_vae_destroy(vae);
    /* converted, the file says it itself */
    assert_ok(context, nl_checkpoint_open(context, in_folder(vae_file), &checkpoint));
    assert_ok(context, nl_vae_convert(checkpoint, NULL, in_folder("one.safetensors"), true,
                                      NL_DTYPE_COUNT, false));
    nl_checkpoint_close(checkpoint);
    write_text("config.json", "{}"); /* of something else */
    assert_ok(context, nl_checkpoint_open(context, in_folder("one.safetensors"), &checkpoint));
    assert_ok(context, nl_vae_load(context->device, checkpoint, NULL, 1, 0, &vae));
    nl_checkpoint_close(checkpoint);
    assert_ok(context, nl_vae_latent_scale(vae, &scale, &shift));
    assert_true(scale == 0.5 && shift == 0);
    expect_normalised(plain, vae, scale);
    nl_vae_destroy(vae);
    /* LightningDiT's file beside it, which says the scale, too */
    write_stats(beside, 4, 1);
    assert_ok(context, load_vae("{}", NULL, &vae));
    assert_ok(context, nl_vae_latent_scale(vae, &scale, &shift));
    assert_true(scale == 1 && shift == 0 && nl_vae_says_scale(vae));
    expect_normalised(plain, vae, 1);
    nl_vae_destroy(vae);
    write_stats(beside, 5, 1);
    expect_refusal(load_vae("{}", NULL, &vae), NL_ERROR_INPUT, "latents_stats.safetensors");
    write_stats(beside, 4, 0);
    expect_refusal(load_vae("{}", NULL, &vae), NL_ERROR_INPUT, "deviation 0");
    write_text(beside, "no tensors");
    expect_refusal(load_vae("{}", NULL, &vae), NL_ERROR_INPUT, "latents_stats.safetensors");
    unlink(in_folder(beside));
    nl_vae_destroy(plain);
}

static void test_vae_refusals(void **state)
{
    (void)state;
    static const struct {
        const char *json, *part, *without;
    } cases[] = {
        {KL_CLASS ", \"act_fn\": \"relu\"}", "act_fn", NULL},
        {KL_CLASS ", \"latents_mean\": [0, 1, 2, 3]}", "latents_std", NULL},
        {KL_CLASS ", \"latents_std\": [1, 1, 1, 2]}", "latents_mean", NULL},
        {KL_CLASS ", \"latents_mean\": 0, \"latents_std\": 1}", "lists", NULL},
        {KL_CLASS ", \"latents_mean\": [0, 1], \"latents_std\": [1, 1]}", "4 channels", NULL},
        {KL_CLASS ", \"latents_mean\": [0, 1, 2, \"x\"], \"latents_std\": [1, 1, 1, 1]}",
         "expected numbers", NULL},
        {KL_CLASS ", \"latents_mean\": [0, 1, 2, 3], \"latents_std\": [1, 1, 0, 1]}", "channel 2",
         NULL},
        {KL_CLASS ", \"latents_mean\": [0, 1, 2, 3], \"latents_std\": [1, 1, 1, 1], "
                  "\"shift_factor\": 0.5}",
         "shift_factor", NULL},
        {KL_CLASS ", \"latents_mean\": [0, 1, 2, 3], \"latents_std\": [1, 1, 1, 1]}",
         "post_quant_conv", "quant_conv."},
        {KL_CLASS ", \"norm_num_groups\": 7}", "7 groups", NULL},
        {KL_CLASS ", \"norm_num_groups\": 0}", "norm_num_groups", NULL},
        {KL_CLASS ", \"scaling_factor\": \"x\"}", "scaling_factor", NULL},
        {KL_CLASS ", \"mid_block_add_attention\": false}", "unexpected", NULL},
        {KL_CLASS ", \"mid_block_add_attention\": true}", "missing", ".attentions."},
        {"{\"_class_name\": \"VQModel\"}", "VQModel", NULL},
        {"{\"_class_name\": \"AutoencoderDC\"}", "AutoencoderDC", NULL},
    };
    for (int i = 0; i < NL_COUNT(cases); i++) {
        nl_vae *vae;
        expect_refusal(load_vae(cases[i].json, cases[i].without, &vae), NL_ERROR_INPUT,
                       cases[i].part);
    }
    /* of another network in the same folder */
    nl_vae *vae;
    assert_ok(context, load_vae("{\"_class_name\": \"DiTTransformer2DModel\"}", NULL, &vae));
    nl_vae_destroy(vae);
}

/* Channels other than Stable Diffusion's say nothing of a scale by themselves. */
static void test_vae_unknown_scale(void **state)
{
    (void)state;
    nl_checkpoint *golden = test_golden(context, "autoencoder_kl.safetensors"), *checkpoint;
    test_tensors *tensors = read_tensors(golden, "w.");
    static const struct {
        const char *name;
        int axes; /* bits: those of the latent's channels */
    } wide[] = {{"encoder.conv_out.weight", 1}, {"encoder.conv_out.bias", 1},
                {"quant_conv.weight", 3},       {"quant_conv.bias", 1},
                {"post_quant_conv.weight", 3},  {"post_quant_conv.bias", 1},
                {"decoder.conv_in.weight", 2}};
    for (int i = 0; i < NL_COUNT(wide); i++) {
        test_tensor *tensor = find_tensor(tensors, wide[i].name);
        for (int axis = 0; axis < 2; axis++)
            tensor->shape[axis] *= wide[i].axes >> axis & 1 ? 4 : 1;
        free(tensor->values);
        tensor->values = calloc((size_t)tensor_count(tensor), sizeof(float));
    }
    write_tensors(tensors, "wide.safetensors");
    assert_ok(context, nl_checkpoint_open(context, in_folder("wide.safetensors"), &checkpoint));
    nl_vae *vae;
    double scale, shift;
    assert_ok(context, nl_vae_load(context->device, checkpoint, NULL, 1, 0, &vae));
    assert_int_equal(nl_vae_latent_channels(vae), 16);
    expect_refusal(nl_vae_latent_scale(vae, &scale, &shift), NL_ERROR_INPUT, "scaling_factor");
    nl_vae_destroy(vae);
    nl_checkpoint_close(checkpoint);
    free_tensors(tensors);
    nl_checkpoint_close(golden);
}

/* ---- A model and its autoencoder */

static nl_status load_model(const char *path, const char *config, nl_model **model)
{
    *model = NULL;
    return nl_model_load(
        context, &(nl_model_options){.path = path, .vae = in_folder("vae"), .config_path = config},
        model);
}

static void decode_zeros(nl_model *model, double x, uint8_t rgb[3 * 16 * 16], int factor)
{
    float latents[4 * 4 * 4];
    for (int i = 0; i < 64; i++)
        latents[i] = (float)(x * (i % 7 - 3));
    assert_ok(context, nl_decode(model, latents, 1, 16 / factor, 16 / factor, rgb));
}

/* The public model says nothing: the autoencoder's word counts, its factor too. What the model says stands against it. */
static void test_model_and_vae(void **state)
{
    (void)state;
    uint8_t a[3 * 16 * 16], b[3 * 16 * 16];
    nl_model *model;
    char path[4096];
    test_golden_path("torch/dit.pt", path, sizeof(path));
    write_vae(NULL, KL_CLASS "}");
    assert_ok(context, load_model(path, NULL, &model));
    assert_int_equal(nl_model_factor(nl_model_get_config(model)), 4);
    decode_zeros(model, 0.18215, a, 4);
    nl_model_destroy(model);
    write_vae(NULL, KL_CLASS ", \"scaling_factor\": 0.5}");
    assert_ok(context, load_model(path, NULL, &model));
    decode_zeros(model, 0.5, b, 4);
    assert_memory_equal(a, b, sizeof(a));
    nl_model_destroy(model);
    write_text("said.json", "{\"architecture\": \"DiT\", \"latent_scale\": 0.18215}");
    expect_refusal(load_model(path, in_folder("said.json"), &model), NL_ERROR_INPUT,
                   "scaling_factor 0.5");
    write_text("said.json", "{\"architecture\": \"DiT\", \"latent_scale\": 0.5}");
    assert_ok(context, load_model(path, in_folder("said.json"), &model));
    nl_model_destroy(model);
    write_text("said.json", "{\"architecture\": \"DiT\", \"latent_factor\": 8}");
    expect_refusal(load_model(path, in_folder("said.json"), &model), NL_ERROR_INPUT, "1/8");
    write_vae(NULL, KL_CLASS "}");
    write_text("said.json",
               "{\"architecture\": \"DiT\", \"latent_scale\": 0.25, \"latent_factor\": 4}");
    assert_ok(context, load_model(path, in_folder("said.json"), &model));
    decode_zeros(model, 0.25, b, 4);
    assert_memory_equal(a, b, sizeof(a));
    nl_model_destroy(model);
}

/* ---- Pipeline folders of diffusers */

static void copy_file(const char *from, const char *to)
{
    nl_mapping file;
    char path[4096];
    assert_ok(context, nl_map_file(context, test_golden_path(from, path, sizeof(path)), &file));
    assert_ok(context, nl_write_file(context, in_folder(to), true, file.data, (size_t)file.size));
    nl_unmap(context, &file);
}

static const char index_json[] =
    "{\"_class_name\": \"DiTPipeline\", \"id2label\": {\"0\": \"tench, Tinca tinca\", \"1\": "
    "\"b\", "
    "\"2\": \"c\", \"3\": \"d\", \"4\": \"e\", \"5\": \"f\", \"6\": \"g\", \"7\": \"h\", "
    "\"8\": \"i\", \"9\": \"j\"}}";

/* The golden DiT of diffusers as PIPE/transformer. */
static void write_pipeline(const char *scheduler)
{
    static const char *const names[] = {"config.json",
                                        "diffusion_pytorch_model-00001-of-00002.safetensors",
                                        "diffusion_pytorch_model-00002-of-00002.safetensors",
                                        "diffusion_pytorch_model.safetensors.index.json"};
    char from[128], to[128];
    write_text("pipe/model_index.json", index_json);
    write_text("pipe/transformer/x", "");
    for (int i = 0; i < NL_COUNT(names); i++) {
        snprintf(from, sizeof(from), "torch/diffusers/%s", names[i]);
        snprintf(to, sizeof(to), "pipe/transformer/%s", names[i]);
        copy_file(from, to);
    }
    write_text("pipe/scheduler/scheduler_config.json", scheduler);
}

static nl_status open_pipeline(const char *scheduler, nl_config *config)
{
    nl_checkpoint *checkpoint;
    write_pipeline(scheduler);
    assert_ok(context, nl_open_backbone(context, in_folder("pipe"), NULL, &checkpoint));
    nl_status status = nl_config_from_checkpoint(checkpoint, NULL, config);
    nl_checkpoint_close(checkpoint);
    return status;
}

#define DDIM "{\"_class_name\": \"DDIMScheduler\""

static void test_scheduler(void **state)
{
    (void)state;
    nl_config c;
    /* as published with DiT */
    assert_ok(context, open_pipeline(DDIM ", \"beta_end\": 0.02, \"beta_schedule\": \"linear\", "
                                          "\"beta_start\": 0.0001, \"clip_sample\": false, "
                                          "\"num_train_timesteps\": 1000, \"prediction_type\": "
                                          "\"epsilon\", \"set_alpha_to_one\": true, "
                                          "\"steps_offset\": 0, \"trained_betas\": null}",
                                     &c));
    assert_true(c.schedule == NL_SCHEDULE_LINEAR && c.beta_end == 0 && !c.clip_denoised);
    assert_true(c.predicts == NL_PREDICTS_EPSILON && c.spacing == NL_SPACING_LEADING);
    assert_true(!c.final_alpha_first && c.diffusion_steps == 1000 && c.steps_offset == 0);
    assert_string_equal(c.class_names[0].name, "tench, Tinca tinca");
    assert_string_equal(c.class_names[9].name, "j");
    nl_config_free(context, &c);
    /* as Stable Diffusion 2's */
    assert_ok(context,
              open_pipeline(DDIM ", \"beta_end\": 0.012, \"beta_schedule\": \"scaled_linear\", "
                                 "\"beta_start\": 0.00085, \"clip_sample\": false, "
                                 "\"prediction_type\": \"v_prediction\", \"set_alpha_to_one\": "
                                 "false, \"steps_offset\": 1, \"timestep_spacing\": \"leading\"}",
                            &c));
    assert_true(c.schedule == NL_SCHEDULE_SCALED_LINEAR && c.beta_start == 0.00085);
    assert_true(c.beta_end == 0.012 && c.predicts == NL_PREDICTS_V && c.steps_offset == 1);
    assert_true(c.final_alpha_first);
    char *text; /* and it stays so in a file of ours */
    nl_config again;
    nl_config_init(&again);
    assert_ok(context, nl_config_print(context, &c, &text));
    assert_ok(context, nl_config_parse(context, "test", text, strlen(text), &again));
    assert_null(nl_config_difference(&c, &again));
    nl_free(context, text);
    nl_config_free(context, &again);
    nl_config_free(context, &c);
    assert_ok(context, open_pipeline("{\"_class_name\": \"DDPMScheduler\", \"beta_schedule\": "
                                     "\"squaredcos_cap_v2\", \"prediction_type\": \"sample\", "
                                     "\"variance_type\": \"fixed_large\", \"timestep_spacing\": "
                                     "\"trailing\"}",
                                     &c));
    assert_true(c.schedule == NL_SCHEDULE_COSINE && c.predicts == NL_PREDICTS_X_START);
    assert_true(c.variance == NL_VARIANCE_FIXED_LARGE && c.spacing == NL_SPACING_TRAILING);
    assert_true(c.clip_denoised); /* diffusers' default */
    nl_config_free(context, &c);
}

static void test_scheduler_refusals(void **state)
{
    (void)state;
    static const struct {
        const char *json, *part;
    } cases[] = {
        {DDIM ", \"beta_schedule\": \"sigmoid\"}", "beta_schedule"},
        {DDIM ", \"prediction_type\": \"flow\"}", "prediction_type"},
        {DDIM ", \"rescale_betas_zero_snr\": true}", "rescale_betas_zero_snr"},
        {DDIM ", \"trained_betas\": [0.1, 0.2]}", "trained_betas"},
        {DDIM ", \"thresholding\": true}", "thresholding"},
        {DDIM ", \"timestep_spacing\": \"log\"}", "timestep_spacing"},
        {"{\"_class_name\": \"FlowMatchEulerDiscreteScheduler\"}", "FlowMatchEuler"},
    };
    for (int i = 0; i < NL_COUNT(cases); i++) {
        nl_config config;
        expect_refusal(open_pipeline(cases[i].json, &config), NL_ERROR_INPUT, cases[i].part);
    }
}

static void test_variant(void **state)
{
    (void)state;
    nl_checkpoint *checkpoint;
    test_tensors *tensors = calloc(1, sizeof(*tensors));
    add_tensor(tensors, "x", 1, (int64_t[]){3});
    write_text("variant/config.json", "{}");
    write_tensors(tensors, "variant/diffusion_pytorch_model.fp16.safetensors");
    assert_ok(context, nl_checkpoint_open(context, in_folder("variant"), &checkpoint));
    assert_non_null(nl_checkpoint_find(checkpoint, "x"));
    nl_checkpoint_close(checkpoint);
    write_tensors(tensors, "variant/diffusion_pytorch_model.non_ema.safetensors");
    expect_refusal(nl_checkpoint_open(context, in_folder("variant"), &checkpoint), NL_ERROR_INPUT,
                   "non_ema");
    free_tensors(tensors);
}

/* ---- Small SiT under public names */

enum { D = 16, LATENT = 4 * 4 * 4 };

static float noise_at(int64_t i)
{
    float normals[4];
    nl_philox_normal4(7, 0, 0, (uint64_t)(i / 4 * 4), normals);
    return normals[i % 4];
}

/* A model of 4 x 4 latents, without metadata. rows: of the table of classes. */
static test_tensors *small_model(const char *json, int64_t rows)
{
    nl_config config;
    nl_dit *dit;
    test_tensors *tensors = calloc(1, sizeof(*tensors));
    nl_config_init(&config);
    assert_ok(context, nl_config_parse(context, "test", json, strlen(json), &config));
    assert_ok(context, nl_dit_create(context->device, &config, &dit));
    for (int p = 0; p < dit->param_count; p++) {
        const nl_param *param = &dit->params[p];
        test_tensor *tensor = add_tensor(tensors, param->name, param->ndim, param->shape);
        if (strstr(tensor->name, "embedding_table"))
            tensor->shape[0] = rows;
        for (int64_t i = 0; i < tensor_count(tensor); i++)
            tensor->values[i] = 0.2f * noise_at(1000 * (p + 1) + i);
    }
    test_tensor *position = add_tensor(tensors, "pos_embed", 3, (int64_t[]){1, 4, D});
    nl_position_table(2, 2, D, position->values);
    nl_dit_destroy(dit);
    nl_config_free(context, &config);
    return tensors;
}

/* A SiT of 2 blocks and 10 classes. */
static test_tensors *small_sit(int64_t rows)
{
    return small_model("{\"architecture\": \"SiT\", \"depth\": 2, \"hidden_size\": 16, "
                       "\"num_heads\": 1, \"input_size\": 4, \"num_classes\": 10, "
                       "\"learn_sigma\": false}",
                       rows);
}

static nl_model *open_model(const char *name, const char *arch)
{
    nl_model *model;
    assert_ok(context,
              nl_model_load(
                  context,
                  &(nl_model_options){.path = in_folder(name), .architecture = arch, .vae = "none"},
                  &model));
    return model;
}

/* prediction of the network for x [4, 4, 4] at time t */
static void predict(nl_model *model, const float *x, float t, int label, float *out)
{
    nl_device *device = context->device;
    nl_tensor xs, ts, labels, y;
    assert_ok(context, nl_arena_reserve(device, 64 << 20));
    int64_t mark = nl_arena_mark(device);
    assert_ok(context, nl_arena_tensor(device, NL_F32, 4, (int64_t[]){1, 4, 4, 4}, &xs));
    assert_ok(context, nl_arena_tensor(device, NL_F32, 4, (int64_t[]){1, 4, 4, 4}, &y));
    assert_ok(context, nl_arena_tensor(device, NL_F32, 1, (int64_t[]){1}, &ts));
    assert_ok(context, nl_arena_tensor(device, NL_I32, 1, (int64_t[]){1}, &labels));
    memcpy(xs.data, x, LATENT * sizeof(float));
    *(float *)ts.data = t;
    *(int32_t *)labels.data = label;
    assert_ok(context, nl_dit_forward(model->dit, device, &xs, &ts, &labels, NULL, &y, NULL));
    memcpy(out, y.data, LATENT * sizeof(float));
    nl_arena_release(device, mark);
}

static nl_status take_latents(void *user, const nl_picture *picture)
{
    memcpy(user, picture->latents, LATENT * sizeof(float));
    return NL_OK;
}

static nl_status sample_euler(nl_model *model, const float *noise, int steps, double scale,
                              float *out)
{
    nl_request request = {.labels = (int[]){3}, .count = 1, .noise = noise};
    request.sampling = (nl_sampling){.sampler = "euler", .steps = steps, .cfg_scale = scale};
    return nl_generate(model, &request, take_latents, out);
}

/* REPA's euler_sampler: t from 1 (noise) to 0, x += (t' - t) f(x, t), guidance on all channels, in double. */
static void repa_euler(nl_model *raw, const float *noise, int steps, double scale, float *out)
{
    double x[LATENT];
    float input[LATENT], cond[LATENT], uncond[LATENT];
    for (int i = 0; i < LATENT; i++)
        x[i] = noise[i];
    for (int step = 0; step < steps; step++) {
        double t = 1 - (double)step / steps, next = 1 - (double)(step + 1) / steps;
        for (int i = 0; i < LATENT; i++)
            input[i] = (float)x[i];
        predict(raw, input, (float)t, 3, cond);
        predict(raw, input, (float)t, 10, uncond);
        for (int i = 0; i < LATENT; i++)
            x[i] += (next - t) * (uncond[i] + scale * ((double)cond[i] - uncond[i]));
    }
    for (int i = 0; i < LATENT; i++)
        out[i] = (float)x[i];
}

static void test_repa(void **state)
{
    (void)state;
    test_tensors *tensors = small_sit(11);
    float noise[LATENT], expected[LATENT], got[LATENT];
    for (int i = 0; i < LATENT; i++)
        noise[i] = noise_at(i);
    write_tensors(tensors, "raw.safetensors");
    add_tensor(tensors, "projectors.0.0.weight", 2, (int64_t[]){8, D});
    add_tensor(tensors, "projectors.0.0.bias", 1, (int64_t[]){8});
    write_tensors(tensors, "repa.safetensors");
    nl_model *raw = open_model("raw.safetensors", "SiT"),
             *repa = open_model("repa.safetensors", NULL);
    assert_int_equal(nl_model_get_config(repa)->architecture, NL_ARCH_SIT);
    for (int guided = 0; guided < 2; guided++) {
        double scale = guided ? 1.8 : 1;
        repa_euler(raw, noise, 7, scale, expected);
        assert_ok(context, sample_euler(repa, noise, 7, scale, got));
        assert_close(got, expected, LATENT, 1e-5);
    }
    assert_ok(context, sample_euler(raw, noise, 7, 1, got)); /* the two ways do differ */
    repa_euler(raw, noise, 7, 1, expected);
    assert_true(test_relative_error(got, expected, LATENT) > 0.1);
    nl_model_destroy(raw);
    nl_model_destroy(repa);
    free_tensors(tensors);
}

/* The buffers of LightningDiT's code, in float as there: [tokens, d], the row's angles first, each for two elements. */
static void add_feat_rope(test_tensors *tensors, int side, int size, float theta)
{
    test_tensor *cosines =
        add_tensor(tensors, "feat_rope.freqs_cos", 2, (int64_t[]){side * side, size});
    test_tensor *sines =
        add_tensor(tensors, "feat_rope.freqs_sin", 2, (int64_t[]){side * side, size});
    for (int token = 0; token < side * side; token++)
        for (int i = 0; i < size; i++) {
            int half = size / 2, place = i < half ? token / side : token % side;
            float w = 1 / powf(theta, (float)(i % half / 2 * 2) / (float)half);
            cosines->values[token * size + i] = cosf((float)place * w);
            sines->values[token * size + i] = sinf((float)place * w);
        }
}

enum { LIGHTNING = 4 * 8 * 8 /* elements of its latent */ };

static nl_status take_lightning(void *user, const nl_picture *picture)
{
    memcpy(user, picture->latents, LIGHTNING * sizeof(float));
    return NL_OK;
}

/* blocks_softmax_rope (test_dit_train) as LightningDiT keeps it: the numbers of that network with its configuration. */
static void test_lightning(void **state)
{
    (void)state;
    static const char json[] =
        "{\"architecture\": \"SiT\", \"mlp\": \"swiglu\", \"norm\": \"rms\", "
        "\"qk_norm\": true, \"qk_norm_layer\": true, \"rope\": true, "
        "\"depth\": 2, \"hidden_size\": 24, \"num_heads\": 2, "
        "\"input_size\": 8, \"num_classes\": 5, \"learn_sigma\": false}";
    nl_checkpoint *golden = test_golden(context, "blocks_softmax_rope.safetensors");
    test_tensors *tensors = read_tensors(golden, "w.");
    float noise[LIGHTNING], expected[LIGHTNING], got[LIGHTNING];
    nl_model *model;
    nl_request request = {.labels = (int[]){3}, .count = 1, .noise = noise};
    request.sampling = (nl_sampling){.sampler = "euler", .steps = 3, .cfg_scale = 1};
    for (int i = 0; i < LIGHTNING; i++)
        noise[i] = noise_at(i);
    nl_checkpoint_close(golden);
    write_tensors(tensors, "own.safetensors");
    write_text("own.json", json);
    nl_model_options options = {
        .path = in_folder("own.safetensors"), .vae = "none", .config_path = in_folder("own.json")};
    assert_ok(context, nl_model_load(context, &options, &model));
    assert_ok(context, nl_generate(model, &request, take_lightning, expected));
    nl_model_destroy(model);

    nl_position_table(4, 4, 24,
                      add_tensor(tensors, "pos_embed", 3, (int64_t[]){1, 16, 24})->values);
    add_feat_rope(tensors, 4, 12, 10000);
    write_tensors(tensors, "lightning.safetensors");
    model = open_model("lightning.safetensors", NULL);
    const nl_config *config = nl_model_get_config(model);
    assert_int_equal(config->architecture, NL_ARCH_SIT);
    assert_true(config->rope && config->qk_norm && config->qk_norm_layer);
    assert_int_equal(config->mlp, NL_MLP_SWIGLU);
    assert_int_equal(config->norm, NL_NORM_RMS);
    assert_int_equal(config->num_heads, 2);
    assert_ok(context, nl_generate(model, &request, take_lightning, got));
    assert_memory_equal(got, expected, sizeof(got));
    nl_model_destroy(model);

    /* other angles, half of the tables, modulations without shifts */
    drop_tensors(tensors, 2);
    add_feat_rope(tensors, 4, 12, 100);
    write_tensors(tensors, "lightning.safetensors");
    options = (nl_model_options){.path = in_folder("lightning.safetensors"), .vae = "none"};
    expect_refusal(nl_model_load(context, &options, &model), NL_ERROR_INPUT,
                   "rotary positions of another kind");
    tensors->count -= 1;
    write_tensors(tensors, "lightning.safetensors");
    expect_refusal(nl_model_load(context, &options, &model), NL_ERROR_INPUT,
                   "rotary positions of another kind");
    find_tensor(tensors, "blocks.0.adaLN_modulation.1.weight")->shape[0] = 4 * 24;
    write_tensors(tensors, "lightning.safetensors");
    expect_refusal(nl_model_load(context, &options, &model), NL_ERROR_INPUT, "wo_shift");
    tensors->count += 1;
    free_tensors(tensors);
}

/* A training checkpoint says REPA by its arguments alone. */
/* ---- DiG */

/* Rows [first, first + count) of a matrix as a tensor of another name. */
static void add_rows(test_tensors *tensors, const char *name, const test_tensor *from,
                     int64_t first, int64_t count)
{
    int64_t columns = from->ndim > 1 ? from->shape[1] : 1;
    test_tensor *tensor = add_tensor(tensors, name, from->ndim, (int64_t[]){count, columns});
    memcpy(tensor->values, from->values + first * columns,
           (size_t)(count * columns) * sizeof(float));
}

/* The tap that a block of DiG has where ours has (u, v) of 3 x 3: it sees the picture turned round, and its columns as rows. */
static int dig_tap(int block, int u, int v)
{
    int across = block / 2 % 2;
    int row = across ? v : u, column = across ? u : v;
    return block % 2 ? 3 * (2 - row) + 2 - column : 3 * row + column;
}

/* The same network under DiG's names; ours has no biases in its MLPs. */
static test_tensors *as_dig(test_tensors *ours)
{
    static const struct {
        const char *ours, *theirs;
    } names[] = {{"attn.gk_proj.weight", "attn.gk_proj.1.weight"},
                 {"attn.gk_proj.bias", "attn.gk_proj.1.bias"},
                 {"attn.norm.weight", "attn.g_norm_swish_gate.weight"},
                 {"attn.out_proj.weight", "attn.o_proj.weight"},
                 {"mlp.w12.weight", "mlp.gate_proj.weight"},
                 {"mlp.w3.weight", "mlp.down_proj.weight"}};
    static const struct {
        const char *name;
        int rows;
    } products[] = {
        {"q_proj", D / 2}, {"k_proj", D / 2}, {"v_proj", D}, {"g_proj", D}, {"gk_proj.0", 16}};
    test_tensors *dig = calloc(1, sizeof(*dig));
    for (int i = 0; i < ours->count; i++) {
        const test_tensor *from = &ours->list[i];
        char name[128];
        int block = 0, end = 0;
        const char *inside = from->name;
        if (sscanf(from->name, "blocks.%d.%n", &block, &end) == 1 && end)
            inside += end;
        snprintf(name, sizeof(name), "%s", from->name);
        for (int j = 0; end && j < NL_COUNT(names); j++)
            if (!strcmp(inside, names[j].ours))
                snprintf(name, sizeof(name), "blocks.%d.%s", block, names[j].theirs);
        if (end && (!strcmp(inside, "mlp.w12.bias") || !strcmp(inside, "mlp.w3.bias")))
            continue;
        if (!end || strcmp(inside, "attn.in_proj.weight") != 0) {
            test_tensor *tensor = add_tensor(dig, name, from->ndim, from->shape);
            memcpy(tensor->values, from->values, (size_t)tensor_count(from) * sizeof(float));
            for (int j = 0; end && !strcmp(inside, "dw_conv.weight") && j < 9 * D; j++)
                tensor->values[j / 9 * 9 + dig_tap(block, j % 9 / 3, j % 3)] = from->values[j];
            continue;
        }
        for (int j = 0, first = 0; j < NL_COUNT(products); first += products[j++].rows) {
            snprintf(name, sizeof(name), "blocks.%d.attn.%s.weight", block, products[j].name);
            add_rows(dig, name, from, first, products[j].rows);
        }
    }
    return dig;
}

static void test_dig(void **state)
{
    (void)state;
    float x[LATENT], expected[LATENT], got[LATENT];
    test_tensors *tensors = small_model(
        "{\"architecture\": \"DiT\", \"attention\": \"gla\", \"dw_conv\": true, \"mlp\": "
        "\"swiglu\", \"depth\": 4, \"hidden_size\": 16, \"num_heads\": 2, \"input_size\": 4, "
        "\"num_classes\": 10, \"learn_sigma\": false, \"variance\": \"fixed_small\"}",
        11);
    for (int i = 0; i < tensors->count; i++)
        if (strstr(tensors->list[i].name, "mlp") && strstr(tensors->list[i].name, ".bias"))
            memset(tensors->list[i].values, 0,
                   (size_t)tensor_count(&tensors->list[i]) * sizeof(float));
    test_tensors *dig = as_dig(tensors);
    write_tensors(tensors, "gla.safetensors");
    write_tensors(dig, "dig.safetensors");
    nl_model *ours = open_model("gla.safetensors", "GLADiT"),
             *theirs = open_model("dig.safetensors", NULL);
    const nl_config *config = nl_model_get_config(theirs);
    assert_int_equal(config->architecture, NL_ARCH_DIT);
    assert_int_equal(config->attention, NL_ATTENTION_GLA);
    assert_true(config->dw_conv && config->num_heads == 2 && config->mlp == NL_MLP_SWIGLU);
    for (int i = 0; i < LATENT; i++)
        x[i] = noise_at(i);
    predict(ours, x, 100, 3, expected);
    predict(theirs, x, 100, 3, got);
    assert_memory_equal(expected, got, sizeof(got));
    nl_model_destroy(ours);
    nl_model_destroy(theirs);

    nl_checkpoint *checkpoint;
    add_tensor(dig, "blocks.3.skip_linear.weight", 2, (int64_t[]){D, 2 * D});
    write_tensors(dig, "skip.safetensors");
    expect_refusal(nl_dit_open(context, in_folder("skip.safetensors"), NULL, &checkpoint),
                   NL_ERROR_INPUT, "skips between its blocks");
    drop_tensors(dig, 1);
    find_tensor(dig, "blocks.1.mlp.gate_proj.weight")->shape[0] -= 2;
    write_tensors(dig, "wide.safetensors");
    expect_refusal(nl_dit_open(context, in_folder("wide.safetensors"), NULL, &checkpoint),
                   NL_ERROR_INPUT, "multiple of 256");
    find_tensor(dig, "blocks.1.mlp.gate_proj.weight")->shape[0] += 2;
    snprintf(find_tensor(dig, "blocks.2.attn.k_proj.weight")->name, 128, "blocks.2.attn.other");
    write_tensors(dig, "lost.safetensors");
    expect_refusal(nl_dit_open(context, in_folder("lost.safetensors"), NULL, &checkpoint),
                   NL_ERROR_INPUT, "blocks.2.attn.k_proj.weight is missing");
    free_tensors(dig);
    free_tensors(tensors);
}

static void test_repa_arguments(void **state)
{
    (void)state;
    const char *path = NL_SHARED_DIR "/cases/repa_noproj.pt";
    nl_checkpoint *checkpoint;
    test_need(path);
    assert_ok(context, nl_open_backbone(context, path, NULL, &checkpoint));
    assert_string_equal(checkpoint->spelling, "REPA");
    nl_checkpoint_close(checkpoint);
}

/* pos_embed that is not the table of sines and cosines takes part, and goes into files made of it. */
static void test_stored_position(void **state)
{
    (void)state;
    test_tensors *tensors = small_sit(11);
    float x[LATENT], plain[LATENT], own[LATENT], again[LATENT];
    for (int i = 0; i < LATENT; i++)
        x[i] = noise_at(i);
    write_tensors(tensors, "sit.safetensors");
    nl_model *model = open_model("sit.safetensors", NULL);
    assert_false(nl_model_get_config(model)->stored_position);
    predict(model, x, 0.3f, 3, plain);
    nl_model_destroy(model);

    /* what the patch embedding's bias does for all tokens, a table may do too */
    float *bias = find_tensor(tensors, "x_embedder.proj.bias")->values;
    float *position = find_tensor(tensors, "pos_embed")->values;
    for (int i = 0; i < 4 * D; i++)
        position[i] += noise_at(i % D);
    write_tensors(tensors, "sit.safetensors");
    model = open_model("sit.safetensors", NULL);
    assert_true(nl_model_get_config(model)->stored_position);
    predict(model, x, 0.3f, 3, own);
    assert_ok(context, nl_dit_save(model->dit, in_folder("saved.safetensors"), true, NL_F32));
    nl_model_destroy(model);
    model = open_model("saved.safetensors", NULL);
    predict(model, x, 0.3f, 3, again);
    assert_memory_equal(own, again, sizeof(own));
    nl_model_destroy(model);
    for (int i = 0; i < 4 * D; i++)
        position[i] -= noise_at(i % D);
    for (int i = 0; i < D; i++)
        bias[i] += noise_at(i);
    write_tensors(tensors, "sit.safetensors");
    model = open_model("sit.safetensors", NULL);
    predict(model, x, 0.3f, 3, again);
    assert_close(own, again, LATENT, 1e-5);
    assert_true(test_relative_error(own, plain, LATENT) > 1e-2);
    nl_model_destroy(model);
    free_tensors(tensors);
}

/* Another size has no place for it. */
static void test_stored_position_has_one_size(void **state)
{
    (void)state;
    test_tensors *tensors = small_sit(11);
    nl_model *model;
    find_tensor(tensors, "pos_embed")->values[0] += 1;
    write_tensors(tensors, "sit.safetensors");
    expect_refusal(nl_model_load(context,
                                 &(nl_model_options){.path = in_folder("sit.safetensors"),
                                                     .vae = "none",
                                                     .height = 64,
                                                     .width = 64},
                                 &model),
                   NL_ERROR_INPUT, "this size alone");
    free_tensors(tensors);
}

/* class_dropout_prob 0 in training: as many rows as classes. */
static void test_no_null_class(void **state)
{
    (void)state;
    test_tensors *tensors = small_sit(10);
    float noise[LATENT] = {1}, latents[LATENT], x[LATENT];
    nl_model *model;
    int index;
    write_tensors(tensors, "sit.safetensors");
    write_text("nodrop.json", "{\"architecture\": \"SiT\", \"depth\": 2, \"hidden_size\": 16, "
                              "\"num_heads\": 1, \"input_size\": 4, \"num_classes\": 10, "
                              "\"learn_sigma\": false, \"no_null_class\": true, "
                              "\"class_dropout_prob\": 0}");
    assert_ok(context, nl_model_load(context,
                                     &(nl_model_options){.path = in_folder("sit.safetensors"),
                                                         .config_path = in_folder("nodrop.json"),
                                                         .vae = "none"},
                                     &model));
    assert_ok(context, nl_model_class(model, "9", &index));
    assert_int_equal(index, 9);
    expect_refusal(nl_model_class(model, "null", &index), NL_ERROR_USAGE, "without one");
    assert_ok(context, sample_euler(model, noise, 2, -1, latents));
    assert_ok(context, sample_euler(model, noise, 2, 1, x));
    assert_memory_equal(x, latents, sizeof(x));
    expect_refusal(sample_euler(model, noise, 2, 3, latents), NL_ERROR_USAGE, "no null class");
    nl_model_destroy(model);
    free_tensors(tensors);
}

/* ... told by the arguments of the training. */
static void test_no_null_class_arguments(void **state)
{
    (void)state;
    const char *path = NL_SHARED_DIR "/cases/SiT-nodrop.pt";
    nl_checkpoint *checkpoint;
    nl_config config;
    test_need(path);
    assert_ok(context, nl_open_backbone(context, path, NULL, &checkpoint));
    assert_ok(context, nl_config_from_checkpoint(checkpoint, NULL, &config));
    assert_int_equal(config.num_classes, 10);
    assert_true(config.no_null_class && config.class_dropout_prob == 0);
    nl_config_free(context, &config);
    nl_checkpoint_close(checkpoint);
}

/* The switch for diffusers' own time frequencies and norms, against the same network with a time that gives the same
 * features: at t = 0 they do not depend on the frequencies, and the norm's eps is what is left. */
static void test_of_diffusers(void **state)
{
    (void)state;
    test_tensors *tensors = small_sit(11);
    float x[LATENT], results[2][LATENT];
    for (int i = 0; i < LATENT; i++)
        x[i] = noise_at(i);
    write_tensors(tensors, "sit.safetensors");
    for (int late = 0; late < 2; late++) {
        for (int own = 0; own < 2; own++) {
            nl_model *model;
            write_text("own.json", own ? "{\"of_diffusers\": true}" : "{\"of_diffusers\": false}");
            assert_ok(context,
                      nl_model_load(context,
                                    &(nl_model_options){.path = in_folder("sit.safetensors"),
                                                        .config_path = in_folder("own.json"),
                                                        .vae = "none"},
                                    &model));
            predict(model, x, late ? 900 : 0, 3, results[own]);
            nl_model_destroy(model);
        }
        double difference = test_relative_error(results[1], results[0], LATENT);
        assert_true(late ? difference > 1e-2 : difference > 0 && difference < 1e-3);
    }
    free_tensors(tensors);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_vae_scale),
        cmocka_unit_test(test_vae_groups_and_attention),
        cmocka_unit_test(test_vae_stats),
        cmocka_unit_test(test_vae_refusals),
        cmocka_unit_test(test_vae_unknown_scale),
        cmocka_unit_test(test_model_and_vae),
        cmocka_unit_test(test_scheduler),
        cmocka_unit_test(test_scheduler_refusals),
        cmocka_unit_test(test_variant),
        cmocka_unit_test(test_repa),
        cmocka_unit_test(test_repa_arguments),
        cmocka_unit_test(test_dig),
        cmocka_unit_test(test_lightning),
        cmocka_unit_test(test_stored_position),
        cmocka_unit_test(test_stored_position_has_one_size),
        cmocka_unit_test(test_no_null_class),
        cmocka_unit_test(test_no_null_class_arguments),
        cmocka_unit_test(test_of_diffusers),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
