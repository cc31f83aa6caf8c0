/* SPDX-License-Identifier: MIT */
/*
 * CIFAR's Python version: pickles of a dict with "data", a numpy array of bytes [N, 3072] (red, green and blue plane of
 * 32 x 32, row by row), and a list of N labels: "labels" of CIFAR-10 (data_batch_1, ..., test_batch), "fine_labels" of
 * CIFAR-100 (train, test). The names of the classes stand in batches.meta ("label_names") or meta ("fine_label_names").
 * An array is pickled as _reconstruct(...) with the state (version, shape, dtype, Fortran order, bytes).
 */
#include <string.h>

#include "pickle.h"
#include "source.h"

enum { PLANES = 3072, SIDE = 32 };

bool nl_is_cifar_pickle(const char *name, bool test)
{
    static const char batch[] = "data_batch_";
    size_t length = sizeof(batch) - 1;
    if (test)
        return !strcmp(name, "test_batch") || !strcmp(name, "test");
    return (!strncmp(name, batch, length) && name[length] &&
            !name[length + strspn(name + length, "0123456789")]) ||
           !strcmp(name, "train");
}

/* A key, which Python 3 may have pickled as bytes. */
static const nl_pickle_value *get(const nl_pickle_value *dict, const char *key)
{
    for (int64_t i = 0; dict->kind == NL_PICKLE_DICT && i + 1 < dict->count; i += 2) {
        const nl_pickle_value *k = dict->items[i];
        if ((k->kind == NL_PICKLE_TEXT || k->kind == NL_PICKLE_BYTES) &&
            k->size == (int64_t)strlen(key) && !memcmp(k->text, key, (size_t)k->size))
            return dict->items[i + 1];
    }
    return NULL;
}

static bool is_list(const nl_pickle_value *value)
{
    return value && (value->kind == NL_PICKLE_LIST || value->kind == NL_PICKLE_TUPLE);
}

static bool is_bytes(const nl_pickle_value *value)
{
    return value->kind == NL_PICKLE_BYTES || value->kind == NL_PICKLE_TEXT;
}

/* The bytes of an array [N, 3072] of uint8 in C order; NULL: it is none. */
static const nl_pickle_value *array_bytes(const nl_pickle_value *array, int64_t *count)
{
    const nl_pickle_value *state = array ? array->state : NULL;
    if (!array || array->kind != NL_PICKLE_OBJECT || !is_list(state) || state->count != 5)
        return NULL;
    const nl_pickle_value *shape = state->items[1], *dtype = state->items[2];
    if (!is_list(shape) || shape->count != 2 || shape->items[0]->kind != NL_PICKLE_INT ||
        shape->items[1]->kind != NL_PICKLE_INT || shape->items[1]->integer != PLANES ||
        shape->items[0]->integer < 1)
        return NULL;
    if (dtype->kind != NL_PICKLE_OBJECT || !is_list(dtype->arguments) ||
        dtype->arguments->count < 1 || !nl_pickle_is_text(dtype->arguments->items[0], "u1"))
        return NULL;
    const nl_pickle_value *order = state->items[3], *bytes = state->items[4];
    *count = shape->items[0]->integer;
    if ((order->kind != NL_PICKLE_BOOL && order->kind != NL_PICKLE_INT) || order->integer ||
        !is_bytes(bytes) || bytes->size / PLANES != *count || bytes->size % PLANES)
        return NULL;
    return bytes;
}

static nl_status load(nl_source *source, const nl_source_file *file, nl_pickle *pickle,
                      const nl_pickle_value **root)
{
    int64_t length;
    *pickle = (nl_pickle){.context = source->context, .where = file->path};
    nl_status status = nl_pickle_load(pickle, file->data, file->size, &length, root);
    if (status == NL_OK && (*root)->kind != NL_PICKLE_DICT)
        status =
            nl_fail(source->context, NL_ERROR_INPUT, "%s: expected a dict of CIFAR", file->path);
    return status;
}

/* Labels of a file's pictures, which are listed from file->first on. */
static nl_status take_labels(nl_source *source, const nl_source_file *file,
                             const nl_pickle_value *labels, int classes, bool unconditional)
{
    for (int64_t i = 0; i < file->count; i++) {
        const nl_pickle_value *label = labels->items[i];
        if (label->kind != NL_PICKLE_INT || label->integer < 0 || label->integer >= classes)
            return nl_fail(source->context, NL_ERROR_INPUT,
                           "%s: picture %lld: expected a label from 0 to %d", file->path,
                           (long long)i, classes - 1);
        NL_CHECK(nl_source_reserve(source));
        source->pictures[source->count++] =
            (nl_source_picture){.label = unconditional ? 0 : (int32_t)label->integer};
    }
    return NL_OK;
}

/* Opens a batch; *classes: 10 or 100, the same of all. */
static nl_status add_batch(nl_source *source, const char *name, bool unconditional, int *classes)
{
    nl_context *context = source->context;
    nl_source_file *file = &source->files[source->file_count++];
    nl_pickle pickle = {0};
    const nl_pickle_value *root, *labels, *bytes;
    int64_t count = 0;
    nl_status status;
    NL_TRY(nl_source_open_file(context, source->path, name, file));
    NL_TRY(load(source, file, &pickle, &root));
    bytes = array_bytes(get(root, "data"), &count);
    if (!bytes)
        NL_TRY(nl_fail(context, NL_ERROR_INPUT,
                       "%s: \"data\": expected a numpy array of bytes [N, 3072], as CIFAR has it",
                       file->path));
    labels = get(root, "labels");
    int found = labels ? 10 : 100;
    labels = labels ? labels : get(root, "fine_labels");
    if (!is_list(labels) || labels->count != count)
        NL_TRY(nl_fail(context, NL_ERROR_INPUT,
                       "%s: expected \"labels\" or \"fine_labels\" of its %lld pictures",
                       file->path, (long long)count));
    if (*classes && *classes != found)
        NL_TRY(nl_fail(context, NL_ERROR_INPUT, "%s: CIFAR-10 and CIFAR-100 in one folder",
                       source->path));
    *classes = found;
    file->first = source->count;
    file->count = count;
    NL_TRY(take_labels(source, file, labels, found, unconditional));
    /* what is read of it later is the array */
    file->data = (const uint8_t *)bytes->text;
    file->size = bytes->size;
cleanup:
    nl_pickle_free(&pickle);
    return status;
}

/* Names in place of numbers, from the file of names, where it is there. */
static nl_status name_classes(nl_source *source)
{
    nl_context *context = source->context;
    bool ten = source->classes == 10;
    nl_pickle pickle = {0};
    nl_source_file file = {0};
    const nl_pickle_value *root, *names;
    char *path = NULL;
    nl_status status;
    NL_TRY(nl_path_join(context, source->path, ten ? "batches.meta" : "meta", &path));
    if (!nl_path_exists(path))
        goto cleanup;
    NL_TRY(nl_source_open_file(context, source->path, ten ? "batches.meta" : "meta", &file));
    NL_TRY(load(source, &file, &pickle, &root));
    names = get(root, ten ? "label_names" : "fine_label_names");
    if (!is_list(names) || names->count != source->classes)
        NL_TRY(nl_fail(context, NL_ERROR_INPUT, "%s: expected the names of %d classes", path,
                       source->classes));
    for (int i = 0; i < source->classes; i++) {
        const nl_pickle_value *name = names->items[i];
        if (!is_bytes(name) || name->size < 1 || name->size > 255 ||
            memchr(name->text, 0, (size_t)name->size))
            NL_TRY(
                nl_fail(context, NL_ERROR_INPUT, "%s: the name of class %d is no text", path, i));
        nl_free(context, source->class_ids[i]);
        source->class_ids[i] = NULL;
        NL_TRY(nl_format(context, &source->class_ids[i], "%.*s", (int)name->size, name->text));
    }
cleanup:
    nl_pickle_free(&pickle);
    nl_source_close_file(context, &file);
    nl_free(context, path);
    return status;
}

nl_status nl_source_open_cifar_pickles(nl_source *source, const nl_listing *listing, bool test,
                                       bool unconditional)
{
    int classes = 0;
    NL_CHECK(NL_NEW_ZEROS(source->context, "a list of files", listing->count, &source->files));
    source->height = source->width = SIDE;
    source->layout = NL_PLANES;
    source->record = PLANES;
    for (int64_t i = 0; i < listing->count; i++)
        if (nl_is_cifar_pickle(listing->names[i], test))
            NL_CHECK(add_batch(source, listing->names[i], unconditional, &classes));
    source->format = classes == 10 ? "CIFAR-10" : "CIFAR-100";
    if (!unconditional) {
        NL_CHECK(nl_source_number_classes(source, classes));
        NL_CHECK(name_classes(source));
    }
    return NL_OK;
}
