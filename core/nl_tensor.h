/* SPDX-License-Identifier: MIT */
/* Tensors: a view of memory that somebody else owns. */
#ifndef NL_TENSOR_H
#define NL_TENSOR_H

#include "nl_core.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum nl_dtype {
    NL_F32,
    NL_BF16,
    NL_F16,
    NL_F64,
    NL_I8,
    NL_U8,
    NL_BOOL,
    NL_I16,
    NL_I32,
    NL_I64,
    NL_F8, /* E4M3, with a factor for each row: of products alone, no file has it */
    NL_DTYPE_COUNT
} nl_dtype;

int nl_dtype_size(nl_dtype dtype);         /* bytes */
const char *nl_dtype_name(nl_dtype dtype); /* safetensors' spelling: "F32", "BF16", ... */
bool nl_dtype_parse(const char *name, nl_dtype *dtype); /* either case; not F8 */

enum { NL_MAX_DIMS = 5 };

typedef struct nl_tensor {
    void *data; /* NULL: no tensor (an optional argument left out) */
    nl_dtype dtype;
    int ndim;
    int64_t shape[NL_MAX_DIMS]; /* all >= 0; beyond ndim: 1 */
    int64_t row_stride; /* elements from one vector of the last size to the next; the last size
                                   itself when contiguous */
    float
        *scale; /* of F8, otherwise NULL: [rows], what the elements of each row are multiplied by */
} nl_tensor;

/* A contiguous tensor over `data`. Usage: nl_tensor_of(p, NL_F32, 2, (int64_t[]){rows, columns}). */
nl_tensor nl_tensor_of(void *data, nl_dtype dtype, int ndim, const int64_t *shape);
int64_t nl_tensor_count(const nl_tensor *tensor); /* elements */
int64_t nl_tensor_bytes(const nl_tensor *tensor); /* of a contiguous tensor */
bool nl_tensor_contiguous(const nl_tensor *tensor);
/* Rows [first, first + count) of the first size. */
nl_tensor nl_tensor_rows(const nl_tensor *tensor, int64_t first, int64_t count);
/* Columns [first, first + count) of a 2-d tensor: a strided view. */
nl_tensor nl_tensor_columns(const nl_tensor *tensor, int64_t first, int64_t count);
/* The same elements (contiguous only) under another shape. */
nl_tensor nl_tensor_reshape(const nl_tensor *tensor, int ndim, const int64_t *shape);
bool nl_tensor_same_shape(const nl_tensor *a, const nl_tensor *b);
/* "[3, 4, 8]" into text (64 bytes are enough). */
const char *nl_shape_text(int ndim, const int64_t *shape, char *text, size_t size);

/* Conversions of single numbers; bf16 and f16 round to nearest even. */
float nl_bf16_to_float(uint16_t x);
uint16_t nl_float_to_bf16(float x);
float nl_f16_to_float(uint16_t x);
uint16_t nl_float_to_f16(float x);
/* count elements of any type to float (host memory; `from` may be unaligned); of F8 without its factors. */
void nl_convert_to_float(const void *from, nl_dtype dtype, int64_t count, float *to);
/* count floats to F32, BF16, F16 or F64. */
void nl_convert_from_float(const float *from, int64_t count, nl_dtype dtype, void *to);

/* F8: x [rows, columns] = scale[row] y, E4M3 (nl_e4m3.h), where scale is the least power of two with which y fits. */
void nl_quantize(const float *x, int64_t rows, int64_t columns, uint8_t *y, float *scale);
void nl_dequantize(const uint8_t *y, const float *scale, int64_t rows, int64_t columns, float *x);

#ifdef __cplusplus
}
#endif

#endif
