/* SPDX-License-Identifier: MIT */
/* Which of the dicts in a torch checkpoint, and what else the file says. */
#include <stdio.h>
#include <string.h>

#include "torch.h"

enum {
    LEVELS = 4,       /* dicts in dicts that are looked into */
    FACT_LIMIT = 200, /* strings and numbers that are kept */
    FACT_SIZE = 4096  /* bytes of one */
};

/* Names under which training programs keep state dicts, the best one first. */
static const char *const places[] = {"ema",   "model_ema",        "state_dict",
                                     "model", "model_state_dict", "module"};

bool nl_torch_is_tensor(const nl_pickle_value *value)
{
    static const char *const makers[] = {"torch._utils._rebuild_", "torch._tensor._rebuild_"};
    if (value->kind != NL_PICKLE_OBJECT || value->callee->kind != NL_PICKLE_GLOBAL)
        return false;
    for (int i = 0; i < NL_COUNT(makers); i++)
        if (strncmp(value->callee->text, makers[i], strlen(makers[i])) == 0)
            return true;
    return false;
}

static bool has_tensors(const nl_pickle_value *value)
{
    if (!value || (value->kind != NL_PICKLE_DICT && value->kind != NL_PICKLE_OBJECT))
        return false;
    for (int64_t i = 1; i < value->count; i += 2)
        if (nl_torch_is_tensor(value->items[i]))
            return true;
    return false;
}

/* The best place inside `value` that leads to tensors; NULL: none. A pickle may hold itself:
 * `levels` ends the search. */
static const char *best_place(const nl_pickle_value *value, int levels)
{
    for (int i = 0; i < NL_COUNT(places) && levels > 0; i++) {
        const nl_pickle_value *inner = nl_pickle_get(value, places[i]);
        if (inner && (has_tensors(inner) || best_place(inner, levels - 1)))
            return places[i];
    }
    return NULL;
}

/* "ema, model, opt, args": the string keys of a dict. */
static nl_status list_keys(nl_checkpoint *checkpoint, const nl_pickle_value *dict, char **text)
{
    enum { KEYS = 12, SHOWN = 40 };
    char list[KEYS * (SHOWN + 2) + 16] = "";
    int used = 0, keys = 0;
    for (int64_t i = 0; i < dict->count; i += 2) {
        const nl_pickle_value *key = dict->items[i];
        if (key->kind != NL_PICKLE_TEXT)
            continue;
        if (keys++ == KEYS) {
            used += snprintf(list + used, sizeof(list) - (size_t)used, ", ...");
            break;
        }
        used += snprintf(list + used, sizeof(list) - (size_t)used, "%s", keys > 1 ? ", " : "");
        for (int64_t j = 0; j < NL_MIN(key->size, SHOWN); j++)
            list[used++] = key->text[j] >= ' ' && key->text[j] <= '~' ? key->text[j] : '?';
        list[used] = '\0';
    }
    return nl_strdup(checkpoint->context, list, text);
}

static nl_status not_a_dict(const nl_checkpoint *checkpoint, const nl_pickle_value *root)
{
    static const char *const kinds[] = {"None",      "a bool",
                                        "a number",  "a number",
                                        "a number",  "a string",
                                        "bytes",     "a tuple",
                                        "a list",    "a dict",
                                        "a set",     "a class",
                                        "a storage", "an object of a class"};
    if (root->kind == NL_PICKLE_OBJECT && nl_pickle_get(root->state, "_modules"))
        return nl_fail(checkpoint->context, NL_ERROR_INPUT,
                       "%s: it holds a whole module (%s) instead of its tensors: save "
                       "module.state_dict()",
                       checkpoint->path,
                       root->callee->kind == NL_PICKLE_GLOBAL ? root->callee->text : "?");
    return nl_fail(checkpoint->context, NL_ERROR_INPUT,
                   "%s: it holds %s instead of a dict of tensors: save module.state_dict()",
                   checkpoint->path, nl_torch_is_tensor(root) ? "one tensor" : kinds[root->kind]);
}

/* Says so when there was something to choose from. */
static void log_choice(const nl_checkpoint *checkpoint)
{
    if (checkpoint->taken && !checkpoint->key)
        nl_log(checkpoint->context, NL_LOG_INFO,
               "%s holds %s; taken is %s (--key of sample, info or convert chooses)",
               checkpoint->path, checkpoint->holds, checkpoint->taken);
}

nl_status nl_torch_choose(nl_torch *torch, const nl_pickle_value *root,
                          const nl_pickle_value **dict)
{
    nl_checkpoint *checkpoint = torch->checkpoint;
    if (root->kind != NL_PICKLE_DICT && !(root->kind == NL_PICKLE_OBJECT && root->count > 0))
        return not_a_dict(checkpoint, root);
    NL_CHECK(list_keys(checkpoint, root, &checkpoint->holds));
    const nl_pickle_value *value = root;
    if (checkpoint->key && nl_pickle_get(root, checkpoint->key)) {
        value = nl_pickle_get(root, checkpoint->key);
        checkpoint->key_found = true;
        NL_CHECK(nl_checkpoint_take(checkpoint, checkpoint->key));
    }
    for (int level = 0; level < LEVELS; level++) {
        const char *place = best_place(value, LEVELS - level);
        if (!place)
            break;
        value = nl_pickle_get(value, place);
        NL_CHECK(nl_checkpoint_take(checkpoint, place));
    }
    if (!has_tensors(value))
        return nl_fail(checkpoint->context, NL_ERROR_INPUT,
                       "%s: no tensors where they were looked for (%s); the file holds %s: choose "
                       "one of these with --key (sample, info, convert)",
                       checkpoint->path, checkpoint->taken ? checkpoint->taken : "its top",
                       checkpoint->holds[0] ? checkpoint->holds : "an empty dict");
    log_choice(checkpoint);
    *dict = value;
    return NL_OK;
}

/* ---- Facts */

typedef struct nl_facts {
    nl_checkpoint *checkpoint;
    int count;
} nl_facts;

/* A string without control characters, or a number, as text. */
static bool fact_text(const nl_pickle_value *value, char text[FACT_SIZE])
{
    switch (value->kind) {
    case NL_PICKLE_BOOL:
        snprintf(text, FACT_SIZE, "%s", value->integer ? "true" : "false");
        return true;
    case NL_PICKLE_INT:
        snprintf(text, FACT_SIZE, "%lld", (long long)value->integer);
        return true;
    case NL_PICKLE_FLOAT:
        snprintf(text, FACT_SIZE, "%.17g", value->real);
        return true;
    case NL_PICKLE_TEXT:
        if (value->size >= FACT_SIZE)
            return false;
        for (int64_t i = 0; i < value->size; i++)
            if (value->text[i] < ' ' || value->text[i] > '~')
                return false;
        snprintf(text, FACT_SIZE, "%.*s", (int)value->size, value->text);
        return true;
    default:
        return false;
    }
}

static nl_status own_text(nl_checkpoint *checkpoint, const char *prefix, const char *text,
                          int64_t size, char **copy)
{
    size_t before = strlen(prefix);
    NL_CHECK(NL_OWN_ARRAY(checkpoint, "metadata", (int64_t)before + size + 1, copy));
    memcpy(*copy, prefix, before);
    memcpy(*copy + before, text, (size_t)size);
    (*copy)[before + (size_t)size] = '\0';
    return NL_OK;
}

static nl_status add_facts(nl_facts *facts, const nl_pickle_value *dict, const char *prefix)
{
    char text[FACT_SIZE], key_text[FACT_SIZE];
    for (int64_t i = 0; dict && i < dict->count && facts->count < FACT_LIMIT; i += 2) {
        const nl_pickle_value *key = dict->items[i];
        if (key->kind != NL_PICKLE_TEXT || !fact_text(key, key_text) ||
            !fact_text(dict->items[i + 1], text))
            continue;
        char **pair = facts->checkpoint->metadata + 2 * facts->count;
        NL_CHECK(own_text(facts->checkpoint, prefix, key->text, key->size, &pair[0]));
        NL_CHECK(own_text(facts->checkpoint, "", text, (int64_t)strlen(text), &pair[1]));
        facts->count++;
    }
    return NL_OK;
}

nl_status nl_torch_facts(nl_torch *torch, const nl_pickle_value *root)
{
    nl_checkpoint *checkpoint = torch->checkpoint;
    nl_facts facts = {.checkpoint = checkpoint};
    const nl_pickle_value *args = nl_pickle_get(root, "args");
    NL_CHECK(
        NL_NEW_ZEROS(checkpoint->context, "metadata", 2 * FACT_LIMIT + 1, &checkpoint->metadata));
    NL_CHECK(add_facts(&facts, root, ""));
    if (args && args->kind == NL_PICKLE_OBJECT) /* argparse.Namespace */
        args = args->state;
    if (args && args->kind == NL_PICKLE_DICT)
        NL_CHECK(add_facts(&facts, args, "args."));
    return NL_OK;
}
