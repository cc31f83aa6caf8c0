/* SPDX-License-Identifier: MIT */
/* Who may talk to the server. */
#include "nl_guard.h"

#include <string.h>
#include <strings.h>

#include "nl_io.h"

static void hash(const char *text, char hex[65])
{
    nl_sha256 sha;
    nl_sha256_init(&sha);
    nl_sha256_update(&sha, text, strlen(text));
    nl_sha256_hex(&sha, hex);
}

void nl_guard_init(const char *host, const char *const *names, bool local, const char *token,
                   nl_guard *guard)
{
    *guard = (nl_guard){.host = host, .names = names, .local = local, .token = token != NULL};
    if (token)
        hash(token, guard->token_hash);
}

/* The name in "name", "name:7860", "[::1]:7860"; 0: it is none. */
static size_t name_of(const char *host, const char **name)
{
    *name = host;
    if (host[0] == '[') {
        const char *end = strchr(host, ']');
        if (!end || (end[1] && end[1] != ':'))
            return 0;
        *name = host + 1;
        return (size_t)(end - host - 1);
    }
    size_t length = strcspn(host, ":");
    const char *rest = host + length;
    return *rest && strspn(rest + 1, "0123456789") != strlen(rest + 1) ? 0 : length;
}

static bool is(const char *name, size_t length, const char *known)
{
    return known && strlen(known) == length && !strncasecmp(name, known, length);
}

bool nl_guard_host(const nl_guard *guard, const char *host, const char *address)
{
    const char *name;
    size_t length = host ? name_of(host, &name) : 0;
    if (!length)
        return false;
    if (is(name, length, "localhost") || is(name, length, "127.0.0.1") || is(name, length, "::1") ||
        is(name, length, guard->host) || (!guard->local && is(name, length, address)))
        return true;
    for (const char *const *known = guard->names; known && *known; known++)
        if (is(name, length, *known))
            return true;
    return false;
}

bool nl_guard_origin(const char *origin, const char *site, const char *host, bool navigation)
{
    if (navigation && !origin)
        return true;
    if (site && strcasecmp(site, "same-origin") != 0 && strcasecmp(site, "none") != 0)
        return false;
    if (!origin)
        return true;
    const char *rest = !strncasecmp(origin, "http://", 7)    ? origin + 7
                       : !strncasecmp(origin, "https://", 8) ? origin + 8
                                                             : NULL;
    return rest && host && !strcasecmp(rest, host);
}

bool nl_guard_token(const nl_guard *guard, const char *authorization)
{
    static const char scheme[] = "Bearer ";
    char given[65];
    int differ = 0;
    if (!guard->token)
        return true;
    if (!authorization || strncasecmp(authorization, scheme, strlen(scheme)) != 0)
        return false;
    hash(authorization + strlen(scheme), given);
    for (int i = 0; i < 64; i++)
        differ |= given[i] ^ guard->token_hash[i];
    return differ == 0;
}
