/* SPDX-License-Identifier: MIT */
/* Threads that leave signals to the main thread. */
#ifndef NL_THREAD_H
#define NL_THREAD_H

#include <pthread.h>

/* The thread may run on every processor of the process again, where OpenMP has bound it to a place (OMP_PROC_BIND,
 * OMP_PLACES): what it starts, programs and threads, would be bound with it. */
void nl_unbind_thread(pthread_t thread);

/* A thread that no signal sent to the process (Ctrl-C) goes to, but its own faults do; not bound (nl_unbind_thread).
 * Returns what pthread_create does. */
int nl_start_thread(pthread_t *thread, void *(*run)(void *), void *user);

/* How many threads, up to `count`, can be alive beside those that are, by trying: what limits of addresses, of processes
 * and of control groups allow. OpenMP ends the process where it cannot start one. */
int nl_threads_possible(int count);

#endif
