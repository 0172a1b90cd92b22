// What the rest of the device asks about its memory.
#pragma once

#include <cstdint>

namespace sim {

// How often the device's memory or the pinned memory was allocated or freed.
uint64_t memory_changes();
// Was this device memory once, and is none now? Of null, and of the host's own memory: false.
bool is_freed(const void* pointer);

} // namespace sim
