// Indices that an operand holds, and the rows that they name. Shared by take.c, gather.c and scatter.c.
#ifndef RML_INDICES_H
#define RML_INDICES_H
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

enum { DECLINE, NEAREST, FILL };   // what becomes of an index that is out of range, as runtime/lower_index.py numbers it
enum { SERIAL_BYTES = 16384 };     // less than so much is left to one thread

typedef struct picked {
  int64_t index;   // the nearest one that is in range
  bool outside;
} picked;

// Index i of an operand of indices of 4 or 8 bytes, for an axis of `size`.
static inline picked pick(const void *indices, int64_t index_bytes, int64_t i, int64_t size, bool wrap_negative) {
  int64_t index = index_bytes == 4 ? ((const int32_t *)indices)[i] : ((const int64_t *)indices)[i];
  if (wrap_negative && index < 0) index += size;
  bool outside = index < 0 || index >= size;
  return (picked){index < 0 ? 0 : index >= size ? size - 1 : index, outside};
}

// Point i of `depth` indices, for the leading axes of a tensor: the row that it names, and whether any of its indices is out of range.
static inline picked pick_point(const void *indices, int64_t index_bytes, int64_t i, int64_t depth, const int64_t *sizes, bool wrap_negative) {
  picked point = {0, false};
  for (int64_t axis = 0; axis < depth; axis++) {
    picked at = pick(indices, index_bytes, i * depth + axis, sizes[axis], wrap_negative);
    point.outside |= at.outside;
    point.index = point.index * sizes[axis] + at.index;
  }
  return point;
}

#define FILL_ITEMS(type) \
  for (int64_t i = 0; i < n; i++) memcpy(y + i * (int64_t)sizeof(type), fill, sizeof(type))

// n items of 1, 2, 4 or 8 bytes, all with the first bytes of *fill.
static inline void fill_items(char *y, const int64_t *fill, int64_t item, int64_t n) {
  switch (item) {
    case 1: FILL_ITEMS(uint8_t); break;
    case 2: FILL_ITEMS(uint16_t); break;
    case 4: FILL_ITEMS(uint32_t); break;
    default: FILL_ITEMS(uint64_t); break;
  }
}

#define COPY_ITEM(type) *(type *)to = *(const type *)from

// `bytes` bytes, which are one item or several.
static inline void copy_row(char *to, const char *from, int64_t item, int64_t bytes) {
  if (bytes != item) memcpy(to, from, (size_t)bytes);
  else if (item == 4) COPY_ITEM(uint32_t);
  else if (item == 8) COPY_ITEM(uint64_t);
  else if (item == 2) COPY_ITEM(uint16_t);
  else COPY_ITEM(uint8_t);
}

// Where element i of a dense tensor of `dims` lies in one with `strides`.
static inline int64_t strided_offset(int64_t i, const int64_t *dims, const int64_t *strides, int64_t rank) {
  int64_t offset = 0;
  for (int64_t axis = rank - 1; axis >= 0; axis--) {
    offset += i % dims[axis] * strides[axis];
    i /= dims[axis];
  }
  return offset;
}
#endif
