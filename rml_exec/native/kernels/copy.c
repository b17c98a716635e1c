// Strided copy of any rank: dst[i...] = src[i...], elements of 1, 2, 4 or 8 bytes, strides in elements, negative and (for src) zero ones
// included. dst and src may not overlap, unless they are one place and have the same strides: nothing is done then. The written elements
// of dst must be distinct.
//
// Neighbouring axes that are one axis in memory are joined first. Then the innermost axis is either contiguous on both sides (memcpy),
// or the two sides are contiguous along different axes (a transposition, done in square blocks), or a plain strided loop.
#include <string.h>

#include "isa.h"
#include "transpose.h"

enum { MAX_RANK = 32, BLOCK = 16, FEW = 8, LONG_BLOCK = 256, SERIAL_BYTES = 16384 };

typedef struct axis {
  int64_t size, dst, src;
} axis;

#define COPY_LINE(type) \
  for (int64_t i = 0; i < a.size; i++) ((type *)dst)[i * a.dst] = ((const type *)src)[i * a.src]

static void copy_line(char *dst, const char *src, axis a, int64_t item) {
  if (a.dst == 1 && a.src == 1) {
    memcpy(dst, src, (size_t)(a.size * item));
    return;
  }
  switch (item) {
    case 1: COPY_LINE(uint8_t); break;
    case 2: COPY_LINE(uint16_t); break;
    case 4: COPY_LINE(uint32_t); break;
    default: COPY_LINE(uint64_t); break;
  }
}

// Blocks of lines along the longer one of two axes, the other has a few elements: the channels of a picture.
static void copy_few(char *dst, const char *src, axis few, axis line, int64_t item) {
  for (int64_t i = 0; i < line.size; i += LONG_BLOCK) {
    axis part = {line.size - i < LONG_BLOCK ? line.size - i : LONG_BLOCK, line.dst, line.src};
    for (int64_t j = 0; j < few.size; j++)
      copy_line(dst + (i * line.dst + j * few.dst) * item, src + (i * line.src + j * few.src) * item, part, item);
  }
}

// Two axes, src contiguous along `outer` and dst along `inner`: in blocks, so that a cache line fetched is used whole; elements of 4 bytes
// in squares of W x W.
static void copy_transposed(char *dst, const char *src, axis outer, axis inner, int64_t item) {
  if (inner.size < FEW || outer.size < FEW) {
    if (inner.size < outer.size) copy_few(dst, src, inner, outer, item);
    else copy_few(dst, src, outer, inner, item);
    return;
  }
  for (int64_t i = 0; i < outer.size; i += BLOCK) {
    int64_t rows = outer.size - i < BLOCK ? outer.size - i : BLOCK, done = 0;
    if (item == 4 && rows == BLOCK && inner.dst == 1)
      for (; done + BLOCK <= inner.size; done += BLOCK)
        for (int64_t r = i; r < i + BLOCK; r += W)
          for (int64_t j = done; j < done + BLOCK; j += W)
            transpose_square((float *)dst + r * outer.dst + j, outer.dst, (const float *)src + r + j * inner.src, inner.src);
    for (int64_t j = done; j < inner.size; j++) {
      axis line = {rows, outer.dst, outer.src};
      copy_line(dst + (i * outer.dst + j * inner.dst) * item, src + (i * outer.src + j * inner.src) * item, line, item);
    }
  }
}

static void copy_axes(char *dst, const char *src, const axis *axes, int rank, int64_t item) {
  if (rank == 0) {
    memcpy(dst, src, (size_t)item);
  } else if (rank == 1) {
    copy_line(dst, src, axes[0], item);
  } else if (rank == 2 && axes[0].src == 1 && axes[1].src != 1) {
    copy_transposed(dst, src, axes[0], axes[1], item);
  } else {
    for (int64_t i = 0; i < axes[0].size; i++)
      copy_axes(dst + i * axes[0].dst * item, src + i * axes[0].src * item, axes + 1, rank - 1, item);
  }
}

// Reads the parameters, leaves out axes of size 1 and joins axes that are one in memory. Returns the rank, or -1 if there is nothing to do.
static int read_axes(const int64_t *p, axis *axes) {
  int64_t given = p[1];
  int rank = 0;
  for (int64_t i = 0; i < given; i++) {
    axis a = {p[2 + i], p[2 + given + i], p[2 + 2 * given + i]};
    if (a.size == 0) return -1;
    if (a.size == 1) continue;
    axis *last = &axes[rank - 1];
    if (rank && last->dst == a.dst * a.size && last->src == a.src * a.size) {
      *last = (axis){last->size * a.size, a.dst, a.src};
    } else {
      axes[rank++] = a;
    }
  }
  return rank;
}

// Where src is contiguous along an outer axis, brings that axis next to the innermost one, for copy_transposed.
static void order_axes(axis *axes, int rank) {
  if (rank < 3 || axes[rank - 1].src == 1) return;
  for (int i = 0; i < rank - 2; i++)
    if (axes[i].src == 1) {
      axis contiguous = axes[i];
      memmove(axes + i, axes + i + 1, (size_t)(rank - 2 - i) * sizeof(axis));
      axes[rank - 2] = contiguous;
      return;
    }
}

void RML_KERNEL(copy)(const rml_args *args) {
  axis axes[MAX_RANK];
  int64_t item = args->p[0], bytes = item;
  int rank = read_axes(args->p, axes), longest = 0;
  if (rank < 0 || args->ptr[0] == args->ptr[1]) return;
  for (int i = 0; i < rank; i++) {
    bytes *= axes[i].size;
    if (axes[i].size > axes[longest].size) longest = i;
  }
  char *dst = args->ptr[0];
  const char *src = args->ptr[1];
  if (bytes < SERIAL_BYTES || rank == 0) {
    if (args->thread) return;
  } else {  // every thread takes its share of the longest axis
    int64_t begin, end;
    rml_share(axes[longest].size, args->thread, args->threads, &begin, &end);
    if (begin == end) return;
    dst += begin * axes[longest].dst * item;
    src += begin * axes[longest].src * item;
    axes[longest].size = end - begin;
  }
  order_axes(axes, rank);
  copy_axes(dst, src, axes, rank, item);
}
