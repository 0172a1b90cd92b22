// Elements that only move: copies, casts, joins and splits, patterns written into a new tensor.
#include "op.h"

#include <ATen/ExpandUtils.h>
#include <ATen/Functions.h>

static std::string can_copy(const at::Tensor& self, const at::Tensor& src) {
  return at::is_expandable_to(src.sizes(), self.sizes())
      ? ""
      : c10::str("a tensor of size ", src.sizes(), " can't be copied into one of size ", self.sizes());
}
ACLNN_UNLESS(InplaceCopy, can_copy, out(self), tensor(src)) { self.copy_(src); }
ACLNN(Cast, tensor(self), dtype(type), out(out)) { out.copy_(self); }

ACLNN(Cat, tensors(inputs), int64(dim), out(out)) { at::cat_out(out, inputs, dim); }
ACLNN(Stack, tensors(inputs), int64(dim), out(out)) { at::stack_out(out, inputs, dim); }
ACLNN(SplitWithSize, tensor(self), ints(sizes), int64(dim), outs(out)) {
  at::split_with_sizes_copy_out(out, self, sizes, dim);
}
ACLNN(ChunkCat, tensors(inputs), int64(dim), int64(chunks), out(out)) {
  at::_chunk_cat_out(out, inputs, dim, chunks);
}
ACLNN(Repeat, tensor(self), ints(repeats), out(out)) { at::repeat_out(out, self, repeats); }
ACLNN(RepeatInterleave, tensor(self), tensor(repeats), int64(size), out(out)) {
  out.copy_(self.repeat_interleave(repeats, std::nullopt, size));
}
ACLNN(RepeatInterleaveInt, tensor(self), int64(repeats), int64(size), out(out)) {
  out.copy_(self.repeat_interleave(repeats, std::nullopt, size));
}
ACLNN(RepeatInterleaveWithDim, tensor(self), tensor(repeats), int64(dim), int64(size), out(out)) {
  out.copy_(self.repeat_interleave(repeats, dim, size));
}
ACLNN(RepeatInterleaveIntWithDim, tensor(self), int64(repeats), int64(dim), int64(size), out(out)) {
  out.copy_(self.repeat_interleave(repeats, dim, size));
}
ACLNN(RepeatInterleaveTensor, tensor(repeats), int64(size), out(out)) {
  at::repeat_interleave_out(out, repeats, size);
}
ACLNN(RepeatInterleaveGrad, tensor(gradient), tensor(repeats), int64(dim), out(out)) {
  out.zero_().index_add_(dim, at::repeat_interleave(repeats), gradient);
}
ACLNN(Flip, tensor(self), ints(dims), out(out)) { at::flip_out(out, self, dims); }
ACLNN(Roll, tensor(self), ints(shifts), ints(dims), out(out)) { at::roll_out(out, self, shifts, dims); }
ACLNN(ConstantPadNd, tensor(self), ints(pad), scalar(value), out(out)) {
  at::constant_pad_nd_out(out, self, pad, value);
}
ACLNN(ChannelShuffle, tensor(self), int64(groups), out(out)) { out.copy_(at::channel_shuffle(self, groups)); }

ACLNN(Tril, tensor(self), int64(diagonal), out(out)) { at::tril_out(out, self, diagonal); }
ACLNN(Triu, tensor(self), int64(diagonal), out(out)) { at::triu_out(out, self, diagonal); }
ACLNN(InplaceTril, inout(self), int64(diagonal)) { self.tril_(diagonal); }
ACLNN(InplaceTriu, inout(self), int64(diagonal)) { self.triu_(diagonal); }
ACLNN(InplaceFillDiagonal, inout(self), scalar(value), flag(wrap)) { self.fill_diagonal_(value, wrap); }

ACLNN(Arange, scalar(start), scalar(end), scalar(step), out(out)) { at::arange_out(out, start, end, step); }
ACLNN(Range, scalar(start), scalar(end), scalar(step), out(out)) { at::range_out(out, start, end, step); }
ACLNN(Linspace, scalar(start), scalar(end), int64(steps), out(out)) { at::linspace_out(out, start, end, steps); }
ACLNN(LogSpace, scalar(start), scalar(end), int64(steps), real(base), out(out)) {
  at::logspace_out(out, start, end, steps, base);
}
ACLNN(Eye, int64(rows), int64(columns), out(out)) { at::eye_out(out, rows, columns); }
ACLNN(OneHot, tensor(self), int64(depth), tensor(on), tensor(off), int64(axis), out(out)) {
  const auto chosen = self.unsqueeze(-1).eq(at::arange(depth, self.options()));
  out.copy_(at::where(chosen, on, off).movedim(-1, axis));
}
