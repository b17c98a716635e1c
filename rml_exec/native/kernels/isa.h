// Names of the instruction set that this source is being compiled for. CMake defines RML_ISA as baseline, avx2, avx512 or neon.
// RML_KERNEL(gemm) is rml_gemm__avx2: everything that is not static carries the suffix, so no two objects share a symbol.
#ifndef RML_ISA_H
#define RML_ISA_H
#include "kernels.h"

#define RML_JOIN(a, b) a##b
#define RML_JOIN_NAMES(a, b) RML_JOIN(a, b)
#define RML_QUOTE(text) #text
#define RML_QUOTE_NAME(name) RML_QUOTE(name)
#define RML_KERNEL(name) RML_JOIN_NAMES(rml_##name##__, RML_ISA)
#define RML_ISA_NAME RML_QUOTE_NAME(RML_ISA)

#define RML_STEP(name, parameters, operands) void RML_KERNEL(name)(const rml_args *);
#include "steps.def"
#undef RML_STEP

// Half-open range [*begin, *end) of n items that a thread owns; depends on nothing but n, thread and threads.
static inline void rml_share(int64_t n, int thread, int threads, int64_t *begin, int64_t *end) {
  *begin = n * thread / threads;
  *end = n * (thread + 1) / threads;
}

// Says that this step is not for the kernel: an operand holds what it does not do, such as an index out of range. The program then runs
// the step's host function in its place, which raises or computes. Outputs may hold anything by then; inputs must be as they were.
static inline void rml_decline(const rml_args *args) { __atomic_store_n(args->declined, args->step, __ATOMIC_RELAXED); }
#endif
