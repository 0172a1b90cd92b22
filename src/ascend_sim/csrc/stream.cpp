#include "stream.h"
#include "device.h"
#include "graph.h"
#include "trace.h"
#include "unknown.h"

#include <ATen/Parallel.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdlib>

namespace sim {

namespace {

struct Streams {
  std::mutex mutex;
  std::vector<std::shared_ptr<Stream>> all;
  int next_id = 0;
};
Streams& streams() {
  static auto* s = new Streams; // never destroyed: device threads may outlive main()
  return *s;
}

} // namespace

void run_task(Task& task, int stream, uint64_t enqueued) {
  if (!task.is_kernel()) {
    task.run();
    return;
  }
  const bool guarded = any_unknown.load(std::memory_order_relaxed);
  if (guarded) {
    const Accesses accesses = task.accesses();
    if (const char* cause = unknown_input(accesses)) {
      mark_outputs(accesses, cause);
      TORCH_CHECK(false, "an input was not computed, as the paced clock ran then (", cause, ")");
    }
  }
  if (tracing.load(std::memory_order_relaxed)) {
    Span span{task.name, stream, enqueued, ticks(), 0};
    task.run();
    span.ended = ticks();
    add_span(span);
  } else {
    task.run();
  }
  if (guarded) {
    mark_outputs(task.accesses(), nullptr);
  }
}

Stream::~Stream() {
  stop();
}

void Stream::stop() {
  if (forked()) {
    return;
  }
  std::vector<TaskPtr> dropped; // destroyed after the lock: a task may hold what has a lock of its own
  std::thread ending; // one caller's: the end of the process and the end of a graph may stop the same stream
  {
    std::lock_guard lock(mutex_);
    done_ += queue_.size();
    dropped.swap(queue_);
    ending.swap(thread_);
    stop_ = true;
  }
  wake_.notify_all();
  if (ending.joinable()) {
    ending.join();
  }
}

// The thread starts with the first task: torch_npu makes pools of streams that are never used.
void Stream::start() {
  const int host_threads = at::get_num_threads();
  std::atomic<bool> ready{false};
  thread_ = std::thread([&] {
    at::set_num_threads(device_threads());
    ready.store(true, std::memory_order_release);
    // Straight to the CPU kernels: nobody differentiates through a device thread.
    at::AutoDispatchBelowADInplaceOrView no_autograd;
    loop();
  });
  spin([&] { return ready.load(std::memory_order_acquire); });
  while (!ready.load(std::memory_order_acquire)) {
    std::this_thread::sleep_for(std::chrono::microseconds(50));
  }
  // set_num_threads also sets the number that new threads of the process begin with. That one is the host's.
  at::set_num_threads(host_threads);
}

void Stream::enqueue(TaskPtr task) {
  if (paced && task->is_kernel() && has_run()) {
    std::lock_guard lock(pace_mutex_);
    free_at = pace(*task, id, now(), free_at);
    return;
  }
  if (tracing.load(std::memory_order_relaxed)) {
    task->enqueued = ticks();
  }
  {
    std::lock_guard lock(mutex_);
    if (stop_) {
      return;
    }
    if (!thread_.joinable()) {
      start();
    }
    queue_.push_back(std::move(task));
    enqueued_.fetch_add(1, std::memory_order_release);
  }
  if (sleeping_.load(std::memory_order_acquire)) {
    wake_.notify_one();
  }
}

void Stream::loop() {
  std::vector<TaskPtr> batch;
  for (;;) {
    spin([&] { return !has_run(); });
    {
      std::unique_lock lock(mutex_);
      if (queue_.empty() && !stop_) {
        sleeping_.store(true, std::memory_order_release);
        wake_.wait(lock, [&] { return !queue_.empty() || stop_; });
        sleeping_.store(false, std::memory_order_release);
      }
      if (queue_.empty()) {
        return;
      }
      batch.swap(queue_);
    }
    for (auto& task : batch) {
      if (!stopping) {
        run(*task);
      }
      task.reset(); // before it counts as done: what it holds is free when a synchronise returns
      done_.fetch_add(1, std::memory_order_release);
    }
    batch.clear();
    if (has_run()) {
      std::lock_guard lock(mutex_);
      finished_.notify_all();
    }
  }
}

double run_in_turn(Task& task, int stream, uint64_t enqueued, double ready) {
  if (paced && task.is_kernel()) {
    return pace(task, stream, now(), ready);
  }
  const bool at_its_time = paced && task.is_outside();
  if (at_its_time) {
    sleep_until(ready);
  }
  if (!stopping) {
    run_task(task, stream, enqueued);
  }
  return at_its_time ? now() : ready;
}

void Stream::run(Task& task) {
  try {
    not_before(run_in_turn(task, id, task.enqueued, free_at));
  } catch (const std::exception& e) {
    put_error(std::string(task.name) + ": " + describe(e));
  }
}

aclError Stream::drain(int timeout_ms) {
  if (forked()) {
    return fail_forked();
  }
  const uint64_t target = enqueued_.load(std::memory_order_acquire);
  const double until = timeout_ms < 0 ? INFINITY : now() + timeout_ms * 1e-3;
  const auto done = [&] { return done_.load(std::memory_order_acquire) >= target; };
  bool in_time = true;
  if (!done() && !spin(done)) {
    std::unique_lock lock(mutex_);
    // The device thread notifies when it runs dry; others may keep it busy, so look again now and then.
    while (!done() && in_time) {
      finished_.wait_for(lock, std::chrono::milliseconds(2));
      in_time = now() <= until;
    }
  }
  if (in_time && sleep_until(free_at, until)) {
    return ACL_SUCCESS;
  }
  return fail(ACL_ERROR_RT_STREAM_SYNC_TIMEOUT, "stream " + std::to_string(id) + " did not finish in time");
}

static std::mutex error_mutex;
static std::string& pending_error() {
  static auto* text = new std::string;
  return *text;
}

void put_error(const std::string& text) {
  std::lock_guard lock(error_mutex);
  if (pending_error().empty()) {
    pending_error() = text;
  }
}

aclError take_error() {
  std::string text;
  {
    std::lock_guard lock(error_mutex);
    text.swap(pending_error());
  }
  return text.empty() ? ACL_SUCCESS : fail(ACL_ERROR_RT_AICORE_EXCEPTION, text);
}

// Of an Atlas A2 training card, says CANN's documentation of aclrtCreateStream.
static constexpr int streams_of_a_card = 1984;
static std::atomic<int> streams_taken{0};

static int stream_budget() {
  static const int budget = [] {
    const char* text = std::getenv("ASCEND_SIM_STREAMS");
    const int n = text ? std::atoi(text) : 0;
    return n > 0 ? n : streams_of_a_card;
  }();
  return budget;
}

aclError take_stream() {
  if (streams_taken.fetch_add(1) < stream_budget()) {
    return ACL_SUCCESS;
  }
  give_back_stream();
  return fail(
      ACL_ERROR_RT_NO_STREAM_RESOURCE,
      "no stream left: streams and graphs hold all " + std::to_string(stream_budget()) +
          " of the card (ASCEND_SIM_STREAMS sets the number). Reset graphs that you don't need");
}

void give_back_stream() {
  streams_taken.fetch_sub(1);
}

std::shared_ptr<Stream> make_stream() {
  auto& s = streams();
  std::lock_guard lock(s.mutex);
  return s.all.emplace_back(std::make_shared<Stream>(s.next_id++));
}

void remove_stream(const std::shared_ptr<Stream>& stream) {
  if (forked()) {
    return;
  }
  stream->drain(-1);
  stream->stop();
  auto& s = streams();
  std::lock_guard lock(s.mutex);
  std::erase(s.all, stream);
}

Stream* stream_of(aclrtStream handle) {
  static auto* implicit = new std::shared_ptr<Stream>(make_stream());
  return handle ? static_cast<Stream*>(handle) : implicit->get();
}

aclError launch(aclrtStream handle, TaskPtr task) {
  if (forked()) {
    return fail_forked();
  }
  Stream* stream = stream_of(handle);
  if (stream->graph.load(std::memory_order_acquire)) {
    std::lock_guard lock(capture_mutex());
    if (Graph* graph = stream->graph.load()) {
      return graph->add(stream->lane, std::move(task));
    }
  }
  if (stream->updating.load(std::memory_order_acquire)) {
    std::lock_guard lock(capture_mutex());
    if (stream->updating.load()) {
      return update_task(stream, std::move(task));
    }
  }
  const double begun = now();
  const bool is_operator = paced && task->is_kernel();
  stream->enqueue(std::move(task));
  if (is_operator) {
    host_work(begun, card().launch);
  }
  return ACL_SUCCESS;
}

static std::vector<std::shared_ptr<Stream>> all_streams() {
  auto& s = streams();
  std::lock_guard lock(s.mutex);
  return s.all;
}

aclError synchronize_device(int timeout_ms) {
  for (const auto& stream : all_streams()) {
    if (const aclError error = stream->drain(timeout_ms)) {
      return error;
    }
  }
  wake_up();
  return take_error();
}

void stop_streams() {
  if (forked()) {
    return;
  }
  stopping = true;
  for (const auto& stream : all_streams()) {
    stream->stop();
  }
}

} // namespace sim

using sim::fail;
using sim::Stream;
using sim::stream_of;

SIM_API aclError aclrtCreateStream(aclrtStream* stream) {
  if (const aclError error = sim::take_stream()) {
    return error;
  }
  *stream = sim::make_stream().get();
  return ACL_SUCCESS;
}
SIM_API aclError aclrtCreateStreamWithConfig(aclrtStream* stream, uint32_t, uint32_t) {
  return aclrtCreateStream(stream);
}
// A synchronise or a query of a capturing stream is refused. It does not invalidate the capture: torch_npu's
// own test (test_aclgraph_rng_state.py) ends such a capture with success.
static aclError refuse_captured(Stream* stream) {
  if (!stream->graph.load(std::memory_order_acquire)) {
    return ACL_SUCCESS;
  }
  return fail(
      ACL_ERROR_RT_STREAM_CAPTURED,
      "the stream is being captured: its work is recorded, not run, so it can't be waited for");
}

// torch_npu destroys its streams when the process ends, and other threads may be launching on them still. So the
// thread ends and the object stays: what is launched on it from now on is dropped.
static aclError destroy(Stream* stream, bool finish) {
  if (const aclError refused = refuse_captured(stream)) {
    return refused;
  }
  if (finish) {
    stream->drain(-1);
  }
  stream->stop();
  sim::give_back_stream();
  return ACL_SUCCESS;
}
SIM_API aclError aclrtDestroyStream(aclrtStream stream) {
  return destroy(stream_of(stream), true);
}
SIM_API aclError aclrtDestroyStreamForce(aclrtStream stream) {
  return destroy(stream_of(stream), false);
}

SIM_API aclError aclrtSynchronizeStreamWithTimeout(aclrtStream handle, int32_t timeout_ms) {
  Stream* stream = stream_of(handle);
  aclError error = refuse_captured(stream);
  error = error ? error : stream->drain(timeout_ms);
  sim::wake_up();
  return error ? error : sim::take_error();
}
SIM_API aclError aclrtSynchronizeStream(aclrtStream handle) {
  return aclrtSynchronizeStreamWithTimeout(handle, -1);
}
SIM_API aclError aclrtStreamQuery(aclrtStream handle, aclrtStreamStatus* status) {
  Stream* stream = stream_of(handle);
  const aclError refused = refuse_captured(stream);
  *status = stream->idle() ? ACL_STREAM_STATUS_COMPLETE : ACL_STREAM_STATUS_NOT_READY;
  return refused;
}
SIM_API aclError aclrtStreamGetId(aclrtStream handle, int32_t* id) {
  *id = stream_of(handle)->id;
  return ACL_SUCCESS;
}

SIM_API aclError aclrtSynchronizeDeviceWithTimeout(int32_t timeout_ms) {
  if (sim::forked()) {
    return sim::fail_forked();
  }
  if (sim::is_capturing()) { // in every mode, and from every thread
    return fail(
        ACL_ERROR_RT_STREAM_CAPTURED, "a stream of the device is being captured, so the device can't be waited for");
  }
  return sim::synchronize_device(timeout_ms);
}
SIM_API aclError aclrtSynchronizeDevice() {
  return aclrtSynchronizeDeviceWithTimeout(-1);
}

static sim::TaskPtr host_function(const char* name, void (*function)(void*), void* argument) {
  return sim::make_outside(name, [=] {
    sim::WithAutograd guard;
    function(argument);
  });
}
SIM_API aclError aclrtLaunchHostFunc(aclrtStream stream, aclrtHostFunc function, void* argument) {
  return sim::launch(stream, host_function("aclrtLaunchHostFunc", function, argument));
}

// The older form of a host function, which a thread of the caller's runs: torch.npu._launch_host_func uses it. Here the
// device thread runs it, so there is nothing to subscribe to and nothing to report.
SIM_API aclError aclrtLaunchCallback(aclrtCallback function, void* argument, aclrtCallbackBlockType, aclrtStream stream) {
  return sim::launch(stream, host_function("aclrtLaunchCallback", function, argument));
}
SIM_API aclError aclrtSubscribeReport(uint64_t, aclrtStream) {
  return ACL_SUCCESS;
}
SIM_API aclError aclrtUnSubscribeReport(uint64_t, aclrtStream) {
  return ACL_SUCCESS;
}
SIM_API aclError aclrtProcessReport(int32_t timeout_ms) {
  std::this_thread::sleep_for(std::chrono::milliseconds(std::max(timeout_ms, 0)));
  return fail(ACL_ERROR_RT_REPORT_TIMEOUT, "no report");
}

// Settings of how a real stream fails or reports; this one has no such modes.
SIM_API aclError aclrtSetStreamFailureMode(aclrtStream, uint64_t) {
  return ACL_SUCCESS;
}
SIM_API aclError aclrtSetStreamOverflowSwitch(aclrtStream, uint32_t) {
  return ACL_SUCCESS;
}
SIM_API aclError aclrtSetStreamAttribute(aclrtStream, aclrtStreamAttr, aclrtStreamAttrValue*) {
  return ACL_SUCCESS;
}
