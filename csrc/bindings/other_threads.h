#pragma once

namespace gpushare {

// Whether all other threads of Python wait. The caller has the GIL, and until it gives it away, no
// other thread enters a function of PyTorch. A thread inside of such a function without the GIL
// runs, or waits for threads without Python, as in a backward; its stack tells which. While a
// thread runs, this function waits at most `milliseconds`: most threads soon end their function and
// then wait for the GIL.
//
// Not detected: a thread that waits in third-party C code and then uses a GPU before it asks for
// the GIL. Always false on systems that do not report the states of threads.
bool others_wait(int milliseconds = 0);

}  // namespace gpushare
