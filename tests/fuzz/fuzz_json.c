/* SPDX-License-Identifier: MIT */
/* The strict JSON reader and its typed access. */
#include "nl_fuzz.h"
#include "nl_json.h"

/* Asks every key of every object for every type; what is given keeps its range. */
static void visit(nl_context *context, const cJSON *value)
{
    static const char *const names[] = {"a", "b", NULL};
    nl_json json = {context, "fuzz", value};
    for (const cJSON *item = value->child; item; item = item->next) {
        if (cJSON_IsObject(value)) {
            bool boolean = false;
            int64_t whole = 5;
            double number = 5;
            int choice = 0;
            const char *text = NULL;
            FUZZ_CHECK(item->string);
            if (nl_json_int(&json, item->string, -9, 9, &whole) == NL_OK)
                FUZZ_CHECK(whole >= -9 && whole <= 9);
            if (nl_json_double(&json, item->string, -9, 9, &number) == NL_OK)
                FUZZ_CHECK(number >= -9 && number <= 9);
            if (nl_json_choice(&json, item->string, names, &choice) == NL_OK)
                FUZZ_CHECK(choice >= 0 && choice < 2);
            if (nl_json_string(&json, item->string, &text) == NL_OK)
                FUZZ_CHECK(text);
            (void)nl_json_bool(&json, item->string, &boolean);
        }
        visit(context, item);
    }
    if (cJSON_IsObject(value))
        (void)nl_json_known_keys(&json, names);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    nl_context *context = fuzz_context();
    int64_t used = context->memory_used;
    cJSON *value = NULL;
    nl_status status = nl_json_parse(context, "fuzz", (const char *)data, size, &value);
    FUZZ_CHECK((status == NL_OK) == (value != NULL));
    if (value)
        visit(context, value);
    cJSON_Delete(value);
    fuzz_end(context, used, status);
    return 0;
}
