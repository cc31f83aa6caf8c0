/* SPDX-License-Identifier: MIT */
/* Noise levels of DDPM and DDIM: the schedule, the timesteps that respacing keeps, all that follows from them. */
#include "nl_diffusion.h"

#include <math.h>
#include <string.h>

enum { MAX_STEPS = 1000000 };

static double cosine_alpha_bar(double t)
{
    double root = cos((t + 0.008) / 1.008 * 3.14159265358979323846 / 2);
    return root * root;
}

static double full_beta(const nl_noise_schedule *schedule, int i)
{
    int steps = schedule->steps;
    bool scaled = schedule->schedule == NL_SCHEDULE_SCALED_LINEAR;
    if (schedule->schedule == NL_SCHEDULE_COSINE)
        return fmin(1 - cosine_alpha_bar((i + 1.0) / steps) / cosine_alpha_bar((double)i / steps),
                    0.999);
    double scale = scaled ? 1 : 1000.0 / steps;
    double low = scale * (scaled ? 0.00085 : 1e-4), high = scale * (scaled ? 0.012 : 0.02);
    low = schedule->beta_start > 0 ? schedule->beta_start : low;
    high = schedule->beta_end > 0 ? schedule->beta_end : high;
    if (scaled)
        low = sqrt(low), high = sqrt(high);
    double beta = steps > 1 ? low + i * ((high - low) / (steps - 1)) : low;
    return scaled ? beta * beta : beta;
}

/* Reads digits at *text and moves past them; -1 when there are none or too many. */
static int read_count(const char **text)
{
    int count = -1;
    for (; **text >= '0' && **text <= '9'; (*text)++) {
        count = NL_MAX(count, 0) * 10 + (**text - '0');
        if (count > MAX_STEPS)
            return -1;
    }
    return count;
}

/* "ddim50": the smallest whole stride that keeps just as many. */
static nl_status keep_stride(nl_context *context, const char *respacing, int steps, bool *keep)
{
    const char *text = respacing + strlen("ddim");
    int wanted = read_count(&text);
    if (wanted < 1 || *text)
        return nl_fail(context, NL_ERROR_USAGE,
                       "respacing '%s': expected 'ddim' and a number of steps", respacing);
    for (int stride = 1; stride < steps; stride++) {
        if ((steps + stride - 1) / stride != wanted)
            continue;
        for (int i = 0; i < steps; i += stride)
            keep[i] = true;
        return NL_OK;
    }
    return nl_fail(context, NL_ERROR_USAGE,
                   "respacing '%s': no whole stride keeps %d of %d steps; '%d' spaces them evenly",
                   respacing, wanted, steps, wanted);
}

/* "leading50", "leading50+1", "trailing50", "linspace50": as diffusers places them. */
static nl_status keep_even(nl_context *context, const char *respacing, int steps, bool *keep)
{
    bool leading = respacing[1] == 'e', linspace = respacing[1] == 'i';
    const char *text = respacing + strlen(leading ? "leading" : "linspace");
    int wanted = read_count(&text), offset = 0;
    if (leading && *text == '+') {
        text++;
        offset = read_count(&text);
    }
    if (wanted < 1 || offset < 0 || *text)
        return nl_fail(
            context, NL_ERROR_USAGE,
            "respacing '%s': expected 'leading', 'trailing' or 'linspace' and a number of "
            "steps; of leading ones '+1' puts them by one later",
            respacing);
    for (int i = 0; i < wanted; i++) {
        double t = leading    ? (double)i * (wanted > steps ? 0 : steps / wanted) + offset
                   : linspace ? rint(i * ((steps - 1.0) / NL_MAX(wanted - 1, 1)))
                              : rint(steps - i * ((double)steps / wanted)) - 1;
        if (wanted > steps || t < 0 || t >= steps)
            return nl_fail(context, NL_ERROR_USAGE, "respacing '%s': does not fit %d timesteps",
                           respacing, steps);
        keep[(int)t] = true;
    }
    return NL_OK;
}

static int count_sections(const char *respacing)
{
    int sections = 1;
    for (const char *c = respacing; *c; c++)
        sections += *c == ',';
    return sections;
}

/* "10,15,20": that many of each of three sections of the schedule, first and last included. */
static nl_status keep_sections(nl_context *context, const char *respacing, int steps, bool *keep)
{
    int sections = count_sections(respacing);
    const char *text = respacing;
    int start = 0;
    for (int section = 0; section < sections; section++) {
        int size = steps / sections + (section < steps % sections);
        int wanted = read_count(&text);
        bool last = section == sections - 1;
        if (wanted < 0 || *text != (last ? '\0' : ','))
            return nl_fail(
                context, NL_ERROR_USAGE,
                "respacing '%s': expected numbers with commas between them, such as '250' "
                "or '10,15,20', or 'ddim50'",
                respacing);
        text += !last;
        if (wanted > size)
            return nl_fail(context, NL_ERROR_USAGE,
                           "respacing '%s': %d steps of a section of %d; take at most %d",
                           respacing, wanted, size, size);
        double stride = wanted > 1 ? (size - 1.0) / (wanted - 1) : 1;
        double position =
            0; /* summed up, not multiplied, and rounded half to even: as Python does */
        for (int i = 0; i < wanted; i++, position += stride)
            keep[start + (int)rint(position)] = true;
        start += size;
    }
    return NL_OK;
}

static nl_status mark_kept(nl_context *context, const char *respacing, int steps, bool *keep)
{
    memset(keep, respacing ? 0 : 1, (size_t)steps * sizeof(*keep));
    if (!respacing)
        return NL_OK;
    if (strncmp(respacing, "ddim", 4) == 0)
        return keep_stride(context, respacing, steps, keep);
    if (strncmp(respacing, "leading", 7) == 0 || strncmp(respacing, "trailing", 8) == 0 ||
        strncmp(respacing, "linspace", 8) == 0)
        return keep_even(context, respacing, steps, keep);
    return keep_sections(context, respacing, steps, keep);
}

/* Everything that follows from the kept timesteps and their alpha_bar. */
static void complete_levels(nl_diffusion_level *levels, int count)
{
    for (int i = 0; i < count; i++) {
        nl_diffusion_level *level = &levels[i];
        double before = i ? levels[i - 1].alpha_bar : 1;
        level->alpha_bar_before = before;
        level->beta = 1 - level->alpha_bar / before;
        level->posterior_variance = level->beta * (1 - before) / (1 - level->alpha_bar);
        level->posterior_log_variance = log(level->posterior_variance);
        level->mean_from_x_0 = level->beta * sqrt(before) / (1 - level->alpha_bar);
        level->mean_from_x = (1 - before) * sqrt(1 - level->beta) / (1 - level->alpha_bar);
    }
    /* The variance of the lowest level is 0; with no level above, nothing reads its logarithm. */
    levels[0].posterior_log_variance =
        count > 1 ? levels[1].posterior_log_variance : log(levels[0].beta);
}

nl_status nl_diffusion_levels(nl_context *context, const nl_noise_schedule *schedule,
                              const char *respacing, nl_diffusion_level **levels, int *count)
{
    nl_status status = NL_OK;
    int steps = schedule->steps;
    nl_diffusion_level *kept = NULL;
    bool *keep = NULL;
    double alpha_bar = 1;
    int n = 0;
    /* From 1000 / steps * 0.02 >= 1 on the linear schedule is none. */
    int fewest = schedule->schedule == NL_SCHEDULE_LINEAR && !(schedule->beta_end > 0) ? 21 : 1;
    if (steps < fewest || steps > MAX_STEPS)
        return nl_fail(context, NL_ERROR_USAGE, "diffusion_steps is %d: expected %d to %d", steps,
                       fewest, MAX_STEPS);
    NL_TRY(NL_NEW_ARRAY(context, "kept timesteps", steps, &keep));
    NL_TRY(mark_kept(context, respacing, steps, keep));
    for (int i = 0; i < steps; i++)
        n += keep[i];
    if (n == 0) {
        status = nl_fail(context, NL_ERROR_USAGE, "respacing '%s' keeps no step", respacing);
        goto cleanup;
    }
    NL_TRY(NL_NEW_ARRAY(context, "noise schedule", n, &kept));
    n = 0;
    for (int i = 0; i < steps; i++) {
        alpha_bar *= 1 - full_beta(schedule, i);
        if (keep[i])
            kept[n++] = (nl_diffusion_level){.timestep = i, .alpha_bar = alpha_bar};
    }
    complete_levels(kept, n);
    *levels = kept;
    *count = n;
cleanup:
    nl_free(context, keep);
    return status;
}
