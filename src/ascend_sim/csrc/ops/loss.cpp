// Losses and their gradients.
#include "op.h"
#include "ops/single.h"

#include <ATen/ExpandUtils.h>
#include <ATen/Functions.h>
#include <ATen/core/Reduction.h>
#include <algorithm>

namespace {

// torch_npu passes a weight of ones where there is none. In a type of 16 bits the sum of many ones is not their number.
at::Tensor class_weight(const at::Tensor& weight) {
  return at::isReducedFloatingType(weight.scalar_type()) && weight.eq(1).all().item<bool>() ? at::Tensor() : weight;
}

} // namespace

#define NLL(op, function)                                                                                         \
  ACLNN(                                                                                                          \
      op, tensor(self), tensor(target), tensor(weight), int64(reduction), int64(ignored), out(out),               \
      out(total_weight)) {                                                                                        \
    at::function##_forward_out(                                                                                   \
        out, total_weight, self, target.to(at::kLong), class_weight(weight), reduction, ignored);                 \
  }                                                                                                               \
  ACLNN(                                                                                                          \
      op##Backward, tensor(grad), tensor(self), tensor(target), tensor(weight), int64(reduction), int64(ignored), \
      tensor(total_weight), out(out)) {                                                                           \
    at::function##_backward_out(                                                                                  \
        out, grad, self, target.to(at::kLong), class_weight(weight), reduction, ignored, total_weight);           \
  }
NLL(NLLLoss, nll_loss)
NLL(NLLLoss2d, nll_loss2d)

ACLNN(MseLoss, tensor(self), tensor(target), int64(reduction), out(out)) {
  out.copy_(at::mse_loss(self, target, reduction)); // mse_loss_out would first give `out` the size of the operands
}
ACLNN(MseLossBackward, tensor(grad), tensor(self), tensor(target), int64(reduction), out(out)) {
  at::mse_loss_backward_out(out, grad, self, target, reduction);
}
ACLNN(SmoothL1Loss, tensor(self), tensor(target), int64(reduction), single(beta), out(out)) {
  out.copy_(at::smooth_l1_loss(self, target, reduction, widen(beta)));
}
ACLNN(
    SmoothL1LossBackward, tensor(grad), tensor(self), tensor(target), int64(reduction), single(beta), out(out)) {
  at::smooth_l1_loss_backward_out(out, grad, self, target, reduction, widen(beta));
}
ACLNN(SoftMarginLoss, tensor(self), tensor(target), int64(reduction), out(out)) {
  out.copy_(at::soft_margin_loss(self, target, reduction));
}
ACLNN(SoftMarginLossBackward, tensor(grad), tensor(self), tensor(target), int64(reduction), out(out)) {
  at::soft_margin_loss_backward_out(out, grad, self, target, reduction);
}
ACLNN(MultilabelMarginLoss, tensor(self), tensor(target), int64(reduction), out(out), out(is_target)) {
  const auto [loss, places] = at::multilabel_margin_loss_forward(self, target.to(at::kLong), reduction);
  out.copy_(loss);
  is_target.copy_(places);
}

ACLNN(BinaryCrossEntropy, tensor(self), tensor(target), tensor(weight), int64(reduction), out(out)) {
  out.copy_(at::binary_cross_entropy(self, target, weight, reduction));
}
ACLNN(
    BinaryCrossEntropyBackward, tensor(grad), tensor(self), tensor(target), tensor(weight), int64(reduction),
    out(out)) {
  out.copy_(at::binary_cross_entropy_backward(grad, self, target, weight, reduction));
}
ACLNN(
    BinaryCrossEntropyWithLogits, tensor(self), tensor(target), tensor(weight), tensor(positive), int64(reduction),
    out(out)) {
  out.copy_(at::binary_cross_entropy_with_logits(self, target, weight, positive, reduction));
}

// Here and below torch has no function for the gradient: these are the steps of its autograd, in their order.
ACLNN(
    BinaryCrossEntropyWithLogitsBackward, tensor(grad), tensor(self), tensor(target), tensor(weight),
    tensor(positive), int64(reduction), out(out)) {
  at::Tensor result;
  if (positive.defined()) {
    const auto t = positive.mul(target);
    result = t.add(1).sub_(target).mul_(self.sigmoid()).sub_(t);
  } else {
    result = self.sigmoid().sub_(target);
  }
  if (weight.defined()) {
    result.mul_(weight);
  }
  result.mul_(grad);
  out.copy_(reduction == at::Reduction::Mean ? result.div_(self.numel()) : result);
}

namespace {

// The gradient of the loss of each element.
at::Tensor each(const at::Tensor& grad, at::IntArrayRef sizes, int64_t reduction) {
  const auto all = grad.expand(sizes);
  return reduction == at::Reduction::Mean ? all.div(c10::multiply_integers(sizes)) : all;
}

} // namespace

ACLNN(L1Loss, tensor(self), tensor(target), int64(reduction), out(out)) {
  out.copy_(at::l1_loss(self, target, reduction));
}
ACLNN(L1LossBackward, tensor(grad), tensor(self), tensor(target), int64(reduction), out(out)) {
  const auto difference = self.sub(target);
  at::mul_out(out, each(grad, difference.sizes(), reduction), difference.sgn());
}
ACLNN(KlDiv, tensor(self), tensor(target), int64(reduction), flag(log_target), out(out)) {
  out.copy_(at::kl_div(self, target, reduction, log_target));
}
ACLNN(
    KlDivBackward, tensor(grad), tensor(self), tensor(target), int64(reduction), flag(log_target), out(out)) {
  const auto result = each(grad, at::infer_size(self.sizes(), target.sizes()), reduction).neg();
  out.copy_(result.mul(log_target ? target.exp() : target).sum_to_size(self.sizes()));
}
ACLNN(
    KlDivTargetBackward, tensor(grad), tensor(self), tensor(target), int64(reduction), flag(log_target),
    out(out)) {
  const auto g = each(grad, at::infer_size(self.sizes(), target.sizes()), reduction);
  at::Tensor result;
  if (log_target) {
    const auto e = target.exp();
    result = g.mul(e).add_(g.mul(target.sub(self)).mul_(e));
  } else {
    const auto nothing = target.eq(0);
    result = at::xlogy(g, target).masked_fill_(nothing, 0).add_(g.mul(target).div_(target)).sub_(g.mul(self));
  }
  out.copy_(result.sum_to_size(target.sizes()));
}

// The caller may have padded the last dimension of the alphas.
ACLNN(
    CtcLoss, tensor(log_probs), tensor(targets), ints(input_lengths), ints(target_lengths), int64(blank),
    flag(zero_infinity), out(loss), out(log_alpha)) {
  const auto [result, alpha] =
      at::_ctc_loss(log_probs, targets, input_lengths, target_lengths, blank, zero_infinity);
  loss.copy_(result.view_as(loss));
  log_alpha.zero_().narrow(-1, 0, alpha.size(-1)).copy_(alpha);
}
ACLNN(
    CtcLossBackward, tensor(grad), tensor(log_probs), tensor(targets), ints(input_lengths), ints(target_lengths),
    tensor(loss), tensor(log_alpha), int64(blank), flag(zero_infinity), out(out)) {
  const int64_t longest = *std::max_element(target_lengths.begin(), target_lengths.end());
  const auto alpha = log_alpha.narrow(-1, 0, 2 * longest + 1).contiguous();
  out.copy_(at::_ctc_loss_backward(
      grad, log_probs, targets, input_lengths, target_lengths, loss, alpha, blank, zero_infinity));
}
