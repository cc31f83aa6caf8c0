/* SPDX-License-Identifier: MIT */
/* The backbone against the golden files, and what must hold for any of its configurations. */
#include <unistd.h>

#include "nl_dit.h"
#include "nl_random.h"
#include "nl_test.h"

static nl_context *context;
static const char *device_name;

static int setup(void **state)
{
    (void)state;
    context = test_context(device_name);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    nl_context_destroy(context);
    return 0;
}

/* ---- Helpers */

/* A device tensor that holds these host values. */
static nl_tensor to_device(nl_dtype dtype, int ndim, const int64_t *shape, const void *values)
{
    nl_device *device = context->device;
    nl_tensor tensor = nl_tensor_of(NULL, dtype, ndim, shape);
    assert_ok(context, device->ops->alloc(device, "test", nl_tensor_bytes(&tensor), &tensor.data));
    if (values)
        assert_ok(context,
                  device->ops->upload(device, tensor.data, values, nl_tensor_bytes(&tensor)));
    return tensor;
}

static void free_tensor(nl_tensor *tensor)
{
    context->device->ops->free(context->device, tensor->data, nl_tensor_bytes(tensor));
}

/* Runs the network on host arrays; the arena is as large as the measuring device says. t_count: negative for as many
 * times t and then as many s. */
static float *run(const nl_dit *dit, int64_t batch, const float *x, const float *t, int64_t t_count,
                  const int32_t *labels, int64_t channels)
{
    nl_device *device = context->device, measuring;
    int64_t height = dit->config.input_height, width = dit->config.input_width;
    int64_t in[] = {batch, dit->config.in_channels, height, width};
    int64_t out[] = {batch, channels, height, width};
    nl_tensor input = to_device(NL_F32, 4, in, x), label = to_device(NL_I32, 1, &batch, labels);
    nl_tensor time = to_device(NL_F32, t_count < 0 ? 2 : 1,
                               t_count < 0 ? (int64_t[]){2, -t_count} : &t_count, t);
    nl_tensor output = to_device(NL_F32, 4, out, NULL);
    float *result = malloc((size_t)nl_tensor_bytes(&output));
    nl_device_measuring(device, &measuring);
    assert_ok(context, nl_dit_forward(dit, &measuring, &input, &time, &label, NULL, &output, NULL));
    assert_int_equal(measuring.arena_used, 0);
    assert_ok(context, nl_arena_reserve(device, measuring.arena_peak));
    device->arena_peak = 0;
    assert_ok(context, nl_dit_forward(dit, device, &input, &time, &label, NULL, &output, NULL));
    assert_int_equal(device->arena_used, 0);
    assert_int_equal(device->arena_peak, measuring.arena_peak);
    assert_ok(context,
              device->ops->download(device, result, output.data, nl_tensor_bytes(&output)));
    free_tensor(&input);
    free_tensor(&label);
    free_tensor(&time);
    free_tensor(&output);
    return result;
}

/* The weights of a golden file, `w.<name>`, as a checkpoint of their own. */
static nl_checkpoint *golden_weights(const nl_checkpoint *golden, const char *json)
{
    nl_tensor_header headers[128];
    const nl_entry *entries[128];
    const char *metadata[] = {"nalagen", json, NULL};
    int64_t count = 0;
    char path[] = "golden_weights_XXXXXX";
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    close(fd);
    for (int64_t i = 0; i < golden->count; i++) {
        const nl_entry *entry = &golden->entries[i];
        if (strncmp(entry->name, "w.", 2) != 0)
            continue;
        assert_true(count < NL_COUNT(headers));
        headers[count] = (nl_tensor_header){entry->name + 2, entry->dtype, entry->ndim, {0}};
        memcpy(headers[count].shape, entry->shape, sizeof(entry->shape));
        entries[count++] = entry;
    }
    nl_safetensors_writer *writer = NULL;
    assert_ok(context,
              nl_safetensors_create(context, path, true, metadata, headers, count, &writer));
    for (int64_t i = 0; i < count; i++)
        assert_ok(context, nl_safetensors_write(writer, entries[i]->data,
                                                nl_entry_count(entries[i]) *
                                                    nl_dtype_size(entries[i]->dtype)));
    assert_ok(context, nl_safetensors_commit(&writer));
    nl_checkpoint *checkpoint = NULL;
    assert_ok(context, nl_checkpoint_open(context, path, &checkpoint));
    remove(path);
    return checkpoint;
}

static nl_dit *load(const nl_checkpoint *checkpoint)
{
    nl_config config;
    nl_dit *dit = NULL;
    assert_ok(context, nl_config_from_checkpoint(checkpoint, NULL, &config));
    assert_ok(context, nl_dit_create(context->device, &config, &dit));
    nl_config_free(context, &config);
    assert_ok(context, nl_dit_load(dit, checkpoint));
    return dit;
}

/* An initialised model in which nothing is zero, so that every part shows in the output. */
static nl_dit *random_model(const char *json)
{
    nl_config config;
    nl_dit *dit = NULL;
    nl_config_init(&config);
    assert_ok(context, nl_config_parse(context, "test", json, strlen(json), &config));
    assert_ok(context, nl_dit_create(context->device, &config, &dit));
    nl_config_free(context, &config);
    for (int i = 0; i < dit->param_count; i++)
        if (dit->params[i].init != NL_INIT_XAVIER)
            dit->params[i].init = NL_INIT_LEPE;
    assert_ok(context, nl_dit_initialize(dit, 7));
    return dit;
}

static void random_numbers(float *x, int64_t count, uint64_t seed)
{
    for (int64_t i = 0; i < count; i++) {
        float four[4];
        nl_philox_normal4(seed, 0, NL_STREAM_NOISE, (uint64_t)i, four);
        x[i] = four[i % 4];
    }
}

/* ---- Golden files */

static double golden_error(const char *name, const char *json, const char *weights)
{
    nl_checkpoint *golden = test_golden(context, name), *checkpoint;
    if (weights)
        assert_ok(context, nl_checkpoint_open(context, weights, &checkpoint));
    else
        checkpoint = golden_weights(golden, json);
    nl_dit *dit = load(checkpoint);
    nl_tensor shape;
    nl_tensor times;
    float *x = test_read(golden, "x", NULL), *t = test_read(golden, "t", &times);
    float *labels = test_read(golden, "y", NULL), *expected = test_read(golden, "out", &shape);
    int t_count = (int)shape.shape[0] * (times.ndim == 2 ? -1 : 1);
    int32_t y[8];
    for (int64_t i = 0; i < shape.shape[0]; i++)
        y[i] = (int32_t)labels[i];
    float *out = run(dit, shape.shape[0], x, t, t_count, y, shape.shape[1]);
    double error = test_relative_error(out, expected, nl_tensor_count(&shape));
    print_message("%s%s: relative error %.3g\n", name, weights ? " (weights from a file)" : "",
                  error);
    free(x);
    free(t);
    free(labels);
    free(expected);
    free(out);
    nl_dit_destroy(dit);
    nl_checkpoint_close(checkpoint);
    nl_checkpoint_close(golden);
    return error;
}

#define TINY "\"depth\": 2, \"num_heads\": 1, \"input_size\": 8, \"num_classes\": 5"

static void golden_softmax(void **state)
{
    (void)state;
    assert_true(golden_error("backbone_softmax_d64.safetensors",
                             "{\"architecture\": \"DiT\", \"hidden_size\": 64, " TINY "}",
                             NULL) <= 1e-5);
}

static void golden_nala(void **state)
{
    (void)state;
    assert_true(golden_error("backbone_nala_d64.safetensors",
                             "{\"architecture\": \"SiT\", \"attention\": \"nala\", "
                             "\"hidden_size\": 64, \"learn_sigma\": false, " TINY "}",
                             NULL) <= 1e-5);
}

static void golden_nala_wide_head(void **state)
{
    (void)state;
    assert_true(golden_error("backbone_nala_d72.safetensors",
                             "{\"architecture\": \"DiT\", \"attention\": \"nala\", "
                             "\"hidden_size\": 72, " TINY "}",
                             NULL) <= 1e-5);
}

static void golden_nala_lepe(void **state)
{
    (void)state;
    assert_true(golden_error("backbone_nala_lepe_d64.safetensors",
                             "{\"architecture\": \"SiT\", \"attention\": \"nala\", \"lepe\": true, "
                             "\"hidden_size\": 64, \"learn_sigma\": false, " TINY "}",
                             NULL) <= 1e-5);
}

static void golden_first_model(void **state)
{
    (void)state;
    const char *path = NL_SHARED_DIR "/weights/nalasit-s2-imagenette-256.safetensors";
    test_need(path);
    test_need_golden("first_model_forward.safetensors");
    assert_true(golden_error("first_model_forward.safetensors", NULL, path) <= 1e-5);
}

/* A flow map of int8 weights, as they are read back. */
static void golden_shipped_model(void **state)
{
    (void)state;
    assert_true(golden_error("shipped_model_forward.safetensors", NULL,
                             NL_SOURCE_DIR "/weights/shipped/nalasit-s2-256.safetensors") <= 1e-5);
}

/* ---- Properties */

static const char small_nala[] = "{\"architecture\": \"SiT\", \"attention\": \"nala\", "
                                 "\"lepe\": true, \"depth\": 2, \"hidden_size\": 32, "
                                 "\"num_heads\": 2, \"patch_size\": 2, \"input_size\": [4, 6], "
                                 "\"in_channels\": 3, \"num_classes\": 3}";

enum { SMALL_IN = 3 * 4 * 6, SMALL_OUT = 6 * 4 * 6 };

/* A GPU's matrix products may sum in another order at another batch size. */
#define BATCH_TOLERANCE (test_on_cpu() ? 1e-6 : 1e-5)

static void batch_independence(void **state)
{
    (void)state;
    nl_dit *dit = random_model(small_nala);
    float x[3 * SMALL_IN], t[3] = {0.1f, 0.5f, 0.9f};
    int32_t labels[3] = {0, 3, 1};
    random_numbers(x, 3 * SMALL_IN, 1);
    float *together = run(dit, 3, x, t, 3, labels, 6);
    for (int i = 0; i < 3; i++) {
        float *alone = run(dit, 1, x + i * SMALL_IN, t + i, 1, labels + i, 6);
        assert_close(alone, together + i * SMALL_OUT, SMALL_OUT, BATCH_TOLERANCE);
        free(alone);
    }
    free(together);
    nl_dit_destroy(dit);
}

static void shared_time(void **state)
{
    (void)state;
    nl_dit *dit = random_model(small_nala);
    float x[2 * SMALL_IN], same[2] = {0.25f, 0.25f}, other[2] = {0.25f, 0.75f};
    int32_t labels[2] = {2, 0};
    random_numbers(x, 2 * SMALL_IN, 2);
    float *each = run(dit, 2, x, same, 2, labels, 6);
    float *shared = run(dit, 2, x, same, 1, labels, 6);
    float *different = run(dit, 2, x, other, 2, labels, 6);
    assert_close(shared, each, 2 * SMALL_OUT, BATCH_TOLERANCE);
    assert_close(different, each, SMALL_OUT, BATCH_TOLERANCE);
    assert_true(test_relative_error(different + SMALL_OUT, each + SMALL_OUT, SMALL_OUT) > 1e-3);
    free(each);
    free(shared);
    free(different);
    nl_dit_destroy(dit);
}

/* Where a flow map's step ends at its beginning it is the network of one time, bit by bit; elsewhere it is not. */
static void flow_map_of_no_step(void **state)
{
    (void)state;
    nl_dit *dit = random_model("{\"architecture\": \"SiT\", \"attention\": \"nala\", \"depth\": 3,"
                               " \"hidden_size\": 32, \"num_heads\": 2, \"patch_size\": 2,"
                               " \"input_size\": [4, 6], \"in_channels\": 3, \"num_classes\": 3,"
                               " \"learn_sigma\": false, \"flow_map\": 2}");
    float x[2 * SMALL_IN], times[] = {0.25f, 0.75f, 0.25f, 0.75f}, later[] = {0.25f, 0.5f};
    int32_t labels[2] = {2, 0};
    random_numbers(x, 2 * SMALL_IN, 2);
    float *one = run(dit, 2, x, times, 2, labels, 3), *two = run(dit, 2, x, times, -2, labels, 3);
    assert_memory_equal(one, two, 2 * SMALL_IN * sizeof(float));
    free(one);
    free(two);
    one = run(dit, 2, x, later, 1, labels, 3), two = run(dit, 2, x, later, -1, labels, 3);
    assert_true(test_relative_error(two, one, 2 * SMALL_IN) > 1e-3);
    free(one);
    free(two);
    nl_dit_destroy(dit);
}

/* What a network is told of a crop is added to the label's row by a matrix; zeros are the whole picture, bit by bit. */
static void crop_is_added(void **state)
{
    (void)state;
    enum { D = 32 };
    nl_dit *dit = random_model("{\"architecture\": \"SiT\", \"attention\": \"nala\", \"depth\": 2,"
                               " \"hidden_size\": 32, \"num_heads\": 2, \"patch_size\": 2,"
                               " \"input_size\": [4, 6], \"in_channels\": 3, \"num_classes\": 3,"
                               " \"crop_conditioning\": true}");
    nl_device *device = context->device;
    int64_t two = 2, one = 1, in[] = {2, 3, 4, 6}, out[] = {2, 6, 4, 6};
    float x[2 * SMALL_IN], t = 0.5f, whole[4] = {0}, got[3][2 * SMALL_OUT];
    float told[2][4] = {{-0.5f, 0.1f, -0.2f, 1}, {-1, -0.25f, 0, 0}};
    int32_t labels[2] = {2, 0};
    random_numbers(x, 2 * SMALL_IN, 2);
    float *plain = run(dit, 2, x, &t, 1, labels, 6);
    nl_tensor input = to_device(NL_F32, 4, in, x), time = to_device(NL_F32, 1, &one, &t);
    nl_tensor classes = to_device(NL_I32, 1, &two, labels), y = to_device(NL_F32, 4, out, NULL);
    nl_tensor shared = to_device(NL_F32, 2, (int64_t[]){1, 4}, whole);
    nl_tensor crops = to_device(NL_F32, 2, (int64_t[]){2, 4}, told);
    const nl_tensor *cases[] = {&shared, &crops, NULL};
    for (int i = 0; i < 3; i++) {
        if (i == 2) { /* the same by the table of labels */
            float weight[D][4], table[4][D];
            nl_tensor rows = nl_tensor_of(NULL, NL_F32, 2, (int64_t[]){4, D});
            assert_int_equal(nl_tensor_bytes(&dit->label_table), nl_tensor_bytes(&rows));
            assert_ok(context,
                      device->ops->download(device, weight, dit->crop_weight.data, sizeof(weight)));
            assert_ok(context,
                      device->ops->download(device, table, dit->label_table.data, sizeof(table)));
            for (int image = 0; image < 2; image++)
                for (int d = 0; d < D; d++)
                    for (int k = 0; k < 4; k++)
                        table[labels[image]][d] += told[image][k] * weight[d][k];
            assert_ok(context,
                      device->ops->upload(device, dit->label_table.data, table, sizeof(table)));
        }
        assert_ok(context, nl_dit_replay(dit, device, &input, &time, &classes, cases[i], 0, &y));
        assert_ok(context, device->ops->download(device, got[i], y.data, sizeof(got[i])));
    }
    assert_memory_equal(got[0], plain, sizeof(got[0]));
    assert_true(test_relative_error(got[1], plain, 2 * SMALL_OUT) > 1e-3);
    assert_close(got[2], got[1], 2 * SMALL_OUT, 1e-5);
    nl_dit *untold = random_model(small_nala);
    assert_int_equal(nl_dit_forward(untold, device, &input, &time, &classes, &crops, &y, NULL),
                     NL_ERROR_INTERNAL);
    nl_tensor *all[] = {&input, &time, &classes, &y, &shared, &crops};
    for (int i = 0; i < NL_COUNT(all); i++)
        free_tensor(all[i]);
    free(plain);
    nl_dit_destroy(untold);
    nl_dit_destroy(dit);
}

/* A SiT with a head of 2C channels gives the first C of them when only those are asked for. */
static void narrow_prediction(void **state)
{
    (void)state;
    nl_dit *dit = random_model(small_nala);
    float x[SMALL_IN], t = 0.5f;
    int32_t label = 1;
    random_numbers(x, SMALL_IN, 3);
    float *wide = run(dit, 1, x, &t, 1, &label, 6), *narrow = run(dit, 1, x, &t, 1, &label, 3);
    assert_memory_equal(narrow, wide, SMALL_IN * sizeof(float));
    free(wide);
    free(narrow);
    nl_dit_destroy(dit);
}

/* What is replayed reads its inputs anew, and is what is run. */
static void replayed_is_run(void **state)
{
    (void)state;
    nl_device *device = context->device;
    nl_dit *dit = random_model(small_nala);
    int64_t one = 1, in[] = {1, 3, 4, 6}, out[] = {1, 6, 4, 6};
    float x[SMALL_IN], t;
    int32_t label = 2;
    nl_tensor input = to_device(NL_F32, 4, in, NULL), time = to_device(NL_F32, 1, &one, NULL);
    nl_tensor class = to_device(NL_I32, 1, &one, &label), y = to_device(NL_F32, 4, out, NULL);
    for (int i = 0; i < 5; i++) {
        float got[SMALL_OUT];
        random_numbers(x, SMALL_IN, (uint64_t)i);
        t = 0.2f * (float)i;
        float *expected = run(dit, 1, x, &t, 1, &label, 6);
        assert_ok(context, device->ops->upload(device, input.data, x, sizeof(x)));
        assert_ok(context, device->ops->upload(device, time.data, &t, sizeof(t)));
        assert_ok(context, nl_dit_replay(dit, device, &input, &time, &class, NULL, 0, &y));
        assert_ok(context, device->ops->download(device, got, y.data, sizeof(got)));
        assert_memory_equal(got, expected, sizeof(got));
        free(expected);
    }
    free_tensor(&input);
    free_tensor(&time);
    free_tensor(&class);
    free_tensor(&y);
    nl_dit_destroy(dit);
}

/* A file with the model's tensors, all zeros, and this configuration, or none. */
static nl_checkpoint *zeros_file(const nl_dit *dit, const char *json)
{
    enum { MAX = 64 };
    static const char path[] = "test_sit_parts.safetensors";
    nl_tensor_header headers[MAX];
    nl_safetensors_writer *writer = NULL;
    nl_checkpoint *checkpoint = NULL;
    const char *metadata[] = {"nalagen", json, NULL};
    assert_true(dit->param_count <= MAX);
    for (int i = 0; i < dit->param_count; i++) {
        const nl_param *param = &dit->params[i];
        headers[i] = (nl_tensor_header){param->name, NL_F32, param->ndim, {0}};
        memcpy(headers[i].shape, param->shape, sizeof(param->shape));
    }
    assert_ok(context, nl_safetensors_create(context, path, true, json ? metadata : NULL, headers,
                                             dit->param_count, &writer));
    for (int i = 0; i < dit->param_count; i++) {
        int64_t bytes = nl_tensor_count(dit->params[i].tensor) * 4;
        void *zeros = calloc(1, (size_t)bytes);
        assert_ok(context, nl_safetensors_write(writer, zeros, bytes));
        free(zeros);
    }
    assert_ok(context, nl_safetensors_commit(&writer));
    assert_ok(context, nl_dit_open(context, path, NULL, &checkpoint));
    assert_int_equal(remove(path), 0); /* it is mapped */
    return checkpoint;
}

/* And comes back from a file. */
static void every_option_runs(void **state)
{
    (void)state;
    const char *options[] = {
        "\"attention\": \"softmax\"",
        "\"attention\": \"nala\", \"gate\": false",
        "\"attention\": \"nala\", \"rope\": true",
        "\"attention\": \"nala\", \"rope\": true, \"lepe\": true, \"gate\": false",
        "\"attention\": \"nala\", \"feature_map\": \"split\"",
        "\"attention\": \"nala\", \"feature_map\": \"relu\"",
        "\"attention\": \"nala\", \"feature_map\": \"elu1\"",
        "\"attention\": \"nala\", \"feature_map\": \"power\"",
        "\"attention\": \"nala\", \"feature_map\": \"cosine_constant\"",
        "\"attention\": \"nala\", \"lambda\": 2, \"tau\": 1",
        "\"attention\": \"nala\", \"learn_exponents\": true",
        "\"attention\": \"mediator\"",
        "\"attention\": \"mediator\", \"mediators\": 4, \"qk_norm\": true",
        "\"attention\": \"gla\"",
        "\"attention\": \"gla\", \"dw_conv\": true, \"mlp\": \"swiglu\"",
        "\"attention\": \"nala\", \"dw_conv\": true, \"norm\": \"rms\"",
        "\"mlp\": \"swiglu\"",
        "\"mlp\": \"mix\"",
        "\"norm\": \"rms\"",
        "\"qk_norm\": true",
        "\"attention\": \"nala\", \"qk_norm\": true, \"norm\": \"rms\", \"mlp\": \"swiglu\"",
    };
    float *outputs[NL_COUNT(options)], x[SMALL_IN], t = 0.5f;
    int32_t label = 0;
    random_numbers(x, SMALL_IN, 4);
    for (int i = 0; i < NL_COUNT(options); i++) {
        char json[512];
        snprintf(json, sizeof(json),
                 "{\"architecture\": \"DiT\", \"depth\": 2, \"hidden_size\": 32, \"num_heads\": 2, "
                 "\"patch_size\": 1, \"input_size\": [4, 6], \"in_channels\": 3, "
                 "\"num_classes\": 0, %s}",
                 options[i]);
        nl_dit *dit = random_model(json);
        outputs[i] = run(dit, 1, x, &t, 1, &label, 6);
        for (int j = 0; j < SMALL_OUT; j++)
            assert_true(isfinite(outputs[i][j]));
        for (int j = 0; j < i; j++)
            assert_true(test_relative_error(outputs[i], outputs[j], SMALL_OUT) > 1e-4);
        nl_checkpoint *file = zeros_file(dit, json);
        nl_config told;
        assert_ok(context, nl_config_from_checkpoint(file, NULL, &told));
        assert_null(nl_config_difference(&told, &dit->config));
        nl_config_free(context, &told);
        nl_checkpoint_close(file);
        nl_dit_destroy(dit);
    }
    for (int i = 0; i < NL_COUNT(options); i++)
        free(outputs[i]);
}

/* A middle head, too, but for its place, which its tensors do not show. */
static void middle_head_in_files(void **state)
{
    (void)state;
    static const char base[] = "{\"architecture\": \"SiT\", \"depth\": 2, \"hidden_size\": 32, "
                               "\"num_classes\": 3, \"middle_head\": %d}";
    char json[2][256];
    nl_config told;
    for (int i = 0; i < 2; i++)
        snprintf(json[i], sizeof(json[i]), base, i);
    nl_dit *dit = random_model(json[1]);
    nl_checkpoint *file = zeros_file(dit, json[1]);
    assert_ok(context, nl_config_from_checkpoint(file, NULL, &told));
    assert_int_equal(told.middle_head, 1);
    assert_int_equal(
        nl_dit_convert(file, &told, "test_dit_no.safetensors", true, NL_F32, NL_SPELLING_PUBLIC),
        NL_ERROR_USAGE);
    assert_non_null(strstr(nl_last_error(context), "do not have \"middle_head\""));
    nl_config_free(context, &told);
    nl_checkpoint_close(file);
    file = zeros_file(dit, json[0]);
    assert_int_equal(nl_config_from_checkpoint(file, NULL, &told), NL_ERROR_INPUT);
    assert_non_null(strstr(nl_last_error(context), "middle_head: its configuration says false"));
    nl_checkpoint_close(file);
    nl_dit_destroy(dit);
}

/* What is in a block stands in the configuration and shows in the tensors; other programs do not have it. */
static void parts_of_blocks_in_files(void **state)
{
    (void)state;
    static const struct {
        const char *json, *wrong, *found, *refused;
    } parts[] = {
        {"\"mlp\": \"swiglu\"", "\"mlp\": \"gelu\"",
         "mlp: its configuration says gelu, its tensors", "do not have this \"mlp\""},
        {"\"mlp\": \"mix\"", "\"mlp\": \"swiglu\"",
         "mlp: its configuration says swiglu, its tensors say mix", "do not have this \"mlp\""},
        {"\"norm\": \"rms\"", "\"norm\": \"layer\"",
         "norm: its configuration says layer, its tensors say rms", "do not have this \"norm\""},
        {"\"crop_conditioning\": true", "\"crop_conditioning\": false",
         "crop_conditioning: its configuration says false", "do not have \"crop_conditioning\""},
        {"\"dw_conv\": true", "\"dw_conv\": false",
         "dw_conv: its configuration says false, its tensors say true", "do not have \"dw_conv\""},
        {"\"attention\": \"gla\"", "\"attention\": \"nala\"",
         "attention: its configuration says nala, its tensors say gla",
         "do not have this \"attention\""},
        {"\"attention\": \"mediator\"", "\"attention\": \"softmax\"",
         "attention: its configuration says softmax, its tensors say mediator",
         "do not have this \"attention\""},
        {"\"qk_norm\": true", "\"qk_norm\": false",
         "qk_norm: its configuration says false, its tensors say true", "do not have \"qk_norm\""},
        {"\"attention\": \"nala\", \"learn_exponents\": true",
         "\"attention\": \"nala\", \"learn_exponents\": false",
         "learn_exponents: its configuration says false, its tensors say true",
         "do not have \"learn_exponents\""},
    };
    static const char base[] = "{\"architecture\": \"SiT\", \"depth\": 2, \"hidden_size\": 32, "
                               "\"num_heads\": 4, \"num_classes\": 3, %s}";
    for (int i = 0; i < NL_COUNT(parts); i++) {
        char json[512], other[512];
        nl_config told;
        snprintf(json, sizeof(json), base, parts[i].json);
        snprintf(other, sizeof(other), base, parts[i].wrong);
        nl_dit *dit = random_model(json);
        nl_checkpoint *file = zeros_file(dit, NULL);
        assert_ok(context, nl_config_from_checkpoint(file, NULL, &told));
        assert_int_equal(told.mlp, dit->config.mlp);
        assert_int_equal(told.norm, dit->config.norm);
        assert_int_equal(told.qk_norm, dit->config.qk_norm);
        assert_int_equal(told.crop_conditioning, dit->config.crop_conditioning);
        assert_int_equal(told.learn_exponents, dit->config.learn_exponents);
        bool normed = told.qk_norm || told.learn_exponents || told.attention == NL_ATTENTION_GLA;
        assert_int_equal(told.dw_conv, dit->config.dw_conv);
        assert_int_equal(told.num_heads,
                         normed ? 4 : 1); /* by the weights of the norms, or the exponents */
        for (nl_dit_spelling s = NL_SPELLING_PUBLIC; s <= NL_SPELLING_DIFFUSERS; s++) {
            assert_int_equal(
                nl_dit_convert(file, &told, "test_dit_no.safetensors", true, NL_F32, s),
                NL_ERROR_USAGE);
            assert_non_null(strstr(nl_last_error(context), parts[i].refused));
        }
        nl_config_free(context, &told);
        nl_checkpoint_close(file);
        file = zeros_file(dit, json);
        assert_ok(context, nl_config_from_checkpoint(file, NULL, &told));
        assert_null(nl_config_difference(&told, &dit->config));
        nl_config_free(context, &told);
        nl_checkpoint_close(file);
        file = zeros_file(dit, other);
        assert_int_equal(nl_config_from_checkpoint(file, NULL, &told), NL_ERROR_INPUT);
        if (!strstr(nl_last_error(context), parts[i].found))
            fail_msg("%s does not say %s", nl_last_error(context), parts[i].found);
        nl_checkpoint_close(file);
        nl_dit_destroy(dit);
    }
}

static void position_values(void **state)
{
    (void)state;
    float *table = malloc(256 * 1152 * sizeof(float));
    nl_position_table(16, 16, 1152, table);
    const struct {
        int token, channel;
        double value;
    } known[] = {{1, 0, .8414710},      {1, 1, .8240513},    {1, 288, .5403023},
                 {1, 576, 0},           {1, 864, 1},         {16, 0, 0},
                 {16, 288, 1},          {16, 576, .8414710}, {16, 577, .8240513},
                 {16, 864, .5403023},   {255, 0, .6502878},  {255, 1, .9246361},
                 {255, 288, -.7596879}, {255, 576, .6502878}};
    for (int i = 0; i < NL_COUNT(known); i++)
        assert_true(fabs(table[known[i].token * 1152 + known[i].channel] - known[i].value) < 1e-7);
    free(table);
}

/* docs/public-code.md A1: tensors and parameters of the public models, the position table counted. */
static void parameter_counts(void **state)
{
    (void)state;
    const struct {
        const char *name;
        int tensors;
        int64_t parameters;
    } known[] = {{"DiT-S/2", 132, 32963360},
                 {"DiT-S/4", 132, 32945024},
                 {"SiT-S/8", 132, 33148160},
                 {"DiT-B/2", 132, 130512416}};
    for (int i = 0; i < NL_COUNT(known); i++) {
        nl_config config;
        nl_dit *dit = NULL;
        nl_config_init(&config);
        assert_ok(context, nl_config_from_name(context, known[i].name, &config));
        assert_ok(context, nl_dit_create(context->device, &config, &dit));
        assert_int_equal(dit->param_count + 1, known[i].tensors);
        assert_int_equal(nl_dit_parameter_count(dit) + nl_tensor_count(&dit->position),
                         known[i].parameters);
        nl_dit_destroy(dit);
    }
}

/* The layers' modulations are one weight, in order. */
static void adaln_is_one_weight(void **state)
{
    (void)state;
    nl_dit *dit = random_model(small_nala);
    int64_t d = dit->config.hidden_size;
    assert_int_equal(dit->adaln_weight.shape[0], (6 * dit->config.depth + 2) * d);
    for (int i = 0; i < dit->config.depth; i++)
        assert_ptr_equal(dit->blocks[i].adaln_weight.data,
                         (char *)dit->adaln_weight.data + 6 * d * i * d * (int64_t)sizeof(float));
    assert_ptr_equal(dit->head.adaln_weight.data,
                     (char *)dit->adaln_weight.data +
                         6 * d * dit->config.depth * d * (int64_t)sizeof(float));
    nl_dit_destroy(dit);
}

/* A model that is frozen predicts what it did, to the bit, and on a CPU is not written again. */
static void frozen_model(void **state)
{
    (void)state;
    enum { BATCH = 6, SIZE = 4 * 16 * 16 };
    static float x[BATCH * SIZE];
    const float t = 0.5f;
    const int32_t labels[BATCH] = {0, 1, 2, 3, 4, 5};
    const char json[] = "{\"architecture\": \"SiT\", \"attention\": \"nala\", \"depth\": 2, "
                        "\"hidden_size\": 256, \"input_size\": 16}";
    nl_context *common = context;
    random_numbers(x, BATCH * SIZE, 1);
    for (int kind = 0; kind < 2; kind++) {
        nl_context_options options = {
            .device = device_name, .dtype = kind ? "bf16" : "f32", .threads = 2};
        assert_int_equal(nl_context_create(&options, &context), NL_OK);
        nl_dit *dit = random_model(json);
        float *before = run(dit, BATCH, x, &t, 1, labels, 4);
        assert_ok(context, nl_dit_freeze(dit));
        float *after = run(dit, BATCH, x, &t, 1, labels, 4);
        assert_memory_equal(before, after, sizeof(x));
        assert_int_equal(nl_dit_initialize(dit, 8), test_on_cpu() ? NL_ERROR_INTERNAL : NL_OK);
        free(before);
        free(after);
        nl_dit_destroy(dit);
        nl_context_destroy(context);
    }
    context = common;
}

/* The products of a gated linear attention are drawn one by one, its convolutions change nothing. */
static void initial_gla(void **state)
{
    (void)state;
    nl_config config;
    nl_dit *dit = NULL;
    const char json[] = "{\"architecture\": \"SiT\", \"attention\": \"gla\", \"dw_conv\": true, "
                        "\"depth\": 1, \"hidden_size\": 128, \"input_size\": 4}";
    const int rows[] = {64, 64, 128, 128, 16};
    nl_config_init(&config);
    assert_ok(context, nl_config_parse(context, "test", json, strlen(json), &config));
    assert_ok(context, nl_dit_create(context->device, &config, &dit));
    assert_ok(context, nl_dit_initialize(dit, 1));
    for (int i = 0; i < dit->param_count; i++) {
        const char *name = dit->params[i].name;
        const float *values = dit->params[i].tensor->data;
        for (int part = 0; strstr(name, "in_proj") && part < NL_COUNT(rows); part++) {
            double largest = 0, bound = sqrt(6.0 / (128 + rows[part])) / sqrt(32);
            for (int j = 0; j < rows[part] * 128; j++)
                largest = fmax(largest, fabs((double)*values++));
            assert_true(largest <= bound * 1.000001 && largest > 0.99 * bound);
        }
        for (int j = 0; strstr(name, "dw_conv.weight") && j < 128 * 9; j++)
            assert_true(values[j] == (j % 9 == 4));
        for (int j = 0; strstr(name, "dw_conv.bias") && j < 128; j++)
            assert_true(values[j] == 0);
    }
    nl_config_free(context, &config);
    nl_dit_destroy(dit);
}

static void initial_weights(void **state)
{
    (void)state;
    nl_config config;
    nl_dit *dit = NULL, *again = NULL;
    const char json[] = "{\"architecture\": \"SiT\", \"attention\": \"nala\", \"lepe\": true, "
                        "\"learn_exponents\": true, \"lambda\": 2, "
                        "\"depth\": 1, \"hidden_size\": 128, \"input_size\": 4}";
    nl_config_init(&config);
    assert_ok(context, nl_config_parse(context, "test", json, strlen(json), &config));
    assert_ok(context, nl_dit_create(context->device, &config, &dit));
    assert_ok(context, nl_dit_create(context->device, &config, &again));
    assert_ok(context, nl_dit_initialize(dit, 1));
    assert_ok(context, nl_dit_initialize(again, 1));
    for (int i = 0; i < dit->param_count; i++) {
        const nl_param *param = &dit->params[i];
        int64_t count = nl_tensor_count(param->tensor);
        const float *values = param->tensor->data;
        double sum = 0, square = 0, largest = 0;
        assert_memory_equal(values, again->params[i].tensor->data, (size_t)count * sizeof(float));
        for (int64_t j = 0; j < count; j++) {
            sum += values[j];
            square += (double)values[j] * values[j];
            largest = fmax(largest, fabs(values[j]));
        }
        double deviation = sqrt(square / (double)count);
        bool bias = strstr(param->name, ".bias") && !strstr(param->name, "lepe");
        if (bias || strstr(param->name, "adaLN") || strstr(param->name, "final_layer"))
            assert_true(largest == 0);
        else if (strstr(param->name, "t_embedder") || strstr(param->name, "y_embedder"))
            assert_true(fabs(deviation - 0.02) < 0.001);
        else if (strstr(param->name, "attn.ln"))
            assert_true(sum == (double)count && square == (double)count);
        else if (strstr(param->name, "attn.log_"))
            assert_true(values[0] == values[1] &&
                        values[0] == logf(strstr(param->name, "tau") ? 0.5f : 2));
        else if (strstr(param->name, "lepe"))
            assert_true(largest <= 0.2 && largest > 0.19);
        else {
            double fan = (double)count / (double)param->shape[0] + (double)param->shape[0];
            assert_true(largest <= sqrt(6 / fan) * 1.000001);
            assert_true(fabs(deviation / sqrt(2 / fan) - 1) < 0.05);
        }
    }
    float x[2 * 64], t = 0.5f;
    int32_t labels[2] = {0, 1000};
    random_numbers(x, 2 * 64, 5);
    float *out = run(dit, 2, x, &t, 1, labels, 8);
    for (int i = 0; i < 2 * 128; i++)
        assert_true(out[i] == 0); /* adaLN-Zero */
    free(out);
    nl_config_free(context, &config);
    nl_dit_destroy(dit);
    nl_dit_destroy(again);
}

/* ---- Files */

static void save_and_load(void **state)
{
    (void)state;
    const struct {
        nl_dtype dtype;
        double tolerance;
    } rows[] = {{NL_F32, 0}, {NL_BF16, 1e-2}, {NL_F16, 1e-3}, {NL_I8, 2e-2}};
    nl_dit *dit = random_model(small_nala);
    float x[SMALL_IN], t = 0.5f;
    int32_t label = 1;
    random_numbers(x, SMALL_IN, 6);
    float *expected = run(dit, 1, x, &t, 1, &label, 6);
    for (int i = 0; i < NL_COUNT(rows); i++) {
        nl_checkpoint *checkpoint = NULL;
        assert_ok(context, nl_dit_save(dit, "test_dit_saved.safetensors", true, rows[i].dtype));
        assert_ok(context, nl_checkpoint_open(context, "test_dit_saved.safetensors", &checkpoint));
        const nl_entry *entry = nl_checkpoint_find(checkpoint, "blocks.1.mlp.fc1.weight");
        assert_int_equal(entry->dtype, rows[i].dtype);
        assert_true((entry->scale != NULL) == (rows[i].dtype == NL_I8));
        assert_int_equal(checkpoint->count, dit->param_count);
        nl_dit *loaded = load(checkpoint);
        float *out = run(loaded, 1, x, &t, 1, &label, 6);
        double error = test_relative_error(out, expected, SMALL_OUT);
        assert_true(error <= rows[i].tolerance);
        assert_true(rows[i].dtype == NL_F32 || error > 0);
        free(out);
        nl_dit_destroy(loaded);
        nl_checkpoint_close(checkpoint);
        remove("test_dit_saved.safetensors");
    }
    assert_int_equal(nl_dit_save(dit, "test_dit_saved.safetensors", true, NL_I32), NL_ERROR_USAGE);
    assert_false(nl_path_exists("test_dit_saved.safetensors"));
    free(expected);
    nl_dit_destroy(dit);
}

static const nl_tensor *param_named(const nl_dit *dit, const char *name)
{
    for (int i = 0; i < dit->param_count; i++)
        if (!strcmp(dit->params[i].name, name))
            return dit->params[i].tensor;
    fail_msg("no parameter %s", name);
    return NULL;
}

static void nan_is_not_saved(void **state)
{
    (void)state;
    nl_dit *dit = random_model(small_nala);
    float nan = NAN;
    nl_device *device = context->device;
    assert_ok(context,
              device->ops->upload(device, param_named(dit, "blocks.1.mlp.fc2.weight")->data, &nan,
                                  sizeof(nan)));
    assert_int_equal(nl_dit_save(dit, "test_dit_nan.safetensors", true, NL_F32),
                     NL_ERROR_NOT_FINITE);
    assert_non_null(strstr(nl_last_error(context), "blocks.1.mlp.fc2.weight"));
    assert_false(nl_path_exists("test_dit_nan.safetensors"));
    nl_dit_destroy(dit);
}

/* Writes the model with one change to its list of tensors and tries to load it. */
typedef enum nl_change { DROP, RESHAPE, ADD, POSITION, OTHER_POSITION, BAD_POSITION } nl_change;

static nl_status load_changed(const nl_dit *dit, nl_change change)
{
    enum { MAX = 64 };
    nl_tensor_header headers[MAX];
    nl_safetensors_writer *writer = NULL;
    nl_checkpoint *checkpoint = NULL;
    int64_t count = 0, bytes = 0, d = dit->config.hidden_size;
    for (int i = 0; i < dit->param_count; i++) {
        const nl_param *param = &dit->params[i];
        nl_tensor_header header = {param->name, NL_F32, param->ndim, {0}};
        memcpy(header.shape, param->shape, sizeof(param->shape));
        bool chosen = strcmp(param->name, "blocks.1.mlp.fc1.bias") == 0;
        if (chosen && change == DROP)
            continue;
        if (chosen && change == RESHAPE)
            header.shape[0]++;
        headers[count++] = header;
    }
    if (change == ADD)
        headers[count++] = (nl_tensor_header){"blocks.1.attn.extra", NL_F32, 1, {3}};
    if (change == POSITION)
        headers[count++] = (nl_tensor_header){"pos_embed", NL_F32, 3, {1, 6, d}};
    if (change == OTHER_POSITION)
        headers[count++] = (nl_tensor_header){"pos_embed", NL_F32, 3, {1, 16, d}};
    if (change == BAD_POSITION)
        headers[count++] = (nl_tensor_header){"pos_embed", NL_F32, 3, {1, 7, d}};
    assert_ok(context, nl_safetensors_create(context, "test_dit_changed.safetensors", true, NULL,
                                             headers, count, &writer));
    for (int64_t i = 0; i < count; i++) {
        nl_tensor tensor = nl_tensor_of(NULL, NL_F32, headers[i].ndim, headers[i].shape);
        bytes = nl_tensor_bytes(&tensor);
        void *zeros = calloc(1, (size_t)bytes);
        assert_ok(context, nl_safetensors_write(writer, zeros, bytes));
        free(zeros);
    }
    assert_ok(context, nl_safetensors_commit(&writer));
    assert_ok(context, nl_checkpoint_open(context, "test_dit_changed.safetensors", &checkpoint));
    nl_dit *target = NULL;
    assert_ok(context, nl_dit_create(context->device, &dit->config, &target));
    nl_status status = nl_dit_load(target, checkpoint);
    nl_dit_destroy(target);
    nl_checkpoint_close(checkpoint);
    remove("test_dit_changed.safetensors");
    return status;
}

static void loading_is_strict(void **state)
{
    (void)state;
    nl_dit *dit = random_model(small_nala);
    assert_int_equal(load_changed(dit, DROP), NL_ERROR_INPUT);
    assert_non_null(strstr(nl_last_error(context), "blocks.1.mlp.fc1.bias [128] is missing"));
    assert_int_equal(load_changed(dit, RESHAPE), NL_ERROR_INPUT);
    assert_non_null(
        strstr(nl_last_error(context), "blocks.1.mlp.fc1.bias: expected [128], found [129]"));
    assert_int_equal(load_changed(dit, ADD), NL_ERROR_INPUT);
    assert_non_null(strstr(nl_last_error(context), "blocks.1.attn.extra [3] is not expected"));
    assert_int_equal(load_changed(dit, POSITION), NL_OK);
    assert_int_equal(load_changed(dit, OTHER_POSITION), NL_OK);
    assert_int_equal(load_changed(dit, BAD_POSITION), NL_ERROR_INPUT);
    nl_dit_destroy(dit);
}

static void wrong_sizes_are_refused(void **state)
{
    (void)state;
    nl_dit *dit = random_model(small_nala);
    float t[2] = {0};
    int64_t batch = 2;
    nl_tensor x = nl_tensor_of(t, NL_F32, 4, (int64_t[]){2, 3, 4, 6});
    nl_tensor taller = nl_tensor_of(t, NL_F32, 4, (int64_t[]){2, 3, 6, 6});
    nl_tensor labels = nl_tensor_of(t, NL_I32, 1, &batch);
    nl_tensor one = nl_tensor_of(t, NL_F32, 1, (int64_t[]){1});
    nl_tensor three = nl_tensor_of(t, NL_F32, 1, (int64_t[]){3});
    assert_int_equal(nl_dit_forward(dit, context->device, &taller, &one, &labels, NULL, &x, NULL),
                     NL_ERROR_INTERNAL);
    assert_int_equal(nl_dit_forward(dit, context->device, &x, &one, &labels, NULL, &taller, NULL),
                     NL_ERROR_INTERNAL);
    assert_int_equal(nl_dit_forward(dit, context->device, &x, &three, &labels, NULL, &x, NULL),
                     NL_ERROR_INTERNAL);
    nl_dit_destroy(dit);
}

/* Every allocation on the way from file to saved file fails once; nothing leaks or is left. */
static nl_status whole_way(const char *from, const char *to)
{
    nl_status status;
    nl_checkpoint *checkpoint = NULL;
    nl_config config = {0};
    nl_dit *dit = NULL;
    NL_TRY(nl_checkpoint_open(context, from, &checkpoint));
    NL_TRY(nl_config_from_checkpoint(checkpoint, NULL, &config));
    NL_TRY(nl_dit_create(context->device, &config, &dit));
    NL_TRY(nl_dit_load(dit, checkpoint));
    NL_TRY(nl_dit_save(dit, to, true, NL_I8));
cleanup:
    nl_dit_destroy(dit);
    nl_config_free(context, &config);
    nl_checkpoint_close(checkpoint);
    return status;
}

static void every_allocation_fails_once(void **state)
{
    (void)state;
    const char from[] = "test_dit_faults.safetensors", to[] = "test_dit_faults_out.safetensors";
    nl_dit *dit = random_model(small_nala);
    assert_ok(context, nl_dit_save(dit, from, true, NL_I8));
    nl_dit_destroy(dit);
    remove(to);
    int64_t used = context->memory_used, first = context->allocations, failed = 0;
    nl_status status = NL_ERROR_MEMORY;
    while (status != NL_OK) {
        context->fail_allocation = context->allocations + 1 + failed;
        status = whole_way(from, to);
        assert_true(status == NL_OK || status == NL_ERROR_MEMORY);
        assert_int_equal(context->memory_used, used);
        assert_true(status == NL_OK || !nl_path_exists(to));
        failed++;
        assert_true(failed < 10000);
    }
    context->fail_allocation = 0;
    assert_true(failed > 20 && context->allocations > first);
    for (int64_t i = 0;; i++) {
        remove(to);
        context->fail_write = context->writes + 1 + i;
        status = whole_way(from, to);
        assert_int_equal(context->memory_used, used);
        if (status == NL_OK)
            break;
        assert_int_equal(status, NL_ERROR_WRITE);
        assert_true(i < 10000);
    }
    context->fail_write = 0;
    remove(from);
    remove(to);
}

int main(void)
{
    const struct CMUnitTest golden[] = {
        cmocka_unit_test(golden_softmax),        cmocka_unit_test(golden_nala),
        cmocka_unit_test(golden_nala_wide_head), cmocka_unit_test(golden_nala_lepe),
        cmocka_unit_test(every_option_runs),     cmocka_unit_test(parts_of_blocks_in_files),
    };
    const struct CMUnitTest elsewhere[] = {
        cmocka_unit_test(golden_softmax),        cmocka_unit_test(golden_nala),
        cmocka_unit_test(golden_nala_wide_head), cmocka_unit_test(golden_nala_lepe),
        cmocka_unit_test(golden_shipped_model),  cmocka_unit_test(batch_independence),
        cmocka_unit_test(shared_time),           cmocka_unit_test(flow_map_of_no_step),
        cmocka_unit_test(crop_is_added),         cmocka_unit_test(narrow_prediction),
        cmocka_unit_test(every_option_runs),     cmocka_unit_test(parts_of_blocks_in_files),
        cmocka_unit_test(replayed_is_run),       cmocka_unit_test(golden_first_model),
    };
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(golden_softmax),
        cmocka_unit_test(golden_nala),
        cmocka_unit_test(golden_nala_wide_head),
        cmocka_unit_test(golden_nala_lepe),
        cmocka_unit_test(golden_shipped_model),
        cmocka_unit_test(batch_independence),
        cmocka_unit_test(shared_time),
        cmocka_unit_test(flow_map_of_no_step),
        cmocka_unit_test(narrow_prediction),
        cmocka_unit_test(every_option_runs),
        cmocka_unit_test(parts_of_blocks_in_files),
        cmocka_unit_test(middle_head_in_files),
        cmocka_unit_test(replayed_is_run),
        cmocka_unit_test(position_values),
        cmocka_unit_test(parameter_counts),
        cmocka_unit_test(adaln_is_one_weight),
        cmocka_unit_test(frozen_model),
        cmocka_unit_test(initial_gla),
        cmocka_unit_test(initial_weights),
        cmocka_unit_test(save_and_load),
        cmocka_unit_test(nan_is_not_saved),
        cmocka_unit_test(loading_is_strict),
        cmocka_unit_test(wrong_sizes_are_refused),
        cmocka_unit_test(every_allocation_fails_once),
        cmocka_unit_test(golden_first_model),
    };
    device_name = test_device();
    if (!test_on_cpu())
        return test_run(elsewhere, 1, setup, teardown);
    device_name = "reference";
    int failed = cmocka_run_group_tests(golden, setup, teardown);
    device_name = "cpu";
    return failed + test_run(tests, 1, setup, teardown);
}
