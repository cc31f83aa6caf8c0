/* SPDX-License-Identifier: MIT */
/* Requests of the three interfaces, from their bytes to what is put into the queue. Nothing here needs a connection. */
#ifndef NL_WANTED_H
#define NL_WANTED_H

#include "nl_queue.h"
#include "nl_sampler.h"

/* The fields of a job: those of --requests but for files. */
extern const nl_command nl_wanted_command;

/* Each parses one body, works the task out for the model that it names (the first, where it names none), and checks the
 * size. wanted: from nl_wanted_create; on failure its context has the message. NL_ERROR_USAGE, NL_ERROR_INPUT: the client's
 * fault, NL_ERROR_MEMORY.
 *
 * Own: {"class": "church", "n": 4, "model": NAME, ...}. */
nl_status nl_wanted_own(const nl_queue *queue, const char *body, size_t size, nl_wanted *wanted);
/* OpenAI's images/generations: {"prompt": CLASSES, "n": 1, "size": "WxH", ...} and the own fields beside. */
nl_status nl_wanted_openai(const nl_queue *queue, const char *body, size_t size, nl_wanted *wanted);
/* A1111's txt2img; model: number of the one that is chosen. *echo: the request, to be given back; allocated. What is unknown
 * is passed over, as A1111 does. */
nl_status nl_wanted_webui(const nl_queue *queue, int model, const char *body, size_t size,
                          nl_wanted *wanted, cJSON **echo);

/* What a model can be asked for: class guidance (a distilled one has it inside, another knows no null class), a sampler. */
bool nl_takes_guidance(const nl_config *config);
bool nl_takes_sampler(const nl_config *config, nl_method method);

/* "512x256", "512" or, of OpenAI, "auto" (0, 0). */
bool nl_size_read(const char *text, int *first, int *second);

#endif
