// A stream is a queue and the device thread that empties it.
#pragma once

#include "common.h"
#include "pace.h"
#include "task.h"

#include <algorithm>
#include <atomic>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace sim {

class Graph;
struct TaskGroup;

class Stream {
 public:
  explicit Stream(int id) : id(id) {}
  ~Stream();

  // Put a task at the end of the queue. While the stream captures, callers go through launch() below.
  void enqueue(TaskPtr task);
  // Do something that is no kernel at this point of the queue. The paced clock has no queue of kernels, so mostly at once.
  template <class F>
  void mark(const char* name, F f);
  // Wait until all that was enqueued has run.
  aclError drain(int timeout_ms);
  bool idle() const { return has_run() && now() >= free_at.load(); }
  bool has_run() const { return done_.load(std::memory_order_acquire) == enqueued_.load(std::memory_order_acquire); }
  // When what is launched now begins, on the paced clock.
  double next_start() const { return std::max(now(), free_at.load()); }
  void not_before(double time) {
    std::lock_guard lock(pace_mutex_);
    free_at = std::max(free_at.load(), time);
  }
  // Forget what has not started, finish what has, and end the thread.
  void stop();

  const int id;
  // The graph that this stream records into, or null; and which lane of it. Guarded by capture_mutex().
  std::atomic<Graph*> graph{nullptr};
  int lane = 0;
  // The task group that its launches update, or null; guarded likewise.
  std::atomic<bool> updating{false};
  // On the paced clock: when all that was launched will have run.
  std::atomic<double> free_at{0};
  std::shared_ptr<TaskGroup> update;

 private:
  void start();
  void loop();
  void run(Task& task);

  std::mutex pace_mutex_; // two threads may launch on one stream
  std::mutex mutex_;
  std::condition_variable wake_, finished_;
  std::vector<TaskPtr> queue_;
  std::atomic<uint64_t> enqueued_{0}, done_{0};
  std::atomic<bool> sleeping_{false};
  bool stop_ = false;
  std::thread thread_;
};

template <class F>
void Stream::mark(const char* name, F f) {
  if (paced && has_run()) {
    f();
  } else {
    enqueue(make_marker(name, std::move(f)));
  }
}

// The stream behind a handle. A null handle is the device's implicit default stream.
Stream* stream_of(aclrtStream handle);

// The streams that CANN would hold: each that a program makes, and one for each lane of a graph. 207008 above the budget.
aclError take_stream();
void give_back_stream();

std::shared_ptr<Stream> make_stream();
// Finish what is enqueued, end the thread, and take the stream off the device's list.
void remove_stream(const std::shared_ptr<Stream>& stream);

// As in a thread of Python's, where a device thread goes past autograd otherwise.
struct WithAutograd : c10::impl::ForceDispatchKeyGuard {
  WithAutograd() : ForceDispatchKeyGuard(c10::default_included_set, c10::default_excluded_set) {}
};

// On the thread of a stream, or of a lane of a graph, that is free at `ready` on the paced clock: run a task at its turn,
// and give the time at which that clock has it over. May throw.
double run_in_turn(Task& task, int stream, uint64_t enqueued, double ready);

// Launch on a stream: into the graph while it captures, into a task group while it updates one, else into the queue.
aclError launch(aclrtStream stream, TaskPtr task);

// A kernel that throws puts the whole device in error, as on the hardware: the next call that waits for anything,
// stream, event or device, gives the first such error and clears it.
void put_error(const std::string& text);
aclError take_error();

// Wait for every stream of the device.
aclError synchronize_device(int timeout_ms);

} // namespace sim
