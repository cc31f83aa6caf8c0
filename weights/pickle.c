/* SPDX-License-Identifier: MIT */
/* A pickle machine that builds values and calls nothing. */
#include "pickle.h"

#include <stdlib.h>
#include <string.h>

#include "nl_bytes.h"

enum {
    MARK_LIMIT = 1000, /* MARKs open at once: the depth that is still being built */
    NAME_LIMIT = 1000  /* bytes of a global's name */
};

/* Pickle's opcodes of protocols 2 to 5, without those that are for text, extensions and buffers. */
enum {
    OP_MARK = '(',
    OP_STOP = '.',
    OP_POP = '0',
    OP_POP_MARK = '1',
    OP_DUP = '2',
    OP_BINBYTES = 'B',
    OP_SHORT_BINBYTES = 'C',
    OP_BINFLOAT = 'G',
    OP_BININT = 'J',
    OP_BININT1 = 'K',
    OP_BININT2 = 'M',
    OP_NONE = 'N',
    OP_BINPERSID = 'Q',
    OP_REDUCE = 'R',
    OP_BINSTRING = 'T',
    OP_SHORT_BINSTRING = 'U',
    OP_BINUNICODE = 'X',
    OP_EMPTY_LIST = ']',
    OP_APPEND = 'a',
    OP_BUILD = 'b',
    OP_GLOBAL = 'c',
    OP_DICT = 'd',
    OP_APPENDS = 'e',
    OP_BINGET = 'h',
    OP_LONG_BINGET = 'j',
    OP_LIST = 'l',
    OP_BINPUT = 'q',
    OP_LONG_BINPUT = 'r',
    OP_SETITEM = 's',
    OP_TUPLE = 't',
    OP_EMPTY_TUPLE = ')',
    OP_SETITEMS = 'u',
    OP_EMPTY_DICT = '}',
    OP_PROTO = 0x80,
    OP_NEWOBJ = 0x81,
    OP_TUPLE1 = 0x85,
    OP_TUPLE2 = 0x86,
    OP_TUPLE3 = 0x87,
    OP_NEWTRUE = 0x88,
    OP_NEWFALSE = 0x89,
    OP_LONG1 = 0x8a,
    OP_LONG4 = 0x8b,
    OP_SHORT_BINUNICODE = 0x8c,
    OP_BINUNICODE8 = 0x8d,
    OP_BINBYTES8 = 0x8e,
    OP_EMPTY_SET = 0x8f,
    OP_ADDITEMS = 0x90,
    OP_FROZENSET = 0x91,
    OP_NEWOBJ_EX = 0x92,
    OP_STACK_GLOBAL = 0x93,
    OP_MEMOIZE = 0x94,
    OP_FRAME = 0x95,
    OP_BYTEARRAY8 = 0x96
};

typedef struct nl_machine {
    nl_pickle *pickle;
    const uint8_t *data;
    int64_t size, at, opcode; /* opcode: where the present one stands */
    nl_pickle_value stack;    /* a list */
    nl_pickle_value memo;     /* a list; NULL where nothing was put */
    int64_t marks[MARK_LIMIT];
    int mark_count;
} nl_machine;

/* ---- The machine's parts */

static nl_status broken(const nl_machine *machine, const char *what)
{
    (void)nl_fail(machine->pickle->context, NL_ERROR_INPUT, "%s: byte %lld of its pickle: %s",
                  machine->pickle->where, (long long)machine->opcode, what);
    return NL_ERROR_INPUT;
}

static nl_status next(nl_machine *machine, uint64_t count, const uint8_t **bytes)
{
    if (count > (uint64_t)(machine->size - machine->at))
        return broken(machine, "it ends in the middle of a value: the file is cut off or damaged");
    *bytes = machine->data + machine->at;
    machine->at += (int64_t)count;
    return NL_OK;
}

/* An unsigned number of 1, 2, 4 or 8 bytes. */
static nl_status next_number(nl_machine *machine, int bytes, uint64_t *number)
{
    const uint8_t *data = NULL;
    nl_status status = next(machine, (uint64_t)bytes, &data);
    if (status == NL_OK)
        *number = nl_little(data, bytes);
    return status;
}

static nl_status push(nl_machine *machine, const nl_pickle_value *value)
{
    return nl_pickle_append(machine->pickle, &machine->stack, &value, 1);
}

/* How many values lie above the last mark. */
static int64_t above_mark(const nl_machine *machine)
{
    int64_t floor = machine->mark_count ? machine->marks[machine->mark_count - 1] : 0;
    return machine->stack.count - floor;
}

static nl_status pop(nl_machine *machine, const nl_pickle_value **value)
{
    if (above_mark(machine) < 1)
        return broken(machine, "it takes a value from an empty stack");
    *value = machine->stack.items[--machine->stack.count];
    return NL_OK;
}

/* The value that the next APPEND, SETITEM or BUILD changes: it was made by this machine, so it is
 * ours. */
static nl_status top(nl_machine *machine, nl_pickle_value **value)
{
    if (above_mark(machine) < 1)
        return broken(machine, "it changes a value on an empty stack");
    *value = (nl_pickle_value *)machine->stack.items[machine->stack.count - 1];
    return NL_OK;
}

/* Takes all above the last mark, and the mark. The items stay readable until the next push. */
static nl_status pop_marked(nl_machine *machine, const nl_pickle_value *const **items,
                            int64_t *count)
{
    if (machine->mark_count == 0)
        return broken(machine, "it goes back to a mark that it has not set");
    *count = above_mark(machine);
    machine->stack.count -= *count;
    machine->mark_count--;
    *items = machine->stack.items + machine->stack.count;
    return NL_OK;
}

static nl_status push_new(nl_machine *machine, nl_pickle_kind kind, nl_pickle_value **value)
{
    nl_status status = nl_pickle_new(machine->pickle, kind, value);
    return status == NL_OK ? push(machine, *value) : status;
}

static nl_status push_integer(nl_machine *machine, nl_pickle_kind kind, int64_t integer)
{
    nl_pickle_value *value;
    nl_status status = push_new(machine, kind, &value);
    if (status == NL_OK)
        value->integer = integer;
    return status;
}

/* A string behind its length, which has `bytes` bytes. */
static nl_status push_string(nl_machine *machine, nl_pickle_kind kind, int bytes)
{
    uint64_t size;
    const uint8_t *data;
    nl_pickle_value *value;
    NL_CHECK(next_number(machine, bytes, &size));
    NL_CHECK(next(machine, size, &data));
    NL_CHECK(push_new(machine, kind, &value));
    value->text = (const char *)data;
    value->size = (int64_t)size;
    return NL_OK;
}

/* Two's complement of any length. */
static nl_status push_long(nl_machine *machine, int bytes)
{
    nl_status status = push_string(machine, NL_PICKLE_LONG, bytes);
    nl_pickle_value *value;
    if (status != NL_OK || (status = top(machine, &value)) != NL_OK || value->size > 8)
        return status;
    const uint8_t *data = (const uint8_t *)value->text;
    int size = (int)value->size;
    uint64_t number = nl_little(data, size);
    if (size > 0 && size < 8 && data[size - 1] & 0x80)
        number |= ~(uint64_t)0 << 8 * size;
    value->kind = NL_PICKLE_INT;
    value->integer = (int64_t)number;
    return NL_OK;
}

static nl_status push_float(nl_machine *machine)
{
    const uint8_t *data = NULL;
    nl_pickle_value *value;
    uint64_t bits = 0;
    NL_CHECK(next(machine, 8, &data));
    for (int i = 0; i < 8; i++) /* the one big-endian number of pickles */
        bits = bits << 8 | data[i];
    NL_CHECK(push_new(machine, NL_PICKLE_FLOAT, &value));
    memcpy(&value->real, &bits, sizeof(bits));
    return NL_OK;
}

static nl_status push_tuple(nl_machine *machine, nl_pickle_kind kind, int64_t count)
{
    nl_pickle_value *tuple;
    if (above_mark(machine) < count)
        return broken(machine, "it makes a tuple of more values than there are");
    NL_CHECK(nl_pickle_new(machine->pickle, kind, &tuple));
    machine->stack.count -= count;
    NL_CHECK(nl_pickle_append(machine->pickle, tuple, machine->stack.items + machine->stack.count,
                              count));
    return push(machine, tuple);
}

static nl_status push_marked(nl_machine *machine, nl_pickle_kind kind)
{
    const nl_pickle_value *const *items;
    int64_t count;
    NL_CHECK(pop_marked(machine, &items, &count));
    if (kind == NL_PICKLE_DICT && count % 2)
        return broken(machine, "a dict has a key without a value");
    machine->stack.count += count;
    /* above_mark may be more than count now: an outer mark's values lie below */
    return push_tuple(machine, kind, count);
}

/* ---- Memo */

static nl_status put(nl_machine *machine, uint64_t index)
{
    nl_pickle_value *value, *memo = &machine->memo;
    /* Picklers number what they remember from 0, one for each value. */
    if (index > (uint64_t)machine->opcode)
        return broken(machine, "it remembers a value under an impossible number");
    NL_CHECK(top(machine, &value));
    NL_CHECK(nl_pickle_reserve(machine->pickle, memo, (int64_t)index + 1));
    while (memo->count <= (int64_t)index)
        memo->items[memo->count++] = NULL;
    memo->items[index] = value;
    return NL_OK;
}

static nl_status get(nl_machine *machine, int bytes)
{
    uint64_t index;
    NL_CHECK(next_number(machine, bytes, &index));
    if (index >= (uint64_t)machine->memo.count || !machine->memo.items[index])
        return broken(machine, "it recalls a value that it has not remembered");
    return push(machine, machine->memo.items[index]);
}

/* ---- Globals and what is made of them */

static nl_status push_global(nl_machine *machine, const char *module, int64_t module_size,
                             const char *name, int64_t name_size)
{
    nl_pickle *pickle = machine->pickle;
    nl_pickle_value *value;
    void *memory;
    if (module_size + name_size > NAME_LIMIT || module_size < 1 || name_size < 1)
        return broken(machine, "a class has a name of impossible length");
    NL_CHECK(nl_pickle_take(pickle, module_size + name_size + 2, &memory));
    char *text = memory;
    memcpy(text, module, (size_t)module_size);
    text[module_size] = '.';
    memcpy(text + module_size + 1, name, (size_t)name_size);
    text[module_size + 1 + name_size] = '\0';
    for (const char *c = text; c < text + module_size + 1 + name_size; c++)
        if (*c <= ' ' || *c > '~')
            return broken(machine, "a class has a name that is not printable ASCII");
    if (nl_pickle_runs_code(text))
        return nl_fail(pickle->context, NL_ERROR_INPUT,
                       "%s: refused: byte %lld of its pickle names %s, which would run code in "
                       "Python. A checkpoint has no use for that: do not load this file anywhere "
                       "else either",
                       pickle->where, (long long)machine->opcode, text);
    NL_CHECK(push_new(machine, NL_PICKLE_GLOBAL, &value));
    value->text = text;
    value->size = module_size + 1 + name_size;
    return NL_OK;
}

static nl_status read_line(nl_machine *machine, const char **line, int64_t *size)
{
    const uint8_t *start = machine->data + machine->at;
    const uint8_t *end = machine->at < machine->size
                             ? memchr(start, '\n', (size_t)(machine->size - machine->at))
                             : NULL;
    if (!end)
        return broken(machine, "the name of a class does not end: the file is cut off or damaged");
    *line = (const char *)start;
    *size = end - start;
    machine->at += *size + 1;
    return NL_OK;
}

static nl_status global_by_lines(nl_machine *machine)
{
    const char *module, *name;
    int64_t module_size, name_size;
    nl_status status = read_line(machine, &module, &module_size);
    if (status == NL_OK)
        status = read_line(machine, &name, &name_size);
    return status == NL_OK ? push_global(machine, module, module_size, name, name_size) : status;
}

static nl_status global_from_stack(nl_machine *machine)
{
    const nl_pickle_value *module, *name;
    NL_CHECK(pop(machine, &name));
    NL_CHECK(pop(machine, &module));
    if (module->kind != NL_PICKLE_TEXT || name->kind != NL_PICKLE_TEXT)
        return broken(machine, "the name of a class is no string");
    return push_global(machine, module->text, module->size, name->text, name->size);
}

/* OrderedDict's older form has its items as the argument: [[key, value], ...]. */
static nl_status take_pairs(nl_machine *machine, const nl_pickle_value *arguments,
                            nl_pickle_value *dict)
{
    const nl_pickle_value *pairs = arguments->count > 0 ? arguments->items[0] : NULL;
    if (!pairs || (pairs->kind != NL_PICKLE_LIST && pairs->kind != NL_PICKLE_TUPLE))
        return NL_OK;
    for (int64_t i = 0; i < pairs->count; i++) {
        const nl_pickle_value *pair = pairs->items[i];
        if ((pair->kind != NL_PICKLE_LIST && pair->kind != NL_PICKLE_TUPLE) || pair->count != 2)
            return broken(machine, "an OrderedDict is made of something else than pairs");
        NL_CHECK(nl_pickle_append(machine->pickle, dict, pair->items, 2));
    }
    return NL_OK;
}

/* REDUCE, NEWOBJ and NEWOBJ_EX: what a class or function would give for these arguments. */
static nl_status make_object(nl_machine *machine, bool keywords)
{
    const nl_pickle_value *callee, *arguments, *ignored;
    nl_pickle_value *value;
    if (keywords)
        NL_CHECK(pop(machine, &ignored));
    NL_CHECK(pop(machine, &arguments));
    NL_CHECK(pop(machine, &callee));
    if (callee->kind != NL_PICKLE_GLOBAL && callee->kind != NL_PICKLE_PERSISTENT)
        return broken(machine, "it calls something that is no class and no function");
    if (arguments->kind != NL_PICKLE_TUPLE)
        return broken(machine, "the arguments of a class are no tuple");
    bool ordered = nl_pickle_is_global(callee, "collections.OrderedDict");
    bool dict = ordered || nl_pickle_is_global(callee, "collections.defaultdict");
    NL_CHECK(push_new(machine, dict ? NL_PICKLE_DICT : NL_PICKLE_OBJECT, &value));
    if (ordered)
        NL_CHECK(take_pairs(machine, arguments, value));
    if (!dict) {
        value->callee = callee;
        value->arguments = arguments;
    }
    return NL_OK;
}

static nl_status persistent(nl_machine *machine)
{
    const nl_pickle_value *id;
    nl_pickle_value *value;
    NL_CHECK(pop(machine, &id));
    NL_CHECK(push_new(machine, NL_PICKLE_PERSISTENT, &value));
    value->arguments = id;
    return nl_pickle_append(machine->pickle, &machine->pickle->references,
                            &(const nl_pickle_value *const){value}, 1);
}

/* BUILD: attributes of an object. Those of a dict (a state dict's _metadata) are of no interest. */
static nl_status build(nl_machine *machine)
{
    const nl_pickle_value *state;
    nl_pickle_value *value;
    NL_CHECK(pop(machine, &state));
    NL_CHECK(top(machine, &value));
    if (value->kind == NL_PICKLE_OBJECT)
        value->state = state;
    else if (value->kind != NL_PICKLE_DICT)
        return broken(machine, "it gives attributes to something that has none");
    return NL_OK;
}

/* ---- Filling containers */

static nl_status add_items(nl_machine *machine, const nl_pickle_value *const *items, int64_t count,
                           nl_pickle_kind kind)
{
    nl_pickle_value *value;
    NL_CHECK(top(machine, &value));
    if (kind == NL_PICKLE_DICT && count % 2)
        return broken(machine, "a dict gets a key without a value");
    if (value->kind == kind || (value->kind == NL_PICKLE_OBJECT && kind == NL_PICKLE_DICT))
        return nl_pickle_append(machine->pickle, value, items, count);
    /* a subclass of list or set: what is in it is of no interest */
    return value->kind == NL_PICKLE_OBJECT
               ? NL_OK
               : broken(machine, "it fills something that holds nothing");
}

static nl_status add_marked(nl_machine *machine, nl_pickle_kind kind)
{
    const nl_pickle_value *const *items;
    int64_t count;
    nl_status status = pop_marked(machine, &items, &count);
    return status == NL_OK ? add_items(machine, items, count, kind) : status;
}

static nl_status add_last(nl_machine *machine, nl_pickle_kind kind, int64_t count)
{
    if (above_mark(machine) < count)
        return broken(machine, "it takes a value from an empty stack");
    machine->stack.count -= count;
    return add_items(machine, machine->stack.items + machine->stack.count, count, kind);
}

/* ---- Opcodes */

static nl_status mark(nl_machine *machine)
{
    if (machine->mark_count == MARK_LIMIT)
        return broken(machine, "it is nested too deeply");
    machine->marks[machine->mark_count++] = machine->stack.count;
    return NL_OK;
}

static nl_status drop(nl_machine *machine, bool to_mark)
{
    const nl_pickle_value *const *items, *value;
    int64_t count;
    return to_mark || (machine->mark_count && above_mark(machine) == 0)
               ? pop_marked(machine, &items, &count)
               : pop(machine, &value);
}

static nl_status duplicate(nl_machine *machine)
{
    nl_pickle_value *value;
    nl_status status = top(machine, &value);
    return status == NL_OK ? push(machine, value) : status;
}

static nl_status protocol(nl_machine *machine)
{
    uint64_t number;
    nl_status status = next_number(machine, 1, &number);
    if (status == NL_OK && (number < 2 || number > 5))
        return broken(machine, "its protocol is none of 2 to 5");
    return status;
}

static nl_status integer(nl_machine *machine, int bytes)
{
    uint64_t number;
    NL_CHECK(next_number(machine, bytes, &number));
    return push_integer(machine, NL_PICKLE_INT,
                        bytes == 4 ? (int64_t)(int32_t)number : (int64_t)number);
}

static nl_status remember(nl_machine *machine, int bytes)
{
    uint64_t index = (uint64_t)machine->memo.count; /* MEMOIZE: the next */
    nl_status status = bytes ? next_number(machine, bytes, &index) : NL_OK;
    return status == NL_OK ? put(machine, index) : status;
}

static nl_status empty(nl_machine *machine, nl_pickle_kind kind)
{
    nl_pickle_value *value;
    return push_new(machine, kind, &value);
}

static nl_status unknown(nl_machine *machine, uint8_t opcode)
{
    return nl_fail(machine->pickle->context, NL_ERROR_INPUT,
                   "%s: byte %lld of its pickle: opcode 0x%02x is not one that checkpoints have",
                   machine->pickle->where, (long long)machine->opcode, opcode);
}

/* All but STOP. */
static nl_status execute(nl_machine *machine, uint8_t opcode)
{
    const uint8_t *ignored;
    switch (opcode) {
    case OP_PROTO:
        return protocol(machine);
    case OP_FRAME:
        return next(machine, 8, &ignored);
    case OP_MARK:
        return mark(machine);
    case OP_POP:
    case OP_POP_MARK:
        return drop(machine, opcode == OP_POP_MARK);
    case OP_DUP:
        return duplicate(machine);
    case OP_NONE:
        return empty(machine, NL_PICKLE_NONE);
    case OP_NEWTRUE:
    case OP_NEWFALSE:
        return push_integer(machine, NL_PICKLE_BOOL, opcode == OP_NEWTRUE);
    case OP_BININT:
        return integer(machine, 4);
    case OP_BININT1:
        return integer(machine, 1);
    case OP_BININT2:
        return integer(machine, 2);
    case OP_LONG1:
        return push_long(machine, 1);
    case OP_LONG4:
        return push_long(machine, 4);
    case OP_BINFLOAT:
        return push_float(machine);
    case OP_SHORT_BINSTRING: /* Python 2's strings */
    case OP_SHORT_BINUNICODE:
        return push_string(machine, NL_PICKLE_TEXT, 1);
    case OP_BINSTRING:
    case OP_BINUNICODE:
        return push_string(machine, NL_PICKLE_TEXT, 4);
    case OP_BINUNICODE8:
        return push_string(machine, NL_PICKLE_TEXT, 8);
    case OP_SHORT_BINBYTES:
        return push_string(machine, NL_PICKLE_BYTES, 1);
    case OP_BINBYTES:
        return push_string(machine, NL_PICKLE_BYTES, 4);
    case OP_BINBYTES8:
    case OP_BYTEARRAY8:
        return push_string(machine, NL_PICKLE_BYTES, 8);
    case OP_EMPTY_TUPLE:
        return empty(machine, NL_PICKLE_TUPLE);
    case OP_TUPLE1:
    case OP_TUPLE2:
    case OP_TUPLE3:
        return push_tuple(machine, NL_PICKLE_TUPLE, opcode - OP_TUPLE1 + 1);
    case OP_TUPLE:
        return push_marked(machine, NL_PICKLE_TUPLE);
    case OP_EMPTY_LIST:
        return empty(machine, NL_PICKLE_LIST);
    case OP_LIST:
        return push_marked(machine, NL_PICKLE_LIST);
    case OP_APPEND:
        return add_last(machine, NL_PICKLE_LIST, 1);
    case OP_APPENDS:
        return add_marked(machine, NL_PICKLE_LIST);
    case OP_EMPTY_DICT:
        return empty(machine, NL_PICKLE_DICT);
    case OP_DICT:
        return push_marked(machine, NL_PICKLE_DICT);
    case OP_SETITEM:
        return add_last(machine, NL_PICKLE_DICT, 2);
    case OP_SETITEMS:
        return add_marked(machine, NL_PICKLE_DICT);
    case OP_EMPTY_SET:
        return empty(machine, NL_PICKLE_SET);
    case OP_FROZENSET:
        return push_marked(machine, NL_PICKLE_SET);
    case OP_ADDITEMS:
        return add_marked(machine, NL_PICKLE_SET);
    case OP_BINPUT:
        return remember(machine, 1);
    case OP_LONG_BINPUT:
        return remember(machine, 4);
    case OP_MEMOIZE:
        return remember(machine, 0);
    case OP_BINGET:
        return get(machine, 1);
    case OP_LONG_BINGET:
        return get(machine, 4);
    case OP_GLOBAL:
        return global_by_lines(machine);
    case OP_STACK_GLOBAL:
        return global_from_stack(machine);
    case OP_REDUCE:
    case OP_NEWOBJ:
    case OP_NEWOBJ_EX:
        return make_object(machine, opcode == OP_NEWOBJ_EX);
    case OP_BUILD:
        return build(machine);
    case OP_BINPERSID:
        return persistent(machine);
    default:
        return unknown(machine, opcode);
    }
}

nl_status nl_pickle_load(nl_pickle *pickle, const uint8_t *data, int64_t size, int64_t *length,
                         const nl_pickle_value **value)
{
    void *memory;
    NL_CHECK(nl_pickle_take(pickle, sizeof(nl_machine), &memory));
    nl_machine *machine = memory;
    memset(machine, 0, sizeof(*machine));
    machine->pickle = pickle;
    machine->data = data;
    machine->size = size;
    NL_CHECK(nl_pickle_reserve(pickle, &machine->stack, 64)); /* so that items is never NULL */
    for (int64_t steps = 1;; steps++) {
        const uint8_t *opcode = NULL;
        machine->opcode = machine->at;
        NL_CHECK(next(machine, 1, &opcode));
        if (machine->at == 1 && *opcode != OP_PROTO)
            return broken(machine, "it does not begin with its protocol");
        if (*opcode == OP_STOP)
            break;
        NL_CHECK(execute(machine, *opcode));
        if (steps % (1 << 16) == 0)
            NL_CHECK(nl_check_cancelled(pickle->context));
    }
    if (machine->stack.count != 1 || machine->mark_count != 0)
        return broken(machine, "it ends with something else than one value");
    *value = machine->stack.items[0];
    *length = machine->at;
    return NL_OK;
}
