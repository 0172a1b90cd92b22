// A unit of work for a stream: one kernel, one copy, one graph replay.
#pragma once

#include <c10/util/SmallVector.h>
#include <cstdint>
#include <memory>

struct aclTensor;

namespace sim {

// What a task reads or writes: a tensor, or plain bytes.
struct Access {
  const aclTensor* tensor; // null for plain bytes
  void* data;              // plain bytes: where,
  size_t bytes;            // and how many
  bool reads, writes;
};
using Accesses = c10::SmallVector<Access, 8>;

struct Task {
  explicit Task(const char* name) : name(name) {}
  virtual ~Task() = default;
  Task(const Task&) = delete;
  Task& operator=(const Task&) = delete;

  virtual void run() = 0; // on the device thread; may throw
  // A kernel is counted, traced and recorded as a node of a graph. Markers and whole replays are not.
  virtual bool is_kernel() const { return true; }
  // Something that happens outside of the device when its turn comes: a host function, a word that is written or awaited.
  virtual bool is_outside() const { return false; }
  // A graph keeps addresses, not memory. Before a replay it asks whether what is at them is gone.
  virtual bool uses_freed_memory() const { return false; }
  // For the paced clock: the memory that a kernel touches, the bytes that it reads and those that it writes, and its
  // floating point operations in matrix products and convolutions (a multiplication with its addition is two).
  virtual Accesses accesses() const { return {}; }
  virtual double bytes() const;
  virtual double flops() const { return 0; }
  // Does the size of an output depend on values? Then it can't be skipped.
  virtual bool sizes_an_output() const { return false; }

  const char* const name; // a string literal
  uint64_t enqueued = 0; // in ticks(), while a trace runs
};

using TaskPtr = std::unique_ptr<Task>;

// Something that happens at a point of a stream and is no kernel.
template <class F>
struct Marker final : Task {
  Marker(const char* name, F f) : Task(name), f(std::move(f)) {}
  void run() override { f(); }
  bool is_kernel() const override { return false; }
  F f;
};

template <class F>
TaskPtr make_marker(const char* name, F f) {
  return std::make_unique<Marker<F>>(name, std::move(f));
}

template <class F>
struct Outside final : Task {
  Outside(const char* name, F f) : Task(name), f(std::move(f)) {}
  void run() override { f(); }
  bool is_kernel() const override { return false; }
  bool is_outside() const override { return true; }
  F f;
};

template <class F>
TaskPtr make_outside(const char* name, F f) {
  return std::make_unique<Outside<F>>(name, std::move(f));
}

// Run one task and trace it. An exception is the caller's.
void run_task(Task& task, int stream, uint64_t enqueued);

} // namespace sim
