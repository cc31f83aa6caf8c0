/* SPDX-License-Identifier: MIT */
/* Times and rates as people read them, the same everywhere. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "nl_core.h"

const char *nl_time_text(double seconds, char text[NL_FIGURE])
{
    double whole = floor(seconds + 0.5);
    if (!(seconds >= 0 && seconds < 1e12))
        snprintf(text, NL_FIGURE, "?");
    else if (seconds < 0.0995)
        snprintf(text, NL_FIGURE, "%.3g ms", 1e3 * seconds);
    else if (seconds < 9.95)
        snprintf(text, NL_FIGURE, "%.2g s", seconds);
    else if (whole < 60)
        snprintf(text, NL_FIGURE, "%.0f s", whole);
    else if (whole < 3600)
        snprintf(text, NL_FIGURE, "%.0f min %02.0f s", floor(whole / 60), fmod(whole, 60));
    else if (whole < 86400)
        snprintf(text, NL_FIGURE, "%.0f h %02.0f min", floor(whole / 3600),
                 floor(fmod(whole, 3600) / 60));
    else
        snprintf(text, NL_FIGURE, "%.0f d %02.0f h", floor(whole / 86400),
                 floor(fmod(whole, 86400) / 3600));
    return text;
}

const char *nl_rate_text(double rate, const char *one, char text[NL_FIGURE])
{
    if (rate >= 1) {
        snprintf(text, NL_FIGURE, rate < 99.95 ? "%.1f %ss/s" : "%.0f %ss/s", rate, one);
        return text;
    }
    nl_time_text(1 / rate, text);
    size_t length = strlen(text);
    snprintf(text + length, NL_FIGURE - length, "/%s", one);
    return text;
}
