// The C interface of capture: who captures, which graphs and task groups there are, and what may be done to them when.
#include "graph.h"
#include "stream.h"

#include <algorithm>
#include <chrono>
#include <fstream>
#include <thread>
#include <unordered_map>

namespace sim {

namespace {

// Captures that are running, graphs by their handle, and task groups by theirs. Never destroyed: threads may outlive
// main().
auto& captures = *new std::vector<Graph*>;
auto& graphs = *new std::unordered_map<aclmdlRI, std::shared_ptr<Graph>>;
auto& groups = *new std::unordered_map<aclrtTaskGrp, std::weak_ptr<TaskGroup>>;

thread_local aclmdlRICaptureMode thread_mode = ACL_MODEL_RI_CAPTURE_MODE_GLOBAL;

std::shared_ptr<Graph> find_graph(aclmdlRI handle) {
  std::lock_guard lock(capture_mutex());
  auto it = graphs.find(handle);
  return it == graphs.end() ? nullptr : it->second;
}

bool is_mode(aclmdlRICaptureMode mode) {
  return mode >= ACL_MODEL_RI_CAPTURE_MODE_GLOBAL && mode <= ACL_MODEL_RI_CAPTURE_MODE_RELAXED;
}

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
  return !refused ? ACL_SUCCESS
                  : fail(
                        ACL_ERROR_RT_CAPTURE_MODE_NOT_SUPPORT,
                        std::string(call) + " is not allowed during a capture in this mode");
}

} // namespace sim

using namespace sim;

SIM_API aclError aclmdlRICaptureBegin(aclrtStream handle, aclmdlRICaptureMode mode) {
  if (!handle) {
    return fail(ACL_ERROR_RT_STREAM_CAPTURE_IMPLICIT, "the implicit default stream can't be captured");
  }
  if (forked()) {
    return fail_forked();
  }
  if (!is_mode(mode)) {
    return fail(ACL_ERROR_RT_PARAM_INVALID, "no such mode of capture");
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
  *handle = nullptr;
  return in_capture(stream, [&](Graph& graph, int lane) {
    TaskGroupPtr group;
    if (const aclError error = graph.end_group(lane, &group)) {
      return error;
    }
    std::erase_if(groups, [](const auto& entry) { return entry.second.expired(); });
    groups[group.get()] = group;
    *handle = group.get();
    return ACL_SUCCESS;
  });
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
    return fail(
        ACL_ERROR_STREAM_TASK_GROUP_STATUS,
        "an update of this stream, or of this task group, runs already: end it first");
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
  if (!is_mode(*mode)) {
    return fail(ACL_ERROR_RT_PARAM_INVALID, "no such mode of capture");
  }
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
    if (stream->updating.load()) {
      return refuse_in_group("a replay");
    }
  }
  if (paced) {
    host_work(now(), card().replay);
  }
  if (!paced || !graph->pace(stream)) {
    stream->enqueue(std::make_unique<Replay>(std::move(graph), stream));
  }
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
