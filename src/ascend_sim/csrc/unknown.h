// Memory whose contents nobody computed: what the paced clock skipped, and what follows from it. Reading it is an
// error that names the kernel that would have written it, so that no one takes it for a result.
#pragma once

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

// The cause of memory that is new on the paced clock.
extern const char* const never_written;
// On the clock that computes, such memory is as good as any that is new.
void forget_never_written();

std::string not_computed(const std::string& what, const char* cause);
void mark_outputs(const Accesses& accesses, const char* cause); // null: known

} // namespace sim
