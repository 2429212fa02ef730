// RunInChild: runs a function in a child process, so that the function may abort or be killed.
//
// REQUIRES: the calling process has no other threads (such as RocksDB's), because the child would
// not have these threads.
#ifndef HEARTH_TESTS_SUPPORT_RUN_IN_CHILD_H_
#define HEARTH_TESTS_SUPPORT_RUN_IN_CHILD_H_

#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <functional>

namespace hearth {

// Runs `job` in a child process. Returns the status from waitpid: 0 if the job ended normally.
inline int RunInChild(const std::function<void()>& job) {
  const pid_t child = fork();
  if (child == 0) {
    job();
    std::_Exit(0);
  }
  int status = 0;
  waitpid(child, &status, 0);
  return status;
}

}  // namespace hearth

#endif  // HEARTH_TESTS_SUPPORT_RUN_IN_CHILD_H_
