// Installs something at most once in a process, whichever thread asks first.
#pragma once

#include <mutex>
#include <string>

namespace gpushare {

class InstallOnce {
 public:
  // `install` and this function return an empty string, or the sentence that says why it is
  // impossible. After a failure the next call tries again.
  template <class Install>
  [[nodiscard]] std::string operator()(const Install& install) {
    const std::lock_guard guard(mutex_);
    if (is_installed_) return {};
    std::string reason = install();
    is_installed_ = reason.empty();
    return reason;
  }

 private:
  std::mutex mutex_;
  bool is_installed_ = false;
};

}  // namespace gpushare
