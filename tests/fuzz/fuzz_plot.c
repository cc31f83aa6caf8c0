/* SPDX-License-Identifier: MIT */
/* The lines of a run's logs, drawn: log.jsonl and metrics.jsonl, a byte 0xff between them. The first byte chooses
 * logarithmic axes. */
#include "fuzz_files.h"
#include "nl_plot.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    nl_context *context = fuzz_context();
    int64_t used = context->memory_used;
    char run[256], svg[256];
    size_t part;
    if (size < 1) {
        nl_core_context_destroy(context);
        return 0;
    }
    nl_plot_options options = {.log = "log.jsonl",
                               .metrics = "metrics.jsonl",
                               .value = "loss",
                               .over = "step",
                               .log_scale = data[0] & 1,
                               .log_over = data[0] & 2,
                               .smoothing = data[0] & 4 ? 0.9 : 0,
                               .overwrite = true,
                               .width = 200,
                               .height = 200};
    data++, size--;
    const uint8_t *log = fuzz_part(&data, &size, &part);
    fuzz_write("log.jsonl", log, part);
    fuzz_write("metrics.jsonl", data, size);
    fuzz_path("", run);
    options.out = (const char *[]){fuzz_path("a.svg", svg), NULL};
    nl_status status = nl_plot(context, (const char *[]){run}, 1, &options);
    fuzz_end(context, used, status);
    return 0;
}
