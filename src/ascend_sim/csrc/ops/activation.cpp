// Activations and their gradients.
#include "op.h"

#include <ATen/Functions.h>

#define UNARY(op, function)                                                      \
  ACLNN(op, tensor(self), tensor(out)) { at::function##_out(out, self); }        \
  ACLNN(Inplace##op, tensor(self)) { at::function##_(self); }

UNARY(Hardsigmoid, hardsigmoid)
UNARY(Hardswish, hardswish)
UNARY(Mish, mish)
UNARY(Sigmoid, sigmoid)
UNARY(Tanh, tanh)
ACLNN(Relu, tensor(self), tensor(out)) { at::clamp_min_out(out, self, 0); }
ACLNN(InplaceRelu, tensor(self)) { at::relu_(self); }
ACLNN(Silu, tensor(self), tensor(out)) { at::silu_out(out, self); }

#define BACKWARD(op, function, saved)                                                  \
  ACLNN(op, tensor(grad), tensor(saved), tensor(out)) { at::function(out, grad, saved); }

BACKWARD(HardsigmoidBackward, hardsigmoid_backward_out, self)
BACKWARD(SigmoidBackward, sigmoid_backward_out, result)
BACKWARD(SiluBackward, silu_backward_out, self)
BACKWARD(TanhBackward, tanh_backward_out, result)
ACLNN(MishBackward, tensor(grad), tensor(self), tensor(out)) { out.copy_(at::mish_backward(grad, self)); }
ACLNN(HardswishBackward, tensor(grad), tensor(self), tensor(out)) { out.copy_(at::hardswish_backward(grad, self)); }
ACLNN(HardswishBackwardV2, tensor(grad), tensor(self), tensor(out)) { out.copy_(at::hardswish_backward(grad, self)); }
ACLNN(ThresholdBackward, tensor(grad), tensor(self), scalar(threshold), tensor(out)) {
  at::threshold_backward_out(out, grad, self, threshold);
}

// The first version of this operator has no parameter for the approximation: torch_npu calls it for both.
ACLNN(Gelu, tensor(self), tensor(out)) { at::gelu_out(out, self, "none"); }
ACLNN(GeluBackward, tensor(grad), tensor(self), tensor(out)) { at::gelu_backward_out(out, grad, self, "none"); }
ACLNN(GeluV2, tensor(self), int64(tanh), tensor(out)) { at::gelu_out(out, self, tanh ? "tanh" : "none"); }
ACLNN(GeluBackwardV2, tensor(grad), tensor(self), text(approximate), tensor(out)) {
  at::gelu_backward_out(out, grad, self, approximate);
}
