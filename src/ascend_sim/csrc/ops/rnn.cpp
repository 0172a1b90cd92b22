// Recurrent layers. The CPU composes a layer of other operators: here its own composition runs, and its gradient is
// that of PyTorch's autograd over the same steps. What the hardware keeps of the forward pass for its backward (the
// gates) is not written.
#include "op.h"

#include <ATen/Functions.h>
#include <torch/csrc/autograd/autograd.h>

namespace {

// A product of matrices takes other steps where an operand asks for a gradient, as parameters do.
std::vector<at::Tensor> leaves(const std::vector<at::Tensor>& operands) {
  std::vector<at::Tensor> found;
  for (const auto& operand : operands) {
    found.push_back(operand.detach().requires_grad_());
  }
  return found;
}

// The gradients of `operands` where those of the results are `given`. A result without one plays no part.
template <class Forward>
std::vector<at::Tensor> gradients(
    const std::vector<at::Tensor>& operands, const std::vector<at::Tensor>& given, Forward forward) {
  sim::WithAutograd guard;
  const auto inputs = leaves(operands);
  const std::vector<at::Tensor> all = forward(inputs);
  std::vector<at::Tensor> results, seeds;
  for (size_t i = 0; i < all.size(); ++i) {
    if (given[i].defined()) {
      results.push_back(all[i]);
      seeds.push_back(given[i]);
    }
  }
  return torch::autograd::grad(results, inputs, seeds);
}

at::TensorList from(const std::vector<at::Tensor>& tensors, size_t begin) {
  return at::TensorList(tensors).slice(begin);
}

void write(at::TensorList results, std::vector<at::Tensor>& out) {
  for (size_t i = 0; i < out.size(); ++i) {
    sim::write_wanted(out[i], results[i]);
  }
}

std::string not_simulated(const at::Tensor& batch_sizes, int64_t layers, double dropout, bool train) {
  if (batch_sizes.defined() && batch_sizes.numel()) {
    return "a packed sequence is not simulated";
  }
  return train && dropout > 0 && layers > 1 ? "dropout between layers is not simulated" : "";
}

} // namespace

#define LSTM_KEPT(kind) kind(i), kind(j), kind(f), kind(o), kind(h), kind(c), kind(tanh_c)
#define RNN_OPTIONS flag(has_biases), int64(layers), real(dropout), flag(train), flag(bidirectional), flag(batch_first)
#define GRU_KEPT(kind) kind(r), kind(z), kind(n), kind(hidden_n), kind(h)

ACLNN_UNLESS(
    LSTM,
    [](auto&, auto&, auto&, auto& batch_sizes, bool, int64_t layers, double dropout, bool train, auto&&...) {
      return not_simulated(batch_sizes, layers, dropout, train);
    },
    tensor(input), tensors(params), tensors(hx), tensor(batch_sizes), RNN_OPTIONS, out(y), out(hy), out(cy),
    LSTM_KEPT(outs)) {
  sim::WithAutograd guard;
  const auto [outputs, hidden, cells] =
      at::lstm(input, hx, leaves(params), has_biases, layers, dropout, train, bidirectional, batch_first);
  y.copy_(outputs.detach());
  hy.copy_(hidden.detach());
  cy.copy_(cells.detach());
}
ACLNN(
    LstmBackward, tensor(input), tensors(hx), tensors(params), tensor(grad_y), tensor(grad_hy), tensor(grad_cy),
    LSTM_KEPT(tensors), tensor(batch_sizes), RNN_OPTIONS, bools(wanted), out(dx), out(dh), out(dc), outs(dparams)) {
  std::vector<at::Tensor> operands{input, hx[0], hx[1]};
  operands.insert(operands.end(), params.begin(), params.end());
  const auto found = gradients(operands, {grad_y, grad_hy, grad_cy}, [&](const std::vector<at::Tensor>& x) {
    const auto [outputs, hidden, cells] = at::lstm(
        x[0], from(x, 1).slice(0, 2), from(x, 3), has_biases, layers, dropout, train, bidirectional, batch_first);
    return std::vector{outputs, hidden, cells};
  });
  dx.copy_(found[0]);
  dh.copy_(found[1]);
  dc.copy_(found[2]);
  write(from(found, 3), dparams);
}

ACLNN_UNLESS(
    GRU,
    [](auto&, auto&, auto&, auto& batch_sizes, bool, int64_t layers, double dropout, bool train, auto&&...) {
      return not_simulated(batch_sizes, layers, dropout, train);
    },
    tensor(input), tensors(params), tensor(hx), tensor(batch_sizes), RNN_OPTIONS, out(y), out(hy), GRU_KEPT(outs)) {
  sim::WithAutograd guard;
  const auto [outputs, hidden] =
      at::gru(input, hx, leaves(params), has_biases, layers, dropout, train, bidirectional, batch_first);
  y.copy_(outputs.detach());
  hy.copy_(hidden.detach());
}
ACLNN(
    GRUBackward, tensor(input), tensors(params), tensor(hx), tensor(grad_y), tensor(grad_hy), GRU_KEPT(tensors),
    tensor(batch_sizes), flag(has_biases), int64(layers), flag(bidirectional), flag(batch_first), out(dx),
    out(dh), outs(dparams)) {
  std::vector<at::Tensor> operands{input, hx};
  operands.insert(operands.end(), params.begin(), params.end());
  const auto found = gradients(operands, {grad_y, grad_hy}, [&](const std::vector<at::Tensor>& x) {
    const auto [outputs, hidden] =
        at::gru(x[0], x[1], from(x, 2), has_biases, layers, 0, /*train=*/true, bidirectional, batch_first);
    return std::vector{outputs, hidden};
  });
  dx.copy_(found[0]);
  dh.copy_(found[1]);
  write(from(found, 2), dparams);
}
