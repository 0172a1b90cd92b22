#include "graph.h"
#include "memory.h"
#include "stream.h"

#include <algorithm>
#include <c10/util/Exception.h>
#include <chrono>
#include <sstream>
#include <string_view>

namespace sim {

class GroupTask final : public Task {
 public:
  explicit GroupTask(TaskPtr task) : Task(task->name), task_(std::move(task)) {}
  void run() override {
    std::lock_guard lock(mutex_);
    // Here, and not before the replay, which an update may still change.
    TORCH_CHECK(!task_->uses_freed_memory(), "it uses memory that was freed: update it with memory that is there");
    task_->run();
  }
  void replace(TaskPtr task) {
    std::lock_guard lock(mutex_);
    task_.swap(task);
  }
  Accesses accesses() const override {
    std::lock_guard lock(mutex_);
    return task_->accesses();
  }
  double flops() const override {
    std::lock_guard lock(mutex_);
    return task_->flops();
  }
  double bytes() const override {
    std::lock_guard lock(mutex_);
    return task_->bytes();
  }

 private:
  mutable std::mutex mutex_;
  TaskPtr task_;
};

namespace {

// The node of a grouped kernel: the group has it too.
struct Grouped final : Task {
  explicit Grouped(std::shared_ptr<GroupTask> shared) : Task(shared->name), shared(std::move(shared)) {}
  void run() override { shared->run(); }
  Accesses accesses() const override { return shared->accesses(); }
  double flops() const override { return shared->flops(); }
  double bytes() const override { return shared->bytes(); }
  std::shared_ptr<GroupTask> shared;
};

bool is_operator(const char* task) {
  return std::string_view(task).starts_with("aclnn");
}

} // namespace

aclError refuse_in_group(const char* task) {
  return fail(ACL_ERROR_RT_TASK_TYPE_NOT_SUPPORT, std::string(task) + ": a task group, and its update, takes operators only");
}

uint64_t this_thread() {
  static std::atomic<uint64_t> last{0};
  thread_local const uint64_t number = ++last;
  return number;
}

static std::atomic<uint32_t> next_id{1};

Graph::Graph(aclmdlRICaptureMode mode) : id(next_id++), mode(mode) {}

Graph::~Graph() {
  for (Lane& lane : lanes_) {
    if (lane.runs_on) {
      remove_stream(lane.runs_on);
    }
    give_back_stream();
  }
}

aclError Graph::fork(Stream* stream) {
  if (const aclError error = take_stream()) {
    return error;
  }
  lanes_.push_back({stream});
  stream->lane = static_cast<int>(lanes_.size()) - 1;
  stream->graph = this;
  return ACL_SUCCESS;
}

// While a task group is open, only the stream that opened it may be given work, and only operators.
aclError Graph::check_group(int lane, const char* task) {
  const auto open = [](const Lane& l) { return l.group != nullptr; };
  if (std::none_of(lanes_.begin(), lanes_.end(), open) || (lanes_[lane].group && is_operator(task))) {
    return ACL_SUCCESS;
  }
  invalid_ = true;
  if (lanes_[lane].group) {
    return group_error_ = refuse_in_group(task);
  }
  group_error_ = fail(
      ACL_ERROR_STREAM_TASK_GROUP_INTR, "a task group is open on another stream of this capture: end it there first");
  return group_error_;
}

aclError Graph::add(int lane, TaskPtr task) {
  if (const aclError error = check_group(lane, task->name)) {
    return error;
  }
  has_outside_ |= task->is_outside();
  if (const auto& group = lanes_[lane].group) {
    task = std::make_unique<Grouped>(group->tasks.emplace_back(std::make_shared<GroupTask>(std::move(task))));
  }
  lanes_[lane].nodes.push_back({Node::kernel, std::move(task)});
  return ACL_SUCCESS;
}

aclError Graph::record(int lane, int* join) {
  if (const aclError error = check_group(lane, "an event's record")) {
    return error;
  }
  *join = static_cast<int>(joins_.size());
  joins_.push_back({lane});
  lanes_[lane].nodes.push_back({Node::record, nullptr, *join});
  return ACL_SUCCESS;
}

aclError Graph::wait(int lane, int join) {
  if (const aclError error = check_group(lane, "a wait for an event")) {
    return error;
  }
  joins_[join].waited = true;
  joins_[join].waited_by_origin |= lane == 0 && joins_[join].lane != 0;
  lanes_[lane].nodes.push_back({Node::wait, nullptr, join});
  return ACL_SUCCESS;
}

aclError Graph::begin_group(int lane) {
  if (lanes_[lane].group) {
    return fail(ACL_ERROR_STREAM_TASK_GROUP_STATUS, "a task group is open on this stream already: end it first");
  }
  lanes_[lane].group = std::make_shared<TaskGroup>();
  return ACL_SUCCESS;
}

aclError Graph::end_group(int lane, TaskGroupPtr* ended) {
  TaskGroupPtr group = std::move(lanes_[lane].group);
  if (!group) {
    return fail(ACL_ERROR_STREAM_TASK_GROUP_STATUS, "no task group is open on this stream: begin one first");
  }
  if (group_error_) {
    return fail(group_error_, "the task group was interrupted by an earlier error");
  }
  if (invalid_) {
    return fail(ACL_ERROR_RT_STREAM_CAPTURE_INVALIDATED, "an earlier error has invalidated this capture");
  }
  groups_.push_back(group);
  *ended = std::move(group);
  return ACL_SUCCESS;
}

// CANN asks that each side stream ends with the record of an event that some stream waits for, and that the origin
// waits for one of them.
aclError Graph::check_complete() const {
  if (invalid_) {
    return fail(ACL_ERROR_RT_STREAM_CAPTURE_INVALIDATED, "an earlier error has invalidated this capture: capture again");
  }
  if (std::any_of(lanes_.begin(), lanes_.end(), [](const Lane& lane) { return lane.group != nullptr; })) {
    return fail(ACL_ERROR_STREAM_TASK_GROUP_STATUS, "a task group is still open: end it before the capture");
  }
  bool origin_waits = lanes_.size() == 1, all_joined = true;
  for (size_t l = 1; l < lanes_.size(); ++l) {
    const Node& last = lanes_[l].nodes.back(); // there is one: a wait drew the stream in
    all_joined &= last.kind == Node::record && joins_[last.join].waited;
    origin_waits |= last.kind == Node::record && joins_[last.join].waited_by_origin;
  }
  return all_joined && origin_waits
      ? ACL_SUCCESS
      : fail(
            ACL_ERROR_RT_STREAM_UNJOINED,
            "a stream that was drawn into the capture was not joined: let the capturing stream wait for it before the end");
}

void Graph::leave() {
  for (Lane& lane : lanes_) {
    lane.captured_on->graph = nullptr;
  }
}

aclError update_task(Stream* stream, TaskPtr task) {
  const TaskGroupPtr& group = stream->update;
  if (!is_operator(task->name)) {
    return refuse_in_group(task->name);
  }
  if (group->updated == group->tasks.size()) {
    return fail(
        ACL_ERROR_RT_INTERNAL_ERROR,
        "the task group has " + std::to_string(group->tasks.size()) + " operators: the update launches more");
  }
  // In the order of the stream, as all its work.
  stream->mark("update", [slot = group->tasks[group->updated++], task = std::move(task)]() mutable {
    slot->replace(std::move(task));
  });
  return ACL_SUCCESS;
}

void Graph::check_memory() {
  const uint64_t changes = memory_changes();
  if (changes != changes_seen_) {
    changes_seen_ = changes;
    const auto freed = [](const Node& node) { return node.task && node.task->uses_freed_memory(); };
    freed_ = std::any_of(lanes_.begin(), lanes_.end(), [&](const Lane& lane) {
      return std::any_of(lane.nodes.begin(), lane.nodes.end(), freed);
    });
  }
  TORCH_CHECK(
      !freed_, "the graph uses memory that was freed: keep its static inputs, and its pool, as long as you replay it");
}

double Graph::run_lane(Lane& lane, int stream, uint64_t enqueued, double ready) {
  for (Node& node : lane.nodes) {
    if (stopping) {
      break;
    }
    switch (node.kind) {
      case Node::kernel:
        try {
          ready = run_in_turn(*node.task, stream, enqueued, ready);
        } catch (const std::exception& e) {
          put_error(std::string(node.task->name) + " in a replay: " + describe(e)); // and on with the rest
        }
        break;
      case Node::record:
        reached_at_[node.join] = ready;
        reached_[node.join].store(true, std::memory_order_release);
        if (lanes_.size() > 1) {
          std::lock_guard lock(mutex_);
          joined_.notify_all();
        }
        break;
      case Node::wait:
        await(reached_[node.join]);
        ready = std::max(ready, reached_at_[node.join]);
        break;
    }
  }
  return ready;
}

void Graph::await(const std::atomic<bool>& reached) {
  auto done = [&] { return reached.load(std::memory_order_acquire) || stopping; };
  if (!spin(done)) {
    std::unique_lock lock(mutex_);
    while (!done()) {
      joined_.wait_for(lock, std::chrono::milliseconds(20));
    }
  }
}

void Graph::replay(Stream* stream, uint64_t enqueued) {
  std::lock_guard one_at_a_time(replay_mutex_);
  check_memory();
  if (!reached_) {
    reached_ = std::make_unique<std::atomic<bool>[]>(joins_.size());
    reached_at_.resize(joins_.size());
  }
  for (size_t j = 0; j < joins_.size(); ++j) {
    reached_[j] = false;
  }
  const double ready = paced ? std::max(stream->next_start(), free_at_.load()) : 0;
  std::vector<double> ended(lanes_.size(), ready);
  for (size_t l = 1; l < lanes_.size(); ++l) {
    const int stream_id = stream_of_lane(l, stream);
    lanes_[l].runs_on->enqueue(make_marker("lane", [&, l, stream_id, enqueued, ready] {
      ended[l] = run_lane(lanes_[l], stream_id, enqueued, ready);
    }));
  }
  ended[0] = run_lane(lanes_[0], stream->id, enqueued, ready);
  for (size_t l = 1; l < lanes_.size(); ++l) {
    lanes_[l].runs_on->drain(-1);
  }
  if (paced) {
    stream->free_at = free_at_ = *std::max_element(ended.begin(), ended.end());
  }
}

int Graph::stream_of_lane(size_t lane, Stream* origin) {
  auto& runs_on = lanes_[lane].runs_on;
  if (lane > 0 && !runs_on) {
    runs_on = make_stream();
  }
  return lane > 0 ? runs_on->id : origin->id;
}

bool Graph::pace(Stream* stream) {
  if (has_outside_ || !stream->has_run()) {
    return false;
  }
  std::lock_guard one_at_a_time(replay_mutex_);
  try {
    check_memory();
  } catch (const std::exception& e) {
    put_error(std::string("replay: ") + describe(e));
    return true;
  }
  const double launched = now();
  std::vector<double> reached(joins_.size(), -1), ready(lanes_.size(), std::max(stream->next_start(), free_at_.load()));
  std::vector<size_t> next(lanes_.size());
  // Each lane goes on until it waits for another. The capture has seen to it that they end.
  for (bool moved = true; moved;) {
    moved = false;
    for (size_t l = 0; l < lanes_.size(); ++l) {
      const int stream_id = stream_of_lane(l, stream);
      for (auto& nodes = lanes_[l].nodes; next[l] < nodes.size(); ++next[l]) {
        Node& node = nodes[next[l]];
        if (node.kind == Node::record) {
          reached[node.join] = ready[l];
        } else if (node.kind == Node::wait) {
          if (reached[node.join] < 0) {
            break;
          }
          ready[l] = std::max(ready[l], reached[node.join]);
        } else if (node.task->is_kernel()) {
          ready[l] = sim::pace(*node.task, stream_id, launched, ready[l]);
        } else {
          node.task->run();
        }
        moved = true;
      }
    }
  }
  stream->free_at = free_at_ = *std::max_element(ready.begin(), ready.end());
  return true;
}

std::string Graph::json() const {
  std::ostringstream out;
  const char* comma = "[";
  for (size_t l = 0; l < lanes_.size(); ++l) {
    for (size_t n = 0; n < lanes_[l].nodes.size(); ++n) {
      const Node& node = lanes_[l].nodes[n];
      const std::string name = node.kind == Node::kernel ? node.task->name
          : (node.kind == Node::record ? "EVENT_RECORD_" : "EVENT_WAIT_") + std::to_string(node.join);
      out << comma << "\n{\"name\": \"" << name << "\", \"pid\": \"aclGraph " << id << "\", \"tid\": \"stream" << l
          << "\", \"ts\": " << n << ", \"dur\": 1, \"ph\": \"X\", \"args\": {\"Model Id\": " << id << ", \"Stream Id\": " << l
          << "}}";
      comma = ",";
    }
  }
  out << "]\n";
  return out.str();
}

} // namespace sim
