/* SPDX-License-Identifier: MIT */
/* The weights that a student of another network has from its teacher: whatever has the same place and shape. */
#include "state.h"

#include <stdio.h>
#include <string.h>

#include "params.h"

/* What does the same under two names. */
static const char *const twins[][2] = {{".attn.qkvg.", ".attn.qkv."},
                                       {".attn.out_proj.", ".attn.proj."}};

/* The teacher's tensor of this name, or of a twin's. */
static const nl_entry *find(const nl_checkpoint *checkpoint, const char *name)
{
    const nl_entry *entry = nl_checkpoint_find(checkpoint, name);
    for (int i = 0; !entry && i < NL_COUNT(twins); i++)
        for (int way = 0; !entry && way < 2; way++) {
            const char *from = twins[i][way], *at = strstr(name, from);
            char other[NL_NAME_SIZE];
            if (!at)
                continue;
            snprintf(other, sizeof(other), "%.*s%s%s", (int)(at - name), name, twins[i][!way],
                     at + strlen(from));
            entry = nl_checkpoint_find(checkpoint, other);
        }
    return entry;
}

/* Elements that the two have in common: all of them, or of q | k | v | g and q | k | v the rows of both. 0: none. */
static int64_t common(const nl_param *param, const nl_entry *entry)
{
    if (!entry || entry->ndim != param->ndim)
        return 0;
    for (int i = 1; i < param->ndim; i++)
        if (entry->shape[i] != param->shape[i])
            return 0;
    int64_t rows = NL_MIN(entry->shape[0], param->shape[0]);
    bool same = entry->shape[0] == param->shape[0];
    bool product = strstr(param->name, ".attn.qkv") && strstr(entry->name, ".attn.qkv");
    if (!same && !product)
        return 0;
    for (int i = 1; i < param->ndim; i++)
        rows *= param->shape[i];
    return rows;
}

nl_status nl_state_inherit(nl_train_state *state, const nl_checkpoint *checkpoint)
{
    nl_status status = NL_OK;
    nl_device *device = state->device;
    nl_context *context = device->context;
    float *values = NULL;
    int64_t taken = 0, all = 0;
    nl_problems anew = {0};
    for (int i = 0; i < state->master->param_count; i++) {
        const nl_param *param = &state->master->params[i];
        const nl_entry *entry = find(checkpoint, param->name);
        int64_t count = common(param, entry);
        if (count) {
            NL_TRY(NL_NEW_ARRAY(context, "a parameter", nl_entry_count(entry), &values));
            NL_TRY(nl_entry_read(checkpoint, entry, values));
            NL_TRY(device->ops->upload(device, param->tensor->data, values,
                                       count * (int64_t)sizeof(float)));
            NL_TRY(device->ops->sync(device)); /* values go */
            nl_free(context, values);
            values = NULL;
        }
        taken += count;
        all += nl_tensor_count(param->tensor);
        if (count < nl_tensor_count(param->tensor) &&
            (!strncmp(param->name, "blocks.0.", 9) || strncmp(param->name, "blocks.", 7) != 0))
            nl_problem(&anew, "%s%s", param->name, count ? " in part" : "");
    }
    NL_TRY(nl_state_start(state));
    nl_log(context, NL_LOG_INFO,
           "%s: %.1f %% of the student's parameters are the teacher's; what starts anew, of the "
           "first block:%s",
           checkpoint->path, 100.0 * (double)taken / (double)all,
           anew.count ? anew.text : " nothing");
cleanup:
    nl_free(context, values);
    return status;
}
