/* Launchers of nala_backward.cuh. */
#include "nala_backward.cuh"

using namespace nl_nala_gradients;

/* Tokens that one block takes, at most. By the length alone, so that a result does not depend on the batch. */
static const int64_t QUERY_CHUNK = 512, KEY_CHUNK = 256;

static int64_t blocks_of(int64_t count, int64_t size)
{
    return (count + size - 1) / size;
}

/* Tokens of a chunk: whole tiles, spread evenly. */
static int chunk_of(int64_t tokens, int64_t most, int64_t tile)
{
    return (int)(blocks_of(blocks_of(tokens, tile), blocks_of(tokens, most)) * tile);
}

template <int D> struct launcher {
    using S = shape<D>;

    static int query_chunk(int64_t tokens)
    {
        return chunk_of(tokens, QUERY_CHUNK, S::QUERY_TILE);
    }
    static int64_t partial_bytes(int64_t pairs, int64_t tokens)
    {
        const int64_t chunks = blocks_of(tokens, query_chunk(tokens));
        return chunks == 1 ? 0 : 4 * chunks * pairs * S::F * S::NT * 8;
    }
    static int64_t workspace(int64_t pairs, int64_t tokens)
    {
        return partial_bytes(pairs, tokens) + pairs * (2 * S::STATE + 4 * S::F);
    }
    template <bool CUBE>
    static cudaError_t run(nl_nala_gradient p, int64_t batch, void *workspace, cudaStream_t stream)
    {
        const int64_t pairs = batch * p.heads;
        cudaError_t error;
        if ((error = cudaFuncSetAttribute(query_kernel<D, CUBE>,
                                          cudaFuncAttributeMaxDynamicSharedMemorySize,
                                          S::QUERY_BYTES)) != cudaSuccess ||
            (error = cudaFuncSetAttribute(key_kernel<D, CUBE>,
                                          cudaFuncAttributeMaxDynamicSharedMemorySize,
                                          S::KEY_BYTES)) != cudaSuccess)
            return error;
        p.query_chunk = query_chunk(p.tokens);
        p.key_chunk = chunk_of(p.tokens, KEY_CHUNK, S::KEY_TILE);
        const int chunks = (int)blocks_of(p.tokens, p.query_chunk);
        char *space = (char *)workspace;
        p.partial = chunks > 1 ? (float *)space : NULL;
        p.dstate = (__nv_bfloat16 *)(space + partial_bytes(pairs, p.tokens));
        p.dtotal = (float *)(p.dstate + pairs * S::STATE);
        query_kernel<D, CUBE><<<dim3(p.heads, (unsigned)batch, chunks), 32 * S::QUERY_WARPS,
                                S::QUERY_BYTES, stream>>>(p);
        if (chunks > 1)
            reduce_kernel<D><<<dim3((unsigned)blocks_of(S::F * S::NT * 4, 256), (unsigned)pairs),
                               256, 0, stream>>>(p, chunks);
        key_kernel<D, CUBE>
            <<<dim3(p.heads, (unsigned)batch, (unsigned)blocks_of(p.tokens, p.key_chunk)),
               32 * S::KEY_WARPS, S::KEY_BYTES, stream>>>(p);
        return cudaGetLastError();
    }
};

#define HEAD(D, BODY)                                                                              \
    case D: {                                                                                      \
        using launch = launcher<D>;                                                                \
        BODY;                                                                                      \
    }
#define FOR_HEAD_SIZE(BODY)                                                                        \
    switch (head_size) {                                                                           \
        HEAD(32, BODY)                                                                             \
        HEAD(48, BODY)                                                                             \
        HEAD(64, BODY)                                                                             \
        HEAD(72, BODY)                                                                             \
        HEAD(80, BODY)                                                                             \
        HEAD(96, BODY)                                                                             \
    }

int64_t nl_nala_backward_workspace(int64_t batch, int64_t heads, int64_t tokens, int64_t head_size)
{
    FOR_HEAD_SIZE(return launch::workspace(batch * heads, tokens))
    return 0;
}

cudaError_t nl_nala_backward(nl_nala_gradient p, int64_t batch, int64_t head_size, void *workspace,
                             cudaStream_t stream)
{
    const bool cube = p.lambda == 3.f && p.tau > 0.f; /* then every power is positive too */
    FOR_HEAD_SIZE(return cube ? launch::run<true>(p, batch, workspace, stream)
                              : launch::run<false>(p, batch, workspace, stream))
    return cudaErrorInvalidValue;
}
