/* SPDX-License-Identifier: MIT */
/* What --out NAME.npz adds to a job: the parameters that the archive is known by, and its end. */
#include "nl_arrays.h"
#include "nl_sample.h"
#include "ops.h"

#include <string.h>

bool nl_is_archive(const char *out)
{
    size_t length = out ? strlen(out) : 0;
    return length > 4 && !strcmp(out + length - 4, ".npz");
}

nl_status nl_archive_open(nl_session *session, const nl_sample_options *options,
                          const nl_sampling *sampling, int64_t count, int height, int width,
                          nl_npz **npz)
{
    nl_context *context = session->context;
    const nl_share *share = &session->share;
    nl_status status = NL_OK;
    nl_sample_options record = *options;
    cJSON *facts = NULL;
    char *text = NULL;
    *npz = NULL;
    record.task.n = count;
    record.task.size[0] = height;
    record.task.size[1] = width;
    record.task.rounding = options->task.rounding ? options->task.rounding : "dit";
    NL_TRY(nl_pictures_facts(session, &record, sampling, &facts));
    /* Another card of the same kind is no reason to begin anew; another back end or precision is. */
    cJSON_DeleteItemFromObject(facts, "device");
    if (!cJSON_AddStringToObject(facts, "device", context->device->ops->name) ||
        !cJSON_AddStringToObject(facts, "dtype", nl_device_dtype_name(context->device)) ||
        !(text = nl_json_print(facts, false)))
        NL_TRY(
            nl_fail(context, NL_ERROR_MEMORY, "no memory for the description of %s", options->out));
    if (share->ranks > 1 && options->force && !share->token)
        NL_TRY(nl_fail(context, NL_ERROR_USAGE,
                       "--force with --rank: every process would undo the others' work: remove "
                       "%s, %s.part and %s.journal first",
                       options->out, options->out, options->out));
    nl_npz_options archive = {.path = options->out,
                              .count = count,
                              .height = height,
                              .width = width,
                              .parameters = text,
                              .force = options->force,
                              .token = share->token,
                              .rank = share->rank,
                              .ranks = share->ranks};
    NL_TRY(nl_npz_open(context, &archive, npz));
cleanup:
    cJSON_free(text);
    cJSON_Delete(facts);
    return status;
}

nl_status nl_read_archive_facts(nl_context *context, const char *path, cJSON **facts)
{
    nl_arrays *arrays = NULL;
    int64_t size;
    nl_status status;
    *facts = NULL;
    NL_TRY(nl_arrays_open(context, path, &arrays));
    const char *comment = nl_arrays_comment(arrays, &size);
    if (size > 0 && comment[0] == '{' &&
        nl_json_parse(context, path, comment, (size_t)size, facts) != NL_OK)
        nl_log(context, NL_LOG_DEBUG, "%s: its comment is not ours", path);
cleanup:
    nl_arrays_close(arrays);
    return status;
}
