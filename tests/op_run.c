/* SPDX-License-Identifier: MIT */
/* Runs one case of an operation on a device: random inputs, guarded outputs, what came out as doubles. */
#include "nl_e4m3.h"
#include "op_cases.h"

/* Elements before and after every tensor that no operation may touch. */
enum { GUARD = 64 };

static const uint32_t nan_bits = 0x7fc0beef;

/* splitmix64, a generator other than the one under test. */
static uint64_t next(op_run *run)
{
    uint64_t z = run->seed += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

static double uniform(op_run *run)
{
    return ((double)(next(run) >> 11) + 0.5) / 9007199254740992.0; /* in (0, 1) */
}

static void *keep(op_run *run, void *memory)
{
    if (!memory || run->scratch_count == OP_MAX_SCRATCH)
        fail_msg("no memory for a test case");
    run->scratch[run->scratch_count++] = memory;
    return memory;
}

float *op_normal(op_run *run, int64_t count)
{
    float *values = keep(run, malloc((size_t)(count ? count : 1) * sizeof(float)));
    for (int64_t i = 0; i < count; i++)
        values[i] = (float)(sqrt(-2 * log(uniform(run))) * cos(6.283185307179586 * uniform(run)));
    return values;
}

int64_t op_integer(op_run *run, int64_t limit)
{
    return (int64_t)(next(run) % (uint64_t)limit);
}

int64_t op_images(const op_run *run)
{
    return run->only < 0 ? run->batch : 1;
}

int64_t op_first_image(const op_run *run)
{
    return run->only < 0 ? 0 : run->only;
}

static void store(nl_dtype dtype, void *base, int64_t i, double value)
{
    switch (dtype) {
    case NL_F32:
        ((float *)base)[i] = (float)value;
        break;
    case NL_F64:
        ((double *)base)[i] = value;
        break;
    case NL_BF16:
        ((uint16_t *)base)[i] = nl_float_to_bf16((float)value);
        break;
    case NL_F16:
        ((uint16_t *)base)[i] = nl_float_to_f16((float)value);
        break;
    case NL_U8:
        ((uint8_t *)base)[i] = (uint8_t)value;
        break;
    case NL_I32:
        ((int32_t *)base)[i] = (int32_t)value;
        break;
    case NL_I64:
        ((int64_t *)base)[i] = (int64_t)value;
        break;
    default:
        fail_msg("op_tensor: no numbers of type %s", nl_dtype_name(dtype));
    }
}

static double fetch(nl_dtype dtype, const void *base, int64_t i)
{
    return dtype == NL_F8     ? nl_e4m3_to_float(((const uint8_t *)base)[i])
           : dtype == NL_U8   ? ((const uint8_t *)base)[i]
           : dtype == NL_I32  ? ((const int32_t *)base)[i]
           : dtype == NL_F64  ? ((const double *)base)[i]
           : dtype == NL_BF16 ? nl_bf16_to_float(((const uint16_t *)base)[i])
                              : ((const float *)base)[i];
}

static void poison(const op_run *run, nl_dtype dtype, void *base, int64_t bytes)
{
    memset(base, dtype == NL_BF16 ? 0xff : run->poison, (size_t)bytes);
    for (int64_t i = 0; dtype == NL_F32 && i < bytes / 4; i++)
        memcpy((char *)base + 4 * i, &nan_bits, 4);
}

static op_output *add_output(op_run *run, const char *name, int64_t count)
{
    if (run->output_count == OP_MAX_OUTPUTS)
        fail_msg("too many outputs in a test case");
    op_output *output = &run->outputs[run->output_count++];
    output->name = name;
    output->count = count;
    output->values = keep(run, malloc((size_t)count * sizeof(double)));
    return output;
}

/* A tensor of F8 is two: its elements, here still F32 or room for them, and the factors of its rows. */
static nl_tensor f8_tensor(op_run *run, const op_spec *spec)
{
    op_spec elements = *spec, factors = {.shape = {spec->shape[0]}, .shared = spec->shared};
    int64_t columns = spec->shape[1], stride = columns + spec->gap;
    float *scales = keep(run, malloc((size_t)spec->shape[0] * sizeof(float)));
    elements.dtype = NL_U8;
    elements.activation = elements.feature_map = false;
    if (!spec->output) {
        float *values = op_normal(run, spec->shape[0] * columns);
        uint8_t *codes = keep(run, malloc((size_t)(spec->shape[0] * columns)));
        for (int64_t i = 0; i < spec->shape[0] * columns; i++)
            values[i] *= (float)(spec->scale != 0 ? spec->scale : 1) * (float)(1 + i / columns % 7);
        nl_quantize(values, spec->shape[0], columns, codes, scales);
        for (int64_t i = 0; i < spec->shape[0] * columns; i++)
            values[i] = codes[i];
        elements.values = values;
        elements.scale = 0;
        factors.values = scales;
    } else {
        factors.room = true;
    }
    nl_tensor tensor = op_tensor(run, &elements);
    int buffer = run->buffer_count - 1;
    tensor.scale = op_tensor(run, &factors).data;
    tensor.dtype = NL_F8;
    tensor.row_stride = stride;
    run->buffers[buffer].tensor = tensor;
    return tensor;
}

nl_tensor op_tensor(op_run *run, const op_spec *spec)
{
    if (spec->dtype == NL_F8)
        return f8_tensor(run, spec);
    int64_t shape[NL_MAX_DIMS], rows = 1, whole = 1;
    int ndim = 0;
    for (; ndim < NL_MAX_DIMS && spec->shape[ndim]; ndim++) {
        shape[ndim] = spec->shape[ndim];
        whole *= shape[ndim];
    }
    bool part = !spec->shared && run->only >= 0;
    if (part)
        shape[0] /= run->batch;
    for (int i = 0; i < ndim - 1; i++)
        rows *= shape[i];
    int64_t columns = shape[ndim - 1], count = rows * columns, first = part ? run->only * count : 0;

    const float *values = spec->values;
    if (!values && ((!spec->output && !spec->room) || spec->in_place))
        values = op_normal(run, whole);
    if (run->buffer_count == OP_MAX_BUFFERS)
        fail_msg("too many tensors in a test case");
    op_buffer *buffer = &run->buffers[run->buffer_count++];
    bool half = (spec->activation && run->device->activation == NL_BF16) ||
                (spec->feature_map && run->device->feature_maps == NL_BF16);
    bool rounded = (spec->activation && run->rounded) || (spec->feature_map && run->rounded_maps);
    run->inexact = run->inexact || rounded;
    nl_dtype dtype = half ? NL_BF16 : spec->dtype;
    int64_t stride = columns + spec->gap, size = nl_dtype_size(dtype);
    buffer->room = spec->room;
    buffer->output = spec->output ? add_output(run, spec->output, count) : NULL;
    if (buffer->output) {
        buffer->output->shared = spec->shared;
        buffer->output->tolerance = spec->tolerance;
    }
    buffer->bytes = (rows * stride + 2 * GUARD) * size;
    buffer->initial = keep(run, malloc((size_t)buffer->bytes));
    poison(run, dtype, buffer->initial, buffer->bytes);
    for (int64_t i = 0; values && i < count; i++) {
        double value = values[first + i] * (spec->scale != 0 ? spec->scale : 1) + spec->shift;
        if (rounded)
            value = nl_bf16_to_float(nl_float_to_bf16((float)value));
        store(dtype, buffer->initial, GUARD + i / columns * stride + i % columns, value);
    }

    nl_device *device = run->device;
    assert_ok(device->context,
              device->ops->alloc(device, "test tensor", buffer->bytes, &buffer->base));
    assert_ok(device->context,
              device->ops->upload(device, buffer->base, buffer->initial, buffer->bytes));
    buffer->tensor = nl_tensor_of((char *)buffer->base + GUARD * size, dtype, ndim, shape);
    buffer->tensor.row_stride = stride;
    return buffer->tensor;
}

bool op_left_out(op_run *run, bool for_gpus)
{
    run->left_out = for_gpus && !run->gpu;
    return run->left_out;
}

void op_host_output(op_run *run, const char *name, const double *values, int64_t count)
{
    op_output *output = add_output(run, name, count);
    memcpy(output->values, values, (size_t)count * sizeof(double));
}

/* Takes the values of an output out of `memory`, the buffer as the operation left it, and puts the
 * initial bytes in their place, so that the whole must then equal buffer->initial. */
static void take_values(nl_device *device, const op_buffer *buffer, char *memory)
{
    const nl_tensor *tensor = &buffer->tensor;
    int64_t columns = tensor->shape[tensor->ndim - 1], size = nl_dtype_size(tensor->dtype);
    int64_t bytes = tensor->shape[0] * (int64_t)sizeof(float);
    float *scales = NULL;
    if (tensor->scale) {
        scales = malloc((size_t)bytes);
        assert_non_null(scales);
        assert_ok(device->context, device->ops->download(device, scales, tensor->scale, bytes));
    }
    for (int64_t i = 0; i < nl_tensor_count(tensor); i++) {
        int64_t at = GUARD + i / columns * tensor->row_stride + i % columns;
        if (buffer->output)
            buffer->output->values[i] =
                fetch(tensor->dtype, memory, at) * (scales ? (double)scales[i / columns] : 1);
        memcpy(memory + at * size, (const char *)buffer->initial + at * size, (size_t)size);
    }
    free(scales);
}

static bool collect(op_run *run, char *problem, size_t size)
{
    bool good = true;
    nl_device *device = run->device;
    for (int i = 0; i < run->buffer_count; i++) {
        const op_buffer *buffer = &run->buffers[i];
        char *memory = malloc((size_t)buffer->bytes);
        assert_non_null(memory);
        assert_ok(device->context,
                  device->ops->download(device, memory, buffer->base, buffer->bytes));
        if (buffer->output || buffer->room)
            take_values(device, buffer, memory);
        if (memcmp(memory, buffer->initial, (size_t)buffer->bytes)) {
            snprintf(problem, size, "%s tensor %d (in the order of the test)",
                     buffer->output || buffer->room ? "wrote outside of output" : "changed input",
                     i);
            good = false;
        }
        free(memory);
    }
    return good;
}

const char *op_case_text(const op_family *family, int index)
{
    return *(const char *const *)((const char *)family->cases + (size_t)index * family->case_size);
}

static bool finish(op_run *run, nl_status status, char *problem, size_t size)
{
    if (status == NL_OK)
        status = run->device->ops->sync(run->device);
    if (status == NL_OK)
        return collect(run, problem, size);
    snprintf(problem, size, "%s: %s", nl_status_name(status), nl_last_error(run->device->context));
    return false;
}

bool op_run_case(op_run *run, const op_family *family, int index, char *problem, size_t size)
{
    run->batch = 1;
    run->tolerance = 1e-5;
    const char *op_case = (const char *)family->cases + (size_t)index * family->case_size;
    nl_status status = family->run(run, op_case);
    if (run->rounded ||
        run->inexact) { /* results are rounded too: one unit in the last place of bf16 */
        run->tolerance = fmax(run->tolerance, 1e-2);
        run->batch_tolerance = fmax(run->batch_tolerance, 4e-3);
    }
    return finish(run, status, problem, size);
}

op_run op_begin(nl_device *device)
{
    return (op_run){.device = device, .seed = 1, .only = -1, .batch = 1};
}

void op_end(op_run *run, nl_status status)
{
    char problem[NL_MESSAGE_SIZE + 64];
    if (!finish(run, status, problem, sizeof(problem)))
        fail_msg("%s: %s", run->device->name, problem);
}

const double *op_value(const op_run *run, const char *name)
{
    for (int i = 0; i < run->output_count; i++)
        if (!strcmp(run->outputs[i].name, name))
            return run->outputs[i].values;
    fail_msg("no output %s", name);
    return NULL;
}

int op_open_devices(nl_context *context, int threads, nl_device **devices)
{
    const char *names = getenv("NL_TEST_DEVICE"), *dtype = getenv("NL_TEST_DTYPE");
    char list[128];
    int count = 0;
    snprintf(list, sizeof(list), "%s", names ? names : "cpu,reference");
    for (char *rest = list, *name; (name = strsep(&rest, ",")) && count < OP_MAX_DEVICES; count++)
        if (nl_device_create(context, name, dtype ? dtype : "f32", threads, &devices[count]) !=
            NL_OK) {
            fprintf(stderr, "SKIPPED: %s\n", nl_last_error(context));
            exit(77);
        }
    return count;
}

void op_run_free(op_run *run)
{
    for (int i = 0; i < run->buffer_count; i++)
        run->device->ops->free(run->device, run->buffers[i].base, run->buffers[i].bytes);
    for (int i = 0; i < run->scratch_count; i++)
        free(run->scratch[i]);
}
