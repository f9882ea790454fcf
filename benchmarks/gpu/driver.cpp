// Checks NVIDIA's driver on this machine: each fact that lanes on a GPU rely on, with yes or no,
// and the cost of each call. Prints a line of JSON for each; benchmarks/gpu/run.py collects them.
//
//   driver facts each in a process of its own, so that a crash ends only one driver costs
//   microseconds of each call, by the size of a chunk
#include <dlfcn.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <functional>
#include <map>
#include <stdexcept>
#include <string>
#include <vector>

#include "memory/cuda/cuda_device.h"
#include "memory/cuda/cuda_driver.h"

using namespace gpushare;

namespace {

constexpr size_t kMiB = size_t{1} << 20;
constexpr size_t kGiB = size_t{1} << 30;
constexpr size_t kChunk = CudaDevice::kGranularity;
constexpr unsigned kSecondsOfOneFact = 20;
constexpr size_t kMostDescriptors = 250;  // of one datagram; the system takes 253
constexpr size_t kSample = 64 * 1024;     // bytes that are inspected, at both ends of a chunk

// The fact cannot be checked: something unrelated does not work.
struct Unknown : std::runtime_error {
  using std::runtime_error::runtime_error;
};

std::string quoted(const std::string& text) {
  std::string line = "\"";
  for (const char letter : text) {
    if (letter == '"' || letter == '\\') line += '\\';
    line += static_cast<unsigned char>(letter) < ' ' ? ' ' : letter;
  }
  return line + '"';
}

// One GPU with its context current in this thread, by our own class and by the bare calls.
class Gpu {
 public:
  Gpu() {
    if (const std::string reason = device.open(0); !reason.empty()) throw Unknown(reason);
    if (const std::string reason = driver.find(); !reason.empty()) throw Unknown(reason);
    need(driver.cuInit(0), "cuInit");
    need(driver.cuDeviceGet(&ordinal_, 0), "cuDeviceGet");
    need(driver.cuDevicePrimaryCtxRetain(&context_, ordinal_), "cuDevicePrimaryCtxRetain");
    need(driver.cuCtxPushCurrent_v2(context_), "cuCtxPushCurrent");
  }
  Gpu(const Gpu&) = delete;
  Gpu& operator=(const Gpu&) = delete;
  ~Gpu() {
    driver.cuCtxPopCurrent_v2(&context_);
    driver.cuDevicePrimaryCtxRelease_v2(ordinal_);
  }

  // Raises Unknown with the driver's words.
  void need(CudaResult result, const char* call) const {
    if (result != kCudaSuccess) throw Unknown(device.because(call, result));
  }

  CudaHandle create(size_t bytes = kChunk,
                    CudaHandleType type = CudaHandleType::kDescriptor) const {
    CudaHandle handle = 0;
    need(device.create(bytes, type, handle), "cuMemCreate");
    return handle;
  }
  int share(CudaHandle handle) const {
    int descriptor = -1;
    need(device.share(handle, descriptor), "cuMemExportToShareableHandle");
    return descriptor;
  }
  CudaHandle import(int descriptor) const {
    CudaHandle handle = 0;
    need(device.import(descriptor, handle), "cuMemImportFromShareableHandle");
    return handle;
  }
  CudaAddress reserve(size_t bytes) const {
    const CudaAddress address = device.reserve(bytes);
    if (address == 0) throw Unknown("cuMemAddressReserve gave no addresses");
    return address;
  }
  void map(CudaAddress address, CudaHandle handle, size_t bytes = kChunk) const {
    need(device.map(address, {&handle, 1}, bytes), "cuMemMap and cuMemSetAccess");
  }
  CudaResult allow(CudaAddress address, size_t bytes) const {
    const CudaAccessDescription access{{CudaLocationType::kDevice, ordinal_},
                                       CudaAccess::kReadWrite};
    return driver.cuMemSetAccess(address, bytes, &access, 1);
  }
  void fill(CudaAddress address, unsigned char value, size_t bytes = kChunk) const {
    const std::vector<unsigned char> content(bytes, value);
    need(device.write(address, content.data(), bytes), "cuMemcpyHtoD");
  }
  // Reads both ends of these addresses.
  bool shows(CudaAddress address, unsigned char value, size_t bytes = kChunk) const {
    std::vector<unsigned char> content(kSample);
    for (const size_t offset : {size_t{0}, bytes - kSample}) {
      need(device.read(content.data(), address + offset, kSample), "cuMemcpyDtoH");
      if (std::ranges::count(content, value) != static_cast<std::ptrdiff_t>(kSample)) return false;
    }
    return true;
  }

  // Bytes of the device: free, and all.
  std::pair<size_t, size_t> memory() const {
    using Info = CudaResult (*)(size_t*, size_t*);
    void* library = dlopen("libcuda.so.1", RTLD_NOW);
    const auto info = reinterpret_cast<Info>(dlsym(library, "cuMemGetInfo_v2"));
    if (info == nullptr) throw Unknown("this driver has no cuMemGetInfo");
    size_t free = 0, total = 0;
    need(info(&free, &total), "cuMemGetInfo");
    return {free, total};
  }

  CudaDevice device;
  CudaDriver driver;

 private:
  CudaOrdinal ordinal_ = 0;
  CudaContext* context_ = nullptr;
};

// --- processes

// Runs `work` in a forked child, which must not have used CUDA before; -1 if it ended badly.
class Child {
 public:
  explicit Child(const std::function<void(int)>& work) {
    int ends[2];
    if (socketpair(AF_UNIX, SOCK_SEQPACKET, 0, ends) != 0) throw Unknown("no socket pair");
    pid_ = fork();
    if (pid_ == 0) {
      close(ends[0]);
      alarm(kSecondsOfOneFact);
      try {
        work(ends[1]);
      } catch (const std::exception& error) {
        send(ends[1], error.what(), std::strlen(error.what()), 0);
        _exit(1);
      }
      _exit(0);
    }
    close(ends[1]);
    link = ends[0];
  }
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;
  ~Child() {
    close(link);
    end();
  }
  void end() {
    if (pid_ > 0) waitpid(pid_, nullptr, 0);
    pid_ = 0;
  }

  int link = -1;

 private:
  pid_t pid_ = 0;
};

void tell(int link) { send(link, "!", 1, 0); }

// Raises Unknown with the sentence of the other side.
void await(int link) {
  char text[500];
  const ssize_t count = recv(link, text, sizeof text, 0);
  if (count < 1) throw Unknown("the other process ended");
  if (text[0] != '!')
    throw Unknown("the other process: " + std::string(text, static_cast<size_t>(count)));
}

void send_descriptors(int link, const std::vector<int>& descriptors) {
  std::vector<char> space(CMSG_SPACE(sizeof(int) * descriptors.size()));
  char byte = '!';
  iovec text{&byte, 1};
  msghdr message{};
  message.msg_iov = &text;
  message.msg_iovlen = 1;
  message.msg_control = space.data();
  message.msg_controllen = space.size();
  cmsghdr* header = CMSG_FIRSTHDR(&message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(sizeof(int) * descriptors.size());
  std::memcpy(CMSG_DATA(header), descriptors.data(), sizeof(int) * descriptors.size());
  if (sendmsg(link, &message, 0) < 0)
    throw Unknown(std::string("a descriptor cannot be sent: ") + std::strerror(errno));
}

std::vector<int> receive_descriptors(int link) {
  std::vector<char> space(CMSG_SPACE(sizeof(int) * kMostDescriptors));
  char bytes[500];
  iovec text{bytes, sizeof bytes};
  msghdr message{};
  message.msg_iov = &text;
  message.msg_iovlen = 1;
  message.msg_control = space.data();
  message.msg_controllen = space.size();
  const ssize_t count = recvmsg(link, &message, 0);
  const cmsghdr* header = count < 1 ? nullptr : CMSG_FIRSTHDR(&message);
  if (header == nullptr) {
    const std::string said(bytes, static_cast<size_t>(std::max<ssize_t>(count, 0)));
    throw Unknown("no descriptor came from the other process: " + said);
  }
  std::vector<int> descriptors((header->cmsg_len - CMSG_LEN(0)) / sizeof(int));
  std::memcpy(descriptors.data(), CMSG_DATA(header), sizeof(int) * descriptors.size());
  return descriptors;
}

// --- facts: each returns an empty text if it holds, else a text that says what happened instead

std::string refused(CudaResult result) { return result == kCudaSuccess ? "the driver did it" : ""; }

std::string done(const Gpu& gpu, CudaResult result) {
  return result == kCudaSuccess ? "" : gpu.device.because("refused", result);
}

std::string chunk_outlives_its_maker() {
  Child taker([](int link) {
    const int descriptor = receive_descriptors(link).at(0);
    const Gpu gpu;
    const CudaAddress address = gpu.reserve(kChunk);
    gpu.map(address, gpu.import(descriptor));
    if (!gpu.shows(address, 0xA7)) throw Unknown("it shows other bytes");
    tell(link);
  });
  int descriptor = -1;
  {
    Child maker([](int link) {
      const Gpu gpu;
      const CudaHandle handle = gpu.create();
      const CudaAddress address = gpu.reserve(kChunk);
      gpu.map(address, handle);
      gpu.fill(address, 0xA7);
      send_descriptors(link, {gpu.share(handle)});
    });
    descriptor = receive_descriptors(maker.link).at(0);
    maker.end();
  }
  send_descriptors(taker.link, {descriptor});
  close(descriptor);
  await(taker.link);
  return {};
}

std::string process_imports_its_own_export() {
  const Gpu gpu;
  const CudaHandle handle = gpu.create();
  const int descriptor = gpu.share(handle);
  CudaHandle imported = 0;
  const CudaResult result = gpu.device.import(descriptor, imported);
  if (result != kCudaSuccess) return gpu.device.because("refused", result);
  const CudaAddress address = gpu.reserve(2 * kChunk);
  gpu.map(address, handle);
  gpu.map(address + kChunk, imported);
  gpu.fill(address, 0x5A);
  return gpu.shows(address + kChunk, 0x5A) ? "" : "it shows other bytes";
}

std::string other_process_writes_what_this_one_reads() {
  Child other([](int link) {
    const int descriptor = receive_descriptors(link).at(0);
    const Gpu gpu;
    const CudaAddress address = gpu.reserve(kChunk);
    gpu.map(address, gpu.import(descriptor));
    gpu.fill(address, 0xB5);
    tell(link);
    await(link);  // the mapping is still there while the first process reads
  });
  const Gpu gpu;
  const CudaHandle handle = gpu.create();
  const CudaAddress address = gpu.reserve(kChunk);
  gpu.map(address, handle);
  gpu.fill(address, 1);
  send_descriptors(other.link, {gpu.share(handle)});
  await(other.link);
  const bool does = gpu.shows(address, 0xB5);
  tell(other.link);
  return does ? "" : "it reads other bytes";
}

std::string many_descriptors_in_one_datagram() {
  Child other([](int link) {
    const std::vector<int> descriptors = receive_descriptors(link);
    if (descriptors.size() != kMostDescriptors) throw Unknown("not all descriptors came");
    const Gpu gpu;
    for (const int descriptor : descriptors) gpu.device.release(gpu.import(descriptor));
    tell(link);
  });
  const Gpu gpu;
  const CudaHandle handle = gpu.create();
  std::vector<int> descriptors;
  for (size_t i = 0; i < kMostDescriptors; ++i) descriptors.push_back(gpu.share(handle));
  send_descriptors(other.link, descriptors);
  await(other.link);
  return {};
}

// Neighbouring chunks, mapped and accessible.
struct Neighbours {
  static constexpr size_t kCount = 4;
  explicit Neighbours(const Gpu& gpu) : address(gpu.reserve(kCount * kChunk)) {
    for (CudaHandle& handle : handles) handle = gpu.create();
    gpu.need(gpu.device.map(address, handles, kChunk), "cuMemMap and cuMemSetAccess");
  }
  CudaAddress address;
  std::array<CudaHandle, kCount> handles{};
};

std::string one_access_call_for_neighbours() {
  const Gpu gpu;
  const Neighbours chunks(gpu);  // this is how our own class maps them
  gpu.fill(chunks.address, 3, Neighbours::kCount * kChunk);
  return gpu.shows(chunks.address, 3, Neighbours::kCount * kChunk) ? "" : "they show other bytes";
}

std::string one_unmap_call_for_neighbours() {
  const Gpu gpu;
  const Neighbours chunks(gpu);
  std::string reason =
      done(gpu, gpu.driver.cuMemUnmap(chunks.address, Neighbours::kCount * kChunk));
  if (reason.empty()) gpu.map(chunks.address, chunks.handles[2]);
  return reason;
}

std::string unmap_of_some_neighbours() {
  const Gpu gpu;
  const Neighbours chunks(gpu);
  gpu.fill(chunks.address, 4, Neighbours::kCount * kChunk);
  const std::string reason = done(gpu, gpu.driver.cuMemUnmap(chunks.address + kChunk, 2 * kChunk));
  if (!reason.empty()) return reason;
  const bool others_stay =
      gpu.shows(chunks.address, 4) && gpu.shows(chunks.address + 3 * kChunk, 4);
  return others_stay ? "" : "their neighbours went with them";
}

std::string unmap_of_a_part_is_refused() {
  const Gpu gpu;
  const CudaAddress address = gpu.reserve(2 * kChunk);
  gpu.map(address, gpu.create(2 * kChunk), 2 * kChunk);
  return refused(gpu.driver.cuMemUnmap(address, kChunk));
}

std::string map_of_a_part_is_refused() {
  const Gpu gpu;
  const CudaHandle handle = gpu.create(2 * kChunk);
  return refused(gpu.driver.cuMemMap(gpu.reserve(2 * kChunk), kChunk, 0, handle, 0));
}

std::string map_from_an_offset_is_refused() {
  const Gpu gpu;
  const CudaHandle handle = gpu.create(2 * kChunk);
  return refused(gpu.driver.cuMemMap(gpu.reserve(2 * kChunk), kChunk, kChunk, handle, 0));
}

std::string map_over_a_mapping_is_refused() {
  const Gpu gpu;
  const CudaAddress address = gpu.reserve(kChunk);
  gpu.map(address, gpu.create());
  return refused(gpu.driver.cuMemMap(address, kChunk, 0, gpu.create(), 0));
}

std::string touch_before_access_is_refused() {
  const Gpu gpu;
  const CudaAddress address = gpu.reserve(kChunk);
  gpu.need(gpu.driver.cuMemMap(address, kChunk, 0, gpu.create(), 0), "cuMemMap");
  unsigned char byte = 1;
  return refused(gpu.driver.cuMemcpyHtoD_v2(address, &byte, 1));
}

std::string mapping_lives_without_its_handle() {
  const Gpu gpu;
  const CudaHandle handle = gpu.create();
  const CudaAddress address = gpu.reserve(kChunk);
  gpu.map(address, handle);
  gpu.device.release(handle);
  gpu.fill(address, 6);
  return gpu.shows(address, 6) ? "" : "it shows other bytes";
}

std::string address_shows_what_is_mapped_last() {
  const Gpu gpu;
  const std::array<CudaHandle, 2> handles{gpu.create(), gpu.create()};
  const CudaAddress address = gpu.reserve(kChunk);
  for (size_t turn = 0; turn < 6; ++turn) {
    gpu.map(address, handles[turn % 2]);
    const auto value = static_cast<unsigned char>(10 + turn % 2);
    if (turn >= 2 && !gpu.shows(address, value)) return "it shows other bytes";
    gpu.fill(address, value);
    gpu.need(gpu.device.unmap(address, kChunk), "cuMemUnmap");
  }
  return {};
}

std::string descriptor_alone_holds_the_memory() {
  const Gpu gpu;
  const size_t bytes = 256 * kMiB;
  const size_t before = gpu.memory().first;
  const CudaHandle handle = gpu.create(bytes);
  const int descriptor = gpu.share(handle);
  gpu.device.release(handle);
  const size_t held = gpu.memory().first;
  close(descriptor);
  const size_t after = gpu.memory().first;
  if (held + bytes / 2 > before) return "it was free while the descriptor was open";
  return after + bytes / 2 > before ? "" : "it was not free once the descriptor was closed";
}

std::string fresh_memory_is_zero() {
  const size_t bytes = 512 * kMiB;
  Child before([=](int link) {
    const Gpu gpu;
    const CudaAddress address = gpu.reserve(bytes);
    gpu.map(address, gpu.create(bytes), bytes);
    gpu.fill(address, 0xFF, bytes);
    tell(link);
  });
  await(before.link);
  before.end();
  const Gpu gpu;
  const CudaAddress address = gpu.reserve(bytes);
  gpu.map(address, gpu.create(bytes), bytes);
  return gpu.shows(address, 0, bytes) ? "" : "it shows other bytes: maybe another process's";
}

std::string window_of_twice_the_device() {
  const Gpu gpu;
  const size_t bytes = 2 * gpu.memory().second / kChunk * kChunk;
  return gpu.device.reserve(bytes) == 0 ? "so many addresses are not to be had" : "";
}

std::string copy_to_a_mapped_file() {
  const Gpu gpu;
  const CudaAddress address = gpu.reserve(kChunk);
  gpu.map(address, gpu.create());
  gpu.fill(address, 0x33);
  FILE* file = tmpfile();
  if (file == nullptr || ftruncate(fileno(file), kChunk) != 0) throw Unknown("no file");
  void* copy = mmap(nullptr, kChunk, PROT_READ | PROT_WRITE, MAP_SHARED, fileno(file), 0);
  if (copy == MAP_FAILED) throw Unknown("the file cannot be mapped");
  std::string reason = done(gpu, gpu.device.read(copy, address, kChunk));
  if (reason.empty() && static_cast<unsigned char*>(copy)[kChunk - 1] != 0x33) {
    reason = "the file has other bytes";
  }
  gpu.fill(address, 0);
  if (reason.empty()) reason = done(gpu, gpu.device.write(address, copy, kChunk));
  return reason.empty() && !gpu.shows(address, 0x33) ? "the way back gives other bytes" : reason;
}

struct Fact {
  const char* name;
  std::string (*check)();
};

constexpr Fact kFacts[] = {
    {"chunk_outlives_its_maker_by_its_descriptor", chunk_outlives_its_maker},
    {"process_imports_its_own_export", process_imports_its_own_export},
    {"other_process_writes_what_this_one_reads", other_process_writes_what_this_one_reads},
    {"250_descriptors_in_one_datagram", many_descriptors_in_one_datagram},
    {"one_access_call_for_neighbours", one_access_call_for_neighbours},
    {"one_unmap_call_for_neighbours", one_unmap_call_for_neighbours},
    {"unmap_of_some_neighbours_keeps_the_others", unmap_of_some_neighbours},
    {"unmap_of_a_part_is_refused", unmap_of_a_part_is_refused},
    {"map_of_a_part_is_refused", map_of_a_part_is_refused},
    {"map_from_an_offset_is_refused", map_from_an_offset_is_refused},
    {"map_over_a_mapping_is_refused", map_over_a_mapping_is_refused},
    {"touch_before_access_is_refused", touch_before_access_is_refused},
    {"mapping_lives_without_its_handle", mapping_lives_without_its_handle},
    {"address_shows_what_is_mapped_last", address_shows_what_is_mapped_last},
    {"descriptor_alone_holds_the_memory", descriptor_alone_holds_the_memory},
    {"fresh_memory_is_zero", fresh_memory_is_zero},
    {"window_of_twice_the_device", window_of_twice_the_device},
    {"copy_to_a_mapped_file_and_back", copy_to_a_mapped_file},
};

void print_fact(const char* name, const char* holds, const std::string& note) {
  std::printf("{\"fact\": \"%s\", \"holds\": %s, \"note\": %s}\n", name, holds,
              quoted(note).c_str());
  std::fflush(stdout);
}

void check(const Fact& fact) {
  try {
    const std::string reason = fact.check();
    print_fact(fact.name, reason.empty() ? "true" : "false", reason);
  } catch (const std::exception& error) {
    print_fact(fact.name, "null", error.what());
  }
}

void check_all() {
  for (const Fact& fact : kFacts) {
    const pid_t child = fork();
    if (child == 0) {
      alarm(kSecondsOfOneFact);
      check(fact);
      _exit(0);
    }
    int status = 0;
    waitpid(child, &status, 0);
    if (WIFSIGNALED(status)) {
      const auto signal = strsignal(WTERMSIG(status));
      print_fact(fact.name, "null", std::string("the process that checked it ended: ") + signal);
    }
  }
}

// --- costs

// Calls for chunks of one size. The line is printed even if one of them fails.
class Times {
 public:
  explicit Times(size_t bytes) : bytes_(bytes) {}
  Times(const Times&) = delete;
  Times& operator=(const Times&) = delete;
  ~Times() { print(); }

  // Raises Unknown unless the call succeeds, since the rest would make no sense.
  template <class F>
  void measure(const Gpu& gpu, const char* name, F call, size_t count = 1) {
    const auto start = std::chrono::steady_clock::now();
    const CudaResult result = call();
    const std::chrono::duration<double, std::micro> passed =
        std::chrono::steady_clock::now() - start;
    gpu.need(result, name);
    times_[name].push_back(passed.count() / static_cast<double>(count));
  }

 private:
  void print() {
    for (auto& [name, times] : times_) {
      std::ranges::sort(times);
      const auto figure = [&](const char* suffix, double value) {
        std::printf("{\"figure\": \"%s%s_%zu_MiB\", \"value\": %.3f, \"unit\": \"us\"}\n",
                    name.c_str(), suffix, bytes_ / kMiB, value);
      };
      figure("", times[times.size() / 2]);
      if (times.size() > 1) figure("_most", times.back());
    }
    std::fflush(stdout);
  }

  const size_t bytes_;
  std::map<std::string, std::vector<double>> times_;
};

// Times each call for one chunk after the other. Calls that can take neighbours together are also
// timed for all at once, per chunk.
void measure_calls(const Gpu& gpu, size_t bytes, size_t count) {
  Times times(bytes);
  const CudaDriver& driver = gpu.driver;
  std::vector<CudaHandle> handles(count), imported(count);
  std::vector<int> descriptors(count);
  CudaAddress window = 0;
  times.measure(gpu, "reserve_of_all", [&] {
    window = gpu.device.reserve(count * bytes);
    return window == 0 ? kCudaOutOfMemory : kCudaSuccess;
  });
  const auto each = [&](const char* name, auto call) {
    for (size_t i = 0; i < count; ++i) times.measure(gpu, name, [&] { return call(i); });
  };
  const auto at = [&](size_t i) { return window + i * bytes; };
  each("create",
       [&](size_t i) { return gpu.device.create(bytes, CudaHandleType::kDescriptor, handles[i]); });
  each("export", [&](size_t i) { return gpu.device.share(handles[i], descriptors[i]); });
  each("import", [&](size_t i) { return gpu.device.import(descriptors[i], imported[i]); });
  each("map", [&](size_t i) { return driver.cuMemMap(at(i), bytes, 0, imported[i], 0); });
  each("access", [&](size_t i) { return gpu.allow(at(i), bytes); });
  each("unmap", [&](size_t i) { return driver.cuMemUnmap(at(i), bytes); });
  for (size_t i = 0; i < count; ++i) {
    gpu.need(driver.cuMemMap(at(i), bytes, 0, imported[i], 0), "cuMemMap");
  }
  times.measure(gpu, "access_together", [&] { return gpu.allow(window, count * bytes); }, count);
  times.measure(
      gpu, "unmap_together", [&] { return driver.cuMemUnmap(window, count * bytes); }, count);
  each("close", [&](size_t i) { return close(descriptors[i]); });
  each("release_of_an_import", [&](size_t i) { return driver.cuMemRelease(imported[i]); });
  each("release", [&](size_t i) { return driver.cuMemRelease(handles[i]); });
  gpu.device.unreserve(window, count * bytes);
}

double gibibytes_per_second(size_t bytes, const std::function<CudaResult()>& copy, const Gpu& gpu,
                            const char* name) {
  std::vector<double> rates;
  for (int round = 0; round < 5; ++round) {
    const auto start = std::chrono::steady_clock::now();
    gpu.need(copy(), name);
    const std::chrono::duration<double> passed = std::chrono::steady_clock::now() - start;
    rates.push_back(static_cast<double>(bytes) / kGiB / passed.count());
  }
  std::ranges::sort(rates);
  return rates[rates.size() / 2];
}

// Times copies as the lane makes them for survivors, and as paging makes them for segments.
void measure_copies(const Gpu& gpu, size_t bytes) {
  const CudaAddress address = gpu.reserve(2 * bytes);
  gpu.map(address, gpu.create(bytes), bytes);
  gpu.map(address + bytes, gpu.create(bytes), bytes);
  std::vector<unsigned char> host(bytes, 1);
  const auto print = [&](const char* name, const std::function<CudaResult()>& copy) {
    std::printf("{\"figure\": \"%s\", \"value\": %.3f, \"unit\": \"GiB/s\"}\n", name,
                gibibytes_per_second(bytes, copy, gpu, name));
    std::fflush(stdout);
  };
  print("write_from_pageable", [&] { return gpu.device.write(address, host.data(), bytes); });
  print("read_to_pageable", [&] { return gpu.device.read(host.data(), address, bytes); });
  print("copy_inside", [&] { return gpu.device.copy(address + bytes, address, bytes); });
}

void allow_many_descriptors() {
  rlimit limit{};
  getrlimit(RLIMIT_NOFILE, &limit);
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);
  std::printf("{\"figure\": \"descriptors_of_a_process\", \"value\": %.0f, \"unit\": \"\"}\n",
              static_cast<double>(std::min<rlim_t>(limit.rlim_max, 1U << 30)));
}

int measure(size_t budget, size_t most) {
  allow_many_descriptors();
  int failed = 0;
  const auto attempt = [&](auto work) {
    try {
      work(Gpu());
    } catch (const std::exception& error) {
      std::printf("{\"error\": %s}\n", quoted(error.what()).c_str());
      std::fflush(stdout);
      failed = 1;
    }
  };
  for (const size_t mib : {2, 8, 16, 32, 64}) {
    const size_t bytes = mib * kMiB;
    const size_t count = std::clamp(budget / bytes, size_t{1}, most);
    attempt([&](const Gpu& gpu) { measure_calls(gpu, bytes, count); });
  }
  attempt([&](const Gpu& gpu) { measure_copies(gpu, budget / 4); });
  return failed;
}

}  // namespace

// Arguments of `costs`: the most memory to use, in MiB, and the most chunks of each size.
int main(int count, char** arguments) {
  const std::string wanted = count > 1 ? arguments[1] : "";
  const size_t budget = (count > 2 ? std::stoul(arguments[2]) : 4096) * kMiB;
  const size_t most = count > 3 ? std::stoul(arguments[3]) : 2048;
  if (wanted == "facts") {
    check_all();
    return 0;
  }
  if (wanted == "costs") return measure(budget, most);
  std::fprintf(stderr, "driver facts | driver costs [MIB [CHUNKS]]\n");
  return 2;
}
