#include "event.h"
#include "graph.h"
#include "stream.h"

#include <chrono>

namespace sim {

void Event::reach(uint64_t ticket, double when) {
  {
    std::lock_guard lock(mutex);
    completed = std::max(completed, ticket);
    time = when;
  }
  reached.notify_all();
}

double Event::await(uint64_t ticket) {
  std::unique_lock lock(mutex);
  while (completed < ticket && !stopping) {
    reached.wait_for(lock, std::chrono::milliseconds(20));
  }
  return time;
}

namespace {

using EventRef = c10::intrusive_ptr<Event>;

Event& event_of(aclrtEvent handle) {
  return *static_cast<Event*>(handle);
}
EventRef hold(aclrtEvent handle) {
  return EventRef::reclaim_copy(static_cast<Event*>(handle));
}

// The running capture that the event was last recorded in, or null. Under capture_mutex().
Graph* captured_in(const Event& event) {
  return event.join < 0 ? nullptr : find_capture(event.graph_id);
}

aclError refuse_captured(const Event& event) {
  if (forked()) {
    return fail_forked();
  }
  std::lock_guard lock(capture_mutex());
  if (!captured_in(event)) {
    return ACL_SUCCESS;
  }
  return fail(
      ACL_ERROR_RT_EVENT_CAPTURED,
      "the event was recorded in a capture: it marks a point in the graph, not in time; record it again outside");
}

} // namespace
} // namespace sim

using namespace sim;

SIM_API aclError aclrtCreateEventExWithFlag(aclrtEvent* event, uint32_t flags) {
  *event = c10::make_intrusive<Event>(flags).release();
  return ACL_SUCCESS;
}
SIM_API aclError aclrtCreateEventWithFlag(aclrtEvent* event, uint32_t flags) {
  return aclrtCreateEventExWithFlag(event, flags);
}
SIM_API aclError aclrtCreateEvent(aclrtEvent* event) {
  return aclrtCreateEventExWithFlag(event, ACL_EVENT_TIME_LINE);
}
// What still waits for the event keeps it alive.
SIM_API aclError aclrtDestroyEvent(aclrtEvent event) {
  EventRef::reclaim(static_cast<Event*>(event));
  return ACL_SUCCESS;
}

SIM_API aclError aclrtRecordEvent(aclrtEvent handle, aclrtStream stream_handle) {
  Stream* stream = stream_of(stream_handle);
  Event& event = event_of(handle);
  if (forked()) {
    return fail_forked();
  }
  {
    std::lock_guard lock(capture_mutex());
    if (Graph* graph = stream->graph.load()) {
      // An event that nothing on the device can wait for, such as those of torch_npu's allocators, is left out.
      if (!(event.flags & (ACL_EVENT_SYNC | ACL_EVENT_EXTERNAL | ACL_EVENT_IPC))) {
        return ACL_SUCCESS;
      }
      event.graph_id = graph->id;
      return graph->record(stream->lane, &event.join);
    }
    if (stream->updating.load()) {
      return refuse_in_group("an event's record");
    }
    event.join = -1;
  }
  uint64_t ticket;
  {
    std::lock_guard lock(event.mutex);
    ticket = ++event.recorded;
  }
  stream->mark("record", [event = hold(handle), ticket, stream, launched = now()] {
    event->reach(ticket, paced ? std::max(launched, stream->free_at.load()) : now());
  });
  return ACL_SUCCESS;
}

SIM_API aclError aclrtStreamWaitEvent(aclrtStream stream_handle, aclrtEvent handle) {
  Stream* stream = stream_of(stream_handle);
  Event& event = event_of(handle);
  if (forked()) {
    return fail_forked();
  }
  {
    std::lock_guard lock(capture_mutex());
    Graph* graph = stream->graph.load();
    if (Graph* recorded_in = captured_in(event)) {
      if (!stream_handle) {
        return fail(ACL_ERROR_RT_STREAM_CAPTURE_IMPLICIT, "the implicit default stream can't be drawn into a capture");
      }
      if (graph && graph != recorded_in) {
        graph->invalidate();
        recorded_in->invalidate();
        return fail(
            ACL_ERROR_STREAM_CAPTURE_CONFLICT, "the event was recorded in another capture: two captures can't be merged");
      }
      aclError error = graph ? ACL_SUCCESS : recorded_in->fork(stream); // the wait draws this stream into the capture
      error = error ? error : recorded_in->wait(stream->lane, event.join);
      if (error) {
        recorded_in->invalidate();
      }
      return error;
    }
    if (stream->updating.load()) {
      return refuse_in_group("a wait for an event");
    }
    if (graph) {
      std::lock_guard event_lock(event.mutex);
      return event.recorded == 0
          ? ACL_SUCCESS
          : fail(
                ACL_ERROR_RT_CAPTURE_DEPENDENCY,
                "the event was not recorded in this capture: a graph can't wait for what is not in it");
    }
  }
  uint64_t ticket;
  {
    std::lock_guard lock(event.mutex);
    ticket = event.recorded;
    if (paced && stream->has_run() && event.completed >= ticket) {
      stream->not_before(event.time);
      return ACL_SUCCESS;
    }
  }
  stream->enqueue(make_marker("wait", [event = hold(handle), ticket, stream] {
    const double time = event->await(ticket);
    if (paced) {
      stream->not_before(time);
    }
  }));
  return ACL_SUCCESS;
}

SIM_API aclError aclrtSynchronizeEvent(aclrtEvent handle) {
  Event& event = event_of(handle);
  if (const aclError refused = refuse_captured(event)) {
    return refused;
  }
  uint64_t ticket;
  {
    std::lock_guard lock(event.mutex);
    ticket = event.recorded;
  }
  sleep_until(event.await(ticket));
  wake_up();
  return take_error();
}

SIM_API aclError aclrtQueryEventStatus(aclrtEvent handle, aclrtEventRecordedStatus* status) {
  Event& event = event_of(handle);
  if (const aclError refused = refuse_captured(event)) {
    return refused;
  }
  std::lock_guard lock(event.mutex);
  *status = event.is_complete() ? ACL_EVENT_RECORDED_STATUS_COMPLETE : ACL_EVENT_RECORDED_STATUS_NOT_READY;
  return ACL_SUCCESS;
}
// A wait holds what it needs, so nothing outside has to know whether it is over.
SIM_API aclError aclrtQueryEventWaitStatus(aclrtEvent, aclrtEventWaitStatus* status) {
  *status = ACL_EVENT_WAIT_STATUS_COMPLETE;
  return ACL_SUCCESS;
}
SIM_API aclError aclrtResetEvent(aclrtEvent handle, aclrtStream stream) {
  return launch(stream, make_marker("reset", [event = hold(handle)] {
    std::lock_guard lock(event->mutex);
    event->recorded = event->completed = 0;
  }));
}

static aclError timed(Event& event, double* time) {
  if (!(event.flags & ACL_EVENT_TIME_LINE)) {
    return fail(ACL_ERROR_RT_PARAM_INVALID, "the event keeps no time: create it with enable_timing=True");
  }
  if (const aclError refused = refuse_captured(event)) {
    return refused;
  }
  std::lock_guard lock(event.mutex);
  if (event.recorded == 0 || !event.is_complete()) {
    return fail(ACL_ERROR_RT_EVENT_NOT_COMPLETE, "the event was not recorded, or its point is not reached yet");
  }
  *time = event.time;
  return ACL_SUCCESS;
}
SIM_API aclError aclrtEventElapsedTime(float* ms, aclrtEvent start, aclrtEvent end) {
  double from = 0, to = 0;
  aclError error = timed(event_of(start), &from);
  error = error ? error : timed(event_of(end), &to);
  *ms = static_cast<float>((to - from) * 1e3);
  return error;
}
SIM_API aclError aclrtEventGetTimestamp(aclrtEvent event, uint64_t* microseconds) {
  double time = 0;
  const aclError error = timed(event_of(event), &time);
  *microseconds = static_cast<uint64_t>(time * 1e6);
  return error;
}

// Words in device memory that a stream writes, and waits for: torch_npu makes its external events of them. In a
// graph they are nodes, so each replay writes or waits anew.
SIM_API aclError aclrtValueWrite(void* address, uint64_t value, uint32_t, aclrtStream stream) {
  return launch(stream, make_outside("value write", [=] {
    std::atomic_ref(*static_cast<uint64_t*>(address)).store(value, std::memory_order_release);
  }));
}
SIM_API aclError aclrtValueWait(void* address, uint64_t value, uint32_t how, aclrtStream stream) {
  return launch(stream, make_outside("value wait", [=] {
    auto met = [=] {
      const uint64_t found = std::atomic_ref(*static_cast<uint64_t*>(address)).load(std::memory_order_acquire);
      switch (how) {
        case ACL_STREAM_WAIT_VALUE_GEQ: return found >= value;
        case ACL_STREAM_WAIT_VALUE_EQ: return found == value;
        case ACL_STREAM_WAIT_VALUE_AND: return (found & value) != 0;
        default: return ~(found | value) != 0; // ACL_STREAM_WAIT_VALUE_NOR
      }
    };
    for (bool done = spin([&] { return met() || stopping; }); !done; done = met() || stopping) {
      std::this_thread::sleep_for(std::chrono::microseconds(50));
    }
  }));
}
