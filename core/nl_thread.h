/* SPDX-License-Identifier: MIT */
/* Threads that leave signals to the main thread. */
#ifndef NL_THREAD_H
#define NL_THREAD_H

#include <pthread.h>

/* A thread that no signal sent to the process (Ctrl-C) goes to, but its own faults do. Returns what pthread_create
 * does. */
int nl_start_thread(pthread_t *thread, void *(*run)(void *), void *user);

#endif
