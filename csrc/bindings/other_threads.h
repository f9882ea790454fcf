#pragma once

namespace gpushare {

// Whether all other threads of Python wait. The caller has the GIL, and until it gives it away, no
// other thread enters a function of PyTorch. A thread that is inside of one without the GIL runs,
// or waits for threads without Python, as in a backward; its stack tells which. While a thread
// runs, this waits at most `milliseconds`: most threads soon end their function and then wait for
// the GIL.
//
// A thread that waits in C code of others and then uses a GPU before it asks for the GIL is not
// seen. Always false where the system does not tell what threads do.
bool others_wait(int milliseconds = 0);

}  // namespace gpushare
