/* SPDX-License-Identifier: MIT */
/*
 * The one table of operation tests: for every operation a list of cases, and a function that makes the
 * arguments of a case on any device and runs it. What is done with that (comparing with the reference,
 * with another batch size, with another number of threads) is test_operations.c's.
 *
 * To add a case, add a line to its operation's list. To add an operation, write its structure of
 * options, its list and its run function, and name it in op_*_families.
 */
#ifndef OP_CASES_H
#define OP_CASES_H

#include "nl_test.h"

enum { OP_MAX_BUFFERS = 24, OP_MAX_OUTPUTS = 16, OP_MAX_SCRATCH = 64, OP_MAX_DEVICES = 4 };

typedef struct op_output {
    const char *name;
    double *values; /* [count], whatever the type on the device; set after the run */
    int64_t count;
    bool shared;      /* by all images of the batch: one alone makes another */
    double tolerance; /* against the reference, where it is larger than the case's */
} op_output;

/* Device memory of one tensor, with what was written there before the operation ran. */
typedef struct op_buffer {
    nl_tensor tensor;
    void *base;        /* on the device, guard elements included */
    void *initial;     /* host copy */
    int64_t bytes;     /* of both */
    op_output *output; /* NULL: an input, or room */
    bool room;
} op_buffer;

/* One run of one case on one device. The same seed gives the same inputs on every device. */
typedef struct op_run {
    nl_device *device;
    uint64_t seed;
    int64_t only;      /* the one image of the batch that is run; -1: all of them */
    bool rounded;      /* activations hold bf16 numbers, whatever their type */
    bool rounded_maps; /* feature maps do */
    bool inexact;      /* the case has some of those; set by op_tensor */
    bool gpu;          /* a GPU is under test */
    bool left_out;     /* by op_left_out: nothing was run */
    uint8_t poison;    /* what outputs of integers hold beforehand; those of floats hold NaN */
    int64_t batch;     /* set by the run function: images of the case; default 1 */
    double
        tolerance; /* set by the run function: relative L2, against the reference; default 1e-5 */
    double
        batch_tolerance; /* set by the run function: against another batch size or number of threads; default 0 */
    int buffer_count, output_count, scratch_count;
    op_buffer buffers[OP_MAX_BUFFERS];
    op_output outputs[OP_MAX_OUTPUTS];
    void *scratch[OP_MAX_SCRATCH];
} op_run;

/* What a run function passes as batch_tolerance when a matrix product may change its order of sums. */
#define OP_MATRIX_PRODUCT 2e-6
/* What it passes as tolerance where a sum of F8 is rounded as tensor cores round it. */
#define OP_F8_PRODUCT 4e-3
/* And where results become F8: a number near the middle of two may go to the other one. */
#define OP_F8_RESULT 1e-2

typedef struct op_family {
    const char *operation;
    nl_status (*run)(op_run *run, const void *op_case);
    const void *cases; /* structures that start with `const char *text` */
    size_t case_size;
    int case_count;
} op_family;

/* The table, in four parts that end with an empty family. */
extern const op_family op_backbone_families[], op_image_families[], op_sampling_families[],
    op_training_families[];

/* A case and its own text for messages. */
#define CASE(...)                                                                                  \
    {                                                                                              \
        .text = #__VA_ARGS__, __VA_ARGS__                                                          \
    }
#define FAMILY(name)                                                                               \
    {                                                                                              \
#name, run_##name, name##_cases, sizeof(name##_cases[0]), NL_COUNT(name##_cases)           \
    }

/* ---- For run functions */

typedef struct op_spec {
    int64_t
        shape[NL_MAX_DIMS]; /* ended by 0; the first size counts rows of all images unless shared */
    nl_dtype
        dtype; /* F32 by default; I32 takes its numbers from `values`; F8 [rows, columns] draws them */
    int64_t gap;         /* unused elements between rows (NaN) */
    const char *output;  /* the name of an output: poisoned, and compared after the run */
    double tolerance;    /* op_output.tolerance */
    bool in_place;       /* an output that holds input beforehand */
    bool room;           /* what the operation leaves there does not matter */
    bool shared;         /* the same for every image: not cut down to image `only` */
    bool activation;     /* of the device's activation type */
    bool feature_map;    /* of the type of its feature maps */
    const float *values; /* whole batch, without gaps; NULL: standard normal numbers */
    double scale;        /* factor of the numbers; 0: 1 */
    double shift;
} op_spec;

#define OP_TENSOR(run, ...) op_tensor(run, &(op_spec){__VA_ARGS__})
nl_tensor op_tensor(op_run *run, const op_spec *spec);
/* Standard normal numbers for `values`, to be modified; owned by the run. */
float *op_normal(op_run *run, int64_t count);
/* A uniform integer below `limit`. */
int64_t op_integer(op_run *run, int64_t limit);
/* Images that are run, and the first of them. */
int64_t op_images(const op_run *run);
int64_t op_first_image(const op_run *run);
/* Whether a case is left out: one for tiles that GPUs alone have, and so large that the reference takes seconds. */
bool op_left_out(op_run *run, bool for_gpus);
/* Copies an output that the operation left on the host. */
void op_host_output(op_run *run, const char *name, const double *values, int64_t count);

/* Values [rows, width] of NaLa's q | k | v (| g), op_cases_backbone.c; beyond 4 tokens a query and a key are zero, a
 * query is long, and without rope a key; up to 4 no element of q or k is near 0. size: heads d. */
float *op_nala_rows(op_run *run, int64_t rows, int64_t width, int64_t tokens, int64_t size,
                    int64_t d, bool rope);

/* Logarithms of NaLa's lambda or tau of each head, op_cases_backbone.c. */
nl_tensor op_log_exponents(op_run *run, int64_t heads, bool tau);

/* Logits of the gates of gated linear attention, op_cases_backbone.c. */
float *op_gates(op_run *run, int64_t count);

/* ---- For tests */

/* The devices of NL_TEST_DEVICE (comma-separated; default "cpu,reference"), at most OP_MAX_DEVICES, in
 * NL_TEST_DTYPE (f32 by default; bf16 makes a GPU's activations bf16, and a CPU's feature maps if it has products of those).
 * Ends the program when one cannot be had. */
int op_open_devices(nl_context *context, int threads, nl_device **devices);

/* Runs one case; the outputs are in run->outputs until op_run_free. false, with a message in `problem`,
 * when the operation fails, writes outside its outputs or changes its inputs. */
bool op_run_case(op_run *run, const op_family *family, int index, char *problem, size_t size);
void op_run_free(op_run *run);
const char *op_case_text(const op_family *family, int index);

/* A run outside the table: op_begin, OP_TENSOR for the arguments, the operation's status to op_end
 * (which fails the test on an error), op_value for the outputs, op_run_free. */
op_run op_begin(nl_device *device);
void op_end(op_run *run, nl_status status);
const double *op_value(const op_run *run, const char *name);

#endif
