// UTF-8 in text that comes from outside: validation, repair of byte streams, Unicode white space.
//
// Thread safety: free functions are pure; a Utf8Repairer belongs to one thread.
#ifndef HEARTH_PROTO_UTF8_H_
#define HEARTH_PROTO_UTF8_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace hearth {

// The byte offset of the first ill-formed sequence, or nothing when `text` is well formed.
// Overlong forms, surrogates and code points above U+10FFFF are ill formed.
std::optional<size_t> FindInvalidUtf8(std::string_view text);

// True when `offset` does not fall inside a character. REQUIRES: text is well formed,
// offset <= text.size().
bool IsUtf8Boundary(std::string_view text, size_t offset);

struct Character {
  char32_t code = 0;
  uint32_t bytes = 0;
};

// REQUIRES: the byte at `at` begins a character, and the bytes that it asks for follow.
inline Character CharacterAt(std::string_view text, size_t at) {
  const auto byte = [&](size_t i) { return char32_t{static_cast<uint8_t>(text[at + i])}; };
  const char32_t lead = byte(0);
  if (lead < 0x80) return {lead, 1};
  if (lead < 0xE0) return {(lead & 0x1F) << 6 | (byte(1) & 0x3F), 2};
  const char32_t low = (byte(1) & 0x3F) << 6 | (byte(2) & 0x3F);
  if (lead < 0xF0) return {(lead & 0xF) << 12 | low, 3};
  return {(lead & 7) << 18 | low << 6 | (byte(3) & 0x3F), 4};
}

// White space as Python's str.strip and str.lstrip see it. REQUIRES: text is well formed.
std::string_view StripWhitespace(std::string_view text);
std::string_view StripLeadingWhitespace(std::string_view text);

// Turns a stream of bytes into whole characters. A byte that can belong to no character becomes
// U+FFFD, one for each byte; an incomplete character waits for its rest.
//
// Invariants: (1) what Append emits is well formed; (2) at most 3 bytes wait; (3) the emitted text
// does not depend on how the bytes were divided among calls.
class Utf8Repairer {
 public:
  void Append(std::string_view bytes, std::string* out);
  // The end of the text: emits an incomplete character as U+FFFD.
  void Finish(std::string* out);

 private:
  std::string pending_;
};

}  // namespace hearth

#endif  // HEARTH_PROTO_UTF8_H_
