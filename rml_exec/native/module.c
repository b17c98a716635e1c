// The Python module rml_exec._native: arguments in, results and exceptions out; all work is done by the other files, which know no Python.
// Limited API, so one binary serves CPython 3.11 and later. Signatures and meaning: rml_exec/_native.pyi.
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdlib.h>
#include <string.h>
#include <structmember.h>

#include "buffer_pool.h"
#include "dispatch.h"
#include "program.h"
#include "threads.h"

static const rml_isa *current_isa;  // chosen once, at import

// ---- instruction sets

// Returns the instruction set named by a str, the current one for None, or null with ValueError set.
static const rml_isa *isa_of(PyObject *name) {
  if (!name || name == Py_None) return current_isa;
  const char *text = PyUnicode_AsUTF8AndSize(name, 0);
  if (!text) return 0;
  const rml_isa *isa = rml_find_isa(text);
  if (!isa) PyErr_Format(PyExc_ValueError, "isa: must be one that this machine has, see isa_names(); got '%s'.", text);
  return isa;
}

static PyObject *py_isa_names(PyObject *module, PyObject *unused) {
  (void)module, (void)unused;
  const rml_isa *isas[RML_MAX_ISAS];
  int count = rml_isas(isas);
  PyObject *names = PyTuple_New(count);
  for (int i = 0; names && i < count; i++) {
    PyObject *name = PyUnicode_FromString(isas[i]->name);
    if (!name || PyTuple_SetItem(names, i, name)) Py_CLEAR(names);
  }
  return names;
}

static PyObject *py_current_isa(PyObject *module, PyObject *unused) {
  (void)module, (void)unused;
  return PyUnicode_FromString(current_isa->name);
}

static PyObject *py_isa_info(PyObject *module, PyObject *args, PyObject *kwargs) {
  static char *names[] = {"isa", 0};
  PyObject *name = 0;
  if (!PyArg_ParseTupleAndKeywords(args, kwargs, "|O:isa_info", names, &name)) return 0;
  const rml_isa *isa = isa_of(name);
  if (!isa) return 0;
  PyObject *available = py_isa_names(module, 0);
  if (!available) return 0;
  return Py_BuildValue("{s:s,s:i,s:i,s:i,s:N}", "name", isa->name, "lanes", isa->lanes, "gemm_mr", isa->gemm_mr, "gemm_nr", isa->gemm_nr,
                       "available", available);
}

static PyObject *py_step_kinds(PyObject *module, PyObject *unused) {
  (void)module, (void)unused;
  static const char *const names[] = {
#define RML_STEP(name, parameters, operands) #name,
#include "kernels/steps.def"
#undef RML_STEP
  };
  PyObject *kinds = PyDict_New();
  for (int i = 0; kinds && i < RML_STEP_COUNT; i++) {
    PyObject *kind = PyLong_FromLong(i);
    if (!kind || PyDict_SetItemString(kinds, names[i], kind)) Py_CLEAR(kinds);
    Py_XDECREF(kind);
  }
  return kinds;
}

static PyObject *py_peak_flops(PyObject *module, PyObject *args, PyObject *kwargs) {
  static char *names[] = {"seconds", "isa", 0};
  double seconds, flops;
  PyObject *name = 0;
  (void)module;
  if (!PyArg_ParseTupleAndKeywords(args, kwargs, "d|O:peak_flops", names, &seconds, &name)) return 0;
  const rml_isa *isa = isa_of(name);
  if (!isa) return 0;
  Py_BEGIN_ALLOW_THREADS flops = isa->peak_flops(seconds);
  Py_END_ALLOW_THREADS return PyFloat_FromDouble(flops);
}

// ---- packing

static PyObject *py_packed_b_floats(PyObject *module, PyObject *args, PyObject *kwargs) {
  static char *names[] = {"k", "n", "isa", 0};
  long long k, n;
  PyObject *name = 0;
  (void)module;
  if (!PyArg_ParseTupleAndKeywords(args, kwargs, "LL|O:packed_b_floats", names, &k, &n, &name)) return 0;
  const rml_isa *isa = isa_of(name);
  if (!isa) return 0;
  if (k < 0 || n < 0) return PyErr_Format(PyExc_ValueError, "packed_b_floats: k and n must not be negative; got %lld and %lld.", k, n);
  return PyLong_FromLongLong(isa->packed_b_floats(k, n));
}

// Takes a buffer of at least `bytes`; sets an exception if it is smaller.
static int get_floats(PyObject *object, Py_buffer *view, int flags, const char *what, long long bytes) {
  if (PyObject_GetBuffer(object, view, flags) < 0) return 0;
  if (view->len >= bytes) return 1;
  PyErr_Format(PyExc_ValueError, "pack_b: %s must hold %lld bytes; got %zd.", what, bytes, view->len);
  PyBuffer_Release(view);
  return 0;
}

static PyObject *py_pack_b(PyObject *module, PyObject *args, PyObject *kwargs) {
  static char *names[] = {"dst", "b", "k", "n", "row_stride", "col_stride", "isa", "taps", "tap_stride", "scale", 0};
  PyObject *dst_object, *b_object, *name = 0, *scale_object = Py_None, *result = 0;
  long long k, n, row_stride, col_stride, taps = 1, tap_stride = 0;
  (void)module;
  if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OOLLLL|O$LLO:pack_b", names, &dst_object, &b_object, &k, &n, &row_stride, &col_stride,
                                   &name, &taps, &tap_stride, &scale_object))
    return 0;
  const rml_isa *isa = isa_of(name);
  if (!isa) return 0;
  if (k < 0 || n < 0 || row_stride < 0 || col_stride < 0 || taps < 1 || tap_stride < 0 || k % taps)
    return PyErr_Format(PyExc_ValueError, "pack_b: sizes and strides must not be negative, and k a multiple of taps.");
  Py_buffer dst, b, scale = {0};
  long long last = k && n ? (k / taps - 1) * row_stride + (taps - 1) * tap_stride + (n - 1) * col_stride + 1 : 0;
  if (!get_floats(dst_object, &dst, PyBUF_WRITABLE, "dst", isa->packed_b_floats(k, n) * 4)) return 0;
  if (get_floats(b_object, &b, PyBUF_SIMPLE, "b", last * 4)) {
    if (scale_object == Py_None || get_floats(scale_object, &scale, PyBUF_SIMPLE, "scale", n * 8)) {
      rml_matrix matrix = {b.buf, k, n, row_stride, col_stride, taps, tap_stride, scale.buf};
      Py_BEGIN_ALLOW_THREADS isa->pack_b(dst.buf, &matrix);
      Py_END_ALLOW_THREADS result = Py_NewRef(Py_None);
      if (scale.obj) PyBuffer_Release(&scale);
    }
    PyBuffer_Release(&b);
  }
  PyBuffer_Release(&dst);
  return result;
}

// ---- Buffer and BufferPool. Every entry holds the GIL, which is the lock that buffer_pool.h asks for.

typedef struct pool_object {
  PyObject_HEAD rml_buffer_pool pool;
} pool_object;

typedef struct buffer_object {
  PyObject_HEAD pool_object *owner;
  rml_block *block;
  Py_ssize_t bytes;
} buffer_object;

typedef struct module_state {
  PyObject *buffer_type;
} module_state;

static void free_object(PyObject *self) {
  PyTypeObject *type = Py_TYPE(self);
  ((freefunc)PyType_GetSlot(type, Py_tp_free))(self);
  Py_DECREF(type);
}

static void buffer_dealloc(PyObject *self) {
  buffer_object *buffer = (buffer_object *)self;
  if (buffer->block) rml_pool_give(&buffer->owner->pool, buffer->block);
  Py_XDECREF((PyObject *)buffer->owner);
  free_object(self);
}

static int buffer_getbuffer(PyObject *self, Py_buffer *view, int flags) {
  buffer_object *buffer = (buffer_object *)self;
  return PyBuffer_FillInfo(view, self, buffer->block->data, buffer->bytes, 0, flags);
}

static Py_ssize_t buffer_length(PyObject *self) { return ((buffer_object *)self)->bytes; }

static PyType_Slot buffer_slots[] = {{Py_tp_dealloc, buffer_dealloc},
                                     {Py_bf_getbuffer, buffer_getbuffer},
                                     {Py_sq_length, buffer_length},
                                     {Py_tp_doc, "Writable memory of a BufferPool; goes back to the pool with the last reference."},
                                     {0, 0}};
static PyType_Spec buffer_spec = {"rml_exec._native.Buffer", sizeof(buffer_object), 0,
                                  Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION, buffer_slots};

static void pool_dealloc(PyObject *self) {
  rml_pool_trim(&((pool_object *)self)->pool);
  free_object(self);
}

static PyObject *pool_take(PyObject *self, PyObject *argument) {
  module_state *state = PyType_GetModuleState(Py_TYPE(self));
  Py_ssize_t bytes = PyLong_AsSsize_t(argument);
  if (!state || (bytes == -1 && PyErr_Occurred())) return 0;
  if (bytes < 0) return PyErr_Format(PyExc_ValueError, "BufferPool.take: nbytes must not be negative; got %zd.", bytes);
  buffer_object *buffer = (buffer_object *)PyType_GenericAlloc((PyTypeObject *)state->buffer_type, 0);
  if (!buffer) return 0;
  buffer->owner = (pool_object *)Py_NewRef(self);
  buffer->bytes = bytes;
  buffer->block = rml_pool_take(&buffer->owner->pool, (size_t)bytes);
  if (!buffer->block) {
    Py_DECREF((PyObject *)buffer);
    return PyErr_NoMemory();
  }
  return (PyObject *)buffer;
}

static PyObject *pool_trim(PyObject *self, PyObject *unused) {
  (void)unused;
  rml_pool_trim(&((pool_object *)self)->pool);
  Py_RETURN_NONE;
}

#define POOL_COUNTER(name, doc) {#name, T_LONGLONG, offsetof(pool_object, pool.name), READONLY, doc}
static PyMemberDef pool_members[] = {POOL_COUNTER(hits, "Blocks that take() found in the pool."),
                                     POOL_COUNTER(misses, "Blocks that take() had to allocate."),
                                     POOL_COUNTER(bytes_held, "Bytes of free blocks in the pool."),
                                     POOL_COUNTER(bytes_in_use, "Bytes of blocks taken and not yet given back."),
                                     {0}};
static PyMethodDef pool_methods[] = {{"take", pool_take, METH_O, "take(nbytes) -> Buffer: 64-byte aligned memory, contents undefined."},
                                     {"trim", pool_trim, METH_NOARGS, "Gives the free blocks back to the system."},
                                     {0}};
static PyType_Slot pool_slots[] = {{Py_tp_new, PyType_GenericNew},
                                   {Py_tp_dealloc, pool_dealloc},
                                   {Py_tp_members, pool_members},
                                   {Py_tp_methods, pool_methods},
                                   {Py_tp_doc, "Keeps memory blocks for the next taker of the same size."},
                                   {0, 0}};
static PyType_Spec pool_spec = {"rml_exec._native.BufferPool", sizeof(pool_object), 0, Py_TPFLAGS_DEFAULT, pool_slots};

// ---- Program

typedef struct program_object {
  PyObject_HEAD rml_program program;
  Py_buffer *constants;     // held for as long as the program lives
  int64_t constants_held;
  PyObject **callables;     // one per step; null where the step has a kernel that never declines
} program_object;

static int program_traverse(PyObject *self, visitproc visit, void *arg) {
  program_object *p = (program_object *)self;
  Py_VISIT(Py_TYPE(self));
  for (int64_t i = 0; p->callables && i < p->program.step_count; i++) Py_VISIT(p->callables[i]);
  return 0;
}

static int program_clear(PyObject *self) {
  program_object *p = (program_object *)self;
  for (int64_t i = 0; p->callables && i < p->program.step_count; i++) Py_CLEAR(p->callables[i]);
  return 0;
}

static void program_dealloc(PyObject *self) {
  program_object *p = (program_object *)self;
  PyObject_GC_UnTrack(self);
  program_clear(self);
  for (int64_t i = 0; i < p->constants_held; i++) PyBuffer_Release(&p->constants[i]);
  PyMem_Free(p->constants);
  PyMem_Free(p->callables);
  rml_program_free(&p->program);
  free_object(self);
}

// A buffer of int64; returns 0 with ValueError set if it is anything else.
static int get_int64s(PyObject *object, Py_buffer *view, int flags, const char *what) {
  if (PyObject_GetBuffer(object, view, PyBUF_C_CONTIGUOUS | PyBUF_FORMAT | flags) < 0) return 0;
  const char *format = view->format ? view->format : "B";
  if (view->itemsize == 8 && (!strcmp(format, "l") || !strcmp(format, "q"))) return 1;
  PyErr_Format(PyExc_ValueError, "%s: must be a buffer of int64; got items of format '%s'.", what, format);
  PyBuffer_Release(view);
  return 0;
}

// Sets step i from (kind, params, places, callable).
static int set_step(program_object *p, int64_t i, PyObject *step, const rml_constant *constants) {
  long long kind;
  PyObject *params_object, *places_object, *callable;
  Py_buffer params, places;
  char error[RML_ERROR_BYTES];
  if (!PyTuple_Check(step)) {
    PyErr_Format(PyExc_ValueError, "Program: step %lld must be a tuple (kind, params, places, callable).", (long long)i);
    return 0;
  }
  if (!PyArg_ParseTuple(step, "LOOO:step", &kind, &params_object, &places_object, &callable)) return 0;
  if (callable == Py_None ? kind == -1 : !PyCallable_Check(callable)) {
    PyErr_Format(PyExc_ValueError, "Program: step %lld of kind %lld must have a callable%s.", (long long)i, kind, kind == -1 ? "" : " or None");
    return 0;
  }
  if (callable != Py_None) p->callables[i] = Py_NewRef(callable);
  p->program.steps[i].may_decline = kind != -1 && callable != Py_None;
  if (kind == -1) return 1;
  if (!get_int64s(params_object, &params, 0, "Program: params of a step")) return 0;
  int set = 0;
  if (get_int64s(places_object, &places, 0, "Program: places of a step")) {
    if (places.len % (Py_ssize_t)sizeof(rml_place))
      PyErr_Format(PyExc_ValueError, "Program: step %lld: places must be triples (space, index, offset).", (long long)i);
    else if (!rml_program_set_step(&p->program, i, kind, params.buf, params.len / 8, places.buf, places.len / (Py_ssize_t)sizeof(rml_place),
                                   constants, error))
      PyErr_Format(PyExc_ValueError, "Program: %s.", error);
    else
      set = 1;
    PyBuffer_Release(&places);
  }
  PyBuffer_Release(&params);
  return set;
}

// Fills a new object; on failure the caller releases it, whatever state it is in.
static int program_fill(program_object *p, PyObject *steps, PyObject *constants) {
  rml_program *program = &p->program;
  program->constant_count = PySequence_Size(constants);
  program->step_count = PySequence_Size(steps);
  if (program->constant_count < 0 || program->step_count < 0) {
    program->step_count = 0;
    return 0;
  }
  p->constants = PyMem_Calloc((size_t)program->constant_count + 1, sizeof *p->constants);
  p->callables = PyMem_Calloc((size_t)program->step_count + 1, sizeof *p->callables);
  rml_constant *places = PyMem_Calloc((size_t)program->constant_count + 1, sizeof *places);
  int filled = 0;
  if (!p->constants || !p->callables || !places || !rml_program_init(program)) {
    PyErr_NoMemory();
    goto done;
  }
  for (int64_t i = 0; i < program->constant_count; i++) {
    PyObject *constant = PySequence_GetItem(constants, i);
    int held = constant && PyObject_GetBuffer(constant, &p->constants[i], PyBUF_SIMPLE) == 0;
    Py_XDECREF(constant);
    if (!held) goto done;
    p->constants_held = i + 1;
    places[i] = (rml_constant){p->constants[i].buf, p->constants[i].len};
  }
  for (int64_t i = 0; i < program->step_count; i++) {
    PyObject *step = PySequence_GetItem(steps, i);
    int set = step && set_step(p, i, step, places);
    Py_XDECREF(step);
    if (!set) goto done;
  }
  filled = 1;
done:
  PyMem_Free(places);
  return filled;
}

static PyObject *program_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
  static char *names[] = {"steps", "constants", "n_inputs", "n_outputs", "arena_bytes", "isa", "flush_denormals", 0};
  enum { MOST = 1 << 20 };
  PyObject *steps, *constants, *name = 0;
  long long inputs, outputs, arena_bytes;
  int flush = 0;
  if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OOLLL|Op:Program", names, &steps, &constants, &inputs, &outputs, &arena_bytes, &name, &flush))
    return 0;
  const rml_isa *isa = isa_of(name);
  if (!isa) return 0;
  if (inputs < 0 || outputs < 0 || arena_bytes < 0 || inputs > MOST || outputs > MOST)
    return PyErr_Format(PyExc_ValueError, "Program: n_inputs, n_outputs and arena_bytes out of range; got %lld, %lld, %lld.", inputs, outputs,
                        arena_bytes);
  program_object *p = (program_object *)PyType_GenericAlloc(type, 0);
  if (!p) return 0;
  p->program.isa = isa;
  p->program.flush_denormals = flush;
  p->program.input_count = inputs;
  p->program.output_count = outputs;
  p->program.arena_bytes = arena_bytes;
  if (!program_fill(p, steps, constants)) {
    Py_DECREF((PyObject *)p);
    return 0;
  }
  return (PyObject *)p;
}

// What a host step needs: the objects of this run, and the thread state that is put aside while kernels run.
typedef struct host_context {
  program_object *program;
  PyObject *arena, *inputs, *outputs;
  PyThreadState *thread_state;
} host_context;

static int call_host_step(void *context, int64_t step) {
  host_context *host = context;
  PyEval_RestoreThread(host->thread_state);
  PyObject *result = PyObject_CallFunctionObjArgs(host->program->callables[step], host->arena, host->inputs, host->outputs, NULL);
  int failed = !result;
  Py_XDECREF(result);
  host->thread_state = PyEval_SaveThread();
  return failed;
}

// The buffers of one run: arena, inputs, outputs.
typedef struct run_buffers {
  Py_buffer *views;
  char **bases;  // as for rml_operand
  int64_t held;
} run_buffers;

static int hold(run_buffers *b, PyObject *object, int flags, const rml_program *program) {
  Py_buffer *view = &b->views[b->held];
  if (!object || PyObject_GetBuffer(object, view, flags) < 0) return 0;
  int64_t least = program->least_bytes[b->held];
  b->bases[++b->held] = view->buf;
  if (view->len >= least) return 1;
  int64_t i = b->held - 1;
  const char *what = i == 0 ? "arena" : i <= program->input_count ? "input" : "output";
  int64_t index = i == 0 ? 0 : i <= program->input_count ? i - 1 : i - 1 - program->input_count;
  PyErr_Format(PyExc_ValueError, "Program.run: %s %lld must have at least %lld bytes; got %zd.", what, (long long)index, (long long)least, view->len);
  return 0;
}

static int hold_all(run_buffers *b, PyObject *objects, int64_t count, int flags, const char *what, const rml_program *program) {
  Py_ssize_t given = PySequence_Size(objects);
  if (given < 0) return 0;
  if (given != count) {
    PyErr_Format(PyExc_ValueError, "Program.run: takes %lld %s; got %zd.", (long long)count, what, given);
    return 0;
  }
  for (Py_ssize_t i = 0; i < given; i++) {
    PyObject *object = PySequence_GetItem(objects, i);
    int held = hold(b, object, flags, program);
    Py_XDECREF(object);
    if (!held) return 0;
  }
  return 1;
}

static PyObject *run_with(program_object *p, PyObject *const *args, run_buffers *b, int64_t *times_ns) {
  const rml_program *program = &p->program;
  long threads = PyLong_AsLong(args[3]);
  if (threads == -1 && PyErr_Occurred()) return 0;
  if (threads < 1 || threads > RML_MAX_THREADS)
    return PyErr_Format(PyExc_ValueError, "Program.run: threads must be in [1, %d]; got %ld.", RML_MAX_THREADS, threads);
  if (!hold(b, args[0], PyBUF_WRITABLE, program) || !hold_all(b, args[1], program->input_count, PyBUF_SIMPLE, "inputs", program) ||
      !hold_all(b, args[2], program->output_count, PyBUF_WRITABLE, "outputs", program))
    return 0;
  host_context host = {p, args[0], args[1], args[2], PyEval_SaveThread()};
  rml_run run = {.program = program, .bases = b->bases, .host = call_host_step, .context = &host, .times_ns = times_ns};
  int finished = rml_program_run(&run, (int)threads);
  PyEval_RestoreThread(host.thread_state);
  return finished ? Py_NewRef(Py_None) : 0;
}

// Runs with room for the buffers: on the stack for the usual number of them.
static PyObject *run_program(program_object *p, PyObject *const *args, int64_t *times_ns) {
  enum { USUAL = 16 };
  int64_t count = 1 + p->program.input_count + p->program.output_count;
  Py_buffer views[USUAL];
  char *bases[USUAL + 1];
  run_buffers b = {views, bases, 0};
  void *memory = 0;
  if (count > USUAL) {
    memory = PyMem_Malloc((size_t)count * sizeof *views + (size_t)(count + 1) * sizeof *bases);
    if (!memory) return PyErr_NoMemory();
    b.views = memory;
    b.bases = (char **)(b.views + count);
  }
  b.bases[0] = 0;
  PyObject *result = run_with(p, args, &b, times_ns);
  for (int64_t i = 0; i < b.held; i++) PyBuffer_Release(&b.views[i]);
  PyMem_Free(memory);
  return result;
}

static PyObject *program_run(PyObject *self, PyObject *const *args, Py_ssize_t count) {
  if (count != 4) return PyErr_Format(PyExc_TypeError, "Program.run takes arena, inputs, outputs, threads; got %zd arguments.", count);
  return run_program((program_object *)self, args, 0);
}

static PyObject *program_run_profiled(PyObject *self, PyObject *const *args, Py_ssize_t count) {
  program_object *p = (program_object *)self;
  Py_buffer times;
  if (count != 5)
    return PyErr_Format(PyExc_TypeError, "Program.run_profiled takes arena, inputs, outputs, threads, times_ns; got %zd arguments.", count);
  if (!get_int64s(args[4], &times, PyBUF_WRITABLE, "Program.run_profiled: times_ns")) return 0;
  PyObject *result = 0;
  if (times.len / 8 < p->program.step_count)
    PyErr_Format(PyExc_ValueError, "Program.run_profiled: times_ns must hold %lld values; got %zd.", (long long)p->program.step_count, times.len / 8);
  else
    result = run_program(p, args, times.buf);
  PyBuffer_Release(&times);
  return result;
}

static PyMethodDef program_methods[] = {
    {"run", (PyCFunction)(void (*)(void))program_run, METH_FASTCALL, "run(arena, inputs, outputs, threads): walks the program once."},
    {"run_profiled", (PyCFunction)(void (*)(void))program_run_profiled, METH_FASTCALL,
     "run_profiled(arena, inputs, outputs, threads, times_ns): run, and the nanoseconds of each step."},
    {0}};
static PyType_Slot program_slots[] = {{Py_tp_new, program_new},
                                      {Py_tp_dealloc, program_dealloc},
                                      {Py_tp_traverse, program_traverse},
                                      {Py_tp_clear, program_clear},
                                      {Py_tp_methods, program_methods},
                                      {Py_tp_doc, "An immutable list of steps; any number of threads may run it at once."},
                                      {0, 0}};
static PyType_Spec program_spec = {"rml_exec._native.Program", sizeof(program_object), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
                                   program_slots};

// ---- the module

static int add_type(PyObject *module, PyType_Spec *spec, PyObject **keep) {
  PyObject *type = PyType_FromModuleAndSpec(module, spec, 0);
  if (!type) return -1;
  int added = PyModule_AddType(module, (PyTypeObject *)type);
  if (keep)
    *keep = type;
  else
    Py_DECREF(type);
  return added;
}

// Picks the instruction set: the widest, or the one that RML_ISA names. A wrong name is not an ImportError, so that the package can raise
// its own: the module's isa_error says what is wrong, and is None otherwise.
static int choose_isa(PyObject *module) {
  const rml_isa *isas[RML_MAX_ISAS];
  int count = rml_isas(isas);
  const char *asked = getenv("RML_ISA");
  current_isa = asked && *asked ? rml_find_isa(asked) : isas[count - 1];
  if (current_isa) return PyModule_AddObjectRef(module, "isa_error", Py_None);
  current_isa = isas[0];
  PyObject *names = py_isa_names(module, 0), *comma = PyUnicode_FromString(", "), *list = names && comma ? PyUnicode_Join(comma, names) : 0;
  PyObject *error = list ? PyUnicode_FromFormat("RML_ISA: must be one of %U, the instruction sets of this machine; got '%s'.", list, asked) : 0;
  int added = error ? PyModule_AddObjectRef(module, "isa_error", error) : -1;
  Py_XDECREF(names);
  Py_XDECREF(comma);
  Py_XDECREF(list);
  Py_XDECREF(error);
  return added;
}

static int module_exec(PyObject *module) {
  module_state *state = PyModule_GetState(module);
  if (choose_isa(module)) return -1;
  return add_type(module, &buffer_spec, &state->buffer_type) || add_type(module, &pool_spec, 0) || add_type(module, &program_spec, 0) ? -1 : 0;
}

static int module_traverse(PyObject *module, visitproc visit, void *arg) {
  Py_VISIT(((module_state *)PyModule_GetState(module))->buffer_type);
  return 0;
}

static int module_clear(PyObject *module) {
  Py_CLEAR(((module_state *)PyModule_GetState(module))->buffer_type);
  return 0;
}

#define WITH_KEYWORDS(function) (PyCFunction)(void (*)(void))function, METH_VARARGS | METH_KEYWORDS
static PyMethodDef module_methods[] = {
    {"isa_names", py_isa_names, METH_NOARGS, "Names of the instruction sets of this machine, widest last."},
    {"current_isa", py_current_isa, METH_NOARGS, "Name of the instruction set chosen at import."},
    {"isa_info", WITH_KEYWORDS(py_isa_info), "isa_info(isa=None) -> dict: name, lanes, gemm_mr, gemm_nr, available."},
    {"step_kinds", py_step_kinds, METH_NOARGS, "Name of every step -> its kind."},
    {"packed_b_floats", WITH_KEYWORDS(py_packed_b_floats), "packed_b_floats(k, n, isa=None): size of a packed matrix."},
    {"pack_b", WITH_KEYWORDS(py_pack_b), "pack_b(dst, b, k, n, row_stride, col_stride, isa=None, *, taps=1, tap_stride=0, scale=None): packs a matrix for gemm and conv."},
    {"peak_flops", WITH_KEYWORDS(py_peak_flops), "peak_flops(seconds, isa=None): FLOP/s that one core reaches."},
    {0}};
static PyModuleDef_Slot module_slots[] = {{Py_mod_exec, module_exec}, {0, 0}};
static PyModuleDef module_definition = {PyModuleDef_HEAD_INIT,
                                        .m_name = "_native",
                                        .m_doc = "The native core of rml_exec.",
                                        .m_size = sizeof(module_state),
                                        .m_methods = module_methods,
                                        .m_slots = module_slots,
                                        .m_traverse = module_traverse,
                                        .m_clear = module_clear};
PyMODINIT_FUNC PyInit__native(void) { return PyModuleDef_Init(&module_definition); }
