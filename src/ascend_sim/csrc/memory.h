// What the rest of the device asks about its memory.
#pragma once

#include <cstddef>
#include <cstdint>

namespace sim {

// How often the device's memory or the pinned memory was allocated or freed.
uint64_t memory_changes();
// Do these bytes of the device's memory, or of the pinned memory, lie in no allocation of now? Of other memory: false.
bool is_freed(const void* pointer, size_t bytes);

// Is this in the range of addresses that is the device's?
bool is_device_memory(const void* pointer);

} // namespace sim
