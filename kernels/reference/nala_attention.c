/* Norm-aware linear attention, equation by equation: the features are written out, the state is
 * summed over the tokens, every query reads the state. */
#include "reference.h"

static const double epsilon = 1e-6; /* of directions and of the denominator */

/* relu(x)^p, 0 at x = 0. */
static double relu_power(double x, double p)
{
    return x > 0 ? pow(x, p) : 0;
}

static double norm2(const double *x, int64_t size)
{
    double squares = 0;
    for (int64_t i = 0; i < size; i++)
        squares += x[i] * x[i];
    return sqrt(squares);
}

/* norm2(r) r^lambda / (norm2(r^lambda) + 1e-6), r = relu(x) */
static void power_features(const double *x, int64_t d, double lambda, double *phi)
{
    double squares = 0;
    for (int64_t i = 0; i < d; i++) {
        squares += x[i] > 0 ? x[i] * x[i] : 0;
        phi[i] = relu_power(x[i], lambda);
    }
    double factor = sqrt(squares) / (norm2(phi, d) + epsilon);
    for (int64_t i = 0; i < d; i++)
        phi[i] *= factor;
}

/* phi_q(x) or phi_k(x), x [d] -> phi [F] */
static void features(const nl_nala_attention_args *args, bool query, const double *x, double *phi)
{
    int64_t d = args->head_size;
    nl_feature_map map = args->feature_map;
    double norm = norm2(x, d);
    double exponent = query && map != NL_FEATURES_COSINE_CONSTANT
                          ? args->lambda * (args->tau + tanh(norm))
                          : args->lambda;
    if (map == NL_FEATURES_POWER)
        power_features(x, d, args->lambda, phi);
    for (int64_t i = 0; i < d; i++) {
        double direction = x[i] / (norm + epsilon), base = query ? direction : x[i];
        double angle = nl_pi / 4 * tanh(direction);
        switch (map) {
        case NL_FEATURES_COSINE:
        case NL_FEATURES_COSINE_CONSTANT:
            phi[i] = relu_power(fabs(base), exponent) * cos(angle);
            phi[d + i] = relu_power(fabs(base), exponent) * sin(angle);
            break;
        case NL_FEATURES_SPLIT:
            phi[i] = relu_power(base, exponent);
            phi[d + i] = relu_power(-base, exponent);
            break;
        case NL_FEATURES_RELU:
            phi[i] = x[i] > 0 ? x[i] : 0;
            break;
        case NL_FEATURES_ELU1:
            phi[i] = x[i] > 0 ? 1 + x[i] : exp(x[i]);
            break;
        case NL_FEATURES_POWER:
            break;
        }
    }
}

/* 2-D rotary angles on each d-wide half of phi: the first half of d turns with the row, the second
 * with the column of the token. Frequencies 10000^-linspace(0, 1, d / 4), both ends included. */
static void rotate(const nl_nala_attention_args *args, int64_t token, int64_t width, double *phi)
{
    int64_t d = args->head_size, quarter = d / 4;
    int64_t row = token / args->grid_width, column = token % args->grid_width;
    for (int64_t pair = 0; pair < width / 2; pair++) {
        int64_t place = pair % (d / 2), i = place % quarter;
        double exponent = quarter > 1 ? (double)i / (quarter - 1) : 0;
        double angle = (place < quarter ? row : column) * pow(10000, -exponent);
        double a = phi[2 * pair], b = phi[2 * pair + 1];
        phi[2 * pair] = a * cos(angle) - b * sin(angle);
        phi[2 * pair + 1] = b * cos(angle) + a * sin(angle);
    }
}

static void load(const nl_nala_attention_args *args, int64_t row, int64_t column, double *x)
{
    for (int64_t i = 0; i < args->head_size; i++)
        x[i] = nl_get(&args->qkvg, row, column + i);
}

typedef struct head_memory {
    double *state; /* S [F, d], of rotated keys with rope */
    double *total; /* z [F], never rotated */
    double *phi;   /* [F] */
    double *x, *v; /* [d] */
} head_memory;

/* S = 1/N sum phi_k(k)^T v, z = 1/N sum phi_k(k), over the tokens of one image and head. */
static void sum_state(const nl_nala_attention_args *args, int64_t image, int64_t head,
                      const head_memory *memory)
{
    int64_t d = args->head_size, width = nl_feature_width(args->feature_map, d);
    int64_t size = args->heads * d;
    for (int64_t i = 0; i < width * (d + 1); i++)
        memory->state[i] = 0; /* and total, which follows */
    for (int64_t token = 0; token < args->tokens; token++) {
        int64_t row = image * args->tokens + token;
        load(args, row, size + head * d, memory->x);
        load(args, row, 2 * size + head * d, memory->v);
        features(args, false, memory->x, memory->phi);
        for (int64_t f = 0; f < width; f++)
            memory->total[f] += memory->phi[f] / args->tokens;
        if (args->rope)
            rotate(args, token, width, memory->phi);
        for (int64_t f = 0; f < width; f++)
            for (int64_t i = 0; i < d; i++)
                memory->state[f * d + i] += memory->phi[f] * memory->v[i] / args->tokens;
    }
}

/* o = phi_q(q) S / (phi_q(q) . z + 1e-6) for the tokens of one image and head. */
static void apply_state(const nl_nala_attention_args *args, int64_t image, int64_t head,
                        const head_memory *memory)
{
    int64_t d = args->head_size, width = nl_feature_width(args->feature_map, d);
    for (int64_t token = 0; token < args->tokens; token++) {
        int64_t row = image * args->tokens + token;
        load(args, row, head * d, memory->x);
        features(args, true, memory->x, memory->phi);
        double denominator = epsilon;
        for (int64_t f = 0; f < width; f++)
            denominator += memory->phi[f] * memory->total[f];
        if (args->rope)
            rotate(args, token, width, memory->phi);
        for (int64_t i = 0; i < d; i++) {
            double sum = 0;
            for (int64_t f = 0; f < width; f++)
                sum += memory->phi[f] * memory->state[f * d + i];
            nl_put(&args->out, row, head * d + i, sum / denominator);
        }
    }
}

/* qkvg [B * T, >= 3D] -> out [B * T, D], state [B * h, F, d], total [B * h, F] */
nl_status nl_reference_nala_attention(nl_device *device, const nl_nala_attention_args *args)
{
    int64_t d = args->head_size, width = nl_feature_width(args->feature_map, d);
    void *memory = NULL;
    nl_status status = NL_OK;
    NL_TRY(nl_alloc_array(device->context, "attention state", width * (d + 2) + 2 * d,
                          sizeof(double), &memory));
    head_memory parts = {.state = memory};
    parts.total = parts.state + width * d;
    parts.phi = parts.total + width;
    parts.x = parts.phi + width;
    parts.v = parts.x + d;
    for (int64_t image = 0; image < args->batch; image++)
        for (int64_t head = 0; head < args->heads; head++) {
            int64_t index = image * args->heads + head;
            sum_state(args, image, head, &parts);
            apply_state(args, image, head, &parts);
            for (int64_t i = 0; args->state.data && i < width * d; i++)
                nl_put(&args->state, 0, index * width * d + i, parts.state[i]);
            for (int64_t i = 0; args->total.data && i < width; i++)
                nl_put(&args->total, 0, index * width + i, parts.total[i]);
        }
cleanup:
    nl_free(device->context, memory);
    return status;
}
