// Softmax and normalisations.
#include "op.h"

#include <ATen/Functions.h>

namespace {

// The type in which the CPU keeps the statistics of a layer or group. The caller's tensors for them are float32.
at::ScalarType statistics_type(const at::Tensor& input, const at::Tensor& weight) {
  return weight.defined() && at::isReducedFloatingType(input.scalar_type()) ? weight.scalar_type()
                                                                             : input.scalar_type();
}

void copy(at::Tensor& out, const at::Tensor& result) {
  if (out.defined() && result.defined()) {
    out.copy_(result.view_as(out));
  }
}

} // namespace

ACLNN(Softmax, tensor(self), int64(dim), tensor(out)) { at::_softmax_out(out, self, dim, false); }
ACLNN(LogSoftmax, tensor(self), int64(dim), tensor(out)) { at::_log_softmax_out(out, self, dim, false); }
ACLNN(SoftmaxBackward, tensor(grad), tensor(result), int64(dim), tensor(out)) {
  at::_softmax_backward_data_out(out, grad, result, dim, out.scalar_type());
}
ACLNN(LogSoftmaxBackward, tensor(grad), tensor(result), int64(dim), tensor(out)) {
  at::_log_softmax_backward_data_out(out, grad, result, dim, out.scalar_type());
}

#define LAYER_NORM(op)                                                                                               \
  ACLNN(                                                                                                             \
      op, tensor(input), ints(shape), tensor(weight), tensor(bias), real(eps), tensor(out), tensor(mean),            \
      tensor(rstd)) {                                                                                                \
    const auto [result, result_mean, result_rstd] = at::native_layer_norm(input, shape, weight, bias, eps);          \
    copy(out, result);                                                                                               \
    copy(mean, result_mean);                                                                                         \
    copy(rstd, result_rstd);                                                                                         \
  }
LAYER_NORM(LayerNorm)
LAYER_NORM(FastLayerNorm)

ACLNN(
    LayerNormBackward, tensor(grad), tensor(input), ints(shape), tensor(mean), tensor(rstd), tensor(weight),
    tensor(bias), bools(mask), tensor(grad_input), tensor(grad_weight), tensor(grad_bias)) {
  const auto type = statistics_type(input, weight);
  const auto [dx, dw, db] = at::native_layer_norm_backward(
      grad, input, shape, mean.to(type), rstd.to(type), weight, bias, {mask[0], mask[1], mask[2]});
  copy(grad_input, dx);
  copy(grad_weight, dw);
  copy(grad_bias, db);
}
