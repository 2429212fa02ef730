// IsPlainName: whether a name consists of letters, digits, '-', '_' and '.' only, as request ids
// and adapter names do. Such a name needs no escaping in a log, a message or a file name.
#ifndef HEARTH_PROTO_PLAIN_NAME_H_
#define HEARTH_PROTO_PLAIN_NAME_H_

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/string_view.h"

namespace hearth {

inline bool IsPlainName(absl::string_view name) {
  return std::all_of(name.begin(), name.end(), [](unsigned char c) {
    return absl::ascii_isalnum(c) || c == '-' || c == '_' || c == '.';
  });
}

}  // namespace hearth

#endif  // HEARTH_PROTO_PLAIN_NAME_H_
