// UTF-8 in untrusted text: validation, repair of byte streams, Unicode white space.
//
// Thread safety: free functions are pure; a Utf8Repairer is used by one thread.
#ifndef HEARTH_PROTO_UTF8_H_
#define HEARTH_PROTO_UTF8_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace hearth {

// Returns the byte offset of the first ill-formed sequence; nullopt if `text` is well formed.
// Overlong forms, surrogates and code points above U+10FFFF are ill formed.
std::optional<size_t> FindInvalidUtf8(std::string_view text);

// Returns false if `offset` is inside a character. REQUIRES: text is well formed, offset <=
// text.size().
bool IsUtf8Boundary(std::string_view text, size_t offset);

struct Character {
  char32_t code = 0;
  uint32_t bytes = 0;
};

// Decodes the character that begins at byte `at`. REQUIRES: a complete character begins there.
inline Character CharacterAt(std::string_view text, size_t at) {
  const auto byte = [&](size_t i) { return char32_t{static_cast<uint8_t>(text[at + i])}; };
  const char32_t lead = byte(0);
  if (lead < 0x80) return {lead, 1};
  if (lead < 0xE0) return {(lead & 0x1F) << 6 | (byte(1) & 0x3F), 2};
  const char32_t low = (byte(1) & 0x3F) << 6 | (byte(2) & 0x3F);
  if (lead < 0xF0) return {(lead & 0xF) << 12 | low, 3};
  return {(lead & 7) << 18 | low << 6 | (byte(3) & 0x3F), 4};
}

// Remove the white space that Python's str.strip (at both ends) and str.lstrip (at the start)
// remove. REQUIRES: text is well formed.
std::string_view StripWhitespace(std::string_view text);
std::string_view StripLeadingWhitespace(std::string_view text);

// Converts a stream of bytes into whole UTF-8 characters. Each byte that cannot be part of a
// character becomes U+FFFD. The first bytes of an incomplete character are held until the other
// bytes arrive.
//
// Invariants: (1) the output of Append is well formed; (2) at most 3 bytes are held; (3) the output
// does not depend on how the bytes are divided among calls.
class Utf8Repairer {
 public:
  void Append(std::string_view bytes, std::string* out);
  // Ends the stream: writes U+FFFD if an incomplete character is held.
  void Finish(std::string* out);

 private:
  std::string pending_;
};

}  // namespace hearth

#endif  // HEARTH_PROTO_UTF8_H_
