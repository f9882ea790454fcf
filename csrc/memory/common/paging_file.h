#pragma once
#include <cstddef>
#include <string>

namespace gpushare {

// A file for memory that is paged out. It has no name, and lives as long as this object or a
// mapping of it, here or in a forked child.
class PagingFile {
 public:
  PagingFile() = default;
  PagingFile(const PagingFile&) = delete;
  PagingFile& operator=(const PagingFile&) = delete;
  ~PagingFile();

  // Called once, with the size of all of it, so that a full disk is found before anything moves.
  // Returns an empty string, or the sentence that says why it is impossible.
  [[nodiscard]] std::string open(const std::string& directory, size_t bytes);
  int number() const { return number_; }

 private:
  int number_ = -1;
};

// Writes all of it to that offset of the file. Returns zero, or the error.
int write_all(int file, const std::byte* begin, size_t bytes, size_t offset);

// Sentences about paging: what the system said, and sizes, rounded up.
std::string because(const std::string& what, int error);
std::string mebibytes(size_t bytes);

}  // namespace gpushare
