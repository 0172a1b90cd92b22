// What is planned on one thread and launched on another goes through torch_npu's own queue. ThreadSanitizer does not see
// the atomics of that queue, so the device tells it.
#pragma once

#ifdef __SANITIZE_THREAD__
#include <sanitizer/tsan_interface.h>
#else
inline void __tsan_release(void*) {}
inline void __tsan_acquire(void*) {}
#endif
