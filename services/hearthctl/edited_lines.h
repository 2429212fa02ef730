// EditedLines: reads lines from a terminal, with the editing keys and history of libedit.
//
// Pasted text becomes part of the line, including its line ends. A paste of more than
// kMaxPasteBytes is dropped, and a note is inserted instead. Ctrl-C, and Ctrl-D on an empty line,
// end the input. Thread safety: none; at most one object per process. Ownership: borrows the
// Interrupt, and sets its action while waiting for a line.
#ifndef HEARTH_SERVICES_HEARTHCTL_EDITED_LINES_H_
#define HEARTH_SERVICES_HEARTHCTL_EDITED_LINES_H_

#include <cstddef>
#include <memory>
#include <optional>
#include <string>

#include "services/hearthctl/interrupt.h"

namespace hearth {

class EditedLines {
 public:
  // The text of a full context of 128K tokens is about half as long.
  static constexpr size_t kMaxPasteBytes = size_t{1} << 20;

  EditedLines(const std::string& prompt, Interrupt* interrupt);
  ~EditedLines();
  // Returns the next line without its line end; nullopt at the end of input.
  std::optional<std::string> Next();

 private:
  struct Editor;  // wraps the state of libedit
  Interrupt* const interrupt_;
  const std::unique_ptr<Editor> editor_;
};

}  // namespace hearth

#endif  // HEARTH_SERVICES_HEARTHCTL_EDITED_LINES_H_
