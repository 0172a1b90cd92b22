// Products of matrices, and decompositions. The strides of an operand choose the BLAS path, so they are kept.
#include "op.h"

#include <ATen/Functions.h>

ACLNN(Mm, tensor(self), tensor(mat2), tensor(out), int8(cube_math_type)) {
  at::mm_out(out, self, mat2);
}
ACLNN(Matmul, tensor(self), tensor(mat2), tensor(out), int8(cube_math_type)) {
  at::matmul_out(out, self, mat2);
}
ACLNN(BatchMatMul, tensor(self), tensor(mat2), tensor(out), int8(cube_math_type)) {
  at::bmm_out(out, self, mat2);
}
ACLNN(Mv, tensor(self), tensor(vec), tensor(out), int8(cube_math_type)) {
  at::mv_out(out, self, vec);
}
ACLNN(Dot, tensor(self), tensor(other), tensor(out)) {
  at::dot_out(out, self, other);
}
ACLNN(Addmm, tensor(self), tensor(mat1), tensor(mat2), scalar(beta), scalar(alpha), tensor(out), int8(cube_math_type)) {
  at::addmm_out(out, self, mat1, mat2, beta, alpha);
}
ACLNN(InplaceAddmm, tensor(self), tensor(mat1), tensor(mat2), scalar(beta), scalar(alpha), int8(cube_math_type)) {
  self.addmm_(mat1, mat2, beta, alpha);
}
ACLNN(
    Addbmm, tensor(self), tensor(batch1), tensor(batch2), scalar(beta), scalar(alpha), tensor(out),
    int8(cube_math_type)) {
  at::addbmm_out(out, self, batch1, batch2, beta, alpha);
}
ACLNN(
    Baddbmm, tensor(self), tensor(batch1), tensor(batch2), scalar(beta), scalar(alpha), tensor(out),
    int8(cube_math_type)) {
  at::baddbmm_out(out, self, batch1, batch2, beta, alpha);
}
ACLNN(Addmv, tensor(self), tensor(mat), tensor(vec), scalar(alpha), scalar(beta), tensor(out), int8(cube_math_type)) {
  at::addmv_out(out, self, mat, vec, beta, alpha);
}
ACLNN(Addr, tensor(self), tensor(vec1), tensor(vec2), scalar(beta), scalar(alpha), tensor(out)) {
  at::addr_out(out, self, vec1, vec2, beta, alpha);
}
ACLNN(InplaceAddr, tensor(self), tensor(vec1), tensor(vec2), scalar(beta), scalar(alpha)) {
  self.addr_(vec1, vec2, beta, alpha);
}
