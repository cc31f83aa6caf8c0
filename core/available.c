/* SPDX-License-Identifier: MIT */
/* Memory that this process may still take: of the machine, of its control groups, of its own limit. */
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

int64_t nl_group_memory_left(const char *list, const char *root)
{
    char line[4096];
    int64_t left = INT64_MAX;
    FILE *file = fopen(list, "re");
    while (file && fgets(line, sizeof(line), file)) {
        const char *first = strchr(line, ':'), *path = first ? strchr(first + 1, ':') : NULL;
        if (!path)
            continue;
        bool second = path == first + 1; /* "0::/path"; version 1: "4:memory:/path" */
        if (!second && strncmp(first + 1, "memory:", 7) != 0)
            continue;
        char folder[4224];
        line[strcspn(line, "\n")] = '\0';
        snprintf(folder, sizeof(folder), "%s%s%s", root, second ? "" : "/memory", path + 1);
        size_t least = strlen(root) + (second ? 0 : strlen("/memory"));
        for (size_t length = strlen(folder);
             length >= least;) { /* a group is within its parents' */
            folder[length] = '\0';
            left = NL_MIN(left, left_in_group(folder, second));
            while (length > least && folder[length] != '/')
                length--;
            if (length == least && folder[length] == '\0')
                break;
        }
    }
    if (file)
        fclose(file);
    return left;
}

int64_t nl_memory_available(void)
{
    int64_t left = nl_group_memory_left("/proc/self/cgroup", "/sys/fs/cgroup"), bytes;
    int64_t machine = read_number("/proc/meminfo", "MemAvailable:");
    int64_t pages = read_number("/proc/self/statm", NULL), page = sysconf(_SC_PAGESIZE);
    struct rlimit limit;
    if (machine >= 0 && nl_mul_size(machine, 1024, &bytes))
        left = NL_MIN(left, bytes);
    if (getrlimit(RLIMIT_AS, &limit) == 0 && limit.rlim_cur < INT64_MAX && pages >= 0)
        left = NL_MIN(left, NL_MAX((int64_t)limit.rlim_cur - pages * page, 0));
    return left;
}
