// A unit of work for a stream: one kernel, one copy, one graph replay.
#pragma once

#include <memory>

namespace sim {

struct Task {
  explicit Task(const char* name) : name(name) {}
  virtual ~Task() = default;
  Task(const Task&) = delete;
  Task& operator=(const Task&) = delete;

  virtual void run() = 0; // on the device thread; may throw
  // A kernel is counted, traced and recorded as a node of a graph. Markers and whole replays are not.
  virtual bool is_kernel() const { return true; }

  const char* const name; // a string literal
  double enqueued = 0;
};

using TaskPtr = std::unique_ptr<Task>;

template <class F>
struct FunctionTask final : Task {
  FunctionTask(const char* name, bool kernel, F f) : Task(name), kernel(kernel), f(std::move(f)) {}
  void run() override { f(); }
  bool is_kernel() const override { return kernel; }
  bool kernel;
  F f;
};

template <class F>
TaskPtr make_kernel(const char* name, F f) {
  return std::make_unique<FunctionTask<F>>(name, true, std::move(f));
}
template <class F>
TaskPtr make_marker(const char* name, F f) {
  return std::make_unique<FunctionTask<F>>(name, false, std::move(f));
}

// Run one task and trace it. An exception is the caller's.
void run_task(Task& task, int stream, double enqueued);

} // namespace sim
