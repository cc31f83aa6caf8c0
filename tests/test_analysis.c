/* SPDX-License-Identifier: MIT */
/* What nalagen analyze says about attention: entropies and correlations that are known, distributions against the
 * golden features and against what the network itself computes. */
#include "nl_test.h"

#include <unistd.h>

#include "nl_analysis.h"
#include "nl_dit_train.h"
#include "nl_random.h"
#include "random_model.h"

/* cmocka's assert_float_equal compares floats. NaN is near nothing. */
#define assert_near(a, b, distance)                                                                \
    do {                                                                                           \
        double assert_near_a = (a), assert_near_b = (b);                                           \
        if (!(fabs(assert_near_a - assert_near_b) <= (distance)))                                  \
            fail_msg("%s is %.17g, expected %.17g", #a, assert_near_a, assert_near_b);             \
    } while (0)

/* ---- Entropy */

static void entropies_that_are_known(void **state)
{
    (void)state;
    assert_near(nl_entropy((double[]){1, 1, 1, 1}, 4), log(4), 1e-14);
    assert_near(nl_entropy((double[]){0, 0, 3, 0}, 4), 0, 0);
    assert_near(nl_entropy((double[]){7, 7, 0, 0}, 4), log(2), 1e-14);
    assert_near(nl_entropy((double[]){1, 2, 1}, 3), 1.5 * log(2), 1e-14); /* 1/4 1/2 1/4 */
    assert_near(nl_entropy((double[]){1e-300, 1e-300}, 2), log(2), 1e-14);
    assert_true(isnan(nl_entropy((double[]){0, 0}, 2)));
    /* geometric: p_i = (1 - r) r^i has entropy -(ln(1 - r) + r / (1 - r) ln r) */
    double weights[2000], r = 0.9;
    for (int i = 0; i < 2000; i++)
        weights[i] = pow(r, i);
    assert_near(nl_entropy(weights, 2000), -(log(1 - r) + r / (1 - r) * log(r)), 1e-12);
}

/* Keys on the axes: the softmax distribution of a query is that of its own coordinates. */
static void softmax_of_known_scores(void **state)
{
    (void)state;
    nl_context *context = test_context(NULL);
    nl_attention_rule rule = {.attention = NL_ATTENTION_SOFTMAX};
    nl_keys *keys = NULL;
    float k[16] = {0}, q[4] = {0, 2, 2000, 0}; /* over sqrt(4): scores 0, 1, 1000, 0 */
    double weights[4];
    for (int i = 0; i < 4; i++)
        k[4 * i + i] = 1;
    assert_ok(context, nl_keys_create(context, &rule, k, 4, 4, 4, &keys));
    nl_keys_weights(keys, q, weights);
    assert_near(weights[2], 1, 1e-12); /* and nothing overflows */
    q[2] = 0;
    nl_keys_weights(keys, q, weights);
    double e = exp(1), sum = 3 + e;
    assert_near(weights[1], e / sum, 1e-12);
    assert_near(weights[3], 1 / sum, 1e-12);
    assert_near(nl_entropy(weights, 4), log(sum) - e / sum, 1e-12);
    nl_keys_destroy(keys);
    nl_core_context_destroy(context);
}

/* Softmax sharpens with the norm of the query. A linear attention over relu does not; NaLa's exponent does. */
static void the_norm_matters_to_some(void **state)
{
    (void)state;
    enum { TOKENS = 32, D = 16, RULES = 3 };
    nl_context *context = test_context(NULL);
    const nl_attention_rule rules[RULES] = {
        {.attention = NL_ATTENTION_SOFTMAX},
        {NL_ATTENTION_NALA, NL_FEATURES_COSINE, 3, 0.5, 1},
        {NL_ATTENTION_NALA, NL_FEATURES_RELU, 3, 0.5, 1},
    };
    float k[TOKENS * D], q[D], longer[D];
    double weights[TOKENS];
    for (uint64_t i = 0; i < TOKENS * D / 4; i++)
        nl_philox_normal4(1, 0, 0, i, k + 4 * i);
    for (uint64_t i = 0; i < D / 4; i++)
        nl_philox_normal4(2, 0, 0, i, q + 4 * i);
    for (int i = 0; i < D; i++) {
        q[i] *= 0.05f;
        longer[i] = 4 * q[i];
    }
    for (int i = 0; i < RULES; i++) {
        nl_keys *keys = NULL;
        assert_ok(context, nl_keys_create(context, &rules[i], k, TOKENS, D, D, &keys));
        nl_keys_weights(keys, q, weights);
        double before = nl_entropy(weights, TOKENS);
        nl_keys_weights(keys, longer, weights);
        double after = nl_entropy(weights, TOKENS);
        if (i < 2)
            assert_true(after < before - 1e-3);
        else
            assert_near(after, before, 1e-6);
        nl_keys_destroy(keys);
    }
    nl_core_context_destroy(context);
}

/* ---- Correlation */

static void correlations_that_are_known(void **state)
{
    (void)state;
    nl_context *context = test_context(NULL);
    const double x[] = {1, 2, 3, 4, 5}, y[] = {1, 8, 27, 64, 125}, down[] = {10, 8, 6, 4, 2};
    const double ties[] = {1, 2, 2, 3}, others[] = {1, 3, 2, 4}, same[] = {2, 2, 2, 2, 2};
    double rho;
    assert_near(nl_pearson(x, down, 5), -1, 1e-14);
    assert_near(nl_pearson(x, y, 5), 304 / sqrt(10 * 10390.0), 1e-14);
    assert_ok(context, nl_spearman(context, x, y, 5, &rho));
    assert_near(rho, 1, 1e-14);
    assert_ok(context, nl_spearman(context, y, down, 5, &rho));
    assert_near(rho, -1, 1e-14);
    /* ranks 0, 1.5, 1.5, 3 with 0, 2, 1, 3: 4.5 / sqrt(4.5 * 5) */
    assert_ok(context, nl_spearman(context, ties, others, 4, &rho));
    assert_near(rho, 4.5 / sqrt(22.5), 1e-14);
    assert_true(isnan(nl_pearson(x, same, 5)));
    assert_true(isnan(nl_pearson(x, y, 0)));
    nl_core_context_destroy(context);
}

/* ---- Golden queries and keys */

enum { HEADS = 2, TOKENS = 64 };

/* The distribution by features that PyTorch computed, and sum_j w_j v_j against its output. */
static void golden(const char *name, int64_t d)
{
    test_need_golden(name);
    nl_context *context = test_context(NULL);
    nl_checkpoint *file = test_golden(context, name);
    float *q = test_read(file, "q", NULL), *k = test_read(file, "k", NULL);
    float *v = test_read(file, "v", NULL), *expected = test_read(file, "out", NULL);
    float *phi_q = test_read(file, "features_q", NULL),
          *phi_k = test_read(file, "features_k", NULL);
    nl_attention_rule nala = {NL_ATTENTION_NALA, NL_FEATURES_COSINE, 3, 0.5, 1};
    nl_attention_rule softmax = {.attention = NL_ATTENTION_SOFTMAX};
    float *out = calloc((size_t)(HEADS * TOKENS * d), sizeof(*out));
    double weights[TOKENS], direct[TOKENS], far = 0;
    int64_t compared = 0;
    for (int64_t head = 0; head < HEADS; head++) {
        nl_keys *keys[2] = {NULL};
        int64_t first = head * TOKENS;
        assert_ok(context, nl_keys_create(context, &nala, k + first * d, TOKENS, d, d, &keys[0]));
        assert_ok(context,
                  nl_keys_create(context, &softmax, k + first * d, TOKENS, d, d, &keys[1]));
        for (int64_t t = first; t < first + TOKENS; t++) {
            nl_keys_weights(keys[0], q + t * d, weights);
            for (int j = 0; j < TOKENS; j++) {
                direct[j] = 0;
                for (int64_t i = 0; i < 2 * d; i++)
                    direct[j] += (double)phi_q[t * 2 * d + i] * phi_k[(first + j) * 2 * d + i];
                for (int64_t i = 0; i < d; i++)
                    out[t * d + i] += (float)(weights[j] * v[(first + j) * d + i]);
            }
            double entropy = nl_entropy(weights, TOKENS);
            if (!isnan(entropy)) {
                far = fmax(far, fabs(entropy - nl_entropy(direct, TOKENS)));
                compared++;
            }
            nl_keys_weights(keys[1], q + t * d, weights);
            for (int j = 0; j < TOKENS; j++) {
                double score = 0;
                for (int64_t i = 0; i < d; i++)
                    score += (double)q[t * d + i] * k[(first + j) * d + i];
                direct[j] = exp(score / sqrt((double)d));
            }
            assert_near(nl_entropy(weights, TOKENS), nl_entropy(direct, TOKENS), 1e-9);
        }
        nl_keys_destroy(keys[0]);
        nl_keys_destroy(keys[1]);
    }
    print_message("%s: entropies %.2g, output %.2g, %lld queries\n", name, far,
                  test_relative_error(out, expected, HEADS * TOKENS * d), (long long)compared);
    assert_true(far < 1e-5 && compared >= HEADS * TOKENS - 4);
    assert_close(out, expected, HEADS * TOKENS * d, 1e-5);
    float *all[] = {q, k, v, expected, phi_q, phi_k, out};
    for (int i = 0; i < NL_COUNT(all); i++)
        free(all[i]);
    nl_checkpoint_close(file);
    nl_core_context_destroy(context);
}

static void golden_d64(void **state)
{
    (void)state;
    golden("nala_attention_d64.safetensors", 64);
}

static void golden_d72(void **state)
{
    (void)state;
    golden("nala_attention_d72.safetensors", 72);
}

/* ---- A whole model */

enum { SIZE = 64, MODEL_TOKENS = 64, D = 32, PIXELS = 3 * 16 * 16 };

static void write_model(nl_context *context, const char *json, char *path)
{
    close(mkstemp(path));
    assert_ok(context, random_model_write(context, json, path));
}

typedef struct nl_pair {
    int count;
    float latents[2][PIXELS];
} nl_pair;

static nl_status keep(void *user, const nl_picture *picture)
{
    nl_pair *pair = user;
    memcpy(pair->latents[pair->count++], picture->latents, sizeof(pair->latents[0]));
    return NL_OK;
}

static nl_status keep_analyzed(void *user, const nl_analysis *analysis, const nl_picture *picture)
{
    assert_int_equal(analysis->pictures, ((nl_pair *)user)->count + 1);
    return keep(user, picture);
}

/* One head as the network computed it: norms and entropies are those of its q and k, and the weights times its v are
 * its output. at: of the first of the points. */
static void compare_head(const nl_analysis *analysis, const nl_block_saved *saved, int layer,
                         int head, int64_t at)
{
    int own = analysis->config->attention;
    const nl_tensor *kept = saved->branches[NL_BRANCH_MIXER].kept, *qkv = &kept[NL_KEPT_QKV];
    int64_t columns = qkv->shape[1];
    const float *q = (const float *)qkv->data + head * D, *k = q + SIZE, *v = k + SIZE;
    const float *expected = (const float *)kept[NL_KEPT_ATTENTION].data + head * D;
    float out[MODEL_TOKENS * D] = {0}, wanted[MODEL_TOKENS * D];
    double weights[MODEL_TOKENS];
    nl_keys *keys = NULL;
    nl_attention_rule rule = nl_analysis_rule(analysis, (nl_attention)own, layer, head);
    assert_ok(analysis->context,
              nl_keys_create(analysis->context, &rule, k, MODEL_TOKENS, D, columns, &keys));
    for (int i = 0; i < MODEL_TOKENS; i++, q += columns) {
        double squares = 0;
        nl_keys_weights(keys, q, weights);
        for (int j = 0; j < D; j++) {
            squares += (double)q[j] * q[j];
            wanted[i * D + j] = expected[i * SIZE + j];
            for (int token = 0; token < MODEL_TOKENS; token++)
                out[i * D + j] += (float)(weights[token] * v[token * columns + j]);
        }
        assert_near(analysis->norm[at + i], sqrt(squares), 1e-6);
        assert_near(analysis->entropy[own][at + i], nl_entropy(weights, MODEL_TOKENS), 1e-6);
    }
    assert_close(out, wanted, MODEL_TOKENS * D, 1e-4);
    nl_keys_destroy(keys);
}

/* As nl_analyze looks at the same run. */
static nl_status compare_with_network(void *user, const nl_observation *seen)
{
    const nl_analysis *analysis = user;
    nl_context *context = analysis->context;
    nl_device *device = seen->device;
    int64_t mark = nl_arena_mark(device);
    nl_tensor t, prediction;
    nl_dit_saved saved;
    float time = (float)seen->t;
    assert_ok(context, nl_arena_tensor(device, NL_F32, 1, (int64_t[]){1}, &t));
    assert_ok(context, nl_arena_tensor(device, NL_F32, 4, seen->x.shape, &prediction));
    assert_ok(context, device->ops->upload(device, t.data, &time, sizeof(time)));
    assert_ok(context, nl_dit_forward_saving(seen->dit, device, &seen->x, &t, &seen->labels,
                                             seen->crop, false, NULL, &prediction, NULL, &saved));
    for (int i = 0; !device->measuring && i < 2 * 2 * 2; i++) { /* times, layers, heads */
        int step = i / 4, layer = i / 2 % 2, head = i % 2;
        if (analysis->step[step] != seen->step)
            continue;
        assert_true(analysis->t[step] == seen->t);
        compare_head(analysis, &saved.blocks[layer], layer, head,
                     (seen->first * 8 + i) * MODEL_TOKENS);
    }
    nl_dit_saved_free(device, &saved);
    nl_arena_release(device, mark);
    return NL_OK;
}

static void check_maps(const nl_analysis *analysis)
{
    for (int i = 0; i < 2 * 2 * 3; i++) {
        double sum = 0;
        for (int token = 0; token < MODEL_TOKENS; token++) {
            assert_true(analysis->maps[i * MODEL_TOKENS + token] >= 0);
            sum += analysis->maps[i * MODEL_TOKENS + token];
        }
        assert_near(sum, 1, 1e-9);
    }
}

/* Looking changes no picture, is the same again, and sees what the network computes. */
static void whole_model(const char *json, const char *sampler)
{
    static nl_pair plain, seen;
    nl_context *context = test_context("cpu");
    char path[] = "/tmp/nalagen_analysis_XXXXXX";
    nl_model *model = NULL;
    nl_analysis *one = NULL, *two = NULL;
    plain.count = seen.count = 0;
    write_model(context, json, path);
    assert_ok(context, nl_model_load(context, &(nl_model_options){.path = path}, &model));
    nl_request request = {.labels = (int[]){1, 3}, .count = 2, .seed = 5};
    request.sampling = (nl_sampling){.sampler = sampler, .steps = 5, .cfg_scale = 2};
    nl_analysis_options options = {.at = (double[]){0, 0.6},
                                   .times = 2,
                                   .layers = (int[]){0, 1},
                                   .layer_count = 2,
                                   .queries = (int[]){0, 35, 63},
                                   .query_count = 3};
    assert_ok(context, nl_generate(model, &request, keep, &plain));
    assert_ok(context, nl_analyze(context, model, &request, &options, keep_analyzed, &seen, &one));
    assert_ok(context, nl_analyze(context, model, &request, &options, NULL, NULL, &two));
    assert_close(seen.latents[0], plain.latents[0], 2 * PIXELS, 1e-6); /* batches of one and two */
    assert_int_equal(one->count, 2 * 2 * 2 * 2 * MODEL_TOKENS);
    assert_true(one->steps == 5 && one->step[0] == 0 && one->step[1] == 2);
    for (int64_t i = 0; i < one->count; i++)
        for (int rule = 0; rule < NL_RULES; rule++) {
            assert_true(one->entropy[rule][i] > 0 &&
                        one->entropy[rule][i] <= log(MODEL_TOKENS) + 1e-9);
            assert_true(one->entropy[rule][i] == two->entropy[rule][i]);
        }
    check_maps(one);
    request.batch = 1;
    seen.count = 0;
    assert_ok(context,
              nl_generate_observed(model, &request, &(nl_observer){compare_with_network, one}, keep,
                                   &seen));
    nl_analysis_destroy(one);
    nl_analysis_destroy(two);
    nl_model_destroy(model);
    nl_context_destroy(context);
    unlink(path);
}

static void whole_nalasit(void **state)
{
    (void)state;
    whole_model(RANDOM_SIT, "heun");
}

static void whole_with_exponents(void **state)
{
    (void)state;
    whole_model(RANDOM_SIT_WITH(", \"learn_exponents\": true"), "euler");
}

static void whole_dit(void **state)
{
    (void)state;
    whole_model(RANDOM_DIT, "ddpm");
}

static void selections(void **state)
{
    (void)state;
    double norm[16], entropy[16], x[16], y[16];
    for (int i = 0; i < 16; i++) {
        norm[i] = i;
        entropy[i] = i == 5 ? NAN : -i;
    }
    nl_analysis analysis = {.options = {.times = 2, .layer_count = 2},
                            .tokens = 2,
                            .heads = 2,
                            .count = 16,
                            .norm = norm,
                            .entropy = {entropy, norm}};
    assert_int_equal(nl_analysis_select(&analysis, 0, (nl_selection){-1, -1, -1}, x, y), 15);
    assert_int_equal(nl_analysis_select(&analysis, 0, (nl_selection){0, 1, -1}, x, y), 3);
    assert_true(x[0] == 4 && y[0] == -4 && x[1] == 6 && x[2] == 7);
    assert_int_equal(nl_analysis_select(&analysis, 1, (nl_selection){1, 0, 1}, x, y), 2);
    assert_true(x[0] == 10 && x[1] == 11 && y[1] == 11);
}

static void wrong_options(void **state)
{
    (void)state;
    nl_context *context = test_context("cpu");
    char path[] = "/tmp/nalagen_analysis_XXXXXX";
    nl_model *model = NULL;
    nl_analysis *analysis = NULL;
    write_model(context, RANDOM_SIT, path);
    assert_ok(context, nl_model_load(context, &(nl_model_options){.path = path}, &model));
    nl_request request = {.labels = (int[]){1}, .count = 1, .sampling = NL_SAMPLING_DEFAULT};
    request.sampling.steps = 2;
    const nl_analysis_options good = {(double[]){0.5}, 1, (int[]){1}, 1, (int[]){0}, 1};
    nl_analysis_options wrong[6] = {good, good, good, good, good, good};
    wrong[0].at = (double[]){1.01};
    wrong[1].at = (double[]){NAN};
    wrong[2].layers = (int[]){2};
    wrong[3].layers = (int[]){-1};
    wrong[4].queries = (int[]){MODEL_TOKENS};
    wrong[5].times = 0;
    for (int i = 0; i < NL_COUNT(wrong); i++) {
        assert_int_equal(nl_analyze(context, model, &request, &wrong[i], NULL, NULL, &analysis),
                         NL_ERROR_USAGE);
        assert_null(analysis);
    }
    request.sampling.sampler = "dopri5";
    assert_int_equal(nl_analyze(context, model, &request, &good, NULL, NULL, &analysis),
                     NL_ERROR_USAGE);
    assert_non_null(strstr(nl_last_error(context), "dopri5"));
    request.sampling.sampler = "euler";
    for (int64_t n = 1;; n++) { /* no memory at every allocation */
        int64_t before = atomic_load(&context->allocations);
        context->fail_allocation = before + n;
        nl_status status = nl_analyze(context, model, &request, &good, NULL, NULL, &analysis);
        bool whole = atomic_load(&context->allocations) < before + n;
        assert_int_equal(status, status == NL_OK ? NL_OK : NL_ERROR_MEMORY);
        nl_analysis_destroy(analysis);
        analysis = NULL;
        if (whole)
            break;
        assert_true(n < 10000);
    }
    nl_model_destroy(model);
    nl_context_destroy(context);
    unlink(path);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(entropies_that_are_known),
        cmocka_unit_test(softmax_of_known_scores),
        cmocka_unit_test(the_norm_matters_to_some),
        cmocka_unit_test(correlations_that_are_known),
        cmocka_unit_test(golden_d64),
        cmocka_unit_test(golden_d72),
        cmocka_unit_test(whole_nalasit),
        cmocka_unit_test(whole_with_exponents),
        cmocka_unit_test(whole_dit),
        cmocka_unit_test(selections),
        cmocka_unit_test(wrong_options),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
