/* SPDX-License-Identifier: MIT */
/*
 * Where training pictures come from: folders of PNG, JPEG and WebP, archives of them (tar, zip), CIFAR's batches, IDX files,
 * numpy's archives. What is listed once stays in that order: a picture is known by its number.
 */
#ifndef NL_SOURCE_H
#define NL_SOURCE_H

#include "nl_image.h"
#include "zip.h"

typedef struct nl_source nl_source;

/* A file of arrays, whole in memory or mapped; or an archive of pictures, mapped. */
typedef struct nl_source_file {
    char *path;
    nl_mapping mapping;
    uint8_t *unpacked; /* of a .gz, allocated; then `data` points here */
    const uint8_t *data;
    int64_t size;
    int64_t first, count; /* pictures */
} nl_source_file;

typedef struct nl_source_picture {
    char *name;     /* below the source's path, or in its archive; NULL in arrays */
    int64_t size;   /* bytes of the file */
    uint64_t stamp; /* of its times and inode, or of the archive's */
    int32_t label;
    const uint8_t *bytes;       /* where the file lies in an archive, or NULL */
    const nl_zip_entry *packed; /* where it lies deflated, or NULL */
} nl_source_picture;

/* Of a picture in an array: [H, W], [3, H, W] as CIFAR has it, or [H, W, 3]. */
typedef enum nl_source_layout { NL_GREY, NL_PLANES, NL_INTERLEAVED } nl_source_layout;

struct nl_source {
    nl_context *context;
    char *path;         /* of the folder, the split included */
    const char *format; /* for people: "class folders", "CIFAR-10", ... */
    int64_t count;
    int classes; /* 0: unconditional */
    char **class_ids;
    nl_source_picture *pictures; /* [count] */
    int height, width;           /* of every picture; 0: they differ */
    int64_t capacity;            /* of pictures */
    /* arrays */
    nl_source_file *files;
    int file_count;
    nl_source_layout layout;
    int64_t record, offset; /* bytes of a picture and its label; of the file before the first */
    int64_t pixels;         /* offset of the pixels in a record */
    /* archives */
    bool archives; /* the files are some */
    nl_zip zip;    /* of the one that is a zip */
};

typedef struct nl_source_options {
    const char *
        split; /* a folder below, or of arrays "train" or "test"; NULL where there is nothing to choose */
    bool unconditional;
    bool empty_classes; /* a class folder may hold no picture */
} nl_source_options;

/* Validates all sizes and labels; pictures are read later. */
nl_status nl_source_open(nl_context *context, const char *path, const nl_source_options *options,
                         nl_source **source);
void nl_source_close(nl_source *source); /* NULL is allowed */
/* "folder/name.JPEG", "data_batch_1.bin, picture 7": allocated. */
nl_status nl_source_name(const nl_source *source, int64_t index, char **name);
/* Several threads at once. */
nl_status nl_source_read(const nl_source *source, int64_t index, nl_image *image);
/* sha256 of the list: names, sizes and labels of files, also in archives, contents of arrays, classes. stamps: of the files'
 * stamps, "" for arrays. */
nl_status nl_source_sha256(const nl_source *source, char hex[65], char stamps[65]);

/* ---- source_labels.c: files that say the classes of the pictures beside them */

enum { NL_SOURCE_CLASSES = 1 << 20 /* at most */ };

/* Whether a file of this name is one, read or not. */
bool nl_is_label_file(void *user, const char *name);
/* found: whether there is EDM's dataset.json. Its labels count, the folders that its pictures lie in do not. */
nl_status nl_source_add_labelled(nl_source *source, bool unconditional, nl_picture_walk *walk,
                                 bool *found);
/* The labels of pictures that are listed already; found: whether metadata.jsonl lies beside them. */
nl_status nl_source_add_listed(nl_source *source, bool *found);
/* Pictures that lie in one folder with a list of their labels that is not read are no single class: NL_ERROR_INPUT. */
nl_status nl_source_check_label_files(const nl_source *source);

/* The same of a text, `where` standing for the file in messages. */
nl_status nl_source_take_labels(nl_source *source, const char *where, const char *text,
                                int64_t size, bool unconditional);

/* ---- For all kinds: source_classes.c */

/* Classes "0", "1", ... */
nl_status nl_source_number_classes(nl_source *source, int classes);
/* One class, named like the last part of the path, without the endings of archives. */
nl_status nl_source_one_class(nl_source *source);
/* All labels become 0, and there are no classes. */
void nl_source_drop_classes(nl_source *source);
/* A warning where folders are named by numbers of several lengths, which are sorted as text. */
void nl_source_warn_of_numbers(const nl_source *source);
/* NL_ERROR_USAGE where all names are those of parts of a data set: one is to be chosen with --split. */
nl_status nl_source_check_splits(const nl_source *source, char *const *names, int64_t count);
/* Of a file's times, size and inode, by which a changed one is known. */
uint64_t nl_source_stamp(const char *path, int64_t *size);
/* Room for one more picture. */
nl_status nl_source_reserve(nl_source *source);

/* ---- The kinds; found: false and nothing done when the folder is of another. */

nl_status nl_source_open_folder(nl_source *source, const nl_source_options *options);
/* Where no picture was found: NL_ERROR_INPUT with the name of the format that the folder or file has, if it is one that
 * is known (parquet, LMDB, HDF5, features). */
nl_status nl_source_name_format(const nl_source *source);
/* source_archive.c: a tar or zip, or a folder of tars alone. */
nl_status nl_source_open_archive(nl_source *source, const nl_source_options *options, bool *found);
/* source_arrays.c: a folder of CIFAR's batches or IDX files. */
nl_status nl_source_open_arrays(nl_source *source, const char *split, bool unconditional,
                                bool *found);
/* Maps, and unpacks where the name ends in .gz. To be closed with the source. */
nl_status nl_source_open_file(nl_context *context, const char *folder, const char *name,
                              nl_source_file *file);
void nl_source_close_file(nl_context *context, nl_source_file *file);
/* source_cifar.c: whether a file of this name in such a folder is one of CIFAR's Python version; a folder of them. */
bool nl_is_cifar_pickle(const char *name, bool test);
nl_status nl_source_open_cifar_pickles(nl_source *source, const nl_listing *listing, bool test,
                                       bool unconditional);
/* source_npz.c: an .npz with pictures. */
nl_status nl_source_open_npz(nl_source *source, bool unconditional, bool *found);

#endif
