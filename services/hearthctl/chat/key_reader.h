// KeyReader: the characters typed at a terminal, of which a paste is one.
//
// A terminal that was asked to brackets what is pasted with marks of its own. A paste beyond
// kMaxPasteBytes is left out, and the line says so.
// Thread safety: Stop may be called from any thread. Ownership: borrows the pasted texts.
#ifndef HEARTH_SERVICES_HEARTHCTL_CHAT_KEY_READER_H_
#define HEARTH_SERVICES_HEARTHCTL_CHAT_KEY_READER_H_

#include <cstddef>
#include <string>

#include "services/hearthctl/chat/pasted_texts.h"

namespace hearth {

class KeyReader {
 public:
  // Four times the longest request.
  static constexpr size_t kMaxPasteBytes = size_t{12} << 20;

  // `terminal`: a file descriptor.
  KeyReader(int terminal, PastedTexts* pasted);
  ~KeyReader();
  KeyReader(const KeyReader&) = delete;
  KeyReader& operator=(const KeyReader&) = delete;

  // The next character. False at the end of input, and once Stop was called.
  bool Next(wchar_t* character);
  void Stop();
  // Forgets a Stop.
  void Restart();

 private:
  // Appends what there is to `bytes_`. `wait_ms`: -1 for as long as it takes.
  bool ReadMore(int wait_ms);
  bool TakePaste();
  bool TakeCharacter(wchar_t* character);

  const int terminal_;
  PastedTexts* const pasted_;
  int stop_[2] = {-1, -1};  // a pipe
  std::string bytes_;       // read and not taken
};

}  // namespace hearth

#endif  // HEARTH_SERVICES_HEARTHCTL_CHAT_KEY_READER_H_
