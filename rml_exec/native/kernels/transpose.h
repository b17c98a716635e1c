// Transposition of f32 (or any 4-byte elements) in squares of W x W: log2(W) rounds, each of which exchanges half of the lanes of every
// two rows.
#ifndef RML_TRANSPOSE_H
#define RML_TRANSPOSE_H
#include "simd.h"

// Rows a and b, `distance` apart: lanes with that bit of a change places with lanes without it of b.
#if W == 16
#define PICK(f) f(0), f(1), f(2), f(3), f(4), f(5), f(6), f(7), f(8), f(9), f(10), f(11), f(12), f(13), f(14), f(15)
#elif W == 8
#define PICK(f) f(0), f(1), f(2), f(3), f(4), f(5), f(6), f(7)
#else
#define PICK(f) f(0), f(1), f(2), f(3)
#endif
#define LOW1(l) ((l) & 1 ? W + (l) - 1 : (l))
#define LOW2(l) ((l) & 2 ? W + (l) - 2 : (l))
#define LOW4(l) ((l) & 4 ? W + (l) - 4 : (l))
#define LOW8(l) ((l) & 8 ? W + (l) - 8 : (l))
#define HIGH1(l) ((l) & 1 ? W + (l) : (l) + 1)
#define HIGH2(l) ((l) & 2 ? W + (l) : (l) + 2)
#define HIGH4(l) ((l) & 4 ? W + (l) : (l) + 4)
#define HIGH8(l) ((l) & 8 ? W + (l) : (l) + 8)

#define TRANSPOSE_ROUND(rows, distance) \
  UNROLL(16) for (int i = 0; i < W; i++) if (!(i & distance)) { \
    vf a = rows[i], b = rows[i + distance]; \
    rows[i] = __builtin_shufflevector(a, b, PICK(LOW##distance)); \
    rows[i + distance] = __builtin_shufflevector(a, b, PICK(HIGH##distance)); \
  }

// dst[i * dst_stride + j] = src[j * src_stride + i] for i and j below W.
INL void transpose_square(float *dst, int64_t dst_stride, const float *src, int64_t src_stride) {
  vf rows[W];
  UNROLL(16) for (int i = 0; i < W; i++) rows[i] = vf_load(src + i * src_stride);
  TRANSPOSE_ROUND(rows, 1)
  TRANSPOSE_ROUND(rows, 2)
#if W >= 8
  TRANSPOSE_ROUND(rows, 4)
#endif
#if W == 16
  TRANSPOSE_ROUND(rows, 8)
#endif
  UNROLL(16) for (int i = 0; i < W; i++) vf_store(dst + i * dst_stride, rows[i]);
}
#endif
