// Memory for what the host makes for every launch and a device thread frees. malloc is slow at that: what another
// thread freed has left this thread's cache.
#pragma once

#include <cstddef>

namespace sim {

void* take_block(size_t n);
void give_block(void* p, size_t n) noexcept;

struct InBlock {
  static void* operator new(size_t n) { return take_block(n); }
  static void operator delete(void* p, size_t n) noexcept { give_block(p, n); }
};

} // namespace sim
