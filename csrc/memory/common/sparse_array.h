#pragma once
#include <sys/mman.h>

#include <cstddef>
#include <type_traits>

namespace gpushare {

// An array of zeros in which only touched pages cost memory. It is not initialised one by one, so
// all zeros must be a meaningful element.
template <class T>
class SparseArray {
  static_assert(std::is_trivially_copyable_v<T>);

 public:
  SparseArray() = default;
  SparseArray(const SparseArray&) = delete;
  SparseArray& operator=(const SparseArray&) = delete;
  ~SparseArray() {
    if (elements_ != nullptr) munmap(elements_, bytes_);
  }

  // Called once; returns false where the system has no room for it.
  bool open(size_t count) {
    bytes_ = count * sizeof(T);
    void* memory = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory != MAP_FAILED) elements_ = static_cast<T*>(memory);
    return elements_ != nullptr;
  }

  T& operator[](size_t index) { return elements_[index]; }
  const T& operator[](size_t index) const { return elements_[index]; }

 private:
  T* elements_ = nullptr;
  size_t bytes_ = 0;
};

}  // namespace gpushare
