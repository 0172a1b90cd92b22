// What every file of the device shares: the CANN headers, errors, and the clock.
#pragma once

// The wheel ships the headers of the C interface that it was built against, so a function that we
// define with another signature does not compile.
#include "acl/acl.h"
#include "acl/error_codes/rt_error_codes.h"

#include <atomic>
#include <cstdint>
#include <sched.h>
#include <string>

// CANN's libraries export the C interface and nothing else; so do we.
#define SIM_API extern "C" __attribute__((visibility("default")))

namespace sim {

// Keep `text` for aclGetRecentErrMsg, which torch_npu appends to its own error, and return `code`.
aclError fail(aclError code, const std::string& text);

// What an exception says, without PyTorch's C++ stack.
std::string describe(const std::exception& e);

// Seconds on the clock of time.perf_counter(), so that host and device times share an axis.
double now();

// True in a process that was forked after the device had started: its threads are gone there.
bool forked();
aclError fail_forked();

// True from the start of the end of the process. Whoever waits for something then gives up.
extern std::atomic<bool> stopping;

// Wait for `done` without sleeping, a little. A kernel takes microseconds and a wake-up costs tens of them, so
// between back-to-back tasks nobody sleeps. Yielding keeps a machine with fewer cores than threads going.
template <class Done>
bool spin(Done done) {
  for (int i = 0; i < 200; ++i) {
    if (done()) {
      return true;
    }
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
  }
  constexpr double seconds = 300e-6;
  for (const double until = now() + seconds; now() < until; sched_yield()) {
    if (done()) {
      return true;
    }
  }
  return done();
}

} // namespace sim
