// An event is a marker in a stream: a number that rises when it is recorded and again when that point is reached.
#pragma once

#include "common.h"

#include <c10/util/intrusive_ptr.h>
#include <condition_variable>
#include <mutex>

namespace sim {

struct Event : c10::intrusive_ptr_target {
  explicit Event(uint32_t flags) : flags(flags) {}
  void reach(uint64_t ticket, double when);
  double await(uint64_t ticket); // gives `time`
  bool is_complete() const { return completed >= recorded && now() >= time; } // under the mutex

  const uint32_t flags;
  std::mutex mutex;
  std::condition_variable reached;
  uint64_t recorded = 0, completed = 0;
  double time = 0; // of the last that was reached; on the paced clock it may be still to come
  // Where it was recorded, if that was in a capture: the graph's id, and the join in it. Under capture_mutex().
  uint32_t graph_id = 0;
  int join = -1;
};

} // namespace sim
