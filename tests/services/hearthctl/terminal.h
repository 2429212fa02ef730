// Terminal: a program on a pseudo terminal, as a person has it before them.
//
// Thread safety: none. Ownership: the program; the destructor hangs up and waits for its end.
#ifndef HEARTH_TESTS_SERVICES_HEARTHCTL_TERMINAL_H_
#define HEARTH_TESTS_SERVICES_HEARTHCTL_TERMINAL_H_

#include <sys/types.h>

#include <map>
#include <string>
#include <vector>

namespace hearth {

class Terminal {
 public:
  // Starts hearthctl, with `variables` beside the environment.
  explicit Terminal(const std::vector<std::string>& arguments,
                    const std::map<std::string, std::string>& variables = {});
  ~Terminal();
  Terminal(const Terminal&) = delete;
  Terminal& operator=(const Terminal&) = delete;

  void Type(const std::string& text);
  // Reads until `text` is on the screen, behind what the last call found. False when the program
  // ended before, or a minute went by without output.
  bool WaitFor(const std::string& text);
  // The rest of the output, and the status of waitpid.
  int WaitEnd();

  // Whether the terminal shows what is typed, and gives it to programs line by line.
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
