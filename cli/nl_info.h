/* SPDX-License-Identifier: MIT */
/* `nalagen info`: what is in a checkpoint, a picture made by nalagen or a file of latents, and what a device is. */
#ifndef NL_INFO_H
#define NL_INFO_H

#include "nl_options.h"

extern const nl_command nl_info_command;

/* What the device of that name is, and measured rates, into the object. */
nl_status nl_device_info(nl_context *context, const char *name, cJSON *object);

#endif
