#include "memory/common/paging_file.h"

#include <fcntl.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <system_error>

namespace gpushare {
namespace {

// Returns zero, or the error.
int reserve(int file, size_t bytes) {
  int error;
  do error = posix_fallocate(file, 0, static_cast<off_t>(bytes));
  while (error == EINTR);
  return error;
}

// A file that is emptied gives its disk space back, since a part of it may have been reserved.
std::string what_is_free(int file) {
  struct statvfs disk;
  if (ftruncate(file, 0) != 0 || fstatvfs(file, &disk) != 0) return "";
  return ", which has " + mebibytes(static_cast<size_t>(disk.f_bavail) * disk.f_frsize) + " free";
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
  if (error == 0) return "";
  const std::string lack = mebibytes(bytes) + " do not fit into " + directory;
  return because(error == ENOSPC ? lack + what_is_free(number_) : lack, error);
}

int write_all(int file, const std::byte* begin, size_t bytes, size_t offset) {
  while (bytes > 0) {
    const ssize_t written = pwrite(file, begin, bytes, static_cast<off_t>(offset));
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return written < 0 ? errno : ENOSPC;
    begin += written;
    bytes -= static_cast<size_t>(written);
    offset += static_cast<size_t>(written);
  }
  return 0;
}

std::string because(const std::string& what, int error) {
  return what + ": " + std::generic_category().message(error);
}

std::string mebibytes(size_t bytes) {
  return std::to_string((bytes + (1 << 20) - 1) >> 20) + " MiB";
}

}  // namespace gpushare
