/* SPDX-License-Identifier: MIT */
/* The grammar of RFC 8259, before cJSON sees the text; inside core only. */
#ifndef NL_JSON_SCAN_H
#define NL_JSON_SCAN_H

#include "nl_core.h"

/* Refuses whatever is not one JSON value in valid UTF-8, at most 64 levels deep, with numbers of at
 * most 63 characters and no \u0000. *values: how many values it holds, for an estimate of memory. */
nl_status nl_json_scan(nl_context *context, const char *where, const char *text, size_t size,
                       int64_t *values);

#endif
