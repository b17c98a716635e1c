#include "dispatch.h"

#include <string.h>

int rml_isas(const rml_isa *isas[RML_MAX_ISAS]) {
  int count = 0;
  isas[count++] = &rml_isa_baseline;
#ifdef RML_HAS_avx2
  // These builtins ask the operating system too: registers that it does not save do not count.
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) isas[count++] = &rml_isa_avx2;
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("fma"))
    isas[count++] = &rml_isa_avx512;
#endif
#ifdef RML_HAS_neon
  isas[count++] = &rml_isa_neon;
#endif
  return count;
}

const rml_isa *rml_find_isa(const char *name) {
  const rml_isa *isas[RML_MAX_ISAS];
  for (int i = rml_isas(isas) - 1; i >= 0; i--)
    if (!strcmp(isas[i]->name, name)) return isas[i];
  return 0;
}
