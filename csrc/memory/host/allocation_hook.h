#pragma once
#include <string>
#include <vector>

#include "memory/host/allocation_counter.h"
#include "memory/host/pager.h"
#include "memory/lane/lane.h"

namespace gpushare {

// PyTorch allocates and frees the storages of CPU tensors in libc10.so alone, by posix_memalign and
// free. The hook stays in those imports for good, since a block that it counted may be freed at any
// time. It says where a block goes, to the lane or to libc, and counts both. Returns an empty
// string, or the sentence that says why it is impossible. Idempotent.
[[nodiscard]] std::string install_allocation_hook();

// The bytes that the hook has counted, without the untouched part of large blocks. The second
// function now and then measures these blocks, so call it at boundaries only.
Usage touched_usage();
Usage take_touched_peak();

// Counts a block that was allocated before the hook was installed.
void adopt_block(const void* address, size_t bytes);

// The lane of this process, on the device `host`; alive until the process ends.
Lane& lane();

// Pages the counted blocks out and in; the hook tells it of each that is freed.
Pager& pager();

// Gives the memory of freed blocks that libc keeps back to the system: it may be hundreds of
// megabytes.
void return_free_memory();

// An iteration gets its memory from libc, outside of the lane.
void note_iteration_outside();
// Calls `return_free_memory`, which takes 10 to 50 ms, if an iteration was outside since this was
// last called.
void return_memory_of_iterations();

// Appends the counted blocks that are large enough to be paged out: a source for the pager.
void list_blocks(std::vector<Range>& ranges);

}  // namespace gpushare
