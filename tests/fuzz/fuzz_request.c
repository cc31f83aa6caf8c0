/* SPDX-License-Identifier: MIT */
/* Requests to `nalagen serve`: bodies of its three interfaces, up to the task that they ask for, and the headers that decide
 * who may ask. The first byte says which. */
#include "nl_fuzz.h"
#include "nl_guard.h"
#include "nl_wanted.h"
#include "queue.h"

static void fuzz_guard(const char *text, size_t size)
{
    static const char *const names[] = {"known.example", NULL};
    char *copy = calloc(1, size + 1);
    nl_guard guard;
    int height, width;
    FUZZ_CHECK(copy);
    memcpy(copy, text, size);
    nl_guard_init("127.0.0.1", names, true, "a secret of the test", &guard);
    if (nl_guard_host(&guard, copy, "10.0.0.1"))
        FUZZ_CHECK(!strncasecmp(copy, "localhost", 9) || !strncmp(copy, "127.0.0.1", 9) ||
                   !strncmp(copy, "[::1]", 5) || !strncmp(copy, "::1", 3) ||
                   !strncasecmp(copy, "known.example", 13));
    FUZZ_CHECK(!nl_guard_token(&guard, copy) ||
               strstr(copy, "a secret of the test") == copy + strlen("Bearer "));
    FUZZ_CHECK(!nl_guard_origin(copy, NULL, "localhost:7860", false) ||
               !strcasecmp(copy, "http://localhost:7860") ||
               !strcasecmp(copy, "https://localhost:7860"));
    if (nl_size_read(copy, &height, &width))
        FUZZ_CHECK((height == 0 && width == 0) ||
                   (height >= 1 && height <= 16384 && width >= 1 && width <= 16384));
    free(copy);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static nl_config config;
    static nl_queue queue = {.limits = {.jobs = 4, .pictures = 64, .side = 1024}};
    nl_wanted wanted;
    cJSON *echo = NULL;
    nl_status status;
    if (!queue.model_count) {
        nl_context *context = fuzz_context();
        nl_config_init(&config);
        FUZZ_CHECK(nl_config_from_name(context, "NaLaSiT-S/2", &config) == NL_OK);
        queue.models[0] = (nl_served_model){.name = "model",
                                            .options = nl_task_defaults,
                                            .config = &config,
                                            .unit = 16,
                                            .count = 1};
        queue.models[0].sizes[0].height = queue.models[0].sizes[0].width = 256;
        queue.model_count = 1;
        nl_core_context_destroy(context);
    }
    if (!size)
        return 0;
    const char *body = (const char *)data + 1;
    FUZZ_CHECK(nl_wanted_create(&wanted) == NL_OK);
    switch (data[0] % 4) {
    case 0:
        status = nl_wanted_own(&queue, body, size - 1, &wanted);
        break;
    case 1:
        status = nl_wanted_openai(&queue, body, size - 1, &wanted);
        break;
    case 2:
        status = nl_wanted_webui(&queue, 0, body, size - 1, &wanted, &echo);
        break;
    default:
        fuzz_guard(body, size - 1);
        status = NL_ERROR_INPUT;
    }
    if (status == NL_OK) {
        FUZZ_CHECK(wanted.task.count > 0 && wanted.height > 0 && wanted.height <= 1024 &&
                   wanted.height % 16 == 0 && wanted.width > 0 && wanted.width <= 1024);
        for (int i = 0; i < 4; i++)
            FUZZ_CHECK(nl_task_label(&wanted.task, i) >= 0 &&
                       nl_task_label(&wanted.task, i) <= config.num_classes);
        const nl_task_options *options = &wanted.task.options;
        if (options->walk)
            FUZZ_CHECK(options->first_index + wanted.task.count <= options->walk &&
                       wanted.task.end.label >= 0 && wanted.task.end.label <= config.num_classes);
    } else {
        FUZZ_CHECK(status == NL_ERROR_INPUT || status == NL_ERROR_USAGE ||
                   status == NL_ERROR_MEMORY);
        FUZZ_CHECK(data[0] % 4 == 3 || nl_last_error(wanted.context)[0]);
    }
    cJSON_Delete(echo);
    nl_wanted_free(&wanted);
    return 0;
}
