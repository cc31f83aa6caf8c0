/* SPDX-License-Identifier: MIT */
/* Distribution matching: what is drawn for it, on its way to the device, in a ring of pinned slots. */
#include "matching.h"

#include <math.h>
#include <string.h>

#include "nl_random.h"
#include "ops_training.h"

/* The host fills a slot while the device may still read earlier ones, and waits when it comes round. */
enum { SLOTS = 32, ALIGNMENT = 256 };

static const double least_time = 0.02, most_time = 0.98;
static const double fake_alone = 0.1; /* of what is left of the run when the fake begins */

nl_matching_stage nl_matching_stage_at(const nl_matching_options *options, double done)
{
    if (!(options->weight > 0) || done < options->from)
        return NL_MATCHING_NONE;
    return done < options->from + fake_alone * (1 - options->from) ? NL_MATCHING_FAKE
                                                                   : NL_MATCHING_BOTH;
}

static uint64_t stream_of(int draw, int which)
{
    return NL_STREAM_MATCHING + 3 * (uint64_t)draw + (uint64_t)which;
}

static void set_row(float *row, double data, double noise, double weight)
{
    row[NL_LOSS_DATA] = (float)data;
    row[NL_LOSS_NOISE] = (float)noise;
    row[NL_LOSS_TARGET_DATA] = 1;
    row[NL_LOSS_TARGET_NOISE] = -1;
    row[NL_LOSS_WEIGHT] = (float)weight;
}

void nl_matching_fill(const nl_matching_options *o, const int64_t *samples, const int32_t *labels,
                      int32_t null_class, int64_t count, int draw, const nl_matching_rows *rows)
{
    for (int64_t i = 0; i < count; i++) {
        uint32_t words[4];
        int64_t at = i * NL_LOSS_COLUMNS;
        nl_philox(o->seed, (uint64_t)samples[i], stream_of(draw, 0), 0, words);
        double t0 = words[0] >> 31 && !o->alone ? words[0] >> 30 & 1 ? 0.75 : 0.5 : 0;
        double t = least_time + (most_time - least_time) * ((words[1] + 0.5) * 0x1p-32);
        double way[NL_MATCHING_JUMPS + 1] = {0, fmin(t0, 0.5), t0};
        for (int j = 0; j < NL_MATCHING_JUMPS; j++) {
            rows->jump[j][i] = (float)way[j];
            rows->jump[j][count + i] = (float)way[j + 1];
            set_row(rows->move[j] + at, 1, way[j + 1] - way[j], 1);
        }
        rows->last[i] = (float)t0;
        rows->last[count + i] = 1;
        rows->t[i] = rows->t[count + i] = (float)t;
        rows->labels[i] = labels[i];
        rows->labels[count + i] = null_class;
        set_row(rows->end + at, 1, 1 - t0, o->weight * (1 - t0));
        set_row(rows->mix + at, t, 1 - t, 1);
        nl_guided_row(o->guidance, o->low, o->high, t, rows->guide + at);
        if (!(o->adversarial > 0))
            continue;
        set_row(rows->real + at, 0, 0, 1);
        set_row(rows->generated + at, 0, 0, 1);
        set_row(rows->fool + at, 0, 0, o->adversarial * (1 - t0) * t);
        rows->real[at + NL_LOSS_TARGET_NOISE] = rows->generated[at + NL_LOSS_TARGET_NOISE] = 0;
        rows->generated[at + NL_LOSS_TARGET_DATA] = -1;
    }
}

static void place(nl_tensor *tensor, nl_dtype dtype, int ndim, const int64_t *shape, char *base,
                  int64_t *used)
{
    *tensor = nl_tensor_of(base ? base + *used : NULL, dtype, ndim, shape);
    *used += (nl_tensor_bytes(tensor) + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
}

/* The tensors of a slot behind `base`; its bytes. */
static int64_t lay_out(nl_matcher *m, char *base)
{
    int64_t used = 0, n = m->options.size, pairs[] = {2, n}, twice = 2 * n;
    nl_tensor *rows[] = {&m->move[0], &m->move[1], &m->end, &m->mix, &m->guide};
    for (int j = 0; j < NL_MATCHING_JUMPS; j++)
        place(&m->jump[j], NL_F32, 2, pairs, base, &used);
    place(&m->last, NL_F32, 2, pairs, base, &used);
    place(&m->t, NL_F32, 1, &twice, base, &used);
    place(&m->labels, NL_I32, 1, &twice, base, &used);
    for (int i = 0; i < NL_COUNT(rows); i++)
        place(rows[i], NL_F32, 2, (int64_t[]){n, NL_LOSS_COLUMNS}, base, &used);
    if (!(m->options.adversarial > 0))
        return used;
    const nl_config *config = &m->student->model->config;
    nl_tensor *scored[] = {&m->real, &m->generated, &m->fool};
    int64_t shape[4] = {n, m->options.channels, config->input_height, config->input_width};
    for (int i = 0; i < NL_COUNT(scored); i++)
        place(scored[i], NL_F32, 2, (int64_t[]){n, NL_LOSS_COLUMNS}, base, &used);
    place(&m->data, NL_F32, 4, shape, base, &used);
    return used;
}

/* Behind the slot, for good: what targets of scores are made of, and nothing. */
static int64_t lay_out_constants(nl_matcher *m, char *base, int64_t used)
{
    const nl_config *config = &m->student->model->config;
    int64_t shape[4] = {m->options.size, config->in_channels, config->input_height,
                        config->input_width};
    if (!(m->options.adversarial > 0))
        return used;
    place(&m->ones, NL_F32, 4, shape, base, &used);
    place(&m->zeros, NL_F32, 4, shape, base, &used);
    return used;
}

static nl_status fill_constants(nl_matcher *m)
{
    nl_status status = NL_OK;
    nl_device *device = m->device;
    int64_t count = nl_tensor_count(&m->ones);
    float *ones = NULL;
    NL_TRY(NL_OP(device, zero, .x = m->zeros));
    NL_TRY(NL_NEW_ARRAY(device->context, "ones", count, &ones));
    for (int64_t i = 0; i < count; i++)
        ones[i] = 1;
    NL_TRY(device->ops->upload(device, m->ones.data, ones, nl_tensor_bytes(&m->ones)));
    NL_TRY(device->ops->sync(device));
cleanup:
    nl_free(device->context, ones);
    return status;
}

nl_status nl_matcher_open(const nl_dit *teacher, nl_train_state *student, nl_train_state *fake,
                          const nl_matching_options *options, nl_matcher *matcher)
{
    nl_status status = NL_OK;
    nl_device *device = student->device;
    void *staging;
    *matcher = (nl_matcher){.device = device,
                            .options = *options,
                            .teacher = teacher,
                            .student = student,
                            .fake = fake};
    matcher->slot_bytes = lay_out(matcher, NULL);
    if (!device->measuring) {
        NL_TRY(nl_host_memory_alloc(device, "draws on the host", SLOTS * matcher->slot_bytes,
                                    &staging));
        matcher->staging = memset(staging, 0, (size_t)(SLOTS * matcher->slot_bytes));
    }
    matcher->bytes = lay_out_constants(matcher, NULL, matcher->slot_bytes);
    NL_TRY(device->ops->alloc(device, "a draw", matcher->bytes, &matcher->memory));
    lay_out(matcher, matcher->memory);
    lay_out_constants(matcher, matcher->memory, matcher->slot_bytes);
    if (matcher->ones.data && !device->measuring)
        NL_TRY(fill_constants(matcher));
cleanup:
    if (status != NL_OK)
        nl_matcher_close(matcher);
    return status;
}

void nl_matcher_close(nl_matcher *matcher)
{
    if (!matcher->device)
        return;
    if (matcher->memory)
        matcher->device->ops->free(matcher->device, matcher->memory, matcher->bytes);
    nl_host_memory_free(matcher->device, matcher->staging, SLOTS * matcher->slot_bytes);
    *matcher = (nl_matcher){0};
}

/* Where a tensor of the device stands in the slot on the host. */
static void *in_slot(const nl_matcher *matcher, const nl_tensor *tensor)
{
    return matcher->staging + matcher->slot * matcher->slot_bytes +
           ((char *)tensor->data - (char *)matcher->memory);
}

nl_status nl_matcher_next(nl_matcher *m, const int64_t *samples, const int32_t *labels,
                          const float *data, int draw)
{
    nl_device *device = m->device;
    if (m->slot == SLOTS) {
        NL_CHECK(device->ops->sync(device));
        m->slot = 0;
    }
    nl_matching_rows rows = {.jump = {in_slot(m, &m->jump[0]), in_slot(m, &m->jump[1])},
                             .last = in_slot(m, &m->last),
                             .t = in_slot(m, &m->t),
                             .labels = in_slot(m, &m->labels),
                             .move = {in_slot(m, &m->move[0]), in_slot(m, &m->move[1])},
                             .end = in_slot(m, &m->end),
                             .mix = in_slot(m, &m->mix),
                             .guide = in_slot(m, &m->guide)};
    if (m->options.adversarial > 0) {
        rows.real = in_slot(m, &m->real);
        rows.generated = in_slot(m, &m->generated);
        rows.fool = in_slot(m, &m->fool);
        memcpy(in_slot(m, &m->data), data, (size_t)nl_tensor_bytes(&m->data));
    }
    nl_matching_fill(&m->options, samples, labels, m->teacher->config.num_classes, m->options.size,
                     draw, &rows);
    NL_CHECK(device->ops->upload(device, m->memory, m->staging + m->slot * m->slot_bytes,
                                 m->slot_bytes));
    m->slot++;
    return NL_OK;
}

nl_status nl_matched_draw(const nl_matcher *matcher, nl_device *device, const int64_t *samples,
                          int draw, const nl_matched *matched)
{
    NL_CHECK(NL_OP(device, normal, .y = matched->noise, .seed = matcher->options.seed,
                   .stream = stream_of(draw, 1), .images = samples));
    if (matched->posterior.data)
        NL_CHECK(NL_OP(device, normal, .y = matched->posterior, .seed = matcher->options.seed,
                       .stream = NL_STREAM_POSTERIOR, .images = samples));
    return NL_OP(device, normal, .y = matched->other, .seed = matcher->options.seed,
                 .stream = stream_of(draw, 2), .images = samples);
}
