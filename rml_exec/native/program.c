#define _GNU_SOURCE
#include "program.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "threads.h"

typedef struct step_shape {
  const char *name;
  int params, operands;  // as in steps.def: exact, or RML_AT_LEAST
} step_shape;

static const step_shape step_shapes[RML_STEP_COUNT] = {
#define RML_STEP(name, parameters, operands) {#name, parameters, operands},
#include "kernels/steps.def"
#undef RML_STEP
};

int rml_program_init(rml_program *program) {
  program->steps = calloc((size_t)program->step_count + 1, sizeof *program->steps);
  program->least_bytes = calloc((size_t)(1 + program->input_count + program->output_count), sizeof *program->least_bytes);
  if (!program->steps || !program->least_bytes) return 0;
  program->least_bytes[0] = program->arena_bytes;
  return 1;
}

void rml_program_free(rml_program *program) {
  for (int64_t i = 0; program->steps && i < program->step_count; i++) free(program->steps[i].params);
  free(program->steps);
  free(program->least_bytes);
}

static int check_count(const char *what, int64_t got, int expected, const char *name, int64_t i, char *error) {
  if (expected >= 0 ? got == expected : got >= RML_AT_LEAST(expected)) return 1;
  snprintf(error, RML_ERROR_BYTES, "step %lld (%s): needs %s%d %s; got %lld", (long long)i, name, expected >= 0 ? "" : "at least ",
           expected >= 0 ? expected : RML_AT_LEAST(expected), what, (long long)got);
  return 0;
}

// Resolves one place; returns 0 if it lies outside of what there is.
static int resolve(rml_program *program, rml_place place, const rml_constant *constants, rml_operand *operand) {
  int64_t count, base;
  switch (place.space) {
    case RML_SPACE_ABSENT:
      *operand = (rml_operand){0, 0};
      return 1;
    case RML_SPACE_ARENA:
      *operand = (rml_operand){1, place.offset};
      return place.offset >= 0 && place.offset <= program->arena_bytes;
    case RML_SPACE_CONSTANT:
      if (place.index < 0 || place.index >= program->constant_count) return 0;
      *operand = (rml_operand){0, (int64_t)(intptr_t)constants[place.index].data + place.offset};
      return place.offset >= 0 && place.offset <= constants[place.index].bytes;
    case RML_SPACE_INPUT: count = program->input_count, base = 1; break;
    case RML_SPACE_OUTPUT: count = program->output_count, base = 1 + program->input_count; break;
    default: return 0;
  }
  if (place.index < 0 || place.index >= count || place.offset < 0) return 0;
  int64_t *least = &program->least_bytes[base + place.index];
  if (*least < place.offset) *least = place.offset;
  *operand = (rml_operand){1 + base + place.index, place.offset};
  return 1;
}

int rml_program_set_step(rml_program *program, int64_t i, int64_t kind, const int64_t *params, int64_t param_count,
                         const rml_place *places, int64_t place_count, const rml_constant *constants, char error[RML_ERROR_BYTES]) {
  rml_step *step = &program->steps[i];
  if (kind == -1) return 1;
  if (kind < 0 || kind >= RML_STEP_COUNT) {
    snprintf(error, RML_ERROR_BYTES, "step %lld: kind must be -1 or in [0, %d); got %lld", (long long)i, RML_STEP_COUNT, (long long)kind);
    return 0;
  }
  const step_shape *shape = &step_shapes[kind];
  if (!check_count("parameters", param_count, shape->params, shape->name, i, error)) return 0;
  if (!check_count("operands", place_count, shape->operands, shape->name, i, error)) return 0;
  if (place_count > RML_MAX_OPERANDS) {
    snprintf(error, RML_ERROR_BYTES, "step %lld (%s): takes at most %d operands; got %lld", (long long)i, shape->name, RML_MAX_OPERANDS,
             (long long)place_count);
    return 0;
  }
  size_t param_bytes = (size_t)param_count * sizeof *params;
  step->params = malloc(param_bytes + (size_t)place_count * sizeof *step->operands + 1);
  if (!step->params) {
    snprintf(error, RML_ERROR_BYTES, "step %lld (%s): out of memory", (long long)i, shape->name);
    return 0;
  }
  memcpy(step->params, params, param_bytes);
  step->operands = (rml_operand *)(step->params + param_count);
  step->operand_count = (int)place_count;
  step->kernel = program->isa->steps[kind];
  if (program->max_operands < place_count) program->max_operands = (int)place_count;
  for (int64_t o = 0; o < place_count; o++)
    if (!resolve(program, places[o], constants, &step->operands[o])) {
      snprintf(error, RML_ERROR_BYTES,
               "step %lld (%s): operand %lld lies outside of %lld arena bytes, %lld inputs, %lld outputs, %lld constants; got "
               "(space %lld, index %lld, offset %lld)",
               (long long)i, shape->name, (long long)o, (long long)program->arena_bytes, (long long)program->input_count,
               (long long)program->output_count, (long long)program->constant_count, (long long)places[o].space,
               (long long)places[o].index, (long long)places[o].offset);
      return 0;
    }
  return 1;
}

// ---- denormals: the mode is a register of the thread, so each thread of a run sets it and puts it back
#if defined(__x86_64__)
static unsigned swap_flush_mode(int flush) {
  unsigned before = __builtin_ia32_stmxcsr();
  if (flush) __builtin_ia32_ldmxcsr(before | 0x8040);  // flush results, take operands as zero
  return before;
}
static void restore_flush_mode(unsigned before) { __builtin_ia32_ldmxcsr(before); }
#elif defined(__aarch64__)
static uint64_t swap_flush_mode(int flush) {
  uint64_t before;
  __asm__ volatile("mrs %0, fpcr" : "=r"(before));
  if (flush) __asm__ volatile("msr fpcr, %0" : : "r"(before | 1u << 24));
  return before;
}
static void restore_flush_mode(uint64_t before) { __asm__ volatile("msr fpcr, %0" : : "r"(before)); }
#else
static int swap_flush_mode(int flush) { return flush; }
static void restore_flush_mode(int before) { (void)before; }
#endif

static int64_t now_ns(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec * 1000000000ll + t.tv_nsec;
}

// A host step that fails is remembered by its index, and so is a step that its kernel declines: a thread that is late out of the barrier of
// one step must not take what happened at the next for it, or it would miss a barrier.
static void walk(void *data, rml_team *team, int thread, int threads) {
  rml_run *run = data;
  const rml_program *program = run->program;
  void *pointers[program->max_operands + 1];
  int64_t begin = run->times_ns ? now_ns() : 0;
  for (int64_t i = 0; i < program->step_count; i++) {
    const rml_step *step = &program->steps[i];
    int host = !step->kernel;
    if (step->kernel) {
      for (int o = 0; o < step->operand_count; o++) {
        rml_operand operand = step->operands[o];
        pointers[o] = (void *)((intptr_t)run->bases[operand.base] + (intptr_t)operand.offset);
      }
      step->kernel(&(rml_args){step->params, pointers, thread, threads, i, &run->declined});
    }
    if (step->may_decline) {
      rml_barrier(team, threads);
      host = __atomic_load_n(&run->declined, __ATOMIC_RELAXED) == i;
    }
    if (host && thread == 0 && run->host(run->context, i)) atomic_store_explicit(&run->failed, i, memory_order_relaxed);
    if ((host || !step->may_decline) && (i + 1 < program->step_count || run->times_ns)) rml_barrier(team, threads);
    if (host && atomic_load_explicit(&run->failed, memory_order_relaxed) == i) break;
    if (run->times_ns && thread == 0) {
      int64_t end = now_ns();
      run->times_ns[i] = end - begin;
      begin = end;
    }
  }
}

static void walk_in_mode(void *data, rml_team *team, int thread, int threads) {
  int flush = ((rml_run *)data)->program->flush_denormals;
  __auto_type before = swap_flush_mode(flush);
  walk(data, team, thread, threads);
  restore_flush_mode(before);
}

int rml_program_run(rml_run *run, int threads) {
  atomic_init(&run->failed, -1);
  run->declined = -1;
  rml_run_team(threads, walk_in_mode, run);
  return atomic_load_explicit(&run->failed, memory_order_relaxed) < 0;
}
