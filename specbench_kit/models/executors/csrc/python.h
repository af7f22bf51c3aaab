// Between Python's objects and numbers.
#pragma once
#include <Python.h>

#include <algorithm>
#include <cstdint>
#include <new>
#include <vector>

namespace skit {

// A Python error is set.
struct Raised {};

// Becomes a ValueError.
struct Refused {
  const char* asked_for;
  explicit Refused(const char* asked_for) : asked_for(asked_for) {}
};

// Runs what Python has called, and turns what it throws into Python's errors.
template <class Work>
PyObject* guarded(Work&& work) {
  try {
    return work();
  } catch (const Raised&) {
  } catch (const Refused& refused) {
    PyErr_SetString(PyExc_ValueError, refused.asked_for);
  } catch (...) {
    PyErr_SetString(PyExc_ValueError, "more memory than there is");
  }
  return nullptr;
}

// One beyond 32 bits becomes the nearest within, which no check lets pass.
inline int32_t number(PyObject* from) {
  int overflow;
  const long long value = PyLong_AsLongLongAndOverflow(from, &overflow);
  if (value == -1 && PyErr_Occurred()) throw Raised();
  if (overflow) return overflow > 0 ? INT32_MAX : INT32_MIN;
  return int32_t(std::clamp<long long>(value, INT32_MIN, INT32_MAX));
}

inline double real(PyObject* from) {
  const double value = PyFloat_AsDouble(from);
  if (value == -1 && PyErr_Occurred()) throw Raised();
  return value;
}

// Any sequence.
class List {
 public:
  explicit List(PyObject* from) : items_(PySequence_Fast(from, "a sequence is needed")) {
    if (!items_) throw Raised();
  }
  List(const List&) = delete;
  ~List() { Py_DECREF(items_); }
  int size() const { return int(PySequence_Fast_GET_SIZE(items_)); }
  PyObject* operator[](int place) const { return PySequence_Fast_GET_ITEM(items_, place); }

 private:
  PyObject* items_;
};

inline std::vector<int32_t> numbers(PyObject* from) {
  const List list(from);
  std::vector<int32_t> found(list.size());
  for (int i = 0; i < list.size(); i++) found[i] = number(list[i]);
  return found;
}

inline std::vector<float> reals(PyObject* from) {
  const List list(from);
  std::vector<float> found(list.size());
  for (int i = 0; i < list.size(); i++) found[i] = float(real(list[i]));
  return found;
}

// The arguments of a call.
struct Arguments {
  PyObject* const* given;
  PyObject* operator[](int place) const { return given[place]; }
  int32_t number(int place) const { return skit::number(given[place]); }
  double real(int place) const { return skit::real(given[place]); }
  void* address(int place) const {
    if (given[place] == Py_None) return nullptr;
    void* found = PyLong_AsVoidPtr(given[place]);
    if (!found && PyErr_Occurred()) throw Raised();
    return found;
  }
};

inline Arguments arguments(PyObject* const* given, Py_ssize_t count, Py_ssize_t wanted) {
  if (count != wanted) throw Refused("another number of arguments");
  return {given};
}

// Something that Python lends as bytes.
class Bytes {
 public:
  explicit Bytes(PyObject* from) {
    if (PyObject_GetBuffer(from, &view_, PyBUF_SIMPLE)) throw Raised();
  }
  Bytes(const Bytes&) = delete;
  ~Bytes() { PyBuffer_Release(&view_); }
  const void* data(size_t least) const {
    if (size_t(view_.len) < least) throw Refused("a structure of another size");
    return view_.buf;
  }

 private:
  Py_buffer view_;
};

// A list or tuple that is being filled.
class Made {
 public:
  explicit Made(PyObject* made) : made_(made) {
    if (!made_) throw Raised();
  }
  Made(const Made&) = delete;
  ~Made() { Py_XDECREF(made_); }
  void put(Py_ssize_t place, PyObject* item) {
    if (!item) throw Raised();
    if (PyList_Check(made_)) PyList_SET_ITEM(made_, place, item);
    else PyTuple_SET_ITEM(made_, place, item);
  }
  PyObject* give() { return std::exchange(made_, nullptr); }

 private:
  PyObject* made_;
};

// Other threads of Python may run for as long as it is there.
class WithoutPython {
 public:
  WithoutPython() : state_(PyEval_SaveThread()) {}
  WithoutPython(const WithoutPython&) = delete;
  ~WithoutPython() { PyEval_RestoreThread(state_); }

 private:
  PyThreadState* state_;
};

}  // namespace skit
