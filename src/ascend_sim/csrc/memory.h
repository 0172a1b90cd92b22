// What the rest of the device asks about its memory.
#pragma once

#include <cstdint>

namespace sim {

// How often the device's memory or the pinned memory was allocated or freed.
uint64_t memory_changes();
// Is this a place in the device's memory, or in the pinned memory, that nobody has allocated now?
bool is_freed(const void* pointer);

} // namespace sim
