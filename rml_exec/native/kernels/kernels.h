// What a kernel gets and where it is listed. Included by the core and by every per-ISA kernel source; holds no inline functions, so that
// no wide instruction can leak out of a per-ISA object.
#ifndef RML_KERNELS_H
#define RML_KERNELS_H
#include <stdint.h>

// One call of a step on one thread. All threads call the same step; each does its own fixed share and a barrier follows.
typedef struct rml_args {
  const int64_t *p;      // the step's parameters; layout documented in steps.def
  void *const *ptr;      // operand pointers in the order documented in steps.def; null for an absent operand
  int thread, threads;   // share of this call: thread in [0, threads)
  int64_t step;          // index of the step in its program
  int64_t *declined;     // what rml_decline of isa.h sets
} rml_args;

typedef void (*rml_step_fn)(const rml_args *);

// A count in steps.def that is a lower bound.
#define RML_AT_LEAST(n) (-1 - (n))

// Step kinds: RML_STEP_gemm, ... numbered in the order of steps.def.
enum {
#define RML_STEP(name, parameters, operands) RML_STEP_##name,
#include "steps.def"
#undef RML_STEP
  RML_STEP_COUNT
};

// A matrix [k, n] that is packed: k counts `taps` blocks of rows, one after the other. Strides in elements.
typedef struct rml_matrix {
  const float *data;
  int64_t k, n, row_stride, col_stride;
  int64_t taps, tap_stride;
  const double *scale;   // null, or a factor per column: products are formed in double precision and rounded once
} rml_matrix;

// Kernels and tile numbers of one instruction set.
typedef struct rml_isa {
  const char *name;                       // "baseline", "avx2", "avx512", "neon"
  int lanes;                              // f32 per vector
  int gemm_mr, gemm_nr;                   // register tile; packed B has panels of gemm_nr columns
  rml_step_fn steps[RML_STEP_COUNT];
  int64_t (*packed_b_floats)(int64_t k, int64_t n);
  void (*pack_b)(float *dst, const rml_matrix *b);
  double (*peak_flops)(double seconds);   // runs independent FMA chains for about so long; returns FLOP/s of one core
} rml_isa;

extern const rml_isa rml_isa_baseline, rml_isa_avx2, rml_isa_avx512, rml_isa_neon;
#endif
