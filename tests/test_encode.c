/* SPDX-License-Identifier: MIT */
/* Encoding: every kind of source, what is made of its pictures, runs that were stopped, broken files, faults. */
#include "data_folder.h"

#include <zlib.h>

static void assert_encode_fails(nl_context *context, const nl_encode_options *options,
                                nl_status code, const char *message)
{
    nl_encode_result result;
    nl_status status = nl_encode_dataset(context, options, &result);
    if (status != code || !strstr(nl_last_error(context), message))
        fail_msg("expected %s \"%s\", found %s \"%s\"", nl_status_name(code), message,
                 nl_status_name(status), nl_last_error(context));
    assert_int_equal(atomic_load(&context->memory_used), 0);
}

static void assert_pixels(nl_context *context, const nl_dataset *dataset, int64_t index,
                          const uint8_t *rgb)
{
    const nl_dataset_info *info = nl_dataset_get_info(dataset);
    int area = info->height * info->width;
    float *x = malloc((size_t)area * 3 * sizeof(float));
    assert_ok(context, nl_dataset_read(dataset, index, false, x));
    for (int i = 0; i < area; i++)
        for (int c = 0; c < 3; c++)
            if (x[c * area + i] != (float)rgb[3 * i + c] / 127.5f - 1)
                fail_msg("sample %lld differs at pixel %d", (long long)index, i);
    free(x);
}

/* ---- Sources */

static void test_flat_and_unconditional(void **state)
{
    (void)state;
    nl_context *context = test_context(NULL);
    uint8_t rgb[3 * 6 * 6];
    assert_ok(context, nl_make_folder(context, in_folder("source")));
    write_picture(context, "source/2.png", 2, 6, 6);
    write_picture(context, "source/1.png", 1, 6, 6);
    write_picture(context, "source/.hidden.png", 9, 6, 6);
    write_bytes(context, "source/notes.txt", "x", 1);
    nl_encode_options options = pixel_options(6);
    nl_dataset *dataset = encode_and_open(context, &options);
    assert_int_equal(nl_dataset_get_info(dataset)->count, 2);
    assert_int_equal(nl_dataset_get_info(dataset)->classes, 1);
    assert_string_equal(nl_dataset_get_info(dataset)->class_ids[0], "source");
    for (int i = 0; i < 2; i++) {
        draw_picture(i + 1, 6, 6, rgb);
        assert_pixels(context, dataset, i, rgb);
    }
    nl_dataset_close(dataset);
    options.out = in_folder("other");
    options.unconditional = true;
    dataset = encode_and_open(context, &options);
    assert_int_equal(nl_dataset_get_info(dataset)->classes, 0);
    nl_dataset_close(dataset);
    nl_core_context_destroy(context);
}

/* As long as what it takes the place of. */
static void replace_in_file(nl_context *context, const char *name, const char *from, const char *to)
{
    nl_mapping file;
    assert_int_equal(strlen(from), strlen(to));
    assert_ok(context, nl_map_file(context, in_folder(name), &file));
    char *bytes = malloc((size_t)file.size), *place;
    memcpy(bytes, file.data, (size_t)file.size);
    place = memmem(bytes, (size_t)file.size, from, strlen(from));
    assert_non_null(place);
    memcpy(place, to, strlen(to));
    write_bytes(context, name, bytes, (size_t)file.size);
    nl_unmap(context, &file);
    free(bytes);
}

/* Ramps: to the right in red, down in green, 4 levels a pixel; 100 * number in blue. */
static void write_ramp(nl_context *context, const char *name, int number, int side, uint8_t *rgb)
{
    for (int i = 0; i < side * side; i++) {
        rgb[3 * i] = (uint8_t)(4 * (i % side));
        rgb[3 * i + 1] = (uint8_t)(4 * (i / side));
        rgb[3 * i + 2] = (uint8_t)(100 * number);
    }
    assert_ok(context, nl_png_write(context, in_folder(name), true, rgb, side, side, NULL));
}

/* Where the ramps say that a sample begins and ends, in sides of its picture, against what the data set says. */
static double check_ramp(const float *x, int size, int side, const float *crop)
{
    const float *red = x, *green = x + size * size;
    double scale = exp2(crop[NL_CROP_SCALE]), half = scale / 2 * (1 - 1.0 / size);
    double places[2][2] = {{red[0], red[size - 1]}, {green[0], green[size * size - 1]}};
    double centres[2] = {crop[NL_CROP_RIGHT], crop[NL_CROP_DOWN]};
    assert_true(crop[NL_CROP_SCALE] <= 0 && crop[NL_CROP_SCALE] > -1.02);
    for (int axis = 0; axis < 2; axis++)
        for (int end = 0; end < 2; end++) {
            double place = ((places[axis][end] + 1) * 127.5 / 4 + 0.5) / side - 0.5;
            double expected = centres[axis] + (end ? half : -half);
            if (fabs(place - expected) > 0.6 / side)
                fail_msg("axis %d, end %d: %g, said to be %g", axis, end, place, expected);
        }
    return scale;
}

/* Crops: each picture once whole, then parts of it that are its own pixels, and are where the data set says. */
static void test_crops(void **state)
{
    (void)state;
    enum { SIDE = 50, CROPS = 4, AREA = SIDE * SIDE };
    nl_context *context = test_context(NULL);
    uint8_t rgb[3 * AREA];
    float *x = malloc((size_t)AREA * 3 * sizeof(float)), crop[NL_CROP_NUMBERS], mirrored[4];
    double places[2 * CROPS];
    assert_ok(context, nl_make_folder(context, in_folder("source")));
    write_ramp(context, "source/a.png", 0, SIDE, rgb);
    write_ramp(context, "source/b.png", 1, SIDE, rgb);
    nl_encode_options options = pixel_options(SIDE);
    options.crops = CROPS;
    options.shard_pictures = 3; /* across the end of a crop */
    nl_encode_result result;
    nl_dataset *dataset = encode_and_open(context, &options);
    assert_int_equal(nl_dataset_get_info(dataset)->count, 2 * CROPS);
    assert_true(nl_dataset_get_info(dataset)->crops_known);
    assert_pixels(context, dataset, 1, rgb);
    nl_dataset_crop(dataset, 1, false, crop);
    assert_memory_equal(crop, ((float[NL_CROP_NUMBERS]){0}), sizeof(crop));
    for (int sample = 2; sample < 2 * CROPS; sample++) {
        assert_ok(context, nl_dataset_read(dataset, sample, false, x));
        nl_dataset_crop(dataset, sample, false, crop);
        nl_dataset_crop(dataset, sample, true, mirrored);
        assert_true(crop[NL_CROP_MIRRORED] == 0 && mirrored[NL_CROP_MIRRORED] == 1);
        assert_true(mirrored[NL_CROP_RIGHT] == -crop[NL_CROP_RIGHT]);
        assert_true(check_ramp(x, SIDE, SIDE, crop) > 0.66); /* enlarged at most 1.5 times */
        assert_true(fabs((x[2 * AREA + AREA / 2] + 1) * 127.5 - 100 * (sample % 2)) < 0.5);
        places[sample] = crop[NL_CROP_RIGHT] + 3 * crop[NL_CROP_DOWN];
        for (int before = 2; before < sample; before++)
            assert_true(fabs(places[before] - places[sample]) > 1e-3);
    }
    nl_dataset_close(dataset);
    /* the same command finds it whole; another number of crops is refused */
    assert_ok(context, nl_encode_dataset(context, &options, &result));
    assert_int_equal(result.there, 2 * CROPS);
    options.crops = CROPS + 1;
    assert_encode_fails(context, &options, NL_ERROR_WRITE, "\"crops\" differs");
    options.crops = 1;
    assert_encode_fails(context, &options, NL_ERROR_WRITE, "\"crops\" differs");
    /* nor is a folder resumed whose parts were chosen otherwise */
    options.crops = CROPS;
    replace_in_file(context, "data/shard-00000.safetensors", "to half the side",
                    "to a 1.2th of it");
    assert_encode_fails(context, &options, NL_ERROR_WRITE, "\"parts\" differs");
    /* an older version's, which did not say what the parts are */
    replace_in_file(context, "data/dataset.json", "\"crops\":\ttrue,", "              ");
    assert_ok(context, nl_dataset_open(context, options.out, &dataset));
    assert_false(nl_dataset_get_info(dataset)->crops_known);
    nl_dataset_close(dataset);
    free(x);
    nl_core_context_destroy(context);
}

/* Pictures with pixels to spare have parts down to half their side, most of them large. */
static void test_crops_of_large_pictures(void **state)
{
    (void)state;
    enum { SIDE = 60, SIZE = 25, CROPS = 60, PIXELS = 3 * SIZE * SIZE };
    nl_context *context = test_context(NULL);
    uint8_t rgb[3 * SIDE * SIDE];
    float x[PIXELS], crop[NL_CROP_NUMBERS];
    double least = 1, right[2] = {0, 0};
    int large = 0;
    assert_ok(context, nl_make_folder(context, in_folder("source")));
    write_ramp(context, "source/a.png", 0, SIDE, rgb);
    nl_encode_options options = pixel_options(SIZE);
    options.crops = CROPS;
    nl_encode_result result;
    nl_dataset *dataset = encode_and_open(context, &options);
    for (int sample = 1; sample < CROPS; sample++) {
        assert_ok(context, nl_dataset_read(dataset, sample, false, x));
        nl_dataset_crop(dataset, sample, false, crop);
        double side = check_ramp(x, SIZE, SIDE, crop);
        least = fmin(least, side);
        large += side > 0.75;
        right[0] = fmin(right[0], crop[NL_CROP_RIGHT]);
        right[1] = fmax(right[1], crop[NL_CROP_RIGHT]);
    }
    assert_true(least >= 0.5 && least < 0.6);
    assert_in_range(large, CROPS * 2 / 5, CROPS * 3 / 4);
    assert_true(right[0] < -0.1 && right[1] > 0.1);
    nl_dataset_close(dataset);
    assert_ok(context, nl_encode_dataset(context, &options, &result));
    assert_int_equal(result.limited, 0);
    options.height = options.width = SIDE;
    options.out = in_folder("enlarged");
    assert_ok(context, nl_encode_dataset(context, &options, &result));
    assert_int_equal(result.limited, CROPS - 1);
    nl_core_context_destroy(context);
}

static void test_class_folders_and_names(void **state)
{
    (void)state;
    static const char names[] = "b second, number two\nc\tthird\r\nabc no\n";
    nl_context *context = test_context(NULL);
    write_classes(context, 2, 6, 6);
    assert_ok(context, nl_make_folder(context, in_folder("source/b/deeper")));
    write_picture(context, "source/b/deeper/z.PNG", 50, 6, 6);
    write_bytes(context, "names.txt", names, strlen(names));
    nl_encode_options options = pixel_options(6);
    options.class_names = in_folder("names.txt");
    nl_dataset *dataset = encode_and_open(context, &options);
    const nl_dataset_info *info = nl_dataset_get_info(dataset);
    static const int labels[] = {0, 0, 1, 1, 1, 2, 2};
    assert_int_equal(info->count, 7);
    for (int i = 0; i < 7; i++)
        assert_int_equal(nl_dataset_label(dataset, i), labels[i]);
    assert_string_equal(info->class_names[0], "a");
    assert_string_equal(info->class_names[1], "second, number two");
    assert_string_equal(info->class_names[2], "third");
    nl_dataset_close(dataset);
    nl_encode_result result;
    options.unconditional = true;
    options.force = true;
    assert_int_equal(nl_encode_dataset(context, &options, &result), NL_ERROR_USAGE);
    assert_non_null(strstr(nl_last_error(context), "there is no --class-names"));
    options.class_names = NULL;
    dataset = encode_and_open(context, &options);
    assert_int_equal(nl_dataset_get_info(dataset)->classes, 0);
    assert_int_equal(nl_dataset_label(dataset, 6), 0);
    nl_dataset_close(dataset);
    nl_core_context_destroy(context);
}

static void test_sources_refused(void **state)
{
    (void)state;
    nl_context *context = test_context(NULL);
    nl_encode_options options = pixel_options(6);
    assert_encode_fails(context, &options, NL_ERROR_INPUT, "no such file or folder");
    assert_ok(context, nl_make_folder(context, in_folder("source/train/a")));
    assert_ok(context, nl_make_folder(context, in_folder("source/val/a")));
    assert_encode_fails(context, &options, NL_ERROR_USAGE, "--split train");
    options.split = "test";
    assert_encode_fails(context, &options, NL_ERROR_INPUT, "no such folder");
    options.split = "../source";
    assert_encode_fails(context, &options, NL_ERROR_USAGE, "name of a folder");
    options.split = "val";
    assert_encode_fails(context, &options, NL_ERROR_INPUT, "no PNG, JPEG or WebP");
    write_picture(context, "source/val/a/x.png", 0, 6, 6);
    nl_dataset_close(encode_and_open(context, &options));
    write_picture(context, "source/val/y.png", 0, 6, 6);
    assert_encode_fails(context, &options, NL_ERROR_INPUT, "pictures and folders");
    options.height = 1 << 15;
    unlink(in_folder("source/val/y.png"));
    assert_encode_fails(context, &options, NL_ERROR_USAGE, "--size");
    nl_core_context_destroy(context);
}

enum { CIFAR_RECORD = 3073 };

static void write_cifar(nl_context *context, const char *name, int64_t first, int count)
{
    uint8_t *bytes = malloc((size_t)count * CIFAR_RECORD), rgb[3072];
    for (int i = 0; i < count; i++) {
        draw_picture(first + i, 32, 32, rgb);
        bytes[i * CIFAR_RECORD] = (uint8_t)((first + i) % 10);
        for (int j = 0; j < 3072; j++)
            bytes[i * CIFAR_RECORD + 1 + j] = rgb[j % 1024 * 3 + j / 1024];
    }
    write_bytes(context, name, bytes, (size_t)count * CIFAR_RECORD);
    free(bytes);
}

static void test_cifar(void **state)
{
    (void)state;
    static const char names[] =
        "airplane\nautomobile\nbird\ncat\ndeer\ndog\nfrog\nhorse\nship\ntruck\n\n";
    nl_context *context = test_context(NULL);
    uint8_t rgb[3072];
    assert_ok(context, nl_make_folder(context, in_folder("source")));
    write_cifar(context, "source/data_batch_1.bin", 0, 12);
    write_cifar(context, "source/data_batch_2.bin", 12, 5);
    nl_encode_options options = pixel_options(0);
    nl_dataset_close(encode_and_open(context, &options)); /* nothing to choose */
    write_cifar(context, "source/test_batch.bin", 17, 3);
    assert_encode_fails(context, &options, NL_ERROR_USAGE, "--split train");
    options.split = "val";
    assert_encode_fails(context, &options, NL_ERROR_USAGE, "train and test");
    write_bytes(context, "source/batches.meta.txt", names, strlen(names));
    for (int test = 0; test < 2; test++) {
        options.split = test ? "test" : "train";
        options.out = in_folder(options.split);
        nl_dataset *dataset = encode_and_open(context, &options);
        const nl_dataset_info *info = nl_dataset_get_info(dataset);
        int64_t first = test ? 17 : 0;
        assert_int_equal(info->count, test ? 3 : 17);
        assert_int_equal(info->height, 32);
        assert_int_equal(info->classes, 10);
        assert_string_equal(info->class_names[9], "truck");
        for (int64_t i = 0; i < info->count; i++) {
            draw_picture(first + i, 32, 32, rgb);
            assert_pixels(context, dataset, i, rgb);
            assert_int_equal(nl_dataset_label(dataset, i), (first + i) % 10);
        }
        nl_dataset_close(dataset);
    }
    options.out = in_folder("bad");
    write_bytes(context, "source/test_batch.bin", rgb, 3072);
    assert_encode_fails(context, &options, NL_ERROR_INPUT, "whole number");
    uint8_t record[CIFAR_RECORD] = {10};
    write_bytes(context, "source/test_batch.bin", record, CIFAR_RECORD);
    assert_encode_fails(context, &options, NL_ERROR_INPUT, "the label of picture 0 is 10");
    nl_core_context_destroy(context);
}

static void put_big(uint8_t *at, uint32_t x)
{
    for (int i = 0; i < 4; i++)
        at[i] = (uint8_t)(x >> (24 - 8 * i));
}

static void write_gz(const char *name, const void *data, size_t size)
{
    gzFile file = gzopen(in_folder(name), "wb");
    assert_non_null(file);
    assert_int_equal(gzwrite(file, data, (unsigned)size), size);
    assert_int_equal(gzclose(file), Z_OK);
}

static void test_idx(void **state)
{
    (void)state;
    enum { N = 6, H = 4, W = 5 };
    nl_context *context = test_context(NULL);
    uint8_t images[16 + N * H * W], labels[8 + N], rgb[3 * H * W];
    put_big(images, 0x803), put_big(images + 4, N), put_big(images + 8, H), put_big(images + 12, W);
    for (int i = 0; i < N * H * W; i++)
        images[16 + i] = (uint8_t)(i * 2);
    put_big(labels, 0x801), put_big(labels + 4, N);
    for (int i = 0; i < N; i++)
        labels[8 + i] = (uint8_t)(i % 3);
    assert_ok(context, nl_make_folder(context, in_folder("source")));
    write_bytes(context, "source/train-images-idx3-ubyte", images, sizeof(images));
    nl_encode_options options = pixel_options(0);
    assert_encode_fails(context, &options, NL_ERROR_INPUT, "no file of labels");
    write_bytes(context, "source/train-labels-idx1-ubyte", labels, sizeof(labels));
    write_gz("source/t10k-images-idx3-ubyte.gz", images, sizeof(images));
    write_gz("source/t10k-labels-idx1-ubyte.gz", labels, sizeof(labels));
    for (int test = 0; test < 2; test++) {
        options.split = test ? "test" : "train";
        options.out = in_folder(options.split);
        nl_dataset *dataset = encode_and_open(context, &options);
        assert_int_equal(nl_dataset_get_info(dataset)->count, N);
        assert_int_equal(nl_dataset_get_info(dataset)->classes, 3);
        for (int i = 0; i < N; i++) {
            for (int j = 0; j < 3 * H * W; j++)
                rgb[j] = images[16 + i * H * W + j / 3];
            assert_pixels(context, dataset, i, rgb);
            assert_int_equal(nl_dataset_label(dataset, i), i % 3);
        }
        nl_dataset_close(dataset);
    }
    options.out = in_folder("bad");
    write_gz("source/t10k-images-idx3-ubyte.gz", images, sizeof(images) - 1);
    assert_encode_fails(context, &options, NL_ERROR_INPUT, "do not make its");
    uint8_t longer[sizeof(images) + 1] = {0};
    memcpy(longer, images, sizeof(images));
    write_gz("source/t10k-images-idx3-ubyte.gz", longer, sizeof(longer));
    assert_encode_fails(context, &options, NL_ERROR_INPUT, "longer than it says");
    put_big(images + 8, 0xFFFFFFFF);
    write_bytes(context, "source/t10k-images-idx3-ubyte.gz", "\x1f\x8b\x08", 3);
    assert_encode_fails(context, &options, NL_ERROR_INPUT, "damaged or cut off");
    options.split = "train";
    write_bytes(context, "source/train-images-idx3-ubyte", images, sizeof(images));
    assert_encode_fails(context, &options, NL_ERROR_INPUT, "do not make its");
    write_bytes(context, "source/train-images-idx3-ubyte", images, 15);
    assert_encode_fails(context, &options, NL_ERROR_INPUT, "00 00 08 03");
    put_big(images + 8, H);
    write_bytes(context, "source/train-images-idx3-ubyte", images, sizeof(images));
    write_bytes(context, "source/train-labels-idx1-ubyte", labels, sizeof(labels) - 1);
    assert_encode_fails(context, &options, NL_ERROR_INPUT, "6 labels");
    nl_core_context_destroy(context);
}

/* ---- Latents and moments */

/* What the autoencoder itself makes of a picture in floats. */
static void encode_directly(nl_context *context, const nl_vae *vae, const uint8_t *rgb, int size,
                            bool mirrored, float *sample)
{
    nl_device *device = context->device;
    int64_t side = size / nl_vae_factor(vae), channels = nl_vae_latent_channels(vae);
    bool moments = nl_vae_get_kind(vae) == NL_VAE_KL;
    float *floats = malloc((size_t)(3 * size * size) * sizeof(float));
    for (int y = 0; y < size; y++)
        for (int x = 0; x < size; x++)
            for (int c = 0; c < 3; c++)
                floats[(y * size + x) * 3 + c] =
                    (float)rgb[(y * size + (mirrored ? size - 1 - x : x)) * 3 + c] / 127.5f - 1;
    nl_tensor picture, mean, logvar;
    assert_ok(context, nl_arena_reserve(device, 64 << 20));
    int64_t mark = nl_arena_mark(device), shape[] = {1, channels, side, side};
    assert_ok(context, nl_arena_tensor(device, NL_F32, 4, (int64_t[]){1, size, size, 3}, &picture));
    assert_ok(context, nl_arena_tensor(device, NL_F32, 4, shape, &mean));
    assert_ok(context, nl_arena_tensor(device, NL_F32, 4, shape, &logvar));
    assert_ok(context,
              device->ops->upload(device, picture.data, floats, nl_tensor_bytes(&picture)));
    assert_ok(context, nl_vae_encode(vae, device, &picture, &mean, moments ? &logvar : NULL));
    int64_t count = nl_tensor_count(&mean);
    assert_ok(context, device->ops->download(device, sample, mean.data, count * 4));
    if (moments)
        assert_ok(context, device->ops->download(device, sample + count, logvar.data, count * 4));
    nl_arena_release(device, mark);
    free(floats);
}

static void check_autoencoder(nl_context *context, const nl_checkpoint *weights, nl_data_kind kind,
                              int size)
{
    nl_vae *vae;
    uint8_t *rgb = malloc((size_t)(3 * size * size));
    assert_ok(context, nl_vae_load(context->device, weights, NULL, 1, 0, &vae));
    write_classes(context, 2, size, size);
    nl_encode_options options = pixel_options(size);
    options.vae = vae;
    options.vae_sha256 = "0123";
    options.latent_scale = 0.18215;
    nl_dataset *dataset = encode_and_open(context, &options);
    const nl_dataset_info *info = nl_dataset_get_info(dataset);
    assert_int_equal(info->kind, kind);
    assert_int_equal(info->channels, nl_vae_latent_channels(vae));
    assert_int_equal(info->sample_channels, nl_vae_sample_channels(vae));
    assert_int_equal(info->height, size / nl_vae_factor(vae));
    assert_true(info->flips && info->latent_scale == 0.18215);
    assert_string_equal(info->autoencoder_sha256, "0123");
    int64_t count = (int64_t)info->sample_channels * info->height * info->width;
    float *sample = malloc((size_t)count * sizeof(float)),
          *direct = malloc((size_t)count * sizeof(float));
    for (int64_t index = 0; index < info->count; index++)
        for (int flipped = 0; flipped < 2; flipped++) {
            draw_picture(index, size, size, rgb);
            encode_directly(context, vae, rgb, size, flipped, direct);
            assert_ok(context, nl_dataset_read(dataset, index, flipped, sample));
            assert_close(sample, direct, count, 3e-4); /* F16 rounds by at most 2^-11 */
            for (int64_t i = 0; i < count; i++)
                assert_true(fabsf(sample[i] - direct[i]) <= 5e-4f * fabsf(direct[i]) + 2e-4f);
        }
    free(sample), free(direct), free(rgb);
    nl_dataset_close(dataset);
    nl_vae_destroy(vae);
}

static void test_tiny_latents(void **state)
{
    (void)state;
    test_need(NL_SOURCE_DIR "/weights/shipped/tae.safetensors");
    nl_context *context = test_context("cpu");
    nl_checkpoint *weights;
    assert_ok(context, nl_checkpoint_open(context, NL_SOURCE_DIR "/weights/shipped/tae.safetensors",
                                          &weights));
    check_autoencoder(context, weights, NL_DATA_LATENTS, 32);
    nl_checkpoint_close(weights);
    nl_context_destroy(context);
}

static void test_kl_moments(void **state)
{
    (void)state;
    char path[4096];
    test_need_golden("autoencoder_kl.safetensors");
    nl_context *context = test_context("cpu");
    nl_checkpoint *weights;
    test_golden_path("autoencoder_kl.safetensors", path, sizeof(path));
    assert_ok(context, nl_checkpoint_open_key(context, path, "w", &weights));
    check_autoencoder(context, weights, NL_DATA_MOMENTS, 24);
    nl_checkpoint_close(weights);
    nl_context_destroy(context);
}

/* ---- Runs that end early */

static bool same_files(const char *a, const char *b)
{
    nl_context *context = test_context(NULL);
    nl_mapping one, other;
    assert_ok(context, nl_map_file(context, a, &one));
    assert_ok(context, nl_map_file(context, b, &other));
    bool same = one.size == other.size && memcmp(one.data, other.data, (size_t)one.size) == 0;
    nl_unmap(context, &one);
    nl_unmap(context, &other);
    nl_core_context_destroy(context);
    return same;
}

static bool stop_after(void *user, const nl_progress *progress)
{
    return progress->image < *(const int64_t *)user;
}

static void assert_same_data(const char *a, const char *b)
{
    for (int i = 0; i < 4; i++) {
        char one[300], other[300];
        snprintf(one, sizeof(one), "%s/%s", a, i ? "shard-0000x.safetensors" : "dataset.json");
        snprintf(other, sizeof(other), "%s/%s", b, i ? "shard-0000x.safetensors" : "dataset.json");
        if (i) {
            *strrchr(one, 'x') = (char)('0' + i - 1);
            *strrchr(other, 'x') = (char)('0' + i - 1);
        }
        if (!same_files(one, other))
            fail_msg("%s and %s differ", one, other);
    }
}

static ino_t file_number(const char *path)
{
    struct stat info;
    assert_int_equal(stat(path, &info), 0);
    return info.st_ino;
}

/* 16 pictures, one of them broken, in shards of 6, stopped after every second one: the bytes are those of one run,
 * and shards that were there stay untouched. */
static void test_stopped_and_gone_on_with(void **state)
{
    (void)state;
    int64_t stop = INT64_MAX;
    nl_context *context = NULL;
    nl_context_options watched = {.progress = stop_after, .user = &stop};
    assert_int_equal(nl_core_context_create(&watched, &context), NL_OK);
    nl_encode_result result;
    write_classes(context, 5, 6, 6);
    write_bytes(context, "source/b/0.png", "broken", 6);
    nl_encode_options options = pixel_options(6);
    options.shard_pictures = 6;
    options.out = in_folder("whole");
    assert_ok(context, nl_encode_dataset(context, &options, &result));
    assert_int_equal(result.count, 15);
    assert_int_equal(result.skipped, 1);
    options.chunk_pictures = 2;
    options.out = in_folder("data");
    ino_t first = 0;
    for (stop = 2; stop <= 16; stop += 2) {
        assert_int_equal(nl_encode_dataset(context, &options, &result), NL_CANCELLED);
        assert_false(nl_path_exists(in_folder("data/dataset.json")));
        assert_int_equal(result.there, stop - 2 - (stop - 2 > 5)); /* picture 5 is the broken one */
        assert_int_equal(nl_path_exists(in_folder("data/shard-00000.part")), stop < 6);
        assert_int_equal(nl_path_exists(in_folder("data/shard-00002.part")), stop == 14);
        if (stop == 6)
            first = file_number(in_folder("data/shard-00000.safetensors"));
    }
    stop = INT64_MAX;
    assert_ok(context, nl_encode_dataset(context, &options, &result));
    assert_int_equal(result.count, 15);
    assert_int_equal(result.skipped, 1);
    assert_true(file_number(in_folder("data/shard-00000.safetensors")) == first);
    assert_same_data(in_folder("whole"), in_folder("data"));
    assert_ok(context, nl_encode_dataset(context, &options, &result));
    assert_int_equal(result.there, 15);
    /* other pictures, another size: not the same work */
    options.height = options.width = 8;
    assert_encode_fails(context, &options, NL_ERROR_WRITE, "\"image_size\" differs");
    options.height = options.width = 6;
    write_picture(context, "source/c/new.png", 99, 6, 6);
    assert_encode_fails(context, &options, NL_ERROR_WRITE, "\"source_sha256\" differs");
    options.strict = true;
    options.force = true;
    assert_encode_fails(context, &options, NL_ERROR_INPUT, "b/0.png");
    /* one process at a time; what is wrong with an option is found before the work */
    int lock;
    assert_ok(context, nl_lock_folder(context, options.out, &lock));
    assert_encode_fails(context, &options, NL_ERROR_WRITE, "another process is writing there");
    nl_unlock_folder(lock);
    options.out = in_folder("unnamed");
    options.class_names = in_folder("no-names.txt");
    assert_encode_fails(context, &options, NL_ERROR_INPUT, "no-names.txt");
    assert_false(nl_path_exists(options.out));
    nl_core_context_destroy(context);
}

static void test_broken_pictures(void **state)
{
    (void)state;
    nl_context *context = test_context(NULL);
    nl_encode_result result;
    assert_ok(context, nl_make_folder(context, in_folder("source")));
    for (int i = 0; i < 3; i++)
        write_bytes(context,
                    i == 0   ? "source/a.png"
                    : i == 1 ? "source/b.jpg"
                             : "source/c.jpeg",
                    "\xff\xd8\xff\xe0 not much of a picture", 26);
    nl_encode_options options = pixel_options(6);
    assert_encode_fails(context, &options, NL_ERROR_INPUT, "no picture can be read (3 tried)");
    /* a shard without samples between others */
    write_picture(context, "source/0.png", 0, 6, 6);
    write_picture(context, "source/z.png", 1, 6, 6);
    options.shard_pictures = 1;
    options.force = true;
    assert_ok(context, nl_encode_dataset(context, &options, &result));
    assert_int_equal(result.count, 2);
    assert_int_equal(result.skipped, 3);
    options.force = false;
    nl_dataset *dataset = encode_and_open(context, &options);
    uint8_t rgb[3 * 36];
    draw_picture(1, 6, 6, rgb);
    assert_pixels(context, dataset, 1, rgb);
    nl_dataset_close(dataset);
    options.strict = true;
    assert_encode_fails(context, &options, NL_ERROR_INPUT, "left out earlier");
    nl_core_context_destroy(context);
}

/* Without memory, on a full disk: a status of its own, nothing leaks, and the next run ends the work. */
static void test_faults(void **state)
{
    (void)state;
    nl_context *context = test_context(NULL);
    nl_encode_result result;
    write_classes(context, 2, 9, 12);
    nl_encode_options options = pixel_options(6);
    options.shard_pictures = 4;
    options.out = in_folder("whole");
    options.threads = 1;
    assert_ok(context, nl_encode_dataset(context, &options, &result));
    options.out = in_folder("data");
    for (int kind = 0; kind < 2; kind++) {
        remove_tree(in_folder("data"));
        for (int64_t failing = 1;; failing++) {
            if (kind == 0)
                context->fail_allocation = atomic_load(&context->allocations) + failing;
            else
                context->fail_write = atomic_load(&context->writes) + failing;
            nl_status status = nl_encode_dataset(context, &options, &result);
            context->fail_allocation = context->fail_write = 0;
            assert_int_equal(atomic_load(&context->memory_used), 0);
            if (status == NL_OK)
                break;
            assert_int_equal(status, kind == 0 ? NL_ERROR_MEMORY : NL_ERROR_WRITE);
            if (kind == 1) /* so that every run has the same to write */
                remove_tree(in_folder("data"));
        }
        assert_true(same_files(in_folder("whole/dataset.json"), in_folder("data/dataset.json")));
        assert_true(same_files(in_folder("whole/shard-00001.safetensors"),
                               in_folder("data/shard-00001.safetensors")));
    }
    nl_core_context_destroy(context);
}

/* A seed of a fuzz target, without its first `skip` bytes, as a file of the test. */
static void copy_seed(nl_context *context, const char *seed, int64_t skip, const char *name)
{
    char path[512];
    nl_mapping file;
    snprintf(path, sizeof(path), "%s/tests/fuzz/corpus/%s", NL_SOURCE_DIR, seed);
    assert_ok(context, nl_map_file(context, path, &file));
    write_bytes(context, name, (const char *)file.data + skip, (size_t)(file.size - skip));
    nl_unmap(context, &file);
}

/* The same of archives, CIFAR's pickles and latents of other programs. */
static void test_faults_of_sources(void **state)
{
    (void)state;
    nl_context *context = test_context(NULL);
    static const char *const archives[][2] = {
        {"archive/tar_folders", "set.tar"}, {"archive/tar_keys", "set.tar"},
        {"archive/tar_pax", "set.tar"},     {"archive/zip_edm", "set.zip"},
        {"archive/zip_keys", "set.zip"},    {"archive/npz_deflated", "set.npz"}};
    nl_encode_options options = pixel_options(6);
    nl_encode_result result;
    options.out = in_folder("data");
    options.threads = 1;
    assert_ok(context, nl_make_folder(context, in_folder("cifar")));
    assert_ok(context, nl_make_folder(context, in_folder("fast/x_features")));
    assert_ok(context, nl_make_folder(context, in_folder("fast/x_labels")));
    copy_seed(context, "cifar/ten", 2, "whole");
    nl_mapping whole;
    assert_ok(context, nl_map_file(context, in_folder("whole"), &whole));
    const uint8_t *batch = memchr(whole.data + 1, 0x80, (size_t)whole.size - 1);
    write_bytes(context, "cifar/batches.meta", whole.data, (size_t)(batch - whole.data));
    write_bytes(context, "cifar/data_batch_1", batch, (size_t)(whole.data + whole.size - batch));
    nl_unmap(context, &whole);
    copy_seed(context, "latents/fast", 1, "whole");
    assert_ok(context, nl_map_file(context, in_folder("whole"), &whole));
    const uint8_t *draw = memchr(whole.data, 0xff, (size_t)whole.size);
    write_bytes(context, "fast/x_labels/0.npy", whole.data, (size_t)(draw - whole.data));
    write_bytes(context, "fast/x_features/0.npy", draw + 1,
                (size_t)(whole.data + whole.size - draw - 1));
    nl_unmap(context, &whole);
    for (int i = 0; i < NL_COUNT(archives) + 2; i++) {
        bool archive = i < NL_COUNT(archives);
        if (archive)
            copy_seed(context, archives[i][0], 1, archives[i][1]);
        options.source = in_folder(archive                   ? archives[i][1]
                                   : i == NL_COUNT(archives) ? "cifar"
                                                             : "fast");
        options.height = options.width = i > NL_COUNT(archives) ? 0 : 6;
        for (int64_t failing = 1;; failing++) {
            remove_tree(in_folder("data"));
            context->fail_allocation = atomic_load(&context->allocations) + failing;
            nl_status status = nl_encode_dataset(context, &options, &result);
            context->fail_allocation = 0;
            assert_int_equal(atomic_load(&context->memory_used), 0);
            if (status == NL_OK)
                break;
            if (status != NL_ERROR_MEMORY)
                fail_msg("source %d, allocation %d: %s", i, (int)failing, nl_last_error(context));
        }
        assert_true(result.count > 0);
        remove_tree(in_folder("data"));
    }
    nl_core_context_destroy(context);
}

/* One rule of what is a picture: regular files with its name or content; what systems leave behind is no class. */
static void test_what_is_a_picture(void **state)
{
    (void)state;
    nl_context *context = test_context(NULL);
    uint8_t rgb[3 * 36];
    write_classes(context, 2, 6, 6);
    const char *const strays[] = {"__MACOSX", "@eaDir", "lost+found", "a/@eaDir"};
    for (int i = 0; i < NL_COUNT(strays); i++) {
        char name[64];
        snprintf(name, sizeof(name), "source/%s", strays[i]);
        assert_ok(context, nl_make_folder(context, in_folder(name)));
        snprintf(name, sizeof(name), "source/%s/x.png", strays[i]);
        write_picture(context, name, 9, 6, 6);
    }
    write_picture(context, "source/b/without", 40, 6, 6);              /* by its content */
    assert_int_equal(mkfifo(in_folder("source/b/pipe.png"), 0600), 0); /* and never opened */
    nl_encode_options options = pixel_options(6);
    nl_dataset *dataset = encode_and_open(context, &options);
    assert_int_equal(nl_dataset_get_info(dataset)->classes, 3);
    assert_int_equal(nl_dataset_get_info(dataset)->count, 7);
    draw_picture(40, 6, 6, rgb);
    assert_pixels(context, dataset, 4, rgb);
    nl_dataset_close(dataset);
    /* a folder without pictures is a mistake, or meant */
    assert_ok(context, nl_make_folder(context, in_folder("source/empty")));
    options.out = in_folder("other");
    assert_encode_fails(context, &options, NL_ERROR_INPUT, "--empty-classes");
    options.empty_classes = true;
    dataset = encode_and_open(context, &options);
    assert_int_equal(nl_dataset_get_info(dataset)->classes, 4);
    nl_dataset_close(dataset);
    nl_core_context_destroy(context);
}

/* EDM's folders 00000, 00001 are no classes; lists of labels beside flat pictures are not passed over. */
static void test_lists_of_labels(void **state)
{
    (void)state;
    nl_context *context = test_context(NULL);
    assert_ok(context, nl_make_folder(context, in_folder("source/00000")));
    assert_ok(context, nl_make_folder(context, in_folder("source/00001")));
    write_picture(context, "source/00000/img0.png", 0, 6, 6);
    write_picture(context, "source/00000/img1.png", 1, 6, 6);
    write_picture(context, "source/00001/img2.png", 2, 6, 6);
    static const char edm[] = "{\"labels\": [[\"00001/img2.png\", 0], [\"00000/img0.png\", 2], "
                              "[\"00000/img1.png\", 0]]}";
    write_bytes(context, "source/dataset.json", edm, sizeof(edm) - 1);
    nl_encode_options options = pixel_options(6);
    nl_dataset *dataset = encode_and_open(context, &options);
    const nl_dataset_info *info = nl_dataset_get_info(dataset);
    assert_int_equal(info->classes, 3);
    static const int labels[] = {2, 0, 0};
    for (int i = 0; i < 3; i++)
        assert_int_equal(nl_dataset_label(dataset, i), labels[i]);
    nl_dataset_close(dataset);
    options.out = in_folder("other");
    static const char less[] = "{\"labels\": [[\"00001/img2.png\", 0]]}";
    write_bytes(context, "source/dataset.json", less, sizeof(less) - 1);
    assert_encode_fails(context, &options, NL_ERROR_INPUT, "no label for 00000/img0.png");
    static const char none[] = "{\"labels\": null}";
    write_bytes(context, "source/dataset.json", none, sizeof(none) - 1);
    assert_encode_fails(context, &options, NL_ERROR_INPUT, "--unconditional");
    remove_tree(in_folder("source"));
    assert_ok(context, nl_make_folder(context, in_folder("source")));
    write_picture(context, "source/1.png", 1, 6, 6);
    static const char *const lists[] = {"metadata.jsonl", "labels.csv"};
    for (int i = 0; i < 2; i++) {
        char name[64];
        snprintf(name, sizeof(name), "source/%s", lists[i]);
        write_bytes(context, name, "{}", 2);
        assert_encode_fails(context, &options, NL_ERROR_INPUT, lists[i]);
        remove(in_folder(name));
    }
    nl_core_context_destroy(context);
}

/* Formats that are not read are named, with the way out. */
static void test_foreign_formats(void **state)
{
    (void)state;
    nl_context *context = test_context(NULL);
    char tar[512] = "00000.jpg", lmdb[64] = "";
    memcpy(tar + 257, "ustar", 5);
    memcpy(lmdb + 16, "\xde\xc0\xef\xbe", 4);
    const struct {
        const char *name, *bytes;
        size_t size;
        const char *said;
    } cases[] = {{"source/a/train-0.tar", tar, sizeof(tar), "tar archive"},
                 {"source/a/0.parquet", "PAR1....", 8, "parquet"},
                 {"source/a/lmdb", lmdb, sizeof(lmdb), "LMDB"},
                 {"source/a/0.npy", "\x93NUMPY..", 8, "fast-DiT"},
                 {"source/a/data_batch_1", "\x80\x02}q....", 8, "CIFAR"}};
    nl_encode_options options = pixel_options(6);
    for (int i = 0; i < NL_COUNT(cases); i++) {
        assert_ok(context, nl_make_folder(context, in_folder("source/a")));
        write_bytes(context, cases[i].name, cases[i].bytes, cases[i].size);
        options.source = in_folder("source");
        assert_encode_fails(context, &options, NL_ERROR_INPUT, cases[i].said);
        options.source = in_folder(cases[i].name);
        assert_encode_fails(context, &options, NL_ERROR_INPUT, cases[i].said);
        remove_tree(in_folder("source"));
    }
    nl_core_context_destroy(context);
}

/* Pictures that were written anew, of the same size, are not those of the shards; an encoding of an earlier version,
 * which knew sizes alone, is resumed. */
static void test_rewritten_pictures(void **state)
{
    (void)state;
    nl_context *context = test_context(NULL);
    assert_ok(context, nl_make_folder(context, in_folder("source")));
    write_bytes(context, "source/a.png", "x", 1);
    write_picture(context, "source/a.png", 1, 6, 6);
    nl_encode_options options = pixel_options(6);
    nl_encode_result result;
    assert_ok(context, nl_encode_dataset(context, &options, &result));
    assert_ok(context, nl_encode_dataset(context, &options, &result));
    nl_mapping file;
    assert_ok(context, nl_map_file(context, in_folder("source/a.png"), &file));
    char *bytes = malloc((size_t)file.size);
    size_t size = (size_t)file.size;
    memcpy(bytes, file.data, size);
    nl_unmap(context, &file);
    write_bytes(context, "source/a.png", bytes, size);
    free(bytes);
    assert_encode_fails(context, &options, NL_ERROR_WRITE, "times of change");
    nl_core_context_destroy(context);
}

int main(void)
{
#define IN_FOLDER(test) cmocka_unit_test_setup_teardown(test, make_test_folder, remove_test_folder)
    const struct CMUnitTest tests[] = {
        IN_FOLDER(test_flat_and_unconditional),
        IN_FOLDER(test_crops),
        IN_FOLDER(test_crops_of_large_pictures),
        IN_FOLDER(test_class_folders_and_names),
        IN_FOLDER(test_sources_refused),
        IN_FOLDER(test_what_is_a_picture),
        IN_FOLDER(test_lists_of_labels),
        IN_FOLDER(test_foreign_formats),
        IN_FOLDER(test_rewritten_pictures),
        IN_FOLDER(test_cifar),
        IN_FOLDER(test_idx),
        IN_FOLDER(test_tiny_latents),
        IN_FOLDER(test_kl_moments),
        IN_FOLDER(test_stopped_and_gone_on_with),
        IN_FOLDER(test_broken_pictures),
        IN_FOLDER(test_faults),
        IN_FOLDER(test_faults_of_sources),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
