// Memory blocks that are kept for the next taker of the same size. Not locked: callers hold one lock, which in module.c is the GIL.
#ifndef RML_BUFFER_POOL_H
#define RML_BUFFER_POOL_H
#include <stddef.h>
#include <stdint.h>

typedef struct rml_block {
  struct rml_block *next;  // in the list of free blocks
  void *data;              // 64-byte aligned; 2 MB-aligned and on huge pages where the kernel can, from 2 MB on
  size_t bytes;            // a multiple of 64
} rml_block;

typedef struct rml_buffer_pool {
  rml_block *free;
  int64_t hits, misses, bytes_held, bytes_in_use;  // held: free blocks only
} rml_buffer_pool;

// Returns a block of at least so many bytes, contents undefined, or null when memory is exhausted.
rml_block *rml_pool_take(rml_buffer_pool *pool, size_t bytes);
void rml_pool_give(rml_buffer_pool *pool, rml_block *block);
// Returns the free blocks to the system.
void rml_pool_trim(rml_buffer_pool *pool);
#endif
