// A libnvidia-ml.so.1 whose GPUs are those of the file that $FAKE_NVML names, which it reads at
// each call. Without the file it behaves as if no driver were loaded. A line of the file is one of
//
//     driver VERSION
//     gpu UUID TOTAL RESERVED NAME      bytes; what is below belongs to the GPU above it
//     used BYTES                        else: the sum of its processes
//     mig                               MIG mode is on
//     slice UUID TOTAL RESERVED NAME    a MIG device; used and process lines below are its own
//     gap                               a number among the slices that no slice has
//     process PID BYTES                 BYTES -1: the driver does not tell
//     graphics PID BYTES                the same for a process that draws
//     fail CALL CODE                    this call fails so, always
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <limits>
#include <map>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

namespace {

// Codes of nvml.h.
constexpr int kSuccess = 0;
constexpr int kInvalidArgument = 2;
constexpr int kNotSupported = 3;
constexpr int kNotFound = 6;
constexpr int kInsufficientSize = 7;
constexpr int kDriverNotLoaded = 9;
constexpr uint64_t kNotAvailable = std::numeric_limits<uint64_t>::max();

struct Process {
  unsigned pid;
  long long bytes;
};

struct Gpu {
  std::string uuid, name;
  uint64_t total = 0, reserved = 0;
  std::optional<uint64_t> told_used;
  bool is_mig = false;
  std::vector<Process> computing, drawing;
  std::vector<Gpu> slices;

  uint64_t used() const {
    uint64_t sum = 0;
    for (const auto* all : {&computing, &drawing})
      for (const Process& process : *all)
        sum += static_cast<uint64_t>(std::max(0LL, process.bytes));
    return told_used.value_or(sum);
  }
};

struct Host {
  std::string driver = "0.0";
  std::vector<Gpu> gpus;
  std::map<std::string, int> failures;
};

Gpu read_gpu(std::istream& line) {
  Gpu gpu;
  line >> gpu.uuid >> gpu.total >> gpu.reserved >> std::ws;
  std::getline(line, gpu.name);
  return gpu;
}

Process read_process(std::istream& line) {
  Process process{};
  line >> process.pid >> process.bytes;
  return process;
}

// Nothing where there is no such file.
std::optional<Host> read_host() {
  const char* path = std::getenv("FAKE_NVML");
  std::ifstream file(path == nullptr ? "" : path);
  if (!file) return std::nullopt;
  Host host;
  Gpu* of = nullptr;  // the GPU that the lines belong to
  for (std::string text; std::getline(file, text);) {
    std::istringstream line(text);
    std::string word;
    line >> word;
    if (word == "driver") line >> host.driver;
    if (word == "gpu") of = &host.gpus.emplace_back(read_gpu(line));
    if (word == "slice") of = &host.gpus.back().slices.emplace_back(read_gpu(line));
    if (word == "gap") host.gpus.back().slices.emplace_back();
    if (word == "mig") host.gpus.back().is_mig = true;
    if (word == "used") line >> of->told_used.emplace();
    if (word == "process") of->computing.push_back(read_process(line));
    if (word == "graphics") of->drawing.push_back(read_process(line));
    if (word == "fail") {
      line >> word;
      line >> host.failures[word];
    }
  }
  return host;
}

// A handle is the number of the GPU from 1 on, and above it that of the slice.
using Handle = void*;
constexpr uintptr_t kSlice = 1000;

Handle handle_of(size_t gpu, size_t slices_before = 0) {
  return reinterpret_cast<Handle>(1 + gpu + kSlice * slices_before);
}

Gpu* gpu_of(Host& host, Handle handle) {
  const auto number = reinterpret_cast<uintptr_t>(handle);
  const size_t gpu = number % kSlice - 1, slice = number / kSlice;
  if (number == 0 || gpu >= host.gpus.size()) return nullptr;
  if (slice == 0) return &host.gpus[gpu];
  auto& slices = host.gpus[gpu].slices;
  return slice <= slices.size() ? &slices[slice - 1] : nullptr;
}

template <class F>
int call(const char* name, F made) {
  auto host = read_host();
  if (!host) return kDriverNotLoaded;
  const auto failure = host->failures.find(name);
  return failure == host->failures.end() ? made(*host) : failure->second;
}

// A call about one GPU.
template <class F>
int call(const char* name, Handle handle, F made) {
  return call(name, [&](Host& host) {
    Gpu* gpu = gpu_of(host, handle);
    return gpu == nullptr ? kInvalidArgument : made(*gpu);
  });
}

int write(const std::string& text, char* to, unsigned size) {
  if (text.size() >= size) return kInsufficientSize;
  std::memcpy(to, text.c_str(), text.size() + 1);
  return kSuccess;
}

struct ProcessInfo {
  unsigned pid;
  unsigned long long bytes;
  unsigned gpu_instance, compute_instance;
};

int list(const std::vector<Process>& processes, unsigned* count, ProcessInfo* infos) {
  const auto there = static_cast<unsigned>(processes.size());
  const bool fits = *count >= there;
  *count = there;
  if (!fits) return kInsufficientSize;
  for (const auto& [pid, bytes] : processes)
    *infos++ = {pid, bytes < 0 ? kNotAvailable : static_cast<uint64_t>(bytes), ~0U, ~0U};
  return kSuccess;
}

struct Memory {
  unsigned long long total, free, used;
};

struct Memory2 {
  unsigned version;
  unsigned long long total, reserved, free, used;
};

}  // namespace

extern "C" {

int nvmlInitWithFlags(unsigned) {
  return call("nvmlInitWithFlags", [](Host&) { return kSuccess; });
}

int nvmlInit_v2() { return nvmlInitWithFlags(0); }

int nvmlShutdown() { return kSuccess; }

int nvmlSystemGetDriverVersion(char* version, unsigned size) {
  return call("nvmlSystemGetDriverVersion",
              [&](Host& host) { return write(host.driver, version, size); });
}

int nvmlDeviceGetCount_v2(unsigned* count) {
  return call("nvmlDeviceGetCount_v2", [&](Host& host) {
    *count = static_cast<unsigned>(host.gpus.size());
    return kSuccess;
  });
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, Handle* handle) {
  return call("nvmlDeviceGetHandleByIndex_v2", [&](Host& host) {
    *handle = handle_of(index);
    return index < host.gpus.size() ? kSuccess : kInvalidArgument;
  });
}

int nvmlDeviceGetHandleByUUID(const char* uuid, Handle* handle) {
  return call("nvmlDeviceGetHandleByUUID", [&](Host& host) {
    for (size_t gpu = 0; gpu < host.gpus.size(); ++gpu) {
      *handle = handle_of(gpu);
      if (host.gpus[gpu].uuid == uuid) return kSuccess;
      for (size_t slice = 0; slice < host.gpus[gpu].slices.size(); ++slice) {
        *handle = handle_of(gpu, slice + 1);
        if (host.gpus[gpu].slices[slice].uuid == uuid) return kSuccess;
      }
    }
    return kNotFound;
  });
}

// PyTorch names a GPU so when its memory is out: each is on a bus of its own, from 1 on.
int nvmlDeviceGetHandleByPciBusId_v2(const char* place, Handle* handle) {
  unsigned bus = 0;
  if (std::sscanf(place, "%*x:%x", &bus) != 1 || bus == 0) return kInvalidArgument;
  return nvmlDeviceGetHandleByIndex_v2(bus - 1, handle);
}

int nvmlDeviceGetName(Handle handle, char* name, unsigned size) {
  return call("nvmlDeviceGetName", handle, [&](Gpu& gpu) { return write(gpu.name, name, size); });
}

int nvmlDeviceGetUUID(Handle handle, char* uuid, unsigned size) {
  return call("nvmlDeviceGetUUID", handle, [&](Gpu& gpu) { return write(gpu.uuid, uuid, size); });
}

int nvmlDeviceGetMemoryInfo(Handle handle, Memory* memory) {
  return call("nvmlDeviceGetMemoryInfo", handle, [&](Gpu& gpu) {
    const uint64_t used = gpu.used() + gpu.reserved;
    *memory = {gpu.total, gpu.total - used, used};
    return kSuccess;
  });
}

int nvmlDeviceGetMemoryInfo_v2(Handle handle, Memory2* memory) {
  return call("nvmlDeviceGetMemoryInfo_v2", handle, [&](Gpu& gpu) {
    const uint64_t free = gpu.total - gpu.reserved - gpu.used();
    *memory = {memory->version, gpu.total, gpu.reserved, free, gpu.used()};
    return kSuccess;
  });
}

int nvmlDeviceGetMigMode(Handle handle, unsigned* now, unsigned* pending) {
  return call("nvmlDeviceGetMigMode", handle, [&](Gpu& gpu) {
    *now = *pending = gpu.is_mig;
    return kSuccess;
  });
}

int nvmlDeviceGetMaxMigDeviceCount(Handle handle, unsigned* count) {
  return call("nvmlDeviceGetMaxMigDeviceCount", handle, [&](Gpu&) {
    *count = 7;
    return kSuccess;
  });
}

int nvmlDeviceGetMigDeviceHandleByIndex(Handle handle, unsigned index, Handle* slice) {
  return call("nvmlDeviceGetMigDeviceHandleByIndex", handle, [&](Gpu& gpu) {
    *slice = handle_of(reinterpret_cast<uintptr_t>(handle) - 1, index + 1);
    const bool is_there = index < gpu.slices.size() && !gpu.slices[index].uuid.empty();
    return is_there ? kSuccess : kNotFound;
  });
}

int nvmlDeviceGetComputeRunningProcesses_v3(Handle handle, unsigned* count, ProcessInfo* infos) {
  return call("nvmlDeviceGetComputeRunningProcesses_v3", handle,
              [&](Gpu& gpu) { return list(gpu.computing, count, infos); });
}

int nvmlDeviceGetGraphicsRunningProcesses_v3(Handle handle, unsigned* count, ProcessInfo* infos) {
  return call("nvmlDeviceGetGraphicsRunningProcesses_v3", handle,
              [&](Gpu& gpu) { return list(gpu.drawing, count, infos); });
}

// PyTorch asks this call alone, and takes the processes in a layout of its own.
int nvmlDeviceGetComputeRunningProcesses(Handle, unsigned* count, void*) {
  *count = 0;
  return kSuccess;
}

// PyTorch looks these up, and calls none of them here.
int nvmlDeviceGetGpuFabricInfoV() { return kNotSupported; }
int nvmlDeviceGetNvLinkRemoteDeviceType() { return kNotSupported; }
int nvmlDeviceGetNvLinkRemotePciInfo_v2() { return kNotSupported; }
int nvmlSystemGetCudaDriverVersion_v2() { return kNotSupported; }

}  // extern "C"
