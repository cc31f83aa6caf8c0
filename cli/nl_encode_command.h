/* SPDX-License-Identifier: MIT */
/* `nalagen encode`: pictures to training data. */
#ifndef NL_ENCODE_COMMAND_H
#define NL_ENCODE_COMMAND_H

#include "nl_options.h"

extern const nl_command nl_encode_command;

#endif
