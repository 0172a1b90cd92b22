#include "trace.h"
#include "common.h"

#include <algorithm>
#include <mutex>
#include <vector>

namespace sim {

std::atomic<bool> tracing{false};

namespace {
std::mutex mutex;
std::vector<Span>& spans() {
  static auto* all = new std::vector<Span>; // never destroyed: a device thread may outlive main()
  return *all;
}
} // namespace

void add_span(const Span& span) {
  std::lock_guard lock(mutex);
  spans().push_back(span);
}

} // namespace sim

// Start (1) or stop (0) recording. Starting forgets what was recorded before.
SIM_API void ascend_sim_trace(int on) {
  std::lock_guard lock(sim::mutex);
  if (on) {
    sim::spans().clear();
    sim::spans().reserve(1 << 14);
  }
  sim::tracing.store(on != 0, std::memory_order_relaxed);
}

// Copy up to `capacity` spans to `out`; return how many there are.
SIM_API size_t ascend_sim_spans(sim::Span* out, size_t capacity) {
  std::lock_guard lock(sim::mutex);
  std::copy_n(sim::spans().begin(), std::min(capacity, sim::spans().size()), out);
  return sim::spans().size();
}
