// IsPlainName: whether a name is letters, digits, '-', '_' and '.' alone, as ids of requests and
// names of adapters are: it may stand in a log, a message or a file's name as it is.
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
