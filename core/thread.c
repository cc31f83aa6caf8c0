/* SPDX-License-Identifier: MIT */
/* Starts a thread with all signals blocked but the one of a mapped file that became shorter, and free to run anywhere;
 * starts OpenMP's. */
#include "nl_thread.h"

#include <omp.h>
#include <signal.h>
#include <stddef.h>
#include <stdlib.h>

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

static void *wait_for(void *lock)
{
    pthread_mutex_lock(lock);
    pthread_mutex_unlock(lock);
    return NULL;
}

/* How many threads, up to `count`, can be alive beside those that are, by trying. */
static int threads_possible(int count)
{
    pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    pthread_t *threads = calloc((size_t)(count > 0 ? count : 1), sizeof(*threads));
    int started = 0;
    pthread_mutex_lock(&lock);
    while (threads && started < count && nl_start_thread(&threads[started], wait_for, &lock) == 0)
        started++;
    pthread_mutex_unlock(&lock);
    for (int i = 0; i < started; i++)
        pthread_join(threads[i], NULL);
    free(threads);
    return started;
}

int nl_team(nl_context *context, int threads)
{
    static _Thread_local int asked = 1, team = 1;
    if (omp_get_active_level() >= omp_get_max_active_levels())
        return 1; /* within a region */
    if (threads > asked) {
        int possible = 1 + threads_possible(threads - 1), started = 0;
#pragma omp parallel num_threads(possible) reduction(+ : started)
        started++;
        if (started < threads)
            nl_log(context, NL_LOG_WARNING,
                   "%d of %d threads: limits (ulimit -v, ulimit -u) allow no more", started,
                   threads);
        asked = threads;
        team = started;
    }
    return NL_MIN(threads, team);
}
