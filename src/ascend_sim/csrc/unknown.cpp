#include "unknown.h"
#include "tensor.h"

#include <algorithm>
#include <c10/util/Exception.h>
#include <map>
#include <mutex>

namespace sim {

std::atomic<bool> any_unknown{false};

namespace {

struct Range {
  const char* end;
  const char* cause;
};

std::mutex mutex;
// Disjoint ranges by their beginning.
std::map<const char*, Range>& ranges() {
  static auto* all = new std::map<const char*, Range>; // never destroyed: a device thread may outlive main()
  return *all;
}

// Under the mutex. Of a range that is cut, what lies outside stays.
void cut(const char* begin, const char* end) {
  auto& all = ranges();
  auto it = all.upper_bound(begin);
  if (it != all.begin() && std::prev(it)->second.end > begin) {
    --it;
  }
  while (it != all.end() && it->first < end) {
    const auto [from, range] = *it;
    it = all.erase(it);
    if (from < begin) {
      all[from] = {begin, range.cause};
    }
    if (range.end > end) {
      all[end] = range;
    }
  }
}

const char* find(const char* begin, const char* end) {
  const auto& all = ranges();
  auto it = all.upper_bound(begin);
  if (it != all.begin() && std::prev(it)->second.end > begin) {
    --it;
  }
  return it != all.end() && it->first < end ? it->second.cause : nullptr;
}

// Call f(data, bytes) for each unbroken piece that a tensor views, while f returns true. A tensor of more pieces than
// `most` is one piece from its first to its last byte.
template <class F>
void for_each_piece(const Access& access, int64_t most, F f) {
  if (!access.tensor) {
    f(static_cast<const char*>(access.data), access.bytes);
    return;
  }
  const aclTensor& t = *access.tensor;
  if (t.is_empty()) {
    return;
  }
  const int64_t element = static_cast<int64_t>(c10::elementSize(t.type));
  const char* first = static_cast<const char*>(t.data) + t.offset * element;
  c10::SmallVector<std::pair<int64_t, int64_t>, 5> dims; // (stride, size), the nearest elements first
  for (size_t d = 0; d < t.sizes.size(); ++d) {
    if (t.sizes[d] > 1 && t.strides[d] != 0) {
      dims.emplace_back(t.strides[d], t.sizes[d]);
    }
  }
  std::sort(dims.begin(), dims.end());
  int64_t length = 1, pieces = 1;
  size_t whole = 0; // so many dimensions lie in one piece
  while (whole < dims.size() && dims[whole].first == length) {
    length *= dims[whole++].second;
  }
  for (size_t d = whole; d < dims.size(); ++d) {
    pieces *= dims[d].second;
  }
  if (pieces > most) {
    f(first, t.bytes() - t.offset * element);
    return;
  }
  for (int64_t n = 0; n < pieces; ++n) {
    int64_t place = 0, rest = n;
    for (size_t d = whole; d < dims.size(); ++d) {
      place += rest % dims[d].second * dims[d].first;
      rest /= dims[d].second;
    }
    if (!f(first + place * element, size_t(length * element))) {
      return;
    }
  }
}

constexpr int64_t few_pieces = 1024;

// Of the elements alone, without what lies between them.
size_t exact_bytes(const aclTensor& t) {
  size_t n = c10::elementSize(t.type);
  for (size_t d = 0; d < t.sizes.size(); ++d) {
    n *= t.strides[d] ? t.sizes[d] : 1;
  }
  return n;
}

} // namespace

void mark_unknown(const void* data, size_t bytes, const char* cause) {
  const auto* begin = static_cast<const char*>(data);
  if (!bytes) {
    return;
  }
  std::lock_guard lock(mutex);
  cut(begin, begin + bytes);
  ranges()[begin] = {begin + bytes, cause};
  any_unknown.store(true, std::memory_order_relaxed);
}

void mark_known(const void* data, size_t bytes) {
  if (!any_unknown.load(std::memory_order_relaxed)) {
    return;
  }
  const auto* begin = static_cast<const char*>(data);
  std::lock_guard lock(mutex);
  cut(begin, begin + bytes);
  any_unknown.store(!ranges().empty(), std::memory_order_relaxed);
}

void mark(const Access& access, const char* cause) {
  // What is unknown may be more than it is. What is known must be exact, as a piece too much would pass for a result: of a
  // tensor of very many pieces, what was unknown stays so.
  bool whole = true;
  for_each_piece(access, few_pieces, [&](const char* data, size_t bytes) {
    whole = whole && (!access.tensor || bytes <= exact_bytes(*access.tensor));
    if (cause) {
      mark_unknown(data, bytes, cause);
    } else if (whole) {
      mark_known(data, bytes);
    }
    return true;
  });
}

const char* unknown_in(const void* data, size_t bytes) {
  const auto* begin = static_cast<const char*>(data);
  std::lock_guard lock(mutex);
  return bytes ? find(begin, begin + bytes) : nullptr;
}

const char* unknown_in(const Access& access) {
  const char* cause = nullptr;
  for_each_piece(access, few_pieces, [&](const char* data, size_t bytes) {
    cause = unknown_in(data, bytes);
    return !cause;
  });
  return cause;
}

const char* unknown_input(const Accesses& accesses) {
  if (any_unknown.load(std::memory_order_relaxed)) {
    for (const Access& access : accesses) {
      if (const char* cause = access.reads ? unknown_in(access) : nullptr) {
        return cause;
      }
    }
  }
  return nullptr;
}

const char* const never_written = "nothing was written there";

void forget_never_written() {
  std::lock_guard lock(mutex);
  std::erase_if(ranges(), [](const auto& range) { return range.second.cause == never_written; });
  any_unknown.store(!ranges().empty(), std::memory_order_relaxed);
}

std::string not_computed(const std::string& what, const char* cause) {
  return what + " was not computed: the paced clock counts the time of kernels and does not compute them (" + cause + ")";
}

void mark_outputs(const Task& task, const char* cause) {
  for (const Access& access : task.accesses()) {
    if (access.writes) {
      mark(access, cause);
    }
  }
}

} // namespace sim
