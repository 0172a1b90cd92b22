// Memory whose contents nobody computed: what the paced clock skipped, and what follows from it. Reading it is an
// error that names the kernel that would have written it, so that no one takes it for a result.
#pragma once

#include "common.h"
#include "task.h"

#include <atomic>
#include <cstddef>
#include <string>

namespace sim {

extern std::atomic<bool> any_unknown;

// `cause`, a string literal, says whose result is missing.
void mark_unknown(const void* data, size_t bytes, const char* cause);
void mark_known(const void* data, size_t bytes);
void mark(const Access& access, const char* cause); // null: known

// The cause of what is unknown there, or null.
const char* unknown_in(const void* data, size_t bytes);
const char* unknown_in(const Access& access);
const char* unknown_input(const Accesses& accesses);

// 107000 for what needs such values: 207000 (not supported) torch_npu takes for an old driver, and goes on.
aclError refuse_unknown(const std::string& what, const char* cause);

// For the clock that computes: throws if the task reads what is unknown; says afterwards that it wrote.
void check_inputs(const Task& task);
void mark_outputs_known(const Task& task);

} // namespace sim
