/* SPDX-License-Identifier: MIT */
/* Files of other programs: what they say of themselves is used or refused by name; nothing is taken by its shape
 * alone. */
#include "nl_test.h"

#include <unistd.h>

#include "arena.h"
#include "nalagen.h"
#include "nl_pipeline.h"
#include "nl_vae.h"

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
    free(got), free(z_values), free(expected);
    nl_vae_destroy(vae);
    nl_checkpoint_close(plain);
    nl_checkpoint_close(golden);
}

static void test_vae_refusals(void **state)
{
    (void)state;
    static const struct {
        const char *json, *part, *without;
    } cases[] = {
        {KL_CLASS ", \"act_fn\": \"relu\"}", "act_fn", NULL},
        {KL_CLASS ", \"latents_mean\": [0, 1, 2, 3]}", "latents_mean", NULL},
        {KL_CLASS ", \"latents_std\": [1, 1, 1, 2]}", "latents_std", NULL},
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_vae_scale),     cmocka_unit_test(test_vae_groups_and_attention),
        cmocka_unit_test(test_vae_refusals),  cmocka_unit_test(test_vae_unknown_scale),
        cmocka_unit_test(test_model_and_vae),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
