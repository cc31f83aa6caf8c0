/* SPDX-License-Identifier: MIT */
/* Starts a thread with all signals blocked but the one of a mapped file that became shorter, and free to run anywhere. */
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
    if (error == 0)
        nl_unbind_thread(*thread);
    return error;
}
