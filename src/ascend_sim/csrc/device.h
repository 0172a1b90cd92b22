// The one device.
#pragma once

namespace sim {

// Threads of one kernel on the device: ASCEND_SIM_THREADS, 1 unless told otherwise.
int device_threads();

// At the end of the process: drop what has not started, wait for what runs, join the threads.
void stop_streams();

} // namespace sim
