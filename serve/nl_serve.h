/* SPDX-License-Identifier: MIT */
/* `nalagen serve`: one process that makes pictures for clients over HTTP. */
#ifndef NL_SERVE_H
#define NL_SERVE_H

#include "nl_queue.h"

typedef struct nl_serve_options {
    const char *host; /* an address, or localhost */
    int port;         /* 0: one that is free */
    const char *
        token; /* that clients have to send; NULL: none, which another host than the loopback needs */
    const char *const *names; /* other names of the server, beside `host`; ended by NULL */
    /* Folders of training runs, or of such folders; ended by NULL. */
    const char *const *runs;
    nl_queue_limits limits;
} nl_serve_options;

typedef struct nl_server nl_server;

/* What can be refused without a device: the host, the token. `options` has to stay. context: for messages, and for what
 * belongs to no device; it has to stay, too. */
nl_status nl_server_create(nl_context *context, const nl_serve_options *options,
                           nl_server **server);
void nl_server_destroy(nl_server *server); /* NULL is allowed */
nl_queue *nl_server_queue(nl_server *server);

/* Listens, and says where in url. Clients are answered from now on; pictures are made by nl_queue_work. device: of the
 * queue's models. */
nl_status nl_server_start(nl_server *server, const nl_context *device, char *url, size_t size);
/* After nl_queue_work: gives clients that wait what was made for them, at most some seconds, and closes. */
void nl_server_end(nl_server *server);

#endif
