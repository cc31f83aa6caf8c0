/* SPDX-License-Identifier: MIT */
/* Folders of pictures and data sets for tests. */
#ifndef NL_DATA_FOLDER_H
#define NL_DATA_FOLDER_H

#include "nl_test.h"

#include <ftw.h>
#include <sys/stat.h>
#include <unistd.h>

#include "nl_encode.h"
#include "nl_image.h"
#include "nl_random.h"

static char test_folder[64];

static inline const char *in_folder(const char *name)
{
    static char paths[256][256]; /* valid for the next 255 calls */
    static int next;
    char *path = paths[next++ % 256];
    snprintf(path, sizeof(paths[0]), "%s/%s", test_folder, name);
    return path;
}

static inline int make_test_folder(void **state)
{
    (void)state;
    strcpy(test_folder, "/tmp/nalagen_data_XXXXXX");
    return mkdtemp(test_folder) ? 0 : 1;
}

static inline int remove_entry(const char *path, const struct stat *info, int flag, struct FTW *ftw)
{
    (void)info, (void)flag, (void)ftw;
    return remove(path);
}

static inline void remove_tree(const char *path)
{
    nftw(path, remove_entry, 16, FTW_DEPTH | FTW_PHYS);
}

static inline int remove_test_folder(void **state)
{
    (void)state;
    remove_tree(test_folder);
    return 0;
}

/* Smooth in x and y, different for every number, asymmetric. */
static inline void draw_picture(int64_t number, int height, int width, uint8_t *rgb)
{
    for (int y = 0; y < height; y++)
        for (int x = 0; x < width; x++)
            for (int c = 0; c < 3; c++)
                *rgb++ = (uint8_t)(127 +
                                   100 * sin(0.37 * (double)(number + 1) + 0.21 * x * (c + 1) +
                                             0.13 * y) +
                                   x / 2);
}

static inline void write_bytes(nl_context *context, const char *name, const void *data, size_t size)
{
    assert_ok(context, nl_write_file(context, in_folder(name), true, data, size));
}

static inline void write_picture(nl_context *context, const char *name, int64_t number, int height,
                                 int width)
{
    uint8_t *rgb = malloc((size_t)(3 * height * width));
    draw_picture(number, height, width, rgb);
    assert_ok(context, nl_png_write(context, in_folder(name), true, rgb, height, width, NULL));
    free(rgb);
}

/* source/a, source/b, source/c: `each` pictures in every one. */
static inline void write_classes(nl_context *context, int each, int height, int width)
{
    for (int label = 0; label < 3; label++) {
        char name[64];
        snprintf(name, sizeof(name), "source/%c", 'a' + label);
        assert_ok(context, nl_make_folder(context, in_folder(name)));
        for (int i = 0; i < each; i++) {
            snprintf(name, sizeof(name), "source/%c/%03d.png", 'a' + label, i);
            write_picture(context, name, label * each + i, height, width);
        }
    }
}

static inline nl_encode_options pixel_options(int size)
{
    return (nl_encode_options){.source = in_folder("source"),
                               .out = in_folder("data"),
                               .height = size,
                               .width = size,
                               .threads = 2,
                               .latent_scale = 1};
}

static inline nl_dataset *encode_and_open(nl_context *context, const nl_encode_options *options)
{
    nl_encode_result result;
    nl_dataset *dataset = NULL;
    assert_ok(context, nl_encode_dataset(context, options, &result));
    assert_ok(context, nl_dataset_open(context, options->out, &dataset));
    assert_int_equal(result.count, nl_dataset_get_info(dataset)->count);
    return dataset;
}

#endif
