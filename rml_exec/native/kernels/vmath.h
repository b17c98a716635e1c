// Elementary functions on vf, one definition for every instruction set: the same polynomials, tables and order of operations, so that
// AVX2, AVX-512 and NEON give the same bits. The baseline has no fused multiply-add and differs in the last bits.
//
// Special values follow C and NumPy: NaN in NaN out, infinities, signed zeros, denormal operands and results.
// Largest error against double precision, in ULP of the result. With FMA: over all 2^32 arguments (pow: 10^9 pairs over the whole range of
// results); baseline: over every 257th. tests/native_vector/test_vmath.py checks a sample of both.
//
//   function     FMA    baseline      function     FMA    baseline      function       FMA          baseline
//   v_exp        0.90   1.12          v_tanh       1.29   1.29          v_sin v_cos    1.57         1.55
//   v_expm1      1.53   1.56          v_sigmoid    2.41   2.41          v_erf          1.76         1.76
//   v_log        1.36   1.54          v_silu       2.40   2.40   (a)    v_erfc         3.27         3.27
//   v_log1p      1.38   1.54          v_rsqrt      1.50   1.50          v_gelu         8.9e-8 |x|   1.2e-7 |x|   (b)
//                                     v_pow        1.75   0.80          v_gelu_tanh    1.3e-7 |x|   1.3e-7 |x|   (b)
//
//   (a) for x > -88; below, where |y| < 6e-37, it is -0 as x / (1 + exp(-x)) is in float32.   (b) largest absolute error over |x|.
#ifndef RML_VMATH_H
#define RML_VMATH_H
#include "simd.h"
#include "vmath_tables.h"

#if W > 4 || defined(RML_USE_NEON)
#define VMATH_FMA 1
#endif

#define VMATH_NAN __builtin_nanf("")
#define VMATH_INF __builtin_inff()

// Polynomial in r by Horner's rule, highest power first.
INL vf horner(vf r, const float *c, int n) {
  vf p = vf1(c[0]);
  UNROLL(16) for (int i = 1; i < n; i++) p = vf_fma(p, r, vf1(c[i]));
  return p;
}
#define HORNER(r, ...) (__extension__({ static const float c_[] = {__VA_ARGS__}; horner(r, c_, sizeof c_ / sizeof *c_); }))

// ---- exponentials ----------------------------------------------------------------------------------------------------------------------
// ln 2 in two parts; the first has 15 bits, so that its product with an exponent is exact without FMA, too.
#define LOG2_E 0x1.715476p+0f
#define LN2_HIGH 0x1.62e4p-1f
#define LN2_LOW 0x1.7f7d1cp-20f

// Largest and smallest argument worth an exponential; beyond, vf_scale gives infinity and zero. NaN passes.
INL vf exp_clamp(vf x) { return vf_min(vf1(89.0f), vf_max(vf1(-104.0f), x)); }

// Splits x = n ln 2 + r with |r| <= ln 2 / 2 and returns r.
INL vf exp_reduce(vf x, vf *n) {
  *n = vf_round(x * vf1(LOG2_E));
  return vf_fnma(*n, vf1(LN2_LOW), vf_fnma(*n, vf1(LN2_HIGH), x));
}

// e^r for a reduced r.
INL vf exp_core(vf r) { return HORNER(r, 0x1.6a4164p-10f, 0x1.1239c6p-7f, 0x1.5558bcp-5f, 0x1.555492p-3f, 0x1.fffffcp-2f, 1.0f, 1.0f); }

INL vf v_exp(vf x) {
  vf n, r = exp_reduce(exp_clamp(x), &n);
  return vf_scale(exp_core(r), n);
}

// v_exp for x <= 0: the softmax of a row after its maximum is taken off, the sigmoid.
INL vf v_exp_neg(vf x) {
  vf n, r = exp_reduce(vf_max(vf1(-104.0f), x), &n);
  return vf_scale(exp_core(r), n);
}

INL vf v_expm1(vf x) {
  vf n, r = exp_reduce(vf_min(vf1(89.0f), vf_max(vf1(-25.0f), x)), &n);
  vf p = HORNER(r, 0x1.6b8caap-10f, 0x1.1226a4p-7f, 0x1.555702p-5f, 0x1.5554b2p-3f, 0x1.fffffep-2f);
  p = vf_fma(r * r, p, r);                                                   // e^r - 1
  vf half = vf_scale(vf1(0.5f), n), y = vf_fma(half, p, half - vf1(0.5f));   // half of the result: 2^n alone may overflow
  return vf_sel(vf_lt(vf_abs(x), vf1(0x1p-25f)), x, y + y);                  // keeps -0 and denormals
}

// ---- logarithms ------------------------------------------------------------------------------------------------------------------------
// Splits a positive normal number: x = 2^e m with m in [2/3, 4/3); returns m. *e is 2^23 e, as exponents stand in the bits of a float. The
// low four bits of *segment number the segment of m: there are 16, of as many floats each.
INL vf log_split(vf x, vf *e, vi *segment) {
  vu i = (vu)x - 0x3f2aaaab, exponent = i & 0xff800000;   // wraps for negative x, whose result nobody looks at
  *e = vi_to_vf((vi)exponent);
  *segment = (vi)i >> 19;
  return vf_bits((vi)((vu)x - exponent));
}

// r with m = (1 + r) / c, where c is near 1/m and has 12 bits: |r| < 0.0306, and exactly m - 1 in the segment around 1.
INL vf log_reduce(vf m, vi segment) {
  vf c = vf_look16(segment, log_table[0]);
#ifdef VMATH_FMA
  return vf_fma(m, c, vf1(-1.0f));
#else
  vf head = vf_bits(vi_bits(m) & -4096);
  return (head * c - vf1(1.0f)) + (m - head) * c;   // both products are exact
#endif
}

// (log(1 + r) - r) / r^2, to 0.38 x 2^-24 of the logarithm.
INL vf log_curve(vf r) { return HORNER(r, -0x1.025f42p-2f, 0x1.5576fcp-2f, -0x1.ffffcep-2f); }

// e ln 2 - log(c). One constant will do: it is within 2^-29 of ln 2, relatively.
INL vf log_step(vf e, vi segment) { return vf_fma(e, vf1(0x1.62e43p-24f), vf_look16(segment, log_table[1])); }

// log(m) + e ln 2 for m, e and segment of log_split.
INL vf log_core(vf m, vf e, vi segment) {
  vf r = log_reduce(m, segment);
  return vf_fma(r * r, log_curve(r), r) + log_step(e, segment);
}

// What a logarithm is outside of the positive finite numbers; x is the argument of the plain logarithm.
INL vf log_special(vf x, vf y) {
  y = vf_sel(vf_lt(x, vf1(VMATH_INF)), y, x);               // infinity and NaN pass
  y = vf_sel(vf_lt(x, vf1(0.0f)), vf1(VMATH_NAN), y);
  return vf_sel(vf_eq(x, vf1(0.0f)), vf1(-VMATH_INF), y);
}

// The logarithm of a positive normal number; what other lanes get is of no use.
INL vf log_normal(vf x) {
  vf e;
  vi segment;
  vf m = log_split(x, &e, &segment);
  return log_core(m, e, segment);
}

// Lanes that log_normal is not for. The difference wraps so that the positive normal numbers become the smallest integers.
INL vm log_not_normal(vf x) { return vi_gt((vi)((vu)x - 0x80800000), vi1(-0x01000001)); }

// For any lanes. Those with a positive normal number get the bits that log_normal gives.
INL vf v_log(vf x) {
  vm tiny = vf_lt(x, vf1(0x1p-126f));
  vf e;
  vi segment;
  vf m = log_split(vf_sel(tiny, x * vf1(0x1p23f), x), &e, &segment);
  return log_special(x, log_core(m, e - vf_sel(tiny, vf1(23 * 0x1p23f), vf1(0.0f)), segment));
}

INL vf v_log1p(vf x) {
  vf one = vf1(1.0f), u = one + x, added = u - one, lost = (one - (u - added)) + (x - added), e;   // u + lost = 1 + x exactly
  vi segment;
  vf m = log_split(u, &e, &segment), head = log_reduce(m, segment);
  vf rest = vf_scale(lost, e * vf1(-0x1p-23f)) * vf_look16(segment, log_table[0]), r = head + rest;
  vf y = log_special(u, (head + vf_fma(r * r, log_curve(r), rest)) + log_step(e, segment));
  y = vf_sel(vf_eq(u, vf1(VMATH_INF)), u, y);
  return vf_sel(vf_lt(vf_abs(x), vf1(0x1p-25f)), x, y);
}

// ---- roots -----------------------------------------------------------------------------------------------------------------------------
INL vf v_rsqrt(vf x) { return vf1(1.0f) / vf_sqrt(x); }

// ---- piecewise polynomials -------------------------------------------------------------------------------------------------------------
// Segment of u >= 0: nearest multiple of `width`. It stands in the low bits of the sum with 1.5 x 2^23.
INL vi segment(vf u, float width) { return vi_bits(vf_fma(u, vf1(1.0f / width), vf1(0x1.8p23f))); }

// Value at u of one of the tables with 16 segments, `degree` at most 7.
INL vf lookup16(const float (*table)[16], int degree, vi i, vf u) {
  vf t = u - vf_look16(i, table[0]), p = vf_look16(i, table[1 + degree]);
  UNROLL(8) for (int k = degree; k > 0; k--) p = vf_fma(p, t, vf_look16(i, table[k]));
  return p;
}

INL vf v_tanh(vf x) {
  vf a = vf_min(vf1(9.3f), vf_abs(x));   // where tanh rounds to 1
  vi i = vi_bits(a + vf1(0.625f)) >> 21;
  return vf_copysign(lookup16(tanh_table, 5, i, a), x);
}

INL vf v_erf(vf x) {
  vf a = vf_min(vf1(0x1.f9999ap+1f), vf_abs(x)), p = lookup16(erf_table, 5, segment(a, 0.2578125f), a);
  return vf_copysign(vf_min(vf1(1.0f), a * p), x);
}

// erfc(a) = 2 exp(-a^2) R(a sqrt 2) for a >= 0, with the ratio of Mills R; 2 - erfc(a) for a negative argument. The square is taken in two
// exact parts, since an error of it is an error of the exponential: a = head + rest with 12 bits in the head.
INL vf v_erfc(vf x) {
  vf a = vf_min(vf1(10.2f), vf_abs(x)), head = vf_bits(vi_bits(a) & -4096), u = a * vf1(0x1.6a09e6p+0f);
  vf n = vf_round(a * a * vf1(-LOG2_E));
  vf r = vf_fnma(n, vf1(LN2_HIGH), -(head * head)) - (a - head) * (a + head);
  r = vf_fnma(n, vf1(LN2_LOW), r);
  vi i = segment(u, 0.46875f);
  vf t = u - vf_look32(i, mills_table[0]), p = vf_look32(i, mills_table[7]);
  UNROLL(8) for (int k = 6; k > 0; k--) p = vf_fma(p, t, vf_look32(i, mills_table[k]));
  vf y = vf_scale(exp_core(r) * (p + p), n);
  return vf_sel(vf_lt(x, vf1(0.0f)), vf1(2.0f) - y, y);
}

// ---- activations -----------------------------------------------------------------------------------------------------------------------
// With e = exp(-|x|) both tails are right, down to the denormals.
INL vf v_sigmoid(vf x) {
  vf e = v_exp_neg(-vf_abs(x));
  return vf_sel(vf_lt(x, vf1(0.0f)), e, vf1(1.0f)) / (vf1(1.0f) + e);
}

INL vf v_silu(vf x) { return x / (vf1(1.0f) + v_exp(-x)); }

// x/2 (1 + erf(x / sqrt 2))
INL vf v_gelu(vf x) {
  vf a = vf_min(vf1(0x1.7p+2f), vf_abs(x)), p = lookup16(gelu_table, 5, segment(a, 0.375f), a), half = x * vf1(0.5f);
  return vf_copysign(vf_fma(vf_abs(half), vf_min(vf1(1.0f), a * p), half), x);
}

// x/2 (1 + tanh(u)) = x / (1 + exp(-2u)) with u = sqrt(2/pi) (x + 0.044715 x^3)
INL vf v_gelu_tanh(vf x) {
  vf minus_2u = x * vf_fma(x * x, vf1(-0x1.2444f2p-4f), vf1(-0x1.988454p+0f));
  return x / (vf1(1.0f) + v_exp(minus_2u));
}

// ---- sine and cosine -------------------------------------------------------------------------------------------------------------------
#define TRIG_LIMIT 65536.0f   // above, the three parts of pi/2 do not suffice: one libm call per lane

// Splits a in [0, TRIG_LIMIT] as quarter pi/2 + r with |r| <= pi/4 and returns r.
INL vf trig_reduce(vf a, vi *quarter) {
#ifdef VMATH_FMA
  vf n = vf_round(a * vf1(0x1.45f306p-1f));
  vf r = vf_fnma(n, vf1(0x1.921fb6p+0f), a);   // exact
  *quarter = vf_to_vi(n);
  return vf_fnma(n, vf1(-0x1.ee59dap-50f), vf_fnma(n, vf1(-0x1.777a5cp-25f), r));
#else
  vf r;
  for (int i = 0; i < W; i++) {
    double n = __builtin_rint(a[i] * 0.63661977236758134);
    r[i] = (float)((a[i] - n * 0x1.921fb544p+0) - n * 0x1.0b4611a626331p-34);   // the first product is exact
    (*quarter)[i] = a[i] <= TRIG_LIMIT ? (int32_t)n : 0;
  }
  return r;
#endif
}

// sin(r) in an even quarter, cos(r) in an odd one, negated in the second half of the turn.
INL vf trig_quarter(vf r, vi quarter) {
  vf s = r * r;
  vf sine = vf_fma(r * s, HORNER(s, 0x1.7c2d74p-19f, -0x1.a05956p-13f, 0x1.111174p-7f, -0x1.555556p-3f), r);
  vf cosine = vf_fma(s * s, HORNER(s, 0x1.99e80cp-16f, -0x1.6c0c28p-10f, 0x1.55554ap-5f), vf_fma(s, vf1(-0.5f), vf1(1.0f)));
  vf y = vf_sel(vi_eq(quarter & 1, vi1(0)), sine, cosine);
  return vf_bits(vi_bits(y) ^ ((quarter & 2) << 30));
}

// Replaces the lanes of y whose argument is finite and beyond TRIG_LIMIT.
static __attribute__((noinline, unused)) vf trig_large(vf x, vf y, double (*function)(double)) {
  float in[W], out[W];
  vf_store(in, x);
  vf_store(out, y);
  for (int i = 0; i < W; i++)
    if (fabsf(in[i]) > TRIG_LIMIT && in[i] - in[i] == 0) out[i] = (float)function(in[i]);
  return vf_load(out);
}

INL vf v_sin(vf x) {
  vf a = vf_abs(x);
  vi quarter;
  vf r = trig_reduce(a, &quarter), y = trig_quarter(r, quarter);
  y = vf_bits(vi_bits(y) ^ (vi_bits(x) & INT32_MIN));
  return vm_any(vf_gt(a, vf1(TRIG_LIMIT))) ? trig_large(x, y, sin) : y;
}

INL vf v_cos(vf x) {
  vf a = vf_abs(x);
  vi quarter;
  vf r = trig_reduce(a, &quarter), y = trig_quarter(r, quarter + 1);
  return vm_any(vf_gt(a, vf1(TRIG_LIMIT))) ? trig_large(x, y, cos) : y;
}

// ---- power -----------------------------------------------------------------------------------------------------------------------------
#ifdef VMATH_FMA
// log(m) + e ln 2 as the sum of the result and *low, for m in [sqrt 1/2, sqrt 2): 2 atanh(q) with q = (m - 1) / (m + 1) in two parts.
INL vf log_double(vf m, vf e, vf *low) {
  vf m1 = m - vf1(1.0f), r = vf1(1.0f) / (m + vf1(1.0f));
  vf q = r * m1, q_low = r * vf_fnma(q, m1, vf_fnma(q, vf1(2.0f), m1));
  vf s = q * q, s_low = vf_fma(q, q_low + q_low, vf_fma(q, q, -s));           // q^2
  vf c = s * q, c_low = vf_fma(s, q_low, vf_fma(s_low, q, vf_fma(s, q, -c)));   // q^3
  vf p = HORNER(s, 0x1.f0ff02p-4f, 0x1.23d4eap-3f, 0x1.999c24p-3f, 0x1.555554p-2f);
  vf tail = vf_fma(p, c, vf_fma(p, c_low, q_low)), head = q + q;
  vf sum = vf_fma(e, vf1(0x1.62e43p-1f), head), rounded = vf_fma(e, vf1(-0x1.62e43p-1f), sum);
  tail = vf_fma(e, vf1(-0x1.05c61p-29f), vf_fma(vf1(2.0f), tail, head - rounded));
  vf high = sum + tail;
  *low = (sum - high) + tail;
  return high;
}

// a^b for a >= 0.
INL vf pow_magnitude(vf a, vf b) {
  vm tiny = vf_lt(a, vf1(0x1p-126f));
  vi i = vi_bits(vf_sel(tiny, a * vf1(0x1p24f), a)) - 0x3f3504f3;
  vf m = vf_bits((i & 0x7fffff) + 0x3f3504f3), e = vi_to_vf(i >> 23) - vf_sel(tiny, vf1(24.0f), vf1(0.0f));
  vf log_low, log_high = log_double(m, e, &log_low);
  log_high = vf_sel(vf_eq(a, vf1(0.0f)), vf1(-VMATH_INF), vf_sel(vf_lt(a, vf1(VMATH_INF)), log_high, a));
  vf x = b * log_high, x_low = vf_fma(b, log_low, vf_fma(b, log_high, -x));
  x_low = vf_sel(vf_lt(vf_abs(x), vf1(110.0f)), x_low, vf1(0.0f));
  vf n, r = exp_reduce(exp_clamp(x), &n) + x_low;
  return vf_sel(vf_eq(a, vf1(1.0f)), vf1(1.0f), vf_scale(exp_core(r), n));
}

// As pow() of C: 1 for b = 0 and for a = 1 whatever the other is, NaN for a finite negative a and a fractional b.
INL vf v_pow(vf a, vf b) {
  vf size = vf_abs(a), y = pow_magnitude(size, b), half = b * vf1(0.5f);
  vm whole = vf_eq(b, vf_trunc(b)), odd = vm_and(whole, vf_ne(half, vf_trunc(half)));
  y = vf_sel(odd, vf_bits(vi_bits(y) | (vi_bits(a) & INT32_MIN)), y);
  vm bad = vm_and(vm_and(vf_lt(a, vf1(0.0f)), vf_lt(size, vf1(VMATH_INF))), vm_not(whole));
  bad = vm_or(bad, vm_or(vf_ne(a, a), vf_ne(b, b)));
  y = vf_sel(bad, vf1(VMATH_NAN), y);
  return vf_sel(vm_or(vf_eq(b, vf1(0.0f)), vf_eq(a, vf1(1.0f))), vf1(1.0f), y);
}
#else
INL vf v_pow(vf a, vf b) {
  vf y;
  for (int i = 0; i < W; i++) y[i] = powf(a[i], b[i]);
  return y;
}
#endif
#endif
