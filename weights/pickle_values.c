/* SPDX-License-Identifier: MIT */
/* The values of a pickle: their memory, and looking at them. */
#include <string.h>

#include "pickle.h"

enum {
    CHUNK = 1 << 16,
    MEMORY_LIMIT = 256 << 20 /* honest checkpoints take a few MiB: a tensor is some ten values */
};

/* Chunks that are freed together. */
typedef struct nl_chunk {
    struct nl_chunk *next;
    int64_t size, used;
    int64_t data[];
} nl_chunk;

nl_status nl_pickle_take(nl_pickle *pickle, int64_t size, void **memory)
{
    nl_chunk *chunk = pickle->chunks;
    size = (size + 7) / 8 * 8; /* values hold nothing that is aligned to more */
    if (!chunk || chunk->size - chunk->used < size) {
        int64_t bytes = NL_MAX(size, CHUNK);
        if (bytes > MEMORY_LIMIT - pickle->used)
            return nl_fail(
                pickle->context, NL_ERROR_INPUT,
                "%s: its pickle makes objects of more than %d MiB: this is no checkpoint",
                pickle->where, MEMORY_LIMIT >> 20);
        NL_CHECK(NL_NEW_SIZED(pickle->context, "a pickle's objects",
                              (int64_t)sizeof(*chunk) + bytes, 1, &chunk));
        *chunk = (nl_chunk){.next = pickle->chunks, .size = bytes};
        pickle->chunks = chunk;
        pickle->used += bytes;
    }
    *memory = (char *)chunk->data + chunk->used;
    chunk->used += size;
    return NL_OK;
}

void nl_pickle_free(nl_pickle *pickle)
{
    nl_chunk *chunk = pickle->chunks;
    while (chunk) {
        nl_chunk *next = chunk->next;
        nl_free(pickle->context, chunk);
        chunk = next;
    }
    pickle->chunks = NULL;
    pickle->references = (nl_pickle_value){0};
    pickle->used = 0;
}

nl_status nl_pickle_new(nl_pickle *pickle, nl_pickle_kind kind, nl_pickle_value **value)
{
    void *memory = NULL;
    NL_CHECK(nl_pickle_take(pickle, sizeof(**value), &memory));
    *value = memory;
    **value = (nl_pickle_value){.kind = kind};
    return NL_OK;
}

nl_status nl_pickle_reserve(nl_pickle *pickle, nl_pickle_value *list, int64_t capacity)
{
    if (capacity <= list->capacity)
        return NL_OK;
    void *memory = NULL;
    capacity = NL_MAX(capacity, NL_MAX(2 * list->capacity, 4));
    NL_CHECK(nl_pickle_take(pickle, capacity * (int64_t)sizeof(*list->items), &memory));
    if (list->count > 0)
        memcpy(memory, list->items, (size_t)list->count * sizeof(*list->items));
    list->items = memory;
    list->capacity = capacity;
    return NL_OK;
}

nl_status nl_pickle_append(nl_pickle *pickle, nl_pickle_value *list,
                           const nl_pickle_value *const *from, int64_t count)
{
    NL_CHECK(nl_pickle_reserve(pickle, list, list->count + count));
    for (int64_t i = 0; i < count; i++)
        list->items[list->count++] = from[i];
    return NL_OK;
}

bool nl_pickle_is_text(const nl_pickle_value *value, const char *text)
{
    return value && value->kind == NL_PICKLE_TEXT && value->size == (int64_t)strlen(text) &&
           memcmp(value->text, text, (size_t)value->size) == 0;
}

bool nl_pickle_is_global(const nl_pickle_value *value, const char *name)
{
    return value && value->kind == NL_PICKLE_GLOBAL && strcmp(value->text, name) == 0;
}

const nl_pickle_value *nl_pickle_get(const nl_pickle_value *value, const char *key)
{
    if (!value || (value->kind != NL_PICKLE_DICT && value->kind != NL_PICKLE_OBJECT))
        return NULL;
    for (int64_t i = value->count - 2; i >= 0; i -= 2) /* a key set twice has its last value */
        if (nl_pickle_is_text(value->items[i], key))
            return value->items[i + 1];
    return NULL;
}
