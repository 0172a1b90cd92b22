// Tables of vectors.
#include "op.h"

#include <ATen/Functions.h>

ACLNN(Embedding, tensor(weight), tensor(indices), tensor(out)) {
  at::Tensor rows = out.view({indices.numel(), weight.size(-1)});
  at::index_select_out(rows, weight, 0, indices.reshape(-1));
}
ACLNN(
    EmbeddingDenseBackward, tensor(grad), tensor(indices), int64(rows), int64(padding), flag(scale_by_frequency),
    tensor(out)) {
  out.copy_(at::embedding_dense_backward(grad, indices, rows, padding, scale_by_frequency));
}
ACLNN(EmbeddingRenorm, tensor(self), tensor(indices), real(max_norm), real(norm_type)) {
  at::embedding_renorm_(self, indices, max_norm, norm_type);
}
