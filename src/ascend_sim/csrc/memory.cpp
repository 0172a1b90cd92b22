// Memory: one range of addresses is the device's, as large as the device's memory, and one is for pinned memory of
// the host. What is free in them has no pages. A pointer into them never faults, even after the free, so a kernel
// that is late reads zeros and not somebody else's heap.
#include "memory.h"
#include "common.h"
#include "graph.h"
#include "stream.h"
#include "unknown.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <sys/mman.h>
#include <sys/sysinfo.h>

namespace sim {

namespace {

constexpr size_t page = 4096;
constexpr size_t gib = size_t(1) << 30;
std::atomic<uint64_t> changes{0};

size_t machine_memory() {
  struct sysinfo info {};
  sysinfo(&info);
  return size_t(info.totalram) * info.mem_unit / page * page;
}

// ASCEND_SIM_MEMORY in GiB; else half of what the machine has, 32 at most.
size_t capacity_from_environment() {
  if (const char* text = std::getenv("ASCEND_SIM_MEMORY")) {
    const double n = std::atof(text);
    if (n > 0) {
      return static_cast<size_t>(n * gib) / page * page;
    }
  }
  return std::min(machine_memory() / 2, 32 * gib) / page * page;
}

using Ranges = std::map<char*, size_t>;

bool is_inside(const Ranges& ranges, const void* pointer, size_t bytes = 1) {
  auto* p = static_cast<char*>(const_cast<void*>(pointer));
  auto it = ranges.upper_bound(p);
  return it != ranges.begin() && p + bytes <= (--it)->first + it->second;
}

class Memory {
 public:
  // capacity: what may be allocated, in bytes; room: the same on the paced clock, which writes to little of it.
  explicit Memory(size_t capacity, size_t room = 0) : capacity_(capacity), size_(std::max(capacity, room)) {
    void* p = reserve(size_);
    if (p == MAP_FAILED) { // a machine that promises no more than it has
      p = reserve(size_ = capacity_);
    }
    base_ = p == MAP_FAILED ? nullptr : static_cast<char*>(p);
    if (base_) {
      free_[base_] = size_;
    }
  }

  void* allocate(size_t n) {
    n = std::max(n, size_t(1));
    n = (n + page - 1) / page * page;
    std::lock_guard lock(mutex_);
    if (n > total() - std::min(taken_, total())) {
      return nullptr;
    }
    for (auto it = free_.begin(); it != free_.end(); ++it) {
      if (it->second >= n) {
        char* p = it->first;
        const size_t rest = it->second - n;
        free_.erase(it);
        if (rest) {
          free_[p + n] = rest;
        }
        live_[p] = n;
        taken_ += n;
        ++changes;
        return p;
      }
    }
    return nullptr;
  }

  bool release(void* pointer) {
    std::lock_guard lock(mutex_);
    auto it = live_.find(static_cast<char*>(pointer));
    if (it == live_.end()) {
      return false;
    }
    auto [p, n] = *it;
    live_.erase(it);
    madvise(p, n, MADV_DONTNEED);
    taken_ -= n;
    ++changes;
    auto next = free_.lower_bound(p);
    if (next != free_.end() && p + n == next->first) {
      n += next->second;
      next = free_.erase(next);
    }
    if (next != free_.begin()) {
      auto before = std::prev(next);
      if (before->first + before->second == p) {
        before->second += n;
        return true;
      }
    }
    free_[p] = n;
    return true;
  }

  // Of a live allocation that begins there, else 0.
  size_t size_of(void* p) {
    std::lock_guard lock(mutex_);
    const auto it = live_.find(static_cast<char*>(p));
    return it == live_.end() ? 0 : it->second;
  }
  bool contains(const void* p) {
    std::lock_guard lock(mutex_);
    return is_inside(live_, p);
  }
  bool is_free(const void* pointer, size_t bytes) {
    if (!is_mine(pointer)) {
      return false;
    }
    std::lock_guard lock(mutex_);
    return !is_inside(live_, pointer, bytes);
  }
  bool is_mine(const void* pointer) const {
    auto* p = static_cast<const char*>(pointer);
    return p >= base_ && p < base_ + size_;
  }

  size_t total() const { return paced ? std::min(size_, static_cast<size_t>(card().memory)) : capacity_; }
  size_t available() {
    std::lock_guard lock(mutex_);
    return total() - std::min(taken_, total());
  }

 private:
  static void* reserve(size_t n) {
    return mmap(nullptr, n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  }

  const size_t capacity_;
  size_t size_;
  char* base_;
  std::mutex mutex_;
  Ranges free_, live_;
  size_t taken_ = 0;
};

Memory& memory() {
  static auto* m = new Memory(capacity_from_environment(), 128 * gib);
  return *m;
}

// Pinned host memory, as much as the machine has. A copy that was launched, or captured, may outlive it too.
Memory& pinned() {
  static auto* m = new Memory(machine_memory());
  return *m;
}

struct Copy final : Task {
  Copy(void* to, const void* from, size_t n) : Task("aclrtMemcpyAsync"), to(to), from(from), n(n) {}
  Accesses accesses() const override {
    return {{nullptr, const_cast<void*>(from), n, true, false}, {nullptr, to, n, false, true}};
  }
  void run() override { std::memcpy(to, from, n); }
  bool uses_freed_memory() const override { return is_freed(to, n) || is_freed(from, n); }
  void* to;
  const void* from;
  size_t n;
};
struct Set final : Task {
  Set(void* p, int value, size_t n) : Task("aclrtMemsetAsync"), p(p), value(value), n(n) {}
  void run() override { std::memset(p, value, n); }
  bool uses_freed_memory() const override { return is_freed(p, n); }
  Accesses accesses() const override { return {{nullptr, p, n, false, true}}; }
  void* p;
  int value;
  size_t n;
};

} // namespace

uint64_t memory_changes() {
  return changes.load(std::memory_order_acquire);
}
bool is_device_memory(const void* pointer) {
  return memory().is_mine(pointer);
}
bool is_freed(const void* pointer, size_t bytes) {
  return memory().is_free(pointer, bytes) || pinned().is_free(pointer, bytes);
}

} // namespace sim

using namespace sim;

SIM_API aclError aclrtMalloc(void** p, size_t n, aclrtMemMallocPolicy) {
  if (forked()) {
    return fail_forked();
  }
  *p = memory().allocate(n);
  if (*p && paced) {
    mark_unknown(*p, n, never_written);
  }
  return *p ? ACL_SUCCESS
            : fail(ACL_ERROR_RT_MEMORY_ALLOCATION, "out of device memory: " + std::to_string(n) + " bytes wanted, " +
                       std::to_string(memory().available()) + " of " + std::to_string(memory().total()) +
                       " free (ASCEND_SIM_MEMORY sets the limit in GiB)");
}
SIM_API aclError aclrtMallocAlign32(void** p, size_t n, aclrtMemMallocPolicy policy) {
  return aclrtMalloc(p, n, policy);
}
SIM_API aclError aclrtFree(void* p) {
  const size_t n = memory().size_of(p);
  if (any_unknown && n) {
    mark_known(p, n);
  }
  return !p || memory().release(p) ? ACL_SUCCESS : fail(ACL_ERROR_RT_MEMORY_FREE, "not an allocation of the device");
}
SIM_API aclError aclrtGetMemInfo(aclrtMemAttr, size_t* available, size_t* total) {
  *available = memory().available();
  *total = memory().total();
  return ACL_SUCCESS;
}

SIM_API aclError aclrtMallocHost(void** p, size_t n) {
  *p = pinned().allocate(n);
  return *p ? ACL_SUCCESS : fail(ACL_ERROR_RT_MEMORY_ALLOCATION, "out of host memory");
}
SIM_API aclError aclrtFreeHost(void* p) {
  return pinned().release(p) ? ACL_SUCCESS : fail(ACL_ERROR_RT_MEMORY_FREE, "not pinned memory");
}
SIM_API aclError aclrtPointerGetAttributes(const void* p, aclrtPtrAttributes* attributes) {
  std::memset(attributes, 0, sizeof *attributes);
  attributes->pageSize = page;
  attributes->location.type = memory().contains(p) ? ACL_MEM_LOCATION_TYPE_DEVICE
      : pinned().contains(p)                         ? ACL_MEM_LOCATION_TYPE_HOST
                                                     : ACL_MEM_LOCATION_TYPE_UNREGISTERED;
  return ACL_SUCCESS;
}

// A copy at once, not ordered with any stream: torch_npu synchronises first.
SIM_API aclError aclrtMemcpy(void* to, size_t room, const void* from, size_t n, aclrtMemcpyKind) {
  if (const aclError refused = check_unsafe_call("a synchronous copy")) {
    return refused;
  }
  if (n > room) {
    return fail(ACL_ERROR_RT_PARAM_INVALID, "the copy is larger than its destination");
  }
  // Nobody reads on the host what was not computed. 207000 (not supported) torch_npu would take for an old driver.
  if (const char* cause = any_unknown ? unknown_in(from, n) : nullptr) {
    return fail(ACL_ERROR_RT_PARAM_INVALID, not_computed("this value", cause));
  }
  const double begun = now();
  std::memcpy(to, from, n);
  mark_known(to, n);
  if (paced && is_device_memory(to) != is_device_memory(from)) {
    host_work(begun, std::max(card().copy, n / card().link));
  }
  return ACL_SUCCESS;
}
SIM_API aclError aclrtMemset(void* p, size_t room, int32_t value, size_t n) {
  if (const aclError refused = check_unsafe_call("a synchronous memset")) {
    return refused;
  }
  if (n > room) {
    return fail(ACL_ERROR_RT_PARAM_INVALID, "the memset is larger than its destination");
  }
  std::memset(p, value, n);
  mark_known(p, n);
  return ACL_SUCCESS;
}

SIM_API aclError aclrtMemcpyAsync(
    void* to, size_t room, const void* from, size_t n, aclrtMemcpyKind kind, aclrtStream stream) {
  if (n > room) {
    return fail(ACL_ERROR_RT_PARAM_INVALID, "the copy is larger than its destination");
  }
  const void* host = kind == ACL_MEMCPY_HOST_TO_DEVICE ? from : kind == ACL_MEMCPY_DEVICE_TO_HOST ? to : nullptr;
  if (host && stream_of(stream)->graph.load() && !pinned().contains(host)) {
    // CANN synchronises the stream first, which a capture refuses. (From 9.1 on it says 107000.)
    return fail(
        ACL_ERROR_RT_STREAM_CAPTURED,
        "a copy from or to pageable host memory can't be captured: copy outside the capture, or use pinned memory");
  }
  return launch(stream, std::make_unique<Copy>(to, from, n));
}
SIM_API aclError aclrtMemsetAsync(void* p, size_t room, int32_t value, size_t n, aclrtStream stream) {
  if (n > room) {
    return fail(ACL_ERROR_RT_PARAM_INVALID, "the memset is larger than its destination");
  }
  return launch(stream, std::make_unique<Set>(p, value, n));
}
