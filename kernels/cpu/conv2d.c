#include "nl_cpu.h"

/* x [B, H, W, C], weight [O, C, kh, kw] -> y [B, H', W', O] */
nl_status NL_CPU(conv2d)(nl_device *device, const nl_conv2d_args *args)
{
    return nl_dnnl_conv2d(((nl_cpu_state *)device->state)->dnnl, args);
}
