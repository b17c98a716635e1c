#include "buffer_pool.h"

#include <stdlib.h>
#include <sys/mman.h>

enum { ALIGNMENT = 64, HUGE = 2 << 20 };

static rml_block *new_block(size_t bytes) {
  rml_block *block = malloc(sizeof *block);
  if (!block) return 0;
  if (posix_memalign(&block->data, bytes >= HUGE ? HUGE : ALIGNMENT, bytes)) {
    free(block);
    return 0;
  }
  block->bytes = bytes;
#ifdef MADV_HUGEPAGE
  if (bytes >= HUGE) madvise(block->data, bytes / HUGE * HUGE, MADV_HUGEPAGE);  // advice: a refusal only costs speed
#endif
  return block;
}

rml_block *rml_pool_take(rml_buffer_pool *pool, size_t bytes) {
  if (bytes > SIZE_MAX / 2) return 0;
  bytes = bytes ? (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT : ALIGNMENT;
  rml_block **link = &pool->free, *block;
  while (*link && (*link)->bytes != bytes) link = &(*link)->next;
  if ((block = *link)) {
    *link = block->next;
    pool->hits++;
    pool->bytes_held -= (int64_t)bytes;
  } else {
    if (!(block = new_block(bytes))) return 0;
    pool->misses++;
  }
  pool->bytes_in_use += (int64_t)bytes;
  return block;
}

void rml_pool_give(rml_buffer_pool *pool, rml_block *block) {
  pool->bytes_in_use -= (int64_t)block->bytes;
  pool->bytes_held += (int64_t)block->bytes;
  block->next = pool->free;
  pool->free = block;
}

void rml_pool_trim(rml_buffer_pool *pool) {
  while (pool->free) {
    rml_block *block = pool->free;
    pool->free = block->next;
    free(block->data);
    free(block);
  }
  pool->bytes_held = 0;
}
