// Signals that a batch system sends to each process of a job.
//
// A process that computes, or that loads batches for one, must not end by SIGTERM before the job
// has saved. But a process of the job may end another one by SIGTERM, as PyTorch ends its workers:
// then sender and receiver are in one process group. A program that the process starts inherits
// none of these handlers.
#include <pybind11/pybind11.h>
#include <signal.h>
#include <unistd.h>

#include <cerrno>

#include "bindings/register.h"

namespace py = pybind11;

namespace gpushare {
namespace {

struct sigaction before;  // what PyTorch does in its workers

void end_by(int number) {
  struct sigaction ends{};
  ends.sa_handler = SIG_DFL;
  sigaction(number, &ends, nullptr);
  raise(number);  // it is blocked until its handler returns
}

void on_signal(int number, siginfo_t* info, void* context) {
  const int error = errno;
  // A sender outside of this process's namespace has no id here.
  const bool is_of_the_group = info->si_pid > 0 && getpgid(info->si_pid) == getpgrp();
  if (is_of_the_group && (before.sa_flags & SA_SIGINFO)) {
    before.sa_sigaction(number, info, context);
  } else if (is_of_the_group) {
    end_by(number);
  }
  errno = error;
}

void obey_own_group() {
  struct sigaction now{};
  sigaction(SIGTERM, nullptr, &now);
  if ((now.sa_flags & SA_SIGINFO) && now.sa_sigaction == on_signal) return;
  before = now;
  struct sigaction obeys{};
  obeys.sa_sigaction = on_signal;
  obeys.sa_flags = SA_SIGINFO | SA_RESTART;
  sigaction(SIGTERM, &obeys, nullptr);
}

}  // namespace

void register_signals(py::module_& module) {
  module.def("obey_own_group", &obey_own_group,
             "From now on SIGTERM ends this process only if it comes from its own process group.");
}

}  // namespace gpushare
