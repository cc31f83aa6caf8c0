/* SPDX-License-Identifier: MIT */
/* Pickles: what loads is a graph of values that lie in the pickle or in its own memory. */
#include "nl_fuzz.h"
#include "pickle.h"

/* Values may hold themselves: `depth` ends the walk. Returns how many were seen. */
static int64_t visit(const nl_pickle_value *value, int depth, int64_t budget)
{
    int64_t seen = 1;
    FUZZ_CHECK(value->kind <= NL_PICKLE_OBJECT);
    FUZZ_CHECK(value->count >= 0 && value->count <= value->capacity);
    if (value->kind == NL_PICKLE_GLOBAL)
        FUZZ_CHECK(!nl_pickle_runs_code(value->text) && strlen(value->text) == (size_t)value->size);
    if (value->kind == NL_PICKLE_DICT || value->kind == NL_PICKLE_OBJECT)
        FUZZ_CHECK(value->count % 2 == 0);
    if (value->kind == NL_PICKLE_TEXT || value->kind == NL_PICKLE_BYTES)
        for (int64_t i = 0; i < value->size; i++)
            seen += value->text[i] == 'x'; /* reads every byte */
    for (int64_t i = 0; i < value->count && depth > 0 && seen < budget; i++)
        seen += visit(value->items[i], depth - 1, budget - seen);
    if (value->kind == NL_PICKLE_OBJECT && depth > 0) {
        seen += visit(value->callee, depth - 1, budget - seen);
        seen += visit(value->arguments, depth - 1, budget - seen);
        if (value->state)
            seen += visit(value->state, depth - 1, budget - seen);
    }
    return seen;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    nl_context *context = fuzz_context();
    int64_t used = context->memory_used, length = -1;
    nl_pickle pickle = {.context = context, .where = "fuzz"};
    const nl_pickle_value *value = NULL;
    nl_status status = nl_pickle_load(&pickle, data, (int64_t)size, &length, &value);
    if (status == NL_OK) {
        FUZZ_CHECK(length > 0 && length <= (int64_t)size);
        visit(value, 8, 10000);
        (void)nl_pickle_get(value, "ema");
        for (int64_t i = 0; i < pickle.references.count; i++)
            FUZZ_CHECK(pickle.references.items[i]->kind == NL_PICKLE_PERSISTENT);
    }
    nl_pickle_free(&pickle);
    fuzz_end(context, used, status);
    return 0;
}
