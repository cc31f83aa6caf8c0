/* SPDX-License-Identifier: MIT */
/* `nalagen serve`. */
#ifndef NL_SERVE_COMMAND_H
#define NL_SERVE_COMMAND_H

#include "nl_options.h"

extern const nl_command nl_serve_command;

#endif
