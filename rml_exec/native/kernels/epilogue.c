// The long activations of epilogue.h.
#include "epilogue.h"

#include "lanes.h"
#include "vmath.h"

INL vf activated(const epilogue *e, vf x, const int64_t activation) {
  switch (activation) {
    case ACTIVATION_CLAMP: return epilogue_clamp(e, x);
    case ACTIVATION_GELU: return v_gelu(x);
    case ACTIVATION_GELU_TANH: return v_gelu_tanh(x);
    case ACTIVATION_SILU: return v_silu(x);
    case ACTIVATION_SIGMOID: return v_sigmoid(x);
    case ACTIVATION_TANH: return v_tanh(x);
    case ACTIVATION_HARD_SWISH: return x * vf_min(vf1(6), vf_max(vf1(0), x + vf1(3))) / vf1(6);
    default: return x;
  }
}

INL void finish(const epilogue *e, float *y, const float *residual, const float *sums, int64_t rows, int64_t columns, int64_t sum_stride,
                int64_t y_stride, const int64_t activation) {
  for (int64_t row = 0; row < rows; row++, y += y_stride, sums += sum_stride) {
    for (int64_t c = 0; c < columns; c += W) {
      vf x = vf_load(sums + c), r = residual ? load_left(residual + row * y_stride + c, columns - c) : vf1(0);
      if (residual && !e->residual_after) x += r;
      x = activated(e, x, activation);
      if (residual && e->residual_after) x += r;
      store_left(y + c, x, columns - c);
    }
  }
}

void RML_KERNEL(epilogue_finish)(const epilogue *e, float *y, const float *residual, const float *sums, int64_t rows, int64_t columns,
                                 int64_t sum_stride, int64_t y_stride) {
#define FINISH(activation) \
  case activation: finish(e, y, residual, sums, rows, columns, sum_stride, y_stride, activation); break;
  switch (e->activation) {   // one loop each
    FINISH(ACTIVATION_NONE)
    FINISH(ACTIVATION_CLAMP)
    FINISH(ACTIVATION_GELU)
    FINISH(ACTIVATION_GELU_TANH)
    FINISH(ACTIVATION_SILU)
    FINISH(ACTIVATION_SIGMOID)
    FINISH(ACTIVATION_TANH)
    FINISH(ACTIVATION_HARD_SWISH)
  }
}
