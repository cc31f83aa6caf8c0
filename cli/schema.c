/* SPDX-License-Identifier: MIT */
/* The JSON schema of `sample`: a line of --requests, its answer, and what --json prints of a picture. The keys of a request and
 * of a picture come from the table of options, as do those that are read and written. */
#include "nl_help.h"

#include <string.h>

#include "nl_sample.h"

static cJSON *typed(const char *type, const char *description)
{
    cJSON *schema = cJSON_CreateObject();
    cJSON_AddStringToObject(schema, "type", type);
    if (description)
        cJSON_AddStringToObject(schema, "description", description);
    return schema;
}

static void add(cJSON *properties, const char *key, const char *type, const char *description)
{
    cJSON_AddItemToObject(properties, key, typed(type, description));
}

static void add_any(cJSON *properties, const char *key, const char *description)
{
    cJSON *schema = cJSON_AddObjectToObject(properties, key);
    cJSON_AddStringToObject(schema, "description", description);
}

static void add_types(cJSON *schema, const char *const *types, int count)
{
    cJSON_AddItemToObject(schema, "type", cJSON_CreateStringArray(types, count));
}

static void add_range(cJSON *schema, const nl_option *o)
{
    cJSON_AddNumberToObject(schema, "minimum", o->low);
    cJSON_AddNumberToObject(schema, "maximum", o->high);
}

/* A value as a request may have it, or as a picture's facts do. */
static cJSON *value_schema(const nl_option *o, bool request)
{
    static const char *const number_texts[] = {"number", "string"};
    static const char *const lists[] = {"string", "number", "array"};
    static const char *const seeds[] = {"integer", "string"};
    cJSON *schema = cJSON_CreateObject(), *choices;
    char help[128];
    switch (o->kind) {
    case NL_OPTION_FLAG:
        cJSON_AddStringToObject(schema, "type", "boolean");
        break;
    case NL_OPTION_INT:
    case NL_OPTION_REAL:
        cJSON_AddStringToObject(schema, "type", o->kind == NL_OPTION_INT ? "integer" : "number");
        add_range(schema, o);
        break;
    case NL_OPTION_SEED:
        add_types(schema, seeds, 2); /* a text where doubles would lose digits */
        break;
    case NL_OPTION_CHOICE:
        choices = cJSON_AddArrayToObject(schema, "enum");
        for (int i = 0; o->choices[i]; i++)
            cJSON_AddItemToArray(choices, cJSON_CreateString(o->choices[i]));
        break;
    case NL_OPTION_EXTENT:
    case NL_OPTION_BYTES:
        add_types(schema, number_texts, 2);
        break;
    case NL_OPTION_FILE:
        cJSON_AddStringToObject(schema, "type", "string");
        break;
    case NL_OPTION_TEXT:
    case NL_OPTION_CLASS:
    case NL_OPTION_INTERVAL:
    case NL_OPTION_PLACE:
        add_types(schema, lists, request ? 3 : 2);
        break;
    }
    snprintf(help, sizeof(help), "%.*s", (int)strcspn(o->help, "\n"), o->help);
    cJSON_AddStringToObject(schema, "description", help);
    return schema;
}

/* "cfg-scale" is the key "cfg_scale". */
static void add_options(cJSON *properties, unsigned where)
{
    nl_option rows[NL_MOST_OPTIONS];
    for (const nl_option *o = nl_options_of(&nl_sample_command, rows); o->name; o++) {
        char key[64];
        snprintf(key, sizeof(key), "%s", o->name);
        for (char *c = key; *c; c++)
            *c = *c == '-' ? '_' : *c;
        if (!(o->where & where) || cJSON_HasObjectItem(properties, key))
            continue;
        cJSON_AddItemToObject(properties, key, value_schema(o, where == NL_IN_REQUEST));
        if (where == NL_IN_REQUEST && o->letter) /* "n" is the key "number" */
            cJSON_AddItemToObject(properties, (char[]){o->letter, '\0'}, value_schema(o, true));
    }
}

static cJSON *object_schema(cJSON *defs, const char *name, const char *description)
{
    cJSON *schema = typed("object", description);
    cJSON_AddItemToObject(schema, "properties", cJSON_CreateObject());
    cJSON_AddFalseToObject(schema, "additionalProperties");
    cJSON_AddItemToObject(defs, name, schema);
    return schema;
}

static void require(cJSON *schema, const char *const *keys, int count)
{
    cJSON_AddItemToObject(schema, "required", cJSON_CreateStringArray(keys, count));
}

static void add_picture(cJSON *defs)
{
    static const char *const needed[] = {"file", "seconds"};
    cJSON *schema =
        object_schema(defs, "picture",
                      "One line of sample --json, and an entry of an answer's pictures: "
                      "a file, how it was made, and the options that are no defaults");
    cJSON *p = cJSON_GetObjectItem(schema, "properties");
    add(p, "file", "string", "the path as it was given or made");
    add(p, "evaluations", "number", "of the network, of a picture or an archive");
    add(p, "seconds", "number", "since the file before, of an archive since the beginning");
    add(p, "pictures", "integer", "of an archive: in it");
    add(p, "made", "integer", "of an archive: by this run");
    add(p, "pictures_per_second", "number", "of an archive");
    add(p, "version", "string", "of nalagen");
    add(p, "model", "string", "file name of the checkpoint");
    add(p, "name", "string", "NaLaSiT-S/2");
    add(p, "sha256", "string", "of the checkpoint");
    add(p, "vae", "string", "file name, where one was given");
    add(p, "guide", "string", "file name of the model that guides");
    add(p, "guide_sha256", "string", "its hash");
    add(p, "device", "string", "where the picture was made");
    add_any(p, "class", "index; in a grid the list that was given");
    add_types(cJSON_GetObjectItem(p, "class"), (const char *const[]){"integer", "string"}, 2);
    add(p, "class_name", "string", NULL);
    add(p, "index", "integer", "of the picture; in a grid of the first");
    add(p, "noise", "string", "file name, where one was given");
    add_options(p, NL_IN_PICTURE);
    require(schema, needed, NL_COUNT(needed));
}

static void add_answer(cJSON *defs)
{
    static const char *const needed[] = {"line", "status", "pictures"};
    cJSON *schema = object_schema(defs, "answer", "What a line of --requests is answered by");
    cJSON *p = cJSON_GetObjectItem(schema, "properties");
    add(p, "line", "integer", "of the request, from 1");
    add_any(p, "id", "as in the request");
    add(p, "status", "string", "\"ok\", or what the exit code means");
    add(p, "code", "integer", "the exit code that this would be; not with \"ok\"");
    add(p, "error", "string", "what was wrong; not with \"ok\"");
    add(p, "pictures", "array", "those that were written, also where it failed later");
    cJSON *items = cJSON_AddObjectToObject(cJSON_GetObjectItem(p, "pictures"), "items");
    cJSON_AddStringToObject(items, "$ref", "#/$defs/picture");
    require(schema, needed, NL_COUNT(needed));
}

bool nl_print_schema(FILE *stream)
{
    cJSON *root = cJSON_CreateObject(), *defs = cJSON_CreateObject();
    cJSON_AddStringToObject(root, "$schema", "https://json-schema.org/draft/2020-12/schema");
    cJSON_AddStringToObject(root, "title", "nalagen sample: --requests and --json");
    cJSON_AddItemToObject(root, "$defs", defs);
    cJSON *request = object_schema(defs, "request",
                                   "A line of --requests: options of sample, with _ for -. Numbers "
                                   "may be texts, a list is the same as its items with commas");
    cJSON *p = cJSON_GetObjectItem(request, "properties");
    add_any(p, "id", "anything; comes back in the answer");
    add_options(p, NL_IN_REQUEST);
    add_answer(defs);
    add_picture(defs);
    char *text = nl_json_print(root, true);
    if (text)
        fprintf(stream, "%s\n", text);
    cJSON_free(text);
    cJSON_Delete(root);
    return text != NULL;
}
