/* SPDX-License-Identifier: MIT */
/* Latents of a file of numpy's, of safetensors or of torch's. */
#include "nl_latent_file.h"

#include <math.h>
#include <string.h>

enum { MOST_SIDE = 1 << 14, MOST_CHANNELS = 1024 };

static bool starts_with(const nl_mapping *file, const char *magic, int64_t size)
{
    return file->size >= size && !memcmp(file->data, magic, (size_t)size);
}

static nl_status take_shape(nl_latent_file *f, nl_dtype dtype, int ndim, const int64_t *shape)
{
    char found[128];
    bool floats = dtype == NL_F32 || dtype == NL_F64 || dtype == NL_F16 || dtype == NL_BF16;
    int64_t one = ndim == 3, total = 1;
    bool fits = floats && (ndim == 3 || ndim == 4);
    for (int i = 0; i < ndim && fits; i++)
        fits = shape[i] > 0 && nl_mul_size(total, shape[i], &total);
    f->count = one ? 1 : shape[0];
    f->channels = shape[1 - one];
    f->height = shape[2 - one];
    f->width = shape[3 - one];
    f->dtype = dtype;
    if (fits && f->channels <= MOST_CHANNELS && f->height <= MOST_SIDE && f->width <= MOST_SIDE)
        return NL_OK;
    return nl_fail(f->context, NL_ERROR_INPUT,
                   "%s: expected latents [n, C, h, w] of floats, found %s %s", f->path,
                   nl_dtype_name(dtype), nl_shape_text(ndim, shape, found, sizeof(found)));
}

static nl_status open_array(nl_latent_file *f, const char *key)
{
    nl_array array = {.ndim = 0};
    NL_CHECK(nl_arrays_open(f->context, f->path, &f->arrays));
    const char *names = nl_arrays_names(f->arrays);
    if (!key)
        key = nl_arrays_has(f->arrays, "latents") || strchr(names, ',') ? "latents" : names;
    if (!nl_arrays_has(f->arrays, key))
        return nl_fail(f->context, NL_ERROR_INPUT,
                       "%s: no array \"%s\" in it: choose one of its arrays with --key: %s",
                       f->path, key, names);
    NL_CHECK(nl_array_open(f->arrays, key, &array, &f->stream));
    return take_shape(f, array.dtype, array.ndim, array.shape);
}

static nl_status open_tensor(nl_latent_file *f, const char *key)
{
    const nl_entry *entry;
    NL_CHECK(nl_checkpoint_open(f->context, f->path, &f->checkpoint));
    entry = nl_checkpoint_find(f->checkpoint, key ? key : "latents");
    if (!entry && !key && f->checkpoint->count == 1)
        entry = f->checkpoint->entries;
    if (!entry && f->checkpoint->count == 0)
        return nl_fail(f->context, NL_ERROR_INPUT, "%s: no tensors in it", f->path);
    if (!entry)
        return nl_fail(f->context, NL_ERROR_INPUT,
                       "%s: no tensor \"%s\" in it: choose one of its %lld with --key, %s for one",
                       f->path, key ? key : "latents", (long long)f->checkpoint->count,
                       f->checkpoint->entries[0].name);
    NL_CHECK(take_shape(f, entry->dtype, entry->ndim, entry->shape));
    NL_CHECK(NL_NEW_ARRAY(f->context, "latents", nl_entry_count(entry), &f->all));
    return nl_entry_read(f->checkpoint, entry, f->all);
}

nl_status nl_latent_file_open(nl_context *context, const char *path, const char *key,
                              nl_latent_file *f)
{
    nl_mapping file = {0};
    *f = (nl_latent_file){.context = context, .path = path};
    if (nl_path_is_folder(path))
        return nl_fail(context, NL_ERROR_INPUT,
                       "%s: a folder: expected a file of latents: .npy, .npz or .safetensors",
                       path);
    NL_CHECK(nl_map_file(context, path, &file));
    bool npy = starts_with(&file, "\x93NUMPY", 6);
    bool npz = starts_with(&file, "PK", 2) && strlen(path) > 4 &&
               !strcmp(path + strlen(path) - 4, ".npz"); /* a torch file is a zip as well */
    nl_unmap(context, &file);
    if (npy) {
        NL_CHECK(nl_npy_open(context, path, &f->npy));
        NL_CHECK(take_shape(f, f->npy.dtype, f->npy.ndim, f->npy.shape));
    } else {
        NL_CHECK(npz ? open_array(f, key) : open_tensor(f, key));
    }
    return NL_OK;
}

/* The next elements of the array, as they are stored; valid until the next call. */
static nl_status read_raw(nl_latent_file *f, int64_t bytes)
{
    if (bytes > f->raw_room) {
        nl_free(f->context, f->raw);
        f->raw = NULL;
        f->raw_room = 0;
        NL_CHECK(NL_NEW_ARRAY(f->context, "latents as they are stored", bytes, (char **)&f->raw));
        f->raw_room = bytes;
    }
    return nl_array_read(f->stream, f->raw, bytes);
}

nl_status nl_latent_file_read(nl_latent_file *f, int64_t count, float *latents)
{
    int64_t each = f->channels * f->height * f->width, elements = count * each;
    int64_t bytes = elements * nl_dtype_size(f->dtype);
    if (count < 0 || count > f->count - f->next)
        return nl_fail(f->context, NL_ERROR_USAGE, "%s: expected latents of %lld %s, found %lld",
                       f->path, (long long)(f->next + count),
                       nl_plural(f->next + count, "picture", "pictures"), (long long)f->count);
    if (f->stream)
        NL_CHECK(read_raw(f, bytes));
    if (f->all && elements)
        memcpy(latents, f->all + f->next * each, (size_t)elements * sizeof(float));
    else if (!f->all)
        nl_convert_to_float(f->stream ? f->raw
                                      : (const char *)f->npy.data +
                                            f->next * each * nl_dtype_size(f->dtype),
                            f->dtype, elements, latents);
    for (int64_t i = 0; i < elements; i++)
        if (!isfinite(latents[i]))
            return nl_fail(f->context, NL_ERROR_INPUT, "%s: picture %lld holds NaN or infinity",
                           f->path, (long long)(f->next + i / each));
    f->next += count;
    return NL_OK;
}

void nl_latent_file_close(nl_latent_file *f)
{
    if (!f->context)
        return;
    nl_array_close(f->stream);
    nl_arrays_close(f->arrays);
    nl_npy_close(f->context, &f->npy);
    nl_checkpoint_close(f->checkpoint);
    nl_free(f->context, f->all);
    nl_free(f->context, f->raw);
    *f = (nl_latent_file){0};
}
