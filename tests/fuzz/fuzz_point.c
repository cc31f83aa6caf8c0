/* SPDX-License-Identifier: MIT */
/* What a training checkpoint says of its run in its metadata. */
#include "checkpoint.h"
#include "nl_fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    nl_context *context = fuzz_context();
    int64_t used = context->memory_used;
    nl_run_point point;
    char *text = malloc(size + 1);
    memcpy(text, data, size);
    text[size] = 0;
    nl_status status = nl_parse_point(context, "fuzz", text, &point);
    if (status == NL_OK) {
        FUZZ_CHECK(point.step >= 0 && point.batch >= 1 && point.samples >= 1);
        FUZZ_CHECK(point.step <= INT64_MAX / point.batch);
        FUZZ_CHECK(point.ema_count >= 0 && point.ema_count <= NL_MAX_EMA);
        FUZZ_CHECK(strlen(point.data_sha256) < sizeof(point.data_sha256));
    }
    free(text);
    fuzz_end(context, used, status);
    return 0;
}
