/* SPDX-License-Identifier: MIT */
/*
 * What the two formats of torch.save have in common: one pickle that holds dicts of tensors, and
 * storages that the tensors are views of.
 */
#ifndef NL_TORCH_H
#define NL_TORCH_H

#include "nl_checkpoint.h"
#include "pickle.h"

typedef struct nl_torch nl_torch;

struct nl_torch {
    nl_checkpoint *checkpoint;
    nl_pickle pickle;
    /* The bytes of the storage with this key; they outlive the checkpoint's entries. */
    nl_status (*find)(nl_torch *torch, const nl_pickle_value *key, const uint8_t **data,
                      int64_t *bytes);
    void *source; /* of find */
};

/* Chooses the dict, by checkpoint->key or by itself, and fills checkpoint->{entries, count,
 * metadata, holds, taken}. The entries outlive the pickle. */
nl_status nl_torch_fill(nl_torch *torch, const nl_pickle_value *root);

/* torch_dict.c. The dict with the tensors; sets checkpoint->{holds, taken}. */
nl_status nl_torch_choose(nl_torch *torch, const nl_pickle_value *root,
                          const nl_pickle_value **dict);
/* Numbers and strings beside the tensors, and the fields of "args", as the checkpoint's metadata:
 * "steps", "args.model". */
nl_status nl_torch_facts(nl_torch *torch, const nl_pickle_value *root);
bool nl_torch_is_tensor(const nl_pickle_value *value);

#endif
