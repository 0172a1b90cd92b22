#include "pace.h"
#include "memory.h"
#include "stream.h"
#include "tensor.h"
#include "trace.h"
#include "unknown.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <algorithm>
#include <ctime>
#include <string_view>

namespace sim {

std::atomic<bool> paced{false};

static Card the_card;
const Card& card() {
  return the_card;
}

namespace {

// What a small kernel may touch: the grid of a weather model of 0.25 degrees is checked in pieces of 16 MB. A product of
// matrices is never small: no control flow needs one, and so the activations of a model are unknown from its first on.
constexpr double small_bytes = 1 << 24;

// Random numbers of these two are the weights that a model begins with. No control flow asks for them, and what follows
// from them is half of the model.
bool draws_weights(std::string_view name) {
  return name.starts_with("aclnnInplaceNormal") || name.starts_with("aclnnInplaceUniform");
}

Roof roof_of(const Accesses& accesses) {
  for (const Access& access : accesses) {
    if (!access.tensor) {
      if (!is_device_memory(access.data)) {
        return link;
      }
    } else if (access.tensor->type == at::kHalf || access.tensor->type == at::kBFloat16) {
      return float16;
    } else if (access.tensor->type == at::kChar) {
      return int8;
    } else if (at::isFloatingType(access.tensor->type)) {
      return float32;
    }
  }
  return float32;
}

double seconds(double flops, double bytes, Roof roof) {
  const Card& c = the_card;
  if (roof == link) {
    return std::max(c.copy, bytes / 2 / c.link); // each byte is read and written
  }
  const double peak = roof == float16 ? c.float16 : roof == int8 ? c.int8 : c.float32;
  return std::max({c.kernel, flops / peak, bytes / c.bandwidth});
}

// As on a device thread, whatever modes this thread is in.
struct PlainCpu : c10::impl::ForceDispatchKeyGuard {
  PlainCpu()
      : ForceDispatchKeyGuard(
            c10::default_included_set, c10::default_excluded_set | c10::autograd_dispatch_keyset_with_ADInplaceOrView) {}
};

bool compute(Task& task) {
  try {
    PlainCpu guard;
    task.run();
    return true;
  } catch (const std::exception& e) {
    put_error(std::string(task.name) + ": " + describe(e));
    return false;
  }
}

} // namespace

double pace(Task& task, int stream, double enqueued, double ready) {
  const Accesses accesses = task.accesses();
  const double flops = task.flops(), bytes = task.bytes();
  const Roof roof = roof_of(accesses);
  const double started = std::max(enqueued, ready), ended = started + seconds(flops, bytes, roof);
  const char* cause = unknown_input(accesses);
  // A copy from the host costs what it costs on the host as well, and its bytes are known.
  const bool small = bytes <= small_bytes && flops == 0 && !draws_weights(task.name);
  const bool computed = !cause && (small || roof == link || task.sizes_an_output()) && compute(task);
  if (cause && roof == link) { // the next wait says so: an error here would stop torch_npu's queue, without a word
    put_error(not_computed("what is copied to the host", cause));
    return ended;
  }
  if (cause && task.sizes_an_output()) {
    put_error(not_computed(std::string("what decides the size of the output of ") + task.name, cause));
  }
  mark_outputs(accesses, computed ? nullptr : task.name);
  if (tracing.load(std::memory_order_relaxed)) {
    add_span({{task.name, stream, enqueued, started, ended}, flops, bytes, roof, computed});
  }
  return ended;
}

bool sleep_until(double time, double latest) {
  const double until = std::min(time, latest);
  constexpr double late = 100e-6; // a sleeper may be
  for (double left; (left = until - now()) > 0 && !stopping;) {
    if (left > late) {
      const double nap = std::min(left - late, 0.02); // to see the end of the process
      const timespec t{0, static_cast<long>(nap * 1e9)};
      nanosleep(&t, nullptr);
    }
  }
  return time <= latest;
}

void host_work(double start, double seconds) {
  sleep_until(start + seconds);
}

void wake_up() {
  if (paced) {
    host_work(now(), the_card.sync);
  }
}

} // namespace sim

// What is there is as good as any memory that is new: torch's allocator has it back, and nobody reads it.
SIM_API void ascend_sim_forget(const void* data, size_t bytes) {
  sim::mark_known(data, bytes);
}

// Choose the clock, for a device that has nothing to do: null for the one that computes.
SIM_API void ascend_sim_set_clock(const sim::Card* card) {
  sim::paced = false;
  if (!card) {
    sim::forget_never_written();
  } else {
    sim::the_card = *card;
    sim::paced = true;
  }
}
