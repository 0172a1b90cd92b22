// What an operator costs, for a clock that computes times instead of kernels.
#pragma once

#include "task.h"
#include "tensor.h"

#include <c10/util/ArrayRef.h>
#include <string_view>

namespace sim {

// The arguments of an operator that say what it costs, each kind in the order of the parameters.
struct Call {
  explicit Call(const Accesses& tensors);
  c10::SmallVector<const aclTensor*, 8> read, written; // without what the caller left out; an inout is in both
  c10::SmallVector<at::IntArrayRef, 4> lists;
  c10::SmallVector<bool, 8> flags;
  at::ArrayRef<bool> mask;
  std::string_view text;
};

// Found once for each name. Null where the rule is: no products, and all of each tensor.
struct Cost {
  double (*flops)(const Call&);
  double (*touched)(const Call&); // how many elements of the first tensor, which is a table
};
Cost cost_of(std::string_view name);

} // namespace sim
