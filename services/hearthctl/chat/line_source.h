// LineSource: where a conversation's turns come from, one at a time.
//
// Thread safety: none. Ownership: borrows the console.
#ifndef HEARTH_SERVICES_HEARTHCTL_CHAT_LINE_SOURCE_H_
#define HEARTH_SERVICES_HEARTHCTL_CHAT_LINE_SOURCE_H_

#include <optional>
#include <string>

#include "services/cli/console.h"

namespace hearth {

class LineSource {
 public:
  virtual ~LineSource() = default;
  // A turn, without its line end; nothing at the end of input.
  virtual std::optional<std::string> Next() = 0;
};

// The console's lines as they come, each behind a prompt sign.
class StreamLines final : public LineSource {
 public:
  StreamLines(Console* console, std::string prompt)
      : console_(console), prompt_(std::move(prompt)) {}
  std::optional<std::string> Next() override {
    console_->out << prompt_ << std::flush;
    std::string line;
    if (!std::getline(console_->in, line)) return std::nullopt;
    return line;
  }

 private:
  Console* const console_;
  const std::string prompt_;
};

}  // namespace hearth

#endif  // HEARTH_SERVICES_HEARTHCTL_CHAT_LINE_SOURCE_H_
