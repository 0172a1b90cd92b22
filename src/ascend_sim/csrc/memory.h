// Device memory.
#pragma once

#include <cstddef>

namespace sim {

// Is [p, p + n) inside one live allocation of the device?
bool is_device_memory(const void* p, size_t n);

} // namespace sim
