/* SPDX-License-Identifier: MIT */
/* `nalagen info`: what is in a file or a folder, and what a device is. */
#ifndef NL_INFO_H
#define NL_INFO_H

#include "nl_checkpoint.h"
#include "nl_options.h"

extern const nl_command nl_info_command;

/* info_files.c: what nalagen itself makes, into the object. Pictures as nalagen encode takes
 * them (NL_ERROR_INPUT: none); a folder of nalagen encode; of nalagen train; the metadata and
 * tensors of a shard; a .npz of pictures or statistics. */
nl_status nl_info_dataset(nl_context *context, const char *path, cJSON *object);
nl_status nl_info_run(nl_context *context, const char *path, cJSON *object);
nl_status nl_info_source(nl_context *context, const char *path, cJSON *object);
nl_status nl_info_shard(const nl_checkpoint *checkpoint, cJSON *object);
nl_status nl_info_archive(nl_context *context, const char *path, cJSON *object);

/* What the device of that name is, and measured rates, into the object. */
nl_status nl_device_info(nl_context *context, const char *name, cJSON *object);

#endif
