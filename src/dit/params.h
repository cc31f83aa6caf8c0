/* The parameter table, apart from the model that fills and runs it. */
#ifndef NL_PARAMS_H
#define NL_PARAMS_H

#include "nl_dit.h"

/* Lists dit->params by dit->config, each pointing at its tensor in *dit, which gets type and shape
 * but no memory. */
nl_status nl_params_list(nl_dit *dit);
/* Places all parameters and the position table in dit->storage, which it allocates. */
nl_status nl_params_place(nl_dit *dit);

/* save.c, dit.c. Names every tensor that is missing, misshapen or not expected; reads no numbers.
 */
nl_status nl_dit_check(const nl_dit *dit, const nl_checkpoint *checkpoint);

/* ---- names.c: how diffusers spells the parameter with this name. */

enum { NL_NAME_SIZE = 128 };

/* How many tensors its rows are divided into; 0: diffusers has no such parameter. */
int nl_diffusers_parts(const char *name);
/* Whether every block has a copy of it. */
bool nl_diffusers_copied(const char *name);
/* The name of one of them, "" when there is none; `block` counts the copies. */
void nl_diffusers_name(const char *name, int part, int block, char text[NL_NAME_SIZE]);

/* ---- config_hints.c: what a file that is not ours says about itself apart from its tensors: a
 * training run's arguments, diffusers' config.json, the spelling of the names. *source: which of
 * them named the architecture, or NULL. */
nl_status nl_config_hints(const nl_checkpoint *checkpoint, nl_config *config, const char **source);

#endif
