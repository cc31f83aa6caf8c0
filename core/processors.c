/* SPDX-License-Identifier: MIT */
/* Processors that this process may use. Where OMP_PROC_BIND or OMP_PLACES is set, OpenMP has bound the first thread to one
 * place before main, and whatever that thread starts is born with its mask: the places together are the process's. */
#include <omp.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#ifdef __x86_64__
#include <cpuid.h>
#endif

#include "nl_core.h"
#include "nl_thread.h"

/* For the kernel, which refuses a mask that is too short for the machine. */
enum { MOST_PROCESSORS = 1 << 20 };

/* The processors of all places; NULL: there are no places, or no memory. *size: its bytes. To be given to CPU_FREE. */
static cpu_set_t *read_places(size_t *size)
{
    int places = omp_get_num_places();
    cpu_set_t *mask = places > 0 ? CPU_ALLOC(MOST_PROCESSORS) : NULL;
    if (!mask)
        return NULL;
    *size = CPU_ALLOC_SIZE(MOST_PROCESSORS);
    CPU_ZERO_S(*size, mask);
    for (int place = 0; place < places; place++) {
        int count = omp_get_place_num_procs(place);
        int *list = calloc((size_t)NL_MAX(count, 1), sizeof(int));
        if (list)
            omp_get_place_proc_ids(place, list);
        for (int i = 0; list && i < count; i++)
            if (list[i] >= 0)
                CPU_SET_S((size_t)list[i], *size, mask);
        free(list);
    }
    return mask;
}

/* Those of the calling thread. */
static int count_mask(void)
{
    for (int cpus = 1024; cpus <= MOST_PROCESSORS; cpus *= 2) {
        cpu_set_t *mask = CPU_ALLOC(cpus);
        if (!mask)
            break;
        size_t size = CPU_ALLOC_SIZE(cpus);
        int count = sched_getaffinity(0, size, mask) == 0 ? CPU_COUNT_S(size, mask) : 0;
        CPU_FREE(mask);
        if (count)
            return count;
    }
    return 1;
}

int nl_processors_available(void)
{
    size_t size;
    cpu_set_t *places = read_places(&size);
    int count = places ? CPU_COUNT_S(size, places) : count_mask();
    if (places)
        CPU_FREE(places);
    return NL_MAX(1, NL_MIN(count, nl_group_processors(NL_GROUPS_OF_PROCESS)));
}

void nl_unbind_thread(pthread_t thread)
{
    size_t size;
    cpu_set_t *places = read_places(&size);
    if (!places)
        return;
    pthread_setaffinity_np(thread, size, places);
    CPU_FREE(places);
}

/* What the processor says itself. */
static bool ask_processor(char *text, size_t size)
{
#ifdef __x86_64__
    enum { FIRST = (int)0x80000002, LEAVES = 3 };
    unsigned name[4 * LEAVES + 1] = {0};
    for (unsigned i = 0; i < LEAVES; i++) {
        unsigned *r = name + 4 * i;
        if (!__get_cpuid((unsigned)FIRST + i, r, r + 1, r + 2, r + 3))
            return false;
    }
    const char *said = (const char *)name;
    said += strspn(said, " ");
    snprintf(text, size, "%s", said);
    return *said;
#else
    (void)text, (void)size;
    return false;
#endif
}

/* Linux on x86-64 says "model name", in some sandboxes "unknown"; on others perhaps nothing. */
void nl_processor_name(char *text, size_t size)
{
    char line[512];
    FILE *file = fopen("/proc/cpuinfo", "r");
    *text = '\0';
    while (file && !*text && fgets(line, sizeof(line), file)) {
        const char *value = strchr(line, ':');
        if (!strncmp(line, "model name", 10) && value && value[1])
            snprintf(text, size, "%.*s", (int)strcspn(value + 2, "\n"), value + 2);
    }
    if (file)
        fclose(file);
    if ((!*text || !strcmp(text, "unknown")) && !ask_processor(text, size))
        snprintf(text, size, "unknown");
}
