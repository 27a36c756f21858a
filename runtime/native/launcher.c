// Steady-state launching of compiled kernels from Python.
//
// Python (ucutlass/runtime/launch.py) owns every decision and every error. It validates a call once
// and has this file remember the call's signature (element types, shapes, device and alignment of
// each tensor) with what the launch needs. A later call of the same signature is launched from
// here; anything else, be it a new shape or a mistake, goes to Python's `slow` with the same
// arguments. So this file decides only "seen and accepted before" and contains no rule of its own
// beyond what a signature leaves open: contiguity, requires_grad, overlap, host scalars.
#include "abi.h"

#include <stdlib.h>
#include <string.h>

// MAX_TENSORS: as many parameters as a program may have (ucutlass/limits.py), and results beside them.
// BUCKETS: a kernel that is called with every M up to some thousands still finds each plan in a step
// or two, at 32 KiB a kernel.
enum { MAX_TENSORS = 2112, MAX_SCALARS = 32, MAX_WORDS = 10560, BUCKETS = 4096, ALIGNMENT = 16 };

static char const CAPSULE[] = "ucutlass.launcher";

// The binary interface of emitted kernels (ucutlass/kernels/gemm/plan.py).
typedef int32_t (*Entry)(void* const* tensors, int64_t const* extents, double const* scalars,
                         int64_t const* launch_parameters, void* workspace, uint64_t* workspace_size,
                         void* stream);

// One kernel of a call.
typedef struct Step {
  Entry entry;
  int64_t* extents;
  int64_t* launch_parameters;
  int64_t* tensors;  // by the kernel's pointer: a position among the call's tensors, or -1 - offset
                     // into the workspace
  int64_t* scalars;  // by the kernel's scalar: a position among the call's, or -1 for `values`
  double* values;
  int64_t workspace;  // offset of the kernel's own, or -1
  int64_t* waits;     // events
  int tensor_count, scalar_count, wait_count, stream, records;  // records: an event, or -1
} Step;

// cuEventRecord and cuStreamWaitEvent.
typedef int32_t (*Record)(void* event, void* stream);
typedef int32_t (*Wait)(void* stream, void* event, uint32_t flags);

// The side streams and events beside one stream of the caller's.
typedef struct Branches {
  struct Branches* next;
  void** streams;  // by number; the first is the caller's
  void** events;
  Record record;
  Wait wait;
} Branches;

// How an accepted signature is launched. Immutable once published in a bucket, but for `branches`,
// which grow with the GIL held, and `calls`.
typedef struct Plan {
  struct Plan* next;
  uint64_t hash;
  size_t words;
  uint64_t* signature;
  Step* steps;
  int count, stream_count, start, join_count;  // start: the event that begins side streams, or -1
  int64_t* joins;       // stream and event in turns
  Branches* branches;
  PyObject* results;    // tuple of (args, kwargs) for `allocate`, one a result
  PyObject* workspace;  // (args, kwargs) for `allocate`, or NULL
  PyObject* device;     // (index,) for `exchange_device`
  PyObject* keep;       // owner of the entries
  PyObject* make_branches;  // from the caller's stream to what `add_branches` reads
  int64_t calls, asks;      // one of so many calls goes to Python, which may have another plan by then, or 0
} Plan;

typedef struct ScalarKind {
  char kind;  // 'f' number, 'i' integer, 'b' truth value
  int64_t low, high;
} ScalarKind;

typedef struct Launcher {
  DLPackExchangeAPI const* api;
  PyObject *tensor_type, *parameter_type, *float_type, *int_type, *bool_type;
  PyObject *slow, *fail, *allocate, *grad_enabled, *increment_version;
  PyObject* exchange_device;  // NULL where only one device can be current
  PyObject* result_type;      // NULL: one result, or a plain tuple
  PyObject *is_neg, *requires_grad;
  int32_t device_type;
  int params, results, scalars;
  ScalarKind kinds[MAX_TENSORS + MAX_SCALARS];  // by parameter; kind 0 for a tensor
  Plan* buckets[BUCKETS];
} Launcher;

// What one call brings: parameters first, then `out` tensors or the allocated results.
typedef struct Call {
  int inputs, tensors;
  int32_t device;
  size_t words;
  uint64_t signature[MAX_WORDS];
  void* pointers[MAX_TENSORS];
  uint64_t bytes[MAX_TENSORS];
  double scalars[MAX_SCALARS];
} Call;

static int is_type(PyObject* object, PyObject* type) {
  PyObject* type_of_object = PyObject_Type(object);
  Py_DecRef(type_of_object);
  return type_of_object == type;
}

// 1 true, 0 false, -1 with a Python error set. Steals `value`.
static int truth(PyObject* value) {
  if (!value) return -1;
  int const result = PyObject_IsTrue(value);
  Py_DecRef(value);
  return result;
}

// --- the signature of a call --------------------------------------------------------------------

// Appends one tensor; 0 where the call must go to Python.
static int add_tensor(Launcher const* self, Call* call, PyObject* object, int check_grad) {
  if (call->tensors == MAX_TENSORS) return 0;
  if (!is_type(object, self->tensor_type) && !is_type(object, self->parameter_type)) return 0;
  DLTensor t;
  if (self->api->dltensor_from_py_object_no_sync(object, &t) != 0) return 0;
  if (t.device.type != self->device_type) return 0;
  if (call->tensors == 0) call->device = t.device.id;
  if (t.device.id != call->device || call->words + 1 + (size_t)t.ndim > MAX_WORDS) return 0;

  uint64_t elements = 1;
  for (int i = t.ndim - 1; i >= 0; --i) {
    if (t.shape[i] != 1 && t.strides && (uint64_t)t.strides[i] != elements) return 0;
    elements *= (uint64_t)t.shape[i];
  }
  // Lazily negated views come from complex numbers, which have parts of these types alone.
  if (t.dtype.code == DL_FLOAT && truth(PyObject_CallFunctionObjArgs(self->is_neg, object, NULL)) != 0)
    return 0;
  if (check_grad && truth(PyObject_GetAttr(object, self->requires_grad)) != 0) return 0;

  uintptr_t const data = (uintptr_t)t.data + t.byte_offset;
  uint64_t* words = call->signature + call->words;
  words[0] = (uint64_t)t.dtype.code | (uint64_t)t.dtype.bits << 8 | (uint64_t)t.dtype.lanes << 16 |
             (uint64_t)t.ndim << 32 | (uint64_t)(data % ALIGNMENT == 0) << 48;
  for (int i = 0; i < t.ndim; ++i) words[1 + i] = (uint64_t)t.shape[i];
  call->words += 1 + (size_t)t.ndim;
  call->pointers[call->tensors] = (void*)data;
  call->bytes[call->tensors] = elements * ((uint64_t)t.dtype.bits * t.dtype.lanes / 8);
  call->tensors += 1;
  return 1;
}

static int read_scalar(Launcher const* self, ScalarKind kind, PyObject* object, double* value) {
  switch (kind.kind) {
    case 'f':
      if (!is_type(object, self->float_type) && !is_type(object, self->int_type)) return 0;
      *value = PyFloat_AsDouble(object);
      return *value != -1.0 || !PyErr_Occurred();
    case 'i': {
      if (!is_type(object, self->int_type)) return 0;
      long long const number = PyLong_AsLongLong(object);
      if (number == -1 && PyErr_Occurred()) return 0;
      *value = (double)number;
      return number >= kind.low && number <= kind.high;
    }
    default:
      if (!is_type(object, self->bool_type)) return 0;
      *value = (double)PyObject_IsTrue(object);
      return 1;
  }
}

static int add_outputs(Launcher const* self, Call* call, PyObject* out, int check_grad) {
  if (self->results == 1) return add_tensor(self, call, out, check_grad);
  for (int i = 0; i < self->results; ++i)
    if (!add_tensor(self, call, PyTuple_GetItem(out, i), check_grad)) return 0;
  return 1;
}

static uint64_t hash_words(uint64_t const* words, size_t count) {
  uint64_t hash = 0x9e3779b97f4a7c15u;
  for (size_t i = 0; i < count; ++i) {
    hash = (hash ^ words[i]) * 0xff51afd7ed558ccdu;
    hash ^= hash >> 32;
  }
  return hash;
}

static Plan* find(Launcher const* self, Call const* call) {
  uint64_t const hash = hash_words(call->signature, call->words);
  Plan* plan = __atomic_load_n(&self->buckets[hash % BUCKETS], __ATOMIC_ACQUIRE);
  for (; plan; plan = plan->next)
    if (plan->hash == hash && plan->words == call->words &&
        memcmp(plan->signature, call->signature, call->words * sizeof(uint64_t)) == 0)
      return plan;
  return NULL;
}

static int overlaps(Call const* call, int i, int j) {
  uintptr_t const a = (uintptr_t)call->pointers[i], b = (uintptr_t)call->pointers[j];
  return a < b + call->bytes[j] && b < a + call->bytes[i];
}

// Reads all arguments; 0 where the call must go to Python.
static int read_call(Launcher const* self, Call* call, PyObject* const* args, Py_ssize_t count,
                     PyObject* out) {
  if (count != self->params) return 0;
  if (out && self->results > 1 && PyTuple_Size(out) != self->results) return 0;
  int const grad = truth(PyObject_CallObject(self->grad_enabled, NULL));
  if (grad < 0) return 0;
  call->tensors = 0;
  call->device = 0;
  call->words = 1;
  int scalars = 0;
  for (int i = 0; i < self->params; ++i) {
    if (self->kinds[i].kind == 0) {
      if (!add_tensor(self, call, args[i], grad)) return 0;
    } else if (!read_scalar(self, self->kinds[i], args[i], &call->scalars[scalars++])) {
      return 0;
    }
  }
  call->inputs = call->tensors;
  if (out && !add_outputs(self, call, out, grad)) return 0;
  for (int i = call->inputs; i < call->tensors; ++i)
    for (int j = 0; j < i; ++j)
      if (overlaps(call, i, j)) return 0;
  call->signature[0] = (uint64_t)call->device;
  return 1;
}

// --- launching ----------------------------------------------------------------------------------

static PyObject* allocate(Launcher const* self, PyObject* arguments, void** pointer) {
  PyObject* keywords = PyTuple_GetItem(arguments, 1);
  PyObject* tensor = PyObject_Call(self->allocate, PyTuple_GetItem(arguments, 0),
                                   keywords == &_Py_NoneStruct ? NULL : keywords);
  if (!tensor) return NULL;
  DLTensor t;
  if (self->api->dltensor_from_py_object_no_sync(tensor, &t) != 0) {
    Py_DecRef(tensor);
    return NULL;
  }
  *pointer = (char*)t.data + t.byte_offset;
  return tensor;
}

// The result tensors as a tuple (new reference), their pointers after the inputs'.
static PyObject* allocate_results(Launcher const* self, Plan const* plan, Call* call) {
  PyObject* tensors = PyTuple_New(self->results);
  for (int i = 0; tensors && i < self->results; ++i) {
    PyObject* tensor =
        allocate(self, PyTuple_GetItem(plan->results, i), &call->pointers[call->inputs + i]);
    if (!tensor || PyTuple_SetItem(tensors, i, tensor) != 0) {
      Py_DecRef(tensors);
      return NULL;
    }
  }
  return tensors;
}

static int32_t run_step(Step const* step, Call const* call, char* workspace, void* stream) {
  void* tensors[MAX_TENSORS];
  double scalars[MAX_SCALARS];
  for (int i = 0; i < step->tensor_count; ++i) {
    int64_t const where = step->tensors[i];
    tensors[i] = where >= 0 ? call->pointers[where] : workspace + (-1 - where);
  }
  for (int i = 0; i < step->scalar_count; ++i)
    scalars[i] = step->scalars[i] >= 0 ? call->scalars[step->scalars[i]] : step->values[i];
  return step->entry(tensors, step->extents, scalars, step->launch_parameters,
                     step->workspace < 0 ? NULL : workspace + step->workspace, NULL, stream);
}

// Both launch all steps and return 0 or the code of what failed; `at` is then the step, or -1.
static int32_t run_in_line(Plan const* plan, Call const* call, char* workspace, void* stream, int* at) {
  int32_t code = 0;
  for (*at = 0; *at < plan->count; ++*at)
    if ((code = run_step(&plan->steps[*at], call, workspace, stream)) != 0) return code;
  return 0;
}

enum { CUDA = 1000, INVALID_CONTEXT = CUDA + 201 };  // ucutlass/kernels/gemm/plan.py; CUDA_ERROR_INVALID_CONTEXT (cuda.h)

static int32_t run_branches(Plan const* plan, Call const* call, char* workspace, Branches const* on,
                            int* at) {
  int32_t code = 0, status = 0;
  *at = -1;
  if (plan->start >= 0) status = on->record(on->events[plan->start], on->streams[0]);
  for (int i = 0; !code && !status && i < plan->count; ++i) {
    Step const* step = &plan->steps[i];
    void* const stream = on->streams[step->stream];
    for (int w = 0; !status && w < step->wait_count; ++w)
      status = on->wait(stream, on->events[step->waits[w]], 0);
    if (!status && (code = run_step(step, call, workspace, stream)) != 0) *at = i;
    if (!status && !code && step->records >= 0)
      status = on->record(on->events[step->records], stream);
  }
  // After a failure too: the workspace goes back to the caller's stream.
  for (int i = 0; i < plan->join_count; i += 2) {
    void* const event = on->events[plan->joins[i + 1]];
    int32_t joined = on->record(event, on->streams[plan->joins[i]]);
    if (!joined) joined = on->wait(on->streams[0], event, 0);
    if (!status) status = joined;
  }
  return code ? code : status ? CUDA + status : 0;
}

static int64_t integer(PyObject* tuple, Py_ssize_t i) {
  PyObject* item = PyTuple_GetItem(tuple, i);
  return item ? PyLong_AsLongLong(item) : 0;
}

static int64_t* integers(PyObject* tuple) {
  Py_ssize_t const count = PyTuple_Size(tuple);
  int64_t* values = (int64_t*)malloc(sizeof(int64_t) * (size_t)(count > 0 ? count : 1));
  for (Py_ssize_t i = 0; values && i < count; ++i) values[i] = integer(tuple, i);
  return values;
}

static void free_branches(Branches* branches) {
  free(branches->streams);
  free(branches->events);
  free(branches);
}

// What launch.py `_branches` gives: streams, events, and the driver's two functions. It binds a context to this thread
// where that has none.
static PyObject* describe_branches(Plan const* plan, void* stream) {
  PyObject* number = PyLong_FromLongLong((long long)(intptr_t)stream);
  PyObject* description = number ? PyObject_CallFunctionObjArgs(plan->make_branches, number, NULL) : NULL;
  if (number) Py_DecRef(number);
  return description;
}

static Branches* add_branches(Plan* plan, void* stream) {
  PyObject* description = describe_branches(plan, stream);
  if (!description) return NULL;
  Branches* branches = (Branches*)calloc(1, sizeof(Branches));
  if (branches) {
    // Handles are as wide as int64_t.
    branches->streams = (void**)integers(PyTuple_GetItem(description, 0));
    branches->events = (void**)integers(PyTuple_GetItem(description, 1));
    branches->record = (Record)(uintptr_t)integer(description, 2);
    branches->wait = (Wait)(uintptr_t)integer(description, 3);
  }
  Py_DecRef(description);
  if (!branches || !branches->streams || !branches->events || PyErr_Occurred()) {
    if (branches) free_branches(branches);
    return PyErr_Occurred() ? NULL : (Branches*)PyErr_NoMemory();
  }
  branches->next = plan->branches;
  plan->branches = branches;
  return branches;
}

static Branches* side_branches(Plan* plan, void* stream) {
  for (Branches* known = plan->branches; known; known = known->next)
    if (known->streams[0] == stream) return known;
  return add_branches(plan, stream);
}

// Launches on the current stream; 0, or -1 with a Python error set.
static int launch(Launcher const* self, Plan* plan, Call* call) {
  void *stream = NULL, *workspace = NULL;
  PyObject* scratch = NULL;
  Branches* branches = NULL;
  int32_t code;
  int at;
  if (self->api->current_work_stream(self->device_type, call->device, &stream) != 0) return -1;
  if (plan->stream_count > 1 && !(branches = side_branches(plan, stream))) return -1;
  if (plan->workspace && !(scratch = allocate(self, plan->workspace, &workspace))) return -1;
  if (branches) {
    // With the GIL: no other thread may record the events between this one's records and waits.
    code = run_branches(plan, call, (char*)workspace, branches, &at);
    if (code == INVALID_CONTEXT && at < 0) {
      // A thread that has launched nothing yet: its first event was refused, and nothing runs.
      PyObject* description = describe_branches(plan, stream);
      if (!description) {
        if (scratch) Py_DecRef(scratch);
        return -1;
      }
      Py_DecRef(description);
      code = run_branches(plan, call, (char*)workspace, branches, &at);
    }
  } else {
    // The driver may wait for room in its queue: other Python threads run meanwhile.
    PyThreadState* state = PyEval_SaveThread();
    code = run_in_line(plan, call, (char*)workspace, stream, &at);
    PyEval_RestoreThread(state);
  }
  if (scratch) Py_DecRef(scratch);
  if (code == 0) return 0;
  PyObject* number = PyLong_FromLong(code);
  PyObject* step = PyLong_FromLong(at);
  PyObject* raised =
      number && step ? PyObject_CallFunctionObjArgs(self->fail, number, step, plan->keep, NULL) : NULL;
  if (number) Py_DecRef(number);
  if (step) Py_DecRef(step);
  if (raised) Py_DecRef(raised);
  return -1;
}

// The results as the caller gets them. Steals `tensors`.
static PyObject* wrap(Launcher const* self, PyObject* tensors) {
  if (self->results > 1 && !self->result_type) return tensors;
  PyObject* value;
  if (self->results == 1) {
    value = PyTuple_GetItem(tensors, 0);
    Py_IncRef(value);
  } else {
    value = PyObject_CallFunctionObjArgs(self->result_type, tensors, NULL);
  }
  Py_DecRef(tensors);
  return value;
}

static PyObject* given_outputs(Launcher const* self, PyObject* out) {
  if (self->results > 1) {
    Py_IncRef(out);
    return out;
  }
  PyObject* tensors = PyTuple_New(1);
  if (!tensors) return NULL;
  Py_IncRef(out);
  PyTuple_SetItem(tensors, 0, out);
  return tensors;
}

static PyObject* run(Launcher const* self, Plan* plan, Call* call, PyObject* out) {
  PyObject* tensors = out ? given_outputs(self, out) : allocate_results(self, plan, call);
  if (!tensors) return NULL;
  if (launch(self, plan, call) != 0) {
    Py_DecRef(tensors);
    return NULL;
  }
  if (out) {  // autograd must notice that these were overwritten
    PyObject* done = PyObject_CallFunctionObjArgs(self->increment_version, tensors, NULL);
    if (!done) {
      Py_DecRef(tensors);
      return NULL;
    }
    Py_DecRef(done);
  }
  return wrap(self, tensors);
}

// Runs with the tensors' device current, as torch's own functions do.
static PyObject* run_on_device(Launcher const* self, Plan* plan, Call* call, PyObject* out) {
  if (!self->exchange_device) return run(self, plan, call, out);
  PyObject* previous = PyObject_CallObject(self->exchange_device, plan->device);
  if (!previous) return NULL;
  if (PyLong_AsLong(previous) == call->device) {
    Py_DecRef(previous);
    return run(self, plan, call, out);
  }
  PyObject* value = run(self, plan, call, out);
  // An error that `run` raised must survive the call that restores the device.
  PyObject *type = NULL, *error = NULL, *trace = NULL;
  PyErr_Fetch(&type, &error, &trace);
  PyObject* restored = PyObject_CallFunctionObjArgs(self->exchange_device, previous, NULL);
  Py_DecRef(previous);
  if (restored) Py_DecRef(restored);
  if (type) PyErr_Restore(type, error, trace);
  if (!restored && value) {
    Py_DecRef(value);
    return NULL;
  }
  return value;
}

// --- the interface to ucutlass/runtime/launch.py ------------------------------------------------

// slow(launcher, *args, **keywords): validates and launches in Python, or raises.
static PyObject* go_slow(Launcher const* self, PyObject* capsule, PyObject* const* args,
                         Py_ssize_t count, PyObject* names) {
  PyErr_Clear();
  PyObject* positional = PyTuple_New(count + 1);
  PyObject* keywords = PyDict_New();
  PyObject* value = NULL;
  if (positional && keywords) {
    Py_IncRef(capsule);
    PyTuple_SetItem(positional, 0, capsule);
    for (Py_ssize_t i = 0; i < count; ++i) {
      Py_IncRef(args[i]);
      PyTuple_SetItem(positional, i + 1, args[i]);
    }
    Py_ssize_t const named = names ? PyTuple_Size(names) : 0;
    int failed = 0;
    for (Py_ssize_t i = 0; i < named; ++i)
      failed |= PyDict_SetItem(keywords, PyTuple_GetItem(names, i), args[count + i]);
    if (!failed) value = PyObject_Call(self->slow, positional, keywords);
  }
  if (positional) Py_DecRef(positional);
  if (keywords) Py_DecRef(keywords);
  return value;
}

static PyObject* call_launcher(PyObject* capsule, PyObject* const* args, Py_ssize_t count,
                               PyObject* names) {
  Launcher const* self = (Launcher const*)PyCapsule_GetPointer(capsule, CAPSULE);
  if (!self) return NULL;
  PyObject* out = NULL;
  Py_ssize_t const named = names ? PyTuple_Size(names) : 0;
  if (named > 0) {
    if (named > 1 || PyUnicode_CompareWithASCIIString(PyTuple_GetItem(names, 0), "out") != 0)
      return go_slow(self, capsule, args, count, names);
    out = args[count] == &_Py_NoneStruct ? NULL : args[count];
  }
  Call call;
  if (!read_call(self, &call, args, count, out)) return go_slow(self, capsule, args, count, names);
  Plan* plan = find(self, &call);
  if (!plan || (plan->asks && ++plan->calls % plan->asks == 0))
    return go_slow(self, capsule, args, count, names);
  return run_on_device(self, plan, &call, out);
}

static PyMethodDef CALL = {"launch", (PyCFunction)(void (*)(void))call_launcher,
                           METH_FASTCALL | METH_KEYWORDS, "Launch a compiled kernel."};

static void release(PyObject** objects, size_t count) {
  for (size_t i = 0; i < count; ++i)
    if (objects[i]) Py_DecRef(objects[i]);
}

static void free_plan(Plan* plan) {
  PyObject* held[] = {plan->results, plan->workspace, plan->device, plan->keep, plan->make_branches};
  release(held, sizeof held / sizeof held[0]);
  for (int i = 0; plan->steps && i < plan->count; ++i) {
    Step* step = &plan->steps[i];
    int64_t* owned[] = {step->extents, step->launch_parameters, step->tensors, step->scalars, step->waits};
    for (size_t j = 0; j < sizeof owned / sizeof owned[0]; ++j) free(owned[j]);
    free(step->values);
  }
  for (Branches *branches = plan->branches, *next; branches; branches = next) {
    next = branches->next;
    free_branches(branches);
  }
  free(plan->steps);
  free(plan->joins);
  free(plan->signature);
  free(plan);
}

static void free_launcher(PyObject* capsule) {
  Launcher* self = (Launcher*)PyCapsule_GetPointer(capsule, CAPSULE);
  if (!self) return;
  for (int i = 0; i < BUCKETS; ++i)
    for (Plan *plan = self->buckets[i], *next; plan; plan = next) {
      next = plan->next;
      free_plan(plan);
    }
  PyObject* held[] = {self->tensor_type,     self->parameter_type, self->float_type,
                      self->int_type,        self->bool_type,      self->slow,
                      self->fail,            self->allocate,       self->grad_enabled,
                      self->increment_version, self->exchange_device, self->result_type,
                      self->is_neg,          self->requires_grad};
  release(held, sizeof held / sizeof held[0]);
  free(self);
}

// A new reference to item `i`, NULL for None.
static PyObject* take(PyObject* tuple, Py_ssize_t i) {
  PyObject* item = PyTuple_GetItem(tuple, i);
  if (!item || item == &_Py_NoneStruct) return NULL;
  Py_IncRef(item);
  return item;
}

static void read_kinds(Launcher* self, PyObject* kinds) {
  self->params = (int)PyTuple_Size(kinds);
  int const most = MAX_TENSORS + MAX_SCALARS;
  for (int i = 0; i < self->params && i < most; ++i) {
    PyObject* kind = PyTuple_GetItem(kinds, i);
    self->kinds[i].kind = (char)integer(kind, 0);
    self->kinds[i].low = integer(kind, 1);
    self->kinds[i].high = integer(kind, 2);
    self->scalars += self->kinds[i].kind != 0;
  }
}

// The callable that launches. `config` is built by launch.py `_native_config`, in this order.
PyObject* ucutlass_launcher_new(PyObject* config) {
  Launcher* self = (Launcher*)calloc(1, sizeof(Launcher));
  if (!self) return PyErr_NoMemory();
  PyObject** const fields[] = {&self->tensor_type,  &self->parameter_type,    &self->float_type,
                               &self->int_type,     &self->bool_type,         &self->slow,
                               &self->fail,         &self->allocate,          &self->grad_enabled,
                               &self->increment_version, &self->exchange_device, &self->result_type,
                               &self->is_neg};
  Py_ssize_t const count = sizeof fields / sizeof fields[0];
  for (Py_ssize_t i = 0; i < count; ++i) *fields[i] = take(config, i);
  self->requires_grad = PyUnicode_InternFromString("requires_grad");
  PyObject* capsule = PyCapsule_New(self, CAPSULE, free_launcher);
  if (!capsule) return NULL;
  self->api = (DLPackExchangeAPI const*)PyCapsule_GetPointer(PyTuple_GetItem(config, count),
                                                             "dlpack_exchange_api");
  self->device_type = (int32_t)integer(config, count + 1);
  self->results = (int)integer(config, count + 2);
  read_kinds(self, PyTuple_GetItem(config, count + 3));
  int const tensors = self->params - self->scalars + self->results;
  if (!PyErr_Occurred() && (self->api->version.major != 1 ||
                            !self->api->dltensor_from_py_object_no_sync ||
                            tensors > MAX_TENSORS || self->scalars > MAX_SCALARS))
    PyErr_SetString(PyExc_ValueError,
                    "needs DLPack 1.x with borrowed tensors, at most 2112 tensors and 32 scalars");
  PyObject* function = PyErr_Occurred() ? NULL : PyCFunction_NewEx(&CALL, capsule, NULL);
  Py_DecRef(capsule);
  return function;
}

static double* numbers(PyObject* tuple) {
  Py_ssize_t const count = PyTuple_Size(tuple);
  double* values = (double*)malloc(sizeof(double) * (size_t)(count > 0 ? count : 1));
  for (Py_ssize_t i = 0; values && i < count; ++i) values[i] = PyFloat_AsDouble(PyTuple_GetItem(tuple, i));
  return values;
}

// (entry address, extents, launch parameters, tensors, scalars, values, workspace, stream, waits, records), as
// launch_sequence.py `native_steps` makes them.
static int read_step(Step* step, PyObject* description) {
  if (!description) return 0;
  step->entry = (Entry)(uintptr_t)integer(description, 0);
  step->extents = integers(PyTuple_GetItem(description, 1));
  step->launch_parameters = integers(PyTuple_GetItem(description, 2));
  step->tensors = integers(PyTuple_GetItem(description, 3));
  step->scalars = integers(PyTuple_GetItem(description, 4));
  step->values = numbers(PyTuple_GetItem(description, 5));
  step->workspace = integer(description, 6);
  step->stream = (int)integer(description, 7);
  step->waits = integers(PyTuple_GetItem(description, 8));
  step->records = (int)integer(description, 9);
  step->tensor_count = (int)PyTuple_Size(PyTuple_GetItem(description, 3));
  step->scalar_count = (int)PyTuple_Size(PyTuple_GetItem(description, 4));
  step->wait_count = (int)PyTuple_Size(PyTuple_GetItem(description, 8));
  return step->entry && step->extents && step->launch_parameters && step->tensors && step->scalars &&
         step->values && step->waits && step->tensor_count <= MAX_TENSORS &&
         step->scalar_count <= MAX_SCALARS && !PyErr_Occurred();
}

static int read_steps(Plan* plan, PyObject* description) {
  plan->count = (int)PyTuple_Size(description);
  plan->steps = (Step*)calloc((size_t)(plan->count > 0 ? plan->count : 1), sizeof(Step));
  if (!plan->steps) return 0;
  for (int i = 0; i < plan->count; ++i)
    if (!read_step(&plan->steps[i], PyTuple_GetItem(description, i))) return 0;
  return 1;
}

static int is_complete(Plan const* plan) {
  return plan->signature && plan->joins && plan->results && plan->device && plan->keep &&
         plan->make_branches && !PyErr_Occurred();
}

// Remembers the signature of an accepted call with `plan`: (steps, results, workspace or None,
// (device index,), owner of the entries, stream count, start, joins, maker of branches, calls after which
// Python is asked again or 0). Such a plan is found no more once one for good is remembered. Returns whether
// it did: a call that only Python can take (a tensor subclass, say) is left to Python.
int ucutlass_launcher_remember(PyObject* capsule, PyObject* args, PyObject* out, PyObject* description) {
  Launcher* self = (Launcher*)PyCapsule_GetPointer(capsule, CAPSULE);
  Py_ssize_t const count = PyTuple_Size(args);
  if (!self || count > MAX_TENSORS + MAX_SCALARS) return 0;
  PyObject* borrowed[MAX_TENSORS + MAX_SCALARS];
  for (Py_ssize_t i = 0; i < count; ++i) borrowed[i] = PyTuple_GetItem(args, i);
  Call call;
  if (!read_call(self, &call, borrowed, count, out == &_Py_NoneStruct ? NULL : out)) {
    PyErr_Clear();
    return 0;
  }
  int64_t const asks = integer(description, 9);
  Plan const* known = find(self, &call);
  if (known && (!known->asks || asks)) return 1;
  Plan* plan = (Plan*)calloc(1, sizeof(Plan));
  if (!plan) return 0;
  int const read = read_steps(plan, PyTuple_GetItem(description, 0));
  plan->results = take(description, 1);
  plan->workspace = take(description, 2);
  plan->device = take(description, 3);
  plan->keep = take(description, 4);
  plan->stream_count = (int)integer(description, 5);
  plan->start = (int)integer(description, 6);
  plan->joins = integers(PyTuple_GetItem(description, 7));
  plan->join_count = (int)PyTuple_Size(PyTuple_GetItem(description, 7));
  plan->make_branches = take(description, 8);
  plan->asks = asks;
  plan->words = call.words;
  plan->hash = hash_words(call.signature, call.words);
  plan->signature = (uint64_t*)malloc(call.words * sizeof(uint64_t));
  if (!read || !is_complete(plan)) {
    free_plan(plan);
    return 0;
  }
  memcpy(plan->signature, call.signature, call.words * sizeof(uint64_t));
  Plan** const bucket = &self->buckets[plan->hash % BUCKETS];
  plan->next = __atomic_load_n(bucket, __ATOMIC_ACQUIRE);
  while (!__atomic_compare_exchange_n(bucket, &plan->next, plan, 0, __ATOMIC_RELEASE, __ATOMIC_ACQUIRE)) {
  }
  return 1;
}
