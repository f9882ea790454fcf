// The fake driver forbids what the real one forbids, and our class says what is missing.
#include <doctest/doctest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>

#include "fake_driver.h"
#include "memory/cuda/cuda_driver.h"

using namespace gpushare;

namespace {

constexpr size_t kMiB = size_t{1} << 20;
constexpr size_t kGranule = 2 * kMiB;

// Set for all tests of this program, before the driver reads it.
[[maybe_unused]] const int kTwoDevices = setenv("FAKE_CUDA_COUNT", "2", 1);

// The driver as a program of CUDA's documentation uses it; all that it took is given back at the
// end.
struct Program {
  Program() {
    REQUIRE(driver.find() == "");
    REQUIRE(driver.cuInit(0) == kCudaSuccess);
    REQUIRE(driver.cuDevicePrimaryCtxRetain(&context, 0) == kCudaSuccess);
    REQUIRE(driver.cuCtxPushCurrent_v2(context) == kCudaSuccess);
  }
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;
  ~Program() {
    driver.cuCtxPopCurrent_v2(&context);
    driver.cuDevicePrimaryCtxRelease_v2(0);
    CHECK(fake_driver::alive() == fake_driver::Alive{});
  }

  CudaAllocationProperties properties(CudaHandleType type = CudaHandleType::kDescriptor,
                                      int device = 0) const {
    return {CudaAllocationType::kPinned, type, place(device), nullptr, 0, 0, 0, {}};
  }
  CudaHandle create(size_t bytes, CudaHandleType type = CudaHandleType::kDescriptor) {
    CudaHandle handle = 0;
    const auto wanted = properties(type);
    REQUIRE(driver.cuMemCreate(&handle, bytes, &wanted, 0) == kCudaSuccess);
    return handle;
  }
  CudaAddress reserve(size_t bytes) {
    CudaAddress address = 0;
    REQUIRE(driver.cuMemAddressReserve(&address, bytes, 0, 0, 0) == kCudaSuccess);
    return address;
  }
  CudaResult allow(CudaAddress address, size_t bytes, int device = 0) {
    const CudaAccessDescription access{place(device), CudaAccess::kReadWrite};
    return driver.cuMemSetAccess(address, bytes, &access, 1);
  }

  static CudaLocation place(int device) { return {CudaLocationType::kDevice, device}; }

  CudaDriver driver;
  CudaContext* context = nullptr;
};

// The system looks, since a touch would end the process.
bool is_readable(CudaAddress address) {
  int ends[2];
  REQUIRE(pipe(ends) == 0);
  const bool readable = write(ends[1], reinterpret_cast<const void*>(address), 1) == 1;
  close(ends[0]);
  close(ends[1]);
  return readable;
}

}  // namespace

TEST_CASE("a driver that is missing or too old is reported in one sentence") {
  CudaDriver driver;
  CHECK(
      driver.find("no-such-library.so").find("there is no CUDA driver here: no-such-library.so") ==
      0);
  CHECK(driver.find("libc.so.6") == "libc.so.6 has no cuInit");
  CHECK(driver.find() == "");
  const char* sentence = nullptr;
  REQUIRE(driver.cuGetErrorString(kCudaOutOfMemory, &sentence) == kCudaSuccess);
  CHECK(std::string(sentence) == "out of memory");
}

TEST_CASE("memory is mapped whole, into reserved addresses that show nothing yet") {
  Program program;
  const CudaDriver& driver = program.driver;
  const CudaHandle handle = program.create(2 * kGranule);
  const CudaAddress window = program.reserve(4 * kGranule);
  CHECK(driver.cuMemMap(window, kGranule, 0, handle, 0) != kCudaSuccess);             // a part
  CHECK(driver.cuMemMap(window, 2 * kGranule, kGranule, handle, 0) != kCudaSuccess);  // an offset
  CHECK(driver.cuMemMap(window + kMiB, 2 * kGranule, 0, handle, 0) != kCudaSuccess);
  CHECK(driver.cuMemMap(window + 3 * kGranule, 2 * kGranule, 0, handle, 0) != kCudaSuccess);
  REQUIRE(driver.cuMemMap(window, 2 * kGranule, 0, handle, 0) == kCudaSuccess);
  CHECK(driver.cuMemMap(window + kGranule, 2 * kGranule, 0, handle, 0) != kCudaSuccess);
  CHECK(driver.cuMemAddressFree(window, 4 * kGranule) != kCudaSuccess);  // something is mapped
  CHECK(driver.cuMemUnmap(window, kGranule) != kCudaSuccess);
  CHECK(driver.cuMemUnmap(window, 3 * kGranule) != kCudaSuccess);
  CHECK(driver.cuMemUnmap(window, 2 * kGranule) == kCudaSuccess);
  CHECK(driver.cuMemAddressFree(window, 2 * kGranule) != kCudaSuccess);
  CHECK(driver.cuMemAddressFree(window, 4 * kGranule) == kCudaSuccess);
  CHECK(driver.cuMemRelease(handle) == kCudaSuccess);
  CHECK(driver.cuMemRelease(handle) != kCudaSuccess);
}

TEST_CASE("mapped memory cannot be touched before access is set") {
  Program program;
  const CudaDriver& driver = program.driver;
  const CudaHandle handle = program.create(kGranule);
  const CudaAddress window = program.reserve(2 * kGranule);
  REQUIRE(driver.cuMemMap(window, kGranule, 0, handle, 0) == kCudaSuccess);
  char byte = 7;
  CHECK(driver.cuMemcpyHtoD_v2(window, &byte, 1) != kCudaSuccess);
  CHECK_FALSE(is_readable(window));
  CHECK(program.allow(window, 2 * kGranule) != kCudaSuccess);
  REQUIRE(program.allow(window, kGranule) == kCudaSuccess);
  CHECK(is_readable(window));
  CHECK(driver.cuMemcpyHtoD_v2(window + kGranule - 1, &byte, 1) == kCudaSuccess);
  CHECK(driver.cuMemcpyHtoD_v2(window + kGranule - 1, &byte, 2) != kCudaSuccess);
  CHECK(reinterpret_cast<char*>(window)[kGranule - 1] == 7);
  driver.cuMemUnmap(window, kGranule);
  driver.cuMemAddressFree(window, 2 * kGranule);
  driver.cuMemRelease(handle);
}

TEST_CASE("memory lives as long as a handle, a mapping or an import of it") {
  Program program;
  const CudaDriver& driver = program.driver;
  const CudaHandle handle = program.create(kGranule);
  const CudaAddress window = program.reserve(2 * kGranule);
  int descriptor = -1;
  REQUIRE(driver.cuMemExportToShareableHandle(&descriptor, handle, CudaHandleType::kDescriptor,
                                              0) == kCudaSuccess);
  REQUIRE(driver.cuMemMap(window, kGranule, 0, handle, 0) == kCudaSuccess);
  REQUIRE(program.allow(window, kGranule) == kCudaSuccess);
  REQUIRE(driver.cuMemRelease(handle) == kCudaSuccess);
  CHECK(fake_driver::alive().bytes == kGranule);
  *reinterpret_cast<char*>(window) = 7;
  REQUIRE(driver.cuMemUnmap(window, kGranule) == kCudaSuccess);
  CHECK(fake_driver::alive().bytes == kGranule);
  CudaHandle imported = 0;
  REQUIRE(driver.cuMemImportFromShareableHandle(
              &imported, reinterpret_cast<void*>(static_cast<uintptr_t>(descriptor)),
              CudaHandleType::kDescriptor) == kCudaSuccess);
  close(descriptor);
  REQUIRE(driver.cuMemMap(window + kGranule, kGranule, 0, imported, 0) == kCudaSuccess);
  REQUIRE(program.allow(window + kGranule, kGranule) == kCudaSuccess);
  CHECK(reinterpret_cast<char*>(window)[kGranule] == 7);
  driver.cuMemUnmap(window + kGranule, kGranule);
  driver.cuMemRelease(imported);
  driver.cuMemAddressFree(window, 2 * kGranule);
}

TEST_CASE("only memory that was made for it can be shared") {
  Program program;
  const CudaHandle handle = program.create(kGranule, CudaHandleType::kNone);
  int descriptor = -1;
  CHECK(program.driver.cuMemExportToShareableHandle(
            &descriptor, handle, CudaHandleType::kDescriptor, 0) != kCudaSuccess);
  program.driver.cuMemRelease(handle);
}

TEST_CASE("capacity and granularity are kept, and errors come on demand") {
  Program program;
  const CudaDriver& driver = program.driver;
  const auto properties = program.properties();
  CudaHandle handle = 0;
  fake_driver::set_capacity(3 * kGranule);
  const CudaHandle first = program.create(2 * kGranule);
  CHECK(driver.cuMemCreate(&handle, 2 * kGranule, &properties, 0) == kCudaOutOfMemory);
  CHECK(driver.cuMemCreate(&handle, kMiB, &properties, 0) != kCudaSuccess);
  fake_driver::fail(2, 999);
  const CudaHandle second = program.create(kGranule);
  CHECK_FALSE(fake_driver::has_failed());
  CHECK(driver.cuMemRelease(second) == 999);
  CHECK(fake_driver::has_failed());
  CHECK(driver.cuMemRelease(second) == kCudaSuccess);
  driver.cuMemRelease(first);
  fake_driver::set_capacity(size_t{1} << 30);
  fake_driver::forget_calls();
  driver.cuCtxSynchronize();
  CHECK(fake_driver::calls() == fake_driver::Calls{{"cuCtxSynchronize", 1}});
}

TEST_CASE("each device has its own capacity, which is that of the memory made there") {
  Program program;
  const CudaDriver& driver = program.driver;
  fake_driver::set_capacity(3 * kGranule, 0);
  fake_driver::set_capacity(kGranule, 1);
  const CudaHandle first = program.create(2 * kGranule);
  const auto there = program.properties(CudaHandleType::kDescriptor, 1);
  CudaHandle handle = 0;
  CHECK(driver.cuMemCreate(&handle, 2 * kGranule, &there, 0) == kCudaOutOfMemory);
  REQUIRE(driver.cuMemCreate(&handle, kGranule, &there, 0) == kCudaSuccess);
  const auto nowhere = program.properties(CudaHandleType::kDescriptor, 2);
  CHECK(driver.cuMemCreate(&handle, kGranule, &nowhere, 0) != kCudaSuccess);
  const CudaHandle second = program.create(kGranule);
  for (const CudaHandle made : {first, second, handle}) driver.cuMemRelease(made);
  for (const int device : {0, 1}) fake_driver::set_capacity(size_t{1} << 30, device);
}

TEST_CASE("a device has no access to another's memory") {
  Program program;
  const CudaDriver& driver = program.driver;
  const auto there = program.properties(CudaHandleType::kDescriptor, 1);
  CudaHandle handle = 0;
  REQUIRE(driver.cuMemCreate(&handle, kGranule, &there, 0) == kCudaSuccess);
  const CudaAddress window = program.reserve(kGranule);
  REQUIRE(driver.cuMemMap(window, kGranule, 0, handle, 0) == kCudaSuccess);
  CHECK(program.allow(window, kGranule, 0) != kCudaSuccess);
  CHECK_FALSE(is_readable(window));
  CHECK(program.allow(window, kGranule, 1) == kCudaSuccess);
  CHECK(is_readable(window));
  driver.cuMemUnmap(window, kGranule);
  driver.cuMemAddressFree(window, kGranule);
  driver.cuMemRelease(handle);
}

TEST_CASE("a forked child has no CUDA") {
  Program program;
  const pid_t child = fork();
  if (child == 0) _exit(program.driver.cuCtxSynchronize() == 3 ? 0 : 1);  // not initialised
  int status = 0;
  REQUIRE(waitpid(child, &status, 0) == child);
  CHECK(status == 0);
}
