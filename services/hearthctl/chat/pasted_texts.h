// PastedTexts: keeps what was pasted with line ends in it, so that a line of the terminal shows a
// short mark in its place.
//
// Thread safety: none.
#ifndef HEARTH_SERVICES_HEARTHCTL_CHAT_PASTED_TEXTS_H_
#define HEARTH_SERVICES_HEARTHCTL_CHAT_PASTED_TEXTS_H_

#include <cstddef>
#include <string>
#include <vector>

namespace hearth {

class PastedTexts {
 public:
  // A line of the terminal that holds more is slow to edit.
  static constexpr size_t kMaxShownBytes = 1024;

  // What the line shows: a short text of one line without control characters itself, for others
  // "[pasted 1: 12 lines]".
  std::string Add(std::string text);
  // What the line shows in place of `what`: "[a paste of more than 12 MiB: left out]".
  std::string LeaveOut(const std::string& what);
  // The line with each mark replaced by its text.
  std::string Expand(const std::string& line) const;

 private:
  struct Pasted {
    std::string mark, text;
  };
  std::vector<Pasted> pasted_;
};

}  // namespace hearth

#endif  // HEARTH_SERVICES_HEARTHCTL_CHAT_PASTED_TEXTS_H_
