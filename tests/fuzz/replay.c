/* SPDX-License-Identifier: MIT */
/* Runs a fuzz target over files, so that what fuzzing once found stays found. */
#include "nl_fuzz.h"

static int replay(const char *path)
{
    FILE *file = fopen(path, "rb");
    long size = -1;
    if (!file || fseek(file, 0, SEEK_END) || (size = ftell(file)) < 0 || fseek(file, 0, SEEK_SET)) {
        perror(path);
        return 1;
    }
    uint8_t *data =
        malloc((size_t)size ? (size_t)size : 1); /* exact: sanitizers see a step beyond */
    int failed = !data || fread(data, 1, (size_t)size, file) != (size_t)size;
    fclose(file);
    if (failed)
        perror(path);
    else
        LLVMFuzzerTestOneInput(data, (size_t)size);
    free(data);
    return failed;
}

int main(int argc, char **argv)
{
    if (argc < 2) {
        fprintf(stderr, "usage: %s FILE...\n", argv[0]);
        return 2;
    }
    int failed = 0;
    for (int i = 1; i < argc; i++)
        failed |= replay(argv[i]);
    printf("%d inputs\n", argc - 1);
    return failed;
}
