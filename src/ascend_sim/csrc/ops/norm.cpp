// Softmax and normalisations.
#include "op.h"

#include <ATen/Functions.h>
#include <ATen/OpMathType.h>

namespace {

// The type in which the CPU keeps the statistics of a layer or group. The caller's tensors for them are float32.
at::ScalarType statistics_type(const at::Tensor& input, const at::Tensor& weight) {
  return weight.defined() && at::isReducedFloatingType(input.scalar_type()) ? weight.scalar_type()
                                                                             : input.scalar_type();
}

} // namespace

ACLNN(Softmax, tensor(self), int64(dim), out(out)) { at::_softmax_out(out, self, dim, false); }
ACLNN(LogSoftmax, tensor(self), int64(dim), out(out)) { at::_log_softmax_out(out, self, dim, false); }
ACLNN(SoftmaxBackward, tensor(grad), tensor(result), int64(dim), out(out)) {
  at::_softmax_backward_data_out(out, grad, result, dim, out.scalar_type());
}
ACLNN(LogSoftmaxBackward, tensor(grad), tensor(result), int64(dim), out(out)) {
  at::_log_softmax_backward_data_out(out, grad, result, dim, out.scalar_type());
}

#define LAYER_NORM(op)                                                                                               \
  ACLNN(                                                                                                             \
      op, tensor(input), ints(shape), tensor(weight), tensor(bias), real(eps), out(out), out(mean),                  \
      out(rstd)) {                                                                                                   \
    const auto [result, result_mean, result_rstd] = at::native_layer_norm(input, shape, weight, bias, eps);          \
    sim::write_wanted(out, result);                                                                                               \
    sim::write_wanted(mean, result_mean);                                                                                         \
    sim::write_wanted(rstd, result_rstd);                                                                                         \
  }
LAYER_NORM(LayerNorm)
LAYER_NORM(FastLayerNorm)

ACLNN(
    LayerNormBackward, tensor(grad), tensor(input), ints(shape), tensor(mean), tensor(rstd), tensor(given_weight),
    tensor(bias), bools(mask), out(grad_input), out(grad_weight), out(grad_bias)) {
  // torch_npu passes ones where there is no weight, and the CPU rounds differently with and without one.
  const bool none = !mask[1] && !mask[2] && given_weight.eq(1).all().item<bool>();
  const auto weight = none ? at::Tensor() : given_weight;
  const auto type = statistics_type(input, weight);
  const auto [dx, dw, db] = at::native_layer_norm_backward(
      grad, input, shape, mean.to(type), rstd.to(type), weight, none ? at::Tensor() : bias,
      {mask[0], mask[1], mask[2]});
  sim::write_wanted(grad_input, dx);
  sim::write_wanted(grad_weight, dw);
  sim::write_wanted(grad_bias, db);
}

ACLNN(
    BatchNorm, tensor(input), tensor(weight), tensor(bias), inout(running_mean), inout(running_var), flag(training),
    real(momentum), real(eps), out(out), out(mean), out(inverse_std)) {
  const auto [result, batch_mean, batch_inverse_std] =
      at::native_batch_norm(input, weight, bias, running_mean, running_var, training, momentum, eps);
  sim::write_wanted(out, result);
  if (training) {
    sim::write_wanted(mean, batch_mean);
    sim::write_wanted(inverse_std, batch_inverse_std);
  }
}
ACLNN(
    BatchNormBackward, tensor(grad), tensor(input), tensor(weight), tensor(running_mean), tensor(running_var),
    tensor(mean), tensor(inverse_std), flag(training), real(eps), bools(mask), out(grad_input), out(grad_weight),
    out(grad_bias)) {
  const auto type = statistics_type(input, weight.defined() ? weight : running_mean);
  const auto cast = [&](const at::Tensor& t) { return t.defined() ? t.to(type) : t; };
  const auto [dx, dw, db] = at::native_batch_norm_backward(
      grad, input, weight, running_mean, running_var, cast(mean), cast(inverse_std), training, eps,
      {mask[0], mask[1], mask[2]});
  sim::write_wanted(grad_input, dx);
  sim::write_wanted(grad_weight, dw);
  sim::write_wanted(grad_bias, db);
}

ACLNN(
    GroupNorm, tensor(input), tensor(weight), tensor(bias), int64(n), int64(c), int64(hw), int64(groups), real(eps),
    out(out), out(mean), out(rstd)) {
  const auto [result, result_mean, result_rstd] = at::native_group_norm(input, weight, bias, n, c, hw, groups, eps);
  sim::write_wanted(out, result);
  sim::write_wanted(mean, result_mean);
  sim::write_wanted(rstd, result_rstd);
}
ACLNN(
    GroupNormBackward, tensor(grad), tensor(input), tensor(mean), tensor(rstd), tensor(weight), int64(n), int64(c),
    int64(hw), int64(groups), bools(mask), out(grad_input), out(grad_weight), out(grad_bias)) {
  const auto type = statistics_type(input, weight);
  const auto [dx, dw, db] = at::native_group_norm_backward(
      grad.contiguous(), input.contiguous(), mean.to(type), rstd.to(type), weight, n, c, hw, groups,
      {mask[0], mask[1], mask[2]});
  sim::write_wanted(grad_input, dx);
  sim::write_wanted(grad_weight, dw);
  sim::write_wanted(grad_bias, db);
}

namespace {

void rms_norm(const at::Tensor& x, const at::Tensor& gamma, double eps, at::Tensor& out, at::Tensor& rstd) {
  const auto [result, result_rstd] = at::_fused_rms_norm(x, gamma.sizes(), gamma, eps);
  sim::write_wanted(out, result);
  sim::write_wanted(rstd, result_rstd);
}

} // namespace

ACLNN(RmsNorm, tensor(x), tensor(gamma), real(eps), out(out), out(rstd)) { rms_norm(x, gamma, eps, out, rstd); }
ACLNN(
    AddRmsNorm, tensor(x1), tensor(x2), tensor(gamma), real(eps), out(out), out(rstd), out(sum)) {
  at::add_out(sum, x1, x2);
  rms_norm(sum, gamma, eps, out, rstd);
}
// The steps and their order are those of autograd through torch's rms_norm.
ACLNN(RmsNormGrad, tensor(grad), tensor(x), tensor(rstd), tensor(gamma), out(dx), out(dgamma)) {
  const auto type = at::toOpMathType(x.scalar_type());
  const auto wide = x.to(type), g = grad.to(type);
  at::DimVector dims;
  int64_t elements = 1;
  for (int64_t d = x.dim() - gamma.dim(); d < x.dim(); ++d) {
    dims.push_back(d);
    elements *= x.size(d);
  }
  dgamma.copy_(g.mul(wide.mul(rstd)).sum_to_size(gamma.sizes()));
  const auto scaled = g.mul(gamma);
  const auto drstd = scaled.mul(wide).sum(dims, true);
  const auto dmean = drstd.mul(-0.5).mul(rstd.pow(3)).expand_as(wide).div(elements);
  sim::write_wanted(dx, scaled.mul(rstd).add(dmean.mul(wide.mul(2))));
}
