/* SPDX-License-Identifier: MIT */
/* cuDNN's graph interface: a graph of operations (convolution, add bias, add residual, activation)
 * over described tensors; the heuristics list engines for it; a plan is one engine made ready.
 * Built without cuDNN this file is empty. */
#ifdef NL_CUDNN
#include "plan.cuh"

#include <cstdlib>

typedef cudnnBackendDescriptor_t descriptor;

enum { MOST_DESCRIPTORS = 20, MOST_ENGINES = 16, MOST_KNOBS = 16 };

/* Numbers by which a plan's pointers are told apart. */
enum { ID_X = 1, ID_WEIGHT, ID_Y, ID_BIAS, ID_RESIDUAL, ID_INNER };

struct nl_conv_plan {
    descriptor plan;
    int64_t workspace;
    bool bias, residual;
};

#define TRY(call)                                                                                  \
    do {                                                                                           \
        const cudnnStatus_t status_ = (call);                                                      \
        if (status_ != CUDNN_STATUS_SUCCESS)                                                       \
            return status_;                                                                        \
    } while (0)

/* Owns the descriptors of a graph. */
struct graph {
    descriptor all[MOST_DESCRIPTORS];
    int count;
    int64_t next_inner;

    graph() : count(0), next_inner(ID_INNER) {}
    ~graph()
    {
        while (count > 0)
            cudnnBackendDestroyDescriptor(all[--count]);
    }
    graph(const graph &) = delete;
    graph &operator=(const graph &) = delete;

    cudnnStatus_t make(cudnnBackendDescriptorType_t type, descriptor *made)
    {
        if (count == MOST_DESCRIPTORS)
            return CUDNN_STATUS_INTERNAL_ERROR;
        TRY(cudnnBackendCreateDescriptor(type, made));
        all[count++] = *made;
        return CUDNN_STATUS_SUCCESS;
    }
};

/* One attribute of one element. */
template <typename V>
static cudnnStatus_t set(descriptor d, cudnnBackendAttributeName_t name,
                         cudnnBackendAttributeType_t type, V value)
{
    return cudnnBackendSetAttribute(d, name, type, 1, &value);
}

static cudnnStatus_t set_sizes(descriptor d, cudnnBackendAttributeName_t name, int64_t count,
                               const int64_t *sizes)
{
    return cudnnBackendSetAttribute(d, name, CUDNN_TYPE_INT64, count, sizes);
}

static cudnnDataType_t type_of(nl_dtype type)
{
    return type == NL_BF16  ? CUDNN_DATA_BFLOAT16
           : type == NL_F16 ? CUDNN_DATA_HALF
                            : CUDNN_DATA_FLOAT;
}

/* Sizes and strides in cuDNN's order N, C, H, W. inner: a result that only lives between two
 * operations of the graph. */
static cudnnStatus_t add_tensor(graph *g, cudnnDataType_t type, int64_t id, const int64_t sizes[4],
                                const int64_t strides[4], bool inner, descriptor *tensor)
{
    TRY(g->make(CUDNN_BACKEND_TENSOR_DESCRIPTOR, tensor));
    TRY(set(*tensor, CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, type));
    TRY(set_sizes(*tensor, CUDNN_ATTR_TENSOR_DIMENSIONS, 4, sizes));
    TRY(set_sizes(*tensor, CUDNN_ATTR_TENSOR_STRIDES, 4, strides));
    TRY(set(*tensor, CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, id));
    TRY(set(*tensor, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, CUDNN_TYPE_INT64, (int64_t)16));
    TRY(set(*tensor, CUDNN_ATTR_TENSOR_IS_VIRTUAL, CUDNN_TYPE_BOOLEAN, inner));
    return cudnnBackendFinalize(*tensor);
}

/* [N, H, W, C] without gaps. */
static cudnnStatus_t add_packed(graph *g, cudnnDataType_t type, int64_t id, int64_t n, int64_t h,
                                int64_t w, int64_t c, bool inner, descriptor *tensor)
{
    const int64_t sizes[] = {n, c, h, w}, strides[] = {h * w * c, 1, w * c, c};
    return add_tensor(g, type, id, sizes, strides, inner, tensor);
}

/* y, or what comes before it inside the kernel, which is fp32. */
static cudnnStatus_t add_result(graph *g, const nl_conv_problem *p, bool last, descriptor *tensor)
{
    const int64_t sizes[] = {p->batch, p->outputs, p->out_height, p->out_width};
    const int64_t row = p->out_width * p->y_pixel;
    const int64_t strides[] = {p->out_height * row, 1, row, p->y_pixel};
    return last ? add_tensor(g, type_of(p->type), ID_Y, sizes, strides, false, tensor)
                : add_packed(g, CUDNN_DATA_FLOAT, g->next_inner++, p->batch, p->out_height,
                             p->out_width, p->outputs, true, tensor);
}

static cudnnStatus_t add_geometry(graph *g, const nl_conv_problem *p, descriptor *convolution)
{
    const int64_t stride = p->doubled ? 2 : p->stride;
    const int64_t strides[] = {stride, stride}, dilations[] = {1, 1};
    const int64_t before[] = {p->pad_top, p->pad_left}, after[] = {p->pad_bottom, p->pad_right};
    TRY(g->make(CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR, convolution));
    TRY(set(*convolution, CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS, CUDNN_TYPE_INT64, (int64_t)2));
    TRY(set(*convolution, CUDNN_ATTR_CONVOLUTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE,
            CUDNN_DATA_FLOAT));
    TRY(set(*convolution, CUDNN_ATTR_CONVOLUTION_CONV_MODE, CUDNN_TYPE_CONVOLUTION_MODE,
            CUDNN_CROSS_CORRELATION));
    TRY(set_sizes(*convolution, CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES, 2, strides));
    TRY(set_sizes(*convolution, CUDNN_ATTR_CONVOLUTION_DILATIONS, 2, dilations));
    TRY(set_sizes(*convolution, CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS, 2, before));
    TRY(set_sizes(*convolution, CUDNN_ATTR_CONVOLUTION_POST_PADDINGS, 2, after));
    return cudnnBackendFinalize(*convolution);
}

/* Doubled, the convolution is the gradient of one with stride 2 whose input is y and whose output is x. */
static cudnnStatus_t add_convolution(graph *g, const nl_conv_problem *p, descriptor result,
                                     descriptor *operation)
{
    descriptor geometry, x, weight;
    const cudnnDataType_t type = type_of(p->type);
    const bool back = p->doubled;
    TRY(add_geometry(g, p, &geometry));
    TRY(add_packed(g, type, ID_X, p->batch, p->height, p->width, p->channels, false, &x));
    TRY(add_packed(g, type, ID_WEIGHT, back ? p->channels : p->outputs, p->kernel_height,
                   p->kernel_width, back ? p->outputs : p->channels, false, &weight));
    TRY(g->make(back ? CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR
                     : CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR,
                operation));
#define NAME(part_back, part)                                                                      \
    (back ? CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_##part_back                                  \
          : CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_##part)
    TRY(set(*operation, NAME(CONV_DESC, CONV_DESC), CUDNN_TYPE_BACKEND_DESCRIPTOR, geometry));
    TRY(set(*operation, NAME(DY, X), CUDNN_TYPE_BACKEND_DESCRIPTOR, x));
    TRY(set(*operation, NAME(W, W), CUDNN_TYPE_BACKEND_DESCRIPTOR, weight));
    TRY(set(*operation, NAME(DX, Y), CUDNN_TYPE_BACKEND_DESCRIPTOR, result));
    TRY(set(*operation, NAME(ALPHA, ALPHA), CUDNN_TYPE_FLOAT, 1.f));
    TRY(set(*operation, NAME(BETA, BETA), CUDNN_TYPE_FLOAT, 0.f));
#undef NAME
    return cudnnBackendFinalize(*operation);
}

/* y = mode(x, b), or mode(x) with b NULL. */
static cudnnStatus_t add_pointwise(graph *g, cudnnPointwiseMode_t mode, descriptor x, descriptor b,
                                   descriptor y, descriptor *operation)
{
    descriptor pointwise;
    TRY(g->make(CUDNN_BACKEND_POINTWISE_DESCRIPTOR, &pointwise));
    TRY(set(pointwise, CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE, mode));
    TRY(set(pointwise, CUDNN_ATTR_POINTWISE_MATH_PREC, CUDNN_TYPE_DATA_TYPE, CUDNN_DATA_FLOAT));
    if (mode == CUDNN_POINTWISE_RELU_FWD)
        TRY(set(pointwise, CUDNN_ATTR_POINTWISE_NAN_PROPAGATION, CUDNN_TYPE_NAN_PROPOGATION,
                CUDNN_PROPAGATE_NAN));
    TRY(cudnnBackendFinalize(pointwise));
    TRY(g->make(CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR, operation));
    TRY(set(*operation, CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, CUDNN_TYPE_BACKEND_DESCRIPTOR,
            pointwise));
    TRY(set(*operation, CUDNN_ATTR_OPERATION_POINTWISE_XDESC, CUDNN_TYPE_BACKEND_DESCRIPTOR, x));
    if (b)
        TRY(set(*operation, CUDNN_ATTR_OPERATION_POINTWISE_BDESC, CUDNN_TYPE_BACKEND_DESCRIPTOR,
                b));
    TRY(set(*operation, CUDNN_ATTR_OPERATION_POINTWISE_YDESC, CUDNN_TYPE_BACKEND_DESCRIPTOR, y));
    return cudnnBackendFinalize(*operation);
}

nl_dtype nl_conv_plan_bias_type(const nl_conv_problem *p)
{
    return p->type == NL_F16 ? NL_F16 : NL_F32;
}

/* The operations one after the other, each on the result of the one before. */
static cudnnStatus_t build(graph *g, cudnnHandle_t handle, const nl_conv_problem *p,
                           descriptor *finished)
{
    descriptor operations[4], result, next, operand;
    int count = 0, left = (p->bias != 0) + (p->residual != 0) + (p->activation != NL_ACT_NONE);
    TRY(add_result(g, p, left == 0, &result));
    TRY(add_convolution(g, p, result, &operations[count++]));
    if (p->bias) {
        TRY(add_packed(g, type_of(nl_conv_plan_bias_type(p)), ID_BIAS, 1, 1, 1, p->outputs, false,
                       &operand));
        TRY(add_result(g, p, --left == 0, &next));
        TRY(add_pointwise(g, CUDNN_POINTWISE_ADD, result, operand, next, &operations[count++]));
        result = next;
    }
    if (p->residual) {
        TRY(add_packed(g, type_of(p->type), ID_RESIDUAL, p->batch, p->out_height, p->out_width,
                       p->outputs, false, &operand));
        TRY(add_result(g, p, --left == 0, &next));
        TRY(add_pointwise(g, CUDNN_POINTWISE_ADD, result, operand, next, &operations[count++]));
        result = next;
    }
    if (p->activation != NL_ACT_NONE) {
        TRY(add_result(g, p, true, &next));
        TRY(add_pointwise(
            g, p->activation == NL_ACT_RELU ? CUDNN_POINTWISE_RELU_FWD : CUDNN_POINTWISE_SWISH_FWD,
            result, NULL, next, &operations[count++]));
    }
    TRY(g->make(CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR, finished));
    TRY(cudnnBackendSetAttribute(*finished, CUDNN_ATTR_OPERATIONGRAPH_OPS,
                                 CUDNN_TYPE_BACKEND_DESCRIPTOR, count, operations));
    TRY(set(*finished, CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_TYPE_HANDLE, handle));
    return cudnnBackendFinalize(*finished);
}

/* No sums in an order that changes from run to run, none in less than fp32, no transformed convolutions that lose digits;
 * fp32 means fp32 unless TF32 is asked for. */
static bool allowed_note(const nl_conv_problem *p, cudnnBackendNumericalNote_t note)
{
    switch (note) {
    case CUDNN_NUMERICAL_NOTE_TENSOR_CORE:
    case CUDNN_NUMERICAL_NOTE_DOWN_CONVERT_INPUTS:
        return p->type != NL_F32 || p->tf32;
    case CUDNN_NUMERICAL_NOTE_STRICT_NAN_PROP:
        return true;
    default:
        return false;
    }
}

/* Engines that are compiled when they are chosen take a third of a second for each shape: more than they win. */
static bool allowed(const nl_conv_problem *p, descriptor configuration)
{
    cudnnBackendNumericalNote_t notes[CUDNN_NUMERICAL_NOTE_TYPE_COUNT];
    cudnnBackendBehaviorNote_t behaviours[CUDNN_BEHAVIOR_NOTE_TYPE_COUNT];
    descriptor engine = NULL;
    int64_t count = 0, note_count = 0, behaviour_count = 0;
    bool good = cudnnBackendCreateDescriptor(CUDNN_BACKEND_ENGINE_DESCRIPTOR, &engine) ==
                    CUDNN_STATUS_SUCCESS &&
                cudnnBackendGetAttribute(configuration, CUDNN_ATTR_ENGINECFG_ENGINE,
                                         CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &count,
                                         &engine) == CUDNN_STATUS_SUCCESS &&
                cudnnBackendGetAttribute(engine, CUDNN_ATTR_ENGINE_NUMERICAL_NOTE,
                                         CUDNN_TYPE_NUMERICAL_NOTE, CUDNN_NUMERICAL_NOTE_TYPE_COUNT,
                                         &note_count, notes) == CUDNN_STATUS_SUCCESS &&
                cudnnBackendGetAttribute(engine, CUDNN_ATTR_ENGINE_BEHAVIOR_NOTE,
                                         CUDNN_TYPE_BEHAVIOR_NOTE, CUDNN_BEHAVIOR_NOTE_TYPE_COUNT,
                                         &behaviour_count, behaviours) == CUDNN_STATUS_SUCCESS;
    for (int64_t i = 0; good && i < note_count; i++)
        good = allowed_note(p, notes[i]);
    for (int64_t i = 0; good && i < behaviour_count; i++)
        good = behaviours[i] != CUDNN_BEHAVIOR_NOTE_RUNTIME_COMPILATION;
    if (engine)
        cudnnBackendDestroyDescriptor(engine);
    return good;
}

/* What the heuristics chose for a knob of the engine; -1 where it has none. */
static int64_t knob_of(descriptor configuration, cudnnBackendKnobType_t knob)
{
    descriptor choices[MOST_KNOBS];
    int64_t made = 0, count = 0, found = -1, one;
    while (made < MOST_KNOBS &&
           cudnnBackendCreateDescriptor(CUDNN_BACKEND_KNOB_CHOICE_DESCRIPTOR, &choices[made]) ==
               CUDNN_STATUS_SUCCESS)
        made++;
    if (cudnnBackendGetAttribute(configuration, CUDNN_ATTR_ENGINECFG_KNOB_CHOICES,
                                 CUDNN_TYPE_BACKEND_DESCRIPTOR, made, &count,
                                 choices) != CUDNN_STATUS_SUCCESS)
        count = 0;
    for (int64_t i = 0; i < NL_MIN(count, made); i++) {
        cudnnBackendKnobType_t type;
        int64_t value;
        if (cudnnBackendGetAttribute(choices[i], CUDNN_ATTR_KNOB_CHOICE_KNOB_TYPE,
                                     CUDNN_TYPE_KNOB_TYPE, 1, &one,
                                     &type) == CUDNN_STATUS_SUCCESS &&
            type == knob &&
            cudnnBackendGetAttribute(choices[i], CUDNN_ATTR_KNOB_CHOICE_KNOB_VALUE,
                                     CUDNN_TYPE_INT64, 1, &one, &value) == CUDNN_STATUS_SUCCESS)
            found = value;
    }
    while (made > 0)
        cudnnBackendDestroyDescriptor(choices[--made]);
    return found;
}

/* A plan of the engine; NULL when it cannot be made or wants too much workspace. */
static descriptor make_plan(cudnnHandle_t handle, descriptor configuration, int64_t most_workspace,
                            int64_t *workspace)
{
    descriptor plan = NULL;
    int64_t count;
    if (cudnnBackendCreateDescriptor(CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR, &plan) !=
        CUDNN_STATUS_SUCCESS)
        return NULL;
    if (set(plan, CUDNN_ATTR_EXECUTION_PLAN_HANDLE, CUDNN_TYPE_HANDLE, handle) ==
            CUDNN_STATUS_SUCCESS &&
        set(plan, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, CUDNN_TYPE_BACKEND_DESCRIPTOR,
            configuration) == CUDNN_STATUS_SUCCESS &&
        cudnnBackendFinalize(plan) == CUDNN_STATUS_SUCCESS &&
        cudnnBackendGetAttribute(plan, CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE, CUDNN_TYPE_INT64,
                                 1, &count, workspace) == CUDNN_STATUS_SUCCESS &&
        *workspace <= most_workspace)
        return plan;
    cudnnBackendDestroyDescriptor(plan);
    return NULL;
}

/* Engines in the order of the heuristics; *count is how many `engines` has room for, then how many
 * there are. */
static cudnnStatus_t list_engines(descriptor operations, cudnnBackendHeurMode_t mode,
                                  descriptor *engines, int64_t *count)
{
    graph heuristics;
    descriptor list;
    TRY(heuristics.make(CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR, &list));
    TRY(set(list, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, CUDNN_TYPE_BACKEND_DESCRIPTOR,
            operations));
    TRY(set(list, CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, mode));
    TRY(cudnnBackendFinalize(list));
    return cudnnBackendGetAttribute(list, CUDNN_ATTR_ENGINEHEUR_RESULTS,
                                    CUDNN_TYPE_BACKEND_DESCRIPTOR, *count, count, engines);
}

static cudnnStatus_t choose(cudnnHandle_t handle, const nl_conv_problem *p, descriptor operations,
                            cudnnBackendHeurMode_t mode, int tile, int64_t most_workspace,
                            nl_conv_plan *plan)
{
    descriptor engines[MOST_ENGINES];
    int64_t made = 0, count;
    cudnnStatus_t status = CUDNN_STATUS_SUCCESS;
    while (made < MOST_ENGINES && status == CUDNN_STATUS_SUCCESS) {
        status = cudnnBackendCreateDescriptor(CUDNN_BACKEND_ENGINECFG_DESCRIPTOR, &engines[made]);
        made += status == CUDNN_STATUS_SUCCESS;
    }
    count = made;
    if (status == CUDNN_STATUS_SUCCESS)
        status = list_engines(operations, mode, engines, &count);
    if (status != CUDNN_STATUS_SUCCESS)
        count = 0;
    for (int64_t i = 0; tile >= 0 && !plan->plan && i < count; i++)
        if (knob_of(engines[i], CUDNN_KNOB_TYPE_TILE_SIZE) == tile &&
            knob_of(engines[i], CUDNN_KNOB_TYPE_WORKSPACE) != 0 && allowed(p, engines[i]))
            plan->plan = make_plan(handle, engines[i], most_workspace, &plan->workspace);
    for (int64_t i = 0; !plan->plan && i < count; i++)
        if (allowed(p, engines[i]))
            plan->plan = make_plan(handle, engines[i], most_workspace, &plan->workspace);
    for (int64_t i = 0; i < made; i++)
        cudnnBackendDestroyDescriptor(engines[i]);
    return status == CUDNN_STATUS_SUCCESS && !plan->plan ? CUDNN_STATUS_NOT_SUPPORTED : status;
}

cudnnStatus_t nl_conv_plan_create(cudnnHandle_t handle, const nl_conv_problem *problem, int tile,
                                  int64_t most_workspace, nl_conv_plan **out)
{
    static const cudnnBackendHeurMode_t modes[] = {CUDNN_HEUR_MODE_A, CUDNN_HEUR_MODE_FALLBACK};
    graph g;
    descriptor operations;
    *out = NULL;
    TRY(build(&g, handle, problem, &operations));
    nl_conv_plan *plan = (nl_conv_plan *)calloc(1, sizeof(*plan));
    if (!plan)
        return CUDNN_STATUS_ALLOC_FAILED;
    plan->bias = problem->bias, plan->residual = problem->residual;
    cudnnStatus_t status = CUDNN_STATUS_NOT_SUPPORTED;
    for (int i = 0; i < NL_COUNT(modes) && status != CUDNN_STATUS_SUCCESS; i++)
        status = choose(handle, problem, operations, modes[i], tile, most_workspace, plan);
    if (status == CUDNN_STATUS_SUCCESS)
        *out = plan;
    else
        nl_conv_plan_destroy(plan);
    return status;
}

void nl_conv_plan_destroy(nl_conv_plan *plan)
{
    if (plan && plan->plan)
        cudnnBackendDestroyDescriptor(plan->plan);
    free(plan);
}

int64_t nl_conv_plan_workspace(const nl_conv_plan *plan)
{
    return plan->workspace;
}

cudnnStatus_t nl_conv_plan_run(cudnnHandle_t handle, const nl_conv_plan *plan,
                               const nl_conv_operands *o, void *workspace)
{
    int64_t ids[5] = {ID_X, ID_WEIGHT, ID_Y}, count = 3;
    const void *pointers[5] = {o->x, o->weight, o->y};
    if (plan->bias)
        ids[count] = ID_BIAS, pointers[count++] = o->bias;
    if (plan->residual)
        ids[count] = ID_RESIDUAL, pointers[count++] = o->residual;
    graph g;
    descriptor pack;
    TRY(g.make(CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR, &pack));
    TRY(cudnnBackendSetAttribute(pack, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64, count,
                                 ids));
    TRY(cudnnBackendSetAttribute(pack, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR,
                                 count, pointers));
    TRY(set(pack, CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, workspace));
    TRY(cudnnBackendFinalize(pack));
    return cudnnBackendExecute(handle, plan->plan, pack);
}

#endif
