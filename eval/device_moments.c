/* SPDX-License-Identifier: MIT */
/* Sums of n rows around a shift c: s = sum of x - c, S = sum of (x - c)(x - c)^T. Then
 *   mean = c + s / n,  scatter = S - s s^T / n. */
#include "nl_blas.h"
#include "nl_statistics.h"

struct nl_device_moments {
    nl_device *device;
    int64_t size, count;
    void *memory; /* of the tensors, one after the other */
    int64_t bytes;
    nl_tensor scatter, sums, shift; /* [size, size] F64, [size] F64, [size] F32 */
};

nl_status nl_device_moments_create(nl_device *device, int64_t size, nl_device_moments **moments)
{
    nl_status status;
    nl_device_moments *m = NULL;
    *moments = NULL;
    NL_TRY(NL_NEW(device->context, "moments", &m));
    m->device = device;
    m->size = size;
    int64_t doubles = size * size + size;
    m->bytes = doubles * (int64_t)sizeof(double) + size * (int64_t)sizeof(float);
    NL_TRY(device->ops->alloc(device, "a covariance", m->bytes, &m->memory));
    double *sums = (double *)m->memory + size * size;
    m->scatter = nl_tensor_of(m->memory, NL_F64, 2, (int64_t[]){size, size});
    m->sums = nl_tensor_of(sums, NL_F64, 1, &size);
    m->shift = nl_tensor_of(sums + size, NL_F32, 1, &size);
    /* two zeros of single precision are one of double */
    nl_tensor words = nl_tensor_of(m->memory, NL_F32, 1, (int64_t[]){2 * doubles});
    NL_TRY(NL_OP(device, zero, .x = words));
    *moments = m;
    m = NULL;
cleanup:
    nl_device_moments_destroy(m);
    return status;
}

void nl_device_moments_destroy(nl_device_moments *m)
{
    if (!m)
        return;
    m->device->ops->free(m->device, m->memory, m->bytes);
    nl_free(m->device->context, m);
}

nl_status nl_device_moments_add(nl_device_moments *m, const nl_tensor *rows)
{
    nl_device *device = m->device;
    if (m->count == 0)
        NL_CHECK(device->ops->copy(device, m->shift.data, rows->data, nl_tensor_bytes(&m->shift)));
    NL_CHECK(NL_OP(device, scatter_matrix, .x = *rows, .shift = m->shift, .scatter = m->scatter,
                   .sums = m->sums));
    m->count += rows->shape[0];
    return NL_OK;
}

nl_status nl_device_moments_read(const nl_device_moments *m, nl_moments *to)
{
    nl_device *device = m->device;
    int64_t size = m->size;
    double *scatter = NULL;
    const nl_blas *blas;
    nl_status status = NL_OK;
    if (m->count == 0)
        return NL_OK;
    NL_TRY(nl_blas_load(device->context, &blas));
    NL_TRY(NL_NEW_SIZED(device->context, "a covariance", m->bytes, 1, &scatter));
    NL_TRY(device->ops->download(device, scatter, m->memory, m->bytes));
    double *sums = scatter + size * size;
    const float *shift = (const float *)(sums + size);
    blas->dsyr(CblasRowMajor, CblasUpper, (int)size, -1 / (double)m->count, sums, 1, scatter,
               (int)size);
    for (int64_t i = 0; i < size; i++)
        sums[i] = shift[i] + sums[i] / (double)m->count;
    nl_moments_join(to, sums, scatter, m->count);
cleanup:
    nl_free(device->context, scatter);
    return status;
}
