/* SPDX-License-Identifier: MIT */
/* Who may talk to the server: its names (no DNS rebinding), pages of its own alone (no cross-site requests), the token. */
#ifndef NL_GUARD_H
#define NL_GUARD_H

#include "nl_core.h"

typedef struct nl_guard {
    const char *host;         /* that the server listens at, as the command line gave it */
    const char *const *names; /* others that it is known by; ended by NULL */
    bool local;               /* it listens on the loopback alone */
    bool token;               /* one is wanted */
    char token_hash[65];
} nl_guard;

/* Keeps `host` and `names`; token NULL: none. */
void nl_guard_init(const char *host, const char *const *names, bool local, const char *token,
                   nl_guard *guard);
/* The header Host, NULL: there is none; address: of the server's end of the connection, or NULL. */
bool nl_guard_host(const nl_guard *guard, const char *host, const char *address);
/* The headers Origin and Sec-Fetch-Site, NULL where there is none, of a request to an allowed `host`. navigation: a page
 * that is opened, which may be linked from anywhere. */
bool nl_guard_origin(const char *origin, const char *site, const char *host, bool navigation);
/* The header Authorization. The time it takes does not depend on where a wrong token begins to be wrong. */
bool nl_guard_token(const nl_guard *guard, const char *authorization);

#endif
