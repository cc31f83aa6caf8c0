/* SPDX-License-Identifier: MIT */
/*
 * A restricted machine for Python's pickles: it builds data and calls nothing. Numbers, strings,
 * tuples, lists, dicts and sets become themselves; whatever Python would make by calling a class or
 * a function becomes an object that names it. Knows no tensors.
 */
#ifndef NL_PICKLE_H
#define NL_PICKLE_H

#include "nl_core.h"

typedef enum nl_pickle_kind {
    NL_PICKLE_NONE,
    NL_PICKLE_BOOL,
    NL_PICKLE_INT,
    NL_PICKLE_LONG, /* an integer beyond 64 bits: its little-endian bytes */
    NL_PICKLE_FLOAT,
    NL_PICKLE_TEXT,
    NL_PICKLE_BYTES,
    NL_PICKLE_TUPLE,
    NL_PICKLE_LIST,
    NL_PICKLE_DICT, /* OrderedDict and defaultdict too */
    NL_PICKLE_SET,
    NL_PICKLE_GLOBAL,     /* a class or function by its dotted name */
    NL_PICKLE_PERSISTENT, /* a thing outside the pickle */
    NL_PICKLE_OBJECT
} nl_pickle_kind;

typedef struct nl_pickle_value nl_pickle_value;

struct nl_pickle_value {
    nl_pickle_kind kind;
    union {
        int64_t integer; /* BOOL, INT */
        double real;     /* FLOAT */
        struct {
            const char *
                text; /* TEXT, BYTES, LONG: in the pickle, not ended by NUL. GLOBAL: ended by NUL */
            int64_t size;
        };
        struct {
            const nl_pickle_value *callee, *arguments; /* OBJECT; PERSISTENT: arguments is its id */
            const nl_pickle_value *state;              /* OBJECT: what BUILD gave it, or NULL */
        };
    };
    const nl_pickle_value **items; /* TUPLE, LIST, SET; DICT and OBJECT: keys and values in turn */
    int64_t count, capacity;       /* of items */
};

/* Starts as {.context, .where}; holds every value that it ever gave. */
typedef struct nl_pickle {
    nl_context *context;
    const char *where;          /* for messages */
    nl_pickle_value references; /* a list of all PERSISTENT values */
    void *chunks;
    int64_t used; /* bytes of all chunks; bounded */
} nl_pickle;

/* Reads the pickle (protocols 2 to 5) that begins at `data`, whose bytes outlive its values, and
 * says how long it is. NL_ERROR_INPUT for what is malformed, and for a pickle that names something
 * which would run code, like os.system: by name. */
nl_status nl_pickle_load(nl_pickle *pickle, const uint8_t *data, int64_t size, int64_t *length,
                         const nl_pickle_value **value);
void nl_pickle_free(nl_pickle *pickle);

bool nl_pickle_is_text(const nl_pickle_value *value, const char *text);
bool nl_pickle_is_global(const nl_pickle_value *value, const char *name);
/* The value under a string key of a DICT, or of an OBJECT's items; NULL when there is none. */
const nl_pickle_value *nl_pickle_get(const nl_pickle_value *value, const char *key);

/* pickle_globals.c. Whether calling it would run code of somebody's choice. */
bool nl_pickle_runs_code(const char *name);

/* pickle_values.c, for the machine. Memory that nl_pickle_free frees; a value of a kind, empty;
 * room for items; items added. */
nl_status nl_pickle_take(nl_pickle *pickle, int64_t size, void **memory);
nl_status nl_pickle_new(nl_pickle *pickle, nl_pickle_kind kind, nl_pickle_value **value);
nl_status nl_pickle_reserve(nl_pickle *pickle, nl_pickle_value *list, int64_t capacity);
nl_status nl_pickle_append(nl_pickle *pickle, nl_pickle_value *list,
                           const nl_pickle_value *const *items, int64_t count);

#endif
