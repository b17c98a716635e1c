// Element types by number, in the order of ELEMENT_TYPES in runtime/lowering.py: TYPE(name, C type). Arithmetic on integers wraps.
#ifndef RML_TYPES_H
#define RML_TYPES_H
#include <stdbool.h>
#include <stdint.h>

#define RML_INTEGERS(TYPE) \
  TYPE(U8, uint8_t) TYPE(U16, uint16_t) TYPE(U32, uint32_t) TYPE(U64, uint64_t) TYPE(I8, int8_t) TYPE(I16, int16_t) TYPE(I32, int32_t) \
  TYPE(I64, int64_t)
#define RML_TYPES(TYPE) TYPE(BOOL, bool) RML_INTEGERS(TYPE) TYPE(F32, float) TYPE(F64, double)
#define RML_TYPE_NUMBER(name, type) TYPE_##name,
enum { RML_TYPES(RML_TYPE_NUMBER) TYPE_F16 };

#define RML_IS_SIGNED(type) ((type)-1 < (type)1)
#define RML_LOWEST(type) (RML_IS_SIGNED(type) ? (type)(UINT64_C(1) << (8 * sizeof(type) - 1)) : (type)0)
#define RML_HIGHEST(type) (RML_IS_SIGNED(type) ? (type)((UINT64_C(1) << (8 * sizeof(type) - 1)) - 1) : (type)-1)
#endif
