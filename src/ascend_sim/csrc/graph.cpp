#include "graph.h"
#include "memory.h"
#include "stream.h"

#include <algorithm>
#include <c10/util/Exception.h>
#include <chrono>
#include <fstream>
#include <sstream>
#include <string_view>
#include <thread>
#include <unordered_map>

namespace sim {

class GroupTask final : public Task {
 public:
  explicit GroupTask(TaskPtr task) : Task(task->name), task_(std::move(task)) {}
  void run() override {
    std::lock_guard lock(mutex_);
    task_->run();
  }
  bool uses_freed_memory() const override {
    std::lock_guard lock(mutex_);
    return task_->uses_freed_memory();
  }
  void replace(TaskPtr task) {
    std::lock_guard lock(mutex_);
    task_.swap(task);
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
  bool uses_freed_memory() const override { return shared->uses_freed_memory(); }
  std::shared_ptr<GroupTask> shared;
};

// Captures that are running, graphs by their handle, and task groups by theirs. Never destroyed: threads may outlive
// main().
auto& captures = *new std::vector<Graph*>;
auto& graphs = *new std::unordered_map<aclmdlRI, std::shared_ptr<Graph>>;
auto& groups = *new std::unordered_map<aclrtTaskGrp, std::weak_ptr<TaskGroup>>;
uint32_t next_id = 1;

thread_local aclmdlRICaptureMode thread_mode = ACL_MODEL_RI_CAPTURE_MODE_GLOBAL;

std::shared_ptr<Graph> find_graph(aclmdlRI handle) {
  std::lock_guard lock(capture_mutex());
  auto it = graphs.find(handle);
  return it == graphs.end() ? nullptr : it->second;
}

bool is_operator(const Task& task) {
  return std::string_view(task.name).starts_with("aclnn");
}

aclError refuse_in_group(const Task& task) {
  return fail(ACL_ERROR_RT_TASK_TYPE_NOT_SUPPORT, std::string(task.name) + ": a task group takes operators only");
}

} // namespace

uint64_t this_thread() {
  static std::atomic<uint64_t> last{0};
  thread_local const uint64_t number = ++last;
  return number;
}

std::mutex& capture_mutex() {
  static auto* mutex = new std::mutex;
  return *mutex;
}

Graph* find_capture(uint32_t id) {
  auto it = std::find_if(captures.begin(), captures.end(), [&](Graph* g) { return g->id == id; });
  return it == captures.end() ? nullptr : *it;
}

bool is_capturing() {
  std::lock_guard lock(capture_mutex());
  return !captures.empty();
}

aclError check_unsafe_call(const char* call) {
  if (forked()) {
    return fail_forked();
  }
  std::lock_guard lock(capture_mutex());
  // The strictest mode of all captures, and of those that this thread began.
  constexpr int none = ACL_MODEL_RI_CAPTURE_MODE_RELAXED + 1;
  int all = none, mine = none;
  for (const Graph* graph : captures) {
    all = std::min<int>(all, graph->mode);
    if (graph->thread == this_thread()) {
      mine = std::min<int>(mine, graph->mode);
    }
  }
  const bool refused = thread_mode == ACL_MODEL_RI_CAPTURE_MODE_GLOBAL
      ? all == ACL_MODEL_RI_CAPTURE_MODE_GLOBAL || mine == ACL_MODEL_RI_CAPTURE_MODE_THREAD_LOCAL
      : thread_mode == ACL_MODEL_RI_CAPTURE_MODE_THREAD_LOCAL && mine <= ACL_MODEL_RI_CAPTURE_MODE_THREAD_LOCAL;
  return refused ? fail(ACL_ERROR_RT_CAPTURE_MODE_NOT_SUPPORT, std::string(call) + " is not allowed during a capture in this mode")
                 : ACL_SUCCESS;
}

Graph::Graph(aclmdlRICaptureMode mode) : id(next_id++), mode(mode) {}

Graph::~Graph() {
  for (Lane& lane : lanes_) {
    if (lane.runs_on) {
      remove_stream(lane.runs_on);
    }
    give_back_stream();
  }
  std::lock_guard lock(capture_mutex());
  for (const auto& group : groups_) {
    groups.erase(group.get());
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

// While a task group is open, only the stream that opened it may be given work.
aclError Graph::check_interrupt(int lane) {
  const auto open = [](const Lane& l) { return l.group != nullptr; };
  if (lanes_[lane].group || std::none_of(lanes_.begin(), lanes_.end(), open)) {
    return ACL_SUCCESS;
  }
  invalid_ = true;
  group_error_ = fail(
      ACL_ERROR_STREAM_TASK_GROUP_INTR, "a task group is open on another stream of this capture: end it there first");
  return group_error_;
}

aclError Graph::add(int lane, TaskPtr task) {
  if (const aclError error = check_interrupt(lane)) {
    return error;
  }
  if (const auto& group = lanes_[lane].group) {
    if (!is_operator(*task)) {
      invalid_ = true;
      return group_error_ = refuse_in_group(*task);
    }
    task = std::make_unique<Grouped>(group->tasks.emplace_back(std::make_shared<GroupTask>(std::move(task))));
  }
  lanes_[lane].nodes.push_back({Node::kernel, std::move(task)});
  return ACL_SUCCESS;
}

aclError Graph::record(int lane, int* join) {
  if (const aclError error = check_interrupt(lane)) {
    return error;
  }
  *join = static_cast<int>(joins_.size());
  joins_.push_back({lane});
  lanes_[lane].nodes.push_back({Node::record, nullptr, *join});
  return ACL_SUCCESS;
}

aclError Graph::wait(int lane, int join) {
  if (const aclError error = check_interrupt(lane)) {
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

aclError Graph::end_group(int lane, TaskGroup** handle) {
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
  *handle = group.get();
  groups.emplace(group.get(), group);
  groups_.push_back(std::move(group));
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
  if (!is_operator(*task)) {
    return refuse_in_group(*task);
  }
  if (group->updated == group->tasks.size()) {
    return fail(
        ACL_ERROR_RT_INTERNAL_ERROR,
        "the task group has " + std::to_string(group->tasks.size()) + " operators: the update launches more");
  }
  // In the order of the stream, as all its work.
  stream->enqueue(make_marker("update", [slot = group->tasks[group->updated++], task = std::move(task)]() mutable {
    slot->replace(std::move(task));
  }));
  return ACL_SUCCESS;
}

bool Graph::uses_freed_memory() {
  const uint64_t changes = memory_changes();
  if (changes != frees_seen_) {
    frees_seen_ = changes;
    const auto freed = [](const Node& node) { return node.task && node.task->uses_freed_memory(); };
    freed_ = std::any_of(lanes_.begin(), lanes_.end(), [&](const Lane& lane) {
      return std::any_of(lane.nodes.begin(), lane.nodes.end(), freed);
    });
  }
  return freed_;
}

void Graph::run_lane(Lane& lane, int stream, uint64_t enqueued) {
  for (Node& node : lane.nodes) {
    if (stopping) {
      return;
    }
    switch (node.kind) {
      case Node::kernel:
        try {
          run_task(*node.task, stream, enqueued);
        } catch (const std::exception& e) {
          put_error(std::string(node.task->name) + " in a replay: " + describe(e)); // and on with the rest
        }
        break;
      case Node::record:
        reached_[node.join].store(true, std::memory_order_release);
        if (lanes_.size() > 1) {
          std::lock_guard lock(mutex_);
          joined_.notify_all();
        }
        break;
      case Node::wait:
        await(reached_[node.join]);
        break;
    }
  }
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
  TORCH_CHECK(
      !uses_freed_memory(),
      "the graph uses memory that was freed: keep its static inputs, and its pool, as long as you replay it");
  if (!reached_) {
    reached_ = std::make_unique<std::atomic<bool>[]>(joins_.size());
  }
  for (size_t j = 0; j < joins_.size(); ++j) {
    reached_[j] = false;
  }
  for (size_t l = 1; l < lanes_.size(); ++l) {
    Lane& lane = lanes_[l];
    if (!lane.runs_on) {
      lane.runs_on = make_stream();
    }
    lane.runs_on->enqueue(make_marker("lane", [this, &lane, enqueued] { run_lane(lane, lane.runs_on->id, enqueued); }));
  }
  run_lane(lanes_[0], stream->id, enqueued);
  for (size_t l = 1; l < lanes_.size(); ++l) {
    lanes_[l].runs_on->drain(-1);
  }
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

namespace {

// A replay of a graph, which may be destroyed meanwhile.
struct Replay final : Task {
  Replay(std::shared_ptr<Graph> graph, Stream* stream) : Task("replay"), graph(std::move(graph)), stream(stream) {
    ++this->graph->replays;
  }
  ~Replay() override { --graph->replays; }
  void run() override { graph->replay(stream, enqueued); }
  bool is_kernel() const override { return false; }

  std::shared_ptr<Graph> graph;
  Stream* stream;
};

} // namespace
} // namespace sim

using namespace sim;

SIM_API aclError aclmdlRICaptureBegin(aclrtStream handle, aclmdlRICaptureMode mode) {
  if (!handle) {
    return fail(ACL_ERROR_RT_STREAM_CAPTURE_IMPLICIT, "the implicit default stream can't be captured");
  }
  if (forked()) {
    return fail_forked();
  }
  Stream* stream = stream_of(handle);
  std::shared_ptr<Graph> graph; // dies after the lock
  std::lock_guard lock(capture_mutex());
  if (stream->graph.load()) {
    return fail(ACL_ERROR_RT_STREAM_CAPTURED, "the stream is being captured already");
  }
  graph = std::make_shared<Graph>(mode);
  if (const aclError error = graph->fork(stream)) {
    return error;
  }
  captures.push_back(graph.get());
  graphs.emplace(graph.get(), std::move(graph));
  return ACL_SUCCESS;
}

SIM_API aclError aclmdlRICaptureGetInfo(aclrtStream handle, aclmdlRICaptureStatus* status, aclmdlRI* model) {
  Graph* graph = handle ? stream_of(handle)->graph.load() : nullptr;
  *status = graph ? ACL_MODEL_RI_CAPTURE_STATUS_ACTIVE : ACL_MODEL_RI_CAPTURE_STATUS_NONE;
  if (model) {
    *model = graph;
  }
  return ACL_SUCCESS;
}

SIM_API aclError aclmdlRIGetId(aclmdlRI handle, uint32_t* id) {
  auto graph = find_graph(handle);
  if (!graph) {
    return fail(ACL_ERROR_RT_PARAM_INVALID, "no such graph");
  }
  *id = graph->id;
  return ACL_SUCCESS;
}

// Whatever it returns but "not captured" and "unmatched", the capture is over.
SIM_API aclError aclmdlRICaptureEnd(aclrtStream handle, aclmdlRI* model) {
  *model = nullptr;
  Stream* stream = stream_of(handle);
  std::shared_ptr<Graph> failed; // dies after the lock
  std::lock_guard lock(capture_mutex());
  Graph* graph = stream->graph.load();
  if (!graph) {
    return fail(ACL_ERROR_RT_STREAM_NOT_CAPTURED, "the stream is not being captured");
  }
  if (stream->lane != 0) {
    return fail(ACL_ERROR_RT_STREAM_CAPTURE_UNMATCHED, "the capture was begun on another stream: end it there");
  }
  graph->leave();
  std::erase(captures, graph);
  const bool wrong_thread =
      graph->mode != ACL_MODEL_RI_CAPTURE_MODE_RELAXED && graph->thread != this_thread();
  const aclError error = wrong_thread
      ? fail(ACL_ERROR_RT_STREAM_CAPTURE_WRONG_THREAD, "the capture was begun by another thread: end it there")
      : graph->check_complete();
  if (error) {
    failed = graphs.extract(graph).mapped();
  } else {
    *model = graph;
  }
  return error;
}

// The streams of a task group: 107029 unless it captures.
template <class F>
static aclError in_capture(aclrtStream handle, F then) {
  Stream* stream = stream_of(handle);
  std::lock_guard lock(capture_mutex());
  Graph* graph = stream->graph.load();
  return graph ? then(*graph, stream->lane) : fail(ACL_ERROR_RT_STREAM_NOT_CAPTURED, "the stream is not being captured");
}
SIM_API aclError aclmdlRICaptureTaskGrpBegin(aclrtStream stream) {
  return in_capture(stream, [](Graph& graph, int lane) { return graph.begin_group(lane); });
}
SIM_API aclError aclmdlRICaptureTaskGrpEnd(aclrtStream stream, aclrtTaskGrp* handle) {
  TaskGroup* group = nullptr;
  const aclError error = in_capture(stream, [&](Graph& graph, int lane) { return graph.end_group(lane, &group); });
  *handle = group;
  return error;
}

// Between these two, what the stream launches takes the place of what the group recorded.
SIM_API aclError aclmdlRICaptureTaskUpdateBegin(aclrtStream handle, aclrtTaskGrp group_handle) {
  Stream* stream = stream_of(handle);
  std::lock_guard lock(capture_mutex());
  if (stream->graph.load()) {
    return fail(ACL_ERROR_RT_STREAM_CAPTURED, "the stream is being captured: update on another one");
  }
  const auto found = groups.find(group_handle);
  const TaskGroupPtr group = found == groups.end() ? nullptr : found->second.lock();
  if (!group) {
    return fail(ACL_ERROR_RT_PARAM_INVALID, "no such task group, or its graph is gone");
  }
  if (stream->updating.load() || group->updating) {
    return fail(ACL_ERROR_STREAM_TASK_GROUP_STATUS, "an update of this stream, or of this task group, runs already: end it first");
  }
  group->updating = true;
  group->updated = 0;
  stream->update = group;
  stream->updating = true;
  return ACL_SUCCESS;
}
SIM_API aclError aclmdlRICaptureTaskUpdateEnd(aclrtStream handle) {
  Stream* stream = stream_of(handle);
  std::lock_guard lock(capture_mutex());
  if (stream->graph.load()) {
    return fail(ACL_ERROR_RT_STREAM_CAPTURED, "the stream is being captured");
  }
  if (!stream->updating.exchange(false)) {
    return fail(ACL_ERROR_STREAM_TASK_GROUP_STATUS, "the stream updates no task group: begin an update first");
  }
  const TaskGroupPtr group = std::move(stream->update);
  group->updating = false;
  return group->updated == group->tasks.size()
      ? ACL_SUCCESS
      : fail(
            ACL_ERROR_RT_INTERNAL_ERROR,
            "the update launched " + std::to_string(group->updated) + " operators, the task group has " +
                std::to_string(group->tasks.size()));
}

SIM_API aclError aclmdlRICaptureThreadExchangeMode(aclmdlRICaptureMode* mode) {
  std::swap(*mode, thread_mode);
  return ACL_SUCCESS;
}

SIM_API aclError aclmdlRIExecuteAsync(aclmdlRI handle, aclrtStream stream_handle) {
  if (forked()) {
    return fail_forked();
  }
  auto graph = find_graph(handle);
  if (!graph) {
    return fail(ACL_ERROR_RT_PARAM_INVALID, "no such graph");
  }
  Stream* stream = stream_of(stream_handle);
  {
    std::lock_guard lock(capture_mutex());
    if (find_capture(graph->id)) {
      return fail(ACL_ERROR_RT_MODEL_CAPTURED, "the graph is still being captured");
    }
    if (stream->graph.load()) {
      return fail(ACL_ERROR_RT_STREAM_CAPTURED, "a graph can't be replayed inside a capture");
    }
  }
  stream->enqueue(std::make_unique<Replay>(std::move(graph), stream));
  return ACL_SUCCESS;
}

// CANN waits 10 s for a graph that runs, and then refuses to destroy it.
SIM_API aclError aclmdlRIDestroy(aclmdlRI handle) {
  auto graph = find_graph(handle);
  if (!graph) {
    return fail(ACL_ERROR_RT_PARAM_INVALID, "no such graph");
  }
  constexpr double patience = 10;
  for (const double until = now() + patience; graph->running() && !stopping;) {
    if (now() > until) {
      return fail(ACL_ERROR_RT_MODEL_RUNNING, "the graph still runs after 10 s of waiting, so it is not destroyed");
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  std::lock_guard lock(capture_mutex());
  if (find_capture(graph->id)) {
    return fail(ACL_ERROR_RT_MODEL_CAPTURED, "the graph is still being captured");
  }
  graphs.erase(handle); // `graph` holds it until after the lock
  return ACL_SUCCESS;
}

SIM_API aclError aclmdlRIDebugJsonPrint(aclmdlRI handle, const char* path, uint32_t) {
  auto graph = find_graph(handle);
  if (!graph) {
    return fail(ACL_ERROR_RT_PARAM_INVALID, "no such graph");
  }
  std::ofstream file(path);
  file << graph->json();
  file.close();
  return file ? ACL_SUCCESS : fail(ACL_ERROR_WRITE_FILE, std::string("can't write ") + path);
}
