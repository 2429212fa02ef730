// Input of the fuzz targets. Thread safety: none.
#ifndef HEARTH_TESTS_FUZZ_FUZZ_INPUT_H_
#define HEARTH_TESTS_FUZZ_FUZZ_INPUT_H_

#include <cstdio>
#include <cstdlib>
#include <string>

#include "absl/strings/string_view.h"
#include "proto/byte_codec.h"
#include "proto/kv_layout.h"

namespace hearth {

// Aborts the fuzz target if `holds` is false, also in builds without assertions.
inline void Require(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "fuzz: %s\n", what);
  std::abort();
}

// Returns the bytes with the last 8 replaced by a valid digest, so that the parser reads past the
// digest check, as for a forged file.
inline std::string Sealed(absl::string_view bytes) {
  std::string sealed(bytes.substr(0, bytes.size() < 8 ? 0 : bytes.size() - 8));
  AppendU64(&sealed, SliceDigest(sealed.data(), sealed.size()));
  return sealed;
}

}  // namespace hearth

#endif  // HEARTH_TESTS_FUZZ_FUZZ_INPUT_H_
