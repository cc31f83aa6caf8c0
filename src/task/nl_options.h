/* SPDX-License-Identifier: MIT */
/*
 * One table a command: parsing, range checks, --help, the man page, shell completion, the keys of a request
 * line and the parameters stored in a picture all come from it.
 */
#ifndef NL_OPTIONS_H
#define NL_OPTIONS_H

#include <stdio.h>

#include "nl_json.h"

typedef enum nl_option_kind {
    NL_OPTION_FLAG,     /* bool */
    NL_OPTION_INT,      /* int64_t in [low, high] */
    NL_OPTION_SEED,     /* uint64_t, any */
    NL_OPTION_REAL,     /* double in [low, high] */
    NL_OPTION_INTERVAL, /* double[2]: "LOW,HIGH", low <= LOW <= HIGH <= high */
    NL_OPTION_PLACE,    /* double[3]: "A,B,C", each in [low, high] */
    NL_OPTION_EXTENT,   /* int64_t[2] in [low, high]: "HxW", or "N" for NxN */
    NL_OPTION_BYTES,    /* int64_t: "512M", "4G" */
    NL_OPTION_CHOICE,   /* const char *, one of choices */
    NL_OPTION_TEXT,     /* const char * */
    NL_OPTION_CLASS, /* the same; a number in JSON is "number:N", whatever the classes are called */
    NL_OPTION_FILE   /* const char *; completion offers files */
} nl_option_kind;

enum {
    NL_IN_REQUEST = 1, /* may stand in a line of --requests */
    NL_IN_PICTURE = 2, /* recorded in pictures and read back by --from */
    NL_IN_BOTH = NL_IN_REQUEST | NL_IN_PICTURE,
    NL_COMMON = 8,         /* stands in --help where a screen has no room for all */
    NL_OPTIONAL_VALUE = 4, /* --name and --name=VALUE; without: the first of choices */
    NL_REPEATED = 16,      /* TEXT and FILE: may be given again; the value is an nl_option_list */
};

typedef struct nl_option {
    const char *name; /* of the long option; NULL ends the table */
    char letter;      /* of the short one, or 0 */
    nl_option_kind kind;
    size_t offset;        /* of the value in the command's structure */
    const char *argument; /* "N"; NULL for flags */
    double low, high;
    const char *const *choices; /* ended by NULL */
    unsigned where;             /* NL_IN_... */
    const char *group;          /* starts this heading in --help; NULL: goes on */
    const char *help;           /* one line */
    const char *detail;         /* more, for the man page; or NULL */
    /* In place of all these: a table whose rows stand here, `offset` being that of the structure which their offsets are
     * of, `where` theirs too. A later row of the same name takes the place of one of them. */
    const struct nl_option *include;
    const char
        *completes; /* what `nalagen completion` lists for it: "classes", "devices"; or NULL */
} nl_option;

enum { NL_MOST_REPEATED = 16 };

typedef struct nl_option_list {
    const char *items[NL_MOST_REPEATED + 1]; /* ended by NULL */
} nl_option_list;

typedef struct nl_command {
    const char *name;
    const char *summary;
    const char *arguments; /* "[OPTION...] FILE" */
    int least, most;       /* operands */
    const char
        *operands; /* what is expected, for messages; where none is: what to do instead, or NULL */
    const char *notes;    /* printed before the examples; or NULL */
    const char *examples; /* lines */
    const nl_option *options;
    bool hidden;
    nl_status (*run)(int argc, char **argv); /* argv[0] is the command's name */
} nl_command;

enum { NL_MOST_OPTIONS = 80 /* of a command, with the end of the table */ };

/* The rows of a command's table with those of the tables that it includes, into `rows`, which is returned. */
const nl_option *nl_options_of(const nl_command *command, nl_option rows[NL_MOST_OPTIONS]);

/* Reads argv into `values`. *operands: index in argv (which is permuted) of the first argument that is not an
 * option. */
nl_status nl_options_parse(nl_context *context, const nl_command *command, int argc, char **argv,
                           void *values, int *operands);
/* One value from its text, checked; texts are not copied. */
nl_status nl_option_set(nl_context *context, const nl_option *option, const char *text,
                        void *values);

/* Allocated texts with one owner. */
typedef struct nl_texts {
    nl_context *context;
    char **items;
    int count;
} nl_texts;
nl_status nl_texts_add(nl_texts *texts, char *text); /* takes text over, also on failure */
void nl_texts_free(nl_texts *texts);

/* The members of a JSON object as options: "cfg_scale" is --cfg-scale. Only options of `where`; `ignored` (ended
 * by NULL, or NULL) lists keys that are something else. Values that are no strings are printed into `texts`. */
nl_status nl_options_apply(nl_context *context, const nl_command *command, const char *place,
                           const cJSON *object, unsigned where, const char *const *ignored,
                           nl_texts *texts, void *values);
/* What an NL_OPTION_CLASS holds: "number:2" is the number. NULL when memory ran out. */
cJSON *nl_class_json(const char *text);
/* The other way round: the options of `where` that differ from `defaults`. false when memory ran out. */
bool nl_options_to_json(const nl_command *command, const void *values, const void *defaults,
                        unsigned where, cJSON *object);

#endif
