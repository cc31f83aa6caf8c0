/* SPDX-License-Identifier: MIT */
/* What this process may still take: memory of the machine, its control groups and its own limit; the groups' share of the
 * processors. */
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "nl_core.h"

/* The number behind `key` at the start of a line; -1: none. Key NULL: the first line is a number ("max": none). */
static int64_t read_number(const char *path, const char *key)
{
    char line[256];
    int64_t found = -1;
    size_t length = key ? strlen(key) : 0;
    FILE *file = fopen(path, "re");
    while (file && found < 0 && fgets(line, sizeof(line), file)) {
        if (!key || !strncmp(line, key, length)) {
            const char *digits = line + length + strspn(line + length, " \t");
            found = *digits >= '0' && *digits <= '9' ? strtoll(digits, NULL, 10) : -1;
        }
        if (!key)
            break;
    }
    if (file)
        fclose(file);
    return found;
}

/* Of one group; pages of files that the kernel can drop are not in use. */
static int64_t left_in_group(const char *folder, bool second)
{
    char path[4352];
    snprintf(path, sizeof(path), "%s/%s", folder, second ? "memory.max" : "memory.limit_in_bytes");
    int64_t limit = read_number(path, NULL);
    snprintf(path, sizeof(path), "%s/%s", folder,
             second ? "memory.current" : "memory.usage_in_bytes");
    int64_t used = read_number(path, NULL);
    snprintf(path, sizeof(path), "%s/memory.stat", folder);
    int64_t files = read_number(path, second ? "inactive_file " : "total_inactive_file ");
    if (limit < 0 || used < 0)
        return INT64_MAX;
    return NL_MAX(limit - NL_MAX(used - NL_MAX(files, 0), 0), 0);
}

/* Processors that a group may keep busy: its quota of time in a period, rounded up. */
static int64_t processors_of_group(const char *folder, bool second)
{
    char path[4352];
    int64_t quota, period;
    snprintf(path, sizeof(path), "%s/%s", folder, second ? "cpu.max" : "cpu.cfs_quota_us");
    if (second) { /* "200000 100000", or "max 100000" */
        FILE *file = fopen(path, "re");
        bool limited = file && fscanf(file, "%" SCNd64 " %" SCNd64, &quota, &period) == 2;
        if (file)
            fclose(file);
        if (!limited)
            return INT64_MAX;
    } else { /* quota -1: no limit */
        quota = read_number(path, NULL);
        snprintf(path, sizeof(path), "%s/cpu.cfs_period_us", folder);
        period = read_number(path, NULL);
    }
    return quota > 0 && period > 0 ? (quota - 1) / period + 1 : INT64_MAX;
}

/* Whether a line of /proc/self/cgroup is of the version 1 controller: "4:cpu,cpuacct:/path". */
static bool has_controller(const char *names, const char *end, const char *controller)
{
    size_t length = strlen(controller);
    for (const char *name = names; name < end; name += strcspn(name, ",:") + 1)
        if (strcspn(name, ",:") == length && !strncmp(name, controller, length))
            return true;
    return false;
}

/* The least that `read` says of the process's groups and of their parents: a group is within its parents'. */
static int64_t least_of_groups(const char *list, const char *root, const char *controller,
                               int64_t (*read)(const char *folder, bool second))
{
    char line[4096];
    int64_t least = INT64_MAX;
    FILE *file = fopen(list, "re");
    while (file && fgets(line, sizeof(line), file)) {
        const char *first = strchr(line, ':'), *path = first ? strchr(first + 1, ':') : NULL;
        if (!path)
            continue;
        bool second = path == first + 1; /* "0::/path" */
        if (!second && !has_controller(first + 1, path, controller))
            continue;
        char folder[4224];
        line[strcspn(line, "\n")] = '\0';
        int top = snprintf(folder, sizeof(folder), "%s%s%s", root, second ? "" : "/",
                           second ? "" : controller);
        if (top < 0 || top >= (int)sizeof(folder))
            continue;
        snprintf(folder + top, sizeof(folder) - (size_t)top, "%s", path + 1);
        for (char *end = folder + strlen(folder); end; end = strrchr(folder + top, '/')) {
            *end = '\0';
            least = NL_MIN(least, read(folder, second));
        }
    }
    if (file)
        fclose(file);
    return least;
}

int64_t nl_group_memory_left(const char *list, const char *root)
{
    return least_of_groups(list, root, "memory", left_in_group);
}

int nl_group_processors(const char *list, const char *root)
{
    return (int)NL_MIN(least_of_groups(list, root, "cpu", processors_of_group), INT_MAX);
}

int64_t nl_addresses_left(void)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_AS, &limit) != 0 || limit.rlim_cur >= INT64_MAX)
        return INT64_MAX;
    int64_t pages = read_number("/proc/self/statm", NULL), page = sysconf(_SC_PAGESIZE);
    return pages < 0 ? INT64_MAX : NL_MAX((int64_t)limit.rlim_cur - pages * page, 0);
}

int64_t nl_memory_available(void)
{
    int64_t left = nl_group_memory_left(NL_GROUPS_OF_PROCESS), bytes;
    int64_t machine = read_number("/proc/meminfo", "MemAvailable:");
    if (machine >= 0 && nl_mul_size(machine, 1024, &bytes))
        left = NL_MIN(left, bytes);
    return NL_MIN(left, nl_addresses_left());
}
