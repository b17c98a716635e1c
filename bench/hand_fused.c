// z sigmoid(z) for z = 1.1 x + 0.3 in one loop, with the project's own sigmoid: what an interpreter of elementwise programs is held against.
// kernel_peers.py compiles it for the machine it runs on.
#include "isa.h"
#include "vmath.h"

enum { VECTORS = 8 };

void hand_fused(float *y, const float *x, int64_t n) {
  int64_t i = 0;
  for (; i + VECTORS * W <= n; i += VECTORS * W) {
    vf z[VECTORS];
    UNROLL(8) for (int k = 0; k < VECTORS; k++) z[k] = vf_load(x + i + k * W) * vf1(1.1f) + vf1(0.3f);
    UNROLL(8) for (int k = 0; k < VECTORS; k++) z[k] = z[k] * v_sigmoid(z[k]);
    UNROLL(8) for (int k = 0; k < VECTORS; k++) vf_store(y + i + k * W, z[k]);
  }
  for (; i < n; i++) {
    float z = x[i] * 1.1f + 0.3f;
    y[i] = z * v_sigmoid(vf1(z))[0];
  }
}
