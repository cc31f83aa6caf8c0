/* SPDX-License-Identifier: MIT */
/* An FID network under the names of pytorch-fid's file or TensorFlow's, its weights from a generator that
 * make_inception_golden.py has as well: for tests and measurements where the published weights are not at hand. */
#ifndef SEEDED_INCEPTION_H
#define SEEDED_INCEPTION_H

#include "ops.h"

/* splitmix64 of FNV-1a(name) + i, its upper 24 bits as a number in [0, 1). */
double seeded_uniform(const char *name, int64_t i);
/* As safetensors in memory (malloc). Not `whole`: under TensorFlow's names, without three tensors that only the features
 * of 2048 numbers and the logits need. */
nl_status seeded_inception(nl_device *device, bool whole, uint8_t **file, int64_t *size);

#endif
