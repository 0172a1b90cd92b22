#include "tensor.h"

#include <algorithm>
#include <c10/core/TensorImpl.h>

namespace sim {

at::ScalarType scalar_type(int acl_type) {
  switch (acl_type) {
    case ACL_FLOAT: return at::kFloat;
    case ACL_FLOAT16: return at::kHalf;
    case ACL_INT8: return at::kChar;
    case ACL_INT32: return at::kInt;
    case ACL_UINT8: return at::kByte;
    case ACL_INT16: return at::kShort;
    case ACL_UINT16: return at::kUInt16;
    case ACL_UINT32: return at::kUInt32;
    case ACL_INT64: return at::kLong;
    case ACL_UINT64: return at::kUInt64;
    case ACL_DOUBLE: return at::kDouble;
    case ACL_BOOL: return at::kBool;
    case ACL_COMPLEX32: return at::kComplexHalf;
    case ACL_COMPLEX64: return at::kComplexFloat;
    case ACL_COMPLEX128: return at::kComplexDouble;
    case ACL_BF16: return at::kBFloat16;
  }
  TORCH_CHECK(false, "data type ", acl_type, " of the C interface is not simulated");
}

namespace {

template <class T>
int destroy(const T* handle) {
  if (handle) {
    Ref<T>::reclaim(const_cast<T*>(handle));
  }
  return ACL_SUCCESS;
}

at::Scalar scalar_from(const void* value, int acl_type) {
  switch (const auto type = scalar_type(acl_type)) {
#define CASE(ctype, name) \
  case at::k##name: return *static_cast<const ctype*>(value);
    CASE(float, Float)
    CASE(double, Double)
    CASE(int8_t, Char)
    CASE(uint8_t, Byte)
    CASE(int16_t, Short)
    CASE(int32_t, Int)
    CASE(int64_t, Long)
    CASE(bool, Bool)
    CASE(at::Half, Half)
    CASE(at::BFloat16, BFloat16)
    CASE(c10::complex<float>, ComplexFloat)
    CASE(c10::complex<double>, ComplexDouble)
#undef CASE
    default: TORCH_CHECK(false, "a scalar of type ", type, " is not simulated");
  }
}

// The C interface knows no exceptions: null, and torch_npu reports the error that was left.
template <class F>
auto guarded(F make) -> decltype(make().release()) {
  try {
    return make().release();
  } catch (const std::exception& e) {
    fail(ACL_ERROR_INVALID_PARAM, describe(e));
    return nullptr;
  }
}

} // namespace
} // namespace sim

using namespace sim;

bool aclTensor::is_empty() const {
  return std::find(sizes.begin(), sizes.end(), 0) != sizes.end();
}

size_t aclTensor::bytes() const {
  int64_t elements = is_empty() ? 0 : 1;
  for (size_t d = 0; d < sizes.size() && elements; ++d) {
    elements += (sizes[d] - 1) * strides[d];
  }
  return (elements + offset) * c10::elementSize(type);
}

// Like at::from_blob, without its checks.
at::Tensor& aclTensor::view() {
  if (!has_view()) {
    const auto dtype = at::scalarTypeToTypeMeta(type);
    // Not resizable: a kernel that needs another size than its output has throws.
    c10::Storage storage(
        c10::Storage::use_byte_size_t(),
        bytes(),
        at::DataPtr(data, c10::Device(c10::kCPU)),
        nullptr,
        false);
    view_ = at::detail::make_tensor<c10::TensorImpl>(
        std::move(storage), c10::DispatchKeySet(c10::DispatchKey::CPU), dtype);
    view_.unsafeGetTensorImpl()->set_sizes_and_strides(sizes, strides, offset);
  }
  return view_;
}

std::vector<at::Tensor>& aclTensorList::views() {
  if (views_.size() != items.size()) {
    for (const auto& item : items) {
      views_.push_back(item ? item->view() : at::Tensor());
    }
  }
  return views_;
}

SIM_API aclTensor* aclCreateTensor(
    const int64_t* sizes, uint64_t dims, aclDataType type, const int64_t* strides, int64_t offset, aclFormat,
    const int64_t*, uint64_t, void* data) {
  return guarded([&] {
    auto handle = c10::make_intrusive<aclTensor>();
    handle->data = data;
    handle->offset = offset;
    handle->type = scalar_type(type);
    handle->sizes.assign(sizes, sizes + dims);
    handle->strides.assign(strides, strides + dims);
    return handle;
  });
}
SIM_API aclScalar* aclCreateScalar(void* value, aclDataType type) {
  return guarded([&] {
    auto handle = c10::make_intrusive<aclScalar>();
    handle->value = scalar_from(value, type);
    return handle;
  });
}
SIM_API aclIntArray* aclCreateIntArray(const int64_t* values, uint64_t n) {
  auto handle = c10::make_intrusive<aclIntArray>();
  handle->values.assign(values, values + n);
  return handle.release();
}
SIM_API aclFloatArray* aclCreateFloatArray(const float* values, uint64_t n) {
  auto handle = c10::make_intrusive<aclFloatArray>();
  handle->values.assign(values, values + n);
  return handle.release();
}
SIM_API aclBoolArray* aclCreateBoolArray(const bool* values, uint64_t n) {
  auto handle = c10::make_intrusive<aclBoolArray>();
  handle->values.assign(values, values + n);
  return handle.release();
}
// A list takes over its members.
SIM_API aclTensorList* aclCreateTensorList(aclTensor* const* tensors, uint64_t n) {
  auto handle = c10::make_intrusive<aclTensorList>();
  for (uint64_t i = 0; i < n; ++i) {
    handle->items.push_back(Ref<aclTensor>::reclaim(tensors[i]));
  }
  return handle.release();
}
SIM_API aclScalarList* aclCreateScalarList(aclScalar* const* scalars, uint64_t n) {
  auto handle = c10::make_intrusive<aclScalarList>();
  for (uint64_t i = 0; i < n; ++i) {
    handle->values.push_back(scalars[i]->value);
    destroy(scalars[i]);
  }
  return handle.release();
}

SIM_API int aclDestroyTensor(const aclTensor* p) { return destroy(p); }
SIM_API int aclDestroyScalar(const aclScalar* p) { return destroy(p); }
SIM_API int aclDestroyIntArray(const aclIntArray* p) { return destroy(p); }
SIM_API int aclDestroyFloatArray(const aclFloatArray* p) { return destroy(p); }
SIM_API int aclDestroyBoolArray(const aclBoolArray* p) { return destroy(p); }
SIM_API int aclDestroyTensorList(const aclTensorList* p) { return destroy(p); }
SIM_API int aclDestroyScalarList(const aclScalarList* p) { return destroy(p); }
