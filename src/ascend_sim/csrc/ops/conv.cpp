// Convolutions, pools, and changes of resolution.
#include "op.h"

#include <ATen/Functions.h>

namespace {

void copy(at::Tensor& out, const at::Tensor& result) {
  if (out.defined() && result.defined()) {
    out.copy_(result.view_as(out));
  }
}

std::optional<int64_t> divisor(int64_t override) {
  return override ? std::optional(override) : std::nullopt;
}

} // namespace

ACLNN(
    Convolution, tensor(input), tensor(weight), tensor(bias), ints(stride), ints(padding), ints(dilation),
    flag(transposed), ints(output_padding), int64(groups), tensor(out), int8(cube_math_type)) {
  copy(out, at::convolution(input, weight, bias, stride, padding, dilation, transposed, output_padding, groups));
}
ACLNN(
    ConvolutionBackward, tensor(grad), tensor(input), tensor(weight), ints(bias_sizes), ints(stride), ints(padding),
    ints(dilation), flag(transposed), ints(output_padding), int64(groups), bools(mask), int8(cube_math_type),
    tensor(grad_input), tensor(grad_weight), tensor(grad_bias)) {
  const auto [dx, dw, db] = at::convolution_backward(
      grad, input, weight, bias_sizes, stride, padding, dilation, transposed, output_padding, groups,
      {mask[0], mask[1], mask[2]});
  copy(grad_input, dx);
  copy(grad_weight, dw);
  copy(grad_bias, db);
}

ACLNN(
    AvgPool2d, tensor(self), ints(kernel), ints(stride), ints(padding), flag(ceil), flag(include_padding),
    int64(override), int8(cube_math_type), tensor(out)) {
  at::avg_pool2d_out(out, self, kernel, stride, padding, ceil, include_padding, divisor(override));
}
ACLNN(
    AvgPool2dBackward, tensor(grad), tensor(self), ints(kernel), ints(stride), ints(padding), flag(ceil),
    flag(include_padding), int64(override), int8(cube_math_type), tensor(out)) {
  at::avg_pool2d_backward_out(out, grad, self, kernel, stride, padding, ceil, include_padding, divisor(override));
}

#define MAX_POOL_2D(op)                                                                                         \
  ACLNN(                                                                                                        \
      op, tensor(self), ints(kernel), ints(stride), ints(padding), ints(dilation), flag(ceil), tensor(out),     \
      tensor(indices))
#define MAX_POOL_2D_BACKWARD(op)                                                                                \
  ACLNN(                                                                                                        \
      op, tensor(grad), tensor(self), tensor(indices), ints(kernel), ints(stride), ints(padding),               \
      ints(dilation), flag(ceil), tensor(out))

MAX_POOL_2D(MaxPool2dWithIndices) {
  const auto [values, places] = at::max_pool2d_with_indices(self, kernel, stride, padding, dilation, ceil);
  out.copy_(values);
  indices.copy_(places);
}
MAX_POOL_2D_BACKWARD(MaxPool2dWithIndicesBackward) {
  at::max_pool2d_with_indices_backward_out(
      out, grad, self, kernel, stride, padding, dilation, ceil, indices.to(at::kLong));
}
// Here the indices are a bit mask in the layout of the hardware, which only the gradient reads. It has the input
// as well, so the places are found again and the mask stays empty.
MAX_POOL_2D(MaxPool2dWithMask) {
  out.copy_(std::get<0>(at::max_pool2d_with_indices(self, kernel, stride, padding, dilation, ceil)));
  indices.zero_();
}
MAX_POOL_2D_BACKWARD(MaxPool2dWithMaskBackward) {
  const auto places = std::get<1>(at::max_pool2d_with_indices(self, kernel, stride, padding, dilation, ceil));
  at::max_pool2d_with_indices_backward_out(out, grad, self, kernel, stride, padding, dilation, ceil, places);
}

ACLNN(AdaptiveAvgPool2d, tensor(self), ints(size), tensor(out)) {
  copy(out, at::_adaptive_avg_pool2d(self, size));
}
ACLNN(AdaptiveAvgPool2dBackward, tensor(grad), tensor(self), tensor(out)) {
  copy(out, at::_adaptive_avg_pool2d_backward(grad, self));
}
