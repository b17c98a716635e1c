// AVX-512 backend of simd.h (F, DQ, BW, VL). A mask is a bit per lane.
#include <immintrin.h>

typedef __mmask16 vm;

INL vm vm_first(int n) { return (vm)((1u << n) - 1); }

INL vf vf1(float x) { return (vf)_mm512_set1_ps(x); }
INL vi vi1(int32_t x) { return (vi)_mm512_set1_epi32(x); }
INL vf vf_loadn(const float *p, int n) { return (vf)_mm512_maskz_loadu_ps(vm_first(n), p); }
INL void vf_storen(float *p, vf a, int n) { _mm512_mask_storeu_ps(p, vm_first(n), (__m512)a); }

INL vf vf_fma(vf a, vf b, vf c) { return (vf)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c); }
INL vf vf_fnma(vf a, vf b, vf c) { return (vf)_mm512_fnmadd_ps((__m512)a, (__m512)b, (__m512)c); }
INL vf vf_sqrt(vf a) { return (vf)_mm512_sqrt_ps((__m512)a); }
INL vf vf_min(vf a, vf b) { return (vf)_mm512_min_ps((__m512)a, (__m512)b); }
INL vf vf_max(vf a, vf b) { return (vf)_mm512_max_ps((__m512)a, (__m512)b); }
INL vf vf_abs(vf a) { return (vf)_mm512_abs_ps((__m512)a); }
INL vf vf_copysign(vf magnitude, vf sign) {
  return (vf)_mm512_ternarylogic_epi32((__m512i)magnitude, (__m512i)sign, _mm512_set1_epi32(0x7fffffff), 0xE4);
}
INL vf vf_round(vf a) { return (vf)_mm512_roundscale_ps((__m512)a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
INL vf vf_floor(vf a) { return (vf)_mm512_roundscale_ps((__m512)a, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC); }
INL vf vf_ceil(vf a) { return (vf)_mm512_roundscale_ps((__m512)a, _MM_FROUND_TO_POS_INF | _MM_FROUND_NO_EXC); }
INL vf vf_trunc(vf a) { return (vf)_mm512_roundscale_ps((__m512)a, _MM_FROUND_TO_ZERO | _MM_FROUND_NO_EXC); }
INL vi vf_to_vi(vf a) { return (vi)_mm512_cvtps_epi32((__m512)a); }
INL vf vf_scale(vf p, vf n) { return (vf)_mm512_scalef_ps((__m512)p, (__m512)n); }

INL vm vf_lt(vf a, vf b) { return _mm512_cmp_ps_mask((__m512)a, (__m512)b, _CMP_LT_OQ); }
INL vm vf_le(vf a, vf b) { return _mm512_cmp_ps_mask((__m512)a, (__m512)b, _CMP_LE_OQ); }
INL vm vf_gt(vf a, vf b) { return _mm512_cmp_ps_mask((__m512)a, (__m512)b, _CMP_GT_OQ); }
INL vm vf_ge(vf a, vf b) { return _mm512_cmp_ps_mask((__m512)a, (__m512)b, _CMP_GE_OQ); }
INL vm vf_eq(vf a, vf b) { return _mm512_cmp_ps_mask((__m512)a, (__m512)b, _CMP_EQ_OQ); }
INL vm vf_ne(vf a, vf b) { return _mm512_cmp_ps_mask((__m512)a, (__m512)b, _CMP_NEQ_UQ); }
INL vm vi_lt(vi a, vi b) { return _mm512_cmplt_epi32_mask((__m512i)a, (__m512i)b); }
INL vm vi_gt(vi a, vi b) { return _mm512_cmpgt_epi32_mask((__m512i)a, (__m512i)b); }
INL vm vi_eq(vi a, vi b) { return _mm512_cmpeq_epi32_mask((__m512i)a, (__m512i)b); }

INL vm vm_and(vm a, vm b) { return a & b; }
INL vm vm_or(vm a, vm b) { return a | b; }
INL vm vm_not(vm a) { return (vm)~a; }
INL int vm_any(vm a) { return a != 0; }
INL int vm_all(vm a) { return a == 0xffff; }
INL vf vf_sel(vm m, vf a, vf b) { return (vf)_mm512_mask_blend_ps(m, (__m512)b, (__m512)a); }
INL vi vi_sel(vm m, vi a, vi b) { return (vi)_mm512_mask_blend_epi32(m, (__m512i)b, (__m512i)a); }
INL vm vm_load_bool(const uint8_t *p, int n) {
  __m128i bytes = _mm_maskz_loadu_epi8(vm_first(n), p);
  return _mm_test_epi8_mask(bytes, bytes);
}
INL void vm_store_bool(uint8_t *p, vm a, int n) { _mm_mask_storeu_epi8(p, vm_first(n), _mm_maskz_set1_epi8(a, 1)); }

// Half vectors, for what is too narrow for whole ones: two of their multiply-adds and two of their broadcasts from memory take the time of
// one of each.
#define VF_HALVES 1
typedef float vh __attribute__((vector_size(32)));
typedef float vh_unaligned __attribute__((vector_size(32), aligned(4), may_alias));

INL vh vh1(float x) { return (vh)_mm256_set1_ps(x); }
INL vh vh_load(const float *p) { return *(const vh_unaligned *)p; }
INL vh vh_fma(vh a, vh b, vh c) { return (vh)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c); }
INL vh vf_half(vf a, const int high) { return high ? (vh)_mm512_extractf32x8_ps((__m512)a, 1) : (vh)_mm512_castps512_ps256((__m512)a); }
INL vf vf_join(vh low, vh high) { return (vf)_mm512_insertf32x8(_mm512_castps256_ps512((__m256)low), (__m256)high, 1); }

INL vf vf_look16(vi i, const float *t) { return (vf)_mm512_permutexvar_ps((__m512i)i, _mm512_load_ps(t)); }
INL vf vf_look32(vi i, const float *t) {
  return (vf)_mm512_permutex2var_ps(_mm512_load_ps(t), (__m512i)i, _mm512_load_ps(t + 16));
}
