/* SPDX-License-Identifier: MIT */
/* Tensors of a torch file from the values that its pickle describes, every view checked. */
#include "torch.h"

#include <string.h>

enum { NAME_LIMIT = 512 };

/* Element types by the storage class that a pickle names, or by torch's own name of the type. */
static const struct {
    const char *storage, *name;
    nl_dtype dtype;
} types[] = {
    {"FloatStorage", "torch.float32", NL_F32}, {"BFloat16Storage", "torch.bfloat16", NL_BF16},
    {"HalfStorage", "torch.float16", NL_F16},  {"DoubleStorage", "torch.float64", NL_F64},
    {"CharStorage", "torch.int8", NL_I8},      {"ByteStorage", "torch.uint8", NL_U8},
    {"BoolStorage", "torch.bool", NL_BOOL},    {"ShortStorage", "torch.int16", NL_I16},
    {"IntStorage", "torch.int32", NL_I32},     {"LongStorage", "torch.int64", NL_I64},
};

/* A tensor while it is read. */
typedef struct nl_torch_tensor {
    nl_torch *torch;
    const char *name;
    const nl_pickle_value *storage, *offset, *shape, *strides, *type; /* as the pickle has them */
    nl_dtype dtype;
    int64_t elements; /* of the storage */
} nl_torch_tensor;

static nl_status bad_tensor(const nl_torch_tensor *tensor, const char *what, const char *found)
{
    return nl_fail(tensor->torch->checkpoint->context, NL_ERROR_INPUT, "%s: tensor %s %s%s",
                   tensor->torch->checkpoint->path, tensor->name, what, found);
}

static const nl_pickle_value *item(const nl_pickle_value *tuple, int64_t index)
{
    return tuple && tuple->kind == NL_PICKLE_TUPLE && index < tuple->count ? tuple->items[index]
                                                                           : NULL;
}

static bool is_whole(const nl_pickle_value *value)
{
    return value && value->kind == NL_PICKLE_INT && value->integer >= 0;
}

/* From the function that rebuilds the tensor, through those that wrap it, to its parts. */
static nl_status unwrap(nl_torch_tensor *tensor, const nl_pickle_value *value)
{
    static const char utils[] = "torch._utils.";
    const nl_pickle_value *callee = value->callee, *arguments = value->arguments;
    for (int depth = 0; depth < 8 && callee && callee->kind == NL_PICKLE_GLOBAL; depth++) {
        const char *name = callee->text;
        if (strcmp(name, "torch._tensor._rebuild_from_type_v2") == 0) {
            callee = item(arguments, 0);
            arguments = item(arguments, 2);
            continue;
        }
        if (strncmp(name, utils, sizeof(utils) - 1) == 0)
            name += sizeof(utils) - 1;
        if (strcmp(name, "_rebuild_parameter") == 0 ||
            strcmp(name, "_rebuild_parameter_with_state") == 0) {
            const nl_pickle_value *inner = item(arguments, 0);
            bool object = inner && inner->kind == NL_PICKLE_OBJECT;
            callee = object ? inner->callee : NULL;
            arguments = object ? inner->arguments : NULL;
            continue;
        }
        bool typed = strcmp(name, "_rebuild_tensor_v3") == 0;
        if (!typed && strcmp(name, "_rebuild_tensor_v2") != 0 &&
            strcmp(name, "_rebuild_tensor") != 0)
            return bad_tensor(tensor, "is of a kind that is not read: ", callee->text);
        tensor->storage = item(arguments, 0);
        tensor->offset = item(arguments, 1);
        tensor->shape = item(arguments, 2);
        tensor->strides = item(arguments, 3);
        tensor->type = typed ? item(arguments, 6) : NULL;
        return NL_OK;
    }
    return bad_tensor(tensor, "is wrapped in something unknown", "");
}

static bool find_type(const char *name, nl_dtype *dtype)
{
    const char *dot = strrchr(name, '.'), *last = dot ? dot + 1 : name;
    for (int i = 0; i < NL_COUNT(types); i++)
        if (strcmp(last, types[i].storage) == 0 || strcmp(name, types[i].name) == 0) {
            *dtype = types[i].dtype;
            return true;
        }
    return false;
}

/* ("storage", class, key, device, elements[, (key of a view, its first element, its elements)]) */
static nl_status read_storage(nl_torch_tensor *tensor, const uint8_t **data)
{
    const nl_pickle_value *id = tensor->storage && tensor->storage->kind == NL_PICKLE_PERSISTENT
                                    ? tensor->storage->arguments
                                    : NULL;
    const nl_pickle_value *class = item(id, 1), *key = item(id, 2), *count = item(id, 4);
    const nl_pickle_value *view = item(id, 5);
    if (!nl_pickle_is_text(item(id, 0), "storage") || !class || class->kind != NL_PICKLE_GLOBAL ||
        !key || key->kind != NL_PICKLE_TEXT || !is_whole(count))
        return bad_tensor(tensor, "has no storage that is understood", "");
    bool untyped = strcmp(class->text, "torch.storage.UntypedStorage") == 0;
    const nl_pickle_value *type = tensor->type ? tensor->type : class;
    if (type->kind != NL_PICKLE_GLOBAL || !find_type(type->text, &tensor->dtype))
        return bad_tensor(tensor,
                          "has a type that is not read (read are the floats of 64, 32 and 16 bits, "
                          "bfloat16, whole numbers and bool): ",
                          type->kind == NL_PICKLE_GLOBAL ? type->text : "?");
    int64_t bytes, needed, first = 0, size = nl_dtype_size(tensor->dtype);
    nl_status status = tensor->torch->find(tensor->torch, key, data, &bytes);
    if (status != NL_OK)
        return nl_fail_in(tensor->torch->checkpoint->context, status, "tensor %s", tensor->name);
    tensor->elements = untyped ? count->integer / size : count->integer;
    if (!nl_mul_size(tensor->elements, size, &needed) || needed > bytes)
        return bad_tensor(tensor, "has a storage that is cut off: the file is damaged", "");
    if (!view || view->kind != NL_PICKLE_TUPLE)
        return NL_OK;
    const nl_pickle_value *start = item(view, 1), *length = item(view, 2);
    if (!is_whole(start) || !is_whole(length) || start->integer > tensor->elements ||
        length->integer > tensor->elements - start->integer)
        return bad_tensor(tensor, "is part of a storage that is too short", "");
    first = start->integer;
    tensor->elements = length->integer;
    *data += first * size;
    return NL_OK;
}

/* A tuple of whole numbers, or torch.Size of one. */
static nl_status read_sizes(const nl_torch_tensor *tensor, const nl_pickle_value *value,
                            const char *what, int64_t sizes[NL_MAX_DIMS], int *count)
{
    if (value && value->kind == NL_PICKLE_OBJECT &&
        nl_pickle_is_global(value->callee, "torch.Size"))
        value = item(value->arguments, 0);
    if (!value || value->kind != NL_PICKLE_TUPLE)
        return bad_tensor(tensor, "has no ", what);
    if (value->count > NL_MAX_DIMS)
        return bad_tensor(tensor, "has more than 5 sizes", "");
    for (int i = 0; i < (int)value->count; i++) {
        if (!is_whole(value->items[i]))
            return bad_tensor(tensor, "has something else than whole numbers >= 0 in its ", what);
        sizes[i] = value->items[i]->integer;
    }
    *count = (int)value->count;
    return NL_OK;
}

/* Whether the view ends within its storage; all arithmetic is checked. */
static bool view_fits(const nl_entry *entry, const int64_t *strides, int64_t offset,
                      int64_t elements)
{
    int64_t last = offset, count = nl_dtype_size(entry->dtype);
    bool fits = true, empty = false;
    for (int i = 0; i < entry->ndim && fits; i++) {
        int64_t step = 0;
        fits = nl_mul_size(count, entry->shape[i], &count);
        empty = empty || entry->shape[i] == 0;
        if (entry->shape[i] > 1)
            fits = fits && nl_mul_size(entry->shape[i] - 1, strides[i], &step) &&
                   nl_add_size(last, step, &last);
    }
    return fits && (empty || last < elements);
}

static bool row_major(const nl_entry *entry, const int64_t *strides)
{
    int64_t expected = 1;
    for (int i = entry->ndim - 1; i >= 0; i--) {
        if (entry->shape[i] != 1 && strides[i] != expected)
            return false;
        expected *= entry->shape[i];
    }
    return true;
}

/* strides: [NL_MAX_DIMS], the entry's own to keep. */
static nl_status read_tensor(nl_torch *torch, const char *name, const nl_pickle_value *value,
                             int64_t *strides, nl_entry *entry)
{
    nl_torch_tensor tensor = {.torch = torch, .name = name};
    const uint8_t *data;
    int stride_count;
    for (int i = 0; i < NL_MAX_DIMS; i++)
        entry->shape[i] = 1;
    NL_CHECK(unwrap(&tensor, value));
    NL_CHECK(read_storage(&tensor, &data));
    NL_CHECK(read_sizes(&tensor, tensor.shape, "shape", entry->shape, &entry->ndim));
    NL_CHECK(read_sizes(&tensor, tensor.strides, "strides", strides, &stride_count));
    entry->name = name;
    entry->dtype = tensor.dtype;
    if (stride_count != entry->ndim)
        return bad_tensor(&tensor, "has not as many strides as sizes", "");
    if (!is_whole(tensor.offset) ||
        !view_fits(entry, strides, tensor.offset->integer, tensor.elements)) {
        char shape[128];
        nl_shape_text(entry->ndim, entry->shape, shape, sizeof(shape));
        return bad_tensor(&tensor, "does not fit into its storage with its shape ", shape);
    }
    entry->data = data;
    if (nl_entry_count(entry) > 0)
        entry->data = data + tensor.offset->integer * nl_dtype_size(entry->dtype);
    entry->strides = row_major(entry, strides) ? NULL : strides;
    return NL_OK;
}

/* ---- A dict of tensors as a checkpoint's table */

static bool good_name(const nl_pickle_value *key)
{
    if (key->kind != NL_PICKLE_TEXT || key->size < 1 || key->size > NAME_LIMIT)
        return false;
    for (int64_t i = 0; i < key->size; i++)
        if (key->text[i] <= ' ' || key->text[i] > '~')
            return false;
    return true;
}

/* How many tensors, and the bytes of their names; says what is left out. */
static nl_status count_tensors(nl_torch *torch, const nl_pickle_value *dict, int64_t *count,
                               int64_t *text)
{
    nl_context *context = torch->checkpoint->context;
    const nl_pickle_value *other = NULL;
    int64_t others = 0;
    *count = *text = 0;
    for (int64_t i = 0; i < dict->count; i += 2) {
        const nl_pickle_value *key = dict->items[i];
        if (nl_torch_is_tensor(dict->items[i + 1])) {
            if (!good_name(key))
                return nl_fail(
                    context, NL_ERROR_INPUT,
                    "%s: a tensor has a name that is not printable ASCII, or longer than "
                    "%d bytes",
                    torch->checkpoint->path, NAME_LIMIT);
            *text += key->size + 1;
            ++*count;
        } else if (good_name(key) && !others++) {
            other = key;
        }
    }
    if (others)
        nl_log(context, NL_LOG_INFO, "%s: %.*s%s left out: no tensor", torch->checkpoint->path,
               (int)other->size, other->text, others > 1 ? " and others" : "");
    return NL_OK;
}

static nl_status fill_entries(nl_torch *torch, const nl_pickle_value *dict)
{
    nl_checkpoint *checkpoint = torch->checkpoint;
    nl_context *context = checkpoint->context;
    int64_t *strides;
    char *text;
    int64_t count, text_size;
    NL_CHECK(count_tensors(torch, dict, &count, &text_size));
    NL_CHECK(NL_NEW_ZEROS(context, "a checkpoint's table", count, &checkpoint->entries));
    NL_CHECK(NL_OWN_ARRAY(checkpoint, "strides", count * NL_MAX_DIMS, &strides));
    NL_CHECK(NL_OWN_ARRAY(checkpoint, "names of tensors", text_size, &text));
    for (int64_t i = 0; i < dict->count; i += 2) {
        const nl_pickle_value *key = dict->items[i];
        if (!nl_torch_is_tensor(dict->items[i + 1]))
            continue;
        memcpy(text, key->text, (size_t)key->size);
        text[key->size] = '\0';
        NL_CHECK(read_tensor(torch, text, dict->items[i + 1], strides,
                             &checkpoint->entries[checkpoint->count]));
        checkpoint->count++;
        text += key->size + 1;
        strides += NL_MAX_DIMS;
    }
    return NL_OK;
}

nl_status nl_torch_fill(nl_torch *torch, const nl_pickle_value *root)
{
    const nl_pickle_value *dict;
    NL_CHECK(nl_torch_choose(torch, root, &dict));
    NL_CHECK(nl_torch_facts(torch, root));
    return fill_entries(torch, dict);
}
