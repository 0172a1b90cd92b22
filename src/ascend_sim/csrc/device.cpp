// Initialisation, the device and its context, versions, and what the device says about itself.
#include "device.h"
#include "common.h"

#include <atomic>
#include <c10/core/AllocatorConfig.h>
#include <c10/util/Exception.h>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <mutex>
#include <pthread.h>

namespace sim {

std::atomic<bool> stopping{false};

namespace {

thread_local std::string recent_error, returned_error;
thread_local int current_device = -1;
std::atomic<bool> in_child{false};
std::once_flag started;

void start() {
  std::call_once(started, [] {
    pthread_atfork(nullptr, nullptr, [] { in_child = true; });
    std::atexit(stop_streams);
  });
}

// The version that the device presents. torch_npu compares it to choose its path; 9.0.1 is the one of the
// article's image. It can't say "simulated" itself: torch_npu takes nothing but numbers there.
constexpr const char* cann_version = "9.0.1";
// A card of the 910B series, for the same reason.
constexpr const char* soc_name = "Ascend910B2";

} // namespace

aclError fail(aclError code, const std::string& text) {
  recent_error = "[ascend_sim] " + text;
  return code;
}

std::string describe(const std::exception& e) {
  const auto* error = dynamic_cast<const c10::Error*>(&e);
  return error ? error->what_without_backtrace() : e.what();
}

double now() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_nsec) * 1e-9;
}

bool forked() {
  return in_child.load(std::memory_order_relaxed);
}

aclError fail_forked() {
  return fail(
      ACL_ERROR_RT_CONTEXT_NULL,
      "this process was forked after the device had started, and its device threads did not come along; "
      "start workers with the 'spawn' method");
}

int device_threads() {
  static const int threads = [] {
    const char* text = std::getenv("ASCEND_SIM_THREADS");
    const int n = text ? std::atoi(text) : 1;
    return n > 0 ? n : 1;
  }();
  return threads;
}

} // namespace sim

using sim::fail;

SIM_API aclError aclInit(const char*) {
  sim::start();
  return ACL_SUCCESS;
}
SIM_API aclError aclFinalize() {
  sim::stop_streams();
  return ACL_SUCCESS;
}

// The text is the caller's until its next call on this thread, and is given once.
SIM_API const char* aclGetRecentErrMsg() {
  sim::returned_error.swap(sim::recent_error);
  sim::recent_error.clear();
  return sim::returned_error.c_str();
}

SIM_API aclError aclrtGetDeviceCount(uint32_t* count) {
  *count = 1;
  return ACL_SUCCESS;
}
SIM_API aclError aclrtSetDevice(int32_t device) {
  if (device != 0) {
    return fail(ACL_ERROR_RT_INVALID_DEVICEID, "there is one simulated device, number 0");
  }
  if (sim::forked()) {
    return sim::fail_forked();
  }
  sim::start();
  sim::current_device = device;
  return ACL_SUCCESS;
}
SIM_API aclError aclrtGetDevice(int32_t* device) {
  *device = sim::current_device;
  return sim::current_device < 0 ? ACL_ERROR_RT_CONTEXT_NULL : ACL_SUCCESS;
}
SIM_API aclError aclrtResetDevice(int32_t) {
  return ACL_SUCCESS;
}
SIM_API aclError aclrtGetCurrentContext(aclrtContext* context) {
  static char the_context;
  *context = &the_context;
  return ACL_SUCCESS;
}
SIM_API aclError aclrtSetCurrentContext(aclrtContext) {
  sim::current_device = 0;
  return ACL_SUCCESS;
}
SIM_API aclError aclrtGetPrimaryCtxState(int32_t, uint32_t* flags, int32_t* active) {
  if (flags) {
    *flags = 0;
  }
  *active = sim::current_device >= 0;
  return ACL_SUCCESS;
}
SIM_API aclError aclrtDeviceCanAccessPeer(int32_t* can, int32_t, int32_t) {
  *can = 0;
  return ACL_SUCCESS;
}

// A CUDA build of torch has registered settings of its allocator under names that torch_npu registers too, and c10 ends
// the process at the second. So forget the first, between the imports of the two: no CUDA device is used here.
SIM_API void ascend_sim_forget_cuda_settings() {
  const auto& names = c10::CachingAllocator::AcceleratorAllocatorConfig::getKeys();
  for (const char* name : {"pinned_reserve_segment_size_mb", "per_process_memory_fraction"}) {
    const_cast<std::unordered_set<std::string>&>(names).erase(name);
  }
}

SIM_API const char* aclrtGetSocName() {
  return sim::soc_name;
}
SIM_API aclError aclsysGetCANNVersion(aclCANNPackageName, aclCANNPackageVersion* version) {
  std::memset(version, 0, sizeof *version);
  std::strcpy(version->version, sim::cann_version);
  return ACL_SUCCESS;
}
SIM_API aclError aclsysGetVersionStr(char*, char* version) {
  std::strcpy(version, sim::cann_version);
  return ACL_SUCCESS;
}

static constexpr aclCannAttr attributes[] = {ACL_CANN_ATTR_INF_NAN, ACL_CANN_ATTR_BF16};
SIM_API aclError aclGetCannAttributeList(const aclCannAttr** list, size_t* count) {
  *list = attributes;
  *count = std::size(attributes);
  return ACL_SUCCESS;
}
SIM_API aclError aclGetCannAttribute(aclCannAttr attribute, int32_t* value) {
  *value = attribute == ACL_CANN_ATTR_INF_NAN || attribute == ACL_CANN_ATTR_BF16;
  return ACL_SUCCESS;
}
// Cores of a 910B2, which torch_npu reports as device properties. Nothing here depends on them.
SIM_API aclError aclGetDeviceCapability(uint32_t, aclDeviceInfo what, int64_t* value) {
  *value = what == ACL_DEVICE_INFO_AI_CORE_NUM ? 24 : what == ACL_DEVICE_INFO_VECTOR_CORE_NUM ? 48 : 192 << 20;
  return ACL_SUCCESS;
}

// Modes of the hardware that change nothing here: floats are IEEE, kernels are deterministic, nothing times out.
SIM_API aclError aclrtSetDeviceSatMode(aclrtFloatOverflowMode) {
  return ACL_SUCCESS;
}
SIM_API aclError aclrtSetOpExecuteTimeOut(uint32_t) {
  return ACL_SUCCESS;
}
SIM_API aclError aclrtSetOpWaitTimeout(uint32_t) {
  return ACL_SUCCESS;
}
SIM_API aclError aclSetCompileopt(int, const char*) {
  return ACL_SUCCESS;
}
SIM_API aclError aclrtGetSysParamOpt(aclSysParamOpt, int64_t* value) {
  *value = 0;
  return ACL_SUCCESS;
}
SIM_API aclError aclrtSetSysParamOpt(aclSysParamOpt, int64_t) {
  return ACL_SUCCESS;
}
SIM_API aclError aclrtCtxGetSysParamOpt(aclSysParamOpt, int64_t* value) {
  *value = 0;
  return ACL_SUCCESS;
}
SIM_API aclError aclrtCtxSetSysParamOpt(aclSysParamOpt, int64_t) {
  return ACL_SUCCESS;
}
SIM_API aclError aclrtPeekAtLastError(aclrtLastErrLevel) {
  return ACL_SUCCESS;
}
SIM_API aclError aclrtGetLastError(aclrtLastErrLevel) {
  return ACL_SUCCESS;
}

// CANN's log. Errors reach Python as exceptions, so this one says nothing.
SIM_API void aclAppLog(aclLogLevel, const char*, const char*, uint32_t, const char*, ...) {}
