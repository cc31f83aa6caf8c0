/* SPDX-License-Identifier: MIT */
/* Starts a thread with all signals blocked but the one of a mapped file that became shorter. */
#include "nl_thread.h"

#include <signal.h>
#include <stddef.h>

int nl_start_thread(pthread_t *thread, void *(*run)(void *), void *user)
{
    sigset_t all, before;
    sigfillset(&all);
    sigdelset(&all, SIGBUS); /* a mapped file that became shorter */
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int error = pthread_create(thread, NULL, run, user);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return error;
}
