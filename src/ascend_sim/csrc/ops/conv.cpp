// Convolutions, pools, and their gradients.
#include "op.h"

#include <ATen/Functions.h>

namespace {

std::optional<int64_t> divisor(int64_t override) {
  return override ? std::optional(override) : std::nullopt;
}

} // namespace

ACLNN(
    Convolution, tensor(input), tensor(weight), tensor(bias), ints(stride), ints(padding), ints(dilation),
    flag(transposed), ints(output_padding), int64(groups), out(out), int8(cube_math_type)) {
  sim::write_wanted(out, at::convolution(input, weight, bias, stride, padding, dilation, transposed, output_padding, groups));
}
ACLNN(
    ConvolutionBackward, tensor(grad), tensor(input), tensor(weight), ints(bias_sizes), ints(stride), ints(padding),
    ints(dilation), flag(transposed), ints(output_padding), int64(groups), bools(mask), int8(cube_math_type),
    out(grad_input), out(grad_weight), out(grad_bias)) {
  const auto [dx, dw, db] = at::convolution_backward(
      grad, input, weight, bias_sizes, stride, padding, dilation, transposed, output_padding, groups,
      {mask[0], mask[1], mask[2]});
  sim::write_wanted(grad_input, dx);
  sim::write_wanted(grad_weight, dw);
  sim::write_wanted(grad_bias, db);
}

ACLNN(
    AvgPool2d, tensor(self), ints(kernel), ints(stride), ints(padding), flag(ceil), flag(include_padding),
    int64(override), int8(cube_math_type), out(out)) {
  at::avg_pool2d_out(out, self, kernel, stride, padding, ceil, include_padding, divisor(override));
}
ACLNN(
    AvgPool2dBackward, tensor(grad), tensor(self), ints(kernel), ints(stride), ints(padding), flag(ceil),
    flag(include_padding), int64(override), int8(cube_math_type), out(out)) {
  at::avg_pool2d_backward_out(out, grad, self, kernel, stride, padding, ceil, include_padding, divisor(override));
}

#define MAX_POOL(op)                                                                                         \
  ACLNN(                                                                                                        \
      op, tensor(self), ints(kernel), ints(stride), ints(padding), ints(dilation), flag(ceil), out(out),        \
      out(indices))
#define MAX_POOL_BACKWARD(op)                                                                                \
  ACLNN(                                                                                                        \
      op, tensor(grad), tensor(self), tensor(indices), ints(kernel), ints(stride), ints(padding),               \
      ints(dilation), flag(ceil), out(out))

MAX_POOL(MaxPool2dWithIndices) {
  const auto [values, places] = at::max_pool2d_with_indices(self, kernel, stride, padding, dilation, ceil);
  out.copy_(values);
  indices.copy_(places);
}
MAX_POOL_BACKWARD(MaxPool2dWithIndicesBackward) {
  at::max_pool2d_with_indices_backward_out(
      out, grad, self, kernel, stride, padding, dilation, ceil, indices.to(at::kLong));
}
// Here the indices are a bit mask in the layout of the hardware, which only the gradient reads. It has the input
// as well, so the places are found again and the mask stays empty.
MAX_POOL(MaxPool2dWithMask) {
  out.copy_(std::get<0>(at::max_pool2d_with_indices(self, kernel, stride, padding, dilation, ceil)));
  indices.zero_();
}
MAX_POOL_BACKWARD(MaxPool2dWithMaskBackward) {
  const auto places = std::get<1>(at::max_pool2d_with_indices(self, kernel, stride, padding, dilation, ceil));
  at::max_pool2d_with_indices_backward_out(out, grad, self, kernel, stride, padding, dilation, ceil, places);
}

ACLNN(AdaptiveAvgPool2d, tensor(self), ints(size), out(out)) {
  sim::write_wanted(out, at::_adaptive_avg_pool2d(self, size));
}
ACLNN(AdaptiveAvgPool2dBackward, tensor(grad), tensor(self), out(out)) {
  sim::write_wanted(out, at::_adaptive_avg_pool2d_backward(grad, self));
}
ACLNN(
    ConvDepthwise2d, tensor(self), tensor(weight), ints(kernel), tensor(bias), ints(stride), ints(padding),
    ints(dilation), out(out), int8(cube_math_type)) {
  sim::write_wanted(out, at::conv2d(self, weight, bias, stride, padding, dilation, self.size(-3)));
}
ACLNN(ConvTbc, tensor(self), tensor(weight), tensor(bias), int64(pad), out(out), int8(cube_math_type)) {
  sim::write_wanted(out, at::conv_tbc(self, weight, bias, pad));
}
ACLNN(
    ConvTbcBackward, tensor(grad), tensor(self), tensor(weight), tensor(bias), int64(pad), int8(cube_math_type),
    out(grad_input), out(grad_weight), out(grad_bias)) {
  const auto [dx, dw, db] = at::conv_tbc_backward(grad, self, weight, bias, pad);
  sim::write_wanted(grad_input, dx);
  sim::write_wanted(grad_weight, dw);
  sim::write_wanted(grad_bias, db);
}

ACLNN(AdaptiveAvgPool3d, tensor(self), ints(size), out(out)) { sim::write_wanted(out, at::_adaptive_avg_pool3d(self, size)); }
ACLNN(AdaptiveAvgPool3dBackward, tensor(grad), tensor(self), out(out)) {
  sim::write_wanted(out, at::_adaptive_avg_pool3d_backward(grad, self));
}

#define ADAPTIVE_MAX_POOL(op, function)                                                             \
  ACLNN(op, tensor(self), ints(size), out(out), out(indices)) {                                     \
    const auto [values, places] = at::function(self, size);                                         \
    out.copy_(values);                                                                              \
    indices.copy_(places);                                                                          \
  }                                                                                                 \
  ACLNN(op##Backward, tensor(grad), tensor(self), tensor(indices), out(out)) {                      \
    at::function##_backward_out(out, grad, self, indices.to(at::kLong));                            \
  }
ADAPTIVE_MAX_POOL(AdaptiveMaxPool2d, adaptive_max_pool2d)
ADAPTIVE_MAX_POOL(AdaptiveMaxPool3d, adaptive_max_pool3d)

ACLNN(
    AvgPool3d, tensor(self), ints(kernel), ints(stride), ints(padding), flag(ceil), flag(include_padding),
    int64(override), out(out)) {
  at::avg_pool3d_out(out, self, kernel, stride, padding, ceil, include_padding, divisor(override));
}
ACLNN(
    AvgPool3dBackward, tensor(grad), tensor(self), ints(kernel), ints(stride), ints(padding), flag(ceil),
    flag(include_padding), int64(override), out(out)) {
  at::avg_pool3d_backward_out(out, grad, self, kernel, stride, padding, ceil, include_padding, divisor(override));
}
MAX_POOL(MaxPool3dWithArgmax) {
  const auto [values, places] = at::max_pool3d_with_indices(self, kernel, stride, padding, dilation, ceil);
  out.copy_(values);
  indices.copy_(places);
}
MAX_POOL_BACKWARD(MaxPool3dWithArgmaxBackward) {
  at::max_pool3d_with_indices_backward_out(
      out, grad, self, kernel, stride, padding, dilation, ceil, indices.to(at::kLong));
}
ACLNN(MaxUnpool2d, tensor(self), tensor(indices), ints(size), out(out)) {
  out.copy_(at::max_unpool2d(self, indices.to(at::kLong), size));
}
ACLNN(MaxUnpool3d, tensor(self), tensor(indices), ints(size), ints(stride), ints(padding), out(out)) {
  out.copy_(at::max_unpool3d(self, indices.to(at::kLong), size, stride, padding));
}
ACLNN(Im2col, tensor(self), ints(kernel), ints(dilation), ints(padding), ints(stride), out(out)) {
  at::im2col_out(out, self, kernel, dilation, padding, stride);
}
ACLNN(
    Im2colBackward, tensor(self), ints(size), ints(kernel), ints(dilation), ints(padding), ints(stride),
    out(out)) {
  at::col2im_out(out, self, size, kernel, dilation, padding, stride);
}
