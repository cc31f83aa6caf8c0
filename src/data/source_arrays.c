/* SPDX-License-Identifier: MIT */
/*
 * Pictures in arrays.
 *
 * CIFAR-10, binary version: data_batch_1.bin, ..., test_batch.bin, records of 3073 bytes:
 *   OFFSET  SIZE  DESCRIPTION
 *        0     1  label, 0 to 9
 *        1  3072  red, green and blue plane of 32 x 32, row by row
 * batches.meta.txt has the names of the classes, one a line.
 *
 * IDX (MNIST and its relatives), numbers big endian, also packed (.gz):
 *   images  0     4  0x00000803: bytes, three sizes     labels  0  4  0x00000801
 *           4     4  N                                          4  4  N
 *           8     8  height, width                              8  N  labels
 *          16   ...  N height width bytes, grey
 */
#include <string.h>
#include <zlib.h>

#include "source.h"

enum {
    CIFAR_CLASSES = 10,
    CIFAR_RECORD = 3073,
    IDX_IMAGES = 0x803,
    IDX_LABELS = 0x801,
    MAX_SIDE = 4096
};

static bool begins(const char *name, const char *text)
{
    return strncmp(name, text, strlen(text)) == 0;
}

static bool ends(const char *name, const char *text)
{
    size_t n = strlen(name), m = strlen(text);
    return n >= m && strcmp(name + n - m, text) == 0;
}

static uint32_t big32(const uint8_t *bytes)
{
    return (uint32_t)bytes[0] << 24 | (uint32_t)bytes[1] << 16 | (uint32_t)bytes[2] << 8 | bytes[3];
}

/* Bytes of an IDX file by its header, of which `size` bytes are at hand; 0: it is none. */
static int64_t idx_size(const uint8_t *data, int64_t size)
{
    if (size >= 8 && big32(data) == IDX_LABELS)
        return 8 + (int64_t)big32(data + 4);
    if (size < 16 || big32(data) != IDX_IMAGES || big32(data + 8) > MAX_SIDE ||
        big32(data + 12) > MAX_SIDE)
        return 0;
    return 16 + (int64_t)big32(data + 4) * big32(data + 8) * big32(data + 12);
}

/* Unpacks a .gz into memory, no further than its header says. */
static nl_status unpack(nl_context *context, nl_source_file *file)
{
    const nl_mapping *packed = &file->mapping;
    int64_t capacity = 0;
    nl_status status = NL_OK;
    uint8_t *larger;
    z_stream stream = {.next_in = (Bytef *)packed->data};
    if (packed->size > UINT32_MAX || inflateInit2(&stream, 16 + MAX_WBITS) != Z_OK)
        return nl_fail(context, NL_ERROR_INPUT, "%s: cannot be unpacked: use gunzip", file->path);
    stream.avail_in = (uInt)packed->size;
    for (int result = Z_OK; result != Z_STREAM_END;) {
        if (file->size == capacity) {
            capacity = capacity ? 2 * capacity : 1 << 20;
            NL_TRY(NL_NEW_ARRAY(context, file->path, capacity, &larger));
            if (file->size)
                memcpy(larger, file->unpacked, (size_t)file->size);
            nl_free(context, file->unpacked);
            file->unpacked = larger;
        }
        uInt room = (uInt)NL_MIN(capacity - file->size, 1 << 30);
        stream.next_out = file->unpacked + file->size;
        stream.avail_out = room;
        result = inflate(&stream, Z_NO_FLUSH);
        file->size += room - stream.avail_out;
        if (file->size > idx_size(file->unpacked, file->size))
            NL_TRY(nl_fail(context, NL_ERROR_INPUT, "%s: not an IDX file, or longer than it says",
                           file->path));
        bool stuck = result == Z_BUF_ERROR && stream.avail_out;
        if (stuck || (result != Z_OK && result != Z_STREAM_END && result != Z_BUF_ERROR))
            NL_TRY(nl_fail(context, NL_ERROR_INPUT, "%s: damaged or cut off (gzip): fetch it again",
                           file->path));
    }
    file->data = file->unpacked;
cleanup:
    inflateEnd(&stream);
    return status;
}

nl_status nl_source_open_file(nl_context *context, const char *folder, const char *name,
                              nl_source_file *file)
{
    *file = (nl_source_file){0};
    NL_CHECK(nl_path_join(context, folder, name, &file->path));
    NL_CHECK(nl_map_file(context, file->path, &file->mapping));
    if (ends(name, ".gz"))
        return unpack(context, file);
    file->data = file->mapping.data;
    file->size = file->mapping.size;
    return NL_OK;
}

void nl_source_close_file(nl_context *context, nl_source_file *file)
{
    nl_unmap(context, &file->mapping);
    nl_free(context, file->unpacked);
    nl_free(context, file->path);
    *file = (nl_source_file){0};
}

static nl_status alloc_pictures(nl_source *source)
{
    return NL_NEW_ZEROS(source->context, "the list of pictures", source->count, &source->pictures);
}

/* Whether the part asked for is that of testing, where there are `train` and `test` files. */
static nl_status choose_part(const nl_source *source, const char *split, int64_t train,
                             int64_t test, bool *take_test)
{
    *take_test = train == 0;
    if (!split && train > 0 && test > 0)
        return nl_fail(source->context, NL_ERROR_USAGE,
                       "%s: holds pictures for training and for testing: choose with --split train "
                       "or --split test",
                       source->path);
    if (!split)
        return NL_OK;
    *take_test = !strcmp(split, "test");
    if ((!*take_test && strcmp(split, "train")) || (*take_test ? test : train) == 0)
        return nl_fail(source->context, NL_ERROR_USAGE, "%s: no files for --split %s: there are %s",
                       source->path, split,
                       train && test ? "train and test"
                       : train       ? "those for train"
                                     : "those for test");
    return NL_OK;
}

/* ---- CIFAR-10 */

static bool is_cifar_train(const char *name)
{
    return begins(name, "data_batch") && ends(name, ".bin");
}

static bool is_cifar_test(const char *name)
{
    return begins(name, "test_batch") && ends(name, ".bin");
}

/* Names by batches.meta.txt, if there is one that has ten. */
static nl_status name_cifar(nl_source *source)
{
    nl_context *context = source->context;
    nl_mapping text = {0};
    char *path = NULL;
    int line = 0;
    nl_status status;
    NL_TRY(nl_source_number_classes(source, CIFAR_CLASSES));
    NL_TRY(nl_path_join(context, source->path, "batches.meta.txt", &path));
    if (!nl_path_exists(path))
        goto cleanup;
    NL_TRY(nl_map_file(context, path, &text));
    const char *at = (const char *)text.data, *end = at ? at + text.size : at;
    while (at < end && line < CIFAR_CLASSES) {
        const char *stop = memchr(at, '\n', (size_t)(end - at));
        int length = (int)NL_MIN((stop ? stop : end) - at, 255);
        const char *next = stop ? stop + 1 : end;
        while (length > 0 && (at[length - 1] == '\r' || at[length - 1] == ' '))
            length--;
        if (length > 0) {
            nl_free(context, source->class_ids[line]);
            source->class_ids[line] = NULL;
            NL_TRY(nl_format(context, &source->class_ids[line++], "%.*s", length, at));
        }
        at = next;
    }
cleanup:
    nl_unmap(context, &text);
    nl_free(context, path);
    return status;
}

static nl_status open_cifar(nl_source *source, const nl_listing *listing, bool test,
                            bool unconditional)
{
    nl_context *context = source->context;
    NL_CHECK(NL_NEW_ZEROS(context, "a list of files", listing->count, &source->files));
    source->format = "CIFAR-10";
    source->height = source->width = 32;
    source->layout = NL_PLANES;
    source->record = CIFAR_RECORD;
    source->pixels = 1;
    for (int64_t i = 0; i < listing->count; i++) {
        const char *name = listing->names[i];
        if (!(test ? is_cifar_test(name) : is_cifar_train(name)))
            continue;
        nl_source_file *file = &source->files[source->file_count++];
        NL_CHECK(nl_source_open_file(context, source->path, name, file));
        if (file->size == 0 || file->size % CIFAR_RECORD)
            return nl_fail(
                context, NL_ERROR_INPUT,
                "%s: %lld bytes are not a whole number of CIFAR-10 pictures of %d: is it "
                "cut off, or CIFAR-100?",
                file->path, (long long)file->size, CIFAR_RECORD);
        file->first = source->count;
        file->count = file->size / CIFAR_RECORD;
        source->count += file->count;
    }
    NL_CHECK(alloc_pictures(source));
    for (int i = 0; i < source->file_count; i++) {
        const nl_source_file *file = &source->files[i];
        for (int64_t j = 0; j < file->count; j++) {
            int label = file->data[j * CIFAR_RECORD];
            if (label >= CIFAR_CLASSES)
                return nl_fail(
                    context, NL_ERROR_INPUT,
                    "%s: the label of picture %lld is %d, expected 0 to 9: is it CIFAR-100?",
                    file->path, (long long)j, label);
            source->pictures[file->first + j].label = unconditional ? 0 : label;
        }
    }
    if (!unconditional)
        NL_CHECK(name_cifar(source));
    return NL_OK;
}

/* ---- IDX */

static bool is_idx(const char *name, const char *what)
{
    return strstr(name, what) && (ends(name, "-ubyte") || ends(name, "-ubyte.gz"));
}

/* "t10k-images-idx3-ubyte", "test-images..." */
static bool is_idx_test(const char *name)
{
    return begins(name, "t10k") || begins(name, "test");
}

static nl_status open_images(nl_source *source, const char *name)
{
    nl_context *context = source->context;
    nl_status status = NL_NEW(context, "a list of files", &source->files);
    if (status != NL_OK)
        return status;
    source->file_count = 1;
    source->format = "IDX";
    nl_source_file *file = source->files;
    NL_TRY(nl_source_open_file(context, source->path, name, file));
    if (file->size < 16 || big32(file->data) != IDX_IMAGES)
        NL_TRY(nl_fail(context, NL_ERROR_INPUT,
                       "%s: expected an IDX file of pictures (it begins with 00 00 08 03)",
                       file->path));
    int64_t count = big32(file->data + 4), height = big32(file->data + 8);
    int64_t width = big32(file->data + 12);
    if (count < 1 || height < 1 || width < 1 || height > MAX_SIDE || width > MAX_SIDE ||
        file->size - 16 != count * height * width)
        NL_TRY(nl_fail(context, NL_ERROR_INPUT,
                       "%s: %lld pictures of %lld x %lld do not make its %lld bytes", file->path,
                       (long long)count, (long long)width, (long long)height,
                       (long long)file->size));
    file->count = source->count = count;
    source->height = (int)height;
    source->width = (int)width;
    source->offset = 16;
    source->record = height * width;
cleanup:
    return status;
}

static nl_status read_labels(nl_source *source, const char *name, bool unconditional)
{
    nl_context *context = source->context;
    nl_source_file file = {0};
    nl_status status;
    int classes = 1;
    NL_TRY(nl_source_open_file(context, source->path, name, &file));
    if (file.size < 8 || big32(file.data) != IDX_LABELS || big32(file.data + 4) != source->count ||
        file.size - 8 != source->count)
        NL_TRY(nl_fail(context, NL_ERROR_INPUT,
                       "%s: expected an IDX file of %lld labels (it begins with 00 00 08 01)",
                       file.path, (long long)source->count));
    NL_TRY(alloc_pictures(source));
    for (int64_t i = 0; i < source->count; i++) {
        source->pictures[i].label = unconditional ? 0 : file.data[8 + i];
        classes = NL_MAX(classes, source->pictures[i].label + 1);
    }
    if (!unconditional)
        NL_TRY(nl_source_number_classes(source, classes));
cleanup:
    nl_source_close_file(context, &file);
    return status;
}

/* Of the part asked for, the file of labels beside the one of pictures. */
static nl_status open_idx(nl_source *source, const nl_listing *listing, bool test,
                          bool unconditional)
{
    const char *images = NULL, *labels = NULL;
    for (int64_t i = 0; i < listing->count; i++) {
        const char *name = listing->names[i];
        if (is_idx_test(name) != test)
            continue;
        images = !images && is_idx(name, "images") ? name : images;
        labels = !labels && is_idx(name, "labels") ? name : labels;
    }
    NL_CHECK(open_images(source, images));
    if (labels)
        return read_labels(source, labels, unconditional);
    if (!unconditional)
        return nl_fail(source->context, NL_ERROR_INPUT,
                       "%s: no file of labels beside it: put it there, or use --unconditional",
                       source->files[0].path);
    return alloc_pictures(source);
}

nl_status nl_source_open_arrays(nl_source *source, const char *split, bool unconditional,
                                bool *found)
{
    nl_context *context = source->context;
    nl_listing listing = {0};
    int64_t cifar[2] = {0}, idx[2] = {0}, pickles[2] = {0};
    nl_status status;
    bool test;
    *found = false;
    NL_TRY(nl_list_folder(context, source->path, 'f', &listing));
    for (int64_t i = 0; i < listing.count; i++) {
        const char *name = listing.names[i];
        cifar[0] += is_cifar_train(name);
        cifar[1] += is_cifar_test(name);
        idx[is_idx_test(name)] += is_idx(name, "images");
        pickles[0] += nl_is_cifar_pickle(name, false);
        pickles[1] += nl_is_cifar_pickle(name, true);
    }
    const int64_t *counts = cifar[0] + cifar[1] > 0       ? cifar
                            : pickles[0] + pickles[1] > 0 ? pickles
                                                          : idx;
    *found = counts[0] + counts[1] > 0;
    if (!*found)
        goto cleanup;
    NL_TRY(choose_part(source, split, counts[0], counts[1], &test));
    status = counts == cifar ? open_cifar(source, &listing, test, unconditional)
             : counts == idx ? open_idx(source, &listing, test, unconditional)
                             : nl_source_open_cifar_pickles(source, &listing, test, unconditional);
cleanup:
    nl_listing_free(context, &listing);
    return status;
}
