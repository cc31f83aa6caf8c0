/* SPDX-License-Identifier: MIT */
/* A failure that is put by. A context has the last message alone; the one that belongs to a status may be older: that of
 * a thread until somebody hears of it, that of a function while what it gives back waits for others, which may fail, too. */
#ifndef NL_FAILURE_H
#define NL_FAILURE_H

#include "nl_core.h"

typedef struct nl_failure {
    nl_status status; /* NL_OK: there is none */
    char message[NL_MESSAGE_SIZE];
} nl_failure;

/* At once after the failure; of NL_OK no message. */
void nl_failure_keep(nl_context *context, nl_status status, nl_failure *failure);
/* Its message is the context's again; returns its status. Of NL_OK the context's message stays. */
nl_status nl_failure_tell(nl_context *context, const nl_failure *failure);

#endif
