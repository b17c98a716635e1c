// Rows of any length in fixed lanes: element i of a row belongs to lane i mod 64 on every instruction set, a lane adds up its elements in
// order, and the lanes are added in one fixed tree. So a sum has the same bits for every vector width and thread count.
#ifndef RML_LANES_H
#define RML_LANES_H
#include "simd.h"

enum { LANES = 64, LANE_VECTORS = LANES / W };

// Runs the statement for j = 0 .. LANE_VECTORS - 1, unrolled so that arrays indexed by j stay in registers.
#define EACH_LANE_VECTOR UNROLL(16) for (int j = 0; j < LANE_VECTORS; j++)

INL int lanes_left(int64_t left) { return left <= 0 ? 0 : left >= W ? W : (int)left; }

// The first `lanes` <= W lanes; a plain load or store where that is W at compile time.
INL vf load_lanes(const float *p, int lanes) { return lanes == W ? vf_load(p) : vf_loadn(p, lanes); }
INL void store_lanes(float *p, vf a, int lanes) {
  if (lanes == W) vf_store(p, a);
  else vf_storen(p, a, lanes);
}

// The first `left` lanes (all, if there are more); lanes beyond read 0 and are not written.
INL vf load_left(const float *p, int64_t left) { return vf_loadn(p, lanes_left(left)); }
INL void store_left(float *p, vf a, int64_t left) { vf_storen(p, a, lanes_left(left)); }

// The first `left` lanes of a, 0 behind them.
INL vf lanes_first(vf a, int left) {
  static const float number[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
  return vf_sel(vf_lt(vf_load(number), vf1((float)left)), a, vf1(0));
}

// Lane i gets lane i ^ distance, for a distance of 1, 2, 4 or 8 below W.
#if W == 16
#define SWAP_LANES(a, distance) \
  __builtin_shufflevector(a, a, 0 ^ (distance), 1 ^ (distance), 2 ^ (distance), 3 ^ (distance), 4 ^ (distance), 5 ^ (distance), \
                          6 ^ (distance), 7 ^ (distance), 8 ^ (distance), 9 ^ (distance), 10 ^ (distance), 11 ^ (distance), \
                          12 ^ (distance), 13 ^ (distance), 14 ^ (distance), 15 ^ (distance))
#elif W == 8
#define SWAP_LANES(a, distance) \
  __builtin_shufflevector(a, a, 0 ^ (distance), 1 ^ (distance), 2 ^ (distance), 3 ^ (distance), 4 ^ (distance), 5 ^ (distance), \
                          6 ^ (distance), 7 ^ (distance))
#else
#define SWAP_LANES(a, distance) __builtin_shufflevector(a, a, 0 ^ (distance), 1 ^ (distance), 2 ^ (distance), 3 ^ (distance))
#endif

typedef enum { LANES_SUM, LANES_PRODUCT, LANES_MAX, LANES_MIN } lanes_op;

// A NaN of either side stays.
INL vf lanes_combine(lanes_op op, vf a, vf b) {
  switch (op) {
    case LANES_PRODUCT: return a * b;
    case LANES_MAX: return vf_sel(vf_ne(b, b), b, vf_max(b, a));
    case LANES_MIN: return vf_sel(vf_ne(b, b), b, vf_min(b, a));
    default: return a + b;
  }
}

INL float lanes_identity(lanes_op op) {
  return op == LANES_PRODUCT ? 1 : op == LANES_MAX ? -INFINITY : op == LANES_MIN ? INFINITY : 0;
}

// All lanes of a vector into one, which every lane of the result holds: lane i with i ^ 8, i ^ 4, i ^ 2, i ^ 1, as far as there are so
// many.
INL vf lanes_within(lanes_op op, vf a) {
#if W == 16
  a = lanes_combine(op, a, SWAP_LANES(a, 8));
#endif
#if W >= 8
  a = lanes_combine(op, a, SWAP_LANES(a, 4));
#endif
  a = lanes_combine(op, a, SWAP_LANES(a, 2));
  return lanes_combine(op, a, SWAP_LANES(a, 1));
}

// All 64 lanes into one, which every lane of the result holds: lane i with i + 32, i + 16, i + 8, i + 4, i + 2, i + 1.
INL vf lanes_total(lanes_op op, const vf a[LANE_VECTORS]) {
  vf sum[LANE_VECTORS];
  EACH_LANE_VECTOR sum[j] = a[j];
  UNROLL(4) for (int half = LANE_VECTORS / 2; half; half /= 2)
    UNROLL(8) for (int j = 0; j < half; j++) sum[j] = lanes_combine(op, sum[j], sum[j + half]);
  return lanes_within(op, sum[0]);
}
#endif
