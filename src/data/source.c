/* SPDX-License-Identifier: MIT */
/* What all kinds of sources share, and the choice among them. */
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "nl_encode.h"
#include "source.h"

/* ---- A source */

static nl_status refuse(const nl_source *source)
{
    if (!nl_path_exists(source->path))
        return nl_fail(source->context, NL_ERROR_INPUT, "%s: there is no such file or folder",
                       source->path);
    return nl_fail(
        source->context, NL_ERROR_INPUT,
        "%s: expected a folder of pictures, of CIFAR's batches or of IDX files, a tar, a "
        "zip or an .npz of pictures",
        source->path);
}

static bool is_file(const char *path)
{
    struct stat info;
    return stat(path, &info) == 0 && S_ISREG(info.st_mode);
}

static nl_status open_file(nl_source *source, const nl_source_options *options)
{
    bool found;
    if (!is_file(source->path))
        return refuse(source);
    NL_CHECK(nl_source_open_npz(source, options->unconditional, &found));
    if (!found)
        NL_CHECK(nl_source_open_archive(source, options, &found));
    if (!found)
        NL_CHECK(nl_source_name_format(source));
    if (!found)
        NL_CHECK(refuse(source));
    return NL_OK;
}

static nl_status open_folder(nl_source *source, const nl_source_options *options)
{
    bool found;
    NL_CHECK(nl_source_open_arrays(source, options->split, options->unconditional, &found));
    if (!found)
        NL_CHECK(nl_source_open_archive(source, options, &found));
    if (!found)
        NL_CHECK(nl_source_open_folder(source, options));
    return NL_OK;
}

nl_status nl_source_open(nl_context *context, const char *path, const nl_source_options *options,
                         nl_source **out)
{
    nl_source *source = NULL;
    nl_status status;
    *out = NULL;
    NL_TRY(NL_NEW(context, "a source of pictures", &source));
    source->context = context;
    NL_TRY(nl_strdup(context, path, &source->path));
    NL_TRY(nl_path_is_folder(path) ? open_folder(source, options) : open_file(source, options));
    *out = source;
    source = NULL;
cleanup:
    nl_source_close(source);
    return status;
}

void nl_source_close(nl_source *source)
{
    if (!source)
        return;
    nl_context *context = source->context;
    for (int64_t i = 0; source->pictures && i < source->count; i++)
        nl_free(context, source->pictures[i].name);
    for (int i = 0; source->class_ids && i < source->classes; i++)
        nl_free(context, source->class_ids[i]);
    nl_zip_close(&source->zip);
    for (int i = 0; i < source->file_count; i++) {
        nl_unmap(context, &source->files[i].mapping);
        nl_free(context, source->files[i].unpacked);
        nl_free(context, source->files[i].path);
    }
    nl_free(context, source->pictures);
    nl_free(context, source->class_ids);
    nl_free(context, source->files);
    nl_free(context, source->path);
    nl_free(context, source);
}

nl_status nl_source_describe(nl_context *context, const char *path, nl_source_facts *facts)
{
    nl_source *source = NULL;
    nl_status status;
    *facts = (nl_source_facts){0};
    NL_TRY(nl_source_open(context, path, &(nl_source_options){.empty_classes = true}, &source));
    NL_TRY(NL_NEW_ZEROS(context, "counts of classes", source->classes + 1, &facts->class_counts));
    for (int64_t i = 0; source->classes && i < source->count; i++)
        facts->class_counts[source->pictures[i].label]++;
    facts->format = source->format;
    facts->count = source->count;
    facts->classes = source->classes;
    facts->class_ids = source->class_ids;
    facts->height = source->height;
    facts->width = source->width;
    source->class_ids = NULL; /* theirs now */
cleanup:
    nl_source_close(source);
    return status;
}

void nl_source_facts_free(nl_context *context, nl_source_facts *facts)
{
    for (int i = 0; facts->class_ids && i < facts->classes; i++)
        nl_free(context, facts->class_ids[i]);
    nl_free(context, facts->class_ids);
    nl_free(context, facts->class_counts);
    *facts = (nl_source_facts){0};
}

static const nl_source_file *file_of(const nl_source *source, int64_t index)
{
    const nl_source_file *file = source->files;
    while (index >= file->first + file->count)
        file++;
    return file;
}

nl_status nl_source_name(const nl_source *source, int64_t index, char **name)
{
    if (source->pictures[index].name)
        return nl_strdup(source->context, source->pictures[index].name, name);
    const nl_source_file *file = file_of(source, index);
    return nl_format(source->context, name, "%s, picture %lld", file->path,
                     (long long)(index - file->first));
}

/* "set.tar: a/1.png" */
static nl_status read_member(const nl_source *source, const nl_source_picture *picture,
                             nl_image *image)
{
    nl_context *context = source->context;
    uint8_t *unpacked = NULL;
    char *where = NULL;
    nl_status status;
    NL_TRY(nl_format(context, &where, "%s: %s", source->path, picture->name));
    if (picture->packed) {
        NL_TRY(NL_NEW_ARRAY(context, where, picture->size, &unpacked));
        NL_TRY(nl_zip_read(&source->zip, picture->packed, unpacked));
    }
    NL_TRY(nl_image_read_bytes(context, where, unpacked ? unpacked : picture->bytes,
                               (size_t)picture->size, image));
cleanup:
    nl_free(context, unpacked);
    nl_free(context, where);
    return status;
}

static nl_status read_from_array(const nl_source *source, int64_t index, nl_image *image)
{
    const nl_source_file *file = file_of(source, index);
    const uint8_t *pixels =
        file->data + source->offset + (index - file->first) * source->record + source->pixels;
    int64_t area = (int64_t)source->height * source->width;
    *image = (nl_image){.height = source->height, .width = source->width};
    NL_CHECK(NL_NEW_SIZED(source->context, "a picture", area, 3, &image->rgb));
    for (int64_t i = 0; i < area; i++)
        for (int c = 0; c < 3; c++)
            image->rgb[3 * i + c] = pixels[source->layout == NL_PLANES        ? c * area + i
                                           : source->layout == NL_INTERLEAVED ? 3 * i + c
                                                                              : i];
    return NL_OK;
}

nl_status nl_source_read(const nl_source *source, int64_t index, nl_image *image)
{
    const nl_source_picture *picture = &source->pictures[index];
    char *path;
    if (!picture->name)
        return read_from_array(source, index, image);
    *image = (nl_image){0};
    if (picture->bytes || picture->packed)
        return read_member(source, picture, image);
    nl_status status =
        nl_path_join(source->context, source->path, source->pictures[index].name, &path);
    if (status != NL_OK)
        return status;
    status = nl_image_read(source->context, path, image);
    nl_free(source->context, path);
    return status;
}

static void add_text(nl_sha256 *sha, const char *text)
{
    nl_sha256_update(sha, text, strlen(text) + 1);
}

nl_status nl_source_sha256(const nl_source *source, char hex[65], char stamps[65])
{
    nl_sha256 sha, times;
    nl_sha256_init(&sha);
    nl_sha256_init(&times);
    for (int i = 0; i < source->classes; i++)
        add_text(&sha, source->class_ids[i]);
    for (int64_t i = 0; i < source->count; i++) {
        const nl_source_picture *picture = &source->pictures[i];
        add_text(&sha, picture->name ? picture->name : "");
        nl_sha256_update(&sha, &picture->size, sizeof(picture->size));
        nl_sha256_update(&sha, &picture->label, sizeof(picture->label));
        nl_sha256_update(&times, &picture->stamp, sizeof(picture->stamp));
    }
    for (int i = 0; i < source->file_count && !source->archives; i++) {
        NL_CHECK(nl_check_cancelled(source->context));
        nl_sha256_update(&sha, source->files[i].data, (size_t)source->files[i].size);
    }
    nl_sha256_hex(&sha, hex);
    nl_sha256_hex(&times, stamps);
    if (source->file_count && !source->archives)
        stamps[0] = '\0';
    return NL_OK;
}
