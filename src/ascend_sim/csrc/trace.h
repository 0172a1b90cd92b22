// Kernel spans for the timeline pictures. Off, a kernel pays one relaxed load.
#pragma once

#include <atomic>
#include <cstdint>

namespace sim {

extern std::atomic<bool> tracing;

// The clock of a trace: the processor's counter, if it has one rate for all cores, else nanoseconds. Reading it costs a
// third of now(), and a trace reads it twice for each kernel.
uint64_t ticks();

// One kernel on one stream. Times are ticks(), and seconds on the clock of now() once the trace is over.
template <class Time>
struct SpanOf {
  const char* name; // lives as long as the library
  int stream;
  Time enqueued, started, ended;
};
using Span = SpanOf<uint64_t>;
void add_span(const Span& span);

// The paced clock knows more of a kernel.
struct PacedSpan : SpanOf<double> {
  double flops, bytes;
  int roof; // enum Roof of pace.h
  bool computed;
};
void add_span(const PacedSpan& span);

} // namespace sim
