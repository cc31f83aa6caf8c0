/* SPDX-License-Identifier: MIT */
/* The document of the interfaces: serve/page/openapi.json, with the fields of a job from the table of options. */
#include "nl_wanted.h"
#include "served.h"

#include <string.h>

static void add_range(cJSON *field, const char *low, const char *high, const nl_option *option)
{
    cJSON_AddNumberToObject(field, low, option->low);
    cJSON_AddNumberToObject(field, high, option->high);
}

static void add_types(cJSON *field, const char *a, const char *b)
{
    cJSON_AddItemToObject(field, "type", cJSON_CreateStringArray((const char *[]){a, b}, 2));
}

/* What may stand at the key of this option. */
static cJSON *field_schema(const nl_option *option)
{
    cJSON *field = cJSON_CreateObject();
    cJSON_AddStringToObject(field, "description", option->help);
    switch (option->kind) {
    case NL_OPTION_FLAG:
        cJSON_AddStringToObject(field, "type", "boolean");
        break;
    case NL_OPTION_INT:
        cJSON_AddStringToObject(field, "type", "integer");
        add_range(field, "minimum", "maximum", option);
        break;
    case NL_OPTION_REAL:
        cJSON_AddStringToObject(field, "type", "number");
        add_range(field, "minimum", "maximum", option);
        break;
    case NL_OPTION_SEED: /* beyond 2^53 a text */
        add_types(field, "integer", "string");
        cJSON_AddNumberToObject(field, "minimum", 0);
        cJSON_AddStringToObject(field, "pattern", "^[0-9]{1,19}$");
        break;
    case NL_OPTION_EXTENT:
        add_types(field, "integer", "string");
        add_range(field, "minimum", "maximum", option);
        cJSON_AddStringToObject(field, "pattern", "^[1-9][0-9]{0,4}(x[1-9][0-9]{0,4})?$");
        break;
    case NL_OPTION_CHOICE: {
        int count = 0;
        while (option->choices[count])
            count++;
        cJSON_AddItemToObject(field, "enum", cJSON_CreateStringArray(option->choices, count));
        break;
    }
    default:
        add_types(field, "string", "integer");
        break;
    }
    return field;
}

nl_status nl_openapi(nl_context *context, cJSON **out)
{
    nl_option rows[NL_MOST_OPTIONS];
    cJSON *document = NULL;
    nl_status status = nl_json_parse(context, "openapi.json", (const char *)nl_openapi_json,
                                     nl_openapi_json_size, &document);
    *out = document;
    if (status != NL_OK)
        return status;
    cJSON *components = cJSON_GetObjectItemCaseSensitive(document, "components");
    cJSON *schemas = cJSON_GetObjectItemCaseSensitive(components, "schemas");
    cJSON *fields = cJSON_GetObjectItemCaseSensitive(schemas, "Fields");
    cJSON *properties = cJSON_GetObjectItemCaseSensitive(fields, "properties");
    cJSON *model = cJSON_AddObjectToObject(properties, "model");
    cJSON_AddStringToObject(model, "type", "string");
    cJSON_AddStringToObject(model, "description", "of /api/models (the first)");
    nl_options_of(&nl_wanted_command, rows);
    for (const nl_option *o = rows; o->name; o++) {
        char key[64];
        if (!(o->where & NL_IN_REQUEST))
            continue;
        snprintf(key, sizeof(key), "%s", o->name);
        for (char *c = key; *c; c++)
            *c = *c == '-' ? '_' : *c;
        cJSON_AddItemToObject(properties, key, field_schema(o));
    }
    return NL_OK;
}
