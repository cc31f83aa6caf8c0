/* `nalagen info`: what is in a checkpoint, a picture made by nalagen or a file of latents. */
#ifndef NL_INFO_H
#define NL_INFO_H

#include "nl_options.h"

extern const nl_command nl_info_command;

#endif
