// A Python number as an operand: it does not widen the type of the tensor beside it.
#pragma once

#include <ATen/ScalarOps.h>

namespace sim {

inline at::Tensor number(const at::Scalar& value) {
  return at::native::wrapped_scalar_tensor(value);
}

} // namespace sim
