// Kernel spans for the timeline pictures. Off, a kernel pays one relaxed load.
#pragma once

#include <atomic>

namespace sim {

extern std::atomic<bool> tracing;

// One kernel on one stream. Times are seconds on the clock of now().
struct Span {
  const char* name; // lives as long as the library
  int stream;
  double enqueued, started, ended;
};

void add_span(const Span& span);

} // namespace sim
