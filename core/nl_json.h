/* SPDX-License-Identifier: MIT */
/*
 * Strict JSON on top of cJSON: a reader that refuses what cJSON lets pass (duplicate keys, trailing
 * text, depth, numbers out of range) and whose messages name file, key, expectation and finding.
 */
#ifndef NL_JSON_H
#define NL_JSON_H

#include <cjson/cJSON.h>

#include "nl_core.h"

/*
 * Strings here are what the system has: names of files and folders may hold bytes that are not UTF-8. In a text such a
 * byte is written \udc80 to \udcff, as Python's surrogateescape has it, which no other string is written as; what
 * nl_json_print writes nl_json_parse reads back byte by byte. Nothing else prints or reads JSON.
 *
 * An integer of more than 15 digits, which doubles and cJSON's printing may change, keeps them: its item is a cJSON_Raw.
 */

/* text need not end in NUL. `where` (a file name, an option) starts every message and is copied.
 * Refuses more than 64 levels, duplicate keys in one object, bytes after the value, invalid UTF-8. */
nl_status nl_json_parse(nl_context *context, const char *where, const char *text, size_t size,
                        cJSON **value);

/* Allocated, to be given back by cJSON_free; NULL: no memory, or no value. lines: one for each member, indented. */
char *nl_json_print(const cJSON *value, bool lines);

/* Whether the item (or NULL) is a number, and which. */
bool nl_json_number(const cJSON *item, double *value);
/* Whether it is an integer that int64_t holds, exactly. */
bool nl_json_whole(const cJSON *item, int64_t *value);

/* A cursor over one object. Each nl_json_* call below looks one key up, checks type and range, and
 * leaves *value as it was when the key is absent. */
typedef struct nl_json {
    nl_context *context;
    const char *where; /* for messages */
    const cJSON *object;
} nl_json;

nl_status nl_json_bool(const nl_json *json, const char *key, bool *value);
/* Digits are read as they stand, beyond 2^53 too. */
nl_status nl_json_int(const nl_json *json, const char *key, int64_t low, int64_t high,
                      int64_t *value);
nl_status nl_json_double(const nl_json *json, const char *key, double low, double high,
                         double *value);
/* *value points into the tree. */
nl_status nl_json_string(const nl_json *json, const char *key, const char **value);
/* Position of the string in names (ended by NULL), which the message lists when it is not there. */
nl_status nl_json_choice(const nl_json *json, const char *key, const char *const *names,
                         int *value);
/* Every key of the object must be in `known` (ended by NULL); the nearest is suggested. */
nl_status nl_json_known_keys(const nl_json *json, const char *const *known);

/* Edit distance, for suggestions: the name in names (ended by NULL) nearest to word, or NULL when
 * none is near. */
const char *nl_nearest(const char *word, const char *const *names);

#endif
