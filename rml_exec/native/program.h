// A program: an immutable list of steps, walked by all threads of a run with a barrier after each step.
#ifndef RML_PROGRAM_H
#define RML_PROGRAM_H
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/kernels.h"

enum { RML_MAX_OPERANDS = 1024, RML_ERROR_BYTES = 256 };

// Where an operand lies, as the plan says it: offset bytes into the arena, an input, an output or a constant.
typedef struct rml_place {
  int64_t space, index, offset;
} rml_place;

enum { RML_SPACE_ABSENT = -1, RML_SPACE_ARENA, RML_SPACE_INPUT, RML_SPACE_OUTPUT, RML_SPACE_CONSTANT };

// The same, resolved as far as a program can: bases[base] + offset, where bases[0] is null (constants, absent operands), bases[1] the
// arena, then the inputs, then the outputs.
typedef struct rml_operand {
  int64_t base, offset;
} rml_operand;

typedef struct rml_step {
  rml_step_fn kernel;  // null: a host step, run by the caller's `host` function
  int64_t *params;     // one allocation per step: the parameters, then the operands
  rml_operand *operands;
  int operand_count;
  int may_decline;     // has a host function for what the kernel declines
} rml_step;

typedef struct rml_constant {
  void *data;
  int64_t bytes;
} rml_constant;

typedef struct rml_program {
  const rml_isa *isa;
  int flush_denormals;
  int64_t step_count, input_count, output_count, constant_count, arena_bytes;
  int max_operands;
  rml_step *steps;
  int64_t *least_bytes;  // of the arena, each input and each output: places point no further than this
} rml_program;

// Fills a zeroed program for step_count steps. Returns 0 when memory is exhausted.
int rml_program_init(rml_program *program);
void rml_program_free(rml_program *program);

// Sets step i. kind -1 is a host step, whose params and places are ignored. Returns 0 and writes the reason to error if the kind is
// unknown, a count does not fit steps.def, or a place lies outside of what there is.
int rml_program_set_step(rml_program *program, int64_t i, int64_t kind, const int64_t *params, int64_t param_count,
                         const rml_place *places, int64_t place_count, const rml_constant *constants, char error[RML_ERROR_BYTES]);

typedef struct rml_run {
  const rml_program *program;
  char *const *bases;                        // as for rml_operand
  int (*host)(void *context, int64_t step);  // runs a host step on the calling thread; nonzero ends the run
  void *context;
  int64_t *times_ns;                         // one per step, or null
  _Atomic int64_t failed;                    // the host step that ended the run, or -1
  int64_t declined;                          // the last step that its kernel declined, or -1; atomic
} rml_run;

// Walks the program; returns 1, or 0 if a host step ended the run.
int rml_program_run(rml_run *run, int threads);
#endif
