// Capture and replay. A graph is a list of nodes per stream that took part ("lane"), with record and wait
// nodes between the lanes. A replay runs lane 0 on the stream that it was launched on and each other lane
// on a stream of the graph's own, so what ran side by side in the capture runs side by side in the replay.
//
// The rules and their codes are those of CANN's runtime, whose sources are public: github hicann/runtime, v9.0.1
// (02522b7ab), src/runtime/feature/src/context/context.cc and api_impl/api_error.cc.
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

// A point in a lane, made by a record node and awaited by wait nodes.
struct Join {
  int lane;
  bool waited = false, waited_by_origin = false;
};

// A kernel of a task group. Another may take its place between two runs, also while the graph runs.
class GroupTask;
struct TaskGroup {
  std::vector<std::shared_ptr<GroupTask>> tasks;
  bool updating = false;
  size_t updated = 0; // of the tasks, in the update that runs
};
using TaskGroupPtr = std::shared_ptr<TaskGroup>;

// The number of this thread. No other has it, before or after: std::thread::id is given anew when a thread has ended.
uint64_t this_thread();

struct Node {
  enum Kind { kernel, record, wait } kind;
  TaskPtr task;  // kernel
  int join = -1; // record, wait: index of the join
};

struct Lane {
  Stream* captured_on;
  std::vector<Node> nodes;
  TaskGroupPtr group;              // the open task group
  std::shared_ptr<Stream> runs_on; // lanes 1…: the graph's own stream, made at the first replay
};

class Graph {
 public:
  explicit Graph(aclmdlRICaptureMode mode);
  ~Graph();

  // Capture. All under capture_mutex().
  aclError fork(Stream* stream); // into a new lane
  aclError add(int lane, TaskPtr task);
  aclError record(int lane, int* join);
  aclError wait(int lane, int join);
  aclError begin_group(int lane);
  aclError end_group(int lane, TaskGroupPtr* ended);
  void invalidate() { invalid_ = true; } // the end of the capture will say so
  aclError check_complete() const;       // at the end of the capture: is it a graph?
  void leave();                          // the streams stop capturing

  // On the device thread of `stream`.
  void replay(Stream* stream, uint64_t enqueued);
  // The same on the paced clock, at the launch. False if that can't be: work is outside, or queues before it.
  bool pace(Stream* stream);
  bool running() const { return replays.load() > 0 || now() < free_at_; }
  // What aclmdlRIDebugJsonPrint writes: the tasks as a Chrome trace, with their order in the place of times.
  std::string json() const;

  const uint32_t id;
  const aclmdlRICaptureMode mode;
  const uint64_t thread = this_thread();
  std::atomic<int> replays{0}; // launched and not finished

 private:
  aclError check_group(int lane, const char* task);
  void check_memory();
  double run_lane(Lane& lane, int stream, uint64_t enqueued, double ready); // when it is over, on the paced clock
  int stream_of_lane(size_t lane, Stream* origin);
  void await(const std::atomic<bool>& reached);

  std::vector<Lane> lanes_;
  std::vector<Join> joins_;
  std::vector<TaskGroupPtr> groups_;
  bool invalid_ = false;
  bool has_outside_ = false; // a task that happens outside of the device
  aclError group_error_ = ACL_SUCCESS; // what interrupted a task group

  std::mutex replay_mutex_;                      // one replay at a time: all replays share the graph's memory
  std::atomic<double> free_at_{0};               // on the paced clock: the end of the last replay
  std::unique_ptr<std::atomic<bool>[]> reached_; // of each join, in this replay
  std::vector<double> reached_at_;               // on the paced clock
  uint64_t changes_seen_ = 0;                    // of memory, when it was last looked at, and
  bool freed_ = false;                           // what was found
  std::mutex mutex_; // of what the lanes share in a replay
  std::condition_variable joined_;
};

std::mutex& capture_mutex();
// The running capture with this id, or null. Under capture_mutex().
Graph* find_capture(uint32_t id);
bool is_capturing(); // does anybody?

// May this thread make a synchronous copy or memset while somebody captures? 107030 if not.
aclError check_unsafe_call(const char* call);

// 507009 for a task that is no operator.
aclError refuse_in_group(const char* task);
// Put an operator in the place of the next task of the group that `stream` updates. Under capture_mutex().
aclError update_task(Stream* stream, TaskPtr task);

} // namespace sim
