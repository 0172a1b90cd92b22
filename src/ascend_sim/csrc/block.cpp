#include "block.h"

#include <atomic>
#include <new>
#include <utility>

namespace sim {

namespace {

// As large as a tensor's handle, and all but a few operators.
constexpr size_t block = 256;

struct Block {
  Block* next;
};
std::atomic<Block*> given{nullptr};

// What this thread took of them and has not used yet.
struct Taken {
  Block* first = nullptr;
  ~Taken() {
    while (first) {
      ::operator delete(std::exchange(first, first->next));
    }
  }
};
thread_local Taken taken;

} // namespace

void* take_block(size_t n) {
#ifndef __SANITIZE_ADDRESS__ // it looks for use after free, which a block in other hands would hide
  if (n <= block) {
    if (!taken.first) {
      taken.first = given.exchange(nullptr, std::memory_order_acquire);
    }
    return taken.first ? std::exchange(taken.first, taken.first->next) : ::operator new(block);
  }
#endif
  return ::operator new(n);
}

void give_block(void* p, size_t n) noexcept {
#ifndef __SANITIZE_ADDRESS__
  if (n <= block) {
    auto* b = new (p) Block{given.load(std::memory_order_relaxed)};
    while (!given.compare_exchange_weak(b->next, b, std::memory_order_release)) {
    }
    return;
  }
#endif
  ::operator delete(p);
}

} // namespace sim
