#include "tests/services/hearthctl/terminal.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <pty.h>
#include <sys/wait.h>
#include <termios.h>
#include <unistd.h>

#include <csignal>

#include "absl/strings/str_cat.h"

namespace hearth {
namespace {

constexpr int kMinuteMs = 60000;

std::vector<char*> Pointers(std::vector<std::string>* texts) {
  std::vector<char*> pointers;
  for (std::string& text : *texts) pointers.push_back(text.data());
  pointers.push_back(nullptr);
  return pointers;
}

}  // namespace

Terminal::Terminal(const std::vector<std::string>& arguments,
                   const std::map<std::string, std::string>& variables) {
  std::vector<std::string> words = {HEARTHCTL_PROGRAM};
  words.insert(words.end(), arguments.begin(), arguments.end());
  std::vector<std::string> environment = {"TERM=xterm", "HOME=/nonexistent", "LC_ALL=C.UTF-8"};
  for (const auto& [name, value] : variables) {
    environment.push_back(absl::StrCat(name, "=", value));
  }
  const std::vector<char*> argv = Pointers(&words), envp = Pointers(&environment);
  winsize size{};
  size.ws_row = 40;
  size.ws_col = 120;
  process_ = forkpty(&file_, nullptr, nullptr, &size);
  EXPECT_GE(process_, 0);
  if (process_ != 0) return;
  // After fork in a process with threads, locks may be held forever, so only call execve.
  execve(argv[0], argv.data(), envp.data());
  _exit(127);
}

Terminal::~Terminal() {
  if (file_ >= 0) close(file_);
  if (process_ <= 0) return;
  kill(process_, SIGKILL);
  waitpid(process_, nullptr, 0);
}

void Terminal::Type(const std::string& text) {
  EXPECT_EQ(write(file_, text.data(), text.size()), static_cast<ssize_t>(text.size()));
}

bool Terminal::ReadMore() {
  pollfd ready{file_, POLLIN, 0};
  if (poll(&ready, 1, kMinuteMs) <= 0) return false;
  char bytes[4096];
  const ssize_t count = read(file_, bytes, sizeof(bytes));
  if (count <= 0) return false;  // end of file or EIO: the program has ended
  screen_.append(bytes, static_cast<size_t>(count));
  return true;
}

bool Terminal::WaitFor(const std::string& text) {
  for (;;) {
    const size_t found = screen_.find(text, seen_);
    if (found != std::string::npos) {
      seen_ = found + text.size();
      return true;
    }
    if (!ReadMore()) return false;
  }
}

bool Terminal::EchoesInput() const {
  termios mode{};
  return tcgetattr(file_, &mode) == 0 && (mode.c_lflag & ECHO) != 0 && (mode.c_lflag & ICANON) != 0;
}

int Terminal::WaitEnd() {
  while (ReadMore()) {
  }
  int status = 0;
  EXPECT_EQ(waitpid(process_, &status, 0), process_);
  process_ = -1;
  return status;
}

}  // namespace hearth
