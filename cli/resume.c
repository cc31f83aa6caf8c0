/* SPDX-License-Identifier: MIT */
/* --resume: a picture that stands at its name is one of this run when it says of itself what would be written now. */
#include "nl_sample.h"

#include <string.h>

static nl_status refuse(nl_context *context, const char *path, const char *key, const cJSON *there,
                        const cJSON *here)
{
    char *theirs = there ? nl_json_print(there, false) : NULL;
    char *ours = here ? nl_json_print(here, false) : NULL;
    nl_status status =
        nl_fail(context, NL_ERROR_WRITE,
                "%s: made with %s %s, found %s %s now: repeat the command that made it, give "
                "another --out, "
                "or overwrite it with --force",
                path, key, theirs ? theirs : "left out", key, ours ? ours : "left out");
    cJSON_free(theirs);
    cJSON_free(ours);
    return status;
}

nl_status nl_resume_check(nl_context *context, const char *path, const cJSON *facts, bool *there)
{
    nl_status status = NL_OK;
    cJSON *theirs = NULL, *ours = NULL;
    char *text = NULL;
    *there = false;
    if (!nl_path_exists(path))
        return NL_OK;
    status = nl_read_picture_facts(context, path, &theirs);
    if (status != NL_OK)
        return nl_fail_in(context, status, "--resume: not a picture of this run");
    /* Read back too, so that both know numbers alike. */
    if (!(text = nl_json_print(facts, false)))
        NL_TRY(nl_fail(context, NL_ERROR_MEMORY, "no memory for the parameters of %s", path));
    NL_TRY(nl_json_parse(context, "parameters", text, strlen(text), &ours));
    /* The card may be another one of the same kind. */
    for (int side = 0; side < 2; side++)
        for (const cJSON *one = (side ? theirs : ours)->child; one; one = one->next) {
            const cJSON *other =
                cJSON_GetObjectItemCaseSensitive(side ? ours : theirs, one->string);
            if (!strcmp(one->string, "device") || (other && cJSON_Compare(one, other, true)))
                continue;
            NL_TRY(refuse(context, path, one->string, side ? one : other, side ? other : one));
        }
    *there = true;
cleanup:
    cJSON_free(text);
    cJSON_Delete(ours);
    cJSON_Delete(theirs);
    return status;
}
