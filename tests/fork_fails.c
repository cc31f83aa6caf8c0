/* SPDX-License-Identifier: MIT */
/* Preloaded into a program: its fork number FORK_FAILS fails, as where there may be no more processes. */
#include <dlfcn.h>
#include <errno.h>
#include <stdlib.h>
#include <unistd.h>

__attribute__((visibility("default"))) pid_t fork(void)
{
    static int count;
    const char *number = getenv("FORK_FAILS");
    if (number && ++count == atoi(number)) {
        errno = EAGAIN;
        return -1;
    }
    return ((pid_t(*)(void))dlsym(RTLD_NEXT, "fork"))();
}
