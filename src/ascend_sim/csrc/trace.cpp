#include "trace.h"
#include "common.h"

#include <algorithm>
#include <mutex>
#include <vector>
#if defined(__x86_64__)
#include <cpuid.h>
#include <x86intrin.h>
#endif

namespace sim {

std::atomic<bool> tracing{false};

namespace {

std::mutex mutex;
std::vector<Span>& spans() {
  static auto* all = new std::vector<Span>; // never destroyed: a device thread may outlive main()
  return *all;
}

std::vector<PacedSpan>& paced_spans() {
  static auto* all = new std::vector<PacedSpan>;
  return *all;
}

// Both clocks at once, when the trace began and when it ended.
struct Instant {
  uint64_t ticks = 0;
  double seconds = 0;
};
Instant began, ended;

Instant instant() {
  return {ticks(), now()};
}

double seconds_at(uint64_t t) {
  const double rate = (ended.seconds - began.seconds) / static_cast<double>(ended.ticks - began.ticks);
  return began.seconds + static_cast<double>(static_cast<int64_t>(t - began.ticks)) * rate;
}

} // namespace

uint64_t ticks() {
#if defined(__x86_64__)
  static const bool one_rate = [] {
    unsigned a, b, c, d = 0;
    return __get_cpuid(0x80000007, &a, &b, &c, &d) && (d & (1u << 8)); // "invariant TSC"
  }();
  if (one_rate) {
    return __rdtsc();
  }
#endif
  return static_cast<uint64_t>(now() * 1e9);
}

void add_span(const Span& span) {
  std::lock_guard lock(mutex);
  spans().push_back(span);
}
void add_span(const PacedSpan& span) {
  std::lock_guard lock(mutex);
  paced_spans().push_back(span);
}

} // namespace sim

// Start (1) or stop (0) recording. Starting forgets what was recorded before.
SIM_API void ascend_sim_trace(int on) {
  std::lock_guard lock(sim::mutex);
  if (on) {
    sim::spans().clear();
    sim::paced_spans().clear();
    sim::spans().reserve(1 << 14);
    sim::began = sim::instant();
  } else {
    sim::ended = sim::instant();
  }
  sim::tracing.store(on != 0, std::memory_order_relaxed);
}

// Copy up to `capacity` spans of the last trace to `out`; return how many there are. Those of the computing clock have
// roof -1: it does not ask a kernel for its work.
SIM_API size_t ascend_sim_spans(sim::PacedSpan* out, size_t capacity) {
  std::lock_guard lock(sim::mutex);
  const auto& paced = sim::paced_spans();
  const auto& spans = sim::spans();
  const size_t first = std::min(capacity, paced.size()), rest = std::min(capacity - first, spans.size());
  out = std::copy_n(paced.begin(), first, out);
  std::transform(spans.begin(), spans.begin() + rest, out, [](const sim::Span& s) {
    return sim::PacedSpan{
        {s.name, s.stream, sim::seconds_at(s.enqueued), sim::seconds_at(s.started), sim::seconds_at(s.ended)}, 0, 0, -1, true};
  });
  return paced.size() + spans.size();
}
