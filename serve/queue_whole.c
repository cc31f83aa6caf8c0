/* SPDX-License-Identifier: MIT */
/* All pictures of a job in one file. */
#include "queue.h"

#include <stdio.h>

#include "nl_image.h"

/* What makes them again: the facts of the first with the job's own classes and number. */
static nl_status facts_of(nl_context *context, const nl_queued_job *job, const cJSON *first,
                          int64_t rows, int64_t columns, int64_t milliseconds, cJSON **facts)
{
    const nl_task_options *options = &job->wanted.task.options;
    cJSON *object = cJSON_Duplicate(first, true);
    char grid[48];
    bool good = object != NULL;
    snprintf(grid, sizeof(grid), "%lldx%lld", (long long)rows, (long long)columns);
    const char *classes = options->classes                  ? options->classes
                          : job->wanted.task.classes.random ? "random"
                                                            : "null";
    cJSON_DeleteItemFromObjectCaseSensitive(object, "class_name");
    cJSON_DeleteItemFromObjectCaseSensitive(object, "class");
    good = good && cJSON_AddItemToObject(object, "class", nl_class_json(classes)) &&
           (!options->n || cJSON_AddNumberToObject(object, "number", (double)options->n)) &&
           (milliseconds ? cJSON_AddNumberToObject(object, "animate", (double)milliseconds)
                         : cJSON_AddStringToObject(object, "grid", grid));
    if (!good) {
        cJSON_Delete(object);
        return nl_fail(context, NL_ERROR_MEMORY, "no memory for the description of pictures");
    }
    *facts = object;
    return NL_OK;
}

nl_status nl_queue_whole(nl_queue *queue, nl_context *context, nl_queued_job *job, int64_t columns,
                         int64_t milliseconds, uint8_t **png, size_t *size)
{
    enum { GAP = 2 };
    const nl_wanted *wanted = &job->wanted;
    int count = (int)wanted->task.count;
    int64_t rows = milliseconds ? 0 : (count + columns - 1) / columns;
    const uint8_t **pictures = NULL;
    nl_image grid = {0};
    cJSON *facts = NULL;
    nl_status status = NL_OK;
    *png = NULL;
    NL_TRY(NL_NEW_ARRAY(context, "pictures", count, &pictures));
    pthread_mutex_lock(&queue->lock);
    bool all = job->done == count;
    for (int i = 0; i < count; i++)
        pictures[i] = job->pictures[i].rgb;
    pthread_mutex_unlock(&queue->lock);
    if (!all)
        NL_TRY(nl_fail(context, NL_ERROR_INPUT, "its pictures are not all made"));
    NL_TRY(facts_of(context, job, job->pictures[0].facts, rows, columns, milliseconds, &facts));
    if (milliseconds) {
        NL_TRY(nl_animation_encode(context, pictures, count, wanted->height, wanted->width,
                                   (int)milliseconds, facts, png, size));
    } else {
        NL_TRY(nl_image_grid(context, pictures, count, wanted->height, wanted->width, (int)rows,
                             (int)columns, GAP, &grid));
        NL_TRY(nl_picture_encode(context, grid.rgb, grid.height, grid.width, facts, png, size));
    }
cleanup:
    nl_image_free(context, &grid);
    nl_free(context, pictures);
    cJSON_Delete(facts);
    return status;
}
