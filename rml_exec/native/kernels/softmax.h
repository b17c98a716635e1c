// The two passes over a row that every softmax needs: its largest element, and the sum of its exponentials.
#ifndef RML_SOFTMAX_H
#define RML_SOFTMAX_H
#include "lanes.h"
#include "vmath.h"

// Largest element of n >= 1, in every lane. A NaN may be lost; it shows up in the sum of the exponentials.
INL vf row_max(const float *x, int64_t n) {
  if (n < W) {
    float largest = x[0];
    for (int64_t i = 1; i < n; i++) largest = largest > x[i] ? largest : x[i];
    return vf1(largest);
  }
  vf m0 = vf_load(x + n - W), m1 = m0, m2 = m0, m3 = m0;   // the last elements, which the loops leave out
  int64_t i = 0;
  for (; i + 4 * W <= n; i += 4 * W) {
    m0 = vf_max(m0, vf_load(x + i));
    m1 = vf_max(m1, vf_load(x + i + W));
    m2 = vf_max(m2, vf_load(x + i + 2 * W));
    m3 = vf_max(m3, vf_load(x + i + 3 * W));
  }
  for (; i + W <= n; i += W) m0 = vf_max(m0, vf_load(x + i));
  return lanes_within(LANES_MAX, vf_max(vf_max(m0, m1), vf_max(m2, m3)));
}

// Sum of e^(scale * (x - largest)), in every lane; the powers themselves go to y where it is given. y may be x.
INL vf exponentials(float *y, const float *x, int64_t n, vf largest, vf scale) {
  vf sum[LANE_VECTORS] = {0};
  int64_t i = 0;
  for (; i + LANES <= n; i += LANES) {
    EACH_LANE_VECTOR {
      vf e = v_exp_neg((vf_load(x + i + j * W) - largest) * scale);
      if (y) vf_store(y + i + j * W, e);
      sum[j] += e;
    }
  }
  if (i < n) {
    vf rest[LANE_VECTORS] = {0};
    UNROLL(1) for (int j = 0; i + j * W < n; j++) {
      int left = lanes_left(n - i - j * W);
      vf e = v_exp_neg((vf_loadn(x + i + j * W, left) - largest) * scale);
      if (y) vf_storen(y + i + j * W, e, left);
      rest[j] = lanes_first(e, left);
    }
    EACH_LANE_VECTOR sum[j] += rest[j];
  }
  return lanes_total(LANES_SUM, sum);
}
#endif
