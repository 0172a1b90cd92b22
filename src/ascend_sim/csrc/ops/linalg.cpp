// Products of matrices, and decompositions. The strides of an operand choose the BLAS path, so they are kept.
#include "op.h"
#include "ops/single.h"

#include <ATen/Functions.h>
#include <cmath>

ACLNN(Mm, tensor(self), tensor(mat2), out(out), int8(cube_math_type)) {
  at::mm_out(out, self, mat2);
}
ACLNN(Matmul, tensor(self), tensor(mat2), out(out), int8(cube_math_type)) {
  at::matmul_out(out, self, mat2);
}
ACLNN(BatchMatMul, tensor(self), tensor(mat2), out(out), int8(cube_math_type)) {
  // torch_npu may take back a broadcast over the batch, which the CPU would have seen.
  const auto whole = [&](const at::Tensor& t) { return t.expand({out.size(0), t.size(1), t.size(2)}); };
  at::bmm_out(out, whole(self), whole(mat2));
}
ACLNN(Mv, tensor(self), tensor(vec), out(out), int8(cube_math_type)) {
  at::mv_out(out, self, vec);
}
ACLNN(Dot, tensor(self), tensor(other), out(out)) {
  at::dot_out(out, self, other);
}
ACLNN(Addmm, tensor(self), tensor(mat1), tensor(mat2), scalar(beta), scalar(alpha), out(out), int8(cube_math_type)) {
  at::addmm_out(out, self, mat1, mat2, beta, alpha);
}
ACLNN(InplaceAddmm, inout(self), tensor(mat1), tensor(mat2), scalar(beta), scalar(alpha), int8(cube_math_type)) {
  self.addmm_(mat1, mat2, beta, alpha);
}
ACLNN(
    Addbmm, tensor(self), tensor(batch1), tensor(batch2), scalar(beta), scalar(alpha), out(out),
    int8(cube_math_type)) {
  at::addbmm_out(out, self, batch1, batch2, beta, alpha);
}
ACLNN(
    Baddbmm, tensor(self), tensor(batch1), tensor(batch2), scalar(beta), scalar(alpha), out(out),
    int8(cube_math_type)) {
  at::baddbmm_out(out, self, batch1, batch2, beta, alpha);
}
ACLNN(Addmv, tensor(self), tensor(mat), tensor(vec), scalar(alpha), scalar(beta), out(out), int8(cube_math_type)) {
  at::addmv_out(out, self, mat, vec, beta, alpha);
}
ACLNN(Addr, tensor(self), tensor(vec1), tensor(vec2), scalar(beta), scalar(alpha), out(out)) {
  at::addr_out(out, self, vec1, vec2, beta, alpha);
}
ACLNN(InplaceAddr, inout(self), tensor(vec1), tensor(vec2), scalar(beta), scalar(alpha)) {
  self.addr_(vec1, vec2, beta, alpha);
}

ACLNN(Inverse, tensor(self), out(out)) { out.copy_(at::linalg_inv(self)); }
ACLNN(LinalgCholesky, tensor(self), flag(upper), out(out)) { out.copy_(at::linalg_cholesky(self, upper)); }
ACLNN(LinalgCross, tensor(self), tensor(other), int64(dim), out(out)) {
  at::linalg_cross_out(out, self, other, dim);
}
ACLNN(LinalgQr, tensor(self), int64(mode), out(q), out(r)) {
  static const char* const modes[] = {"reduced", "complete", "r"};
  const auto [orthogonal, triangular] = at::linalg_qr(self, modes[mode]);
  if (q.numel()) {
    q.copy_(orthogonal);
  }
  r.copy_(triangular);
}
ACLNN(Slogdet, tensor(self), out(sign), out(logarithm)) {
  const auto [result, value] = at::linalg_slogdet(self);
  sign.copy_(result);
  logarithm.copy_(value);
}
ACLNN(Svd, tensor(self), flag(full), flag(vectors), out(s), out(u), out(v)) {
  const auto [left, values, right] = at::_linalg_svd(self, full, vectors);
  s.copy_(values);
  if (vectors) {
    u.copy_(left);
    v.copy_(right.mT());
  }
}
static bool by_columns(const at::Tensor& t) {
  return t.stride(-2) == 1 && t.stride(-1) != 1;
}
// One operator for functions that the CPU computes by different routines: triangular_solve lays out its result by
// columns, and linalg.solve_triangular makes of a solve from the right one from the left, of the transposes.
ACLNN(
    TriangularSolve, tensor(self), tensor(a), flag(upper), flag(transpose), flag(unit), out(out), out(copy)) {
  if (by_columns(out)) {
    out.copy_(std::get<0>(at::triangular_solve(self, a, upper, transpose, unit)));
  } else if (by_columns(self)) {
    out.copy_(at::linalg_solve_triangular(a.mT(), self.mT(), !upper, /*left=*/false, unit).mT());
  } else {
    out.copy_(at::linalg_solve_triangular(a, self, upper, /*left=*/true, unit));
  }
  copy.copy_(a);
}

// Distances. The power arrives in single precision.
ACLNN(Cdist, tensor(x1), tensor(x2), single(p), int64(mode), out(out)) {
  out.copy_(at::_cdist_forward(x1, x2, widen(p), mode ? std::optional(mode) : std::nullopt));
}
ACLNN(CdistBackward, tensor(grad), tensor(x1), tensor(x2), tensor(distances), single(p), out(out)) {
  out.copy_(at::_cdist_backward(grad, x1, x2, p < 0 ? INFINITY : widen(p), distances));
}
ACLNN(Pdist, tensor(self), single(p), out(out)) { out.copy_(at::_pdist_forward(self, widen(p))); }
