// What a product or convolution does to its sums before it stores them: y = activation(sum + residual), or activation(sum) + residual.
//
// The residual lies as y does and may be y itself: a kernel reads it where it is about to write. Sums that are kept or clamped are finished
// in registers by the kernel; the longer activations run out of line over sums in memory, with the functions of vmath.h.
#ifndef RML_EPILOGUE_H
#define RML_EPILOGUE_H
#include "isa.h"
#include "simd.h"

// Numbers known to epilogue.py. CLAMP, relu among it, keeps a NaN.
enum { ACTIVATION_NONE, ACTIVATION_CLAMP, ACTIVATION_GELU, ACTIVATION_GELU_TANH, ACTIVATION_SILU, ACTIVATION_SIGMOID, ACTIVATION_TANH,
       ACTIVATION_HARD_SWISH };

typedef struct epilogue {
  int64_t activation;
  float lo, hi;             // of CLAMP
  int64_t residual_after;   // add the residual to what the activation gives
} epilogue;

// From the four parameters of a step: activation, lo, hi (bits of doubles), residual_after.
static inline epilogue epilogue_of(const int64_t *p) {
  double limits[2];
  memcpy(limits, p + 1, sizeof limits);
  return (epilogue){p[0], (float)limits[0], (float)limits[1], p[3]};
}

static inline int epilogue_is_short(const epilogue *e) { return e->activation <= ACTIVATION_CLAMP; }

INL vf epilogue_clamp(const epilogue *e, vf x) { return vf_min(vf1(e->hi), vf_max(vf1(e->lo), x)); }

// Finishes one vector of a short epilogue; `residual` points at its residual, or is null.
INL vf epilogue_short(const epilogue *e, vf sum, const float *residual) {
  if (residual && !e->residual_after) sum += vf_load(residual);
  if (e->activation == ACTIVATION_CLAMP) sum = epilogue_clamp(e, sum);
  if (residual && e->residual_after) sum += vf_load(residual);
  return sum;
}

// Finishes rows x columns sums of any epilogue. Rows of sums are sum_stride floats apart, a multiple of the vector's width; those of y and
// residual (or null) y_stride.
void RML_KERNEL(epilogue_finish)(const epilogue *e, float *y, const float *residual, const float *sums, int64_t rows, int64_t columns,
                                 int64_t sum_stride, int64_t y_stride);
#endif
