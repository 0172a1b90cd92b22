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

// Under the mutex: the first range that reaches beyond `begin`.
auto first_beyond(const char* begin) {
  auto it = ranges().upper_bound(begin);
  return it != ranges().begin() && std::prev(it)->second.end > begin ? std::prev(it) : it;
}

// Under the mutex. Of a range that is cut, what lies outside stays.
void cut(const char* begin, const char* end) {
  auto& all = ranges();
  auto it = first_beyond(begin);
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

constexpr int64_t few_pieces = 1024;

// Call f(data, bytes, exact) for each unbroken piece that a tensor views, while f returns true. A tensor of more than few
// pieces is one from its first to its last byte, and that is not exact.
template <class F>
void for_each_piece(const Access& access, F f) {
  if (!access.tensor) {
    f(static_cast<const char*>(access.data), access.bytes, true);
    return;
  }
  const aclTensor& t = *access.tensor;
  if (t.is_empty()) {
    return;
  }
  const int64_t element = static_cast<int64_t>(c10::elementSize(t.type));
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
  if (pieces > few_pieces) {
    f(t.first(), t.bytes() - t.offset * element, false);
    return;
  }
  for (int64_t n = 0; n < pieces; ++n) {
    int64_t place = 0, rest = n;
    for (size_t d = whole; d < dims.size(); ++d) {
      place += rest % dims[d].second * dims[d].first;
      rest /= dims[d].second;
    }
    if (!f(t.first() + place * element, size_t(length * element), true)) {
      return;
    }
  }
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
  for_each_piece(access, [&](const char* data, size_t bytes, bool exact) {
    if (cause) {
      mark_unknown(data, bytes, cause);
    } else if (exact) {
      mark_known(data, bytes);
    }
    return true;
  });
}

const char* unknown_in(const void* data, size_t bytes) {
  const auto* begin = static_cast<const char*>(data);
  std::lock_guard lock(mutex);
  const auto it = first_beyond(begin);
  return bytes && it != ranges().end() && it->first < begin + bytes ? it->second.cause : nullptr;
}

const char* unknown_in(const Access& access) {
  const char* cause = nullptr;
  for_each_piece(access, [&](const char* data, size_t bytes, bool) {
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

void mark_outputs(const Accesses& accesses, const char* cause) {
  for (const Access& access : accesses) {
    if (access.writes) {
      mark(access, cause);
    }
  }
}

} // namespace sim
