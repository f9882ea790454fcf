#pragma once
#include <pybind11/pybind11.h>

#include <vector>

namespace gpushare {

// The code on the stack of a thread, the innermost first.
struct Stack {
  unsigned long thread;  // as Python identifies it
  std::vector<pybind11::object> code;
};

// The stacks of all threads of Python.
//
// CPython up to 3.11 makes frame objects on demand, even while it holds the lock of its list of
// threads (python/cpython#106883). A garbage collection that begins meanwhile may run code that
// waits for the GIL, while the thread that has the GIL waits for this lock: a deadlock. Also, a
// thread that returns from a frame with further references has to move the frame, which is the
// probable cause of a crash of CPython 3.11. So no collection begins here, the GIL is kept, and no
// frame is referred to afterwards.
std::vector<Stack> stacks();

}  // namespace gpushare
