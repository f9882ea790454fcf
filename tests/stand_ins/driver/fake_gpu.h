#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

// The GPUs below the fake driver: memory, which is a memfd each at real addresses, and streams,
// whose work is functions of the host. The driver and tests/stand_ins/cuda are made of it. A device
// is a number among those that this process sees.
//
// What the environment says of them:
//   FAKE_CUDA_COUNT    how many the host has (1)
//   FAKE_CUDA_BYTES    capacity of each (1 GiB)
//   FAKE_CUDA_HOST     a name: capacity is one for all processes that have it
//   CUDA_VISIBLE_DEVICES  which of them this process sees, as CUDA reads it
//   FAKE_CUDA_LAZY=1   work is done as late as CUDA may do it: when a thread waits for it. It then
//                      meets memory as it is by that time
namespace fake_gpu {

using Address = unsigned long long;
using Handle = unsigned long long;

// Codes of cuda.h, which the runtime has as well.
constexpr int kSuccess = 0;
constexpr int kInvalidValue = 1;
constexpr int kOutOfMemory = 2;
constexpr int kNotInitialized = 3;
constexpr int kNoDevice = 100;
constexpr int kInvalidDevice = 101;
constexpr int kInvalidContext = 201;
constexpr int kNotFound = 500;
constexpr int kIllegalAddress = 700;
constexpr int kNotSupported = 801;

constexpr size_t kGranularity = size_t{2} << 20;

// Has a descriptor of its own as long as a handle or a mapping refers to it.
struct Memory {
  int file;
  size_t bytes;
  bool is_shareable;
  int device;

  Memory(int file, size_t bytes, bool is_shareable, int device)
      : file(file), bytes(bytes), is_shareable(is_shareable), device(device) {}
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
  ~Memory();
};

struct Mapping {
  std::shared_ptr<Memory> memory;
  bool is_accessible = false;
  bool is_plain = false;  // made by cuMemAlloc, which reserves and maps at once
};

using Mappings = std::map<Address, Mapping>;

struct Gpu {
  int number;  // among all of the host
  size_t capacity;
};

// Everything of this process on its GPUs, and its lock. The lock is recursive: work is done while
// it is held, and looks at memory.
struct Gpus {
  std::recursive_mutex mutex;
  std::vector<Gpu> visible;  // none before `find`
  int broken = kSuccess;     // an error that stays, as after an illegal address
  std::map<Address, size_t> reservations;
  Mappings mappings;
  std::map<Handle, std::shared_ptr<Memory>> handles;
  Handle last_handle = 0;
  std::map<Address, size_t> pinned;  // memory of the host
};
Gpus& gpus();
using Lock = std::lock_guard<std::recursive_mutex>;

// --- devices; the callers hold the lock

void find();  // the GPUs that this process sees from now on
bool is_there(int device);
std::array<unsigned char, 16> uuid_of(int number);
int current_device();  // of this thread
void set_current_device(int device);

// --- memory; the callers hold the lock

size_t used_bytes(int device);  // of this process, or of all that share the capacity
std::shared_ptr<Memory> create(size_t bytes, bool is_shareable, int device);  // null: no room
std::shared_ptr<Memory> imported(int descriptor);  // null: it is none of these GPUs'
Handle add_handle(std::shared_ptr<Memory> memory);
Address reserve(size_t bytes, size_t alignment);  // 0: there are no addresses
void unreserve(Address address, size_t bytes);    // all that `reserve` gave
bool is_reserved(Address begin, size_t bytes);
bool is_mapped(Address begin, size_t bytes);  // any byte of it
bool map(Address address, std::shared_ptr<Memory> memory, bool is_plain);
void allow(const Mappings::iterator& mapping);
void unmap(const std::vector<Mappings::iterator>& mappings);
// Those that tile the range exactly; none if it is not made of whole ones.
std::vector<Mappings::iterator> whole_mappings(Address begin, size_t bytes);
Mappings::iterator mapping_at(Address address);

// --- looks at memory, and copies

bool is_device(const void* address);
int device_of(const void* address);  // that has what is mapped there
bool is_accessible(const void* address, size_t bytes);
bool is_pinned(const void* address);
int copy(void* to, const void* from, size_t bytes);  // kIllegalAddress: it meets unmapped memory
int fill(void* to, const void* element, size_t element_bytes, size_t count);

// --- work

using Work = std::function<int()>;  // returns a code

struct Stream;

// A place in a stream: after the work that was submitted before it.
struct Event {
  Stream* stream = nullptr;
  uint64_t number = 0;
  double seconds = 0;
};

// Null, and what CUDA has as constants, is the default stream of the current device.
Stream* new_stream(int priority);
void end_stream(Stream* stream);
int priority_of(Stream* stream);
int device_of(Stream* stream);
int submit(Stream* stream, Work work);  // the error that stays, if there is one
void record(Event& event, Stream* stream);
void wait(Stream* stream, const Event& event);  // work from now on comes after the event
bool is_done(const Event& event);
bool is_idle(Stream* stream);
int finish(const Event& event);  // these return when work is done, with the error that stays
int finish(Stream* stream);
int finish_all();
int finish_device(int device);

}  // namespace fake_gpu
