// How an operator is written. torch_npu looks up two C functions for each: aclnnXxxGetWorkspaceSize plans it
// and aclnnXxx launches it. One entry makes both:
//
//   ACLNN(Add, tensor(self), tensor(other), scalar(alpha), out(out)) {
//     at::add_out(out, self, other, alpha);
//   }
//
// The parameters stand in the order in which op-plugin passes them (op_plugin/ops/opapi/*.cpp, and `exec:` in
// op_plugin_functions.yaml). The body runs on the device thread, with these types:
//
//   tensor   at::Tensor&, undefined where the caller passed none, and only read
//   out      the same, but written: the whole of it, so that what was in it before does not matter
//   inout    the same, but read and written, or written in part
//   tensors  std::vector<at::Tensor>&, empty where none was passed; outs and inouts likewise
//   sized    aclTensor&, an output whose size depends on the data: resize_output() says which it is
//   scalar   at::Scalar&                                              scalars  std::vector<at::Scalar>&
//   ints     at::IntArrayRef, empty where the caller passed none      bools    at::ArrayRef<bool>
//   int64 int32 int8  the integer                                     real single   double, float
//   flag     bool        dtype   at::ScalarType                       text     const std::string&
//
// What the parameters say of reading and writing is checked where ASCEND_SIM_CHECK is 1.
#pragma once

#include "flops.h"
#include "handover.h"
#include "stream.h"
#include "task.h"
#include "tensor.h"

#include <ATen/Functions.h>
#include <c10/util/FunctionRef.h>
#include <tuple>

namespace sim {

// An operator, whatever it is called with: one object for each name.
struct Listed {
  explicit Listed(const char* name); // adds the name to those of ascend_sim_operators()
  const char* const name;
  const Cost cost;
};

} // namespace sim

struct aclOpExecutor : sim::Task, sim::InBlock {
  explicit aclOpExecutor(const sim::Listed& op) : Task(op.name), cost(op.cost) {}
  bool uses_freed_memory() const override;
  double flops() const override;
  double bytes() const override;
  virtual sim::Call call() const = 0; // the arguments that say what it costs
  const sim::Cost& cost;
};

namespace sim {

// An argument as the executor keeps it, and as the body takes it.
template <class T>
struct Arg {
  T value;
  T get() { return value; }
};

template <class Handle>
struct HandleArg {
  Ref<Handle> held;
  HandleArg(const Handle* p) : held(p ? Ref<Handle>::reclaim_copy(const_cast<Handle*>(p)) : Ref<Handle>()) {}
};

// Tensors, and what the operator does with them.
template <bool read, bool write>
struct TensorArg : HandleArg<aclTensor> {
  using HandleArg::HandleArg;
  static constexpr bool reads = read, writes = write;
  at::Tensor& get() {
    static auto* none = new at::Tensor;
    return held ? held->view() : *none;
  }
};
template <bool read, bool write>
struct TensorListArg : HandleArg<aclTensorList> {
  using HandleArg::HandleArg;
  static constexpr bool reads = read, writes = write;
  std::vector<at::Tensor>& get() {
    static auto* none = new std::vector<at::Tensor>;
    return held ? held->views() : *none;
  }
};
template <class Handle, bool read>
struct Written {
  Handle* handle;
  operator Handle*() const { return handle; } // as it came in through the C interface
};
template <>
struct Arg<aclTensor*> : TensorArg<true, false> {
  using TensorArg::TensorArg;
};
template <bool read>
struct Arg<Written<aclTensor, read>> : TensorArg<read, true> {
  using TensorArg<read, true>::TensorArg;
};
template <>
struct Arg<aclTensorList*> : TensorListArg<true, false> {
  using TensorListArg::TensorListArg;
};
template <bool read>
struct Arg<Written<aclTensorList, read>> : TensorListArg<read, true> {
  using TensorListArg<read, true>::TensorListArg;
};

// An output that the caller made large enough for the worst case, and whose true size it asks for afterwards.
struct Sized {
  aclTensor* handle;
};
template <>
struct Arg<Sized> : HandleArg<aclTensor> {
  Arg(Sized p) : HandleArg(p.handle) {}
  static constexpr bool reads = false, writes = true;
  aclTensor& get() {
    TORCH_CHECK(held, "an output is missing");
    return *held;
  }
};
// Write a result where the caller asked for it: of several outputs it may want some only.
void write_wanted(at::Tensor& out, const at::Tensor& result);
// Write `result`, packed, to the beginning of an output and let the output have its size.
void resize_output(aclTensor& out, const at::Tensor& result);

template <>
struct Arg<aclScalar*> : HandleArg<aclScalar> {
  using HandleArg::HandleArg;
  at::Scalar& get() {
    TORCH_CHECK(held, "a scalar argument is missing");
    return held->value;
  }
};
template <>
struct Arg<aclIntArray*> : HandleArg<aclIntArray> {
  using HandleArg::HandleArg;
  at::IntArrayRef get() { return held ? at::IntArrayRef(held->values) : at::IntArrayRef(); }
};
template <>
struct Arg<aclBoolArray*> : HandleArg<aclBoolArray> {
  using HandleArg::HandleArg;
  at::ArrayRef<bool> get() { return held ? at::ArrayRef<bool>(held->values) : at::ArrayRef<bool>(); }
};
template <>
struct Arg<aclScalarList*> : HandleArg<aclScalarList> {
  using HandleArg::HandleArg;
  std::vector<at::Scalar>& get() {
    TORCH_CHECK(held, "a scalar list is missing");
    return held->values;
  }
};
template <>
struct Arg<aclDataType> {
  int value;
  at::ScalarType get() { return scalar_type(value); }
};
template <>
struct Arg<const char*> {
  std::string value;
  Arg(const char* p) : value(p ? p : "") {}
  const std::string& get() { return value; }
};

// Each tensor of an argument: none, one, or those of a list.
template <class A, class F>
void each_tensor(A& arg, F f) {
  if constexpr (requires { arg.held->items; }) {
    if (arg.held) {
      for (const auto& item : arg.held->items) {
        if (item) {
          f(*item);
        }
      }
    }
  } else if constexpr (requires { A::writes; }) {
    if (arg.held) {
      f(*arg.held);
    }
  }
}

template <class A>
void collect(Accesses& found, const A& arg) {
  if constexpr (requires { A::writes; }) {
    each_tensor(arg, [&](const aclTensor& tensor) {
      found.push_back({&tensor, nullptr, 0, A::reads, A::writes});
    });
  }
}
template <class T>
void collect(Call& call, const Arg<T>& arg) {
  if constexpr (std::is_same_v<T, aclIntArray*>) {
    call.lists.push_back(arg.held ? at::IntArrayRef(arg.held->values) : at::IntArrayRef());
  } else if constexpr (std::is_same_v<T, aclBoolArray*>) {
    call.mask = arg.held ? at::ArrayRef<bool>(arg.held->values) : at::ArrayRef<bool>();
  } else if constexpr (std::is_same_v<T, bool>) {
    call.flags.push_back(arg.value);
  } else if constexpr (std::is_same_v<T, const char*>) {
    call.text = arg.value;
  }
}

// An output that a kernel gave another shape or other strides is not where the caller will look.
void check_layout(const char* name, aclTensor& handle);

// ASCEND_SIM_CHECK=1: run a kernel with garbage in what it only writes, and throw if it changed what it only reads.
extern const bool checks_accesses;
void run_checked(const Accesses& tensors, c10::function_ref<void()> run);

template <class Body, class... A>
struct Operator final : aclOpExecutor {
  Operator(const Listed& op, Body* body, A... args) : aclOpExecutor(op), body(body), args(Arg<A>{args}...) {}
  void run() override {
    const auto kernel = [&] { std::apply([&](auto&... arg) { body(arg.get()...); }, args); };
    checks_accesses ? run_checked(accesses(), kernel) : kernel();
    if (!checked) {
      const auto check = [&]<class T>(Arg<T>& arg) {
        if constexpr (!std::is_same_v<T, Sized>) {
          each_tensor(arg, [&](aclTensor& tensor) { check_layout(name, tensor); });
        }
      };
      std::apply([&](auto&... arg) { (check(arg), ...); }, args);
      checked = true; // nothing of that changes between replays
    }
  }
  Accesses accesses() const override {
    Accesses found;
    std::apply([&](const auto&... arg) { (collect(found, arg), ...); }, args);
    return found;
  }
  bool sizes_an_output() const override { return (std::is_same_v<A, Sized> || ...); }
  Call call() const override {
    Call found(accesses());
    std::apply([&](const auto&... arg) { (collect(found, arg), ...); }, args);
    return found;
  }
  Body* body;
  std::tuple<Arg<A>...> args;
  bool checked = false;
};

// Plan an operator. `why_not` looks at the same arguments and says what is wrong with them, or nothing: then the
// call is refused at once, as CANN refuses it, and not when the kernel runs.
template <class Body, class Check, class... A>
int plan(const Listed& op, uint64_t* workspace, aclOpExecutor** executor, Body* body, Check why_not, A... args) {
  if (forked()) { // before torch_npu puts the launch into its own queue, whose thread is gone too: nobody would answer
    return fail_forked();
  }
  const double begun = paced ? now() : 0;
  auto task = std::make_unique<Operator<Body, A...>>(op, body, args...);
  if constexpr (!std::is_same_v<Check, std::nullptr_t>) {
    std::string problem;
    try {
      problem = std::apply([&](auto&... arg) { return why_not(arg.get()...); }, task->args);
    } catch (const std::exception& e) {
      problem = describe(e);
    }
    if (!problem.empty()) {
      constexpr int invalid_parameter = 161002; // ACLNN_ERR_PARAM_INVALID
      return fail(invalid_parameter, std::string(op.name) + ": " + problem);
    }
  }
  *workspace = 0;
  *executor = task.release();
  __tsan_release(*executor);
  if (paced) {
    host_work(begun, card().plan);
  }
  return ACL_SUCCESS;
}

} // namespace sim

// FOR_EACH(f, a, b, …) is f(a), f(b), …; up to 64 of them.
#define SIM_PARENS ()
#define SIM_EXPAND(...) SIM_EXPAND_3(SIM_EXPAND_3(SIM_EXPAND_3(SIM_EXPAND_3(__VA_ARGS__))))
#define SIM_EXPAND_3(...) SIM_EXPAND_2(SIM_EXPAND_2(SIM_EXPAND_2(SIM_EXPAND_2(__VA_ARGS__))))
#define SIM_EXPAND_2(...) SIM_EXPAND_1(SIM_EXPAND_1(SIM_EXPAND_1(SIM_EXPAND_1(__VA_ARGS__))))
#define SIM_EXPAND_1(...) __VA_ARGS__
#define SIM_FOR_EACH(f, ...) __VA_OPT__(SIM_EXPAND(SIM_STEP(f, __VA_ARGS__)))
#define SIM_STEP(f, a, ...) f(a) __VA_OPT__(, SIM_AGAIN SIM_PARENS(f, __VA_ARGS__))
#define SIM_AGAIN() SIM_STEP

// A parameter `kind(name)` as it is declared in the C interface, in the body, and passed on.
#define SIM_C(parameter) SIM_C_##parameter
#define SIM_C_tensor(x) aclTensor* x
#define SIM_C_out(x) aclTensor* x
#define SIM_C_inout(x) aclTensor* x
#define SIM_C_sized(x) aclTensor* x
#define SIM_C_tensors(x) aclTensorList* x
#define SIM_C_outs(x) aclTensorList* x
#define SIM_C_inouts(x) aclTensorList* x
#define SIM_C_scalar(x) aclScalar* x
#define SIM_C_scalars(x) aclScalarList* x
#define SIM_C_ints(x) aclIntArray* x
#define SIM_C_bools(x) aclBoolArray* x
#define SIM_C_int64(x) int64_t x
#define SIM_C_int32(x) int32_t x
#define SIM_C_int8(x) int8_t x
#define SIM_C_real(x) double x
#define SIM_C_single(x) float x
#define SIM_C_flag(x) bool x
#define SIM_C_dtype(x) aclDataType x
#define SIM_C_text(x) const char* x
#define SIM_BODY(parameter) SIM_BODY_##parameter
#define SIM_BODY_tensor(x) [[maybe_unused]] at::Tensor& x
#define SIM_BODY_out(x) [[maybe_unused]] at::Tensor& x
#define SIM_BODY_inout(x) [[maybe_unused]] at::Tensor& x
#define SIM_BODY_sized(x) [[maybe_unused]] aclTensor& x
#define SIM_BODY_tensors(x) [[maybe_unused]] std::vector<at::Tensor>& x
#define SIM_BODY_outs(x) [[maybe_unused]] std::vector<at::Tensor>& x
#define SIM_BODY_inouts(x) [[maybe_unused]] std::vector<at::Tensor>& x
#define SIM_BODY_scalar(x) [[maybe_unused]] at::Scalar& x
#define SIM_BODY_scalars(x) [[maybe_unused]] std::vector<at::Scalar>& x
#define SIM_BODY_ints(x) [[maybe_unused]] at::IntArrayRef x
#define SIM_BODY_bools(x) [[maybe_unused]] at::ArrayRef<bool> x
#define SIM_BODY_int64(x) [[maybe_unused]] int64_t x
#define SIM_BODY_int32(x) [[maybe_unused]] int32_t x
#define SIM_BODY_int8(x) [[maybe_unused]] int8_t x
#define SIM_BODY_real(x) [[maybe_unused]] double x
#define SIM_BODY_single(x) [[maybe_unused]] float x
#define SIM_BODY_flag(x) [[maybe_unused]] bool x
#define SIM_BODY_dtype(x) [[maybe_unused]] at::ScalarType x
#define SIM_BODY_text(x) [[maybe_unused]] const std::string& x
#define SIM_NAME(parameter) SIM_NAME_##parameter
#define SIM_NAME_tensor(x) x
#define SIM_NAME_out(x) sim::Written<aclTensor, false>{x}
#define SIM_NAME_inout(x) sim::Written<aclTensor, true>{x}
#define SIM_NAME_sized(x) sim::Sized{x}
#define SIM_NAME_tensors(x) x
#define SIM_NAME_outs(x) sim::Written<aclTensorList, false>{x}
#define SIM_NAME_inouts(x) sim::Written<aclTensorList, true>{x}
#define SIM_NAME_scalar(x) x
#define SIM_NAME_scalars(x) x
#define SIM_NAME_ints(x) x
#define SIM_NAME_bools(x) x
#define SIM_NAME_int64(x) x
#define SIM_NAME_int32(x) x
#define SIM_NAME_int8(x) x
#define SIM_NAME_real(x) x
#define SIM_NAME_single(x) x
#define SIM_NAME_flag(x) x
#define SIM_NAME_dtype(x) x
#define SIM_NAME_text(x) x

#define ACLNN(op, ...) ACLNN_UNLESS(op, nullptr, __VA_ARGS__)

// The same, with a function that says what is wrong with the arguments.
#define ACLNN_UNLESS(op, why_not, ...)                                                                        \
  static void body_of_##op(SIM_FOR_EACH(SIM_BODY, __VA_ARGS__));                                              \
  static const sim::Listed listed_##op("aclnn" #op);                                                          \
  SIM_API int aclnn##op##GetWorkspaceSize(                                                                    \
      SIM_FOR_EACH(SIM_C, __VA_ARGS__), uint64_t* workspace, aclOpExecutor** executor) {                      \
    return sim::plan(                                                                                         \
        listed_##op, workspace, executor, body_of_##op, why_not, SIM_FOR_EACH(SIM_NAME, __VA_ARGS__));        \
  }                                                                                                           \
  SIM_API int aclnn##op(void*, uint64_t, aclOpExecutor* executor, aclrtStream stream) {                       \
    __tsan_acquire(executor);                                                                                 \
    return sim::launch(stream, sim::TaskPtr(executor));                                                       \
  }                                                                                                           \
  static void body_of_##op(SIM_FOR_EACH(SIM_BODY, __VA_ARGS__))

// Before a capture torch_npu asks some operators for the workspace that will do for all later arguments, too.
#define ACLNN_MAX_WORKSPACE(op, ...)                                                                          \
  SIM_API int aclnn##op##GetMaxWorkspaceSize(                                                                 \
      SIM_FOR_EACH(SIM_C, __VA_ARGS__), uint64_t* workspace, aclOpExecutor** executor) {                      \
    return aclnn##op##GetWorkspaceSize(SIM_FOR_EACH(SIM_NAME, __VA_ARGS__), workspace, executor);             \
  }
