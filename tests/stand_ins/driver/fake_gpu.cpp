#include "fake_gpu.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <filesystem>
#include <numeric>
#include <set>
#include <sstream>
#include <utility>

namespace fake_gpu {
namespace {

constexpr int kNothing = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;  // with PROT_NONE

std::string text_of(const char* name) {
  const char* text = std::getenv(name);
  return text == nullptr ? "" : text;
}

size_t number_of(const char* name, size_t otherwise) {
  const std::string text = text_of(name);
  return text.empty() ? otherwise : std::strtoull(text.c_str(), nullptr, 0);
}

bool is_lazy() {
  static const bool lazy = number_of("FAKE_CUDA_LAZY", 0) != 0;
  return lazy;
}

const std::string& host() {
  static const std::string name = text_of("FAKE_CUDA_HOST");
  return name;
}

std::string file_name(int device) {
  const int number = gpus().visible[static_cast<size_t>(device)].number;
  return "fake-gpu-" + std::to_string(number) + "-" + host();
}

// The beginning of the target of a link below /proc.
std::string mark(int device) { return "/memfd:" + file_name(device) + " "; }

void* at(Address address) { return reinterpret_cast<void*>(address); }
Address address_of(const void* pointer) { return reinterpret_cast<Address>(pointer); }

// The memory that a process has descriptors of, by file: many processes may have the same.
void look_into(const std::string& folder, const std::string& mark, std::map<ino_t, size_t>& bytes) {
  std::error_code gone;
  auto entry = std::filesystem::directory_iterator(folder, gone);
  for (; !gone && entry != std::filesystem::directory_iterator(); entry.increment(gone)) {
    std::error_code closed;
    const auto target = std::filesystem::read_symlink(*entry, closed).string();
    struct stat status;
    if (!closed && target.starts_with(mark) && stat(entry->path().c_str(), &status) == 0) {
      bytes[status.st_ino] = static_cast<size_t>(status.st_size);
    }
  }
}

void look_into_all(const std::string& mark, std::map<ino_t, size_t>& bytes) {
  for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
    const std::string name = entry.path().filename();
    if (std::isdigit(static_cast<unsigned char>(name[0])) != 0) {
      look_into(entry.path() / "fd", mark, bytes);
    }
  }
}

// -1: it is of no GPU that this process sees.
int device_of_file(int descriptor) {
  std::error_code error;
  const std::string link = "/proc/self/fd/" + std::to_string(descriptor);
  const auto target = std::filesystem::read_symlink(link, error).string();
  const int count = static_cast<int>(gpus().visible.size());
  for (int device = 0; device < count; ++device) {
    if (target.starts_with(mark(device))) return device;
  }
  return -1;
}

std::shared_ptr<Memory> known(ino_t file) {
  const auto is_it = [&](const std::shared_ptr<Memory>& memory) {
    struct stat status;
    return fstat(memory->file, &status) == 0 && status.st_ino == file;
  };
  for (const auto& [handle, memory] : gpus().handles) {
    if (is_it(memory)) return memory;
  }
  for (const auto& [address, mapping] : gpus().mappings) {
    if (is_it(mapping.memory)) return mapping.memory;
  }
  return nullptr;
}

int complain(const char* what, size_t bytes, const void* address) {
  std::fprintf(stderr, "fake-gpu: %s of %zu bytes at %p: illegal address\n", what, bytes, address);
  return kIllegalAddress;
}

thread_local int current = 0;

// The UUID as `nvidia-smi -L` shows it.
std::string text_of_uuid(int number) {
  std::string text = "GPU-";
  for (const unsigned char byte : uuid_of(number)) {
    std::array<char, 3> digits;
    std::snprintf(digits.data(), digits.size(), "%02x", byte);
    const bool is_new_group =
        text.size() == 12 || text.size() == 17 || text.size() == 22 || text.size() == 27;
    text += (is_new_group ? "-" : "") + std::string(digits.data());
  }
  return text;
}

// The one number that an entry means, or -1.
int meant_by(const std::string& entry, bool is_by_uuid, int count) {
  int found = -1, matches = 0;
  for (int number = 0; number < count; ++number) {
    const bool is_it = is_by_uuid ? entry.size() > 4 && text_of_uuid(number).starts_with(entry)
                                  : std::isdigit(static_cast<unsigned char>(entry[0])) != 0 &&
                                        std::atoi(entry.c_str()) == number;
    if (!is_it) continue;
    found = number;
    ++matches;
  }
  return matches == 1 ? found : -1;
}

// Up to the first entry that means nothing, and none at all where one is there twice.
std::vector<int> visible_numbers() {
  const int count = static_cast<int>(number_of("FAKE_CUDA_COUNT", 1));
  std::vector<int> found(static_cast<size_t>(count));
  std::iota(found.begin(), found.end(), 0);
  const char* setting = std::getenv("CUDA_VISIBLE_DEVICES");
  if (setting == nullptr) return found;
  found.clear();
  std::istringstream entries(setting);
  const bool is_by_uuid = std::string(setting).starts_with("GPU-");
  for (std::string entry; std::getline(entries >> std::ws, entry, ',');) {
    const int number = meant_by(entry, is_by_uuid, count);
    if (number < 0) break;
    if (std::ranges::find(found, number) != found.end()) return {};
    found.push_back(number);
  }
  return found;
}

bool is_in(const std::map<Address, size_t>& ranges, Address begin, size_t bytes) {
  auto after = ranges.upper_bound(begin);
  if (after == ranges.begin()) return false;
  --after;
  return begin + bytes <= after->first + after->second;
}

}  // namespace

Memory::~Memory() { close(file); }

Gpus& gpus() {
  static auto* const gpus = new Gpus;  // destructors of others may come later than ours
  return *gpus;
}

// --- devices

void find() {
  const size_t capacity = number_of("FAKE_CUDA_BYTES", size_t{1} << 30);
  for (const int number : visible_numbers()) gpus().visible.push_back({number, capacity});
}

bool is_there(int device) {
  return device >= 0 && static_cast<size_t>(device) < gpus().visible.size();
}

std::array<unsigned char, 16> uuid_of(int number) {
  std::array<unsigned char, 16> uuid;
  uuid.fill(static_cast<unsigned char>(number + 1));
  return uuid;
}

int current_device() { return current; }

void set_current_device(int device) { current = device; }

// --- memory

size_t used_bytes(int device) {
  std::map<ino_t, size_t> bytes;
  if (host().empty()) {
    look_into("/proc/self/fd", mark(device), bytes);
  } else {
    look_into_all(mark(device), bytes);
  }
  size_t sum = 0;
  for (const auto& [file, size] : bytes) sum += size;
  return sum;
}

std::shared_ptr<Memory> create(size_t bytes, bool is_shareable, int device) {
  const size_t capacity = gpus().visible[static_cast<size_t>(device)].capacity;
  if (bytes > capacity - std::min(capacity, used_bytes(device))) return nullptr;
  const int file = memfd_create(file_name(device).c_str(), MFD_CLOEXEC);
  if (file < 0) return nullptr;
  auto memory = std::make_shared<Memory>(file, bytes, is_shareable, device);
  return ftruncate(file, static_cast<off_t>(bytes)) == 0 ? memory : nullptr;
}

std::shared_ptr<Memory> imported(int descriptor) {
  struct stat status;
  if (fstat(descriptor, &status) != 0) return nullptr;
  if (auto memory = known(status.st_ino)) return memory;
  const int device = device_of_file(descriptor);
  if (device < 0) return nullptr;
  const int file = fcntl(descriptor, F_DUPFD_CLOEXEC, 0);
  return std::make_shared<Memory>(file, static_cast<size_t>(status.st_size), true, device);
}

Handle add_handle(std::shared_ptr<Memory> memory) {
  gpus().handles[++gpus().last_handle] = std::move(memory);
  return gpus().last_handle;
}

Address reserve(size_t bytes, size_t alignment) {
  const size_t unit = std::max(alignment, kGranularity);
  void* memory = mmap(nullptr, bytes + unit, PROT_NONE, kNothing, -1, 0);
  if (memory == MAP_FAILED) return 0;
  const Address begin = address_of(memory);
  const Address first = (begin + unit - 1) / unit * unit;
  if (first > begin) munmap(memory, first - begin);
  munmap(at(first + bytes), begin + unit - first);
  gpus().reservations[first] = bytes;
  return first;
}

void unreserve(Address address, size_t bytes) {
  munmap(at(address), bytes);
  gpus().reservations.erase(address);
}

bool is_reserved(Address begin, size_t bytes) { return is_in(gpus().reservations, begin, bytes); }

bool is_mapped(Address begin, size_t bytes) {
  auto after = gpus().mappings.lower_bound(begin + bytes);
  if (after == gpus().mappings.begin()) return false;
  --after;
  return after->first + after->second.memory->bytes > begin;
}

bool map(Address address, std::shared_ptr<Memory> memory, bool is_plain) {
  const int rights = is_plain ? PROT_READ | PROT_WRITE : PROT_NONE;
  const size_t bytes = memory->bytes;
  if (mmap(at(address), bytes, rights, MAP_SHARED | MAP_FIXED, memory->file, 0) == MAP_FAILED) {
    return false;
  }
  madvise(at(address), bytes, MADV_DONTFORK);
  gpus().mappings[address] = {std::move(memory), is_plain, is_plain};
  return true;
}

void allow(const Mappings::iterator& mapping) {
  mprotect(at(mapping->first), mapping->second.memory->bytes, PROT_READ | PROT_WRITE);
  mapping->second.is_accessible = true;
}

void unmap(const std::vector<Mappings::iterator>& mappings) {
  for (const auto& mapping : mappings) {
    mmap(at(mapping->first), mapping->second.memory->bytes, PROT_NONE, kNothing | MAP_FIXED, -1, 0);
    gpus().mappings.erase(mapping);
  }
}

std::vector<Mappings::iterator> whole_mappings(Address begin, size_t bytes) {
  std::vector<Mappings::iterator> found;
  Address next = begin;
  for (auto mapping = gpus().mappings.find(begin);
       mapping != gpus().mappings.end() && mapping->first == next && next < begin + bytes;
       ++mapping) {
    next += mapping->second.memory->bytes;
    found.push_back(mapping);
  }
  if (next != begin + bytes) found.clear();
  return found;
}

Mappings::iterator mapping_at(Address address) {
  auto& mappings = gpus().mappings;
  auto found = mappings.upper_bound(address);
  if (found == mappings.begin()) return mappings.end();
  --found;
  return address < found->first + found->second.memory->bytes ? found : mappings.end();
}

// --- looks, and copies

bool is_device(const void* address) {
  const Lock lock(gpus().mutex);
  return is_reserved(address_of(address), 1);
}

int device_of(const void* address) {
  const Lock lock(gpus().mutex);
  const auto found = mapping_at(address_of(address));
  return found == gpus().mappings.end() ? current_device() : found->second.memory->device;
}

bool is_accessible(const void* address, size_t bytes) {
  const Lock lock(gpus().mutex);
  const Address end = address_of(address) + bytes;
  for (Address begin = address_of(address); begin < end;) {
    const auto found = mapping_at(begin);
    if (found == gpus().mappings.end() || !found->second.is_accessible) return false;
    begin = found->first + found->second.memory->bytes;
  }
  return true;
}

bool is_pinned(const void* address) {
  const Lock lock(gpus().mutex);
  return is_in(gpus().pinned, address_of(address), 1);
}

int copy(void* to, const void* from, size_t bytes) {
  const Lock lock(gpus().mutex);
  for (const void* side : {static_cast<const void*>(to), from}) {
    if (is_device(side) && !is_accessible(side, bytes)) return complain("copy", bytes, side);
  }
  std::memmove(to, from, bytes);
  return kSuccess;
}

int fill(void* to, const void* element, size_t element_bytes, size_t count) {
  const Lock lock(gpus().mutex);
  const size_t bytes = element_bytes * count;
  if (!is_accessible(to, bytes)) return complain("fill", bytes, to);
  auto* next = static_cast<std::byte*>(to);
  for (size_t i = 0; i < count; ++i, next += element_bytes) {
    std::memcpy(next, element, element_bytes);
  }
  return kSuccess;
}

// --- work

struct Stream {
  std::deque<Work> waiting;
  uint64_t submitted = 0, done = 0;
  int priority = 0;
  int device = current_device();
};

namespace {

std::set<Stream*>& streams() {
  static auto* const all = new std::set<Stream*>;
  return *all;
}

Stream* default_stream() {
  static auto* const all = new std::map<int, Stream*>;
  Stream*& stream = (*all)[current_device()];
  if (stream == nullptr) stream = *streams().insert(new Stream).first;
  return stream;
}

Stream* real(Stream* stream) {
  return reinterpret_cast<uintptr_t>(stream) <= 2 ? default_stream() : stream;
}

// After an error that stays, work is dropped.
void work_until(Stream* stream, uint64_t number) {
  while (stream->done < number && !stream->waiting.empty()) {
    const Work work = std::move(stream->waiting.front());
    stream->waiting.pop_front();
    ++stream->done;
    if (gpus().broken == kSuccess) gpus().broken = work();
  }
}

}  // namespace

Stream* new_stream(int priority) {
  const Lock lock(gpus().mutex);
  auto* const stream = new Stream;
  stream->priority = priority;
  streams().insert(stream);
  return stream;
}

// It stays in memory: events may know it.
void end_stream(Stream* stream) {
  const Lock lock(gpus().mutex);
  finish(stream);
  streams().erase(stream);
}

int priority_of(Stream* stream) {
  const Lock lock(gpus().mutex);
  return real(stream)->priority;
}

int device_of(Stream* stream) {
  const Lock lock(gpus().mutex);
  return real(stream)->device;
}

int submit(Stream* stream, Work work) {
  const Lock lock(gpus().mutex);
  stream = real(stream);
  ++stream->submitted;
  stream->waiting.push_back(std::move(work));
  if (!is_lazy()) work_until(stream, stream->submitted);
  return gpus().broken;
}

void record(Event& event, Stream* stream) {
  const Lock lock(gpus().mutex);
  event.stream = real(stream);
  event.number = event.stream->submitted;
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  event.seconds = std::chrono::duration<double>(now).count();
}

void wait(Stream* stream, const Event& event) {
  if (event.stream == nullptr) return;
  submit(stream, [event] {
    work_until(event.stream, event.number);
    return gpus().broken;
  });
}

// A look does one piece of the work, so that a loop of looks ends.
bool is_done(const Event& event) {
  const Lock lock(gpus().mutex);
  if (event.stream == nullptr || event.stream->done >= event.number) return true;
  work_until(event.stream, event.stream->done + 1);
  return false;
}

bool is_idle(Stream* stream) {
  const Lock lock(gpus().mutex);
  stream = real(stream);
  if (stream->waiting.empty()) return true;
  work_until(stream, stream->done + 1);
  return false;
}

int finish(const Event& event) {
  const Lock lock(gpus().mutex);
  if (event.stream != nullptr) work_until(event.stream, event.number);
  return gpus().broken;
}

int finish(Stream* stream) {
  const Lock lock(gpus().mutex);
  stream = real(stream);
  work_until(stream, stream->submitted);
  return gpus().broken;
}

int finish_all() {
  const Lock lock(gpus().mutex);
  for (Stream* stream : streams()) finish(stream);
  return gpus().broken;
}

int finish_device(int device) {
  const Lock lock(gpus().mutex);
  for (Stream* stream : streams()) {
    if (stream->device == device) finish(stream);
  }
  return gpus().broken;
}

}  // namespace fake_gpu
