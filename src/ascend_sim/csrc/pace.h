// The paced clock: kernels are not computed, they take time. A kernel costs what a card's profile says, and each stream
// keeps the time at which it will be free; a wait sleeps until then. All of it is arithmetic at the launch, on the
// thread that launches: no device thread takes part, so what the host does costs what it costs. But behind what only a
// device thread can do in its turn, a host function or a wait for a word in memory, work queues as on the other clock, and
// that thread does the arithmetic.
//
// Small kernels on known inputs are computed all the same, for control flow needs them: indices, masks, range checks.
// What the others would have written is marked unknown, see unknown.h.
#pragma once

#include "common.h"
#include "task.h"

#include <atomic>
#include <cmath>

namespace sim {

// Times in seconds, rates per second. pacing.py has their meaning and profiles/*.json the sources.
struct Card {
  double kernel;           // the shortest kernel, with the gap to the next
  double bandwidth;        // bytes of the card's memory
  double link;             // bytes between the host's memory and the card's
  double copy;             // the shortest copy over the link
  double float32, float16; // floating point operations of matrix products; float16 also for bfloat16
  double int8;
  double plan, launch;     // of the host, in CANN, for one operator;
  double replay, sync;     // for one replay, for one wait
  double memory;           // bytes
};

// Which of the card's rates bounds a kernel's arithmetic; of a copy between host and card, its time.
enum Roof { float32, float16, int8, link };

extern std::atomic<bool> paced;
const Card& card(); // of the running paced clock

// A kernel that may start at `ready`: when it will be done. Computes it, or marks what it writes as unknown.
double pace(Task& task, int stream, double enqueued, double ready);

// Sleep until then, but not longer than until `latest`. False if that came first.
bool sleep_until(double time, double latest = INFINITY);

// What CANN does on the host for an operator takes its time there, beginning at `start`.
void host_work(double start, double seconds);
// From the end of what the host waited for until it goes on.
void wake_up();

} // namespace sim
