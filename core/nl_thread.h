/* SPDX-License-Identifier: MIT */
/* Threads that leave signals to the main thread; how many OpenMP can have. */
#ifndef NL_THREAD_H
#define NL_THREAD_H

#include <pthread.h>

#include "nl_core.h"

/* The thread may run on every processor of the process again, where OpenMP has bound it to a place (OMP_PROC_BIND,
 * OMP_PLACES): what it starts, programs and threads, would be bound with it. */
void nl_unbind_thread(pthread_t thread);

/* A thread that no signal sent to the process (Ctrl-C) goes to, but its own faults do; not bound (nl_unbind_thread).
 * Returns what pthread_create does. */
int nl_start_thread(pthread_t *thread, void *(*run)(void *), void *user);

/* The size of a team, up to `threads`, for an OpenMP region that the calling thread is about to enter. OpenMP ends the
 * process where it cannot start a thread, and every thread that enters a region has a team of its own. So whether there
 * can be as many is tried first (limits of addresses, of processes and of control groups), when the thread asks for
 * more than before, and they are started at once. Fewer are told in the log. The context may be NULL. */
int nl_team(nl_context *context, int threads);

#endif
