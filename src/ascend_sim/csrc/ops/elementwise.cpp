// One result element from the operands' elements at the same place: arithmetic, comparisons, logic, fills.
#include "op.h"
#include "ops/number.h"

#include <ATen/Functions.h>

using sim::number;

// A scalar that may be absent.
#define SIM_C_bound(x) const aclScalar* x
#define SIM_BODY_bound(x) [[maybe_unused]] std::optional<at::Scalar> x
#define SIM_NAME_bound(x) x
template <>
struct sim::Arg<const aclScalar*> : sim::HandleArg<aclScalar> {
  using HandleArg::HandleArg;
  std::optional<at::Scalar> get() { return held ? std::optional(held->value) : std::nullopt; }
};

namespace {

std::optional<c10::string_view> rounding(int mode) {
  switch (mode) {
    case 0: return std::nullopt;
    case 1: return "trunc";
    case 2: return "floor";
  }
  TORCH_CHECK(false, "rounding mode ", mode, " is not simulated");
}

std::optional<at::Tensor> optional(const at::Tensor& t) {
  return t.defined() ? std::optional(t) : std::nullopt;
}

} // namespace

#define UNARY(op, fn) \
  ACLNN(op, tensor(self), out(out)) { at::fn##_out(out, self); }
#define UNARY_AND_INPLACE(op, fn) \
  UNARY(op, fn)                   \
  ACLNN(Inplace##op, inout(self)) { at::fn##_out(self, self); }

UNARY(Abs, abs)
UNARY(AngleV2, angle)
UNARY(BitwiseNot, bitwise_not)
UNARY(Neg, neg)
UNARY(Round, round)
UNARY(Sign, sgn) // of complex numbers too
UNARY(Signbit, signbit)
UNARY(Trunc, trunc)
UNARY(IsNegInf, isneginf)
UNARY(IsPosInf, isposinf)
UNARY_AND_INPLACE(Acos, acos)
UNARY_AND_INPLACE(Acosh, acosh)
UNARY_AND_INPLACE(Asin, asin)
UNARY_AND_INPLACE(Asinh, asinh)
UNARY_AND_INPLACE(Atan, atan)
UNARY_AND_INPLACE(Atanh, atanh)
UNARY_AND_INPLACE(Ceil, ceil)
UNARY_AND_INPLACE(Cos, cos)
UNARY_AND_INPLACE(Cosh, cosh)
UNARY_AND_INPLACE(Erf, erf)
UNARY_AND_INPLACE(Erfc, erfc)
UNARY_AND_INPLACE(Erfinv, erfinv)
UNARY_AND_INPLACE(Exp, exp)
UNARY_AND_INPLACE(Exp2, exp2)
UNARY_AND_INPLACE(Expm1, expm1)
UNARY_AND_INPLACE(Floor, floor)
UNARY_AND_INPLACE(Frac, frac)
UNARY_AND_INPLACE(Log, log)
UNARY_AND_INPLACE(Log10, log10)
UNARY_AND_INPLACE(Log1p, log1p)
UNARY_AND_INPLACE(Log2, log2)
UNARY_AND_INPLACE(LogicalNot, logical_not)
UNARY_AND_INPLACE(Reciprocal, reciprocal)
UNARY_AND_INPLACE(Rsqrt, rsqrt)
UNARY_AND_INPLACE(Sin, sin)
UNARY_AND_INPLACE(Sinc, sinc)
UNARY_AND_INPLACE(Sinh, sinh)
UNARY_AND_INPLACE(Sqrt, sqrt)
UNARY_AND_INPLACE(Tan, tan)
ACLNN(IsFinite, tensor(self), out(out)) { out.copy_(at::isfinite(self)); }
ACLNN(RoundDecimals, tensor(self), int64(decimals), out(out)) { at::round_out(out, self, decimals); }
ACLNN(InplaceRoundDecimals, inout(self), int64(decimals)) { at::round_out(self, self, decimals); }
ACLNN(NanToNum, tensor(self), single(nan), single(posinf), single(neginf), out(out)) {
  at::nan_to_num_out(out, self, nan, posinf, neginf);
}
ACLNN(InplaceNanToNum, inout(self), single(nan), single(posinf), single(neginf)) {
  at::nan_to_num_out(self, self, nan, posinf, neginf);
}

// Sums and differences, with a factor for the second operand.
#define SCALED(op, fn)                                                        \
  ACLNN(op, tensor(self), tensor(other), scalar(alpha), out(out)) {           \
    at::fn##_out(out, self, other, alpha);                                    \
  }                                                                           \
  ACLNN(op##s, tensor(self), scalar(other), scalar(alpha), out(out)) {        \
    at::fn##_out(out, self, number(other), alpha);                            \
  }                                                                           \
  ACLNN(Inplace##op, inout(self), tensor(other), scalar(alpha)) {             \
    at::fn##_out(self, self, other, alpha);                                   \
  }                                                                           \
  ACLNN(Inplace##op##s, inout(self), scalar(other), scalar(alpha)) {          \
    at::fn##_out(self, self, number(other), alpha);                           \
  }
SCALED(Add, add)
SCALED(Sub, sub)
ACLNN(AddRelu, tensor(self), tensor(other), scalar(alpha), out(out)) {
  at::add_out(out, self, other, alpha).relu_();
}
ACLNN(InplaceAddRelu, inout(self), tensor(other), scalar(alpha)) { self.add_(other, alpha).relu_(); }
ACLNN(AddV3, scalar(self), tensor(other), scalar(alpha), out(out)) {
  at::add_out(out, number(self), other, alpha);
}
ACLNN(Rsub, tensor(self), tensor(other), scalar(alpha), out(out)) { at::sub_out(out, other, self, alpha); }
ACLNN(Rsubs, tensor(self), scalar(other), scalar(alpha), out(out)) {
  at::sub_out(out, number(other), self, alpha);
}

// Two operands, the second also a number, each also in place. `tensor_op` and `number_op` are the two names.
#define BINARY(tensor_op, number_op, fn)                                                                    \
  ACLNN(tensor_op, tensor(self), tensor(other), out(out)) { at::fn##_out(out, self, other); }               \
  ACLNN(number_op, tensor(self), scalar(other), out(out)) { at::fn##_out(out, self, number(other)); }       \
  ACLNN(Inplace##tensor_op, inout(self), tensor(other)) { at::fn##_out(self, self, other); }                \
  ACLNN(Inplace##number_op, inout(self), scalar(other)) { at::fn##_out(self, self, number(other)); }
BINARY(Mul, Muls, mul)
BINARY(Div, Divs, div)
BINARY(FloorDivide, FloorDivides, floor_divide)
BINARY(EqTensor, EqScalar, eq)
BINARY(NeTensor, NeScalar, ne)
BINARY(GeTensor, GeScalar, ge)
BINARY(GtTensor, GtScalar, gt)
BINARY(LeTensor, LeScalar, le)
BINARY(LtTensor, LtScalar, lt)
BINARY(FmodTensor, FmodScalar, fmod)
BINARY(RemainderTensorTensor, RemainderTensorScalar, remainder)
BINARY(BitwiseAndTensor, BitwiseAndScalar, bitwise_and)
BINARY(BitwiseXorTensor, BitwiseXorScalar, bitwise_xor)
ACLNN(BitwiseOrTensor, tensor(self), tensor(other), out(out)) { at::bitwise_or_out(out, self, other); }
ACLNN(BitwiseOrScalar, tensor(self), scalar(other), out(out)) { at::bitwise_or_out(out, self, number(other)); }
ACLNN(RemainderScalarTensor, scalar(self), tensor(other), out(out)) {
  at::remainder_out(out, number(self), other);
}
ACLNN(DivMod, tensor(self), tensor(other), int32(mode), out(out)) {
  at::div_out(out, self, other, rounding(mode));
}
ACLNN(DivMods, tensor(self), scalar(other), int32(mode), out(out)) {
  at::div_out(out, self, number(other), rounding(mode));
}
ACLNN(InplaceDivMod, inout(self), tensor(other), int32(mode)) { at::div_out(self, self, other, rounding(mode)); }
ACLNN(InplaceDivMods, inout(self), scalar(other), int32(mode)) {
  at::div_out(self, self, number(other), rounding(mode));
}
// Powers with a number are not the powers with a tensor: squares and roots are computed as such.
ACLNN(PowTensorTensor, tensor(self), tensor(exponent), out(out)) { at::pow_out(out, self, exponent); }
ACLNN(PowTensorScalar, tensor(self), scalar(exponent), out(out)) { at::pow_out(out, self, exponent); }
ACLNN(PowScalarTensor, scalar(self), tensor(exponent), out(out)) { at::pow_out(out, self, exponent); }
ACLNN(InplacePowTensorTensor, inout(self), tensor(exponent)) { at::pow_out(self, self, exponent); }
ACLNN(InplacePowTensorScalar, inout(self), scalar(exponent)) { at::pow_out(self, self, exponent); }

#define TWO_TENSORS(op, fn) \
  ACLNN(op, tensor(self), tensor(other), out(out)) { at::fn##_out(out, self, other); }
TWO_TENSORS(Maximum, maximum)
TWO_TENSORS(Minimum, minimum)
TWO_TENSORS(Atan2, atan2)
TWO_TENSORS(LogicalAnd, logical_and)
TWO_TENSORS(LogicalOr, logical_or)
TWO_TENSORS(LogicalXor, logical_xor)
TWO_TENSORS(LogAddExp, logaddexp)
TWO_TENSORS(LogAddExp2, logaddexp2)
TWO_TENSORS(Gcd, gcd)
TWO_TENSORS(LeftShift, bitwise_left_shift)
TWO_TENSORS(RightShift, bitwise_right_shift)
TWO_TENSORS(XLogYTensor, xlogy)
TWO_TENSORS(Complex, complex)
TWO_TENSORS(Polar, polar)
ACLNN(InplaceAtan2, inout(self), tensor(other)) { at::atan2_out(self, self, other); }
ACLNN(InplaceLogicalAnd, inout(self), tensor(other)) { at::logical_and_out(self, self, other); }
ACLNN(InplaceLogicalOr, inout(self), tensor(other)) { at::logical_or_out(self, self, other); }
ACLNN(LeftShifts, tensor(self), scalar(other), out(out)) {
  at::bitwise_left_shift_out(out, self, number(other));
}
ACLNN(XLogYScalarOther, tensor(self), scalar(other), out(out)) { at::xlogy_out(out, self, other); }
ACLNN(XLogYScalarSelf, scalar(self), tensor(other), out(out)) { at::xlogy_out(out, self, other); }
ACLNN(InplaceXLogYScalarOther, inout(self), scalar(other)) { at::xlogy_out(self, self, other); }
ACLNN(IsClose, tensor(self), tensor(other), real(rtol), real(atol), flag(equal_nan), out(out)) {
  out.copy_(at::isclose(self, other, rtol, atol, equal_nan));
}

ACLNN(Addcmul, tensor(self), tensor(a), tensor(b), scalar(value), out(out)) {
  at::addcmul_out(out, self, a, b, value);
}
ACLNN(Addcdiv, tensor(self), tensor(a), tensor(b), scalar(value), out(out)) {
  at::addcdiv_out(out, self, a, b, value);
}
ACLNN(InplaceAddcmul, inout(self), tensor(a), tensor(b), scalar(value)) {
  at::addcmul_out(self, self, a, b, value);
}
ACLNN(InplaceAddcdiv, inout(self), tensor(a), tensor(b), scalar(value)) {
  at::addcdiv_out(self, self, a, b, value);
}
ACLNN(Lerp, tensor(self), tensor(end), tensor(weight), out(out)) { at::lerp_out(out, self, end, weight); }
ACLNN(Lerps, tensor(self), tensor(end), scalar(weight), out(out)) { at::lerp_out(out, self, end, weight); }
ACLNN(InplaceLerp, inout(self), tensor(end), tensor(weight)) { at::lerp_out(self, self, end, weight); }
ACLNN(InplaceLerps, inout(self), tensor(end), scalar(weight)) { at::lerp_out(self, self, end, weight); }
ACLNN(SWhere, tensor(condition), tensor(self), tensor(other), out(out)) {
  at::where_out(out, condition, self, other);
}

ACLNN(Clamp, tensor(self), bound(low), bound(high), out(out)) { at::clamp_out(out, self, low, high); }
ACLNN(ClampTensor, tensor(self), tensor(low), tensor(high), out(out)) {
  at::clamp_out(out, self, optional(low), optional(high));
}
ACLNN(ClampMin, tensor(self), scalar(low), out(out)) { at::clamp_min_out(out, self, low); }
ACLNN(ClampMax, tensor(self), scalar(high), out(out)) { at::clamp_max_out(out, self, high); }
ACLNN(ClampMinTensor, tensor(self), tensor(low), out(out)) { at::clamp_min_out(out, self, low); }
ACLNN(ClampMaxTensor, tensor(self), tensor(high), out(out)) { at::clamp_max_out(out, self, high); }
ACLNN(InplaceClampMax, inout(self), scalar(high)) { at::clamp_max_out(self, self, high); }
ACLNN(InplaceClampMinTensor, inout(self), tensor(low)) { at::clamp_min_out(self, self, low); }
ACLNN(InplaceClampMaxTensor, inout(self), tensor(high)) { at::clamp_max_out(self, self, high); }

ACLNN(InplaceFillScalar, out(self), scalar(value)) { self.fill_(value); }
ACLNN(InplaceFillTensor, out(self), tensor(value)) { self.fill_(value.dim() ? value.reshape({}) : value); }
ACLNN(InplaceZero, out(self)) { self.zero_(); }
ACLNN(InplaceOne, out(self)) { self.fill_(1); }
ACLNN(InplaceMaskedFillScalar, inout(self), tensor(mask), scalar(value)) { self.masked_fill_(mask, value); }
ACLNN(InplaceMaskedFillTensor, inout(self), tensor(mask), tensor(value)) { self.masked_fill_(mask, value); }
