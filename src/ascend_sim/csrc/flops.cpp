#include "flops.h"
#include "op.h"

#include <algorithm>

namespace sim {

namespace {

using Sizes = at::IntArrayRef;

double numel(const aclTensor* t) {
  double n = 1;
  for (const int64_t size : t->sizes) {
    n *= size;
  }
  return n;
}

double last(const aclTensor* t) {
  return t->sizes.empty() ? 1 : t->sizes.back();
}

// ---- products: two for each element of the result and each of the dimension that is summed over

double product(const Call& c) {
  return 2 * numel(c.written[0]) * last(c.read[0]);
}
double product_and_sum(const Call& c) { // the first tensor is what is added
  return 2 * numel(c.written[0]) * last(c.read[1]);
}
double product_summed_over_batch(const Call& c) {
  return product_and_sum(c) * c.read[1]->sizes[0];
}
double outer_product(const Call& c) {
  return 2 * numel(c.written[0]);
}

// ---- convolutions

// Each element of the small side, which is the result, or of a transposed convolution the operand, meets one filter.
double convolution(const aclTensor* side, const aclTensor* weight, size_t filters = 0) {
  return weight->sizes[filters] ? 2 * numel(side) * (numel(weight) / weight->sizes[filters]) : 0;
}
double convolution(const Call& c) {
  return convolution(c.flags[0] ? c.read[0] : c.written[0], c.read[1]);
}
// The gradient of the operand and that of the weight are a convolution each; that of the bias is a sum.
double convolution_backward(const Call& c) {
  return (c.mask[0] + c.mask[1]) * convolution(c.flags[0] ? c.read[1] : c.read[0], c.read[2]);
}
double convolution_depthwise(const Call& c) {
  return convolution(c.written[0], c.read[1]);
}
double convolution_tbc(const Call& c) {
  return convolution(c.written[0], c.read[1], 2);
}
double convolution_tbc_backward(const Call& c) {
  return 2 * convolution(c.read[0], c.read[2], 2);
}

// ---- recurrent layers: each token meets each weight. Weights are the only matrices among the operands.

double recurrent(const Call& c) {
  double weights = 0;
  for (size_t i = 1; i < c.read.size(); ++i) {
    weights += c.read[i]->sizes.size() == 2 ? numel(c.read[i]) : 0;
  }
  const double channels = last(c.read[0]);
  return channels ? 2 * numel(c.read[0]) / channels * weights : 0;
}
double recurrent_backward(const Call& c) {
  return 2 * recurrent(c);
}

// ---- attention: scores, and the sum of the values that they weigh. What a mask hides is counted: it is the work of
// the products that are written down, and how much of it a kernel leaves out is not known here.

// How many there are of what the letter stands for; 0 in a layout that the operator refuses.
int64_t size_of(char letter, const aclTensor* t, std::string_view layout) {
  const size_t place = layout.find(letter);
  return place < t->sizes.size() ? t->sizes[place] : 0;
}

// `result` has the size of the output. Lengths are those of each of the batch, or the ends of packed sequences.
double attention(
    const aclTensor* query, const aclTensor* key, const aclTensor* result, std::string_view layout,
    Sizes q_lengths = {}, Sizes kv_lengths = {}) {
  layout = layout.substr(0, layout.find('_')); // what follows is the layout of the output
  double rows = size_of('T', query, layout), pairs = 0;
  if (rows) {
    for (size_t i = 0; i < std::min(q_lengths.size(), kv_lengths.size()); ++i) {
      pairs += double(q_lengths[i] - (i ? q_lengths[i - 1] : 0)) * (kv_lengths[i] - (i ? kv_lengths[i - 1] : 0));
    }
  } else {
    const int64_t batch = size_of('B', query, layout);
    const int64_t q_tokens = size_of('S', query, layout), kv_tokens = size_of('S', key, layout);
    rows = double(batch) * q_tokens;
    const auto length = [](Sizes lengths, int64_t i, int64_t all) {
      return lengths.empty() ? all : lengths[lengths.size() == 1 ? 0 : i];
    };
    for (int64_t i = 0; i < batch; ++i) {
      // A single row counts whatever its length says.
      pairs += double(q_tokens == 1 ? 1 : length(q_lengths, i, q_tokens)) * length(kv_lengths, i, kv_tokens);
    }
  }
  return rows ? 2 * (numel(query) + numel(result)) / rows * pairs : 0;
}
// Of five products, two are those of the forward pass.
constexpr double backward = 2.5;

double attention_score(const Call& c) {
  return attention(c.read[0], c.read[1], c.written.back(), c.text);
}
double attention_score_grad(const Call& c) {
  return backward * attention(c.read[0], c.read[1], c.read[3], c.text);
}
double packed_attention_score(const Call& c) {
  return attention(c.read[0], c.read[1], c.written.back(), c.text, c.lists[1], c.lists[2]);
}
double packed_attention_score_grad(const Call& c) {
  return backward * attention(c.read[0], c.read[1], c.read[3], c.text, c.lists[1], c.lists[2]);
}
double attention_for_inference(const Call& c) {
  return attention(c.read[0], c.read[1], c.written[0], c.text, c.lists[0], c.lists[1]);
}

// ---- lookups: how much of a table they touch

double as_the_result(const Call& c) {
  return numel(c.written[0]);
}
double as_the_index(const Call& c) {
  return numel(c.read[1]);
}
double as_the_source(const Call& c) {
  return numel(c.read[2]);
}
double rows_of_the_index(const Call& c) {
  return numel(c.read[1]) * last(c.read[0]);
}
// Whole in the dimensions that have no index: an empty tensor, or none, stands there.
double places_of_indices(const Call& c) {
  double others = 1;
  c10::SmallVector<int64_t, 5> places; // the size that the indices are broadcast to, the last dimension first
  const auto& sizes = c.read[0]->sizes;
  for (size_t d = 0; d < sizes.size(); ++d) {
    const bool given = d + 2 < c.read.size() && numel(c.read[d + 1]) > 0; // between the table and the values
    if (!given) {
      others *= sizes[d];
      continue;
    }
    const auto& index = c.read[d + 1]->sizes;
    places.resize(std::max(places.size(), index.size()), 1);
    for (size_t i = 0; i < index.size(); ++i) {
      places[i] = std::max(places[i], index[index.size() - 1 - i]);
    }
  }
  return others * c10::multiply_integers(places);
}

struct Entry {
  std::string_view name;
  double (*formula)(const Call&);
};

constexpr Entry products[] = {
    {"aclnnMm", product},
    {"aclnnMatmul", product},
    {"aclnnBatchMatMul", product},
    {"aclnnMv", product},
    {"aclnnDot", product},
    {"aclnnAddmm", product_and_sum},
    {"aclnnInplaceAddmm", product_and_sum},
    {"aclnnBaddbmm", product_and_sum},
    {"aclnnAddmv", product_and_sum},
    {"aclnnAddbmm", product_summed_over_batch},
    {"aclnnAddr", outer_product},
    {"aclnnInplaceAddr", outer_product},
    {"aclnnConvolution", convolution},
    {"aclnnConvolutionBackward", convolution_backward},
    {"aclnnConvDepthwise2d", convolution_depthwise},
    {"aclnnConvTbc", convolution_tbc},
    {"aclnnConvTbcBackward", convolution_tbc_backward},
    {"aclnnLSTM", recurrent},
    {"aclnnLstmBackward", recurrent_backward},
    {"aclnnGRU", recurrent},
    {"aclnnGRUBackward", recurrent_backward},
    {"aclnnFlashAttentionScore", attention_score},
    {"aclnnFlashAttentionScoreGrad", attention_score_grad},
    {"aclnnFlashAttentionVarLenScore", packed_attention_score},
    {"aclnnFlashAttentionUnpaddingScoreGrad", packed_attention_score_grad},
    {"aclnnFusedInferAttentionScoreV3", attention_for_inference},
    {"aclnnFusedInferAttentionScoreV4", attention_for_inference},
};

constexpr Entry tables[] = {
    {"aclnnEmbedding", as_the_result},
    {"aclnnEmbeddingBag", rows_of_the_index},
    {"aclnnEmbeddingRenorm", rows_of_the_index},
    {"aclnnIndex", as_the_result},
    {"aclnnIndexSelect", as_the_result},
    {"aclnnGather", as_the_result},
    {"aclnnTake", as_the_result},
    {"aclnnIndexPutImpl", places_of_indices},
    {"aclnnInplaceIndexCopy", as_the_source},
    {"aclnnInplacePut", as_the_index},
    {"aclnnInplaceScatter", as_the_index},
    {"aclnnInplaceScatterValue", as_the_index},
    {"aclnnInplaceScatterReduce", as_the_index},
};

template <size_t n>
auto find(const Entry (&entries)[n], std::string_view name) {
  const auto* found = std::ranges::find(entries, name, &Entry::name);
  return found == std::end(entries) ? nullptr : found->formula;
}

// The distinct elements of a tensor: a dimension that it is expanded over has one, and windows may overlap.
double bytes_of(const Access& access) {
  if (!access.tensor) {
    return access.bytes;
  }
  const auto& sizes = access.tensor->sizes;
  double elements = 1, span = 1;
  for (size_t d = 0; d < sizes.size(); ++d) {
    if (sizes[d] == 0) {
      return 0;
    }
    if (const int64_t stride = access.tensor->strides[d]) {
      elements *= sizes[d];
      span += double(sizes[d] - 1) * stride;
    }
  }
  return std::min(elements, span) * c10::elementSize(access.tensor->type);
}

} // namespace

Call::Call(const Accesses& tensors) {
  for (const Access& access : tensors) {
    if (access.reads) {
      read.push_back(access.tensor);
    }
    if (access.writes) {
      written.push_back(access.tensor);
    }
  }
}

Cost cost_of(std::string_view name) {
  return {find(products, name), find(tables, name)};
}

double Task::bytes() const {
  double all = 0;
  for (const Access& access : accesses()) {
    all += (access.reads + access.writes) * bytes_of(access);
  }
  return all;
}

} // namespace sim

double aclOpExecutor::flops() const {
  return cost.flops ? cost.flops(call()) : 0;
}

double aclOpExecutor::bytes() const {
  const double all = Task::bytes();
  if (!cost.touched) {
    return all;
  }
  const sim::Access table = accesses()[0];
  const double whole = sim::bytes_of(table), part = cost.touched(call()) * c10::elementSize(table.tensor->type);
  return all - (table.reads + table.writes) * (whole - std::min(whole, part));
}
