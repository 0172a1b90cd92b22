// Losses and their gradients.
#include "op.h"

#include <ATen/Functions.h>

namespace {

// torch_npu passes a weight of ones where there is none. In a type of 16 bits the sum of many ones is not their number.
at::Tensor class_weight(const at::Tensor& weight) {
  return at::isReducedFloatingType(weight.scalar_type()) && weight.eq(1).all().item<bool>() ? at::Tensor() : weight;
}

} // namespace

#define NLL(op, function)                                                                                         \
  ACLNN(                                                                                                          \
      op, tensor(self), tensor(target), tensor(weight), int64(reduction), int64(ignored), tensor(out),            \
      tensor(total_weight)) {                                                                                     \
    at::function##_forward_out(                                                                                   \
        out, total_weight, self, target.to(at::kLong), class_weight(weight), reduction, ignored);                 \
  }                                                                                                               \
  ACLNN(                                                                                                          \
      op##Backward, tensor(grad), tensor(self), tensor(target), tensor(weight), int64(reduction), int64(ignored), \
      tensor(total_weight), tensor(out)) {                                                                        \
    at::function##_backward_out(                                                                                  \
        out, grad, self, target.to(at::kLong), class_weight(weight), reduction, ignored, total_weight);           \
  }
NLL(NLLLoss, nll_loss)
NLL(NLLLoss2d, nll_loss2d)

ACLNN(MseLoss, tensor(self), tensor(target), int64(reduction), tensor(out)) {
  out.copy_(at::mse_loss(self, target, reduction)); // mse_loss_out would first give `out` the size of the operands
}
ACLNN(MseLossBackward, tensor(grad), tensor(self), tensor(target), int64(reduction), tensor(out)) {
  at::mse_loss_backward_out(out, grad, self, target, reduction);
}
