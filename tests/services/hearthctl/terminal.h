// Terminal: runs hearthctl on a pseudo terminal, as a person at a terminal would.
//
// Thread safety: none. Ownership: owns the process; the destructor kills it and waits for its end.
#ifndef HEARTH_TESTS_SERVICES_HEARTHCTL_TERMINAL_H_
#define HEARTH_TESTS_SERVICES_HEARTHCTL_TERMINAL_H_

#include <sys/types.h>

#include <map>
#include <string>
#include <vector>

namespace hearth {

class Terminal {
 public:
  // Starts hearthctl. `variables` are added to a minimal environment.
  explicit Terminal(const std::vector<std::string>& arguments,
                    const std::map<std::string, std::string>& variables = {});
  ~Terminal();
  Terminal(const Terminal&) = delete;
  Terminal& operator=(const Terminal&) = delete;

  void Type(const std::string& text);
  // Reads output until it contains `text`; skips output up to the previous match. Returns false if
  // the program ends first, or if it prints nothing for a minute.
  bool WaitFor(const std::string& text);
  // Reads the rest of the output and waits for the program's end. Returns the status from waitpid.
  int WaitEnd();

  // Returns whether the terminal echoes input and delivers it line by line.
  bool EchoesInput() const;
  const std::string& screen() const { return screen_; }

 private:
  bool ReadMore();

  int file_ = -1;
  pid_t process_ = -1;
  std::string screen_;
  size_t seen_ = 0;
};

}  // namespace hearth

#endif  // HEARTH_TESTS_SERVICES_HEARTHCTL_TERMINAL_H_
