// Dense elements of one type as another, for the pairs that the elementwise interpreter, whose lanes have 32 bits, does not do: integers of
// any width among each other (the low bits stay) and to floats, f32 and f64, anything to bool (x != 0, so NaN is true). Floats to integers
// are not among them: what becomes of NaN and values out of range depends on attributes.
#include <stdbool.h>

#include "isa.h"

enum { SERIAL_ELEMENTS = 16384 };

// The element types, numbered in this order: TYPE(name in runtime/lower_elementwise.py, C type).
#define TYPES(TYPE) \
  TYPE(BOOL, bool) TYPE(U8, uint8_t) TYPE(U16, uint16_t) TYPE(U32, uint32_t) TYPE(U64, uint64_t) TYPE(I8, int8_t) TYPE(I16, int16_t) \
  TYPE(I32, int32_t) TYPE(I64, int64_t) TYPE(F32, float) TYPE(F64, double)
#define NUMBER(name, type) TYPE_##name,
enum { TYPES(NUMBER) };

#define CONVERT(from, to) \
  for (int64_t i = begin; i < end; i++) ((to *)y)[i] = (to)((const from *)x)[i]

// One function per type to convert to; the types to convert from are its cases.
#define CASE(name, from) \
  case TYPE_##name: CONVERT(from, TARGET); break;
#define INTEGERS(TYPE) \
  TYPE(BOOL, bool) TYPE(U8, uint8_t) TYPE(U16, uint16_t) TYPE(U32, uint32_t) TYPE(U64, uint64_t) TYPE(I8, int8_t) TYPE(I16, int16_t) \
  TYPE(I32, int32_t) TYPE(I64, int64_t)
#define TO_INTEGER(name, type) \
  static void to_##name(void *y, const void *x, int64_t begin, int64_t end, int64_t from) { \
    typedef type TARGET; \
    switch (from) { INTEGERS(CASE) } \
  }
#define TO_ANY(name, type) \
  static void to_##name(void *y, const void *x, int64_t begin, int64_t end, int64_t from) { \
    typedef type TARGET; \
    switch (from) { TYPES(CASE) } \
  }
TO_INTEGER(U8, uint8_t)
TO_INTEGER(U16, uint16_t)
TO_INTEGER(U32, uint32_t)
TO_INTEGER(U64, uint64_t)
TO_INTEGER(I8, int8_t)
TO_INTEGER(I16, int16_t)
TO_INTEGER(I32, int32_t)
TO_INTEGER(I64, int64_t)
TO_ANY(BOOL, bool)
TO_ANY(F32, float)
TO_ANY(F64, double)

void RML_KERNEL(convert)(const rml_args *args) {
#define FUNCTION(name, type) to_##name,
  static void (*const functions[])(void *, const void *, int64_t, int64_t, int64_t) = {TYPES(FUNCTION)};
  const int64_t *p = args->p;
  int64_t begin, end;
  rml_share(p[0], args->thread, args->threads, &begin, &end);
  if (p[0] < SERIAL_ELEMENTS) {
    if (args->thread) return;
    begin = 0, end = p[0];
  }
  functions[p[1]](args->ptr[0], args->ptr[1], begin, end, p[2]);
}
