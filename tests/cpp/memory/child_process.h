#pragma once
#include <sys/wait.h>
#include <unistd.h>

#include <functional>

inline pid_t process(const std::function<void()>& work) {
  const pid_t child = fork();
  if (child == 0) {
    work();
    _exit(0);
  }
  return child;
}

// The status with which it ended; -1: there is no such child.
inline int end_of(pid_t child) {
  int status = -1;
  waitpid(child, &status, 0);
  return status;
}
