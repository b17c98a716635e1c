// The function table of one instruction set, and the measurement of its arithmetic peak.
#include <time.h>

#include "gemm.h"
#include "isa.h"
#include "simd.h"

// Hides a vector's value from the compiler without leaving its register.
#ifdef __x86_64__
#define KEEP(vector) "+v"(vector)
#else
#define KEEP(vector) "+w"(vector)
#endif

static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

// 12 independent chains cover latency x throughput of every core known; a chain is x = x * 1 + 0, so values stay finite.
static double peak_flops(double seconds) {
  enum { CHAINS = 12, STEPS = 4096 };
  vf chain[CHAINS], one = vf1(1), zero = vf1(0);
  for (int i = 0; i < CHAINS; i++) chain[i] = vf1((float)i);
  double begin = now(), elapsed = 0, flops = 0;
  do {
    for (int step = 0; step < STEPS; step++) {
      __asm__ volatile("" : KEEP(one), KEEP(zero));
      UNROLL(12)
      for (int i = 0; i < CHAINS; i++) chain[i] = vf_fma(chain[i], one, zero);
    }
    flops += 2.0 * W * CHAINS * STEPS;
    elapsed = now() - begin;
  } while (elapsed < seconds);
  for (int i = 1; i < CHAINS; i++) chain[0] += chain[i];
  volatile float sink = chain[0][0];
  (void)sink;
  return flops / elapsed;
}

const rml_isa RML_JOIN_NAMES(rml_isa_, RML_ISA) = {
    .name = RML_ISA_NAME,
    .lanes = W,
    .gemm_mr = GEMM_MR,
    .gemm_nr = GEMM_NR,
    .steps =
        {
#define RML_STEP(name, parameters, operands) RML_KERNEL(name),
#include "steps.def"
#undef RML_STEP
        },
    .packed_b_floats = gemm_packed_floats,
    .pack_b = RML_KERNEL(pack_b_matrix),
    .peak_flops = peak_flops,
};
