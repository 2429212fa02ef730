// EditedLines: turns typed at a terminal, with the editing keys and the history of libedit.
//
// A paste becomes a part of the line, whatever line ends it has; a paste beyond kMaxPasteBytes is
// left out, and the line says so. Ctrl-C, and Ctrl-D on an empty line, end the input.
// Thread safety: none; one at a time in a process. Ownership: borrows the interrupt, whose action
// it sets while it waits for a line.
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
  // A context of 128K tokens has half of it.
  static constexpr size_t kMaxPasteBytes = size_t{1} << 20;

  EditedLines(const std::string& prompt, Interrupt* interrupt);
  ~EditedLines();
  // The next line, without its end; nothing at the end of input.
  std::optional<std::string> Next();

 private:
  struct Editor;  // libedit's
  Interrupt* const interrupt_;
  const std::unique_ptr<Editor> editor_;
};

}  // namespace hearth

#endif  // HEARTH_SERVICES_HEARTHCTL_EDITED_LINES_H_
