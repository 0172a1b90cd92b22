// Reading and writing at computed places, and the order of elements.
#include "op.h"

#include <ATen/Functions.h>

namespace {

// The caller puts an empty tensor where a dimension is not indexed.
c10::List<std::optional<at::Tensor>> indices_of(const std::vector<at::Tensor>& tensors) {
  c10::List<std::optional<at::Tensor>> indices;
  for (const auto& index : tensors) {
    indices.push_back(index.numel() ? std::optional(index) : std::nullopt);
  }
  return indices;
}

at::Tensor to_long(const at::Tensor& index) {
  return index.to(at::kLong);
}

} // namespace

ACLNN(Index, tensor(self), tensors(indices), tensor(out)) {
  if (out.numel()) { // without elements a truly empty index looks like no index
    at::index_out(out, self, indices_of(indices));
  }
}
ACLNN(IndexPutImpl, tensor(self), tensors(indices), tensor(values), flag(accumulate), flag(unsafe)) {
  const auto places = indices_of(indices);
  for (const auto& place : places) {
    if (std::optional<at::Tensor>(place)) {
      at::_index_put_impl_(self, places, values, accumulate, unsafe);
      return;
    }
  }
}
ACLNN(IndexSelect, tensor(self), int64(dim), tensor(index), tensor(out)) {
  at::index_select_out(out, self, dim, index);
}
ACLNN(Gather, tensor(self), int64(dim), tensor(index), tensor(out)) {
  at::gather_out(out, self, dim, to_long(index));
}
ACLNN(Take, tensor(self), tensor(index), tensor(out)) { at::take_out(out, self, to_long(index)); }

// How a scatter combines what meets in one place, by the number that op-plugin gives it.
static const char* const reductions[] = {"none", "add", "multiply"};

ACLNN(Scatter, tensor(self), int64(dim), tensor(index), tensor(src), int64(reduction), tensor(out)) {
  reduction ? at::scatter_out(out, self, dim, to_long(index), src, reductions[reduction])
            : at::scatter_out(out, self, dim, to_long(index), src);
}
ACLNN(ScatterValue, tensor(self), int64(dim), tensor(index), scalar(value), int64(reduction), tensor(out)) {
  reduction ? at::scatter_out(out, self, dim, to_long(index), value, reductions[reduction])
            : at::scatter_out(out, self, dim, to_long(index), value);
}
ACLNN(InplaceScatter, tensor(self), int64(dim), tensor(index), tensor(src), int64(reduction)) {
  reduction ? self.scatter_(dim, to_long(index), src, reductions[reduction])
            : self.scatter_(dim, to_long(index), src);
}
ACLNN(InplaceScatterValue, tensor(self), int64(dim), tensor(index), scalar(value), int64(reduction)) {
  reduction ? self.scatter_(dim, to_long(index), value, reductions[reduction])
            : self.scatter_(dim, to_long(index), value);
}
ACLNN(ScatterAdd, tensor(self), int64(dim), tensor(index), tensor(src), tensor(out)) {
  at::scatter_add_out(out, self, dim, to_long(index), src);
}

ACLNN(Sort, tensor(self), flag(stable), int64(dim), flag(descending), tensor(values), tensor(indices)) {
  at::sort_out(values, indices, self, stable, dim, descending);
}
ACLNN(
    Topk, tensor(self), int64(k), int64(dim), flag(largest), flag(sorted), tensor(values), tensor(indices)) {
  at::topk_out(values, indices, self, k, dim, largest, sorted);
}

// Sizes that depend on the data. torch_npu waits for these operators, which is why a capture refuses them.
ACLNN(Nonzero, tensor(self), sized(out)) { sim::resize_output(out, at::nonzero(self)); }
ACLNN(NonzeroV2, tensor(self), sized(out)) { sim::resize_output(out, at::nonzero(self).t()); }
ACLNN(MaskedSelect, tensor(self), tensor(mask), sized(out)) {
  sim::resize_output(out, at::masked_select(self, mask.to(at::kBool)));
}
