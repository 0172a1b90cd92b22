#include "op.h"
#include "memory.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>

namespace sim {

static std::string& all_names() {
  static auto* names = new std::string;
  return *names;
}

Listed::Listed(const char* name) : name(name), cost(cost_of(name)) {
  all_names().append(name).append("\n");
}

void check_layout(const char* name, aclTensor& handle) {
  if (!handle.has_view()) {
    return; // the kernel left it alone
  }
  const at::Tensor& view = handle.view();
  const at::IntArrayRef sizes(handle.sizes), strides(handle.strides);
  TORCH_CHECK(
      view.sizes() == sizes, name, ": the caller made room for ", sizes, ", the kernel wrote ", view.sizes());
  TORCH_CHECK(
      view.strides() == strides, name, ": the caller gave the strides ", strides, ", the kernel wrote with ",
      view.strides());
}

const bool checks_accesses = [] {
  const char* text = std::getenv("ASCEND_SIM_CHECK");
  return text && !std::strcmp(text, "1");
}();

namespace {

at::Tensor view_of(const Access& access) {
  return const_cast<aclTensor*>(access.tensor)->view();
}

bool overlap(const Access& a, const Access& b) {
  const auto end = [](const aclTensor& t) { return static_cast<const char*>(t.data) + t.bytes(); };
  return a.tensor->first() < end(*b.tensor) && b.tensor->first() < end(*a.tensor);
}

// Numbers that give a wrong result where they are taken for an operand. Zeros might not.
void fill_with_garbage(at::Tensor view) {
  const auto element = at::empty({}, view.options());
  std::memset(element.mutable_data_ptr(), view.scalar_type() == at::kBool ? 1 : 0xA5, element.nbytes());
  view.copy_(element);
}

} // namespace

void run_checked(const Accesses& tensors, c10::function_ref<void()> run) {
  // A caller may pass one memory twice, to be read and to be written.
  const auto meets = [&](const Access& access, bool Access::*use) {
    return std::any_of(tensors.begin(), tensors.end(), [&](const Access& other) {
      return other.*use && overlap(access, other);
    });
  };
  const auto copy = [](const Access& access) { return view_of(access).clone(at::MemoryFormat::Contiguous); };
  std::vector<std::pair<size_t, at::Tensor>> before;
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (!tensors[i].writes && !meets(tensors[i], &Access::writes)) {
      before.emplace_back(i, copy(tensors[i]));
    } else if (!tensors[i].reads && !meets(tensors[i], &Access::reads)) {
      fill_with_garbage(view_of(tensors[i]));
    }
  }
  run();
  for (const auto& [i, old] : before) {
    const at::Tensor now = copy(tensors[i]);
    TORCH_CHECK(
        !std::memcmp(old.const_data_ptr(), now.const_data_ptr(), old.nbytes()), "tensor ", i + 1,
        " of those that it was given, ", now.scalar_type(), " of size ", now.sizes(), ", is only to be read, and changed");
  }
}

void write_wanted(at::Tensor& out, const at::Tensor& result) {
  if (out.defined() && result.defined()) {
    out.copy_(result.view_as(out));
  }
}

void resize_output(aclTensor& out, const at::Tensor& result) {
  at::Tensor& view = out.view();
  TORCH_CHECK(result.numel() <= view.numel(), "an output is too small for ", result.sizes());
  at::DimVector strides(result.dim());
  int64_t stride = 1;
  for (int64_t d = result.dim() - 1; d >= 0; --d) {
    strides[d] = stride;
    stride *= std::max<int64_t>(result.size(d), 1);
  }
  view = view.as_strided(result.sizes(), strides);
  view.copy_(result);
}

} // namespace sim

bool aclOpExecutor::uses_freed_memory() const {
  const auto tensors = accesses();
  return std::any_of(tensors.begin(), tensors.end(), [](const sim::Access& access) {
    return !access.tensor->is_empty() && sim::is_freed(access.tensor->data, access.tensor->bytes());
  });
}

// The caller reads this after it has waited for the operator, and deletes the array.
SIM_API int aclGetViewShape(aclTensor* handle, int64_t** sizes, uint64_t* dims) {
  const auto found = handle->view().sizes();
  *dims = found.size();
  *sizes = new int64_t[found.size()];
  std::copy(found.begin(), found.end(), *sizes);
  return ACL_SUCCESS;
}

// Of an operator that was planned and not launched.
SIM_API int aclDestroyAclOpExecutor(aclOpExecutor* executor) {
  delete executor;
  return ACL_SUCCESS;
}

// One name a line.
SIM_API const char* ascend_sim_operators() {
  return sim::all_names().c_str();
}
