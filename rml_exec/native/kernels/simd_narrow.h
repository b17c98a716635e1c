// Four-lane backend of simd.h in plain vector extensions: NEON where RML_USE_NEON is defined (fused multiply-add, rounding and square root
// by instruction), else the baseline that runs anywhere and has no fused multiply-add. A mask is a vi of 0 or -1 per lane.
#ifdef RML_USE_NEON
#include <arm_neon.h>
#endif

typedef vi vm;

INL vf vf1(float x) { return (vf){x, x, x, x}; }
INL vi vi1(int32_t x) { return (vi){x, x, x, x}; }
INL vf vf_loadn(const float *p, int n) {
  vf a = {0};
  for (int i = 0; i < n; i++) a[i] = p[i];
  return a;
}
INL void vf_storen(float *p, vf a, int n) {
  for (int i = 0; i < n; i++) p[i] = a[i];
}

INL vm vf_lt(vf a, vf b) { return a < b; }
INL vm vf_le(vf a, vf b) { return a <= b; }
INL vm vf_gt(vf a, vf b) { return a > b; }
INL vm vf_ge(vf a, vf b) { return a >= b; }
INL vm vf_eq(vf a, vf b) { return a == b; }
INL vm vf_ne(vf a, vf b) { return a != b; }
INL vm vi_lt(vi a, vi b) { return a < b; }
INL vm vi_gt(vi a, vi b) { return a > b; }
INL vm vi_eq(vi a, vi b) { return a == b; }

INL vm vm_and(vm a, vm b) { return a & b; }
INL vm vm_or(vm a, vm b) { return a | b; }
INL vm vm_not(vm a) { return ~a; }
INL int vm_any(vm a) { return (a[0] | a[1] | a[2] | a[3]) != 0; }
INL int vm_all(vm a) { return (a[0] & a[1] & a[2] & a[3]) != 0; }
INL vi vi_sel(vm m, vi a, vi b) { return (m & a) | (~m & b); }
INL vf vf_sel(vm m, vf a, vf b) { return (vf)vi_sel(m, (vi)a, (vi)b); }
INL vm vm_load_bool(const uint8_t *p, int n) {
  vi a = {0};
  for (int i = 0; i < n; i++) a[i] = p[i];
  return a != 0;
}
INL void vm_store_bool(uint8_t *p, vm a, int n) {
  for (int i = 0; i < n; i++) p[i] = a[i] & 1;
}

INL vf vf_min(vf a, vf b) { return vf_sel(a < b, a, b); }
INL vf vf_max(vf a, vf b) { return vf_sel(a > b, a, b); }
INL vf vf_abs(vf a) { return (vf)((vi)a & vi1(0x7fffffff)); }
INL vf vf_copysign(vf magnitude, vf sign) { return (vf)(((vi)magnitude & vi1(0x7fffffff)) | ((vi)sign & vi1(INT32_MIN))); }

#ifdef RML_USE_NEON
INL vf vf_fma(vf a, vf b, vf c) { return (vf)vfmaq_f32((float32x4_t)c, (float32x4_t)a, (float32x4_t)b); }
INL vf vf_fnma(vf a, vf b, vf c) { return (vf)vfmsq_f32((float32x4_t)c, (float32x4_t)a, (float32x4_t)b); }
INL vf vf_sqrt(vf a) { return (vf)vsqrtq_f32((float32x4_t)a); }
INL vf vf_round(vf a) { return (vf)vrndnq_f32((float32x4_t)a); }
INL vf vf_floor(vf a) { return (vf)vrndmq_f32((float32x4_t)a); }
INL vf vf_ceil(vf a) { return (vf)vrndpq_f32((float32x4_t)a); }
INL vf vf_trunc(vf a) { return (vf)vrndq_f32((float32x4_t)a); }
#else
INL vf vf_fma(vf a, vf b, vf c) { return a * b + c; }
INL vf vf_fnma(vf a, vf b, vf c) { return c - a * b; }
INL vf vf_sqrt(vf a) { return (vf){sqrtf(a[0]), sqrtf(a[1]), sqrtf(a[2]), sqrtf(a[3])}; }
INL vf vf_round(vf a) {  // adding 2^23 leaves no fraction bits; larger numbers and NaN have none to lose
  vf big = vf1(8388608.0f), magnitude = vf_abs(a);
  return vf_sel(magnitude < big, vf_copysign((magnitude + big) - big, a), a);
}
INL vf vf_floor(vf a) {
  vf r = vf_round(a);
  return vf_copysign(r - (vf)((r > a) & (vi)vf1(1)), r);
}
INL vf vf_ceil(vf a) {
  vf r = vf_round(a);
  return vf_copysign(r + (vf)((r < a) & (vi)vf1(1)), a);
}
INL vf vf_trunc(vf a) { return vf_copysign(vf_floor(vf_abs(a)), a); }
#endif
INL vi vf_to_vi(vf a) { return __builtin_convertvector(vf_round(a), vi); }
INL vf vf_scale(vf p, vf n) {  // two exact powers of two: only the second product can round
  vi k = vf_to_vi(n), half = k >> 1, rest = k - half;
  return (p * (vf)((half + 127) << 23)) * (vf)((rest + 127) << 23);
}

INL vf vf_look16(vi i, const float *t) {
  i &= vi1(15);
  return (vf){t[i[0]], t[i[1]], t[i[2]], t[i[3]]};
}
INL vf vf_look32(vi i, const float *t) {
  i &= vi1(31);
  return (vf){t[i[0]], t[i[1]], t[i[2]], t[i[3]]};
}
