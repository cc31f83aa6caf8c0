/* SPDX-License-Identifier: MIT */
/*
 * Files of named tensors. One type whatever the format: the file is mapped, its table is validated
 * before anything is allocated by it, and tensors are converted as they are read. Knows no models.
 */
#ifndef NL_CHECKPOINT_H
#define NL_CHECKPOINT_H

#include "nl_io.h"
#include "nl_tensor.h"

typedef struct nl_entry nl_entry;

struct nl_entry {
    const char *name;
    nl_dtype dtype;
    int ndim;
    int64_t shape[NL_MAX_DIMS];
    const void *data;       /* in the mapping; little endian, may be unaligned; NULL with parts */
    const int64_t *strides; /* elements, [ndim]; NULL: row-major contiguous */
    const float *scale;     /* I8 with a companion "<name>.scale" [shape[0]] F32: scale[row] * x */
    const nl_entry *parts;  /* put together from others, whose rows lie one below the other */
    int part_count;
};

typedef struct nl_checkpoint nl_checkpoint;
typedef struct nl_checksum nl_checksum; /* checksums.h */

struct nl_checkpoint {
    nl_context *context;
    char *path;
    nl_mapping mapping;
    bool borrowed; /* mapping and shards are another's */
    int64_t count;
    nl_entry *entries;    /* sorted by name; the ".scale" companions are folded in, not listed */
    char **metadata;      /* pairs of key and value, ended by NULL; of torch files the numbers and
                            strings beside the tensors ("steps", "args.model"); "config.json" is
                            the text of the file of that name in the same folder */
    void *blocks;         /* of the reader: names, strides, what was unpacked: nl_checkpoint_own */
    const char *format;   /* "safetensors", "torch", ... */
    char *key;            /* what was asked for, or NULL */
    bool key_found;       /* as a dict, by the reader */
    char *holds;          /* torch: the names at the top, "ema, model, opt, args"; or NULL */
    char *taken;          /* the one that the entries come from, or NULL: the top itself */
    const char *spelling; /* of the file where entries have others: "diffusers", "REPA"; or NULL */
    nl_checkpoint **shards; /* of a folder: the files that entries and metadata point into */
    int shard_count;
    nl_checksum *
        checksums; /* that a safetensors file of ours carries of its tensors; of a folder its shards have them */
    int64_t checksum_count;
    nl_checkpoint *beside; /* what nl_checkpoint_set_aside has taken out, or NULL */
};

/* Tells the format from the content: safetensors, torch (zip and before 1.6), or a folder of such
 * files with config.json as diffusers writes it, also sharded. Of several dicts in a torch file the
 * best one is taken ("ema", then "state_dict", "model"); prefixes that all names share (module.,
 * _orig_mod., ema.) are dropped. */
nl_status nl_checkpoint_open(nl_context *context, const char *path, nl_checkpoint **checkpoint);
/* key: the dict to take ("model"), or of a flat file the tensors whose names begin with "model.";
 * or NULL. "model" of a training checkpoint of ours is the tensors that have averages. */
nl_status nl_checkpoint_open_key(nl_context *context, const char *path, const char *key,
                                 nl_checkpoint **checkpoint);
/* The same from memory that outlives the checkpoint; `name` stands for the path in messages. */
nl_status nl_checkpoint_open_memory(nl_context *context, const char *name, const void *data,
                                    int64_t size, nl_checkpoint **checkpoint);
void nl_checkpoint_close(nl_checkpoint *checkpoint); /* NULL is allowed */

/* Whether tensors NAME stand beside averages of theirs, "ema.NAME": a training checkpoint of ours. */
bool nl_checkpoint_has_average(const nl_checkpoint *checkpoint);
/* Leaves the tensors whose names begin with the key and a dot, without them. */
nl_status nl_checkpoint_select(nl_checkpoint *checkpoint, const char *key);

/* Moves the tensors whose names begin with the key and a dot, without them, into checkpoint->beside, where there are any. */
nl_status nl_checkpoint_set_aside(nl_checkpoint *checkpoint, const char *key);

const nl_entry *nl_checkpoint_find(const nl_checkpoint *checkpoint, const char *name);
const char *nl_checkpoint_metadata(const nl_checkpoint *checkpoint, const char *key);
int64_t nl_checkpoint_bytes(const nl_checkpoint *checkpoint); /* of its files */
int64_t nl_entry_count(const nl_entry *entry);                /* elements */
/* All elements in their own type, row-major; the entry has no parts. */
void nl_entry_copy(const nl_entry *entry, void *to);
/* Whether two entries have one shape and the same numbers. */
nl_status nl_entry_equal(const nl_checkpoint *checkpoint, const nl_entry *a, const nl_entry *b,
                         bool *equal);
/* All elements as row-major floats into `to`; a non-finite one, and a checksum that does not fit, is NL_ERROR_INPUT with the
 * tensor's name. */
nl_status nl_entry_read(const nl_checkpoint *checkpoint, const nl_entry *entry, float *to);
/* Reads all that has a checksum. *count: how many there are. NL_ERROR_INPUT names what does not fit. */
nl_status nl_checkpoint_verify(const nl_checkpoint *checkpoint, int64_t *count);

/* The readers behind nl_checkpoint_open: fill checkpoint->{count, entries, metadata} from
 * checkpoint->mapping. What they have allocated by then is freed by nl_checkpoint_close. */
nl_status nl_safetensors_parse(nl_checkpoint *checkpoint);
nl_status nl_torch_zip_parse(nl_checkpoint *checkpoint);
nl_status nl_torch_legacy_parse(nl_checkpoint *checkpoint);
/* Opens the files of the folder checkpoint->path as its shards. */
nl_status nl_folder_parse(nl_checkpoint *checkpoint);
/* Adds the text of config.json in the folder, or beside the file, to the metadata. */
nl_status nl_folder_config(nl_checkpoint *checkpoint);
/* One file with its names as they are. */
nl_status nl_checkpoint_open_shard(nl_context *context, const char *path, const char *key,
                                   nl_checkpoint **checkpoint);
/* Adds a step to checkpoint->taken: "state_dict", then "state_dict.first_stage_model". */
nl_status nl_checkpoint_take(nl_checkpoint *checkpoint, const char *place);
/* Puts the entries in order; NL_ERROR_INPUT when a name is there twice. */
nl_status nl_checkpoint_sort(nl_checkpoint *checkpoint);
/* Memory that lives as long as the checkpoint, as nl_new_array and NL_NEW_ARRAY give it. */
void *nl_checkpoint_own(nl_checkpoint *checkpoint, const char *what, int64_t count, size_t size);
#define NL_OWN_ARRAY(checkpoint, what, count, pointer)                                             \
    ((*(pointer) = nl_checkpoint_own(checkpoint, what, count, sizeof(**(pointer))))                \
         ? NL_OK                                                                                   \
         : NL_ERROR_MEMORY)

/* What to strive for when several tensors do not fit: names at most 20 of them, then a count. Starts as
 * {0}; text is then a list of lines, each with a line break in front. */
typedef struct nl_problems {
    int count;
    char text[1600];
} nl_problems;
void nl_problem(nl_problems *problems, const char *format, ...) NL_PRINTF(2, 3);

/* ---- Writing safetensors: declare all tensors, then give their data in the same order. */

typedef struct nl_safetensors_writer nl_safetensors_writer;

typedef struct nl_tensor_header {
    const char *name;
    nl_dtype dtype;
    int ndim;
    int64_t shape[NL_MAX_DIMS];
} nl_tensor_header;

/* metadata: pairs, ended by NULL, or NULL. Tensors lie in the file in the order given. A file carries their checksums
 * (checksums.h); a pipe, which they would have to precede, does not. */
nl_status nl_safetensors_create(nl_context *context, const char *path, bool overwrite,
                                const char *const *metadata, const nl_tensor_header *tensors,
                                int64_t count, nl_safetensors_writer **writer);
nl_status nl_safetensors_write(nl_safetensors_writer *writer, const void *data, int64_t bytes);
/* Ends and frees the writer; an error when a tensor is missing. */
nl_status nl_safetensors_commit(nl_safetensors_writer **writer);
void nl_safetensors_abort(nl_safetensors_writer **writer);

/* A tensor of a file to be written: a run of the elements of a source. A source is read once when
 * its tensors follow one another. */
typedef struct nl_saved {
    const char *name;
    nl_dtype dtype; /* F32, BF16, F16, or I8: then "<name>.scale" follows; others only with exact */
    int ndim;
    int64_t shape[NL_MAX_DIMS];
    int64_t source; /* number of the source, and its element that comes first */
    int64_t first;
    const nl_entry *exact;     /* copied as it is, scales included; or NULL */
    const nl_checkpoint *file; /* of exact */
} nl_saved;

typedef struct nl_save_source {
    nl_status (*read)(void *user, int64_t source, float *values); /* all of its elements */
    void *user;
    int64_t largest; /* elements of the largest source */
} nl_save_source;

/* Writes the file tensor by tensor; the memory is that of the largest source. */
nl_status nl_save_tensors(nl_context *context, const char *path, bool overwrite,
                          const char *const *metadata, const nl_saved *saved, int64_t count,
                          const nl_save_source *source);
/* The whole checkpoint under its names, with its own metadata "nalagen". Floats as dtype (vectors
 * F32), or with NL_DTYPE_COUNT as they are; what holds whole numbers is copied. */
nl_status nl_checkpoint_save(const nl_checkpoint *checkpoint, const char *path, bool overwrite,
                             nl_dtype dtype);
/* The type that keeps an entry's numbers: its own when it is one of F32, BF16, F16, otherwise F32.
 * */
nl_dtype nl_saved_dtype(const nl_entry *entry);

/* Row-wise int8: scale[row] = max |x| / 127 (or the one of least squared error among a few below it),
 * q = round(x / scale). x [rows, columns]. */
void nl_quantize_rows(const float *x, int64_t rows, int64_t columns, int8_t *q, float *scale);

#endif
