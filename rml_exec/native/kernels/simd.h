// The SIMD vocabulary that every kernel is written in: W float lanes in a vf, W int32 lanes in a vi, W truth values in a vm.
//
// Backends: simd_avx512.h (W 16), simd_avx2.h (W 8, FMA), simd_narrow.h (W 4: NEON with FMA, or the baseline of any machine without).
// vf and vi are GCC/Clang vector types, so + - * / & | ^ ~ << >> work on them as written. Everything below has the same bits on every
// backend, except that vf_fma and vf_fnma round twice on the baseline. Contraction is off (-ffp-contract=off): a * b + c is never fused,
// vf_fma always is.
//
// load, store      vf_load vf_store vi_load vi_store            any alignment
//                  vf_loadn vf_storen vi_loadn vi_storen        the first n lanes, 0 <= n <= W; memory behind them is not touched, lanes read 0
//                  vm_load_bool vm_store_bool                   n bytes of 0 (false) or anything else (true; stored as 1)
// splat            vf1 vi1
// arithmetic       vf_fma(a,b,c) = a*b+c   vf_fnma(a,b,c) = c-a*b   vf_sqrt   vf_abs   vf_copysign(magnitude, sign)
//                  vf_min vf_max: as x86, the second operand when one is NaN or both are zeros: vf_max(vf1(0), x) keeps a NaN of x
// rounding         vf_round (half to even) vf_floor vf_ceil vf_trunc   all floats, the sign of zero kept
// conversion       vf_to_vi (half to even; |a| < 2^31)  vi_to_vf  vf_bits (reinterpret) vi_bits
// powers of two    vf_scale(p, n) = p * 2^n rounded once; n integral, |n| <= 252, p a normal number of moderate size
// comparison       vf_lt vf_le vf_gt vf_ge vf_eq (false on NaN)  vf_ne (true on NaN)  vi_lt vi_gt vi_eq
// masks            vm_and vm_or vm_not vm_any vm_all   vf_sel(m,a,b) vi_sel(m,a,b) = m ? a : b
// tables           vf_look16(i, t) = t[i & 15], vf_look32(i, t) = t[i & 31]; t 64-byte aligned
// across lanes     vf_sum16(a) of 16/W vectors = 16 fixed lanes, in one fixed tree; vf_reduce_max vf_reduce_min
#ifndef RML_SIMD_H
#define RML_SIMD_H
#include <math.h>
#include <stdint.h>
#include <string.h>

#define INL static inline __attribute__((always_inline, unused))
#define UNROLL(n) _Pragma(RML_PRAGMA_TEXT(GCC unroll n))
#define RML_PRAGMA_TEXT(text) #text

#if defined(__AVX512F__)
#define W 16
#elif defined(__AVX2__)
#define W 8
#else
#define W 4
#endif

typedef float vf __attribute__((vector_size(W * 4)));
typedef int32_t vi __attribute__((vector_size(W * 4)));
typedef uint32_t vu __attribute__((vector_size(W * 4)));   // vi lanes for sums that may wrap around, which signed ones must not
typedef float vf_unaligned __attribute__((vector_size(W * 4), aligned(4), may_alias));
typedef int32_t vi_unaligned __attribute__((vector_size(W * 4), aligned(4), may_alias));

INL vf vf_load(const float *p) { return *(const vf_unaligned *)p; }
INL void vf_store(float *p, vf a) { *(vf_unaligned *)p = a; }
INL vi vi_load(const int32_t *p) { return *(const vi_unaligned *)p; }
INL void vi_store(int32_t *p, vi a) { *(vi_unaligned *)p = a; }
INL vf vf_bits(vi a) { return (vf)a; }
INL vi vi_bits(vf a) { return (vi)a; }
INL vf vi_to_vf(vi a) { return __builtin_convertvector(a, vf); }

#if W == 16
#include "simd_avx512.h"
#elif W == 8
#include "simd_avx2.h"
#else
#include "simd_narrow.h"
#endif

INL vi vi_loadn(const int32_t *p, int n) { return (vi)vf_loadn((const float *)p, n); }
INL void vi_storen(int32_t *p, vi a, int n) { vf_storen((float *)p, (vf)a, n); }

// Sum of 16 lanes held in 16/W vectors: lane i with i+8, then i+4, i+2, i+1. The same bits for every W.
INL float vf_sum16(const vf a[16 / W]) {
  float t[16];
  for (int j = 0; j < 16 / W; j++) vf_store(t + j * W, a[j]);
  for (int half = 8; half; half /= 2)
    for (int i = 0; i < half; i++) t[i] += t[i + half];
  return t[0];
}

// Largest lane; as vf_max, a NaN may be lost: kernels that must keep NaN look for it themselves.
INL float vf_reduce_max(vf a) {
  float t[W];
  vf_store(t, a);
  for (int half = W / 2; half; half /= 2)
    for (int i = 0; i < half; i++) t[i] = t[i] > t[i + half] ? t[i] : t[i + half];
  return t[0];
}

INL float vf_reduce_min(vf a) {
  float t[W];
  vf_store(t, a);
  for (int half = W / 2; half; half /= 2)
    for (int i = 0; i < half; i++) t[i] = t[i] < t[i + half] ? t[i] : t[i + half];
  return t[0];
}
#endif
