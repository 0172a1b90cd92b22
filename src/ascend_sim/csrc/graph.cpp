#include "graph.h"
#include "stream.h"

#include <algorithm>
#include <chrono>
#include <fstream>
#include <sstream>
#include <unordered_map>

namespace sim {

namespace {

// Captures that are running, and graphs that exist by their handle. Never destroyed: threads may outlive main().
auto& captures = *new std::vector<Graph*>;
auto& graphs = *new std::unordered_map<aclmdlRI, std::shared_ptr<Graph>>;
uint32_t next_id = 1;

thread_local aclmdlRICaptureMode thread_mode = ACL_MODEL_RI_CAPTURE_MODE_GLOBAL;

std::shared_ptr<Graph> find_graph(aclmdlRI handle) {
  std::lock_guard lock(capture_mutex());
  auto it = graphs.find(handle);
  return it == graphs.end() ? nullptr : it->second;
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

// In mode global nobody may, in mode thread_local this thread may not, in mode relaxed everybody may; and a
// thread that exchanged its own mode for relaxed may (CANN, aclmdlRICaptureBegin and …ThreadExchangeMode).
aclError check_unsafe_call(const char* call) {
  if (forked()) {
    return fail_forked();
  }
  std::lock_guard lock(capture_mutex());
  if (thread_mode == ACL_MODEL_RI_CAPTURE_MODE_RELAXED) {
    return ACL_SUCCESS;
  }
  for (const Graph* graph : captures) {
    const bool mine = graph->thread == this_thread();
    if (graph->mode == ACL_MODEL_RI_CAPTURE_MODE_GLOBAL ||
        (graph->mode == ACL_MODEL_RI_CAPTURE_MODE_THREAD_LOCAL && mine)) {
      return fail(ACL_ERROR_RT_CAPTURE_MODE_NOT_SUPPORT, std::string(call) + " is not allowed during a capture in this mode");
    }
  }
  return ACL_SUCCESS;
}

Graph::Graph(aclmdlRICaptureMode mode, Stream* origin) : id(next_id++), mode(mode) {
  fork(origin);
}

Graph::~Graph() {
  for (Lane& lane : lanes_) {
    if (lane.runs_on) {
      remove_stream(lane.runs_on);
    }
  }
}

int Graph::fork(Stream* stream) {
  lanes_.push_back({stream, {}});
  stream->lane = static_cast<int>(lanes_.size()) - 1;
  stream->graph = this;
  return stream->lane;
}

void Graph::add(int lane, TaskPtr kernel) {
  lanes_[lane].nodes.push_back({Node::kernel, std::move(kernel)});
}

int Graph::record(int lane) {
  const int join = static_cast<int>(joins_.size());
  joins_.emplace_back(lane, lanes_[lane].nodes.size());
  lanes_[lane].nodes.push_back({Node::record, nullptr, join});
  return join;
}

void Graph::wait(int lane, int join) {
  if (joins_[join].first != lane) { // a stream is always behind itself
    lanes_[lane].nodes.push_back({Node::wait, nullptr, join});
  }
}

bool Graph::all_joined() const {
  // How much of each lane is known to come before the end of lane 0. A wait that is itself known adds what
  // comes before its record.
  std::vector<size_t> known(lanes_.size(), 0), looked_at(lanes_.size(), 0);
  known[0] = lanes_[0].nodes.size();
  for (bool grown = true; grown;) {
    grown = false;
    for (size_t l = 0; l < lanes_.size(); ++l) {
      for (; looked_at[l] < known[l]; ++looked_at[l]) {
        const Node& node = lanes_[l].nodes[looked_at[l]];
        if (node.kind == Node::wait) {
          const auto [lane, at] = joins_[node.join];
          known[lane] = std::max(known[lane], at + 1);
          grown = true;
        }
      }
    }
  }
  for (size_t l = 1; l < lanes_.size(); ++l) {
    const auto& nodes = lanes_[l].nodes;
    if (std::any_of(nodes.begin() + known[l], nodes.end(), [](const Node& n) { return n.kind != Node::record; })) {
      return false;
    }
  }
  return true;
}

void Graph::leave() {
  for (Lane& lane : lanes_) {
    lane.captured_on->graph = nullptr;
  }
}

void Graph::run_lane(Lane& lane, int stream, double enqueued) {
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
        states_[node.join].store(true, std::memory_order_release);
        if (lanes_.size() > 1) {
          std::lock_guard lock(mutex_);
          joined_.notify_all();
        }
        break;
      case Node::wait:
        await(states_[node.join]);
        break;
    }
  }
}

void Graph::await(const Join& join) {
  auto done = [&] { return join.load(std::memory_order_acquire) || stopping; };
  if (!spin(done)) {
    std::unique_lock lock(mutex_);
    while (!done()) {
      joined_.wait_for(lock, std::chrono::milliseconds(20));
    }
  }
}

void Graph::replay(Stream* stream, double enqueued) {
  std::lock_guard one_at_a_time(replay_mutex_);
  if (!states_) {
    states_ = std::make_unique<Join[]>(joins_.size());
  }
  for (size_t j = 0; j < joins_.size(); ++j) {
    states_[j] = false;
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
  out << "{\"modelRI\": " << id << ", \"streams\": [";
  for (size_t l = 0; l < lanes_.size(); ++l) {
    out << (l ? ",\n" : "\n") << " [";
    const char* comma = "";
    for (const Node& node : lanes_[l].nodes) {
      out << comma << "\n  ";
      comma = ",";
      switch (node.kind) {
        case Node::kernel:
          out << "{\"kernel\": \"" << node.task->name << "\"}";
          break;
        case Node::record:
          out << "{\"record\": " << node.join << "}";
          break;
        case Node::wait:
          out << "{\"wait\": " << node.join << "}";
          break;
      }
    }
    out << "]";
  }
  out << "]}\n";
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
  std::lock_guard lock(capture_mutex());
  if (stream->graph.load()) {
    return fail(ACL_ERROR_RT_STREAM_CAPTURED, "the stream is being captured already");
  }
  auto graph = std::make_shared<Graph>(mode, stream);
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

// Whatever it returns but "not captured", "unmatched" and "wrong thread", the capture is over.
SIM_API aclError aclmdlRICaptureEnd(aclrtStream handle, aclmdlRI* model) {
  *model = nullptr;
  Stream* stream = stream_of(handle);
  std::shared_ptr<Graph> graph;
  {
    std::lock_guard lock(capture_mutex());
    Graph* captured = stream->graph.load();
    if (!captured) {
      return fail(ACL_ERROR_RT_STREAM_NOT_CAPTURED, "the stream is not being captured");
    }
    if (stream->lane != 0) {
      return fail(ACL_ERROR_RT_STREAM_CAPTURE_UNMATCHED, "the capture was begun on another stream: end it there");
    }
    if (captured->mode != ACL_MODEL_RI_CAPTURE_MODE_RELAXED && captured->thread != this_thread()) {
      return fail(ACL_ERROR_RT_STREAM_CAPTURE_WRONG_THREAD, "the capture was begun by another thread: end it there");
    }
    captured->leave();
    std::erase(captures, captured);
    if (captured->all_joined()) {
      *model = captured;
      return ACL_SUCCESS;
    }
    graph = graphs.extract(captured).mapped(); // dies after the lock
  }
  return fail(
      ACL_ERROR_RT_STREAM_UNJOINED,
      "a stream that was drawn into the capture was not joined: let the capturing stream wait for it before the end");
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

// A graph that still runs is refused, as on CANN, and goes when its last replay ends.
SIM_API aclError aclmdlRIDestroy(aclmdlRI handle) {
  std::shared_ptr<Graph> graph;
  {
    std::lock_guard lock(capture_mutex());
    auto it = graphs.find(handle);
    if (it == graphs.end()) {
      return fail(ACL_ERROR_RT_PARAM_INVALID, "no such graph");
    }
    if (find_capture(it->second->id)) {
      return fail(ACL_ERROR_RT_MODEL_CAPTURED, "the graph is still being captured");
    }
    graph = graphs.extract(it).mapped();
  }
  return graph->running() ? fail(ACL_ERROR_RT_MODEL_RUNNING, "the graph is still running; it goes when it has finished")
                          : ACL_SUCCESS;
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
