/* SPDX-License-Identifier: MIT */
/* `nalagen convert`: a checkpoint of any kind to one safetensors file. */
#ifndef NL_CONVERT_H
#define NL_CONVERT_H

#include "nl_options.h"

extern const nl_command nl_convert_command;

#endif
