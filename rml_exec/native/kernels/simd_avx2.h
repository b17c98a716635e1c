// AVX2 + FMA backend of simd.h. A mask is a vi of 0 or -1 per lane.
#include <immintrin.h>

typedef vi vm;

INL vf vf1(float x) { return (vf)_mm256_set1_ps(x); }
INL vi vi1(int32_t x) { return (vi)_mm256_set1_epi32(x); }
INL vf vf_loadn(const float *p, int n) {
  return (vf)_mm256_maskload_ps(p, (__m256i)((vi){0, 1, 2, 3, 4, 5, 6, 7} < vi1(n)));
}
INL void vf_storen(float *p, vf a, int n) {  // in pieces: a masked store is microcoded on AMD
  __m128 low = _mm256_castps256_ps128((__m256)a);
  if (n >= 8) {
    vf_store(p, a);
    return;
  }
  if (n & 4) {
    _mm_storeu_ps(p, low);
    low = _mm256_extractf128_ps((__m256)a, 1);
    p += 4;
  }
  if (n & 2) {
    _mm_storel_pi((__m64 *)p, low);
    low = _mm_movehl_ps(low, low);
    p += 2;
  }
  if (n & 1) _mm_store_ss(p, low);
}

INL vf vf_fma(vf a, vf b, vf c) { return (vf)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c); }
INL vf vf_fnma(vf a, vf b, vf c) { return (vf)_mm256_fnmadd_ps((__m256)a, (__m256)b, (__m256)c); }
INL vf vf_sqrt(vf a) { return (vf)_mm256_sqrt_ps((__m256)a); }
INL vf vf_min(vf a, vf b) { return (vf)_mm256_min_ps((__m256)a, (__m256)b); }
INL vf vf_max(vf a, vf b) { return (vf)_mm256_max_ps((__m256)a, (__m256)b); }
INL vf vf_abs(vf a) { return (vf)((vi)a & vi1(0x7fffffff)); }
INL vf vf_copysign(vf magnitude, vf sign) { return (vf)(((vi)magnitude & vi1(0x7fffffff)) | ((vi)sign & vi1(INT32_MIN))); }
INL vf vf_round(vf a) { return (vf)_mm256_round_ps((__m256)a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
INL vf vf_floor(vf a) { return (vf)_mm256_round_ps((__m256)a, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC); }
INL vf vf_ceil(vf a) { return (vf)_mm256_round_ps((__m256)a, _MM_FROUND_TO_POS_INF | _MM_FROUND_NO_EXC); }
INL vf vf_trunc(vf a) { return (vf)_mm256_round_ps((__m256)a, _MM_FROUND_TO_ZERO | _MM_FROUND_NO_EXC); }
INL vi vf_to_vi(vf a) { return (vi)_mm256_cvtps_epi32((__m256)a); }
INL vf vf_scale(vf p, vf n) {  // two exact powers of two: only the second product can round
  vi k = vf_to_vi(n), half = k >> 1, rest = k - half;
  return (p * (vf)((half + 127) << 23)) * (vf)((rest + 127) << 23);
}

INL vm vf_lt(vf a, vf b) { return (vi)_mm256_cmp_ps((__m256)a, (__m256)b, _CMP_LT_OQ); }
INL vm vf_le(vf a, vf b) { return (vi)_mm256_cmp_ps((__m256)a, (__m256)b, _CMP_LE_OQ); }
INL vm vf_gt(vf a, vf b) { return (vi)_mm256_cmp_ps((__m256)a, (__m256)b, _CMP_GT_OQ); }
INL vm vf_ge(vf a, vf b) { return (vi)_mm256_cmp_ps((__m256)a, (__m256)b, _CMP_GE_OQ); }
INL vm vf_eq(vf a, vf b) { return (vi)_mm256_cmp_ps((__m256)a, (__m256)b, _CMP_EQ_OQ); }
INL vm vf_ne(vf a, vf b) { return (vi)_mm256_cmp_ps((__m256)a, (__m256)b, _CMP_NEQ_UQ); }
INL vm vi_lt(vi a, vi b) { return a < b; }
INL vm vi_gt(vi a, vi b) { return a > b; }
INL vm vi_eq(vi a, vi b) { return a == b; }

INL vm vm_and(vm a, vm b) { return a & b; }
INL vm vm_or(vm a, vm b) { return a | b; }
INL vm vm_not(vm a) { return ~a; }
INL int vm_any(vm a) { return _mm256_movemask_ps((__m256)a) != 0; }
INL int vm_all(vm a) { return _mm256_movemask_ps((__m256)a) == 0xff; }
INL vf vf_sel(vm m, vf a, vf b) { return (vf)_mm256_blendv_ps((__m256)b, (__m256)a, (__m256)m); }
INL vi vi_sel(vm m, vi a, vi b) { return (vi)_mm256_blendv_ps((__m256)b, (__m256)a, (__m256)m); }
INL vm vm_load_bool(const uint8_t *p, int n) {
  uint64_t bytes = 0;
  memcpy(&bytes, p, n);
  return (vi)_mm256_cvtepu8_epi32(_mm_cvtsi64_si128((long long)bytes)) != 0;
}
INL void vm_store_bool(uint8_t *p, vm a, int n) {
  __m128i words = _mm_packs_epi32(_mm256_castsi256_si128((__m256i)a), _mm256_extracti128_si256((__m256i)a, 1));
  uint64_t bytes = (uint64_t)_mm_cvtsi128_si64(_mm_packs_epi16(words, words)) & 0x0101010101010101u;
  memcpy(p, &bytes, n);
}

INL vf vf_look16(vi i, const float *t) {
  __m256 low = _mm256_permutevar8x32_ps(_mm256_load_ps(t), (__m256i)i), high = _mm256_permutevar8x32_ps(_mm256_load_ps(t + 8), (__m256i)i);
  return (vf)_mm256_blendv_ps(low, high, (__m256)(i << 28));
}
INL vf vf_look32(vi i, const float *t) {
  return (vf)_mm256_blendv_ps((__m256)vf_look16(i, t), (__m256)vf_look16(i, t + 16), (__m256)(i << 27));
}
