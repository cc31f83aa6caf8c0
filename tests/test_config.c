/* SPDX-License-Identifier: MIT */
/* Configurations: JSON, names, classes, and what the tensors of a file tell. */
#include "nl_config.h"
#include "nl_test.h"

static char log_text[4096];

static void keep_log(void *user, nl_log_level level, const char *message)
{
    (void)user, (void)level;
    size_t used = strlen(log_text);
    snprintf(log_text + used, sizeof(log_text) - used, "%s\n", message);
}

static nl_context *context;

static int setup(void **state)
{
    (void)state;
    nl_context_options options = {.log = keep_log};
    return nl_core_context_create(&options, &context);
}

static int teardown(void **state)
{
    (void)state;
    nl_core_context_destroy(context);
    return 0;
}

static nl_status parse(const char *json, nl_config *config)
{
    nl_config_init(config);
    return nl_config_parse(context, "test.json", json, strlen(json), config);
}

static void refuse(const char *json, const char *message)
{
    nl_config config;
    int64_t used = context->memory_used;
    assert_int_equal(parse(json, &config), NL_ERROR_INPUT);
    if (!strstr(nl_last_error(context), message) || !strstr(nl_last_error(context), "test.json"))
        fail_msg("\"%s\" does not say \"%s\"", nl_last_error(context), message);
    assert_int_equal(context->memory_used, used);
    assert_int_equal(config.depth, 0); /* unchanged by what failed */
}

#define SIT "\"architecture\":\"SiT\",\"depth\":2,\"hidden_size\":128"
#define DIT "\"architecture\":\"DiT\",\"depth\":2,\"hidden_size\":128"

/* ---- Reading */

static void defaults(void **state)
{
    (void)state;
    nl_config c;
    assert_ok(context, parse("{" DIT "}", &c));
    assert_int_equal(c.attention, NL_ATTENTION_SOFTMAX);
    assert_int_equal(c.feature_map, NL_FEATURES_COSINE);
    assert_true(c.lambda == 3 && c.tau == 0.5 && c.gate && !c.lepe && !c.rope);
    assert_int_equal(c.num_heads, 2);
    assert_int_equal(c.patch_size, 2);
    assert_true(c.input_height == 32 && c.input_width == 32);
    assert_true(c.in_channels == 4 && c.num_classes == 1000 && c.class_dropout_prob == 0.1);
    assert_int_equal(c.schedule, NL_SCHEDULE_LINEAR);
    assert_int_equal(c.diffusion_steps, 1000);
    assert_int_equal(c.predicts, NL_PREDICTS_EPSILON);
    assert_int_equal(c.variance, NL_VARIANCE_LEARNED_RANGE);
    assert_int_equal(c.path, NL_PATH_LINEAR);
    assert_int_equal(c.prediction, NL_PREDICTION_VELOCITY);
    assert_true(c.train_eps < 0 && c.sample_eps < 0);
    assert_int_equal(c.autoencoder, NL_AUTOENCODER_KL);
    assert_true(c.latent_scale == 0.18215 && c.latent_shift == 0);
    assert_int_equal(nl_config_tokens(&c), 256);
    assert_int_equal(nl_config_head_channels(&c), 8);
}

static void defaults_that_follow(void **state)
{
    (void)state;
    nl_config c;
    assert_ok(context, parse("{" DIT ",\"learn_sigma\":false}", &c));
    assert_int_equal(c.variance, NL_VARIANCE_FIXED_LARGE);
    assert_ok(context, parse("{" DIT ",\"learn_sigma\":false,\"variance\":\"fixed_small\"}", &c));
    assert_int_equal(c.variance, NL_VARIANCE_FIXED_SMALL);
    assert_ok(context, parse("{" SIT ",\"autoencoder\":\"taesd\"}", &c));
    assert_int_equal(c.autoencoder, NL_AUTOENCODER_TINY);
    assert_true(c.latent_scale == 1);
    assert_ok(context, parse("{" SIT ",\"autoencoder\":\"tiny\",\"latent_scale\":2}", &c));
    assert_true(c.latent_scale == 2);
    assert_ok(context, parse("{\"architecture\":\"SiT\",\"depth\":3,\"hidden_size\":1152}", &c));
    assert_int_equal(c.num_heads, 16); /* by the size table, not 1152 / 64 */
    assert_ok(context, parse("{" SIT ",\"input_size\":[16,48]}", &c));
    assert_true(c.input_height == 16 && c.input_width == 48);
    assert_int_equal(nl_config_tokens(&c), 8 * 24);
}

static void wrong_values(void **state)
{
    (void)state;
    refuse("{\"depth\":2,\"hidden_size\":128}", "\"architecture\" is missing");
    refuse("{\"architecture\":\"SiT\",\"hidden_size\":128}", "\"depth\" is missing");
    refuse("{\"architecture\":\"SiT\",\"depth\":2}", "\"hidden_size\" is missing");
    refuse("{\"architecture\":\"UNet\"}", "\"DiT\", \"SiT\"");
    refuse("{" SIT ",\"attention\":\"linear\"}", "attention");
    refuse("{" SIT ",\"feature_map\":\"gelu\"}", "cosine_constant");
    refuse("{" SIT ",\"lambda\":0}", "lambda");
    refuse("{" SIT ",\"lambda\":\"3\"}", "lambda");
    refuse("{" SIT ",\"tau\":-1}", "tau");
    refuse("{" SIT ",\"attention\":\"nala\",\"learn_exponents\":true,\"tau\":0}", "a tau above 0");
    refuse("{" SIT ",\"attention\":\"nala\",\"learn_exponents\":true,\"feature_map\":\"relu\"}",
           "(cosine or split)");
    refuse("{" SIT ",\"gate\":1}", "gate");
    refuse("{" SIT ",\"depth\":2.5}", "twice");
    refuse("{\"architecture\":\"SiT\",\"depth\":0}", "depth");
    refuse("{\"architecture\":\"SiT\",\"depth\":1e9}", "depth");
    refuse("{" SIT ",\"mlp\":\"relu\"}", "\"mlp\"");
    refuse("{" SIT ",\"norm\":\"batch\"}", "\"norm\"");
    refuse("{" SIT ",\"qk_norm\":1}", "\"qk_norm\"");
    refuse("{\"architecture\":\"SiT\",\"depth\":2,\"hidden_size\":126,\"num_heads\":1}",
           "multiple of 4");
    refuse("{" SIT ",\"num_heads\":3}", "num_heads should divide");
    refuse("{" SIT ",\"patch_size\":3}", "patch_size should be 1, 2, 4 or 8");
    refuse("{" SIT ",\"patch_size\":16}", "patch_size");
    refuse("{" SIT ",\"input_size\":33}", "patch_size should divide input_size");
    refuse("{" SIT ",\"input_size\":[32,31]}", "patch_size should divide input_size");
    refuse("{" SIT ",\"input_size\":[32]}", "input_size");
    refuse("{" SIT ",\"input_size\":[32,32,32]}", "input_size");
    refuse("{" SIT ",\"input_size\":-32}", "input_size");
    refuse("{" SIT ",\"input_size\":1e6}", "input_size");
    refuse("{" SIT ",\"in_channels\":0}", "in_channels");
    refuse("{" SIT ",\"num_classes\":-1}", "num_classes");
    refuse("{" SIT ",\"class_dropout_prob\":1.5}", "class_dropout_prob");
    refuse("{" SIT ",\"diffusion_steps\":0}", "diffusion_steps");
    refuse("{" SIT ",\"path\":\"cubic\"}", "\"gvp\"");
    refuse("{" SIT ",\"prediction\":\"epsilon\"}", "\"velocity\"");
    refuse("{" SIT ",\"sample_eps\":1}", "sample_eps");
    refuse("{" SIT ",\"autoencoder\":\"vq\"}", "\"tiny\"");
    refuse("{" SIT ",\"latent_scale\":0}", "latent_scale");
    refuse("{" SIT ",\"images_seen\":-1}", "images_seen");
    refuse("{" SIT ",\"ema_decay\":2}", "ema_decay");
    refuse("{" SIT ",\"license\":5}", "license");
    refuse("{" DIT ",\"learn_sigma\":false,\"variance\":\"learned_range\"}", "learn_sigma");
    refuse("{" SIT ",\"attention\":\"nala\",\"rope\":true,\"hidden_size\":132,\"num_heads\":2}",
           "twice");
    refuse("{\"architecture\":\"SiT\",\"depth\":2,\"attention\":\"nala\",\"rope\":true,"
           "\"hidden_size\":132,\"num_heads\":2}",
           "rope needs");
    refuse("[]", "object");
    refuse("{", "test.json");
}

static void unknown_keys(void **state)
{
    (void)state;
    refuse("{" SIT ",\"pach_size\":2}", "did you mean \"patch_size\"?");
    refuse("{" SIT ",\"zzzzzzzzzz\":2}", "unknown key \"zzzzzzzzzz\"");
}

static void keys_of_another_architecture(void **state)
{
    (void)state;
    nl_config c;
    log_text[0] = 0;
    assert_ok(context, parse("{" SIT ",\"path\":\"gvp\"}", &c));
    assert_string_equal(log_text, "");
    assert_ok(context, parse("{" DIT ",\"path\":\"gvp\"}", &c));
    assert_non_null(strstr(log_text, "\"path\" is ignored: it belongs to architecture SiT"));
}

static nl_status class_of(nl_context *its, const nl_config *config, const char *text, int *index)
{
    nl_class_index *names = NULL;
    assert_ok(its, nl_class_index_create(its, config, &names));
    nl_status status = nl_config_class(its, config, names, text, index);
    nl_class_index_free(its, names);
    return status;
}

static void class_names(void **state)
{
    (void)state;
    nl_config c;
    assert_ok(context, parse("{" SIT ",\"num_classes\":3,\"class_names\":[\"n03028079\","
                             "[\"n01440764\",\"tench\"],\"n1 is a name\"]}",
                             &c));
    assert_string_equal(c.class_names[0].wnid, "n03028079");
    assert_null(c.class_names[0].name);
    assert_string_equal(c.class_names[1].wnid, "n01440764");
    assert_string_equal(c.class_names[1].name, "tench");
    assert_null(c.class_names[2].wnid);
    assert_string_equal(c.class_names[2].name, "n1 is a name");
    const char keep[] = "{\"images_seen\":5}", drop[] = "{\"num_classes\":4}";
    assert_ok(context, nl_config_parse(context, "test.json", keep, strlen(keep), &c));
    assert_string_equal(c.class_names[1].name, "tench");
    assert_ok(context, nl_config_parse(context, "test.json", drop, strlen(drop), &c));
    assert_null(c.class_names);
    refuse("{" SIT ",\"num_classes\":3,\"class_names\":[\"a\",\"b\"]}", "3 classes, found 2");
    refuse("{" SIT ",\"num_classes\":1,\"class_names\":\"a\"}", "expected a list");
    refuse("{" SIT ",\"num_classes\":2,\"class_names\":[\"a\",1]}", "entry 1");
    refuse("{" SIT ",\"num_classes\":2,\"class_names\":[\"a\",[\"b\"]]}", "entry 1");
    refuse("{" SIT ",\"num_classes\":2,\"class_names\":[\"a\",[\"b\",null]]}", "entry 1");
}

/* A configuration that fails leaves the old one as it was, strings included. */
static void a_failure_changes_nothing(void **state)
{
    (void)state;
    nl_config c;
    assert_ok(context, parse("{" SIT ",\"num_classes\":1,\"class_names\":[\"a\"],"
                             "\"license\":\"MIT\"}",
                             &c));
    const char bad[] = "{\"license\":\"BSD\",\"class_names\":[\"b\"],\"depth\":7,\"patch_size\":3}";
    assert_int_equal(nl_config_parse(context, "test.json", bad, strlen(bad), &c), NL_ERROR_INPUT);
    assert_string_equal(c.license, "MIT");
    assert_string_equal(c.class_names[0].name, "a");
    assert_int_equal(c.depth, 2);
    nl_config_free(context, &c);
}

/* What code builds is held against the same ranges as what JSON says. */
static void built_configurations_are_checked(void **state)
{
    (void)state;
    nl_config good, c;
    assert_ok(context, parse("{" SIT "}", &good));
    assert_ok(context, nl_config_check(context, "built", &good));
#define BROKEN(change)                                                                             \
    c = good;                                                                                      \
    c.change;                                                                                      \
    assert_int_equal(nl_config_check(context, "built", &c), NL_ERROR_INPUT)
    BROKEN(architecture = NL_ARCH_UNKNOWN);
    BROKEN(attention = NL_ATTENTION_COUNT);
    BROKEN(depth = -1);
    BROKEN(hidden_size = -64);
    BROKEN(num_heads = 0);
    BROKEN(num_heads = -1);
    BROKEN(patch_size = 0);
    BROKEN(input_height = 0);
    BROKEN(input_width = -2);
    BROKEN(lambda = NAN);
    BROKEN(latent_scale = INFINITY);
    BROKEN(num_classes = -1);
    BROKEN(train_eps = 0.75);
    BROKEN(ema_decay = NAN);
}

/* ---- Writing */

static void printing_round_trips(void **state)
{
    (void)state;
    const char *texts[] = {
        "{" SIT "}",
        "{" DIT ",\"learn_sigma\":false,\"schedule\":\"cosine\",\"predicts\":\"x_start\"}",
        "{" SIT ",\"attention\":\"nala\",\"feature_map\":\"split\",\"lambda\":2.5,\"tau\":0.1,"
        "\"gate\":false,\"lepe\":true,\"rope\":true,\"input_size\":[8,24],\"path\":\"vp\","
        "\"prediction\":\"score\",\"train_eps\":0,\"sample_eps\":1e-3,\"autoencoder\":\"none\","
        "\"latent_shift\":-0.25,\"images_seen\":9007199254740991,\"ema_decay\":0.9999,"
        "\"ema_sigma_rel\":0.125,"
        "\"trained_on\":\"\\u00e4 \\\"b\\\"\",\"license\":\"\",\"num_classes\":2,"
        "\"class_names\":[[\"n00000001\",\"a\"],\"b\"]}",
        "{" SIT ",\"num_classes\":0,\"class_names\":[]}",
        "{" SIT ",\"mlp\":\"swiglu\",\"norm\":\"rms\",\"qk_norm\":true}",
        "{" DIT ",\"mlp\":\"mix\",\"norm\":\"layer\",\"qk_norm\":false}",
        "{" DIT ",\"crop_conditioning\":true}",
        "{" SIT ",\"middle_head\":1}",
    };
    for (int i = 0; i < NL_COUNT(texts); i++) {
        nl_config first, second;
        char *json, *again;
        assert_ok(context, parse(texts[i], &first));
        assert_ok(context, nl_config_print(context, &first, &json));
        assert_ok(context, parse(json, &second));
        assert_ok(context, nl_config_print(context, &second, &again));
        assert_string_equal(json, again);
        nl_config_free(context, &first);
        nl_config_free(context, &second);
        nl_free(context, json);
        nl_free(context, again);
    }
    nl_config c;
    char *json;
    assert_ok(context, parse(texts[2], &c));
    assert_ok(context, nl_config_print(context, &c, &json));
    const char *parts[] = {"\"feature_map\":\"split\"",
                           "\"lambda\":2.5",
                           "\"input_size\":[8,24]",
                           "\"train_eps\":0,",
                           "\"sample_eps\":0.001",
                           "\"latent_shift\":-0.25",
                           "\"images_seen\":9007199254740991",
                           "\"ema_decay\":0.9999",
                           "\"ema_sigma_rel\":0.125",
                           "[[\"n00000001\",\"a\"],\"b\"]",
                           "\"license\":\"\""};
    for (int i = 0; i < NL_COUNT(parts); i++)
        if (!strstr(json, parts[i]))
            fail_msg("%s is not in %s", parts[i], json);
    assert_null(strstr(json, "schedule"));   /* DiT's */
    assert_null(strstr(json, "query_norm")); /* said where it is not the L2 norm */
    assert_null(strstr(json, "learn_exponents"));
    nl_free(context, json);
    c.tau = 1.0 / 3, c.query_norm = NL_QUERY_RMS; /* numbers keep their last bit */
    c.learn_exponents = true;
    assert_ok(context, nl_config_print(context, &c, &json));
    nl_config again;
    assert_ok(context, parse(json, &again));
    assert_true(again.tau == c.tau && again.query_norm == NL_QUERY_RMS && again.learn_exponents);
    c.learn_exponents = false;
    assert_string_equal(nl_config_difference(&again, &c), "learn_exponents");
    assert_true(nl_config_norm_scale(&again) == sqrt((double)c.num_heads / c.hidden_size));
    nl_config_free(context, &again);
    nl_free(context, json);
    nl_config_free(context, &c);
}

/* ---- Names */

static void names(void **state)
{
    (void)state;
    const char *good[] = {"DiT-XL/2",    "SiT-B/4",       "NaLaDiT-L/8",     "NaLaSiT-S/2",
                          "NaLaSiT-S/1", "SiT-6x256x4/2", "NaLaDiT-2x64x1/4"};
    for (int i = 0; i < NL_COUNT(good); i++) {
        nl_config c;
        char text[64];
        nl_config_init(&c);
        assert_ok(context, nl_config_from_name(context, good[i], &c));
        assert_string_equal(nl_config_name(&c, text, sizeof(text)), good[i]);
    }
    nl_config c;
    nl_config_init(&c);
    assert_ok(context, nl_config_from_name(context, "DiT-XL/2", &c));
    assert_true(c.depth == 28 && c.hidden_size == 1152 && c.num_heads == 16);
    const char *bad[] = {
        "",          "DiT",        "DiT-XL",        "DiT-XL/3",     "DiT-XL/2x",    "UNet-XL/2",
        "DiT-XXL/2", "DiT-2x64/2", "DiT-2x64x1x/2", "DiT-0x64x1/2", "DiT-2x64x3/2", "DiT-2x-64x1/2",
        "DiT-XL/22"};
    for (int i = 0; i < NL_COUNT(bad); i++) {
        nl_config before = c;
        if (nl_config_from_name(context, bad[i], &c) != NL_ERROR_USAGE)
            fail_msg("\"%s\" is not refused", bad[i]);
        assert_null(strstr(nl_last_error(context), "missing"));
        assert_memory_equal(&before, &c, sizeof(c));
    }
}

/* ---- Classes */

static void classes(void **state)
{
    (void)state;
    nl_config c;
    assert_ok(context,
              parse("{" SIT
                    ",\"num_classes\":6,\"class_names\":[[\"n01440764\",\"tench, Tinca tinca\"],"
                    "[\"n02102040\",\"English springer\"],[\"n03126707\",\"crane\"],"
                    "[\"n02012849\",\"crane\"],\"gas_pump\",\"tench fish, gas pump\"]}",
                    &c));
    const struct {
        const char *text;
        int index;
    } good[] = {{"0", 0},
                {"5", 5},
                {"n02102040", 1},
                {"N02102040", 1},
                {"English springer", 1},
                {"english_SPRINGER", 1},
                {"tench", 0},
                {"Tinca tinca", 0},
                {"tench, tinca tinca", 0},
                {"gas pump", 4}, /* the whole name goes before a part of another */
                {"null", 6},
                {"n02012849", 3}};
    /* whether a text is one name, or a list of them, is asked without a word */
    nl_class_index *one = NULL;
    assert_ok(context, nl_class_index_create(context, &c, &one));
    nl_fail(context, NL_ERROR_INPUT, "what went before");
    assert_true(nl_config_names_class(&c, one, "tench, Tinca tinca"));
    assert_true(nl_config_names_class(&c, one, "name:gas_pump"));
    assert_false(nl_config_names_class(&c, one, "n01440764,n02102040"));
    assert_false(nl_config_names_class(&c, one, "crane")); /* two */
    assert_string_equal(nl_last_error(context), "what went before");
    nl_class_index_free(context, one);
    int index;
    for (int i = 0; i < NL_COUNT(good); i++) {
        assert_ok(context, class_of(context, &c, good[i].text, &index));
        if (index != good[i].index)
            fail_msg("class \"%s\" is %d", good[i].text, index);
    }
    assert_int_equal(class_of(context, &c, "crane", &index), NL_ERROR_USAGE);
    assert_non_null(strstr(nl_last_error(context), "2 (n03126707), 3 (n02012849)"));
    assert_int_equal(class_of(context, &c, "English springe", &index), NL_ERROR_USAGE);
    assert_non_null(strstr(nl_last_error(context), "did you mean \"English springer\""));
    assert_int_equal(class_of(context, &c, "zebra crossing", &index), NL_ERROR_USAGE);
    assert_non_null(strstr(nl_last_error(context), "1 English springer"));
    const char *bad[] = {"6", "-1", "1.0", "99999999999999999999", "", ",", "1 "};
    for (int i = 0; i < NL_COUNT(bad); i++)
        assert_int_equal(class_of(context, &c, bad[i], &index), NL_ERROR_USAGE);
    nl_config_free(context, &c);

    assert_ok(context, parse("{" SIT "}", &c));
    assert_ok(context, class_of(context, &c, "999", &index));
    assert_int_equal(class_of(context, &c, "tench", &index), NL_ERROR_USAGE);
    assert_ok(context, parse("{" SIT ",\"num_classes\":0}", &c));
    assert_ok(context, class_of(context, &c, "null", &index));
    assert_int_equal(index, 0);
    assert_int_equal(class_of(context, &c, "0", &index), NL_ERROR_USAGE);
}

/* ---- Checkpoints */

/* A file with the tensors that tell the sizes, and metadata or not. */
typedef struct test_sizes {
    const char *metadata, *path;
    bool nala, no_gate, lepe;
    int depth, hidden, patch, channels, classes, head_channels, grid;
} test_sizes;

static nl_status from_file(const test_sizes *sizes, const char *architecture, nl_config *config)
{
    nl_tensor_header headers[32];
    char names[32][64];
    int n = 0;
    int64_t d = sizes->hidden, p = sizes->patch,
            rows = (sizes->nala && !sizes->no_gate ? 4 : 3) * d;
#define ADD(ndims, ...)                                                                            \
    headers[n] = (nl_tensor_header){names[n], NL_U8, ndims, {__VA_ARGS__}};                        \
    n++
    snprintf(names[n], 64, "x_embedder.proj.weight");
    ADD(4, d, sizes->channels, p, p);
    snprintf(names[n], 64, "y_embedder.embedding_table.weight");
    ADD(2, sizes->classes + 1, d);
    snprintf(names[n], 64, "final_layer.linear.weight");
    ADD(2, p * p * sizes->head_channels, d);
    for (int i = 0; i < sizes->depth; i++) {
        snprintf(names[n], 64, "blocks.%d.attn.%s.weight", i, sizes->nala ? "qkvg" : "qkv");
        ADD(2, rows, d);
    }
    if (sizes->lepe) {
        snprintf(names[n], 64, "blocks.0.attn.lepe.weight");
        ADD(4, d, 1, 5, 5);
    }
    if (sizes->grid) {
        snprintf(names[n], 64, "pos_embed");
        ADD(3, 1, sizes->grid, d);
    }
    const char *metadata[] = {"nalagen", sizes->metadata, NULL};
    nl_safetensors_writer *writer = NULL;
    nl_checkpoint *checkpoint = NULL;
    assert_ok(context,
              nl_safetensors_create(context, sizes->path, true, sizes->metadata ? metadata : NULL,
                                    headers, n, &writer));
    for (int i = 0; i < n; i++) {
        nl_tensor tensor = nl_tensor_of(NULL, NL_U8, headers[i].ndim, headers[i].shape);
        void *zeros = calloc(1, (size_t)nl_tensor_bytes(&tensor));
        assert_ok(context, nl_safetensors_write(writer, zeros, nl_tensor_bytes(&tensor)));
        free(zeros);
    }
    assert_ok(context, nl_safetensors_commit(&writer));
    assert_ok(context, nl_checkpoint_open(context, sizes->path, &checkpoint));
    log_text[0] = 0;
    nl_status status = nl_config_from_checkpoint(checkpoint, architecture, config);
    nl_checkpoint_close(checkpoint);
    remove(sizes->path);
    return status;
}

static const test_sizes public_dit = {.path = "test_config_DiT-XL-2-256x256.safetensors",
                                      .depth = 3,
                                      .hidden = 1152,
                                      .patch = 2,
                                      .channels = 4,
                                      .classes = 1000,
                                      .head_channels = 8,
                                      .grid = 256};

static void infers_a_public_file(void **state)
{
    (void)state;
    nl_config c;
    assert_ok(context, from_file(&public_dit, NULL, &c));
    assert_int_equal(c.architecture, NL_ARCH_DIT);
    assert_int_equal(c.attention, NL_ATTENTION_SOFTMAX);
    assert_true(c.depth == 3 && c.hidden_size == 1152 && c.num_heads == 16 && c.patch_size == 2);
    assert_true(c.in_channels == 4 && c.num_classes == 1000 && c.learn_sigma);
    assert_true(c.input_height == 32 && c.input_width == 32);
    assert_int_equal(c.variance, NL_VARIANCE_LEARNED_RANGE);
    assert_int_equal(c.autoencoder, NL_AUTOENCODER_KL);
    assert_non_null(strstr(log_text, "taken for DiT-3x1152x16/2"));
    assert_non_null(strstr(log_text, "its name"));
    assert_ok(context, from_file(&public_dit, "SiT", &c)); /* what is said goes before the name */
    assert_int_equal(c.architecture, NL_ARCH_SIT);
}

static void infers_other_sizes(void **state)
{
    (void)state;
    nl_config c;
    test_sizes sizes = public_dit;
    sizes.path = "test_config_nalasit.safetensors";
    sizes.nala = sizes.lepe = true;
    sizes.hidden = 192;
    sizes.patch = 4;
    sizes.head_channels = 4;
    sizes.grid = 64;
    sizes.classes = 0;
    assert_ok(context, from_file(&sizes, NULL, &c));
    assert_int_equal(c.architecture, NL_ARCH_SIT);
    assert_int_equal(c.attention, NL_ATTENTION_NALA);
    assert_true(c.gate && c.lepe && !c.learn_sigma && c.num_heads == 3 && c.num_classes == 0);
    assert_true(c.input_height == 32 && c.variance == NL_VARIANCE_FIXED_LARGE);
    sizes.grid = 0;
    sizes.no_gate = true;
    sizes.channels = 3;
    sizes.head_channels = 3;
    assert_ok(context, from_file(&sizes, "NaLaDiT", &c));
    assert_true(!c.gate && c.input_height == 32 && c.autoencoder == NL_AUTOENCODER_NONE);
    assert_int_equal(c.architecture, NL_ARCH_DIT);
    sizes.grid = 17; /* not a square: not read, 32 assumed */
    assert_ok(context, from_file(&sizes, NULL, &c));
    assert_int_equal(c.input_height, 32);
}

static void refuses_what_it_cannot_tell(void **state)
{
    (void)state;
    nl_config c;
    test_sizes sizes = public_dit;
    sizes.path = "test_config_ema.safetensors";
    assert_int_equal(from_file(&sizes, NULL, &c), NL_ERROR_INPUT);
    assert_non_null(strstr(nl_last_error(context), "give the architecture"));
    assert_int_equal(from_file(&sizes, "NaLaDiT", &c), NL_ERROR_USAGE);
    assert_non_null(strstr(nl_last_error(context), "softmax attention"));
    assert_int_equal(from_file(&sizes, "Dit-XL", &c), NL_ERROR_USAGE);
    sizes.head_channels = 5;
    assert_int_equal(from_file(&sizes, "DiT", &c), NL_ERROR_INPUT);
    assert_non_null(strstr(nl_last_error(context), "final_layer.linear.weight has 20 rows"));
    sizes = public_dit;
    sizes.depth = 0;
    assert_int_equal(from_file(&sizes, NULL, &c), NL_ERROR_INPUT);
    assert_non_null(strstr(nl_last_error(context), "blocks.0.attn.qkv.weight"));
    sizes = public_dit;
    sizes.patch = 3;
    assert_int_equal(from_file(&sizes, NULL, &c), NL_ERROR_INPUT);
    assert_non_null(strstr(nl_last_error(context), "patch_size"));
}

static void reads_metadata(void **state)
{
    (void)state;
    nl_config c;
    test_sizes sizes = public_dit;
    sizes.metadata =
        "{\"architecture\":\"SiT\",\"num_heads\":18,\"path\":\"gvp\",\"input_size\":64}";
    assert_ok(context, from_file(&sizes, NULL, &c));
    assert_int_equal(c.architecture, NL_ARCH_SIT);
    assert_true(c.depth == 3 && c.hidden_size == 1152 && c.num_heads == 18 && c.learn_sigma);
    assert_true(c.path == NL_PATH_GVP && c.input_height == 64);
    assert_string_equal(log_text, "");
    assert_ok(context, from_file(&sizes, "SiT", &c));
    assert_int_equal(from_file(&sizes, "DiT", &c), NL_ERROR_USAGE);
    assert_non_null(strstr(nl_last_error(context), "the file says that it is SiT-3x1152x18/2"));
    sizes.metadata = "{\"architecture\":\"SiT\",\"depth\":28}";
    assert_int_equal(from_file(&sizes, NULL, &c), NL_ERROR_INPUT);
    assert_non_null(strstr(nl_last_error(context), "its configuration says 28, its tensors say 3"));
    sizes.metadata = "{\"architecture\":\"SiT\",\"attention\":\"nala\"}";
    assert_int_equal(from_file(&sizes, NULL, &c), NL_ERROR_INPUT);
    assert_non_null(strstr(nl_last_error(context), "says nala, its tensors say softmax"));
    sizes.metadata = "{\"depth\":3}";
    assert_int_equal(from_file(&sizes, NULL, &c), NL_ERROR_INPUT);
    assert_non_null(strstr(nl_last_error(context), "metadata nalagen"));
    sizes.metadata = "not json";
    assert_int_equal(from_file(&sizes, NULL, &c), NL_ERROR_INPUT);
}

static void the_shipped_model(void **state)
{
    (void)state;
    nl_checkpoint *checkpoint = NULL;
    nl_config c;
    char text[64];
    int index;
    assert_ok(context, nl_checkpoint_open(
                           context, NL_SOURCE_DIR "/weights/shipped/nalasit-s2-256.safetensors",
                           &checkpoint));
    assert_true(checkpoint->mapping.size <= 37000000);
    assert_ok(context, nl_config_from_checkpoint(checkpoint, NULL, &c));
    assert_string_equal(nl_config_name(&c, text, sizeof(text)), "NaLaSiT-S/2");
    assert_int_equal(c.autoencoder, NL_AUTOENCODER_TINY);
    assert_ok(context, class_of(context, &c, "church", &index));
    assert_int_equal(index, 14);
    assert_ok(context, class_of(context, &c, "n03888257", &index));
    assert_int_equal(index, 19);
    assert_non_null(c.license);
    nl_config_free(context, &c);
    nl_checkpoint_close(checkpoint);
}

static void every_allocation_fails_once(void **state)
{
    (void)state;
    const char json[] = "{" SIT ",\"num_classes\":2,\"class_names\":[[\"n00000001\",\"a\"],\"b\"],"
                        "\"license\":\"x\",\"trained_on\":\"y\"}";
    int64_t used = context->memory_used;
    nl_config config;
    nl_config_init(&config);
    for (int failures = 0;; failures++) {
        context->fail_allocation = context->allocations + 1 + failures;
        nl_status status = nl_config_parse(context, "test.json", json, strlen(json), &config);
        context->fail_allocation = 0;
        if (status == NL_OK)
            break;
        assert_int_equal(status, NL_ERROR_MEMORY);
        assert_int_equal(context->memory_used, used);
        assert_true(failures < 100);
    }
    nl_config copy;
    used = context->memory_used;
    for (int failures = 0;; failures++) {
        context->fail_allocation = context->allocations + 1 + failures;
        nl_status status = nl_config_copy(context, &config, &copy);
        context->fail_allocation = 0;
        if (status == NL_OK)
            break;
        assert_int_equal(context->memory_used, used);
    }
    assert_string_equal(copy.class_names[0].name, "a");
    nl_config_free(context, &copy);
    nl_config_free(context, &config);
}

/* Folders 0 to 11, sorted as text: the name counts, not the place. Case decides where it can. */
static void classes_called_like_something_else(void **state)
{
    (void)state;
    nl_context *other = test_context(NULL);
    nl_config c;
    static const char json[] = "{\"architecture\":\"SiT\",\"depth\":1,\"hidden_size\":64,"
                               "\"num_classes\":9,\"class_names\":[\"0\",\"1\",\"10\",\"11\",\"2\","
                               "\"Dog\",\"dog\",\"null\",\"1-3\"]}";
    static const struct {
        const char *text;
        int index;
    } cases[] = {{"2", 4},   {"10", 2},        {"11", 3},       {"3", 3},    {"Dog", 5},
                 {"dog", 6}, {"name:null", 7}, {"name:1-3", 8}, {"null", 9}, {"8", 8}};
    nl_config_init(&c);
    assert_ok(other, nl_config_parse(other, "test", json, sizeof(json) - 1, &c));
    for (int i = 0; i < NL_COUNT(cases); i++) {
        int index = -1;
        assert_ok(other, class_of(other, &c, cases[i].text, &index));
        assert_int_equal(index, cases[i].index);
    }
    int index;
    assert_int_equal(class_of(other, &c, "name:3", &index), NL_ERROR_USAGE);
    nl_class_name a = {NULL, "church"}, b = {"church", "church, church building"};
    assert_true(nl_class_name_equal(&a, &b));
    a.name = "golf ball";
    assert_false(nl_class_name_equal(&a, &b));
    nl_config_free(other, &c);
    nl_core_context_destroy(other);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(classes_called_like_something_else),
        cmocka_unit_test(defaults),
        cmocka_unit_test(defaults_that_follow),
        cmocka_unit_test(wrong_values),
        cmocka_unit_test(unknown_keys),
        cmocka_unit_test(keys_of_another_architecture),
        cmocka_unit_test(class_names),
        cmocka_unit_test(a_failure_changes_nothing),
        cmocka_unit_test(built_configurations_are_checked),
        cmocka_unit_test(printing_round_trips),
        cmocka_unit_test(names),
        cmocka_unit_test(classes),
        cmocka_unit_test(infers_a_public_file),
        cmocka_unit_test(infers_other_sizes),
        cmocka_unit_test(refuses_what_it_cannot_tell),
        cmocka_unit_test(reads_metadata),
        cmocka_unit_test(the_shipped_model),
        cmocka_unit_test(every_allocation_fails_once),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
