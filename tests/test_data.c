/* SPDX-License-Identifier: MIT */
/* Data sets and the loader: the order of samples, restarts, ranks, what is drawn, damaged files. */
#include <unistd.h>

#include "data_folder.h"

/* ---- Order */

static void test_order_is_a_bijection(void **state)
{
    (void)state;
    static const int64_t counts[] = {1, 2, 3, 4, 5, 16, 17, 63, 1000, 4097};
    for (int i = 0; i < NL_COUNT(counts); i++)
        for (int64_t epoch = 0; epoch < 3; epoch++) {
            int64_t n = counts[i];
            char *seen = calloc((size_t)n, 1);
            for (int64_t position = 0; position < n; position++) {
                int64_t index = nl_data_order(42, n, epoch * n + position);
                assert_in_range(index, 0, n - 1);
                assert_int_equal(seen[index]++, 0);
            }
            free(seen);
        }
}

static int64_t same_places(uint64_t seed_a, int64_t epoch_a, uint64_t seed_b, int64_t epoch_b,
                           int64_t n)
{
    int64_t same = 0;
    for (int64_t i = 0; i < n; i++)
        same +=
            nl_data_order(seed_a, n, epoch_a * n + i) == nl_data_order(seed_b, n, epoch_b * n + i);
    return same;
}

/* Two random permutations agree in one place on average, whatever their size (Poisson). */
static void test_order_differs_by_seed_and_epoch(void **state)
{
    (void)state;
    assert_in_range(same_places(1, 0, 2, 0, 10000), 0, 8);
    assert_in_range(same_places(1, 0, 1, 1, 10000), 0, 8);
    assert_in_range(same_places(1, 0, UINT64_C(1) | UINT64_C(1) << 40, 0, 10000), 0, 8);
    assert_int_equal(same_places(1, 7, 1, 7, 100), 100);
}

/* Every index comes to every place equally often: chi-square over epochs, for a size whose domain is tiny. */
static void test_order_is_even(void **state)
{
    (void)state;
    enum { N = 10, EPOCHS = 20000 };
    int64_t counts[N][N] = {{0}};
    for (int64_t sample = 0; sample < (int64_t)N * EPOCHS; sample++)
        counts[sample % N][nl_data_order(7, N, sample)]++;
    double chi = 0, expected = (double)EPOCHS / N;
    for (int i = 0; i < N; i++)
        for (int j = 0; j < N; j++)
            chi += ((double)counts[i][j] - expected) * ((double)counts[i][j] - expected) / expected;
    if (!(chi < 81 + 5 * sqrt(2 * 81.0))) /* 81 degrees of freedom, five sigma */
        fail_msg("chi-square %.1f with 81 degrees of freedom", chi);
}

/* ---- Loader */

enum { EACH = 7, SIZE = 8, COUNT = 3 * EACH, PIXELS = 3 * SIZE * SIZE };

static nl_dataset *small_dataset(nl_context *context, int crops)
{
    write_classes(context, EACH, SIZE, SIZE);
    nl_encode_options options = pixel_options(SIZE);
    options.shard_pictures = 4;
    options.crops = crops;
    return encode_and_open(context, &options);
}

static nl_loader *open_loader(nl_context *context, const nl_dataset *dataset,
                              nl_loader_options options)
{
    nl_loader *loader = NULL;
    assert_ok(context, nl_loader_create(dataset, &options, &loader));
    return loader;
}

/* What a sample must be, from first principles. */
static void check_sample(const nl_loader_options *o, const nl_batch *batch, int64_t i)
{
    int64_t sample = batch->samples[i], index = batch->indices[i];
    uint8_t rgb[PIXELS];
    draw_picture(index, SIZE, SIZE, rgb);
    if (!o->in_order)
        assert_int_equal(index, nl_data_order(o->seed, COUNT, sample));
    assert_true(batch->labels[i] == index / EACH || batch->labels[i] == 3);
    for (int c = 0; c < 3; c++)
        for (int y = 0; y < SIZE; y++)
            for (int x = 0; x < SIZE; x++) {
                int from = batch->flipped[i] ? SIZE - 1 - x : x;
                float expected = (float)rgb[(y * SIZE + from) * 3 + c] / 127.5f - 1;
                assert_true(batch->x[i * PIXELS + (c * SIZE + y) * SIZE + x] == expected);
            }
}

static void test_loader_gives_the_pictures(void **state)
{
    (void)state;
    nl_context *context = test_context(NULL);
    nl_dataset *dataset = small_dataset(context, 1);
    const nl_dataset_info *info = nl_dataset_get_info(dataset);
    assert_int_equal(info->kind, NL_DATA_PIXELS);
    assert_int_equal(info->count, COUNT);
    assert_int_equal(info->sample_channels, 3);
    assert_int_equal(info->classes, 3);
    assert_string_equal(info->class_ids[2], "c");
    assert_int_equal(info->class_counts[1], EACH);
    for (int prefetch = 0; prefetch <= 3; prefetch += 3) {
        nl_loader_options options = {
            .seed = 5, .batch = 5, .flip = true, .label_dropout = 0.3, .prefetch = prefetch};
        nl_loader *loader = open_loader(context, dataset, options);
        int64_t flipped = 0, dropped = 0, steps = 400;
        for (int64_t step = 0; step < steps; step++) {
            nl_batch batch;
            assert_ok(context, nl_loader_next(loader, &batch));
            assert_int_equal(batch.step, step);
            assert_int_equal(batch.size, 5);
            for (int64_t i = 0; i < batch.size; i++) {
                assert_int_equal(batch.samples[i], step * 5 + i);
                check_sample(&options, &batch, i);
                flipped += batch.flipped[i];
                dropped += batch.labels[i] == 3;
            }
            memset(batch.x, 0xff, (size_t)batch.size * PIXELS * sizeof(float)); /* the caller's */
        }
        /* of 2000, five sigma */
        assert_in_range(flipped, 1000 - 112, 1000 + 112);
        assert_in_range(dropped, 600 - 103, 600 + 103);
        nl_loader_destroy(loader);
    }
    nl_dataset_close(dataset);
    nl_core_context_destroy(context);
}

static void assert_same_batch(const nl_batch *a, const nl_batch *b, int64_t offset)
{
    assert_int_equal(a->step, b->step);
    for (int64_t i = 0; i < b->size; i++) {
        assert_int_equal(a->indices[offset + i], b->indices[i]);
        assert_int_equal(a->samples[offset + i], b->samples[i]);
        assert_int_equal(a->labels[offset + i], b->labels[i]);
        assert_int_equal(a->flipped[offset + i], b->flipped[i]);
    }
    assert_memory_equal(a->crops + offset * NL_CROP_NUMBERS, b->crops,
                        (size_t)b->size * NL_CROP_NUMBERS * sizeof(float));
    assert_memory_equal(a->x + offset * PIXELS, b->x, (size_t)b->size * PIXELS * sizeof(float));
}

/* A run that begins at step k gives what one from the start gives at step k; ranks give slices of it. */
static void test_loader_restarts_and_ranks(void **state)
{
    (void)state;
    nl_context *context = test_context(NULL);
    nl_dataset *dataset = small_dataset(context, 3);
    nl_loader_options options = {
        .seed = 9, .batch = 12, .flip = true, .label_dropout = 0.1, .prefetch = 2};
    nl_loader *whole = open_loader(context, dataset, options), *ranks[4], *later[12] = {NULL};
    int cropped = 0;
    for (int rank = 0; rank < 4; rank++) {
        nl_loader_options mine = options;
        mine.rank = rank;
        mine.ranks = 4;
        mine.prefetch = rank;
        ranks[rank] = open_loader(context, dataset, mine);
    }
    for (int64_t step = 0; step < 12; step++) {
        nl_batch batch, part;
        assert_ok(context, nl_loader_next(whole, &batch));
        for (int64_t i = 0; i < batch.size; i++) {
            float crop[NL_CROP_NUMBERS];
            nl_dataset_crop(dataset, batch.indices[i], batch.flipped[i], crop);
            assert_memory_equal(crop, batch.crops + i * NL_CROP_NUMBERS, sizeof(crop));
            assert_true(crop[NL_CROP_SCALE] == 0 || batch.indices[i] >= COUNT);
            cropped += crop[NL_CROP_SCALE] < 0;
        }
        for (int rank = 0; rank < 4; rank++) {
            assert_ok(context, nl_loader_next(ranks[rank], &part));
            assert_int_equal(part.size, 3);
            assert_same_batch(&batch, &part, 3 * rank);
        }
        options.first_step = step;
        later[step] = open_loader(context, dataset, options);
        assert_ok(context, nl_loader_next(later[step], &part));
        assert_same_batch(&batch, &part, 0);
    }
    for (int rank = 0; rank < 4; rank++)
        nl_loader_destroy(ranks[rank]);
    for (int step = 0; step < 12; step++)
        nl_loader_destroy(later[step]); /* with batches made ahead */
    assert_true(cropped > 40);
    nl_loader_destroy(whole);
    nl_dataset_close(dataset);
    nl_core_context_destroy(context);
}

static void test_loader_other_choices(void **state)
{
    (void)state;
    nl_context *context = test_context(NULL);
    nl_dataset *dataset = small_dataset(context, 1);
    nl_loader_options options = {.batch = 4, .in_order = true, .count = 6, .label_dropout = 1};
    int64_t bytes = nl_loader_bytes(dataset, &options);
    assert_true(bytes > 4 * PIXELS * (int64_t)sizeof(float));
    options.memory = aligned_alloc(64, (size_t)bytes);
    nl_loader *loader = open_loader(context, dataset, options);
    nl_batch batch;
    for (int64_t step = 0; step < 5; step++) {
        assert_ok(context, nl_loader_next(loader, &batch));
        assert_ptr_equal(batch.x, options.memory);
        for (int64_t i = 0; i < 4; i++) {
            assert_int_equal(batch.indices[i], (step * 4 + i) % 6);
            assert_int_equal(batch.labels[i], 3);
            assert_false(batch.flipped[i]);
        }
    }
    nl_loader_destroy(loader);
    free(options.memory);

    static const nl_loader_options wrong[] = {
        {.batch = 0},
        {.batch = 5, .ranks = 2},
        {.batch = 4, .ranks = 2, .rank = 2},
        {.batch = 4, .rank = -1},
        {.batch = 4, .count = COUNT + 1},
        {.batch = 4, .label_dropout = 1.5},
        {.batch = 4, .label_dropout = NAN},
        {.batch = 4, .prefetch = -1},
        {.batch = 4, .first_step = -1},
        {.batch = 4, .first_step = INT64_MAX / 4},
    };
    for (int i = 0; i < NL_COUNT(wrong); i++) {
        assert_int_equal(nl_loader_create(dataset, &wrong[i], &loader), NL_ERROR_USAGE);
        assert_null(loader);
        assert_int_equal(nl_loader_bytes(dataset, &wrong[i]), 0);
    }
    nl_dataset_close(dataset);
    nl_core_context_destroy(context);
}

/* ---- Files that are not what they should be */

static char *read_text(const char *path)
{
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    char *text = calloc(1, 1 << 16);
    assert_true(fread(text, 1, (1 << 16) - 1, file) > 0);
    fclose(file);
    return text;
}

static void assert_refused(nl_context *context, const char *message)
{
    nl_dataset *dataset = NULL;
    nl_status status = nl_dataset_open(context, in_folder("data"), &dataset);
    if (status != NL_ERROR_INPUT || !strstr(nl_last_error(context), message))
        fail_msg("expected \"%s\", found %s \"%s\"", message, nl_status_name(status),
                 nl_last_error(context));
    assert_null(dataset);
    assert_int_equal(atomic_load(&context->memory_used), 0);
}

static void test_damaged_description(void **state)
{
    (void)state;
    static const struct {
        const char *from, *to, *message;
    } cases[] = {
        {"nalagen dataset", "something", "nalagen encode"},
        {"\"version\":\t1", "\"version\":\t2", "version 2"},
        {"\"pixels\"", "\"latents\"", "autoencoder"},
        {"\"pixels\"", "\"voxels\"", "kind"},
        {"\"count\":\t21", "\"count\":\t22", "hold 21 samples"},
        {"\"count\":\t21", "\"count\":\t-1", "count"},
        {"[8, 8]", "[8, 9]", "shape"},
        {"[8, 8]", "[8]", "image_size"},
        {"[3, 8, 8]", "[3, 8, 1e9]", "shape"},
        {"[8, 8],\n\t\"shape\":\t[3, 8, 8]", "[8, 4],\n\t\"shape\":\t[3, 8, 4]",
         "images: expected"},
        {"shard-00000", "../data/shard-00000", "same folder"},
        {"shard-00000", "shard-99999", "shard-99999"},
        {"shard-00005.safetensors\", 1", "shard-00005.safetensors\", 0", "shards"},
        {"[\"a\", \"a\"], [\"b\", \"b\"], [\"c\", \"c\"]", "[\"a\", \"a\"]", "label"},
        {"[\"a\", \"a\"]", "\"a\"", "classes"},
        {"\"skipped\"", "\"skiped\"", "skipped"},
    };
    nl_context *context = test_context(NULL);
    nl_dataset_close(small_dataset(context, 1));
    char *good = read_text(in_folder("data/dataset.json"));
    for (int i = 0; i < NL_COUNT(cases); i++) {
        char *place = strstr(good, cases[i].from), *text = malloc(1 << 17);
        if (!place)
            fail_msg("no %s in %s", cases[i].from, good);
        snprintf(text, 1 << 17, "%.*s%s%s", (int)(place - good), good, cases[i].to,
                 place + strlen(cases[i].from));
        write_bytes(context, "data/dataset.json", text, strlen(text));
        assert_refused(context, cases[i].message);
        free(text);
    }
    write_bytes(context, "data/dataset.json", "[]", 2);
    assert_refused(context, "an object");
    /* without crops there is no tensor of them; with some that are none they are refused */
    char *place = strstr(good, "\"flips\""), *text = malloc(1 << 17);
    snprintf(text, 1 << 17, "%.*s\"crops\": true, %s", (int)(place - good), good, place);
    write_bytes(context, "data/dataset.json", text, strlen(text));
    assert_refused(context, "tensor crops");
    free(text);
    unlink(in_folder("data/dataset.json"));
    assert_refused(context, "nalagen encode");
    free(good);
    nl_core_context_destroy(context);
}

/* A data set of latents whose one shard is written by hand. */
static void write_latents(nl_context *context, const uint16_t *images, const int32_t *labels,
                          bool flips)
{
    int64_t orientations = flips ? 2 : 1;
    nl_tensor_header tensors[] = {{"images", NL_F16, 5, {2, orientations, 1, 2, 2}},
                                  {"labels", NL_I32, 1, {2}}};
    nl_safetensors_writer *writer;
    char text[1024];
    assert_ok(context, nl_make_folder(context, in_folder("data")));
    assert_ok(context, nl_safetensors_create(context, in_folder("data/one.safetensors"), true, NULL,
                                             tensors, 2, &writer));
    assert_ok(context, nl_safetensors_write(writer, images, 16 * orientations));
    assert_ok(context, nl_safetensors_write(writer, labels, 8));
    assert_ok(context, nl_safetensors_commit(&writer));
    snprintf(
        text, sizeof(text),
        "{\"format\": \"nalagen dataset\", \"version\": 1, \"kind\": \"latents\", \"count\": 2, "
        "\"image_size\": [16, 16], \"shape\": [1, 2, 2], \"flips\": %s, \"autoencoder\": "
        "\"tiny\", \"classes\": [], \"shards\": [[\"one.safetensors\", 2]]}",
        flips ? "true" : "false");
    write_bytes(context, "data/dataset.json", text, strlen(text));
}

/* 1, 2, ..., as F16, both orientations told apart; what is not finite is an error when it is read. */
static void test_latents(void **state)
{
    (void)state;
    nl_context *context = test_context(NULL);
    nl_dataset *dataset;
    uint16_t images[16];
    float x[4];
    for (int i = 0; i < 16; i++)
        images[i] = nl_float_to_f16((float)(i + 1));
    write_latents(context, images, (int32_t[]){0, 0}, true);
    assert_ok(context, nl_dataset_open(context, in_folder("data"), &dataset));
    assert_int_equal(nl_dataset_get_info(dataset)->classes, 0);
    for (int index = 0; index < 2; index++)
        for (int flipped = 0; flipped < 2; flipped++) {
            assert_ok(context, nl_dataset_read(dataset, index, flipped, x));
            for (int i = 0; i < 4; i++)
                assert_true(x[i] == (float)(index * 8 + flipped * 4 + i + 1));
        }
    assert_int_equal(nl_dataset_read(dataset, 2, false, x), NL_ERROR_USAGE);
    assert_int_equal(nl_dataset_read(dataset, -1, false, x), NL_ERROR_USAGE);
    nl_dataset_close(dataset);

    write_latents(context, images, (int32_t[]){0, 0}, false);
    assert_ok(context, nl_dataset_open(context, in_folder("data"), &dataset));
    assert_int_equal(nl_dataset_read(dataset, 0, true, x), NL_ERROR_USAGE);
    nl_loader *loader;
    assert_int_equal(
        nl_loader_create(dataset, &(nl_loader_options){.batch = 1, .flip = true}, &loader),
        NL_ERROR_USAGE);
    nl_dataset_close(dataset);

    write_latents(context, images, (int32_t[]){0, -1}, false);
    assert_refused(context, "label 1 is -1");
    images[5] = 0x7C00;
    write_latents(context, images, (int32_t[]){0, 0}, false);
    assert_ok(context, nl_dataset_open(context, in_folder("data"), &dataset));
    assert_ok(context, nl_dataset_read(dataset, 0, false, x));
    assert_int_equal(nl_dataset_read(dataset, 1, false, x), NL_ERROR_INPUT);
    /* by the thread too, every time it is asked for */
    for (int prefetch = 0; prefetch < 2; prefetch++) {
        nl_batch batch;
        loader =
            open_loader(context, dataset,
                        (nl_loader_options){.batch = 1, .in_order = true, .prefetch = prefetch});
        assert_ok(context, nl_loader_next(loader, &batch));
        for (int i = 0; i < 3; i++) {
            usleep(20000); /* the thread has failed, probably; then something else does */
            nl_fail(context, NL_ERROR_WRITE, "a full disk");
            assert_int_equal(nl_loader_next(loader, &batch), NL_ERROR_INPUT);
            assert_non_null(strstr(nl_last_error(context), "sample 1"));
        }
        nl_loader_destroy(loader);
    }
    nl_dataset_close(dataset);
    nl_core_context_destroy(context);
}

static void test_without_memory(void **state)
{
    (void)state;
    nl_context *context = test_context(NULL);
    nl_dataset_close(small_dataset(context, 1));
    for (int64_t failing = 1;; failing++) {
        nl_dataset *dataset = NULL;
        nl_loader *loader = NULL;
        nl_batch batch;
        context->fail_allocation = atomic_load(&context->allocations) + failing;
        nl_status status = nl_dataset_open(context, in_folder("data"), &dataset);
        if (status == NL_OK)
            status = nl_dataset_hold_out(dataset, 0.5, false);
        if (status == NL_OK)
            status =
                nl_loader_create(dataset, &(nl_loader_options){.batch = 3, .prefetch = 1}, &loader);
        if (status == NL_OK)
            status = nl_loader_next(loader, &batch);
        context->fail_allocation = 0;
        nl_loader_destroy(loader);
        nl_dataset_close(dataset);
        assert_int_equal(atomic_load(&context->memory_used), 0);
        if (status == NL_OK)
            break;
        assert_int_equal(status, NL_ERROR_MEMORY);
    }
    nl_core_context_destroy(context);
}

/* Every third picture of each class in one part, all crops of the others in the other. */
static void test_hold_out(void **state)
{
    (void)state;
    enum { CROPS = 3, K = 3 };
    nl_context *context = test_context(NULL);
    nl_dataset *parts[2] = {small_dataset(context, CROPS)};
    const nl_dataset_info *info = nl_dataset_get_info(parts[0]);
    uint8_t rgb[PIXELS];
    float x[PIXELS], crop[NL_CROP_NUMBERS];
    assert_true(info->count == CROPS * COUNT && info->pictures == COUNT);
    assert_ok(context, nl_dataset_open(context, in_folder("data"), &parts[1]));
    for (int i = 0; i < 2; i++)
        assert_ok(context, nl_dataset_hold_out(parts[i], 1.0 / K, i));
    assert_true(info->pictures == COUNT - 3 * (EACH / K));
    assert_int_equal(info->count, CROPS * info->pictures);
    assert_int_equal(info->class_counts[1], info->count / 3);
    info = nl_dataset_get_info(parts[1]);
    assert_true(info->count == 3 * (EACH / K) && info->pictures == info->count);
    for (int64_t i = 0; i < info->count; i++) {
        int64_t label = i / (EACH / K), number = label * EACH + K * (i % (EACH / K)) + K - 1;
        draw_picture(number, SIZE, SIZE, rgb);
        assert_int_equal(nl_dataset_label(parts[1], i), label);
        assert_ok(context, nl_dataset_read(parts[1], i, false, x));
        for (int j = 0; j < PIXELS; j++)
            assert_true(x[j / 3 + j % 3 * SIZE * SIZE] == (float)rgb[j] / 127.5f - 1);
        nl_dataset_crop(parts[1], i, false, crop);
        assert_true(crop[NL_CROP_SCALE] == 0);
    }
    /* none of them, whole or cut, is in the other part */
    for (int64_t i = 0; i < nl_dataset_get_info(parts[0])->count; i++) {
        int64_t picture = i % (COUNT - 3 * (EACH / K)), of_class = picture % (EACH - EACH / K);
        assert_int_equal(nl_dataset_label(parts[0], i), picture / (EACH - EACH / K));
        if (i >= COUNT - 3 * (EACH / K))
            continue;
        draw_picture(picture / (EACH - EACH / K) * EACH + of_class / 2 * K + of_class % 2, SIZE,
                     SIZE, rgb);
        assert_ok(context, nl_dataset_read(parts[0], i, false, x));
        assert_true(x[0] == (float)rgb[0] / 127.5f - 1);
    }
    assert_int_equal(nl_dataset_hold_out(parts[1], 0.01, true), NL_ERROR_USAGE);
    assert_non_null(strstr(nl_last_error(context), "one picture of 100 is to be held out"));
    assert_int_equal(nl_dataset_hold_out(parts[1], 0.6, true), NL_ERROR_USAGE);
    nl_dataset_close(parts[0]);
    nl_dataset_close(parts[1]);
    nl_core_context_destroy(context);
}

int main(void)
{
#define IN_FOLDER(test) cmocka_unit_test_setup_teardown(test, make_test_folder, remove_test_folder)
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_order_is_a_bijection),
        cmocka_unit_test(test_order_differs_by_seed_and_epoch),
        cmocka_unit_test(test_order_is_even),
        IN_FOLDER(test_loader_gives_the_pictures),
        IN_FOLDER(test_loader_restarts_and_ranks),
        IN_FOLDER(test_loader_other_choices),
        IN_FOLDER(test_damaged_description),
        IN_FOLDER(test_latents),
        IN_FOLDER(test_hold_out),
        IN_FOLDER(test_without_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
