#include "memory/paging_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <system_error>

namespace gpushare {
namespace {

// Zero, or the error.
int reserve(int file, size_t bytes) {
  int error;
  do error = posix_fallocate(file, 0, static_cast<off_t>(bytes));
  while (error == EINTR);
  return error;
}

}  // namespace

PagingFile::~PagingFile() {
  if (number_ >= 0) close(number_);
}

std::string PagingFile::open(const std::string& directory, size_t bytes) {
  std::string path = directory + "/gpushare-XXXXXX";
  number_ = mkostemp(path.data(), O_CLOEXEC);
  if (number_ < 0) return because("no file can be made in " + directory, errno);
  unlink(path.c_str());
  const int error = reserve(number_, bytes);
  return error == 0 ? "" : because(mebibytes(bytes) + " do not fit into " + directory, error);
}

std::string because(const std::string& what, int error) {
  return what + ": " + std::generic_category().message(error);
}

std::string mebibytes(size_t bytes) {
  return std::to_string((bytes + (1 << 20) - 1) >> 20) + " MiB";
}

}  // namespace gpushare
