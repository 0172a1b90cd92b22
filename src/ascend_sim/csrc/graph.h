// Capture and replay. A graph is a list of nodes per stream that took part ("lane"), with record and wait
// nodes between the lanes. A replay runs lane 0 on the stream that it was launched on and each other lane
// on a stream of the graph's own, so what ran side by side in the capture runs side by side in the replay.
#pragma once

#include "common.h"
#include "task.h"

#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <vector>

namespace sim {

class Stream;

// The number of this thread. No other has it, before or after: std::thread::id is given anew when a thread has ended.
uint64_t this_thread();

// Set by a record node, awaited by wait nodes of other lanes, in every replay anew.
using Join = std::atomic<bool>;

struct Node {
  enum Kind { kernel, record, wait } kind;
  TaskPtr task;  // kernel
  int join = -1; // record, wait: index of the join
};

struct Lane {
  Stream* captured_on;
  std::vector<Node> nodes;
  std::shared_ptr<Stream> runs_on; // lanes 1…: the graph's own stream, made at the first replay
};

class Graph {
 public:
  Graph(aclmdlRICaptureMode mode, Stream* origin);
  ~Graph();

  // Capture. All under capture_mutex().
  void add(int lane, TaskPtr kernel);
  int record(int lane);                // returns the join
  void wait(int lane, int join);
  int fork(Stream* stream);            // a new lane; returns its index
  bool all_joined() const;             // does every lane's work come before the end of lane 0?
  void leave();                        // the streams stop capturing

  // On the device thread of `stream`.
  void replay(Stream* stream, double enqueued);
  bool running() const { return replays.load() > 0; }
  std::string json() const; // what aclmdlRIDebugJsonPrint writes

  const uint32_t id;
  const aclmdlRICaptureMode mode;
  const uint64_t thread = this_thread();
  std::atomic<int> replays{0}; // launched and not finished

 private:
  void run_lane(Lane& lane, int stream, double enqueued);
  void await(const Join& join);

  std::vector<Lane> lanes_;
  std::vector<std::pair<int, size_t>> joins_; // of each join: the lane, and the node in it
  std::unique_ptr<Join[]> states_;
  std::mutex replay_mutex_; // one replay at a time: all replays share the graph's memory
  std::mutex mutex_; // of what the lanes share in a replay
  std::condition_variable joined_;
};

std::mutex& capture_mutex();
// The running capture with this id, or null. Under capture_mutex().
Graph* find_capture(uint32_t id);

// May this thread make a call that is unsafe while somebody captures? 107030 if not.
aclError check_unsafe_call(const char* call);

} // namespace sim
