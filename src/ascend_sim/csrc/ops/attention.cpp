// Fused attention, as F.scaled_dot_product_attention, torch_npu.npu_fusion_attention and
// torch_npu.npu_fused_infer_attention_score call it, and rotary position embedding. The kernel is the one that the CPU
// picks for the same operands, so results are the CPU's.
#include "op.h"

#include <ATen/Context.h>
#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <ATen/native/transformers/sdp_utils_cpp.h>
#include <algorithm>
#include <climits>
#include <cmath>

namespace {

// Where heads, tokens and channels stand in an operand. Inside they are always batch, head, token, channel.
at::Tensor heads_first(const at::Tensor& t, const std::string& layout, int64_t head_size) {
  if (layout == "BNSD") {
    return t;
  }
  if (layout == "BSND") {
    return t.transpose(1, 2);
  }
  if (layout == "NBSD") {
    return t.transpose(0, 1);
  }
  if (layout == "NTD") {
    return t.unsqueeze(0);
  }
  if (layout == "TND") {
    return t.transpose(0, 1).unsqueeze(0);
  }
  if (layout == "BSH") {
    return t.unflatten(2, {-1, head_size}).transpose(1, 2);
  }
  TORCH_CHECK(layout == "SBH", "attention with the layout ", layout, " is not simulated");
  return t.unflatten(2, {-1, head_size}).permute({1, 2, 0, 3});
}

int64_t head_size(const at::Tensor& query, int64_t heads) {
  return query.dim() == 4 ? query.size(-1) : query.size(-1) / heads;
}

struct Attention {
  at::Tensor q, k, v;
  std::optional<at::Tensor> mask; // added to the scores
  bool causal = false;
  double scale, keep;
  at::Tensor kept; // bool, of the size of the scores; undefined without dropout
  bool flash, grouped;

  Attention(
      at::Tensor q, at::Tensor k, at::Tensor v, const at::Tensor& masked, const at::Tensor& kept_bits, double scale,
      double keep, int64_t before, int64_t after, int64_t sparse_mode)
      : q(q), k(k), v(v), scale(scale), keep(keep), grouped(q.size(1) != k.size(1)) {
    set_mask(masked, before, after, sparse_mode);
    if (kept_bits.defined() && keep < 1) {
      const int64_t scores = q.size(0) * q.size(1) * q.size(2) * k.size(2);
      const auto bit = at::arange(8, at::kByte);
      kept = kept_bits.view(-1).view(at::kByte).unsqueeze(1).bitwise_right_shift(bit).bitwise_and(1).flatten();
      kept = kept.narrow(0, 0, scores).to(at::kBool).view({q.size(0), q.size(1), q.size(2), k.size(2)});
    }
    flash = !kept.defined() &&
        at::_fused_sdp_choice(q, k, v, mask, 0.0, causal, scale, grouped) ==
            static_cast<int64_t>(sdp::SDPBackend::flash_attention);
    // Step by step the CPU computes in single precision, and rounds at the end.
    if (!flash && at::isReducedFloatingType(q.scalar_type()) && !at::globalContext().allowFP16BF16ReductionMathSDP()) {
      for (at::Tensor* t : {&this->q, &this->k, &this->v}) {
        *t = t->to(at::kFloat);
      }
      mask = mask ? std::optional(mask->to(at::kFloat)) : mask;
    }
  }

  // The modes of the fused operator: 0 and 1 take a whole mask, 2 to 4 mean a band and a compressed mask.
  void set_mask(const at::Tensor& masked, int64_t before, int64_t after, int64_t sparse_mode) {
    const int64_t rows = q.size(2), columns = k.size(2);
    TORCH_CHECK(sparse_mode >= 0 && sparse_mode <= 4, "attention with sparse_mode ", sparse_mode, " is not simulated");
    at::Tensor hidden;
    if (sparse_mode <= 1) {
      hidden = masked.defined() ? masked.to(at::kBool) : at::Tensor();
    }
    causal = sparse_mode == 2 || (sparse_mode == 3 && rows == columns);
    const bool whole = before >= rows && after >= columns;
    if (sparse_mode == 3 || sparse_mode == 4 || (sparse_mode == 0 && hidden.defined() && !whole)) {
      const int64_t shift = sparse_mode >= 3 ? columns - rows : 0;
      const auto ahead = at::arange(columns).sub(shift).unsqueeze(0) - at::arange(rows).unsqueeze(1);
      const auto outside = sparse_mode == 3 ? ahead.gt(0) : ahead.gt(after).logical_or(ahead.lt(-before));
      hidden = hidden.defined() ? hidden.logical_or(outside) : outside;
    }
    if (hidden.defined() && !causal) {
      mask = at::zeros(hidden.sizes(), q.options()).masked_fill_(hidden, -std::numeric_limits<double>::infinity());
    }
  }

  at::Tensor scores(const at::Tensor& all_keys) const {
    const double root = std::sqrt(scale);
    auto result = at::matmul(q * root, (all_keys * root).transpose(-2, -1));
    if (causal) {
      const auto seen = at::ones({q.size(2), k.size(2)}, at::kBool).tril_();
      result.masked_fill_(seen.logical_not(), -std::numeric_limits<double>::infinity());
    }
    return mask ? result.add_(*mask) : result;
  }

  // The output, and for each row of the scores the logarithm of the sum of its exponentials.
  std::tuple<at::Tensor, at::Tensor> forward() const {
    if (flash) {
      return at::_scaled_dot_product_flash_attention_for_cpu(q, k, v, 0.0, causal, mask, scale);
    }
    const auto sums = scores(repeated(k)).to(at::kFloat).logsumexp(-1);
    if (kept.defined()) {
      return {at::matmul(probabilities() * survival(), repeated(v)), sums};
    }
    return {std::get<0>(at::_scaled_dot_product_attention_math(q, k, v, mask, 0.0, causal, {}, scale, grouped)), sums};
  }

  std::tuple<at::Tensor, at::Tensor, at::Tensor> backward(
      const at::Tensor& given_grad, const at::Tensor& out, const at::Tensor& sums) const {
    const auto grad = given_grad.to(q.scalar_type());
    if (flash) {
      return at::_scaled_dot_product_flash_attention_for_cpu_backward(
          grad, q, k, v, out, sums, 0.0, causal, mask, scale);
    }
    const double root = std::sqrt(scale);
    const auto all_keys = repeated(k), p = probabilities();
    const auto factor = kept.defined() ? survival() : at::Tensor();
    const auto dv = at::matmul((factor.defined() ? p * factor : p).transpose(-2, -1), grad);
    auto dp = at::matmul(grad, repeated(v).transpose(-2, -1));
    dp = factor.defined() ? dp * factor : dp;
    const auto ds = at::_softmax_backward_data(dp, p, -1, p.scalar_type());
    const auto dq = at::matmul(ds, all_keys * root) * root;
    const auto dk = at::matmul((q * root).transpose(-2, -1), ds).transpose(-2, -1) * root;
    return {dq, gathered(dk), gathered(dv)};
  }

 private:
  at::Tensor probabilities() const {
    return std::get<1>(at::_scaled_dot_product_attention_math(q, k, v, mask, 0.0, causal, {}, scale, grouped));
  }
  // What a probability is multiplied with where some are dropped.
  at::Tensor survival() const { return kept.to(q.scalar_type()).mul_(keep > 0 ? 1 / keep : 0); }
  // Several heads of the query may share one of the key and value.
  at::Tensor repeated(const at::Tensor& t) const {
    return grouped ? t.repeat_interleave(q.size(1) / t.size(1), 1) : t;
  }
  at::Tensor gathered(const at::Tensor& t) const {
    return grouped ? t.unflatten(1, {k.size(1), -1}).sum(2) : t;
  }
};

// The hardware returns the maximum and the sum of exponentials of each row, eight times. The CPU's kernel knows only
// the logarithm of the sum over all, which says the same together with a sum of one.
void write_statistics(at::Tensor& maximum, at::Tensor& sum, const at::Tensor& logarithms) {
  maximum.copy_(logarithms.unsqueeze(-1).expand_as(maximum));
  sum.fill_(1);
}

void refuse(const at::Tensor& shift, const at::Tensor& padding, at::IntArrayRef prefix) {
  TORCH_CHECK(!shift.defined(), "attention with a position shift (pse) is not simulated");
  TORCH_CHECK(!padding.defined(), "attention with a padding mask is not simulated");
  TORCH_CHECK(prefix.empty(), "attention with a prefix is not simulated");
}

} // namespace

ACLNN(
    FlashAttentionScore, tensor(query), tensor(key), tensor(value), tensor(shift), tensor(kept), tensor(padding),
    tensor(masked), ints(prefix), real(scale), real(keep), int64(before), int64(after), int64(heads), text(layout),
    int64(inner_precise), int64(sparse_mode), out(maximum), out(sum), out(softmax), out(out)) {
  refuse(shift, padding, prefix);
  const auto size = head_size(query, heads);
  const auto in = [&](const at::Tensor& t) { return heads_first(t, layout, size); };
  const Attention attention(
      in(query), in(key), in(value), masked, kept, scale, keep, before, after, sparse_mode);
  const auto [result, logarithms] = attention.forward();
  in(out).copy_(result);
  write_statistics(maximum, sum, logarithms);
}

ACLNN(
    FlashAttentionScoreGrad, tensor(query), tensor(key), tensor(value), tensor(grad), tensor(shift), tensor(kept),
    tensor(padding), tensor(masked), tensor(maximum), tensor(sum), tensor(softmax), tensor(out), ints(prefix),
    real(scale), real(keep), int64(before), int64(after), int64(heads), text(layout), int64(inner_precise),
    int64(sparse_mode), out(dq), out(dk), out(dv), out(dshift)) {
  refuse(shift, padding, prefix);
  const auto size = head_size(query, heads);
  const auto in = [&](const at::Tensor& t) { return heads_first(t, layout, size); };
  const Attention attention(
      in(query), in(key), in(value), masked, kept, scale, keep, before, after, sparse_mode);
  const auto [q, k, v] = attention.backward(in(grad), in(out), maximum.select(-1, 0).contiguous());
  in(dq).copy_(q);
  in(dk).copy_(k);
  in(dv).copy_(v);
}

namespace {

// One of several sequences of different lengths: where its tokens are in operands with the heads first.
struct Sequence {
  int64_t batch, row, rows, column, columns;

  at::Tensor of_query(const at::Tensor& t) const { return t.narrow(0, batch, 1).narrow(2, row, rows); }
  at::Tensor of_key(const at::Tensor& t) const { return t.narrow(0, batch, 1).narrow(2, column, columns); }
  at::Tensor of_mask(const at::Tensor& t) const {
    const auto own = t.dim() == 4 && t.size(0) > 1 ? t.narrow(0, batch, 1) : t;
    return own.narrow(-2, 0, rows).narrow(-1, 0, columns);
  }
};

// One after the other. The lengths arrive as the places where the sequences end.
std::vector<Sequence> packed(at::IntArrayRef q_ends, at::IntArrayRef kv_ends) {
  std::vector<Sequence> found;
  int64_t row = 0, column = 0;
  for (size_t i = 0; i < q_ends.size(); ++i) {
    found.push_back({0, row, q_ends[i] - row, column, kv_ends[i] - column});
    row = q_ends[i];
    column = kv_ends[i];
  }
  return found;
}

template <class Run>
void each_packed(at::IntArrayRef q_ends, at::IntArrayRef kv_ends, const std::string& layout, Run run) {
  TORCH_CHECK(layout == "TND", "attention over sequences with the layout ", layout, " is not simulated");
  for (const auto& sequence : packed(q_ends, kv_ends)) {
    if (sequence.rows > 0) {
      run([&](const at::Tensor& t) { return sequence.of_query(heads_first(t, layout, 0)); },
          [&](const at::Tensor& t) { return sequence.of_key(heads_first(t, layout, 0)); },
          [&](const at::Tensor& mask) { return mask.defined() ? sequence.of_mask(mask) : mask; });
    }
  }
}

} // namespace

ACLNN(
    FlashAttentionVarLenScore, tensor(query), tensor(key), tensor(value), tensor(shift), tensor(kept), tensor(padding),
    tensor(masked), ints(prefix), ints(q_ends), ints(kv_ends), real(scale), real(keep), int64(before), int64(after),
    int64(heads), text(layout), int64(inner_precise), int64(sparse_mode), out(maximum), out(sum),
    out(softmax), out(out)) {
  refuse(shift, padding, prefix);
  TORCH_CHECK(keep == 1, "attention over sequences with dropout is not simulated");
  each_packed(q_ends, kv_ends, layout, [&](auto rows, auto columns, auto part) {
    const auto mask = sparse_mode <= 1 ? part(masked) : masked;
    const Attention attention(
        rows(query), columns(key), columns(value), mask, kept, scale, keep, before, after, sparse_mode);
    const auto [result, logarithms] = attention.forward();
    rows(out).copy_(result);
    auto part_maximum = rows(maximum), part_sum = rows(sum);
    write_statistics(part_maximum, part_sum, logarithms);
  });
}

ACLNN(
    FlashAttentionUnpaddingScoreGrad, tensor(query), tensor(key), tensor(value), tensor(grad), tensor(shift),
    tensor(kept), tensor(padding), tensor(masked), tensor(maximum), tensor(sum), tensor(softmax), tensor(out),
    ints(prefix), ints(q_ends), ints(kv_ends), real(scale), real(keep), int64(before), int64(after), int64(heads),
    text(layout), int64(inner_precise), int64(sparse_mode), out(dq), out(dk), out(dv), out(dshift)) {
  refuse(shift, padding, prefix);
  TORCH_CHECK(keep == 1, "attention over sequences with dropout is not simulated");
  each_packed(q_ends, kv_ends, layout, [&](auto rows, auto columns, auto part) {
    const auto mask = sparse_mode <= 1 ? part(masked) : masked;
    const Attention attention(
        rows(query), columns(key), columns(value), mask, kept, scale, keep, before, after, sparse_mode);
    const auto [q, k, v] =
        attention.backward(rows(grad), rows(out), rows(maximum).select(-1, 0).contiguous());
    rows(dq).copy_(q);
    columns(dk).copy_(k);
    columns(dv).copy_(v);
  });
}

namespace {

// Attention for inference: no gradient, but sequences of different lengths in any layout. The lengths are values of the
// call and not of the device, so a captured graph keeps them until it is updated.
struct Inference {
  const at::Tensor &query, &mask;
  const std::vector<at::Tensor>&keys, &values;
  at::IntArrayRef q_lengths, kv_lengths;
  int64_t heads, kv_heads;
  double scale;
  int64_t before, after;
  const std::string& layout; // of the operands; where the output has another, it follows after _
  int64_t sparse_mode;

  std::string in_layout() const { return layout.substr(0, layout.find('_')); }
  std::string out_layout() const { return layout.substr(layout.find('_') + 1); }
  bool is_packed() const { return layout[0] == 'T' || layout[0] == 'N'; }
  // A single row for each of the batch, which sees all columns whatever the mode.
  bool is_single() const { return !is_packed() && q().size(2) == 1; }

  at::Tensor in(const at::Tensor& t, int64_t n) const { return heads_first(t, in_layout(), t.size(-1) / n); }
  at::Tensor q() const { return in(query, heads); }
  at::Tensor kv(const at::Tensor& t) const { return in(t, kv_heads ? kv_heads : heads); }

  // What the operator or its simulation does not take.
  std::string why_not(std::initializer_list<std::pair<const char*, const at::Tensor&>> absent) const {
    static constexpr std::string_view layouts[] = {
        "BSH", "BSND", "BNSD", "TND", "NTD", "BNSD_BSND", "BSH_BNSD", "BSND_BNSD", "BSH_NBSD", "BSND_NBSD",
        "BNSD_NBSD", "TND_NTD", "NTD_TND"};
    for (const auto& [name, tensor] : absent) {
      if (tensor.defined()) {
        return c10::str(name, " is not simulated");
      }
    }
    if (std::ranges::find(layouts, layout) == std::end(layouts)) {
      return c10::str("the layout ", layout, " is not simulated");
    }
    if (keys.size() != 1 || values.size() != 1) {
      return "a list of keys is not simulated";
    }
    if (!at::isReducedFloatingType(query.scalar_type())) {
      return c10::str("the query is of type ", query.scalar_type(), ", not float16 or bfloat16");
    }
    if (keys[0].scalar_type() != query.scalar_type() || values[0].scalar_type() != query.scalar_type()) {
      return "a quantised key or value is not simulated";
    }
    if (sparse_mode < 0 || sparse_mode > 4) {
      return c10::str("sparse_mode ", sparse_mode, " is not simulated");
    }
    const auto rows = q(), columns = kv(keys[0]), contents = kv(values[0]);
    if (rows.size(1) != heads || columns.size(1) != (kv_heads ? kv_heads : heads)) {
      return c10::str(
          "num_heads ", heads, " and num_key_value_heads ", kv_heads, " are not those of ", rows.size(1), " and ",
          columns.size(1), " heads");
    }
    if (heads % columns.size(1) != 0) {
      return c10::str(heads, " heads of the query can't share ", columns.size(1), " of the key");
    }
    if (columns.size(0) != rows.size(0) || contents.sizes().slice(0, 3) != columns.sizes().slice(0, 3)) {
      return c10::str("a key of ", keys[0].sizes(), " and a value of ", values[0].sizes(), " do not fit the query");
    }
    if (is_packed() && (q_lengths.empty() || q_lengths.size() != kv_lengths.size())) {
      return c10::str("the layout ", layout, " needs the ends of as many sequences in the query as in the key");
    }
    for (const auto& problem :
         // The lengths of a query of single rows mean nothing: torch_npu's own tests give 100 there.
         {is_single() ? "" : wrong_lengths("actual_seq_lengths", q_lengths, rows),
          wrong_lengths("actual_seq_lengths_kv", kv_lengths, columns)}) {
      if (!problem.empty()) {
        return problem;
      }
    }
    if (const auto all = whole_mask(); all.defined()) {
      for (const auto& s : sequences(rows, columns)) {
        const bool has_batch = all.dim() != 4 || all.size(0) == 1 || all.size(0) > s.batch;
        if (all.size(-2) < s.rows || all.size(-1) < s.columns || !has_batch) {
          return c10::str("a mask of ", mask.sizes(), " does not cover a sequence of ", s.rows, " by ", s.columns);
        }
      }
    }
    return "";
  }

  void run(at::Tensor& out, at::Tensor& sums, bool wants_sums) const {
    // What no sequence covers.
    out.zero_();
    sums.fill_(wants_sums ? INFINITY : 0);
    const auto rows = q(), columns = kv(keys[0]), contents = kv(values[0]);
    const auto to = heads_first(out, out_layout(), contents.size(-1));
    const auto sums_to = wants_sums ? heads_first(sums, is_packed() ? "TND" : "BNSD", 1) : sums;
    const bool single = is_single();
    const auto all = whole_mask();
    for (const auto& s : sequences(rows, columns)) {
      if (s.rows == 0 || s.columns == 0) {
        continue;
      }
      const Attention attention(
          s.of_query(rows), s.of_key(columns), s.of_key(contents), all.defined() ? s.of_mask(all) : all, {}, scale, 1,
          single ? INT_MAX : before, single ? INT_MAX : after, single ? 0 : sparse_mode);
      const auto [result, logarithms] = attention.forward();
      s.of_query(to).copy_(result);
      if (wants_sums) {
        s.of_query(sums_to).copy_(logarithms.unsqueeze(-1));
      }
    }
  }

 private:
  std::string wrong_lengths(const char* name, at::IntArrayRef lengths, const at::Tensor& tokens) const {
    const size_t batch = tokens.size(0);
    if (!is_packed() && lengths.size() > 1 && lengths.size() < batch) {
      return c10::str(name, " has ", lengths.size(), " lengths for a batch of ", batch);
    }
    int64_t least = 0;
    for (const int64_t length : lengths) {
      if (length < least || length > tokens.size(2)) {
        return c10::str(name, " has ", length, " where ", least, " to ", tokens.size(2), " is possible");
      }
      least = is_packed() ? length : 0;
    }
    return "";
  }

  std::vector<Sequence> sequences(const at::Tensor& rows, const at::Tensor& columns) const {
    if (is_packed()) {
      return packed(q_lengths, kv_lengths);
    }
    // Padded to one length. A single length is that of all.
    const auto length = [](at::IntArrayRef lengths, int64_t i, int64_t all) {
      return lengths.empty() ? all : lengths[lengths.size() == 1 ? 0 : i];
    };
    std::vector<Sequence> found;
    for (int64_t i = 0; i < rows.size(0); ++i) {
      found.push_back(
          {i, 0, is_single() ? 1 : length(q_lengths, i, rows.size(2)), 0, length(kv_lengths, i, columns.size(2))});
    }
    return found;
  }

  // In the modes without a pattern. It may come without the dimension of heads, and for a single row without that of
  // rows.
  at::Tensor whole_mask() const {
    if (!mask.defined() || sparse_mode > 1) {
      return {};
    }
    if (mask.dim() == 2) {
      return is_single() ? mask.unsqueeze(1).unsqueeze(1) : mask;
    }
    return mask.dim() == 3 ? mask.unsqueeze(1) : mask;
  }
};

} // namespace

#define ABSENT(parameter) ABSENT_##parameter
#define ABSENT_tensor(x) {#x, x}

// What the versions of the operator have in common.
#define INFER_OPERANDS                                                                                               \
  tensor(query), tensors(keys), tensors(values), tensor(pse_shift), tensor(mask), ints(q_lengths), ints(kv_lengths)
#define INFER_NOT_SIMULATED                                                                                          \
  tensor(dequant_scale1), tensor(quant_scale1), tensor(dequant_scale2), tensor(quant_scale2), tensor(quant_offset2), \
      tensor(antiquant_scale), tensor(antiquant_offset), tensor(block_table), tensor(query_padding_size),            \
      tensor(kv_padding_size), tensor(key_antiquant_scale), tensor(key_antiquant_offset),                            \
      tensor(value_antiquant_scale), tensor(value_antiquant_offset), tensor(key_shared_prefix),                      \
      tensor(value_shared_prefix)
#define INFER_NOT_SIMULATED_V3 tensor(query_rope), tensor(key_rope), tensor(key_rope_antiquant_scale)
#define INFER_NOT_SIMULATED_V4 INFER_NOT_SIMULATED_V3, tensor(dequant_scale_query), tensor(learnable_sink)
#define INFER_OPTIONS                                                                                                \
  int64(heads), real(scale), int64(before), int64(after), text(layout), int64(kv_heads), int64(sparse_mode),         \
      int64(inner_precise), int64(block_size), int64(antiquant_mode), flag(wants_sums), int64(key_antiquant_mode),   \
      int64(value_antiquant_mode)
#define INFER_V3                                                                                                     \
  INFER_OPERANDS, INFER_NOT_SIMULATED, ints(actual_shared_prefix_len), INFER_NOT_SIMULATED_V3, INFER_OPTIONS,        \
      out(out), out(sums)
#define INFER_V4                                                                                                     \
  INFER_OPERANDS, INFER_NOT_SIMULATED, ints(actual_shared_prefix_len), INFER_NOT_SIMULATED_V4, INFER_OPTIONS,        \
      int64(query_quant_mode), out(out), out(sums)

#define INFERENCE                                                                                                    \
  Inference {                                                                                                        \
    query, mask, keys, values, q_lengths, kv_lengths, heads, kv_heads, scale, before, after, layout, sparse_mode     \
  }
#define ACLNN_INFER(op, not_simulated, parameters)                                                                   \
  ACLNN_UNLESS(                                                                                                      \
      op,                                                                                                            \
      ([](SIM_FOR_EACH(SIM_BODY, parameters)) {                                                                      \
        return INFERENCE.why_not(                                                                                    \
            {{"pse_shift", pse_shift}, SIM_FOR_EACH(ABSENT, INFER_NOT_SIMULATED, not_simulated)});                   \
      }),                                                                                                            \
      parameters) {                                                                                                  \
    INFERENCE.run(out, sums, wants_sums);                                                                            \
  }                                                                                                                  \
  ACLNN_MAX_WORKSPACE(op, parameters)

ACLNN_INFER(FusedInferAttentionScoreV3, INFER_NOT_SIMULATED_V3, INFER_V3)
ACLNN_INFER(FusedInferAttentionScoreV4, INFER_NOT_SIMULATED_V4, INFER_V4)

namespace {

// The other half of each pair of channels, with the sign that a rotation by 90 degrees gives it. Pairs are the two
// halves of the channels (mode 0) or neighbours (mode 1).
at::Tensor quarter_turn(const at::Tensor& x, int64_t mode, bool back = false) {
  TORCH_CHECK(mode == 0 || mode == 1, "rotary mode ", mode, " is not simulated");
  const auto pairs = mode == 0 ? x.unflatten(-1, {2, -1}).transpose(-2, -1) : x.unflatten(-1, {-1, 2});
  const auto a = pairs.select(-1, 0), b = pairs.select(-1, 1);
  const auto first = back ? b : b.neg(), second = back ? a.neg() : a;
  return mode == 0 ? at::cat({first, second}, -1) : at::stack({first, second}, -1).flatten(-2);
}

void rotate(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin, int64_t mode, at::Tensor& out) {
  at::add_out(out, x * cos, quarter_turn(x, mode) * sin);
}

} // namespace

ACLNN(RotaryPositionEmbedding, tensor(x), tensor(cos), tensor(sin), int64(mode), out(out)) {
  rotate(x, cos, sin, mode, out);
}
ACLNN(
    RotaryPositionEmbeddingV2, tensor(x), tensor(cos), tensor(sin), int64(mode), tensor(rotation), out(out)) {
  TORCH_CHECK(!rotation.defined(), "rotary embedding with a matrix of its own is not simulated");
  rotate(x, cos, sin, mode, out);
}
ACLNN(
    RotaryPositionEmbeddingGrad, tensor(grad), tensor(cos), tensor(sin), tensor(x), int64(mode), out(dx),
    out(dcos), out(dsin)) {
  at::add_out(dx, grad * cos, quarter_turn(grad * sin, mode, true));
  if (x.defined()) {
    dcos.copy_((grad * x).sum_to_size(cos.sizes()));
    dsin.copy_((grad * quarter_turn(x, mode)).sum_to_size(sin.sizes()));
  }
}
