/* The parameter table, apart from the model that fills and runs it. */
#ifndef NL_PARAMS_H
#define NL_PARAMS_H

#include "nl_dit.h"

/* Lists dit->params by dit->config, each pointing at its tensor in *dit, which gets type and shape
 * but no memory. */
nl_status nl_params_list(nl_dit *dit);
/* Places all parameters and the position table in dit->storage, which it allocates. */
nl_status nl_params_place(nl_dit *dit);

#endif
