#pragma once
#include <span>
#include <string>

namespace gpushare {

// One import of a shared library, and the function to which its calls are redirected.
struct Redirection {
  const char* name;
  void* original;  // what the import must be bound to now, where it is bound already
  void* replacement;
};

// Redirects imports of one loaded library, given by its file name; the calls of other libraries do
// not change. It redirects all of them or none. Returns an empty string, or the sentence that says
// why it is impossible.
[[nodiscard]] std::string redirect_imports(const char* library,
                                           std::span<const Redirection> redirections);

}  // namespace gpushare
