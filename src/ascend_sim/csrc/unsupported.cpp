// The rest of the C interface: what torch_npu links to and this device does not have. Each such function fails
// and names itself; none says "done" for something that was not. The few that do nothing are those for which
// nothing is right: they describe an operator that aclopCompileAndExecute will refuse, or report to a profiler
// that is not there.
//
// CANN's headers are left out here on purpose: the parameters don't matter, so they are not written down.
#include <cstdint>
#include <string>

#define SIM_API extern "C" __attribute__((visibility("default")))

namespace sim {
int fail(int code, const std::string& text);
}

constexpr int ACL_ERROR_RT_FEATURE_NOT_SUPPORT = 207000, ACL_ERROR_OP_NOT_FOUND = 100024;

#define UNSUPPORTED(name)                                                                 \
  SIM_API int name() {                                                                    \
    return sim::fail(ACL_ERROR_RT_FEATURE_NOT_SUPPORT, #name " is not simulated");        \
  }
#define NOTHING_TO_DO(name) \
  SIM_API intptr_t name() { \
    return 0;               \
  }
#define DESCRIPTION(name)                    \
  SIM_API void* name() {                     \
    static char nothing;                     \
    return &nothing;                         \
  }

// Virtual memory ("expandable segments"), memory shared between processes and devices, raw kernels, dumps.
UNSUPPORTED(aclrtReserveMemAddress)
UNSUPPORTED(aclrtReleaseMemAddress)
UNSUPPORTED(aclrtMallocPhysical)
UNSUPPORTED(aclrtFreePhysical)
UNSUPPORTED(aclrtMapMem)
UNSUPPORTED(aclrtUnmapMem)
UNSUPPORTED(aclrtMemExportToShareableHandle)
UNSUPPORTED(aclrtMemImportFromShareableHandle)
UNSUPPORTED(aclrtMemSetPidToShareableHandle)
UNSUPPORTED(aclrtDeviceGetBareTgid)
UNSUPPORTED(aclrtDeviceEnablePeerAccess)
UNSUPPORTED(aclrtBinaryLoadFromData)
UNSUPPORTED(aclrtBinaryGetFunction)
UNSUPPORTED(aclrtGetFunctionAddr)
UNSUPPORTED(aclmdlInitDump)
UNSUPPORTED(aclmdlSetDump)
UNSUPPORTED(aclmdlFinalizeDump)
UNSUPPORTED(rtDevBinaryRegister)
UNSUPPORTED(rtFunctionRegister)
UNSUPPORTED(rtKernelLaunch)
UNSUPPORTED(rtGetC2cCtrlAddr)

// An operator with no aclnn function is described by these …
DESCRIPTION(aclCreateTensorDesc)
DESCRIPTION(aclCreateDataBuffer)
DESCRIPTION(aclopCreateAttr)
NOTHING_TO_DO(aclDestroyTensorDesc)
NOTHING_TO_DO(aclDestroyDataBuffer)
NOTHING_TO_DO(aclopDestroyAttr)
NOTHING_TO_DO(aclSetTensorDescName)
NOTHING_TO_DO(aclSetTensorFormat)
NOTHING_TO_DO(aclSetTensorPlaceMent)
NOTHING_TO_DO(aclSetTensorShape)
NOTHING_TO_DO(aclGetTensorDescDimV2)
NOTHING_TO_DO(aclGetTensorDescFormat)
NOTHING_TO_DO(aclGetTensorDescNumDims)
NOTHING_TO_DO(aclGetTensorDescType)
NOTHING_TO_DO(aclopSetAttrBool)
NOTHING_TO_DO(aclopSetAttrDataType)
NOTHING_TO_DO(aclopSetAttrFloat)
NOTHING_TO_DO(aclopSetAttrInt)
NOTHING_TO_DO(aclopSetAttrString)
NOTHING_TO_DO(aclopSetAttrListBool)
NOTHING_TO_DO(aclopSetAttrListFloat)
NOTHING_TO_DO(aclopSetAttrListInt)
NOTHING_TO_DO(aclopSetAttrListListInt)
// … and ends here, by its name.
SIM_API int aclopCompileAndExecute(const char* op, ...) {
  return sim::fail(ACL_ERROR_OP_NOT_FOUND, std::string("operator ") + op + " is not simulated");
}
SIM_API int aclopCompileAndExecuteV2(const char* op, ...) {
  return sim::fail(ACL_ERROR_OP_NOT_FOUND, std::string("operator ") + op + " is not simulated");
}

// Determinism of communication between devices, of which there is one.
NOTHING_TO_DO(HcclSetConfig)

// The profiler of CANN.
NOTHING_TO_DO(MsprofRegisterCallback)
NOTHING_TO_DO(MsprofReportApi)
NOTHING_TO_DO(MsprofReportCompactInfo)
NOTHING_TO_DO(MsprofReportAdditionalInfo)
NOTHING_TO_DO(MsprofGetHashId)
NOTHING_TO_DO(MsprofSysCycleTime)
