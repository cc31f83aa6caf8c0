/* SPDX-License-Identifier: MIT */
/*
 * torch.save before 1.6, and later with _use_new_zipfile_serialization=False: pickles one behind
 * the other, then the storages.
 *
 *   pickle  0x1950a86a20f9469cfc6c
 *   pickle  1001, the protocol
 *   pickle  {"protocol_version", "little_endian", "type_sizes"}
 *   pickle  the object
 *   pickle  list of the storages' keys
 *   then for each key: 8 bytes number of elements, the elements; all little endian
 */
#include <stdlib.h>
#include <string.h>

#include "nl_bytes.h"
#include "torch.h"

typedef struct nl_legacy_storage {
    const char *key; /* in the file */
    int64_t key_size;
    int element_size;
    const uint8_t *data;
    int64_t bytes;
} nl_legacy_storage;

typedef struct nl_legacy {
    nl_torch *torch;
    int64_t at;                  /* in the file */
    nl_legacy_storage *storages; /* by key */
    int64_t count;
} nl_legacy;

static int compare_keys(const void *a, const void *b)
{
    const nl_legacy_storage *x = a, *y = b;
    int order = memcmp(x->key, y->key, (size_t)NL_MIN(x->key_size, y->key_size));
    return order ? order : (x->key_size > y->key_size) - (x->key_size < y->key_size);
}

static nl_legacy_storage *find_key(const nl_legacy *legacy, const nl_pickle_value *key)
{
    nl_legacy_storage wanted = {.key = key->text, .key_size = key->size};
    if (legacy->count == 0)
        return NULL;
    return bsearch(&wanted, legacy->storages, (size_t)legacy->count, sizeof(wanted), compare_keys);
}

static nl_status find_storage(nl_torch *torch, const nl_pickle_value *key, const uint8_t **data,
                              int64_t *bytes)
{
    const nl_legacy_storage *storage = find_key(torch->source, key);
    if (!storage)
        return nl_fail(torch->checkpoint->context, NL_ERROR_INPUT,
                       "%s: its storage %.*s is not in the file", torch->checkpoint->path,
                       (int)NL_MIN(key->size, 64), key->text);
    *data = storage->data;
    *bytes = storage->bytes;
    return NL_OK;
}

static nl_status bad(const nl_legacy *legacy, const char *what)
{
    return nl_fail(legacy->torch->checkpoint->context, NL_ERROR_INPUT,
                   "%s: torch checkpoint of the old format: %s", legacy->torch->checkpoint->path,
                   what);
}

static nl_status next_pickle(nl_legacy *legacy, const nl_pickle_value **value)
{
    const nl_mapping *mapping = &legacy->torch->checkpoint->mapping;
    int64_t length;
    nl_status status = nl_pickle_load(&legacy->torch->pickle, mapping->data + legacy->at,
                                      mapping->size - legacy->at, &length, value);
    if (status == NL_OK)
        legacy->at += length;
    return status;
}

/* What stands before the object. The magic number was compared when the format was told. */
static nl_status read_preface(nl_legacy *legacy)
{
    const nl_pickle_value *magic, *protocol, *system;
    NL_CHECK(next_pickle(legacy, &magic));
    NL_CHECK(next_pickle(legacy, &protocol));
    NL_CHECK(next_pickle(legacy, &system));
    if (protocol->kind != NL_PICKLE_INT || protocol->integer != 1001)
        return bad(legacy, "expected the protocol 1001");
    const nl_pickle_value *little = nl_pickle_get(system, "little_endian");
    if (!little || little->kind != NL_PICKLE_BOOL || !little->integer)
        return bad(legacy, "it was written on a big-endian machine, which is not read");
    return NL_OK;
}

static nl_status list_storages(nl_legacy *legacy, const nl_pickle_value *keys)
{
    if (keys->kind != NL_PICKLE_LIST)
        return bad(legacy, "no list of storages follows its objects");
    NL_CHECK(NL_NEW_ARRAY(legacy->torch->checkpoint->context, "storages", keys->count,
                          &legacy->storages));
    for (int64_t i = 0; i < keys->count; i++) {
        const nl_pickle_value *key = keys->items[i];
        if (key->kind != NL_PICKLE_TEXT)
            return bad(legacy, "the key of a storage is no string");
        legacy->storages[legacy->count++] =
            (nl_legacy_storage){.key = key->text, .key_size = key->size};
    }
    if (legacy->count > 0)
        qsort(legacy->storages, (size_t)legacy->count, sizeof(nl_legacy_storage), compare_keys);
    for (int64_t i = 1; i < legacy->count; i++)
        if (compare_keys(&legacy->storages[i - 1], &legacy->storages[i]) == 0)
            return bad(legacy, "a storage is there twice");
    return NL_OK;
}

/* Bytes of one element by the class that the pickle names; 0 for one that we do not know. */
static int element_size(const char *class)
{
    static const struct {
        const char *name;
        int size;
    } sizes[] = {{"FloatStorage", 4},          {"BFloat16Storage", 2}, {"HalfStorage", 2},
                 {"DoubleStorage", 8},         {"CharStorage", 1},     {"ByteStorage", 1},
                 {"BoolStorage", 1},           {"ShortStorage", 2},    {"IntStorage", 4},
                 {"LongStorage", 8},           {"UntypedStorage", 1},  {"ComplexFloatStorage", 8},
                 {"ComplexDoubleStorage", 16}, {"QInt8Storage", 1},    {"QUInt8Storage", 1},
                 {"QInt32Storage", 4}};
    const char *dot = strrchr(class, '.'), *name = dot ? dot + 1 : class;
    for (int i = 0; i < NL_COUNT(sizes); i++)
        if (strcmp(name, sizes[i].name) == 0)
            return sizes[i].size;
    return 0;
}

/* A storage's type stands not where its elements are but where a tensor refers to it. */
static void apply_references(nl_legacy *legacy)
{
    const nl_pickle_value *references = &legacy->torch->pickle.references;
    for (int64_t i = 0; i < references->count; i++) {
        const nl_pickle_value *id = references->items[i]->arguments;
        if (id->kind != NL_PICKLE_TUPLE || id->count < 5 ||
            !nl_pickle_is_text(id->items[0], "storage") || id->items[1]->kind != NL_PICKLE_GLOBAL ||
            id->items[2]->kind != NL_PICKLE_TEXT)
            continue;
        nl_legacy_storage *storage = find_key(legacy, id->items[2]);
        if (storage)
            storage->element_size = element_size(id->items[1]->text);
    }
}

static nl_status locate_storages(nl_legacy *legacy, const nl_pickle_value *keys)
{
    const nl_mapping *mapping = &legacy->torch->checkpoint->mapping;
    for (int64_t i = 0; i < keys->count; i++) {
        nl_legacy_storage *storage = find_key(legacy, keys->items[i]);
        int64_t room = mapping->size - legacy->at - 8;
        if (storage->element_size == 0)
            return bad(legacy, "a storage has a type that is not known");
        if (room < 0)
            return bad(legacy, "the file is cut off: a storage is missing");
        uint64_t elements = nl_little(mapping->data + legacy->at, 8);
        if (elements > (uint64_t)room / (uint64_t)storage->element_size)
            return bad(legacy, "the file is cut off: a storage does not end within it");
        storage->data = mapping->data + legacy->at + 8;
        storage->bytes = (int64_t)elements * storage->element_size;
        legacy->at += 8 + storage->bytes;
    }
    return NL_OK;
}

nl_status nl_torch_legacy_parse(nl_checkpoint *checkpoint)
{
    nl_context *context = checkpoint->context;
    nl_legacy legacy = {0};
    nl_torch torch = {.checkpoint = checkpoint,
                      .pickle = {.context = context, .where = checkpoint->path},
                      .find = find_storage,
                      .source = &legacy};
    nl_status status;
    const nl_pickle_value *root, *keys;
    legacy.torch = &torch;
    NL_TRY(read_preface(&legacy));
    NL_TRY(next_pickle(&legacy, &root));
    NL_TRY(next_pickle(&legacy, &keys));
    NL_TRY(list_storages(&legacy, keys));
    apply_references(&legacy);
    NL_TRY(locate_storages(&legacy, keys));
    NL_TRY(nl_torch_fill(&torch, root));
cleanup:
    nl_pickle_free(&torch.pickle);
    nl_free(context, legacy.storages);
    return status;
}
