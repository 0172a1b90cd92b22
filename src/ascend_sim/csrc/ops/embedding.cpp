// Tables of vectors.
#include "op.h"

#include <ATen/Functions.h>

ACLNN(Embedding, tensor(weight), tensor(indices), out(out)) {
  at::Tensor rows = out.view({indices.numel(), weight.size(-1)});
  at::index_select_out(rows, weight, 0, indices.reshape(-1));
}
ACLNN(
    EmbeddingDenseBackward, tensor(grad), tensor(indices), int64(rows), int64(padding), flag(scale_by_frequency),
    out(out)) {
  out.copy_(at::embedding_dense_backward(grad, indices, rows, padding, scale_by_frequency));
}
ACLNN(EmbeddingRenorm, inout(self), tensor(indices), real(max_norm), real(norm_type)) {
  at::embedding_renorm_(self, indices, max_norm, norm_type);
}

// Which of the last three outputs have room depends on the mode; the others are not read.
ACLNN(
    EmbeddingBag, tensor(weight), tensor(indices), tensor(offsets), flag(scale_by_frequency), int64(mode),
    flag(sparse), tensor(per_sample), flag(include_last), int64(padding), out(out), out(bag_of_index),
    out(bag_sizes), out(max_indices)) {
  const auto [result, bags, sizes, maxima] = at::_embedding_bag(
      weight, indices, offsets, scale_by_frequency, mode, sparse, per_sample, include_last, padding);
  out.copy_(result);
  const auto fill = [](at::Tensor& target, const at::Tensor& source) {
    target.numel() == source.numel() ? target.copy_(source.view_as(target)) : target.zero_();
  };
  fill(bag_of_index, bags);
  fill(bag_sizes, sizes);
  fill(max_indices, maxima);
}
