/* SPDX-License-Identifier: MIT */
/* Launchers of the tensor core kernels: forward_kernel.cuh says how they work. */
#include "forward.cuh"
#include "rope.cuh"

using namespace nl_nala;

template <int D, int MAP, bool CUBE> struct launcher {
    using S = shape<D, nl_map_halves<MAP>::value>;

    static int64_t workspace(int64_t pairs, int chunks)
    {
        return workspace_bytes<S>(pairs, chunks);
    }
    template <typename Kernel> static cudaError_t allow(Kernel kernel)
    {
        return cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                    S::SHARED_BYTES);
    }
    template <bool ROPE>
    static cudaError_t run_as(nl_nala_problem p, int64_t batch, void *workspace,
                              cudaStream_t stream)
    {
        const int64_t pairs = batch * p.heads;
        const int chunks = divide<S>(p, pairs, workspace);
        cudaError_t error;
        if (chunks == 1) {
            auto kernel = fused_kernel<D, MAP, CUBE, ROPE>;
            if ((error = allow(kernel)) != cudaSuccess)
                return error;
            kernel<<<dim3(p.heads, (unsigned)batch), S::THREADS, S::SHARED_BYTES, stream>>>(p);
            return cudaGetLastError();
        }
        auto partial = partial_kernel<D, MAP, CUBE, ROPE>;
        auto apply = apply_kernel<D, MAP, CUBE, ROPE>;
        if ((error = allow(partial)) != cudaSuccess || (error = allow(apply)) != cudaSuccess)
            return error;
        const dim3 grid(p.heads, (unsigned)batch, chunks);
        partial<<<grid, S::THREADS, S::SHARED_BYTES, stream>>>(p);
        if ((error = reduce<D, MAP>(p, chunks, pairs, stream)) != cudaSuccess)
            return error;
        apply<<<grid, S::THREADS, S::SHARED_BYTES, stream>>>(p);
        return cudaGetLastError();
    }
    static cudaError_t run(const nl_nala_problem &p, int64_t batch, void *workspace,
                           cudaStream_t stream)
    {
        if constexpr (nl_map_packed<MAP>::value)
            if (p.rope)
                return run_as<true>(p, batch, workspace, stream);
        return p.rope ? cudaErrorInvalidValue : run_as<false>(p, batch, workspace, stream);
    }
};

/* Calls BODY with `launch` the launcher of head_size, map and lambda. Maps without a power know no CUBE. */
#define WITH(D, MAP, CUBE, BODY)                                                                   \
    {                                                                                              \
        using launch = launcher<D, MAP, CUBE>;                                                     \
        BODY;                                                                                      \
    }
#define WITH_POWER(D, MAP, BODY)                                                                   \
    if (cube)                                                                                      \
        WITH(D, MAP, true, BODY)                                                                   \
    else                                                                                           \
        WITH(D, MAP, false, BODY)                                                                  \
    break;
#define FOR_MAP(D, BODY)                                                                           \
    switch (map) {                                                                                 \
    case NL_FEATURES_COSINE:                                                                       \
        WITH_POWER(D, NL_FEATURES_COSINE, BODY)                                                    \
    case NL_FEATURES_COSINE_CONSTANT:                                                              \
        WITH_POWER(D, NL_FEATURES_COSINE_CONSTANT, BODY)                                           \
    case NL_FEATURES_SPLIT:                                                                        \
        WITH_POWER(D, NL_FEATURES_SPLIT, BODY)                                                     \
    case NL_FEATURES_POWER:                                                                        \
        WITH_POWER(D, NL_FEATURES_POWER, BODY)                                                     \
    case NL_FEATURES_RELU:                                                                         \
        WITH(D, NL_FEATURES_RELU, true, BODY)                                                      \
        break;                                                                                     \
    case NL_FEATURES_ELU1:                                                                         \
        WITH(D, NL_FEATURES_ELU1, true, BODY)                                                      \
        break;                                                                                     \
    }
/* A head size between those that have a kernel of their own takes the next larger one's. */
#define HEAD(D, BODY)                                                                              \
    if (head_size <= D) {                                                                          \
        FOR_MAP(D, BODY)                                                                           \
    } else
#define FOR_HEAD_SIZE(BODY)                                                                        \
    HEAD(32, BODY)                                                                                 \
    HEAD(48, BODY)                                                                                 \
    HEAD(64, BODY)                                                                                 \
    HEAD(72, BODY)                                                                                 \
    HEAD(80, BODY)                                                                                 \
    HEAD(96, BODY)                                                                                 \
    HEAD(128, BODY) {}

bool nl_nala_serves(int64_t head_size, nl_feature_map map, bool rope)
{
    return head_size % 8 == 0 && head_size <= 128 &&
           (!rope || map == NL_FEATURES_COSINE || map == NL_FEATURES_COSINE_CONSTANT);
}

int64_t nl_nala_workspace(int64_t batch, int64_t heads, int64_t tokens, int64_t head_size,
                          nl_feature_map map, int64_t positions)
{
    const int chunks = chunk_count(tokens);
    const bool cube = true; /* sizes do not depend on it */
    FOR_HEAD_SIZE(return nl_nala_rope_bytes(positions, head_size) +
                         launch::workspace(batch * heads, chunks));
    return 0;
}

cudaError_t nl_nala_forward(nl_nala_problem p, int64_t batch, int64_t head_size, nl_feature_map map,
                            int64_t positions, void *workspace, cudaStream_t stream)
{
    const bool cube = p.lambda == 3.f && p.tau > 0.f; /* then every power is positive too */
    if (!nl_nala_serves(head_size, map, positions > 0))
        return cudaErrorInvalidValue;
    p.head_size = (int)head_size, p.rope = NULL;
    if (positions > 0) {
        const cudaError_t error =
            nl_nala_rope_table((float2 *)workspace, positions, head_size, stream);
        if (error != cudaSuccess)
            return error;
        p.rope = (const float2 *)workspace;
        workspace = (char *)workspace + nl_nala_rope_bytes(positions, head_size);
    }
    FOR_HEAD_SIZE(return launch::run(p, batch, workspace, stream));
    return cudaErrorInvalidValue;
}
