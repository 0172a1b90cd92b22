// Activations and their gradients.
#include "op.h"

#include <ATen/Functions.h>

// The CPU lays a result out as its operands and goes through all of them in the order of memory, so whether elements
// are computed in vectors or one by one, and with it the last bit, depends on that. The caller's output is packed:
// where an operand is not, the result is made the CPU's way and copied.
static bool alike(const at::Tensor& out, const at::Tensor& a) {
  return out.strides() == a.strides();
}

#define UNARY(op, function)                                                                                   \
  ACLNN(op, tensor(self), out(out)) {                                                                         \
    alike(out, self) ? at::function##_out(out, self) : out.copy_(at::function(self));                         \
  }
#define UNARY_AND_INPLACE(op, function) \
  UNARY(op, function)                   \
  ACLNN(Inplace##op, inout(self)) { at::function##_(self); }

UNARY(Silu, silu)
UNARY_AND_INPLACE(Hardsigmoid, hardsigmoid)
UNARY_AND_INPLACE(Hardswish, hardswish)
UNARY_AND_INPLACE(Mish, mish)
UNARY_AND_INPLACE(Sigmoid, sigmoid)
UNARY_AND_INPLACE(Tanh, tanh)
ACLNN(Relu, tensor(self), out(out)) { at::clamp_min_out(out, self, 0); }
ACLNN(InplaceRelu, inout(self)) { at::relu_(self); }

#define BACKWARD(op, function, saved)                                                                         \
  ACLNN(op, tensor(grad), tensor(saved), out(out)) {                                                          \
    alike(out, grad) && alike(out, saved) ? at::function##_out(out, grad, saved)                              \
                                          : out.copy_(at::function(grad, saved));                             \
  }

BACKWARD(HardsigmoidBackward, hardsigmoid_backward, self)
BACKWARD(SigmoidBackward, sigmoid_backward, result)
BACKWARD(SiluBackward, silu_backward, self)
BACKWARD(TanhBackward, tanh_backward, result)
ACLNN(MishBackward, tensor(grad), tensor(self), out(out)) { out.copy_(at::mish_backward(grad, self)); }
ACLNN(HardswishBackward, tensor(grad), tensor(self), out(out)) { out.copy_(at::hardswish_backward(grad, self)); }
ACLNN(HardswishBackwardV2, tensor(grad), tensor(self), out(out)) { out.copy_(at::hardswish_backward(grad, self)); }
ACLNN(ThresholdBackward, tensor(grad), tensor(self), scalar(threshold), out(out)) {
  at::threshold_backward_out(out, grad, self, threshold);
}

// The first version of this operator has no parameter for the approximation: torch_npu calls it for both.
static void gelu(const at::Tensor& self, std::string_view approximate, at::Tensor& out) {
  alike(out, self) ? at::gelu_out(out, self, approximate) : out.copy_(at::gelu(self, approximate));
}
static void gelu_backward(
    const at::Tensor& grad, const at::Tensor& self, std::string_view approximate, at::Tensor& out) {
  alike(out, grad) && alike(out, self) ? at::gelu_backward_out(out, grad, self, approximate)
                                       : out.copy_(at::gelu_backward(grad, self, approximate));
}

ACLNN(Gelu, tensor(self), out(out)) { gelu(self, "none", out); }
ACLNN(GeluBackward, tensor(grad), tensor(self), out(out)) { gelu_backward(grad, self, "none", out); }
ACLNN(GeluV2, tensor(self), int64(tanh), out(out)) { gelu(self, tanh ? "tanh" : "none", out); }
ACLNN(GeluBackwardV2, tensor(grad), tensor(self), text(approximate), out(out)) {
  gelu_backward(grad, self, approximate, out);
}

ACLNN(Elu, tensor(self), scalar(alpha), scalar(scale), scalar(input_scale), out(out)) {
  alike(out, self) ? at::elu_out(out, self, alpha, scale, input_scale)
                   : out.copy_(at::elu(self, alpha, scale, input_scale));
}
ACLNN(InplaceElu, inout(self), scalar(alpha), scalar(scale), scalar(input_scale)) {
  at::elu_(self, alpha, scale, input_scale);
}
ACLNN(
    EluBackward, tensor(grad), scalar(alpha), scalar(scale), scalar(input_scale), flag(is_result), tensor(saved),
    out(out)) {
  out.copy_(at::elu_backward(grad, alpha, scale, input_scale, is_result, saved));
}
ACLNN(Celu, tensor(self), scalar(alpha), out(out)) { out.copy_(at::celu(self, alpha)); }
ACLNN(InplaceCelu, inout(self), scalar(alpha)) { at::celu_(self, alpha); }

#define WITH_NUMBER(op, function)                                                                             \
  ACLNN(op, tensor(self), scalar(number), out(out)) { at::function##_out(out, self, number); }                \
  ACLNN(op##Backward, tensor(grad), tensor(self), scalar(number), out(out)) {                                 \
    at::function##_backward_out(out, grad, self, number);                                                     \
  }
WITH_NUMBER(Hardshrink, hardshrink)
WITH_NUMBER(Softshrink, softshrink)

#define WITH_TWO_NUMBERS(op, function)                                                                        \
  ACLNN(op, tensor(self), scalar(a), scalar(b), out(out)) {                                                   \
    alike(out, self) ? at::function##_out(out, self, a, b) : out.copy_(at::function(self, a, b));             \
  }                                                                                                           \
  ACLNN(op##Backward, tensor(grad), tensor(self), scalar(a), scalar(b), out(out)) {                           \
    out.copy_(at::function##_backward(grad, self, a, b));                                                     \
  }
WITH_TWO_NUMBERS(Hardtanh, hardtanh)
WITH_TWO_NUMBERS(Softplus, softplus)
ACLNN(InplaceHardtanh, inout(self), scalar(low), scalar(high)) { at::hardtanh_(self, low, high); }
ACLNN(Threshold, tensor(self), scalar(threshold), scalar(value), out(out)) {
  at::threshold_out(out, self, threshold, value);
}
ACLNN(InplaceThreshold, inout(self), scalar(threshold), scalar(value)) { at::threshold_(self, threshold, value); }

ACLNN(LeakyRelu, tensor(self), scalar(slope), out(out)) { at::leaky_relu_out(out, self, slope); }
ACLNN(InplaceLeakyRelu, inout(self), scalar(slope)) { at::leaky_relu_(self, slope); }
ACLNN(LeakyReluBackward, tensor(grad), tensor(self), scalar(slope), flag(is_result), out(out)) {
  at::leaky_relu_backward_out(out, grad, self, slope, is_result);
}
ACLNN(Prelu, tensor(self), tensor(weight), out(out)) { out.copy_(at::_prelu_kernel(self, weight)); }
// The weight arrives without the dimensions that it is broadcast over: it has one element, or one a channel.
ACLNN(PreluBackward, tensor(grad), tensor(self), tensor(weight), out(out), out(grad_weight)) {
  at::DimVector sizes(self.dim(), 1);
  if (weight.numel() > 1) {
    sizes[1] = weight.numel();
  }
  const auto [dx, dw] = at::_prelu_kernel_backward(grad, self, weight.view(sizes));
  out.copy_(dx);
  grad_weight.copy_(dw.sum_to_size(sizes).view(-1));
}

ACLNN(Glu, tensor(self), int64(dim), out(out)) { at::glu_out(out, self, dim); }
ACLNN(GluBackward, tensor(grad), tensor(self), int64(dim), out(out)) { at::glu_backward_out(out, grad, self, dim); }

ACLNN(LogSigmoid, tensor(self), out(out)) { out.copy_(at::log_sigmoid(self)); }
// The CPU keeps a buffer for the gradient that the hardware has no room for.
ACLNN(LogSigmoidForward, tensor(self), out(out), out(buffer)) { out.copy_(at::log_sigmoid(self)); }
ACLNN(LogSigmoidBackward, tensor(grad), tensor(self), tensor(buffer), out(out)) {
  out.copy_(at::log_sigmoid_backward(grad, self, std::get<1>(at::log_sigmoid_forward(self))));
}

namespace {

std::optional<double> given(double eps) {
  return eps < 0 ? std::nullopt : std::optional(eps);
}

// The two halves of a gated activation.
std::pair<at::Tensor, at::Tensor> halves(const at::Tensor& x, int64_t dim) {
  const auto parts = x.chunk(2, dim);
  return {parts[0], parts[1]};
}

} // namespace

ACLNN(Logit, tensor(self), real(eps), out(out)) { at::logit_out(out, self, given(eps)); }
ACLNN(LogitGrad, tensor(self), tensor(grad), real(eps), out(out)) {
  at::logit_backward_out(out, grad, self, given(eps));
}

ACLNN(SwiGlu, tensor(self), int64(dim), out(out)) {
  const auto [gate, value] = halves(self, dim);
  at::mul_out(out, at::silu(gate), value);
}
ACLNN(SwiGluGrad, tensor(grad), tensor(self), int64(dim), out(out)) {
  const auto [gate, value] = halves(self, dim);
  const auto [dgate, dvalue] = halves(out, dim);
  dgate.copy_(at::silu_backward(grad.mul(value), gate));
  dvalue.copy_(grad.mul(at::silu(gate)));
}
ACLNN(GeluMul, tensor(self), text(approximate), out(out)) {
  const auto [gate, value] = halves(self, -1);
  at::mul_out(out, at::gelu(gate, approximate), value);
}
ACLNN(GeGluV3, tensor(self), int64(dim), int64(tanh), flag(left), out(out), out(activated)) {
  const auto [a, b] = halves(self, dim);
  at::gelu_out(activated, left ? a : b, tanh ? "tanh" : "none");
  at::mul_out(out, activated, left ? b : a);
}
ACLNN(
    GeGluV3Backward, tensor(grad), tensor(self), tensor(activated), int64(dim), int64(tanh), flag(left),
    out(out)) {
  const auto [a, b] = halves(self, dim);
  const auto [da, db] = halves(out, dim);
  (left ? da : db).copy_(at::gelu_backward(grad.mul(left ? b : a), left ? a : b, tanh ? "tanh" : "none"));
  (left ? db : da).copy_(grad.mul(activated));
}
// x * sigmoid(1.702 x)
ACLNN(FastGelu, tensor(self), out(out)) { at::mul_out(out, self, self.mul(1.702).sigmoid_()); }
ACLNN(FastGeluBackward, tensor(grad), tensor(self), out(out)) {
  const auto s = self.mul(1.702).sigmoid_();
  at::add_out(out, grad.mul(s), at::sigmoid_backward(grad.mul(self), s).mul_(1.702));
}
