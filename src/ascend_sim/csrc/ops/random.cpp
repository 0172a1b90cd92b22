// Random numbers. Each element is a pure function of (seed, offset, its place): Philox counted up, so an eager
// call and a captured one with the same seed and offset give the same numbers. They are not the numbers of a
// real NPU, whose generator lays out its counters in a way that is not public.
//
// torch_npu moves the offset on by at least four for each call, and a call uses one Philox counter for an
// element, so no two calls share one. In a capture the seed and the base of the offset are read from device
// tensors, which torch_npu rewrites before each replay.
#include "op.h"

#include <ATen/Dispatch.h>
#include <ATen/Functions.h>
#include <ATen/core/PhiloxRNGEngine.h>
#include <ATen/core/TransformationHelper.h>

namespace {

struct Key {
  uint64_t seed, offset;
};

Key key(int64_t seed, int64_t offset) {
  return {static_cast<uint64_t>(seed), static_cast<uint64_t>(offset)};
}
Key key(const at::Tensor& seed, const at::Tensor& base, int64_t offset) {
  return key(seed.item<int64_t>(), base.item<int64_t>() + offset);
}

struct Bits {
  uint32_t word[4];
  uint64_t pair(int i) const { return word[2 * i] | uint64_t(word[2 * i + 1]) << 32; }
};

// Fill `out` with what `make(bits, place)` writes: `n` elements from one block of 128 bits.
template <int n, class T, class Make>
void generate(at::Tensor& out, Key key, Make make) {
  auto dense = out.is_contiguous() ? out : at::empty(out.sizes(), out.options());
  T* place = dense.mutable_data_ptr<T>();
  const int64_t size = dense.numel();
  for (int64_t block = 0; block * n < size; ++block) {
    at::Philox4_32 engine(key.seed, block, key.offset);
    const Bits bits{{engine(), engine(), engine(), engine()}};
    T made[n];
    make(bits, made);
    std::copy(made, made + std::min<int64_t>(n, size - block * n), place + block * n);
  }
  if (!dense.is_same(out)) {
    out.copy_(dense);
  }
}

#define DISPATCH_REAL(type, ...) AT_DISPATCH_FLOATING_TYPES_AND2(at::kHalf, at::kBFloat16, type, "random", __VA_ARGS__)

// [from, to)
void uniform(at::Tensor& out, double from, double to, Key key) {
  DISPATCH_REAL(out.scalar_type(), [&] {
    const auto low = static_cast<scalar_t>(from), high = static_cast<scalar_t>(to);
    if constexpr (std::is_same_v<scalar_t, double>) {
      generate<2, double>(out, key, [&](const Bits& bits, double* made) {
        for (int i = 0; i < 2; ++i) {
          made[i] = at::transformation::uniform_real<double>(bits.pair(i), low, high);
        }
      });
    } else {
      generate<4, scalar_t>(out, key, [&](const Bits& bits, scalar_t* made) {
        for (int i = 0; i < 4; ++i) {
          made[i] = at::transformation::uniform_real<scalar_t>(bits.word[i], low, high);
        }
      });
    }
  });
}

at::Tensor uniform_like(const at::Tensor& like, Key key) {
  auto out = at::empty(like.sizes(), like.options().dtype(at::kDouble));
  generate<4, double>(out, key, [](const Bits& bits, double* made) {
    for (int i = 0; i < 4; ++i) {
      made[i] = bits.word[i] * 0x1p-32;
    }
  });
  return out;
}

// Box and Muller: two normal numbers from two uniform ones, the first of them never zero.
void normal(at::Tensor& out, double mean, double std, Key key) {
  auto two = [&](double u, double v, auto* made) {
    const double radius = std::sqrt(-2 * std::log(u)) * std, angle = 2 * M_PI * v;
    using T = std::remove_pointer_t<decltype(made)>;
    made[0] = static_cast<T>(radius * std::cos(angle) + mean);
    made[1] = static_cast<T>(radius * std::sin(angle) + mean);
  };
  DISPATCH_REAL(out.scalar_type(), [&] {
    if constexpr (std::is_same_v<scalar_t, double>) {
      generate<2, double>(out, key, [&](const Bits& bits, double* made) {
        two((bits.pair(0) >> 11) * 0x1p-53 + 0x1p-54, (bits.pair(1) >> 11) * 0x1p-53, made);
      });
    } else {
      generate<4, scalar_t>(out, key, [&](const Bits& bits, scalar_t* made) {
        two(bits.word[0] * 0x1p-32 + 0x1p-33, bits.word[1] * 0x1p-32, made);
        two(bits.word[2] * 0x1p-32 + 0x1p-33, bits.word[3] * 0x1p-32, made + 2);
      });
    }
  });
}

// Integers of [from, from + range)
void integers(at::Tensor& out, int64_t from, uint64_t range, Key key) {
  AT_DISPATCH_ALL_TYPES_AND3(at::kBool, at::kHalf, at::kBFloat16, out.scalar_type(), "random", [&] {
    using at::transformation::uniform_int_from_to;
    if (range >> 32) {
      generate<2, scalar_t>(out, key, [&](const Bits& bits, scalar_t* made) {
        for (int i = 0; i < 2; ++i) {
          made[i] = uniform_int_from_to<scalar_t>(bits.pair(i), range, from);
        }
      });
    } else {
      generate<4, scalar_t>(out, key, [&](const Bits& bits, scalar_t* made) {
        for (int i = 0; i < 4; ++i) {
          made[i] = uniform_int_from_to<scalar_t>(bits.word[i], range, from);
        }
      });
    }
  });
}

// The integers that the type holds and counts without a gap.
void integers(at::Tensor& out, Key key) {
  AT_DISPATCH_ALL_TYPES_AND3(at::kBool, at::kHalf, at::kBFloat16, out.scalar_type(), "random", [&] {
    generate<2, scalar_t>(out, key, [&](const Bits& bits, scalar_t* made) {
      for (int i = 0; i < 2; ++i) {
        made[i] = at::transformation::uniform_int<scalar_t>(bits.pair(i));
      }
    });
  });
}

void exponential(at::Tensor& out, double rate, Key key) {
  auto values = uniform_like(out, key).add_(0x1p-33).log_().div_(-rate);
  out.copy_(values);
}

// One bit an element, the first in the lowest bit of the first byte: set where the element is kept.
void keep_mask(at::IntArrayRef shape, double drop, Key key, at::Tensor& mask) {
  const int64_t size = c10::multiply_integers(shape);
  auto* bytes = mask.mutable_data_ptr<uint8_t>();
  std::fill(bytes, bytes + mask.numel(), 0);
  for (int64_t block = 0; block * 4 < size; ++block) {
    at::Philox4_32 engine(key.seed, block, key.offset);
    for (int64_t i = block * 4; i < std::min(size, block * 4 + 4); ++i) {
      bytes[i / 8] |= (engine() * 0x1p-32 >= drop) << i % 8;
    }
  }
}

void multinomial(const at::Tensor& weights, int64_t samples, bool replacement, Key key, at::Tensor& out) {
  const auto total = weights.sum(-1, false, at::kDouble);
  TORCH_CHECK(
      total.isfinite().all().item<bool>() && weights.ge(0).all().item<bool>(),
      "probability tensor contains either `inf`, `nan` or element < 0");
  TORCH_CHECK(
      total.gt(0).all().item<bool>(), "invalid multinomial distribution (sum of probabilities <= 0)");
  if (replacement) {
    const auto place = uniform_like(out, key).mul_(total.unsqueeze(-1));
    const auto chosen = at::searchsorted(weights.cumsum(-1, at::kDouble).contiguous(), place, false, true);
    out.copy_(chosen.clamp_max_(weights.size(-1) - 1));
  } else {
    // The largest of weight / exponential is drawn first, and so on: drawing without putting back.
    auto race = at::empty(weights.sizes(), weights.options().dtype(at::kDouble));
    exponential(race, 1, key);
    at::div_out(race, weights, race);
    out.copy_(std::get<1>(race.topk(samples, -1)));
  }
}

void rrelu(
    const at::Tensor& self, at::Tensor& noise, double lower, double upper, bool training, Key key, at::Tensor& out) {
  if (!training) {
    at::leaky_relu_out(out, self, (lower + upper) / 2);
    return;
  }
  auto slope = at::empty(self.sizes(), self.options());
  uniform(slope, lower, upper, key);
  slope.masked_fill_(self.gt(0), 1);
  noise.copy_(slope);
  at::mul_out(out, self, slope);
}

} // namespace

// Each with seed and offset as numbers, and as tensors.
ACLNN(InplaceUniform, out(self), real(from), real(to), int64(seed), int64(offset)) {
  uniform(self, from, to, key(seed, offset));
}
ACLNN(InplaceUniformTensor, out(self), real(from), real(to), tensor(seed), tensor(base), int64(offset)) {
  uniform(self, from, to, key(seed, base, offset));
}
ACLNN(InplaceNormal, out(self), single(mean), single(std), int64(seed), int64(offset)) {
  normal(self, mean, std, key(seed, offset));
}
ACLNN(InplaceNormalTensor, out(self), single(mean), single(std), tensor(seed), tensor(base), int64(offset)) {
  normal(self, mean, std, key(seed, base, offset));
}
ACLNN(InplaceRandom, out(self), int64(from), int64(to), int64(seed), int64(offset)) {
  integers(self, from, uint64_t(to) - uint64_t(from), key(seed, offset));
}
ACLNN(InplaceRandomTensor, out(self), int64(from), int64(to), tensor(seed), tensor(base), int64(offset)) {
  integers(self, from, uint64_t(to) - uint64_t(from), key(seed, base, offset));
}
ACLNN(InplaceRandomWithoutFromTo, out(self), int64(seed), int64(offset)) { integers(self, key(seed, offset)); }
ACLNN(InplaceRandomWithoutFromToTensor, out(self), tensor(seed), tensor(base), int64(offset)) {
  integers(self, key(seed, base, offset));
}
ACLNN(
    DropoutGenMaskV2, ints(shape), real(drop), int64(seed), int64(offset), dtype(type), out(mask)) {
  keep_mask(shape, drop, key(seed, offset), mask);
}
ACLNN(
    DropoutGenMaskV2Tensor, ints(shape), real(drop), tensor(seed), tensor(base), int64(offset), dtype(type),
    out(mask)) {
  keep_mask(shape, drop, key(seed, base, offset), mask);
}
ACLNN(
    Multinomial, tensor(self), int64(samples), flag(replacement), int64(seed), int64(offset), out(out)) {
  multinomial(self, samples, replacement, key(seed, offset), out);
}
ACLNN(
    MultinomialTensor, tensor(self), int64(samples), flag(replacement), tensor(seed), tensor(base), int64(offset),
    out(out)) {
  multinomial(self, samples, replacement, key(seed, base, offset), out);
}

// torch_npu has no form of these for a capture: it refuses them there, or (torch.normal) records nothing.
ACLNN(InplaceBernoulli, out(self), scalar(p), int64(seed), int64(offset)) {
  self.copy_(uniform_like(self, key(seed, offset)).lt(p));
}
ACLNN(InplaceBernoulliTensor, out(self), tensor(p), int64(seed), int64(offset)) {
  self.copy_(uniform_like(self, key(seed, offset)).lt(p));
}
ACLNN(NormalTensorTensor, tensor(mean), tensor(std), int64(seed), int64(offset), out(out)) {
  normal(out, 0, 1, key(seed, offset));
  out.mul_(std).add_(mean);
}
ACLNN(NormalTensorFloat, tensor(mean), single(std), int64(seed), int64(offset), out(out)) {
  normal(out, 0, std, key(seed, offset));
  out.add_(mean);
}
ACLNN(NormalFloatTensor, single(mean), tensor(std), int64(seed), int64(offset), out(out)) {
  normal(out, 0, 1, key(seed, offset));
  out.mul_(std).add_(mean);
}
ACLNN(NormalFloatFloat, single(mean), single(std), int64(seed), int64(offset), out(out)) {
  normal(out, mean, std, key(seed, offset));
}
ACLNN(SimThreadExponential, out(self), int64(count), real(rate), int64(seed), int64(offset)) {
  exponential(self, rate, key(seed, offset));
}
ACLNN(Randperm, int64(n), int64(seed), int64(offset), out(out)) {
  auto order = at::empty({n}, out.options().dtype(at::kLong));
  integers(order, key(seed, offset));
  out.copy_(order.argsort(/*stable=*/true));
}
ACLNN(DropoutGenMask, ints(shape), real(drop), int64(seed), int64(offset), out(mask)) {
  keep_mask(shape, drop, key(seed, offset), mask);
}

ACLNN(
    RReluWithNoise, tensor(self), inout(noise), scalar(lower), scalar(upper), flag(training), int64(seed),
    int64(offset), out(out)) {
  rrelu(self, noise, lower.toDouble(), upper.toDouble(), training, key(seed, offset), out);
}
ACLNN(
    InplaceRReluWithNoise, inout(self), inout(noise), scalar(lower), scalar(upper), flag(training), int64(seed),
    int64(offset)) {
  rrelu(self, noise, lower.toDouble(), upper.toDouble(), training, key(seed, offset), self);
}

static std::string no_bits_for(const at::Tensor& self, const at::Tensor& mask, double, const at::Tensor&) {
  return mask.scalar_type() == at::kByte && 8 * mask.numel() >= self.numel()
      ? ""
      : c10::str("a mask of ", mask.numel(), ' ', mask.scalar_type(), " has no bit for each of ", self.numel());
}
ACLNN_UNLESS(DropoutDoMask, no_bits_for, tensor(self), tensor(mask), real(drop), out(out)) {
  auto keep = at::empty(self.sizes(), self.options().dtype(at::kBool));
  const auto* bytes = mask.const_data_ptr<uint8_t>();
  auto* bits = keep.mutable_data_ptr<bool>();
  for (int64_t i = 0; i < keep.numel(); ++i) {
    bits[i] = bytes[i / 8] >> i % 8 & 1;
  }
  at::mul_out(out, self, keep);
  out.mul_(drop == 1 ? 0. : 1 / (1 - drop));
}
