/* SPDX-License-Identifier: MIT */
/* Launchers of the tensor core kernels: forward_kernel.cuh says how they work. */
#include "forward.cuh"

#include "prim/shared_limit.cuh"

using namespace nl_nala;

template <int D, int MAP, bool CUBE> struct launcher {
    using S = shape<D, nl_halves<MAP>>;

    static int64_t workspace(int64_t pairs, int chunks)
    {
        return workspace_bytes<S>(pairs, chunks);
    }
    template <typename Kernel> static cudaError_t allow(Kernel kernel)
    {
        return nl_allow_shared(kernel, S::SHARED_BYTES);
    }
    template <bool ROPE, bool LEARNT>
    static cudaError_t run_as(nl_nala_problem p, int64_t batch, void *workspace,
                              cudaStream_t stream)
    {
        const int64_t pairs = batch * p.heads;
        const int chunks = divide<S>(p, pairs, workspace);
        cudaError_t error;
        if (chunks == 1) {
            auto kernel = fused_kernel<D, MAP, CUBE, ROPE, LEARNT>;
            if ((error = allow(kernel)) != cudaSuccess)
                return error;
            kernel<<<dim3(p.heads, (unsigned)batch), S::THREADS, S::SHARED_BYTES, stream>>>(p);
            return cudaGetLastError();
        }
        auto partial = partial_kernel<D, MAP, CUBE, ROPE, LEARNT>;
        auto apply = apply_kernel<D, MAP, CUBE, ROPE, LEARNT>;
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
        if constexpr (MAP == NL_FEATURES_COSINE && !CUBE)
            if (p.log_lambda)
                return run_as<false, true>(p, batch, workspace, stream);
        if constexpr (nl_packed<MAP>)
            if (p.rope.table)
                return run_as<true, false>(p, batch, workspace, stream);
        return p.rope.table ? cudaErrorInvalidValue
                            : run_as<false, false>(p, batch, workspace, stream);
    }
};

/* use(a constant: the head size whose kernels serve). One between those that have some takes the next larger one's. */
template <int D, int... LARGER, typename Use> static auto for_head_size(int64_t head_size, Use use)
{
    if constexpr (sizeof...(LARGER) > 0)
        if (head_size > D)
            return for_head_size<LARGER...>(head_size, use);
    return use(nl_constant<D>());
}

/* use(the launcher of head_size, map and lambda). A map without an exponent knows no CUBE. */
template <typename Use>
static auto for_launcher(int64_t head_size, nl_feature_map map, bool cube, Use use)
{
    return for_head_size<32, 48, 64, 72, 80, 96, 128>(head_size, [&](auto size) {
        constexpr int D = size.value;
        return nl_for_feature_map(map, [&](auto known) {
            constexpr int MAP = known.value;
            if constexpr (nl_map<MAP, false, false>::POWER)
                if (!cube)
                    return use(launcher<D, MAP, false>());
            return use(launcher<D, MAP, true>());
        });
    });
}

bool nl_nala_serves(int64_t head_size, nl_feature_map map, bool rope, bool learnt)
{
    return head_size % 8 == 0 && head_size <= 128 &&
           (!rope || map == NL_FEATURES_COSINE || map == NL_FEATURES_COSINE_CONSTANT) &&
           (!learnt || (map == NL_FEATURES_COSINE && !rope));
}

int64_t nl_nala_workspace(int64_t batch, int64_t heads, int64_t tokens, int64_t head_size,
                          nl_feature_map map)
{
    const int chunks = chunk_count(tokens);
    return for_launcher(head_size, map, true /* sizes do not depend on it */,
                        [&](auto launch) { return launch.workspace(batch * heads, chunks); });
}

cudaError_t nl_nala_forward(nl_nala_problem p, int64_t batch, int64_t head_size, nl_feature_map map,
                            void *workspace, cudaStream_t stream)
{
    const bool cube =
        !p.log_lambda && p.lambda == 3.f && p.tau > 0.f; /* then every power is positive too */
    if (!nl_nala_serves(head_size, map, p.rope.table != NULL, p.log_lambda))
        return cudaErrorInvalidValue;
    p.head_size = (int)head_size;
    return for_launcher(head_size, map, cube,
                        [&](auto launch) { return launch.run(p, batch, workspace, stream); });
}
