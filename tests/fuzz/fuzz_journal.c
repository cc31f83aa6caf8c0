/* SPDX-License-Identifier: MIT */
/* The journal of an archive: what is taken for one holds a record for each picture. The checksums, which a fuzzer does
 * not find, are put right. */
#include <sys/mman.h>
#include <zlib.h>

#include "fuzz_files.h"
#include "npz.h"

static void mend(uint8_t *bytes, size_t size)
{
    size_t parameters = size >= NL_JOURNAL_HEADER ? nl_little(bytes + 20, 4) : size;
    if (parameters > size - NL_JOURNAL_HEADER || size < NL_JOURNAL_HEADER)
        return;
    uLong crc = crc32_z(0, bytes, 48);
    nl_put_little(bytes + 48, 4, crc32_z(crc, bytes + NL_JOURNAL_HEADER, parameters));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    nl_context *context = fuzz_context();
    int64_t used = context->memory_used;
    nl_npz_options options = {.path = "a.npz",
                              .count = 3,
                              .height = 2,
                              .width = 2,
                              .parameters = "{\"seed\":3,\"n\":11}"};
    char name[] = "journal";
    nl_journal journal = {.file = {.context = context, .path = name}};
    nl_journal_entry entries[NL_JOURNAL_CHUNK];
    bool there[NL_JOURNAL_CHUNK], begun = false;
    uint8_t *bytes = malloc(size + 1);
    memcpy(bytes, data, size);
    mend(bytes, size);
    journal.file.fd = memfd_create("journal", 0);
    FUZZ_CHECK(journal.file.fd >= 0 && write(journal.file.fd, bytes, size) == (ssize_t)size);
    nl_status status = nl_journal_read(&journal, &options, &begun);
    (void)nl_journal_token(&journal);
    if (status == NL_OK && begun) {
        FUZZ_CHECK(journal.count == options.count);
        FUZZ_CHECK(nl_journal_entries(&journal, 0, journal.count, entries, there) == NL_OK);
    }
    close(journal.file.fd);
    free(bytes);
    if (status == NL_ERROR_WRITE) /* a journal of other pictures, or none of ours */
        status = NL_ERROR_INPUT;
    fuzz_end(context, used, status);
    return 0;
}
