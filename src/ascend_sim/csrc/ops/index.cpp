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

ACLNN(Index, tensor(self), tensors(indices), out(out)) {
  if (out.numel()) { // without elements a truly empty index looks like no index
    at::index_out(out, self, indices_of(indices));
  }
}
ACLNN(IndexPutImpl, inout(self), tensors(indices), tensor(values), flag(accumulate), flag(unsafe)) {
  const auto places = indices_of(indices);
  for (const auto& place : places) {
    if (std::optional<at::Tensor>(place)) {
      at::_index_put_impl_(self, places, values, accumulate, unsafe);
      return;
    }
  }
}
ACLNN(IndexSelect, tensor(self), int64(dim), tensor(index), out(out)) {
  at::index_select_out(out, self, dim, index);
}
ACLNN(Gather, tensor(self), int64(dim), tensor(index), out(out)) {
  at::gather_out(out, self, dim, to_long(index));
}
ACLNN(Take, tensor(self), tensor(index), out(out)) { at::take_out(out, self, to_long(index)); }

// How a scatter combines what meets in one place, by the number that op-plugin gives it.
static const char* const reductions[] = {"none", "add", "multiply"};

ACLNN(Scatter, tensor(self), int64(dim), tensor(index), tensor(src), int64(reduction), out(out)) {
  reduction ? at::scatter_out(out, self, dim, to_long(index), src, reductions[reduction])
            : at::scatter_out(out, self, dim, to_long(index), src);
}
ACLNN(ScatterValue, tensor(self), int64(dim), tensor(index), scalar(value), int64(reduction), out(out)) {
  reduction ? at::scatter_out(out, self, dim, to_long(index), value, reductions[reduction])
            : at::scatter_out(out, self, dim, to_long(index), value);
}
ACLNN(InplaceScatter, inout(self), int64(dim), tensor(index), tensor(src), int64(reduction)) {
  reduction ? self.scatter_(dim, to_long(index), src, reductions[reduction])
            : self.scatter_(dim, to_long(index), src);
}
ACLNN(InplaceScatterValue, inout(self), int64(dim), tensor(index), scalar(value), int64(reduction)) {
  reduction ? self.scatter_(dim, to_long(index), value, reductions[reduction])
            : self.scatter_(dim, to_long(index), value);
}
ACLNN(ScatterAdd, tensor(self), int64(dim), tensor(index), tensor(src), out(out)) {
  at::scatter_add_out(out, self, dim, to_long(index), src);
}

ACLNN(Sort, tensor(self), flag(stable), int64(dim), flag(descending), out(values), out(indices)) {
  at::sort_out(values, indices, self, stable, dim, descending);
}
ACLNN(
    Topk, tensor(self), int64(k), int64(dim), flag(largest), flag(sorted), out(values), out(indices)) {
  at::topk_out(values, indices, self, k, dim, largest, sorted);
}

// Sizes that depend on the data. torch_npu waits for these operators, which is why a capture refuses them.
ACLNN(Nonzero, tensor(self), sized(out)) { sim::resize_output(out, at::nonzero(self)); }
ACLNN(NonzeroV2, tensor(self), sized(out)) { sim::resize_output(out, at::nonzero(self).t()); }
ACLNN(MaskedSelect, tensor(self), tensor(mask), sized(out)) {
  sim::resize_output(out, at::masked_select(self, mask.to(at::kBool)));
}
ACLNN(Unique, tensor(self), flag(sorted), flag(inverse), sized(out), out(places)) {
  const auto [values, found] = at::_unique(self, sorted, inverse);
  sim::resize_output(out, values);
  if (inverse) {
    places.copy_(found);
  }
}
ACLNN(Unique2, tensor(self), flag(sorted), flag(inverse), flag(counts), sized(out), out(places), sized(numbers)) {
  const auto [values, found, counted] = at::_unique2(self, sorted, inverse, counts);
  sim::resize_output(out, values);
  if (inverse) {
    places.copy_(found);
  }
  if (counts) {
    sim::resize_output(numbers, counted);
  }
}
ACLNN(UniqueDim, tensor(self), flag(sorted), flag(inverse), int64(dim), sized(out), out(places), sized(numbers)) {
  const auto [values, found, counted] = at::unique_dim(self, dim, sorted, inverse, true);
  sim::resize_output(out, values);
  if (inverse) {
    places.copy_(found);
  }
  sim::resize_output(numbers, counted);
}
// A dimension of 1000 stands for none.
ACLNN(
    UniqueConsecutive, tensor(self), flag(inverse), flag(counts), int64(dim), sized(out), out(places),
    sized(numbers)) {
  const auto [values, found, counted] =
      at::unique_consecutive(self, inverse, counts, dim == 1000 ? std::nullopt : std::optional(dim));
  sim::resize_output(out, values);
  if (inverse) {
    places.copy_(found);
  }
  if (counts) {
    sim::resize_output(numbers, counted);
  }
}

ACLNN(IndexAdd, tensor(self), int64(dim), tensor(index), tensor(source), scalar(alpha), out(out)) {
  at::index_add_out(out, self, dim, index, source, alpha);
}
ACLNN(
    IndexAddV2, tensor(self), int64(dim), tensor(index), tensor(source), scalar(alpha), int64(mode), out(out)) {
  at::index_add_out(out, self, dim, index, source, alpha);
}
ACLNN(IndexCopy, tensor(self), int64(dim), tensor(index), tensor(source), out(out)) {
  at::index_copy_out(out, self, dim, to_long(index), source);
}
ACLNN(InplaceIndexCopy, inout(self), int64(dim), tensor(index), tensor(source)) {
  self.index_copy_(dim, to_long(index), source);
}
ACLNN(IndexFill, tensor(self), int64(dim), tensor(index), scalar(value), out(out)) {
  out.copy_(self.index_fill(dim, to_long(index), value));
}
ACLNN(InplaceIndexFill, inout(self), int64(dim), tensor(index), scalar(value)) {
  self.index_fill_(dim, to_long(index), value);
}
ACLNN(InplacePut, inout(self), tensor(index), tensor(source), flag(accumulate)) {
  self.put_(to_long(index), source, accumulate);
}
ACLNN(InplaceMaskedScatter, inout(self), tensor(mask), tensor(source)) {
  self.masked_scatter_(mask.to(at::kBool), source);
}

static const char* const reduce_names[] = {"none", "sum", "prod", "amax", "amin", "mean"};

ACLNN(
    ScatterReduce, tensor(self), int64(dim), tensor(index), tensor(src), int64(reduction), flag(include_self),
    out(out)) {
  at::scatter_reduce_out(out, self, dim, to_long(index), src, reduce_names[reduction], include_self);
}
ACLNN(
    InplaceScatterReduce, inout(self), int64(dim), tensor(index), tensor(src), int64(reduction),
    flag(include_self)) {
  self.scatter_reduce_(dim, to_long(index), src, reduce_names[reduction], include_self);
}

ACLNN(
    SearchSorted, tensor(sorted), tensor(self), flag(int32), flag(right), tensor(sorter), out(out)) {
  at::searchsorted_out(
      out, sorted, self, int32, right, std::nullopt, sorter.defined() ? std::optional(sorter) : std::nullopt);
}
ACLNN(SearchSorteds, tensor(sorted), scalar(self), flag(int32), flag(right), tensor(sorter), out(out)) {
  out.copy_(at::searchsorted(
      sorted, self, int32, right, std::nullopt, sorter.defined() ? std::optional(sorter) : std::nullopt));
}
ACLNN(Bucketize, tensor(self), tensor(boundaries), flag(int32), flag(right), out(out)) {
  at::bucketize_out(out, self, boundaries, int32, right);
}
ACLNN(Kthvalue, tensor(self), int64(k), int64(dim), flag(keepdim), out(values), out(indices)) {
  at::kthvalue_out(values, indices, self, k, dim, keepdim);
}
ACLNN(IsInTensorScalar, tensor(self), scalar(value), flag(unique), flag(invert), out(out)) {
  at::isin_out(out, self, value, unique, invert);
}
ACLNN(IsInScalarTensor, scalar(value), tensor(tests), flag(unique), flag(invert), out(out)) {
  out.copy_(at::isin(value, tests, unique, invert));
}
ACLNN(UnfoldGrad, tensor(grad), ints(sizes), int64(dim), int64(size), int64(step), out(out)) {
  out.copy_(at::unfold_backward(grad, sizes, dim, size, step));
}
