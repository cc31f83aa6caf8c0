/* SPDX-License-Identifier: MIT */
/* The known name that is nearest to a misspelled one, by edit distance. */
#include <ctype.h>
#include <string.h>

#include "nl_json.h"

enum { MAX_WORD = 63 };

/* Insertions, deletions and substitutions from a to b, either case; MAX_WORD + 1 for long words. */
static int edit_distance(const char *a, const char *b)
{
    size_t columns = strlen(b);
    if (strlen(a) > MAX_WORD || columns > MAX_WORD)
        return MAX_WORD + 1;
    int row[MAX_WORD + 1];
    for (size_t j = 0; j <= columns; j++)
        row[j] = (int)j;
    for (size_t i = 1; a[i - 1]; i++) {
        int diagonal = row[0];
        row[0] = (int)i;
        for (size_t j = 1; j <= columns; j++) {
            int same = tolower((unsigned char)a[i - 1]) == tolower((unsigned char)b[j - 1]);
            int substituted = diagonal + !same;
            diagonal = row[j];
            row[j] = NL_MIN(NL_MIN(row[j], row[j - 1]) + 1, substituted);
        }
    }
    return row[columns];
}

const char *nl_nearest(const char *word, const char *const *names)
{
    /* About a third of the letters may be wrong: "stpes" is near "steps", "x" is near nothing. */
    const char *nearest = NULL;
    int length = (int)NL_MIN(strlen(word), MAX_WORD);
    int least = length / 3 + 1;
    for (int i = 0; names[i]; i++) {
        int distance = edit_distance(word, names[i]);
        if (distance < length && distance <= least && !(nearest && distance == least)) {
            least = distance;
            nearest = names[i];
        }
    }
    return nearest;
}
