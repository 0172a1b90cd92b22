#include "op.h"

namespace sim {

void check_sizes(const char* name, const aclTensor& handle) {
  TORCH_CHECK(
      !handle.tensor.defined() || handle.tensor.sizes() == at::IntArrayRef(handle.sizes),
      name, ": the caller made room for ", at::IntArrayRef(handle.sizes), ", the kernel wrote ", handle.tensor.sizes());
}

} // namespace sim
