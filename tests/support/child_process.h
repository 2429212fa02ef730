// ChildProcess: a program that a test starts, and kills.
//
// Thread safety: none. If the test's process ends, the child is killed too.
#ifndef HEARTH_TESTS_SUPPORT_CHILD_PROCESS_H_
#define HEARTH_TESTS_SUPPORT_CHILD_PROCESS_H_

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <string>
#include <vector>

namespace hearth {

class ChildProcess {
 public:
  // `setting`: NAME=VALUE, added to the environment.
  explicit ChildProcess(std::vector<std::string> command, std::string setting = "UNUSED=") {
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) != 0) return;
    std::vector<char*> argv, environment = {setting.data()};
    for (std::string& word : command) argv.push_back(word.data());
    for (char** known = environ; *known != nullptr; ++known) environment.push_back(*known);
    argv.push_back(nullptr);
    environment.push_back(nullptr);
    out_ = ends[0];
    pid_ = fork();
    if (pid_ == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      dup2(ends[1], STDOUT_FILENO);
      execve(argv[0], argv.data(), environment.data());
      _exit(127);
    }
    close(ends[1]);
  }
  ChildProcess(const ChildProcess&) = delete;
  ~ChildProcess() {
    Kill();
    close(out_);
  }
  // Waits until the child prints a line that begins with `text`, and returns the rest of the line.
  // Returns "ended" if the child ended before.
  std::string WaitFor(const std::string& text) {
    std::string line;
    for (char c; read(out_, &c, 1) == 1;) {
      if (c != '\n') {
        line += c;
      } else if (line.compare(0, text.size(), text) == 0) {
        return line.substr(text.size());
      } else {
        line.clear();
      }
    }
    return "ended";
  }
  void Kill() {
    if (pid_ < 0) return;
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
    pid_ = -1;
  }

 private:
  pid_t pid_ = -1;
  int out_ = -1;
};

}  // namespace hearth

#endif  // HEARTH_TESTS_SUPPORT_CHILD_PROCESS_H_
