// Operators on lists of tensors, and the fused steps of the optimizers.
#include "op.h"
#include "ops/single.h"
#include "ops/number.h"

#include <ATen/Functions.h>

using sim::number;

#define FOR_EACH_OUT for (size_t i = 0; i < out.size(); ++i)

#define EACH_UNARY(op, fn) \
  ACLNN(Foreach##op, tensors(self), outs(out)) { FOR_EACH_OUT at::fn##_out(out[i], self[i]); }
EACH_UNARY(Abs, abs)
EACH_UNARY(Acos, acos)
EACH_UNARY(Asin, asin)
EACH_UNARY(Atan, atan)
EACH_UNARY(Cos, cos)
EACH_UNARY(Cosh, cosh)
EACH_UNARY(Erf, erf)
EACH_UNARY(Erfc, erfc)
EACH_UNARY(Exp, exp)
EACH_UNARY(Expm1, expm1)
EACH_UNARY(Log, log)
EACH_UNARY(Log10, log10)
EACH_UNARY(Log1p, log1p)
EACH_UNARY(Log2, log2)
EACH_UNARY(Neg, neg)
EACH_UNARY(Reciprocal, reciprocal)
EACH_UNARY(Sigmoid, sigmoid)
EACH_UNARY(Sign, sign)
EACH_UNARY(Sin, sin)
EACH_UNARY(Sinh, sinh)
EACH_UNARY(Sqrt, sqrt)
EACH_UNARY(Tan, tan)
EACH_UNARY(Tanh, tanh)


// The second operand: a list, one number, or a list of numbers.
#define EACH_SCALED(op, fn)                                                                    \
  ACLNN(Foreach##op##ListV2, tensors(self), tensors(other), scalar(alpha), outs(out)) {        \
    FOR_EACH_OUT at::fn##_out(out[i], self[i], other[i], alpha);                               \
  }                                                                                            \
  EACH_WITH_NUMBERS(op, fn)
#define EACH_BINARY(op, fn)                                                      \
  ACLNN(Foreach##op##List, tensors(self), tensors(other), outs(out)) {           \
    FOR_EACH_OUT at::fn##_out(out[i], self[i], other[i]);                        \
  }                                                                              \
  EACH_WITH_NUMBERS(op, fn)
#define EACH_WITH_NUMBERS(op, fn)                                                \
  ACLNN(Foreach##op##ScalarV2, tensors(self), scalar(other), outs(out)) {        \
    FOR_EACH_OUT at::fn##_out(out[i], self[i], number(other));                   \
  }                                                                              \
  ACLNN(Foreach##op##ScalarList, tensors(self), scalars(other), outs(out)) {     \
    FOR_EACH_OUT at::fn##_out(out[i], self[i], number(other[i]));                \
  }
EACH_SCALED(Add, add)
EACH_SCALED(Sub, sub)
EACH_BINARY(Mul, mul)
EACH_BINARY(Div, div)
EACH_BINARY(Maximum, maximum)
EACH_BINARY(Minimum, minimum)
// Powers with a number are not the powers with a tensor: squares and roots are computed as such.
ACLNN(ForeachPowList, tensors(self), tensors(exponent), outs(out)) {
  FOR_EACH_OUT at::pow_out(out[i], self[i], exponent[i]);
}
ACLNN(ForeachPowScalarV2, tensors(self), scalar(exponent), outs(out)) {
  FOR_EACH_OUT at::pow_out(out[i], self[i], exponent);
}
ACLNN(ForeachPowScalarList, tensors(self), scalars(exponent), outs(out)) {
  FOR_EACH_OUT at::pow_out(out[i], self[i], exponent[i]);
}
ACLNN(ForeachPowScalarAndTensor, scalar(self), tensors(exponent), outs(out)) {
  FOR_EACH_OUT at::pow_out(out[i], self, exponent[i]);
}

// A list of factors arrives as a tensor.
#define EACH_TERNARY(op, fn)                                                                                     \
  ACLNN(Foreach##op##ScalarV2, tensors(self), tensors(a), tensors(b), scalar(value), outs(out)) {                \
    FOR_EACH_OUT at::fn##_out(out[i], self[i], a[i], b[i], value);                                               \
  }                                                                                                              \
  ACLNN(Foreach##op##ScalarList, tensors(self), tensors(a), tensors(b), tensor(values), outs(out)) {             \
    FOR_EACH_OUT at::fn##_out(out[i], self[i], a[i], b[i], values[i].item());                                    \
  }
EACH_TERNARY(Addcmul, addcmul)
EACH_TERNARY(Addcdiv, addcdiv)
ACLNN(ForeachLerpScalar, tensors(self), tensors(end), scalar(weight), outs(out)) {
  FOR_EACH_OUT at::lerp_out(out[i], self[i], end[i], weight);
}
ACLNN(ForeachLerpList, tensors(self), tensors(end), tensors(weight), outs(out)) {
  FOR_EACH_OUT at::lerp_out(out[i], self[i], end[i], weight[i]);
}
ACLNN(ForeachNorm, tensors(self), scalar(ord), outs(out)) {
  FOR_EACH_OUT at::linalg_vector_norm_out(out[i], self[i], ord);
}
ACLNN(ForeachCopy, tensors(src), outs(out)) { FOR_EACH_OUT out[i].copy_(src[i]); }
ACLNN(ForeachZeroInplace, outs(out)) { FOR_EACH_OUT out[i].zero_(); }
ACLNN(ForeachRoundOffNumberV2, tensors(self), scalar(mode), outs(out)) {
  FOR_EACH_OUT switch (mode.toInt()) {
    case 1: at::round_out(out[i], self[i]); break;
    case 2: at::floor_out(out[i], self[i]); break;
    case 3: at::ceil_out(out[i], self[i]); break;
    case 5: at::trunc_out(out[i], self[i]); break;
    case 7: at::frac_out(out[i], self[i]); break;
    default: TORCH_CHECK(false, "rounding mode ", mode, " is not simulated");
  }
}

ACLNN(ForeachNonFiniteCheckAndUnscale, inouts(gradients), inout(found_inf), tensor(inverse_scale)) {
  at::_amp_foreach_non_finite_check_and_unscale_(gradients, found_inf, inverse_scale);
}
ACLNN(
    AmpUpdateScale, inout(scale), inout(growth_tracker), tensor(found_inf), real(growth), real(backoff),
    int64(interval), out(scale_out), out(growth_tracker_out)) {
  at::_amp_update_scale_(scale, growth_tracker, found_inf, growth, backoff, interval);
}
ACLNN(
    ApplyAdamWV2, inout(parameter), inout(average), inout(square), inout(max_square), tensor(gradient),
    tensor(step), single(rate), single(beta1), single(beta2), single(weight_decay), single(epsilon), flag(amsgrad),
    flag(maximize)) {
  const auto largest = amsgrad ? std::vector{max_square} : std::vector<at::Tensor>();
  at::_fused_adamw_(
      {parameter}, {gradient}, {average}, {square}, largest, {step.add(1)}, widen(rate), widen(beta1), widen(beta2),
      widen(weight_decay), widen(epsilon), amsgrad, maximize);
}
ACLNN(
    FusedSgd, inouts(parameters), inouts(gradients), inouts(momenta), tensor(gradient_scale), single(weight_decay),
    single(momentum), single(rate), single(dampening), flag(nesterov), flag(maximize), flag(first)) {
  const auto scale = gradient_scale.defined() ? std::optional(gradient_scale) : std::nullopt;
  at::_fused_sgd_(
      parameters, gradients, momenta, widen(weight_decay), widen(momentum), widen(rate), widen(dampening), nesterov,
      maximize, first, scale);
}
