// Conversions between Python's objects and numbers.
#pragma once
#include <Python.h>

#include <algorithm>
#include <cstdint>
#include <new>
#include <utility>
#include <vector>

#include "invalid.h"

namespace skit {

// Thrown where a Python error is set already.
struct PythonError {};

// Runs `work`, which Python called, and turns what it throws into Python's errors.
template <class Work>
PyObject* guarded(Work&& work) {
  try {
    return work();
  } catch (const PythonError&) {
  } catch (const InvalidArgument& error) {
    PyErr_SetString(PyExc_ValueError, error.message);
  } catch (...) {
    PyErr_SetString(PyExc_ValueError, "more memory than there is");
  }
  return nullptr;
}

// Returns the number; one beyond 32 bits becomes the nearest that fits, which no later check accepts.
inline int32_t number(PyObject* object) {
  int overflow;
  const long long value = PyLong_AsLongLongAndOverflow(object, &overflow);
  if (value == -1 && PyErr_Occurred()) throw PythonError();
  if (overflow) return overflow > 0 ? INT32_MAX : INT32_MIN;
  return int32_t(std::clamp<long long>(value, INT32_MIN, INT32_MAX));
}

inline double real(PyObject* object) {
  const double value = PyFloat_AsDouble(object);
  if (value == -1 && PyErr_Occurred()) throw PythonError();
  return value;
}

// A borrowed view of any Python sequence.
class List {
 public:
  explicit List(PyObject* object) : items_(PySequence_Fast(object, "a sequence is needed")) {
    if (!items_) throw PythonError();
  }
  List(const List&) = delete;
  ~List() { Py_DECREF(items_); }
  int size() const { return int(PySequence_Fast_GET_SIZE(items_)); }
  PyObject* operator[](int index) const { return PySequence_Fast_GET_ITEM(items_, index); }

 private:
  PyObject* items_;
};

inline std::vector<int32_t> numbers(PyObject* object) {
  const List list(object);
  std::vector<int32_t> values(size_t(list.size()));
  for (int i = 0; i < list.size(); i++) values[size_t(i)] = number(list[i]);
  return values;
}

inline std::vector<float> reals(PyObject* object) {
  const List list(object);
  std::vector<float> values(size_t(list.size()));
  for (int i = 0; i < list.size(); i++) values[size_t(i)] = float(real(list[i]));
  return values;
}

// The arguments of a call.
struct Arguments {
  PyObject* const* values;
  PyObject* operator[](int index) const { return values[index]; }
  int32_t number(int index) const { return skit::number(values[index]); }
  double real(int index) const { return skit::real(values[index]); }
  // Returns the address that Python gave as a number; None is the null pointer.
  void* address(int index) const {
    if (values[index] == Py_None) return nullptr;
    void* pointer = PyLong_AsVoidPtr(values[index]);
    if (!pointer && PyErr_Occurred()) throw PythonError();
    return pointer;
  }
};

inline Arguments arguments(PyObject* const* values, Py_ssize_t count, Py_ssize_t expected) {
  if (count != expected) throw InvalidArgument{"another number of arguments"};
  return {values};
}

// A buffer that Python lends.
class Bytes {
 public:
  explicit Bytes(PyObject* object) {
    if (PyObject_GetBuffer(object, &view_, PyBUF_SIMPLE)) throw PythonError();
  }
  Bytes(const Bytes&) = delete;
  ~Bytes() { PyBuffer_Release(&view_); }
  const void* data(size_t least) const {
    if (size_t(view_.len) < least) throw InvalidArgument{"a structure of another size"};
    return view_.buf;
  }

 private:
  Py_buffer view_;
};

// Owns one reference to a list or tuple while it is filled, so that an error on the way frees it.
class OwnedRef {
 public:
  explicit OwnedRef(PyObject* object) : object_(object) {
    if (!object_) throw PythonError();
  }
  OwnedRef(const OwnedRef&) = delete;
  ~OwnedRef() { Py_XDECREF(object_); }
  void set(Py_ssize_t index, PyObject* item) {
    if (!item) throw PythonError();
    if (PyList_Check(object_)) PyList_SET_ITEM(object_, index, item);
    else PyTuple_SET_ITEM(object_, index, item);
  }
  PyObject* release() { return std::exchange(object_, nullptr); }

 private:
  PyObject* object_;
};

// Releases Python's global lock for as long as it lives, so that other threads of Python may run.
class WithoutGil {
 public:
  WithoutGil() : state_(PyEval_SaveThread()) {}
  WithoutGil(const WithoutGil&) = delete;
  ~WithoutGil() { PyEval_RestoreThread(state_); }

 private:
  PyThreadState* state_;
};

}  // namespace skit
