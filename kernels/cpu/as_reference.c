/* Operations that take no time worth saving beside the network's: the reference is good enough for them. */
#include "nl_cpu.h"

#define AS_REFERENCE(operation)                                                                    \
    nl_status NL_CPU(operation)(nl_device * device, const nl_##operation##_args *args)             \
    {                                                                                              \
        return nl_reference_ops.operation(device, args);                                           \
    }
AS_REFERENCE(linear_backward_data)
AS_REFERENCE(linear_backward_weight)
AS_REFERENCE(activate_backward)
AS_REFERENCE(layernorm_modulate_backward)
AS_REFERENCE(layernorm_gate_backward)
AS_REFERENCE(nala_attention_backward)
AS_REFERENCE(softmax_attention_backward)
AS_REFERENCE(depthwise_conv_backward)
AS_REFERENCE(patch_embed_backward)
AS_REFERENCE(unpatchify_backward)
AS_REFERENCE(add_label_backward)
AS_REFERENCE(latents)
AS_REFERENCE(diffuse)
AS_REFERENCE(regression_loss)
AS_REFERENCE(variational_loss)
AS_REFERENCE(zero)
AS_REFERENCE(mean)
AS_REFERENCE(gradient_norm)
AS_REFERENCE(adamw)
