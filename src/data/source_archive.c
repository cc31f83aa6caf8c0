/* SPDX-License-Identifier: MIT */
/*
 * Pictures in archives, read where they lie: a tar, also of tars (ImageNet's), a folder of tars (webdataset's shards), a zip (EDM's). What counts as a
 * picture is what counts in a folder. Their classes, the first that there is of:
 *   dataset.json at the top of one archive, as EDM writes it;
 *   webdataset's KEY.cls, or "label" or "cls" in KEY.json, beside KEY.jpg: KEY is the name up to the first dot;
 *   folders in the archive, as in a folder of pictures, below what all names begin with;
 * or the pictures are one class. Labelled by their keys they stay in the archive's order, otherwise in that of their names.
 */
#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#include "nl_json.h"
#include "nl_tar.h"
#include "source.h"

static const char edm_file[] = "dataset.json";

/* A file in an archive. */
typedef struct nl_member {
    char *name;    /* allocated: "shard-0.tar/a/1.png", of a single archive "a/1.png" */
    size_t inside; /* where the name in the archive begins */
    const uint8_t *bytes;
    const nl_zip_entry *packed;
    int64_t size, order;
    uint64_t stamp; /* of the archive */
    bool picture;
} nl_member;

typedef struct nl_archive {
    nl_source *source;
    nl_context *context;
    nl_member *members;
    int64_t count, capacity, pictures;
    nl_picture_walk left; /* out */
    const char *prefix;   /* name of the present tar, where there are several; or NULL */
    const char *folder;   /* of a tar in it; or NULL */
    uint64_t stamp;
    const nl_member *edm;
} nl_archive;

/* ---- What lies in them */

/* As in folders: hidden files and what systems leave behind are passed over. */
static bool is_stray(const char *name)
{
    char part[32];
    for (const char *at = name; at;) {
        const char *slash = strchr(at, '/');
        size_t length = slash ? (size_t)(slash - at) : strlen(at);
        if (*at == '.')
            return true;
        if (slash && length < sizeof(part)) {
            memcpy(part, at, length);
            part[length] = '\0';
            if (nl_is_stray_folder(part))
                return true;
        }
        at = slash ? slash + 1 : NULL;
    }
    return false;
}

static nl_status add(nl_archive *a, nl_member member, const char *name)
{
    nl_member *larger;
    if (is_stray(name))
        return NL_OK;
    if (a->count == a->capacity) {
        int64_t capacity = a->capacity ? 2 * a->capacity : 1024;
        NL_CHECK(NL_NEW_ARRAY(a->context, "the files of an archive", capacity, &larger));
        if (a->count)
            memcpy(larger, a->members, (size_t)a->count * sizeof(*larger));
        nl_free(a->context, a->members);
        a->members = larger;
        a->capacity = capacity;
    }
    member.inside = a->prefix ? strlen(a->prefix) + 1 : 0;
    member.order = a->count;
    member.stamp = a->stamp;
    member.picture = nl_is_picture_name(name) ||
                     (member.bytes && nl_image_kind_of(member.bytes, member.size) != NL_IMAGE_NONE);
    NL_CHECK(nl_format(a->context, &member.name, "%s%s%s", a->prefix ? a->prefix : "",
                       a->prefix ? "/" : "", name));
    a->members[a->count++] = member;
    return NL_OK;
}

static bool is_tar(const char *name)
{
    size_t length = strlen(name);
    return length > 4 && !strcmp(name + length - 4, ".tar");
}

static nl_status take_file(void *user, const nl_tar_file *file);

/* A tar in the tar, as ImageNet has one for each class, is a folder of its name. */
static nl_status take_tar(nl_archive *a, const nl_tar_file *file)
{
    nl_status status;
    char *where = NULL, *folder = NULL;
    NL_TRY(nl_format(a->context, &where, "%s: %s", a->source->path, file->name));
    NL_TRY(nl_format(a->context, &folder, "%.*s", (int)strlen(file->name) - 4, file->name));
    a->folder = folder;
    status = nl_tar_walk(a->context, where, file->data, file->size, take_file, a, NULL);
    a->folder = NULL;
cleanup:
    nl_free(a->context, where);
    nl_free(a->context, folder);
    return status;
}

static nl_status take_file(void *user, const nl_tar_file *file)
{
    nl_archive *a = user;
    nl_status status;
    char *name = NULL;
    if (!a->folder && is_tar(file->name) && nl_tar_recognizes(file->data, file->size))
        return take_tar(a, file);
    NL_TRY(nl_format(a->context, &name, "%s%s%s", a->folder ? a->folder : "", a->folder ? "/" : "",
                     file->name));
    NL_TRY(add(a, (nl_member){.bytes = file->data, .size = file->size}, name));
cleanup:
    nl_free(a->context, name);
    return status;
}

static nl_status take_zip(nl_archive *a, const nl_source_file *file)
{
    nl_zip *zip = &a->source->zip;
    nl_status status;
    char *name = NULL;
    NL_TRY(nl_zip_open(a->context, file->path, file->data, file->size, zip));
    for (int64_t i = 0; i < zip->count; i++) {
        const nl_zip_entry *entry = &zip->entries[i];
        if (entry->name_size < 1 || entry->name[entry->name_size - 1] == '/' ||
            memchr(entry->name, 0, (size_t)entry->name_size))
            continue;
        nl_member member = {.size = entry->size};
        member.bytes = entry->deflated ? NULL : entry->data;
        member.packed = entry->deflated ? entry : NULL;
        NL_TRY(nl_format(a->context, &name, "%.*s", (int)entry->name_size, entry->name));
        NL_TRY(add(a, member, name));
        nl_free(a->context, name);
        name = NULL;
    }
cleanup:
    nl_free(a->context, name);
    return status;
}

static int by_name(const void *one, const void *other)
{
    const nl_member *a = one, *b = other;
    int order = strcmp(a->name, b->name);
    return order ? order : a->order < b->order ? -1 : 1;
}

/* A file that stands twice in a tar was appended anew: the last counts. In the order of their names. */
static void drop_earlier(nl_archive *a)
{
    int64_t kept = 0, dropped = 0;
    if (a->count)
        qsort(a->members, (size_t)a->count, sizeof(*a->members), by_name);
    for (int64_t i = 0; i < a->count; i++) {
        if (i + 1 < a->count && !strcmp(a->members[i].name, a->members[i + 1].name)) {
            nl_free(a->context, a->members[i].name);
            dropped++;
            continue;
        }
        a->members[kept++] = a->members[i];
    }
    a->count = kept;
    if (dropped)
        nl_log(a->context, NL_LOG_WARNING, "%s: %lld %s there more than once: the last counts",
               a->source->path, (long long)dropped, nl_plural(dropped, "file is", "files are"));
}

static nl_status read_archive(nl_archive *a, const char *folder, const char *name)
{
    nl_source *source = a->source;
    nl_source_file *file = &source->files[source->file_count++];
    char *path = NULL;
    int64_t size, links = 0;
    NL_CHECK(folder ? nl_path_join(a->context, folder, name, &path)
                    : nl_strdup(a->context, name, &path));
    *file = (nl_source_file){.path = path};
    NL_CHECK(nl_map_file(a->context, path, &file->mapping));
    file->data = file->mapping.data;
    file->size = file->mapping.size;
    a->stamp = nl_source_stamp(path, &size);
    a->prefix = folder ? name : NULL;
    if (!memcmp(file->data, "PK", NL_MIN(file->size, 2)))
        NL_CHECK(take_zip(a, file));
    else if (nl_tar_recognizes(file->data, file->size) || file->size == 0)
        NL_CHECK(nl_tar_walk(a->context, path, file->data, file->size, take_file, a, &links));
    else
        return nl_fail(a->context, NL_ERROR_INPUT,
                       "%s: not a tar archive: is it packed (gunzip, unzstd), or cut off?", path);
    for (; links > 0; links--)
        nl_picture_walk_skip(&a->left, "a link or a device");
    return NL_OK;
}

/* ---- Labels by keys */

/* A label, and the key that it is of: the name up to the first dot of its last part. */
typedef struct nl_keyed {
    const char *name;
    size_t length;
    int label;
} nl_keyed;

static size_t key_length(const char *name)
{
    const char *slash = strrchr(name, '/'), *dot = strchr(slash ? slash : name, '.');
    return dot ? (size_t)(dot - name) : strlen(name);
}

static int by_key(const void *one, const void *other)
{
    const nl_keyed *a = one, *b = other;
    int order = memcmp(a->name, b->name, NL_MIN(a->length, b->length));
    return order ? order : a->length < b->length ? -1 : a->length > b->length;
}

static bool ends_as(const nl_member *member, const char *ending)
{
    return !strcasecmp(member->name + key_length(member->name), ending);
}

/* Allocated: the content of a small member, with a NUL behind it. */
static nl_status read_text(const nl_archive *a, const nl_member *member, char **text)
{
    nl_status status;
    char *made = NULL;
    *text = NULL;
    NL_TRY(NL_NEW_ARRAY(a->context, member->name, member->size + 1, &made));
    if (member->packed)
        NL_TRY(nl_zip_read(&a->source->zip, member->packed, made));
    else if (member->size)
        memcpy(made, member->bytes, (size_t)member->size);
    made[member->size] = '\0';
    *text = made;
    made = NULL;
cleanup:
    nl_free(a->context, made);
    return status;
}

/* KEY.cls: a whole number in digits, with blanks behind it. */
static nl_status read_cls(const nl_archive *a, const nl_member *member, int *label)
{
    int64_t value = 0;
    char *text = NULL;
    nl_status status = NL_OK;
    if (member->size <= 32)
        NL_TRY(read_text(a, member, &text));
    size_t digits = text ? strspn(text, "0123456789") : 0;
    for (size_t i = 0; i < digits && value < NL_SOURCE_CLASSES; i++)
        value = 10 * value + (text[i] - '0');
    if (!digits || text[digits + strspn(text + digits, " \r\n")] || value >= NL_SOURCE_CLASSES)
        NL_TRY(nl_fail(a->context, NL_ERROR_INPUT,
                       "%s: %s: expected a class as a whole number from 0 on", a->source->path,
                       member->name));
    *label = (int)value;
cleanup:
    nl_free(a->context, text);
    return status;
}

/* KEY.json: "label" or "cls"; -1: it has neither. */
static nl_status read_json(const nl_archive *a, const nl_member *member, int *label)
{
    cJSON *root = NULL;
    char *text = NULL;
    int64_t value = -1;
    nl_status status;
    NL_TRY(read_text(a, member, &text));
    NL_TRY(nl_json_parse(a->context, member->name, text, (size_t)member->size, &root));
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(root, "label");
    if (!item)
        item = cJSON_GetObjectItemCaseSensitive(root, "cls");
    if (item && (!nl_json_whole(item, &value) || value < 0 || value >= NL_SOURCE_CLASSES))
        NL_TRY(nl_fail(a->context, NL_ERROR_INPUT,
                       "%s: %s: \"%s\": expected a whole number from 0 on", a->source->path,
                       member->name, item->string));
    *label = (int)value;
cleanup:
    cJSON_Delete(root);
    nl_free(a->context, text);
    return status;
}

/* keys [count] in order; *count 0: there are none. */
static nl_status find_keys(const nl_archive *a, nl_keyed **keys, int64_t *count)
{
    const bool cls[] = {true, false};
    *count = 0;
    NL_CHECK(NL_NEW_ARRAY(a->context, "labels", a->count, keys));
    for (int way = 0; way < 2 && *count == 0; way++)
        for (int64_t i = 0; i < a->count; i++) {
            const nl_member *m = &a->members[i];
            nl_keyed key = {.name = m->name, .length = key_length(m->name), .label = -1};
            if (m->picture || !ends_as(m, cls[way] ? ".cls" : ".json"))
                continue;
            NL_CHECK(cls[way] ? read_cls(a, m, &key.label) : read_json(a, m, &key.label));
            if (key.label >= 0)
                (*keys)[(*count)++] = key;
        }
    if (*count)
        qsort(*keys, (size_t)*count, sizeof(**keys), by_key);
    return NL_OK;
}

/* ---- Labels by folders */

/* How many bytes inside the archives all pictures' names begin with: whole folders, of which there are more below. */
static size_t common_folder(const nl_archive *a)
{
    size_t common = 0;
    const char *first = NULL;
    for (int64_t i = 0; i < a->count && !first; i++)
        first = a->members[i].picture ? a->members[i].name + a->members[i].inside : NULL;
    for (const char *slash; first && (slash = strchr(first + common, '/'));) {
        size_t next = (size_t)(slash + 1 - first);
        for (int64_t i = 0; i < a->count; i++) {
            const char *name = a->members[i].name + a->members[i].inside;
            if (a->members[i].picture &&
                (strncmp(name, first, next) != 0 || !strchr(name + next, '/')))
                return common;
        }
        common = next;
    }
    return common;
}

static int by_text(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* The first folders of the pictures' names below `skip`, each once, sorted; allocated. loose: pictures in none. */
static nl_status list_folders(const nl_archive *a, size_t skip, char ***folders, int64_t *count,
                              int64_t *loose)
{
    int64_t unique = 0;
    *count = *loose = 0;
    NL_CHECK(NL_NEW_ZEROS(a->context, "names of folders", a->pictures, folders));
    for (int64_t i = 0; i < a->count; i++) {
        const nl_member *m = &a->members[i];
        if (!m->picture) /* its name may be shorter than `skip` */
            continue;
        const char *name = m->name + m->inside + skip, *slash = strchr(name, '/');
        if (!slash)
            ++*loose;
        else if (!*count || strlen((*folders)[*count - 1]) != (size_t)(slash - name) ||
                 strncmp((*folders)[*count - 1], name, (size_t)(slash - name)) != 0)
            NL_CHECK(
                nl_format(a->context, &(*folders)[(*count)++], "%.*s", (int)(slash - name), name));
    }
    if (*count)
        qsort(*folders, (size_t)*count, sizeof(**folders), by_text);
    for (int64_t i = 0; i < *count; i++)
        if (unique && !strcmp((*folders)[unique - 1], (*folders)[i])) {
            nl_free(a->context, (*folders)[i]);
            (*folders)[i] = NULL;
        } else {
            char *kept = (*folders)[i];
            (*folders)[i] = NULL;
            (*folders)[unique++] = kept;
        }
    *count = unique;
    return NL_OK;
}

static void free_folders(const nl_archive *a, char **folders, int64_t count)
{
    for (int64_t i = 0; folders && i < count; i++)
        nl_free(a->context, folders[i]);
    nl_free(a->context, folders);
}

/* ---- Pictures */

static nl_status add_picture(nl_archive *a, nl_member *member, int label)
{
    nl_source *source = a->source;
    NL_CHECK(nl_source_reserve(source));
    source->pictures[source->count++] = (nl_source_picture){.name = member->name,
                                                            .size = member->size,
                                                            .stamp = member->stamp,
                                                            .label = label,
                                                            .bytes = member->bytes,
                                                            .packed = member->packed};
    member->name = NULL;
    return NL_OK;
}

static int by_order(const void *one, const void *other)
{
    const nl_member *a = one, *b = other;
    return a->order < b->order ? -1 : 1;
}

/* Every picture has its key's label; of several pictures of a key the first counts. */
static nl_status add_keyed(nl_archive *a, const nl_keyed *keys, int64_t count)
{
    nl_source *source = a->source;
    nl_keyed last = {.length = 0};
    int classes = 0;
    source->format = "webdataset";
    qsort(a->members, (size_t)a->count, sizeof(*a->members), by_order);
    for (int64_t i = 0; i < a->count; i++) {
        nl_member *m = &a->members[i];
        nl_keyed key = {.name = m->name, .length = key_length(m->name)};
        if (!m->picture)
            continue;
        const nl_keyed *found = bsearch(&key, keys, (size_t)count, sizeof(key), by_key);
        if (!found)
            return nl_fail(a->context, NL_ERROR_INPUT,
                           "%s: there is no label for %s: expected %.*s.cls beside it, as others "
                           "have it",
                           source->path, m->name, (int)key.length, m->name);
        if (last.length && !by_key(&last, &key)) {
            nl_picture_walk_skip(&a->left, m->name);
            continue;
        }
        last = key; /* the name becomes the picture's */
        classes = NL_MAX(classes, found->label + 1);
        NL_CHECK(add_picture(a, m, found->label));
    }
    return nl_source_number_classes(source, classes);
}

/* Takes the pictures of one folder below `skip`, or all (split NULL), each with its class. */
static nl_status add_by_folder(nl_archive *a, size_t skip, const nl_source_options *options)
{
    nl_source *source = a->source;
    char **folders = NULL;
    int64_t count = 0, loose = 0;
    nl_status status;
    const char *split = options->split;
    NL_TRY(list_folders(a, skip, &folders, &count, &loose));
    if (!split && !loose && count)
        NL_TRY(nl_source_check_splits(source, folders, count));
    if (split) {
        for (int64_t i = 0; i < a->count; i++) {
            nl_member *m = &a->members[i];
            if (!m->picture)
                continue;
            const char *name = m->name + m->inside + skip;
            size_t length = strlen(split);
            m->picture = !strncmp(name, split, length) && name[length] == '/';
            a->pictures -= !m->picture;
        }
        if (!a->pictures)
            NL_TRY(nl_fail(a->context, NL_ERROR_INPUT, "%s: no folder %s in it for --split %s",
                           source->path, split, split));
        skip += strlen(split) + 1;
        free_folders(a, folders, count);
        folders = NULL;
        count = 0;
        NL_TRY(list_folders(a, skip, &folders, &count, &loose));
    }
    if (loose && count)
        NL_TRY(nl_fail(a->context, NL_ERROR_INPUT,
                       "%s: holds pictures and folders: expected either a folder for each class or "
                       "pictures alone",
                       source->path));
    if (count > NL_SOURCE_CLASSES)
        NL_TRY(nl_fail(a->context, NL_ERROR_INPUT, "%s: %lld class folders, at most %d are taken",
                       source->path, (long long)count, NL_SOURCE_CLASSES));
    source->format = count ? "class folders in an archive" : "pictures in an archive";
    for (int64_t i = 0; i < a->count; i++) {
        nl_member *m = &a->members[i];
        char **found = NULL, *folder = NULL;
        if (!m->picture)
            continue;
        if (count) {
            const char *name = m->name + m->inside + skip;
            NL_TRY(nl_format(a->context, &folder, "%.*s", (int)strcspn(name, "/"), name));
            found = bsearch(&folder, folders, (size_t)count, sizeof(*folders), by_text);
            nl_free(a->context, folder);
        }
        NL_TRY(add_picture(a, m, found ? (int)(found - folders) : 0));
    }
    if (count) {
        source->class_ids = folders;
        source->classes = (int)count;
        folders = NULL;
        nl_source_warn_of_numbers(source);
    } else {
        NL_TRY(nl_source_one_class(source));
    }
cleanup:
    free_folders(a, folders, count);
    return status;
}

/* By class, as a folder of them is listed. */
static int by_label(const void *one, const void *other)
{
    const nl_source_picture *a = one, *b = other;
    return a->label != b->label ? (a->label < b->label ? -1 : 1) : strcmp(a->name, b->name);
}

static nl_status add_edm(nl_archive *a, bool unconditional)
{
    nl_status status;
    char *text = NULL;
    a->source->format = "pictures with EDM's dataset.json";
    NL_TRY(read_text(a, a->edm, &text));
    for (int64_t i = 0; i < a->count; i++)
        if (a->members[i].picture)
            NL_TRY(add_picture(a, &a->members[i], 0));
    NL_TRY(nl_source_take_labels(a->source, edm_file, text, a->edm->size, unconditional));
cleanup:
    nl_free(a->context, text);
    return status;
}

static bool is_label(const nl_member *member)
{
    static const char *const endings[] = {".cls", ".json", ".txt"};
    for (int i = 0; i < NL_COUNT(endings); i++)
        if (ends_as(member, endings[i]))
            return true;
    return nl_is_label_file(NULL, member->name + member->inside);
}

static nl_status add_pictures(nl_archive *a, const nl_source_options *options, bool split_taken)
{
    nl_source *source = a->source;
    nl_source_options rest = *options;
    nl_keyed *keys = NULL;
    int64_t count = 0;
    nl_status status = NL_OK;
    if (split_taken)
        rest.split = NULL;
    for (int64_t i = 0; i < a->count; i++) {
        const nl_member *m = &a->members[i];
        a->pictures += m->picture;
        if (source->file_count == 1 && !strcmp(m->name + m->inside, edm_file))
            a->edm = m;
        if (!m->picture && !is_label(m))
            nl_picture_walk_skip(&a->left, m->name);
    }
    if (!a->pictures)
        NL_TRY(nl_fail(a->context, NL_ERROR_INPUT, "%s: no PNG, JPEG or WebP there%s%s",
                       source->path, a->left.others ? ", but such files as " : "",
                       a->left.first_other));
    if (a->edm && !rest.split) {
        NL_TRY(add_edm(a, options->unconditional));
        goto cleanup;
    }
    if (!rest.split && !options->unconditional)
        NL_TRY(find_keys(a, &keys, &count));
    if (count) {
        NL_TRY(add_keyed(a, keys, count));
    } else {
        NL_TRY(add_by_folder(a, common_folder(a), &rest));
        if (source->count)
            qsort(source->pictures, (size_t)source->count, sizeof(*source->pictures), by_label);
    }
cleanup:
    nl_free(a->context, keys);
    return status;
}

/* ---- Which archives */

/* Whether the split is a word of a shard's name: "imagenet-train-000001.tar". */
static bool names_split(const char *name, const char *split)
{
    size_t length = strlen(split);
    for (const char *at = name; length && (at = strstr(at, split)); at++)
        if ((at == name || !isalnum((unsigned char)at[-1])) && !isalnum((unsigned char)at[length]))
            return true;
    return false;
}

/* The tars of a folder that has nothing else but texts; of them, with a split, those whose name has it. *found: there are. */
static nl_status list_tars(nl_source *source, const char *split, nl_listing *tars, bool *taken)
{
    nl_context *context = source->context;
    nl_listing folders = {0};
    int64_t kept = 0, chosen = 0;
    bool alone;
    nl_status status;
    NL_TRY(nl_list_folder(context, source->path, 'f', tars));
    NL_TRY(nl_list_folder(context, source->path, 'd', &folders));
    alone = folders.count == 0;
    for (int64_t i = 0; i < tars->count; i++) {
        chosen += is_tar(tars->names[i]) && split && names_split(tars->names[i], split);
        alone = alone && !nl_is_picture_name(tars->names[i]);
    }
    *taken = chosen > 0;
    for (int64_t i = 0; i < tars->count; i++)
        if (alone && is_tar(tars->names[i]) && (!chosen || names_split(tars->names[i], split)))
            tars->names[kept++] = tars->names[i];
        else
            nl_free(context, tars->names[i]);
    tars->count = kept;
cleanup:
    nl_listing_free(context, &folders);
    return status;
}

static nl_status open_all(nl_archive *a, const nl_listing *tars)
{
    nl_source *source = a->source;
    int64_t count = tars ? tars->count : 1;
    NL_CHECK(NL_NEW_ZEROS(a->context, "a list of files", count, &source->files));
    if (!tars)
        NL_CHECK(read_archive(a, NULL, source->path));
    for (int64_t i = 0; tars && i < count; i++)
        NL_CHECK(read_archive(a, source->path, tars->names[i]));
    drop_earlier(a);
    return NL_OK;
}

/* Whether a file is a tar or a zip, by its first bytes. */
static nl_status is_archive(nl_context *context, const char *path, bool *found)
{
    nl_mapping file;
    NL_CHECK(nl_map_file(context, path, &file));
    *found =
        nl_tar_recognizes(file.data, file.size) ||
        (file.size > 4 && (!memcmp(file.data, "PK\3\4", 4) || !memcmp(file.data, "PK\5\6", 4)));
    nl_unmap(context, &file);
    return NL_OK;
}

nl_status nl_source_open_archive(nl_source *source, const nl_source_options *options, bool *found)
{
    nl_archive a = {.source = source, .context = source->context};
    nl_listing tars = {0};
    nl_status status;
    bool folder = nl_path_is_folder(source->path), taken = false;
    *found = false;
    if (folder) {
        NL_TRY(list_tars(source, options->split, &tars, &taken));
        *found = tars.count > 0;
    } else {
        NL_TRY(is_archive(source->context, source->path, found));
    }
    if (!*found)
        goto cleanup;
    source->archives = true;
    NL_TRY(open_all(&a, folder ? &tars : NULL));
    NL_TRY(add_pictures(&a, options, taken));
    nl_picture_walk_warn(source->context, source->path, &a.left);
    if (options->unconditional)
        nl_source_drop_classes(source);
cleanup:
    for (int64_t i = 0; i < a.count; i++)
        nl_free(source->context, a.members[i].name);
    nl_free(source->context, a.members);
    nl_listing_free(source->context, &tars);
    return status;
}
