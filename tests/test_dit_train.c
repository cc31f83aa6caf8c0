/* SPDX-License-Identifier: MIT */
/* The backward pass of the network against the golden gradients, and twins of the parameter table. On the devices
 * of NL_TEST_DEVICE. */
#include "nl_dit_train.h"
#include "op_cases.h"

static nl_context *context;
static nl_device *devices[OP_MAX_DEVICES];
static int device_count;

/* ---- Helpers */

#define CONFIG(attention, size, more)                                                              \
    "{\"architecture\": \"DiT\", \"attention\": \"" attention "\", \"hidden_size\": " size         \
    ", " more                                                                                      \
    "\"depth\": 2, \"num_heads\": 1, \"patch_size\": 2, \"input_size\": 8, \"num_classes\": 5}"

#define NO_SIGMA "\"learn_sigma\": false, \"variance\": \"fixed_small\", "

#define BLOCKS(attention, more) DEEP_BLOCKS(attention, "2", more)
#define DEEP_BLOCKS(attention, depth, more)                                                        \
    "{\"architecture\": \"DiT\", \"attention\": \"" attention                                      \
    "\", \"hidden_size\": 24, " NO_SIGMA more ", \"depth\": " depth                                \
    ", \"num_heads\": 2, \"patch_size\": 2, \"input_size\": 8, \"num_classes\": 5}"

static const struct golden {
    const char *file, *config; /* those of training.safetensors come first */
    float dropout;
} goldens[] = {
    {"backbone_softmax_d64.safetensors", CONFIG("softmax", "64", ""), 0},
    {"backbone_nala_d64.safetensors", CONFIG("nala", "64", NO_SIGMA), 0},
    {"backbone_nala_d72.safetensors", CONFIG("nala", "72", ""), 0},
    {"backbone_nala_lepe_d64.safetensors", CONFIG("nala", "64", NO_SIGMA "\"lepe\": true, "), 0},
    {"flow_map_d32.safetensors",
     "{\"architecture\": \"SiT\", \"attention\": \"nala\", \"lepe\": "
     "true, \"hidden_size\": 32, \"depth\": 3,"
     " \"num_heads\": 1, \"patch_size\": 2, \"input_size\": 8, "
     "\"num_classes\": 5, \"learn_sigma\": false,"
     " \"flow_map\": 2}",
     0},
    /* Networks of other parts: make_blocks_golden.py. */
    {"blocks_softmax_swiglu.safetensors",
     BLOCKS("softmax", "\"mlp\": \"swiglu\", \"norm\": \"rms\", \"qk_norm\": true"), 0},
    {"blocks_softmax_rope.safetensors",
     BLOCKS("softmax", "\"mlp\": \"swiglu\", \"norm\": \"rms\", \"qk_norm\": true, "
                       "\"qk_norm_layer\": true, \"rope\": true"),
     0},
    {"blocks_softmax_gelu.safetensors", BLOCKS("softmax", "\"mlp\": \"gelu\""), 0.25f},
    {"blocks_nala_mix.safetensors",
     BLOCKS("nala", "\"lepe\": true, \"mlp\": \"mix\", \"qk_norm\": true"), 0.25f},
    {"blocks_nala_swiglu.safetensors", BLOCKS("nala", "\"mlp\": \"swiglu\", \"norm\": \"rms\""),
     0.1f},
    {"blocks_nala_exponents.safetensors", BLOCKS("nala", "\"learn_exponents\": true"), 0},
    {"blocks_mediator.safetensors", BLOCKS("mediator", "\"mediators\": 4"), 0},
    {"blocks_gla_swiglu.safetensors",
     DEEP_BLOCKS("gla", "4", "\"dw_conv\": true, \"mlp\": \"swiglu\""), 0},
};

static void parse(const char *json, nl_config *config)
{
    nl_config_init(config);
    assert_ok(context, nl_config_parse(context, "test", json, strlen(json), config));
}

static nl_tensor on_device(nl_device *device, nl_dtype dtype, int ndim, const int64_t *shape,
                           const void *values)
{
    nl_tensor tensor = nl_tensor_of(NULL, dtype, ndim, shape);
    assert_ok(context, device->ops->alloc(device, "test", nl_tensor_bytes(&tensor), &tensor.data));
    if (values)
        assert_ok(context,
                  device->ops->upload(device, tensor.data, values, nl_tensor_bytes(&tensor)));
    return tensor;
}

static void forget(nl_device *device, nl_tensor *tensor)
{
    device->ops->free(device, tensor->data, nl_tensor_bytes(tensor));
}

static float *download(nl_device *device, const nl_tensor *tensor)
{
    float *values = malloc((size_t)nl_tensor_bytes(tensor));
    assert_non_null(values);
    assert_ok(context,
              device->ops->download(device, values, tensor->data, nl_tensor_bytes(tensor)));
    return values;
}

/* A model with its gradients and one batch on a device. */
typedef struct trial {
    nl_device *device;
    nl_dit *dit, *gradients;
    nl_tensor x, t, labels, prediction, dprediction, dx;
    nl_tensor crop; /* or left out */
    nl_dropout dropout;
    uint8_t *complete; /* of every gradient: how often it was reported */
    int64_t count;
} trial;

static nl_status count_ready(void *user, int64_t first, int64_t count)
{
    trial *run = user;
    assert_true(first >= 0 && count > 0 && first + count <= run->count);
    for (int64_t i = first; i < first + count; i++)
        run->complete[i]++;
    return NL_OK;
}

static trial open_trial(nl_device *device, const struct golden *golden, const nl_checkpoint *file)
{
    nl_config config;
    nl_tensor shape;
    trial run = {.device = device};
    parse(golden->config, &config);
    assert_ok(context, nl_dit_create(device, &config, &run.dit));
    assert_ok(context, nl_dit_create_flat(device, &config, &run.gradients));
    assert_ok(context, nl_dit_load_named(run.dit, file, "w."));
    nl_config_free(context, &config);
    nl_tensor times;
    float *x = test_read(file, "x", &shape), *t = test_read(file, "t", &times);
    run.x = on_device(device, NL_F32, 4, shape.shape, x);
    run.dx = on_device(device, NL_F32, 4, shape.shape, NULL);
    run.t = on_device(device, NL_F32, times.ndim, times.shape, t);
    run.labels = on_device(device, NL_I32, 1, shape.shape, nl_checkpoint_find(file, "y")->data);
    if (golden->dropout > 0) {
        static const int64_t samples[] = {3, (1ll << 33) + 1, 12345};
        assert_int_equal(shape.shape[0], NL_COUNT(samples));
        run.dropout =
            (nl_dropout){golden->dropout, 77, on_device(device, NL_I64, 1, shape.shape, samples)};
    }
    free(test_read(file, "out", &shape));
    run.prediction = on_device(device, NL_F32, 4, shape.shape, NULL);
    run.dprediction = on_device(device, NL_F32, 4, shape.shape, NULL);
    run.count = nl_dit_flat(run.gradients).shape[0];
    run.complete = calloc((size_t)run.count, 1);
    free(x);
    free(t);
    return run;
}

static void close_trial(trial *run)
{
    nl_tensor *tensors[] = {&run->x,          &run->t,           &run->labels,
                            &run->prediction, &run->dprediction, &run->dx};
    for (int i = 0; i < NL_COUNT(tensors); i++)
        forget(run->device, tensors[i]);
    if (run->dropout.samples.data)
        forget(run->device, &run->dropout.samples);
    nl_dit_destroy(run->dit);
    nl_dit_destroy(run->gradients);
    free(run->complete);
}

/* dprediction of mean((prediction - target)^2) */
static void set_dprediction(trial *run, const float *target)
{
    float *values = download(run->device, &run->prediction);
    int64_t count = nl_tensor_count(&run->prediction);
    for (int64_t i = 0; i < count; i++)
        values[i] = 2 * (values[i] - target[i]) / (float)count;
    assert_ok(context, run->device->ops->upload(run->device, run->dprediction.data, values,
                                                nl_tensor_bytes(&run->dprediction)));
    assert_ok(context, run->device->ops->sync(run->device));
    free(values);
}

/* Both passes on `device`, the run's own or a measuring one, which leaves the loss out. */
static void both_passes(trial *run, nl_device *device, bool checkpointing, const float *target)
{
    nl_dit_saved saved;
    int64_t mark = nl_arena_mark(device);
    assert_ok(context, nl_dit_forward_saving(run->dit, device, &run->x, &run->t, &run->labels,
                                             run->crop.data ? &run->crop : NULL, checkpointing,
                                             &run->dropout, &run->prediction, NULL, &saved));
    if (!device->measuring)
        set_dprediction(run, target);
    assert_ok(context,
              nl_dit_backward(run->dit, device, &saved, &run->dprediction, NULL, run->gradients,
                              &run->dx, device->measuring ? NULL : count_ready, run));
    nl_dit_saved_free(device, &saved);
    nl_arena_release(device, mark);
}

static int64_t reserve(trial *run, bool checkpointing)
{
    nl_device measuring;
    nl_device_measuring(run->device, &measuring);
    both_passes(run, &measuring, checkpointing, NULL);
    assert_ok(context, nl_arena_reserve(run->device, measuring.arena_peak));
    return measuring.arena_peak;
}

/* ---- Golden gradients */

/* Of relative errors; with weights and activations in bf16 a network's gradients are good for two digits. */
static double tolerance_of(const nl_device *device)
{
    return device->dtype == NL_BF16 ? 5e-2 : 1e-4;
}

/* Two numbers, each a sum of differences over all tokens, are good for one. */
static double tolerance_of_param(const nl_device *device, const nl_param *param)
{
    bool exponents = strstr(param->name, ".attn.log_") != NULL;
    return device->dtype == NL_BF16 && exponents ? 0.2 : tolerance_of(device);
}

/* One parameter's gradient, times `times`. The worst error so far is returned. */
static double check_gradient(const trial *run, const nl_checkpoint *file, int index, float times,
                             double worst)
{
    const nl_param *param = &run->gradients->params[index];
    char name[128];
    nl_tensor shape;
    snprintf(name, sizeof(name), "g.%s", param->name);
    float *expected = test_read(file, name, &shape), *found = download(run->device, param->tensor);
    int64_t count = nl_tensor_count(param->tensor);
    assert_int_equal(nl_tensor_count(&shape), count);
    for (int64_t i = 0; i < count; i++)
        found[i] /= times;
    double error = test_relative_error(found, expected, count);
    if (!(error <= tolerance_of_param(run->device, param)))
        fail_msg("%s: %s: relative error %.3g", run->device->name, name, error);
    free(expected);
    free(found);
    return fmax(worst, error);
}

/* Gradients after `times` passes, and what was reported about them. */
static void check_gradients(const trial *run, const nl_checkpoint *file, int times,
                            const char *what)
{
    double worst = 0;
    for (int i = 0; i < run->gradients->param_count; i++)
        worst = check_gradient(run, file, i, (float)times, worst);
    for (int64_t i = 0; i < run->count; i++)
        assert_int_equal(run->complete[i], times);
    float *expected = test_read(file, "grad_x", NULL), *dx = download(run->device, &run->dx);
    assert_close(dx, expected, nl_tensor_count(&run->dx), tolerance_of(run->device));
    print_message("%s, %s: worst gradient %.2g, of x %.2g\n", run->device->name, what, worst,
                  test_relative_error(dx, expected, nl_tensor_count(&run->dx)));
    free(expected);
    free(dx);
}

static void check_golden(nl_device *device, const struct golden *golden)
{
    nl_checkpoint *file = test_golden(context, golden->file);
    trial run = open_trial(device, golden, file);
    float *target = test_read(file, "target", NULL), *out = test_read(file, "out", NULL);
    int64_t whole = reserve(&run, false);
    both_passes(&run, device, false, target);
    float *prediction = download(device, &run.prediction);
    assert_close(prediction, out, nl_tensor_count(&run.prediction),
                 device->dtype == NL_BF16 ? 2e-2 : 1e-5);
    check_gradients(&run, file, 1, golden->file);
    int64_t part = reserve(&run, true);
    assert_true(part < whole);
    both_passes(&run, device, true, target); /* added to those of the first pass */
    check_gradients(&run, file, 2, "accumulated, checkpointing");
    free(prediction);
    free(target);
    free(out);
    close_trial(&run);
    nl_checkpoint_close(file);
}

static void test_golden_gradients(void **state)
{
    (void)state;
    for (int i = 0; i < device_count; i++)
        for (int j = 0; j < NL_COUNT(goldens); j++)
            check_golden(devices[i], &goldens[j]);
}

/* ---- What it is told of crops: the gradient of their matrix against central differences */

static double projected(trial *run, const float *weights)
{
    nl_dit_saved saved;
    int64_t mark = nl_arena_mark(run->device);
    assert_ok(context,
              nl_dit_forward_saving(run->dit, run->device, &run->x, &run->t, &run->labels,
                                    &run->crop, false, NULL, &run->prediction, NULL, &saved));
    nl_dit_saved_free(run->device, &saved);
    nl_arena_release(run->device, mark);
    float *values = download(run->device, &run->prediction);
    double sum = 0;
    for (int64_t i = 0; i < nl_tensor_count(&run->prediction); i++)
        sum += (double)values[i] * weights[i];
    free(values);
    return sum;
}

static void check_crop_gradient(nl_device *device, int golden, const char *config)
{
    static const float told[3][NL_CROP_NUMBERS] = {
        {-0.5f, 0.1f, -0.2f, 1}, {0, 0, 0, 0}, {-1, -0.25f, 0.25f, 0}};
    enum { D = 32, TRIED = 16 };
    const float h = 0.02f;
    nl_config parsed;
    nl_dit *initial;
    nl_checkpoint *file = test_golden(context, goldens[golden].file);
    trial run = open_trial(device, &goldens[golden], file);
    parse(config, &parsed);
    assert_ok(context, nl_dit_create(device, &parsed, &initial));
    nl_dit *old = run.dit;
    for (int i = 0, j = 0; i < initial->param_count; i++) { /* the golden weights, and the matrix */
        if (!strcmp(initial->params[i].name, "crop_embedder.weight"))
            continue;
        float *values = download(device, old->params[j].tensor);
        assert_string_equal(initial->params[i].name, old->params[j].name);
        assert_ok(context, device->ops->upload(device, initial->params[i].tensor->data, values,
                                               nl_tensor_bytes(old->params[j].tensor)));
        assert_ok(context, device->ops->sync(device));
        free(values);
        j++;
    }
    nl_dit_destroy(old);
    nl_dit_destroy(run.gradients);
    run.dit = initial;
    assert_ok(context, nl_dit_create_flat(device, &parsed, &run.gradients));
    nl_config_free(context, &parsed);
    run.count = nl_dit_flat(run.gradients).shape[0];
    run.complete = realloc(run.complete, (size_t)run.count);
    memset(run.complete, 0, (size_t)run.count);
    float weight[D * NL_CROP_NUMBERS], found[TRIED], expected[TRIED];
    int64_t batch = run.x.shape[0], outputs = nl_tensor_count(&run.prediction);
    assert_int_equal(batch, 3);
    assert_int_equal(run.dit->config.hidden_size, D);
    for (int i = 0; i < NL_COUNT(weight); i++)
        weight[i] = 0.1f * sinf((float)i);
    assert_ok(context,
              device->ops->upload(device, run.dit->crop_weight.data, weight, sizeof(weight)));
    run.crop = on_device(device, NL_F32, 2, (int64_t[]){3, NL_CROP_NUMBERS}, told);
    float *weights = malloc((size_t)outputs * sizeof(float));
    for (int64_t i = 0; i < outputs; i++)
        weights[i] = sinf(0.7f * (float)i);
    for (int checkpointing = 0; checkpointing < 2; checkpointing++) {
        reserve(&run, checkpointing);
        assert_ok(context, NL_OP(device, zero, .x = nl_dit_flat(run.gradients)));
        nl_dit_saved saved;
        int64_t mark = nl_arena_mark(device);
        assert_ok(context,
                  nl_dit_forward_saving(run.dit, device, &run.x, &run.t, &run.labels, &run.crop,
                                        checkpointing, NULL, &run.prediction, NULL, &saved));
        assert_ok(context, device->ops->upload(device, run.dprediction.data, weights,
                                               nl_tensor_bytes(&run.dprediction)));
        assert_ok(context, nl_dit_backward(run.dit, device, &saved, &run.dprediction, NULL,
                                           run.gradients, NULL, count_ready, &run));
        nl_dit_saved_free(device, &saved);
        nl_arena_release(device, mark);
        for (int64_t i = 0; i < run.count; i++)
            assert_int_equal(run.complete[i], checkpointing + 1);
        float *gradient = download(device, &run.gradients->crop_weight);
        reserve(&run, false);
        for (int i = 0; i < TRIED; i++) {
            int at = i * 9 % (D * NL_CROP_NUMBERS);
            double sides[2];
            for (int side = 0; side < 2; side++) {
                float moved[D * NL_CROP_NUMBERS];
                memcpy(moved, weight, sizeof(moved));
                moved[at] += side ? h : -h;
                assert_ok(context, device->ops->upload(device, run.dit->crop_weight.data, moved,
                                                       sizeof(moved)));
                assert_ok(context, device->ops->sync(device));
                sides[side] = projected(&run, weights);
            }
            expected[i] = (float)((sides[1] - sides[0]) / (2 * h));
            found[i] = gradient[at];
        }
        assert_ok(context,
                  device->ops->upload(device, run.dit->crop_weight.data, weight, sizeof(weight)));
        double error = test_relative_error(found, expected, TRIED);
        if (!(error < 2e-3))
            fail_msg("%s: relative error %g", device->name, error);
        free(gradient);
    }
    free(weights);
    forget(device, &run.crop);
    close_trial(&run);
    nl_checkpoint_close(file);
}

/* Of a network of two times: both know the crop. */
static void test_crop_gradient(void **state)
{
    (void)state;
    for (int i = 0; i < device_count; i++)
        if (devices[i]->dtype == NL_F32)
            check_crop_gradient(devices[i], 4,
                                "{\"architecture\": \"SiT\", \"attention\": \"nala\", \"lepe\": "
                                "true, \"hidden_size\": 32, \"depth\": 3,"
                                " \"num_heads\": 1, \"patch_size\": 2, \"input_size\": 8, "
                                "\"num_classes\": 5, \"learn_sigma\": false,"
                                " \"flow_map\": 2, \"crop_conditioning\": true}");
}

/* ---- A middle head is the head of a network that ends there */

#define MIDDLE(depth, more)                                                                        \
    "{\"architecture\": \"SiT\", \"attention\": \"nala\", \"lepe\": true, \"hidden_size\": 32,"    \
    " \"num_heads\": 1, \"patch_size\": 2, \"input_size\": 8, \"num_classes\": 5, \"norm\": "      \
    "\"rms\","                                                                                     \
    " \"learn_sigma\": false, \"depth\": " depth more "}"

static trial open_random(nl_device *device, const char *json, float *noise)
{
    nl_config config;
    trial run = {.device = device};
    int64_t shape[] = {3, 4, 8, 8};
    float t[] = {0.1f, 0.5f, 0.8f};
    int32_t labels[] = {4, 5, 0};
    parse(json, &config);
    assert_ok(context, nl_dit_create(device, &config, &run.dit));
    assert_ok(context, nl_dit_create_flat(device, &config, &run.gradients));
    nl_config_free(context, &config);
    run.x = on_device(device, NL_F32, 4, shape, noise);
    run.t = on_device(device, NL_F32, 1, shape, t);
    run.labels = on_device(device, NL_I32, 1, shape, labels);
    run.dx = on_device(device, NL_F32, 4, shape, NULL);
    run.prediction = on_device(device, NL_F32, 4, shape, NULL);
    run.dprediction = on_device(device, NL_F32, 4, shape, NULL);
    run.count = nl_dit_flat(run.gradients).shape[0];
    run.complete = calloc((size_t)run.count, 1);
    return run;
}

/* Every parameter by its name: those of the short network's head are those of the deep one's middle head. */
static void fill(const nl_dit *dit, bool is_short)
{
    nl_device *device = dit->device;
    for (int p = 0; p < dit->param_count; p++) {
        char name[112];
        uint64_t hash = 7;
        const char *from = dit->params[p].name;
        bool head = !strncmp(from, "final_layer.", 12);
        snprintf(name, sizeof(name), "%s%s", head && is_short ? "middle_layer." : "",
                 from + (head && is_short ? 12 : 0));
        for (const char *c = name; *c; c++)
            hash = 31 * hash + (uint64_t)*c;
        int64_t count = nl_tensor_count(dit->params[p].tensor);
        float *values = malloc((size_t)count * sizeof(float) + 16);
        for (int64_t i = 0; i < count; i++)
            values[i] = 0.3f * sinf((float)(hash % 1000) + 1.7f * (float)i);
        assert_ok(context, device->ops->upload(device, dit->params[p].tensor->data, values,
                                               count * (int64_t)sizeof(float)));
        assert_ok(context, device->ops->sync(device));
        free(values);
    }
}

/* Gradients by dprediction and dmiddle; NULL: that head is not asked. Predictions go to the run's and to `middle`. */
static void run_heads(trial *run, bool checkpointing, const float *dprediction,
                      const nl_tensor *middle, const nl_tensor *dmiddle)
{
    nl_device measuring, *devices_of[2] = {&measuring, run->device};
    nl_device_measuring(run->device, &measuring);
    assert_ok(context, NL_OP(run->device, zero, .x = nl_dit_flat(run->gradients)));
    if (dprediction)
        assert_ok(context, run->device->ops->upload(run->device, run->dprediction.data, dprediction,
                                                    nl_tensor_bytes(&run->dprediction)));
    memset(run->complete, 0, (size_t)run->count);
    for (int i = 0; i < 2; i++) {
        nl_device *device = devices_of[i];
        nl_dit_saved saved;
        int64_t mark = nl_arena_mark(device);
        assert_ok(context,
                  nl_dit_forward_saving(run->dit, device, &run->x, &run->t, &run->labels, NULL,
                                        checkpointing, NULL, dprediction ? &run->prediction : NULL,
                                        middle, &saved));
        assert_ok(context,
                  nl_dit_backward(run->dit, device, &saved, dprediction ? &run->dprediction : NULL,
                                  dmiddle, run->gradients, &run->dx,
                                  device->measuring ? NULL : count_ready, run));
        nl_dit_saved_free(device, &saved);
        nl_arena_release(device, mark);
        if (device->measuring)
            assert_ok(context, nl_arena_reserve(run->device, measuring.arena_peak));
    }
    for (int64_t i = 0; i < run->count; i++)
        assert_int_equal(run->complete[i], 1);
}

static void assert_same_tensor(nl_device *device, const char *what, const nl_tensor *a,
                               const nl_tensor *b, double tolerance)
{
    float *x = download(device, a), *y = download(device, b);
    double error = test_relative_error(x, y, nl_tensor_count(a));
    if (!(error <= tolerance))
        fail_msg("%s: %s: relative error %g", device->name, what, error);
    free(x);
    free(y);
}

static void check_middle_head(nl_device *device, bool checkpointing)
{
    enum { COUNT = 3 * 4 * 8 * 8 };
    float noise[COUNT], d[COUNT], e[COUNT], none[COUNT] = {0};
    for (int i = 0; i < COUNT; i++) {
        noise[i] = sinf(0.9f * (float)i);
        d[i] = cosf(1.3f * (float)i);
        e[i] = cosf(0.4f * (float)i);
    }
    trial deep = open_random(device, MIDDLE("3", ", \"middle_head\": 2"), noise);
    trial brief = open_random(device, MIDDLE("2", ""), noise);
    fill(deep.dit, false);
    fill(brief.dit, true);
    nl_tensor middle = on_device(device, NL_F32, 4, deep.x.shape, NULL);
    nl_tensor head = on_device(device, NL_F32, 4, deep.x.shape, NULL);
    nl_tensor dmiddle = on_device(device, NL_F32, 4, deep.x.shape, d);
    nl_tensor flat = nl_dit_flat(deep.gradients);
    float *parts[2], *sum;

    /* the middle head alone: the short network */
    run_heads(&deep, checkpointing, none, &middle, &dmiddle);
    run_heads(&brief, checkpointing, d, NULL, NULL);
    assert_same_tensor(device, "prediction", &middle, &brief.prediction, 1e-6);
    assert_same_tensor(device, "dx", &deep.dx, &brief.dx, 1e-5);
    for (int i = 0; i < deep.gradients->param_count; i++) {
        const nl_param *param = &deep.gradients->params[i], *same = NULL;
        char name[112];
        bool head_of = !strncmp(param->name, "middle_layer.", 13);
        snprintf(name, sizeof(name), "%s%s", head_of ? "final_layer." : "",
                 param->name + (head_of ? 13 : 0));
        for (int j = 0; j < brief.gradients->param_count; j++)
            if (!strcmp(brief.gradients->params[j].name, name))
                same = &brief.gradients->params[j];
        if (!strncmp(param->name, "blocks.2.", 9) || !strncmp(param->name, "final_layer.", 12)) {
            float *values = download(device, param->tensor);
            for (int64_t k = 0; k < nl_tensor_count(param->tensor); k++)
                assert_true(values[k] == 0);
            free(values);
        } else {
            assert_non_null(same);
            assert_same_tensor(device, param->name, param->tensor, same->tensor, 2e-5);
        }
    }
    parts[0] = download(device, &flat);
    /* as well without the blocks behind it, which the full pass had computed */
    run_heads(&deep, checkpointing, NULL, &middle, &dmiddle);
    assert_same_tensor(device, "prediction", &middle, &brief.prediction, 1e-6);
    assert_same_tensor(device, "dx", &deep.dx, &brief.dx, 1e-5);
    sum = download(device, &flat);
    assert_close(sum, parts[0], deep.count, 1e-6);
    free(sum);
    /* together: the sum of both alone; the head predicts what it does when the other is not asked */
    run_heads(&deep, checkpointing, e, NULL, NULL);
    parts[1] = download(device, &flat);
    assert_ok(context,
              device->ops->copy(device, head.data, deep.prediction.data, nl_tensor_bytes(&head)));
    run_heads(&deep, checkpointing, e, &middle, &dmiddle);
    assert_same_tensor(device, "prediction", &deep.prediction, &head, 1e-6);
    sum = download(device, &flat);
    for (int64_t i = 0; i < deep.count; i++)
        parts[0][i] += parts[1][i];
    assert_close(sum, parts[0], deep.count, 1e-5);
    /* what is sampled with */
    assert_ok(context, nl_dit_forward(deep.dit, device, &deep.x, &deep.t, &deep.labels, NULL, &head,
                                      &middle));
    assert_same_tensor(device, "prediction", &deep.prediction, &head, 1e-6);
    assert_same_tensor(device, "middle", &middle, &brief.prediction, 1e-6);
    assert_int_equal(
        nl_dit_forward(brief.dit, device, &deep.x, &deep.t, &deep.labels, NULL, &head, &middle),
        NL_ERROR_INTERNAL);
    /* a flow map that predicts middle + 1.7 (head - middle), and so its gradients */
    trial guided = open_random(
        device, MIDDLE("3", ", \"middle_head\": 2, \"flow_map\": 2, \"internal_guidance\": 1.7"),
        noise);
    fill(guided.dit, false);
    run_heads(&guided, checkpointing, e, NULL, NULL);
    assert_ok(context, nl_dit_forward_guided(deep.dit, device, &deep.x, &deep.t, &deep.labels, NULL,
                                             1.7, &head));
    assert_same_tensor(device, "guided", &guided.prediction, &head, 1e-6);
    assert_ok(context, nl_dit_forward(guided.dit, device, &deep.x, &deep.t, &deep.labels, NULL,
                                      &guided.prediction, NULL));
    assert_same_tensor(device, "guided", &guided.prediction, &head, 0);
    for (int i = 0; i < COUNT; i++) {
        d[i] = -0.7f * e[i];
        e[i] *= 1.7f;
    }
    assert_ok(context, device->ops->upload(device, dmiddle.data, d, nl_tensor_bytes(&dmiddle)));
    run_heads(&deep, checkpointing, e, &middle, &dmiddle);
    assert_same_tensor(device, "dx", &guided.dx, &deep.dx, 1e-5);
    nl_tensor of_guided = nl_dit_flat(guided.gradients);
    assert_same_tensor(device, "gradients", &of_guided, &flat, 1e-5);
    close_trial(&guided);

    nl_tensor *all[] = {&middle, &head, &dmiddle};
    for (int i = 0; i < NL_COUNT(all); i++)
        forget(device, all[i]);
    free(parts[0]);
    free(parts[1]);
    free(sum);
    close_trial(&deep);
    close_trial(&brief);
}

static void test_middle_head(void **state)
{
    (void)state;
    for (int i = 0; i < device_count; i++)
        for (int checkpointing = 0; checkpointing < 2 && devices[i]->dtype == NL_F32;
             checkpointing++)
            check_middle_head(devices[i], checkpointing);
}

/* ---- 20 steps of the optimiser, as PyTorch takes them (make_training_golden.py) */

enum { STEPS = 20, STRIDE = 37, TRAINED = 4 };

/* What a step needs beside the trial. */
typedef struct optimiser {
    nl_dit *master, *first, *second, *average;
    nl_tensor target, coefficients, loss, mean, hyper, norm, counter, segment_table;
    nl_segment *segments;
    int segment_count;
} optimiser;

static void open_optimiser(const trial *run, optimiser *o)
{
    nl_device *device = run->device;
    nl_dit **twins[] = {&o->master, &o->first, &o->second, &o->average};
    const float hyper[NL_HYPER_COLUMNS] = {1e-3f, 0.9f, 0.999f, 1e-6f, 0.01f, 0.6f, 0.9f};
    int64_t batch = run->x.shape[0];
    float rows[8 * NL_LOSS_COLUMNS] = {0};
    for (int i = 0; i < NL_COUNT(twins); i++)
        assert_ok(context, nl_dit_create_flat(device, &run->dit->config, twins[i]));
    assert_ok(context, nl_dit_copy(run->dit, o->master));
    assert_ok(context, nl_dit_copy(run->dit, o->average));
    assert_ok(context, nl_dit_segments(run->dit, o->master, 1, &o->segments, &o->segment_count));
    assert_true(batch <= 8);
    for (int64_t i = 0; i < batch; i++)
        rows[i * NL_LOSS_COLUMNS + NL_LOSS_TARGET_DATA] =
            rows[i * NL_LOSS_COLUMNS + NL_LOSS_WEIGHT] = 1;
    int64_t one = 1, columns = NL_HYPER_COLUMNS,
            bytes = o->segment_count * (int64_t)sizeof(nl_segment);
    o->target = on_device(device, NL_F32, 4, run->prediction.shape, NULL);
    o->coefficients = on_device(device, NL_F32, 2, (int64_t[]){batch, NL_LOSS_COLUMNS}, rows);
    o->loss = on_device(device, NL_F32, 1, &batch, NULL);
    o->mean = on_device(device, NL_F32, 1, &one, NULL);
    o->norm = on_device(device, NL_F32, 1, &one, NULL);
    o->hyper = on_device(device, NL_F32, 1, &columns, hyper);
    o->counter = on_device(device, NL_I32, 1, (int64_t[]){2}, (int32_t[]){0, 0});
    o->segment_table = on_device(device, NL_U8, 1, &bytes, o->segments);
}

static void close_optimiser(const trial *run, optimiser *o)
{
    nl_tensor *tensors[] = {&o->target, &o->coefficients, &o->loss,    &o->mean,
                            &o->hyper,  &o->norm,         &o->counter, &o->segment_table};
    nl_dit *twins[] = {o->master, o->first, o->second, o->average};
    for (int i = 0; i < NL_COUNT(tensors); i++)
        forget(run->device, tensors[i]);
    for (int i = 0; i < NL_COUNT(twins); i++)
        nl_dit_destroy(twins[i]);
    nl_free(context, o->segments);
}

/* factor times values, on the device. */
static void upload_scaled(nl_device *device, const nl_tensor *tensor, const float *values,
                          double factor)
{
    int64_t count = nl_tensor_count(tensor);
    float *scaled = malloc((size_t)count * sizeof(float));
    for (int64_t i = 0; i < count; i++)
        scaled[i] = (float)(factor * values[i]);
    assert_ok(context, device->ops->upload(device, tensor->data, scaled, nl_tensor_bytes(tensor)));
    assert_ok(context, device->ops->sync(device));
    free(scaled);
}

static nl_status take_step(trial *run, optimiser *o)
{
    nl_status status;
    nl_device *device = run->device;
    nl_dit_saved saved = {0};
    int64_t mark = nl_arena_mark(device);
    nl_tensor gradient = nl_dit_flat(run->gradients);
    NL_TRY(NL_OP(device, zero, .x = gradient));
    NL_TRY(nl_dit_forward_saving(run->dit, device, &run->x, &run->t, &run->labels,
                                 run->crop.data ? &run->crop : NULL, false, NULL, &run->prediction,
                                 NULL, &saved));
    NL_TRY(NL_OP(device, regression_loss, .prediction = run->prediction, .data = o->target,
                 .noise = o->target, .coefficients = o->coefficients, .loss = o->loss,
                 .dprediction = run->dprediction, .gradient_scale = 1 / (float)run->x.shape[0]));
    NL_TRY(NL_OP(device, mean, .x = o->loss, .y = o->mean));
    NL_TRY(nl_dit_backward(run->dit, device, &saved, &run->dprediction, NULL, run->gradients, NULL,
                           NULL, NULL));
    NL_TRY(NL_OP(device, gradient_norm, .x = gradient, .norm = o->norm));
    NL_TRY(NL_OP(device, adamw, .master = nl_dit_flat(o->master), .first = nl_dit_flat(o->first),
                 .second = nl_dit_flat(o->second), .gradient = gradient, .ema_count = 1,
                 .ema = {nl_dit_flat(o->average)}, .hyper = o->hyper, .norm = o->norm,
                 .counter = o->counter, .segment_count = o->segment_count, .segments = o->segments,
                 .segment_table = o->segment_table));
cleanup:
    nl_dit_saved_free(device, &saved);
    nl_arena_release(device, mark);
    return status;
}

/* Every STRIDE-th element of the parameters against "<model>.<kind>.<name>". */
static double check_parameters(const trial *run, const nl_dit *dit, const nl_checkpoint *expected,
                               const char *model, const char *kind)
{
    double worst = 0;
    for (int i = 0; i < dit->param_count; i++) {
        char name[160];
        nl_tensor shape;
        snprintf(name, sizeof(name), "%s.%s.%s", model, kind, dit->params[i].name);
        float *wanted = test_read(expected, name, &shape);
        float *found = download(run->device, dit->params[i].tensor);
        int64_t count = shape.shape[0];
        assert_int_equal(count, (nl_tensor_count(dit->params[i].tensor) + STRIDE - 1) / STRIDE);
        for (int64_t j = 0; j < count; j++)
            found[j] = found[j * STRIDE];
        double error = test_relative_error(found, wanted, count);
        if (!(error <= 1e-4))
            fail_msg("%s: %s: relative error %.3g", run->device->name, name, error);
        worst = fmax(worst, error);
        free(wanted);
        free(found);
    }
    return worst;
}

static void check_steps(nl_device *device, const struct golden *golden)
{
    char model[64], name[96];
    optimiser o;
    float losses[STEPS], norms[STEPS];
    nl_checkpoint *file = test_golden(context, golden->file);
    nl_checkpoint *expected = test_golden(context, "training.safetensors");
    trial run = open_trial(device, golden, file);
    float *x = test_read(file, "x", NULL), *target = test_read(file, "target", NULL);
    snprintf(model, sizeof(model), "%.*s", (int)strcspn(golden->file + 9, "."), golden->file + 9);
    open_optimiser(&run, &o);
    reserve(&run, false);
    for (int k = 0; k < STEPS; k++) {
        upload_scaled(device, &run.x, x, cos(k / 10.0));
        upload_scaled(device, &o.target, target, sin(1 + k / 5.0));
        assert_ok(context, take_step(&run, &o));
        assert_ok(context, device->ops->download(device, &losses[k], o.mean.data, 4));
        assert_ok(context, device->ops->download(device, &norms[k], o.norm.data, 4));
    }
    snprintf(name, sizeof(name), "%s.loss", model);
    float *loss = test_read(expected, name, NULL);
    snprintf(name, sizeof(name), "%s.norm", model);
    float *norm = test_read(expected, name, NULL);
    assert_close(losses, loss, STEPS, 1e-5);
    assert_close(norms, norm, STEPS, 1e-4);
    double parameters = check_parameters(&run, o.master, expected, model, "p");
    double averages = check_parameters(&run, o.average, expected, model, "ema");
    print_message("%s, %s: losses %.2g, norms %.2g, parameters %.2g, averages %.2g\n", device->name,
                  model, test_relative_error(losses, loss, STEPS),
                  test_relative_error(norms, norm, STEPS), parameters, averages);
    float *all[] = {x, target, loss, norm};
    for (int i = 0; i < NL_COUNT(all); i++)
        free(all[i]);
    close_optimiser(&run, &o);
    close_trial(&run);
    nl_checkpoint_close(file);
    nl_checkpoint_close(expected);
}

static void test_steps_of_adamw(void **state)
{
    (void)state;
    for (int i = 0; i < device_count; i++)
        for (int j = 0; j < TRAINED && devices[i]->dtype == NL_F32; j++)
            check_steps(devices[i], &goldens[j]);
}

/* ---- Threads */

#define WIDER                                                                                      \
    "\"hidden_size\": 96, \"num_heads\": 3, \"depth\": 2, \"patch_size\": 2, \"input_size\": 24"

/* The flat gradients of a batch of 3 on so many threads, and their number. */
static float *gradients_on(int threads, const char *json, int64_t *count)
{
    enum { BATCH = 3, SIDE = 24, CHANNELS = 8 };
    static float image[BATCH * CHANNELS * SIDE * SIDE];
    nl_device *device;
    nl_config config;
    trial run = {0};
    const int64_t batch = BATCH, in[] = {BATCH, 4, SIDE, SIDE}, out[] = {BATCH, 8, SIDE, SIDE};
    assert_ok(context, nl_device_create(context, "cpu", "f32", threads, &device));
    run.device = device;
    parse(json, &config);
    assert_ok(context, nl_dit_create(device, &config, &run.dit));
    assert_ok(context, nl_dit_create_flat(device, &config, &run.gradients));
    for (int i = 0; i < run.dit->param_count; i++)
        if (run.dit->params[i].init != NL_INIT_XAVIER)
            run.dit->params[i].init = NL_INIT_LEPE; /* nothing zero */
    assert_ok(context, nl_dit_initialize(run.dit, 3));
    for (int i = 0; i < NL_COUNT(image); i++)
        image[i] = sinf(0.37f * (float)i);
    run.x = on_device(device, NL_F32, 4, in, image);
    run.dx = on_device(device, NL_F32, 4, in, NULL);
    run.t = on_device(device, NL_F32, 1, &batch, (float[]){0.1f, 0.5f, 0.9f});
    run.labels = on_device(device, NL_I32, 1, &batch, (int32_t[]){1, 0, 1});
    run.prediction = on_device(device, NL_F32, 4, out, NULL);
    run.dprediction = on_device(device, NL_F32, 4, out, NULL);
    nl_tensor flat = nl_dit_flat(run.gradients);
    *count = run.count = flat.shape[0];
    run.complete = calloc((size_t)run.count, 1);
    reserve(&run, false);
    both_passes(&run, device, false, image);
    float *gradients = download(device, &flat);
    nl_config_free(context, &config);
    close_trial(&run);
    nl_device_destroy(device);
    return gradients;
}

static void test_threads_do_not_matter(void **state)
{
    (void)state;
    static const char *const models[] = {
        "{\"architecture\": \"DiT\", " WIDER "}",
        "{\"architecture\": \"DiT\", \"attention\": \"nala\", \"lepe\": true, " WIDER "}"};
    for (int i = 0; i < NL_COUNT(models); i++) {
        int64_t count;
        float *one = gradients_on(1, models[i], &count);
        for (int threads = 2; threads <= 5; threads++) {
            float *several = gradients_on(threads, models[i], &count);
            assert_memory_equal(one, several, (size_t)count * sizeof(float));
            free(several);
        }
        free(one);
    }
}

/* ---- Memory */

/* GiB that training takes on a GPU in bf16, with `bytes` for each parameter. */
static double training_memory(const char *model, int64_t batch, bool checkpointing, int bytes)
{
    nl_device measuring;
    nl_config config;
    trial run = {.device = devices[0]};
    nl_dit_saved saved;
    nl_config_init(&config);
    assert_ok(context, nl_config_from_name(context, model, &config));
    assert_ok(context, nl_dit_create(run.device, &config, &run.dit));
    assert_ok(context, nl_dit_create_flat(run.device, &config, &run.gradients));
    nl_device_measuring(run.device, &measuring);
    measuring.dtype = measuring.activation = NL_BF16;
    snprintf(measuring.name, sizeof(measuring.name), "cuda");
    int64_t channels = nl_config_head_channels(&config);
    nl_tensor x, y, dy, t, labels; /* on the arena: they are needed as well */
    const int64_t in[] = {batch, 4, 32, 32}, out[] = {batch, channels, 32, 32};
    assert_ok(context, nl_arena_tensor(&measuring, NL_F32, 4, in, &x));
    assert_ok(context, nl_arena_tensor(&measuring, NL_F32, 4, out, &y));
    assert_ok(context, nl_arena_tensor(&measuring, NL_F32, 4, out, &dy));
    assert_ok(context, nl_arena_tensor(&measuring, NL_F32, 1, &batch, &t));
    assert_ok(context, nl_arena_tensor(&measuring, NL_I32, 1, &batch, &labels));
    assert_ok(context, nl_dit_forward_saving(run.dit, &measuring, &x, &t, &labels, NULL,
                                             checkpointing, NULL, &y, NULL, &saved));
    assert_ok(context, nl_dit_backward(run.dit, &measuring, &saved, &dy, NULL, run.gradients, NULL,
                                       NULL, NULL));
    nl_dit_saved_free(&measuring, &saved);
    double parameters = (double)nl_dit_flat(run.gradients).shape[0] * bytes;
    nl_config_free(context, &config);
    nl_dit_destroy(run.dit);
    nl_dit_destroy(run.gradients);
    double gib = ((double)measuring.arena_peak + parameters) / (1 << 30);
    print_message("%s, batch %lld%s: %.2f GiB\n", model, (long long)batch,
                  checkpointing ? ", checkpointing" : "", gib);
    return gib;
}

/* Master weights, Adam's moments, an average, gradients, and the weights in bf16. */
static void test_memory(void **state)
{
    (void)state;
    const int bytes = 4 + 8 + 4 + 4 + 2;
    assert_true(training_memory("NaLaSiT-S/2", 256, false, bytes) <= 9);
    assert_true(training_memory("SiT-S/2", 256, false, bytes) <= 9);
    assert_true(training_memory("NaLaSiT-S/2", 256, true, bytes) <= 3.5);
}

/* ---- Twins */

static void test_twins_are_laid_out_alike(void **state)
{
    (void)state;
    nl_device *device = devices[0];
    nl_config config;
    nl_dit *dit, *a, *b;
    nl_segment *segments;
    int count;
    int64_t covered = 0;
    parse(goldens[3].config, &config);
    assert_ok(context, nl_dit_create(device, &config, &dit));
    assert_ok(context, nl_dit_create_flat(device, &config, &a));
    assert_ok(context, nl_dit_create_flat(device, &config, &b));
    nl_tensor flat = nl_dit_flat(a);
    for (int i = 0; i < a->param_count; i++) {
        int64_t at = (float *)a->params[i].tensor->data - (float *)a->storage;
        assert_int_equal(at, (float *)b->params[i].tensor->data - (float *)b->storage);
        assert_int_equal(a->params[i].tensor->dtype, NL_F32);
        assert_int_equal(at % 64, 0);
    }
    assert_ok(context, nl_dit_segments(dit, a, 1, &segments, &count));
    for (int i = 0; i < count; i++) {
        assert_true(i == 0 || segments[i].first >= segments[i - 1].first + segments[i - 1].count);
        covered += segments[i].count;
    }
    assert_true(segments[count - 1].first + segments[count - 1].count == flat.shape[0]);
    assert_int_equal(covered, nl_dit_parameter_count(dit));
    nl_free(context, segments);
    nl_config_free(context, &config);
    nl_dit_destroy(dit);
    nl_dit_destroy(a);
    nl_dit_destroy(b);
}

/* A segment of query rows, of weight and bias of each block, has its own rate; scaling reaches them alone. */
static void test_queries_are_scaled(void **state)
{
    (void)state;
    nl_config config;
    nl_dit *twin, *scaled;
    nl_segment *segments;
    int count;
    int64_t slow = 0, changed = 0;
    parse(goldens[1].config, &config);
    assert_ok(context, nl_dit_create_flat(devices[0], &config, &twin));
    assert_ok(context, nl_dit_create_flat(devices[0], &config, &scaled));
    for (int i = 0; i < twin->param_count; i++)
        twin->params[i].init = NL_INIT_LEPE; /* nothing zero */
    assert_ok(context, nl_dit_initialize(twin, 1));
    assert_ok(context, nl_dit_copy(twin, scaled));
    assert_ok(context, nl_dit_scale_queries(scaled, 0.5f));
    assert_ok(context, nl_dit_segments(twin, twin, 0.5f, &segments, &count));
    nl_tensor flat = nl_dit_flat(twin), scaled_flat = nl_dit_flat(scaled);
    float *x = download(devices[0], &flat), *y = download(devices[0], &scaled_flat);
    for (int i = 0; i < count; i++) {
        bool queries = segments[i].rate == 0.5f;
        assert_true(queries || segments[i].rate == 1);
        slow += queries ? segments[i].count : 0;
        for (int64_t j = segments[i].first; j < segments[i].first + segments[i].count; j++) {
            assert_true(y[j] == (queries ? 0.5f : 1) * x[j]);
            changed += y[j] != x[j];
        }
    }
    assert_int_equal(slow, (int64_t)config.depth * config.hidden_size * (config.hidden_size + 1));
    assert_int_equal(changed, slow);
    free(x);
    free(y);
    nl_free(context, segments);
    nl_config_free(context, &config);
    nl_dit_destroy(twin);
    nl_dit_destroy(scaled);
}

/* b holds the numbers of a, in its own types. */
static void assert_same(const nl_dit *a, const nl_dit *b)
{
    for (int i = 0; i < a->param_count; i++) {
        const nl_tensor *from = a->params[i].tensor, *to = b->params[i].tensor;
        int64_t count = nl_tensor_count(from);
        float *x = download(devices[0], from), *y = download(devices[0], to);
        void *expected = malloc((size_t)nl_tensor_bytes(to));
        nl_convert_from_float(x, count, to->dtype, expected);
        assert_int_equal(from->dtype, NL_F32);
        assert_memory_equal(expected, y, (size_t)nl_tensor_bytes(to));
        free(expected);
        free(x);
        free(y);
    }
}

/* Everything that is allocated on the way; the model comes back as `copy`. */
static nl_status there_and_back(const nl_config *config, const nl_dit *model, const nl_dit *average,
                                const char *path, nl_dit **copy)
{
    nl_status status;
    nl_checkpoint *file = NULL;
    const nl_dit_named models[] = {{model, ""}, {average, "ema."}};
    *copy = NULL;
    NL_TRY(nl_dit_save_named(models, 2, path, true, (const char *[]){"step", "12", NULL}));
    NL_TRY(nl_checkpoint_open(context, path, &file));
    NL_TRY(nl_dit_create_flat(devices[0], config, copy));
    NL_TRY(nl_dit_load_named(*copy, file, "ema."));
cleanup:
    if (status == NL_OK)
        assert_string_equal(nl_checkpoint_metadata(file, "step"), "12");
    nl_checkpoint_close(file);
    if (status != NL_OK) {
        nl_dit_destroy(*copy);
        *copy = NULL;
    }
    return status;
}

static void test_named_models_in_one_file(void **state)
{
    (void)state;
    const char path[] = "test_dit_train.safetensors";
    nl_config config;
    nl_dit *model, *average, *copy;
    nl_checkpoint *file;
    parse(goldens[1].config, &config);
    assert_ok(context, nl_dit_create(devices[0], &config, &model));
    assert_ok(context, nl_dit_create_flat(devices[0], &config, &average));
    assert_ok(context, nl_dit_initialize(model, 1));
    assert_ok(context, nl_dit_initialize(average, 2));
    assert_ok(context, there_and_back(&config, model, average, path, &copy));
    assert_same(copy, average);
    assert_ok(context, nl_dit_copy(copy, model));
    assert_same(copy, model);
    nl_dit_destroy(copy);

    int64_t used = context->memory_used, failed = 0;
    nl_status status = NL_ERROR_MEMORY;
    while (status != NL_OK) {
        context->fail_allocation = context->allocations + 1 + failed++;
        status = there_and_back(&config, model, average, path, &copy);
        assert_true(status == NL_OK || status == NL_ERROR_MEMORY);
        assert_true(status == NL_OK || context->memory_used == used);
        assert_true(failed < 1000);
    }
    context->fail_allocation = 0;
    assert_true(failed > 5);
    nl_dit_destroy(copy);

    assert_ok(context, nl_checkpoint_open(context, path, &file));
    assert_int_equal(nl_dit_load_named(model, file, "adam_m."), NL_ERROR_INPUT);
    assert_non_null(strstr(nl_last_error(context), "adam_m.x_embedder.proj.weight"));
    nl_checkpoint_close(file);
    remove(path);
    nl_config_free(context, &config);
    nl_dit_destroy(model);
    nl_dit_destroy(average);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_golden_gradients),
        cmocka_unit_test(test_crop_gradient),
        cmocka_unit_test(test_middle_head),

        cmocka_unit_test(test_steps_of_adamw),
        cmocka_unit_test(test_threads_do_not_matter),
        cmocka_unit_test(test_memory),
        cmocka_unit_test(test_twins_are_laid_out_alike),
        cmocka_unit_test(test_queries_are_scaled),
        cmocka_unit_test(test_named_models_in_one_file),
    };
    context = test_context(NULL);
    device_count = op_open_devices(context, 2, devices);
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    for (int i = 0; i < device_count; i++)
        nl_device_destroy(devices[i]);
    nl_core_context_destroy(context);
    return failed;
}
