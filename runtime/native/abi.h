// The two binary interfaces that the launcher stands on, declared here so that it builds with a
// bare C compiler, once for every Python and torch version: no Python.h, no torch headers.
//
//  - CPython's stable ABI, as of 3.10 (https://docs.python.org/3/c-api/stable.html); every object
//    stays opaque, so free-threaded builds fit too.
//  - DLPack 1.x and its exchange table, which torch.Tensor carries as __dlpack_c_exchange_api__
//    (https://github.com/dmlc/dlpack, include/dlpack/dlpack.h).
#pragma once

#include <stddef.h>
#include <stdint.h>

// --- CPython ------------------------------------------------------------------------------------

typedef struct _object PyObject;
typedef struct _ts PyThreadState;
typedef ptrdiff_t Py_ssize_t;
typedef PyObject* (*PyCFunction)(PyObject*, PyObject*);
typedef struct PyMethodDef {
  char const* name;
  PyCFunction function;
  int flags;
  char const* doc;
} PyMethodDef;
enum { METH_KEYWORDS = 0x0002, METH_FASTCALL = 0x0080 };

extern PyObject _Py_NoneStruct;
extern PyObject* PyExc_ValueError;

void Py_IncRef(PyObject*);
void Py_DecRef(PyObject*);
PyObject* PyObject_Type(PyObject*);
PyObject* PyObject_GetAttr(PyObject*, PyObject*);
PyObject* PyObject_Call(PyObject*, PyObject*, PyObject*);
PyObject* PyObject_CallObject(PyObject*, PyObject*);
PyObject* PyObject_CallFunctionObjArgs(PyObject*, ...);
int PyObject_IsTrue(PyObject*);
PyObject* PyTuple_New(Py_ssize_t);
Py_ssize_t PyTuple_Size(PyObject*);
PyObject* PyTuple_GetItem(PyObject*, Py_ssize_t);
int PyTuple_SetItem(PyObject*, Py_ssize_t, PyObject*);
PyObject* PyDict_New(void);
int PyDict_SetItem(PyObject*, PyObject*, PyObject*);
PyObject* PyLong_FromLong(long);
PyObject* PyLong_FromLongLong(long long);
long PyLong_AsLong(PyObject*);
long long PyLong_AsLongLong(PyObject*);
double PyFloat_AsDouble(PyObject*);
PyObject* PyUnicode_InternFromString(char const*);
int PyUnicode_CompareWithASCIIString(PyObject*, char const*);
PyObject* PyCapsule_New(void*, char const*, void (*)(PyObject*));
void* PyCapsule_GetPointer(PyObject*, char const*);
PyObject* PyCFunction_NewEx(PyMethodDef*, PyObject*, PyObject*);
PyObject* PyErr_Occurred(void);
void PyErr_Clear(void);
void PyErr_Fetch(PyObject**, PyObject**, PyObject**);
void PyErr_Restore(PyObject*, PyObject*, PyObject*);
void PyErr_SetString(PyObject*, char const*);
PyObject* PyErr_NoMemory(void);
PyThreadState* PyEval_SaveThread(void);
void PyEval_RestoreThread(PyThreadState*);

// --- DLPack -------------------------------------------------------------------------------------

enum { DL_FLOAT = 2 };  // DLDataTypeCode of IEEE floats; bfloat16 and the 8-bit floats have their own

typedef struct DLDevice {
  int32_t type;
  int32_t id;
} DLDevice;

typedef struct DLTensor {
  void* data;
  DLDevice device;
  int32_t ndim;
  struct {
    uint8_t code;
    uint8_t bits;
    uint16_t lanes;
  } dtype;
  int64_t* shape;
  int64_t* strides;
  uint64_t byte_offset;
} DLTensor;

typedef struct DLPackExchangeAPI {
  struct {
    uint32_t major;
    uint32_t minor;
  } version;
  struct DLPackExchangeAPI* previous;
  void* managed_tensor_allocator;
  void* managed_tensor_from_py_object_no_sync;
  void* managed_tensor_to_py_object_no_sync;
  int (*dltensor_from_py_object_no_sync)(void* object, DLTensor* out);
  int (*current_work_stream)(int32_t device_type, int32_t device_id, void** stream);
} DLPackExchangeAPI;
