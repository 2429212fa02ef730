// Percent escapes of URLs and of JSON pointers in a URL's fragment (RFC 3986, section 2.1).
//
// Thread safety: pure functions.
#ifndef HEARTH_PROTO_PERCENT_ESCAPES_H_
#define HEARTH_PROTO_PERCENT_ESCAPES_H_

#include <cstddef>
#include <string>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/string_view.h"

namespace hearth {

// Returns `text` with each %XX replaced by its byte: "ORG%2FNAME" becomes "ORG/NAME". Other "%"
// stay as they are.
inline std::string PercentDecoded(absl::string_view text) {
  const auto is_digit = [&](size_t at) {
    return at < text.size() && absl::ascii_isxdigit(static_cast<unsigned char>(text[at]));
  };
  std::string decoded;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '%' && is_digit(i + 1) && is_digit(i + 2)) {
      decoded += absl::HexStringToBytes(text.substr(i + 1, 2));
      i += 2;
    } else {
      decoded += text[i];
    }
  }
  return decoded;
}

}  // namespace hearth

#endif  // HEARTH_PROTO_PERCENT_ESCAPES_H_
