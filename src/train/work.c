/* SPDX-License-Identifier: MIT */
/* Operations of a forward pass, and what known cards can do in a second. */
#include "work.h"

#include "nl_dit.h"

#include <string.h>

double nl_forward_flops(const nl_config *config)
{
    double tokens = (double)nl_config_tokens(config), d = config->hidden_size;
    double patch = (double)config->patch_size * config->patch_size;
    double per_token = config->depth * nl_dit_block_work(config) + patch * config->in_channels * d +
                       patch * nl_config_head_channels(config) * d;
    double per_image = 256 * d + d * d + (6.0 * config->depth + 2) * d * d;
    return 2 * (tokens * per_token + per_image);
}

double nl_peak_flops(const nl_device *device)
{
    static const struct {
        const char *name;
        double bf16, f32; /* f32: the plain one, without TF32 */
    } cards[] = {{"H200", 989e12, 67e12},     {"H100 PCIe", 756e12, 51e12},
                 {"H100", 989e12, 67e12},     {"H800", 989e12, 67e12},
                 {"B200", 2250e12, 75e12},    {"A100", 312e12, 19.5e12},
                 {"RTX 4090", 165e12, 83e12}, {"L40", 181e12, 90e12}};
    for (int i = 0; i < NL_COUNT(cards); i++)
        if (strstr(device->name, cards[i].name))
            return device->dtype == NL_BF16 ? cards[i].bf16 : cards[i].f32;
    return 0;
}
