// The handles that operators take. They are ours to define: a tensor is an at::Tensor over device memory.
#pragma once

#include "block.h"
#include "common.h"

#include <ATen/core/Tensor.h>
#include <c10/util/SmallVector.h>
#include <c10/util/intrusive_ptr.h>
#include <string>
#include <vector>

namespace sim {

// A handle is destroyed right after the launch; the task that uses it holds it until it has run.
template <class T>
using Ref = c10::intrusive_ptr<T>;

at::ScalarType scalar_type(int acl_type); // throws for a type that no CPU kernel knows

} // namespace sim

struct aclTensor : c10::intrusive_ptr_target, sim::InBlock {
  // The tensor over the memory, made at its first use: that is on the device thread, and a launch costs the host less.
  at::Tensor& view();
  bool has_view() const { return view_.defined(); }
  bool is_empty() const;
  const char* first() const { return static_cast<const char*>(data) + offset * c10::elementSize(type); } // element
  size_t bytes() const; // from `data` to the end of the last element

  void* data;
  int64_t offset;
  at::ScalarType type;
  // What the caller made room for. A kernel that reshapes an output would write something else than was asked.
  c10::SmallVector<int64_t, 5> sizes, strides;

 private:
  at::Tensor view_;
};
struct aclScalar : c10::intrusive_ptr_target {
  at::Scalar value;
};
struct aclIntArray : c10::intrusive_ptr_target {
  std::vector<int64_t> values;
};
struct aclFloatArray : c10::intrusive_ptr_target {
  std::vector<double> values;
};
struct aclBoolArray : c10::intrusive_ptr_target {
  c10::SmallVector<bool, 8> values;
};
struct aclTensorList : c10::intrusive_ptr_target {
  std::vector<at::Tensor>& views(); // an undefined tensor for an item that is null

  std::vector<sim::Ref<aclTensor>> items;

 private:
  std::vector<at::Tensor> views_;
};
struct aclScalarList : c10::intrusive_ptr_target {
  std::vector<at::Scalar> values;
};
