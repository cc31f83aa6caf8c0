/* SPDX-License-Identifier: MIT */
/* An FID network with weights made from their names, as a file in memory. */
#include "seeded_inception.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "inception.h"

double seeded_uniform(const char *name, int64_t i)
{
    uint64_t z = 0xcbf29ce484222325u;
    for (; *name; name++)
        z = (z ^ (uint8_t)*name) * 0x100000001b3u;
    z += (uint64_t)(i + 1) * 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return (double)((z ^ (z >> 31)) >> 40) / 16777216;
}

typedef struct seeded_tensor {
    char name[96];
    int ndim;
    int64_t shape[4];
    double low, high;
} seeded_tensor;

enum { SEEDED = 5 * NL_INCEPTION_CONVOLUTIONS + 2 };

static void seed_tensor(seeded_tensor *t, const char *name, const char *suffix, int ndim,
                        const int64_t *shape, double low, double high)
{
    snprintf(t->name, sizeof(t->name), "%s.%s", name, suffix);
    t->ndim = ndim;
    memcpy(t->shape, shape, (size_t)ndim * sizeof(*shape));
    t->low = low;
    t->high = high;
}

/* Left out of an incomplete file: what the features of 2048 numbers and the logits take. */
static bool left_out(const char *name)
{
    return !strcmp(name, "mixed_9/tower_1/conv_1.weight") ||
           !strcmp(name, "mixed_10/tower_1/conv_1.weight") || !strncmp(name, "softmax.", 8);
}

/* The tensors of pytorch-fid's file; or under TensorFlow's names, batch norms folded, the file incomplete. */
static nl_status list_tensors(nl_device *device, bool whole, seeded_tensor *tensors, int *count)
{
    nl_inception *net = calloc(1, sizeof(*net));
    seeded_tensor *t = tensors;
    nl_status status;
    net->device = device;
    *count = 0;
    NL_TRY(nl_inception_list(net));
    for (int i = 0; i < net->count; i++) {
        const nl_convolution *c = &net->convolutions[i];
        double reach = sqrt(6.0 / (double)(c->shape[1] * c->shape[2] * c->shape[3]));
        if (!whole) {
            seed_tensor(t++, c->name, "weight", 4, c->shape, -reach, reach);
            seed_tensor(t++, c->name, "bias", 1, c->shape, -0.25, 0.25);
            continue;
        }
        seed_tensor(t++, c->torch, "conv.weight", 4, c->shape, -reach, reach);
        seed_tensor(t++, c->torch, "bn.weight", 1, c->shape, 0.5, 1.5);
        seed_tensor(t++, c->torch, "bn.bias", 1, c->shape, -0.25, 0.25);
        seed_tensor(t++, c->torch, "bn.running_mean", 1, c->shape, -0.125, 0.125);
        seed_tensor(t++, c->torch, "bn.running_var", 1, c->shape, 0.5, 1.5);
    }
    const char *classifier = whole ? "fc" : "softmax";
    seed_tensor(t++, classifier, "weight", 2, (int64_t[]){1008, 2048}, -0.0625, 0.0625);
    seed_tensor(t++, classifier, "bias", 1, (int64_t[]){1008}, -1, 1);
    for (const seeded_tensor *each = tensors; each < t; each++)
        if (!left_out(each->name))
            tensors[(*count)++] = *each;
cleanup:
    free(net);
    return status;
}

static int64_t elements(const seeded_tensor *t)
{
    int64_t count = 1;
    for (int i = 0; i < t->ndim; i++)
        count *= t->shape[i];
    return count;
}

static uint8_t *file_of(const seeded_tensor *tensors, int count, int64_t *size)
{
    char *header = calloc(SEEDED, 256), *end = header + 8;
    int64_t bytes = 0;
    *end++ = '{';
    for (int n = 0; n < count; n++) {
        const seeded_tensor *t = &tensors[n];
        int64_t begin = bytes;
        end += sprintf(end, "%s\"%s\":{\"dtype\":\"F32\",\"shape\":[", n ? "," : "", t->name);
        for (int i = 0; i < t->ndim; i++)
            end += sprintf(end, "%s%lld", i ? "," : "", (long long)t->shape[i]);
        bytes += elements(t) * (int64_t)sizeof(float);
        end += sprintf(end, "],\"data_offsets\":[%lld,%lld]}", (long long)begin, (long long)bytes);
    }
    *end++ = '}';
    while ((end - header) % 8)
        *end++ = ' ';
    uint64_t length = (uint64_t)(end - header - 8);
    memcpy(header, &length, 8);
    *size = end - header + bytes;
    uint8_t *file = malloc((size_t)*size);
    memcpy(file, header, (size_t)(end - header));
    float *to = (float *)(file + (end - header));
    for (int n = 0; n < count; n++) {
        const seeded_tensor *t = &tensors[n];
        for (int64_t i = 0; i < elements(t); i++)
            *to++ = (float)(t->low + (t->high - t->low) * seeded_uniform(t->name, i));
    }
    free(header);
    return file;
}

nl_status seeded_inception(nl_device *device, bool whole, uint8_t **file, int64_t *size)
{
    seeded_tensor *tensors = calloc(SEEDED, sizeof(*tensors));
    int count;
    nl_status status = list_tensors(device, whole, tensors, &count);
    if (status == NL_OK)
        *file = file_of(tensors, count, size);
    free(tensors);
    return status;
}
