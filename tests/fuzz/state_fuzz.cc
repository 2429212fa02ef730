// Fuzz target: untrusted saved states. Parses the prelude and the state, and checks that the state
// agrees with its snapshot.
#include "proto/byte_codec.h"
#include "proto/kv_layout.h"
#include "proto/state_format.h"
#include "tests/fuzz/fuzz_input.h"

namespace hearth {
namespace {

void Try(absl::string_view file) {
  ParseStatePrelude(file).status().IgnoreError();
  const absl::StatusOr<StateFile> parsed = ParseStateFile(file);
  if (!parsed.ok()) return;
  const auto built = BuildStateHeader(parsed->state, parsed->snapshot.size());
  Require(built.ok() && file.substr(0, built->size()) == *built,
          "a state was accepted that has another encoding");
}

// Returns the file with a valid digest of its header, if the file is long enough for a header.
std::string WithDigest(absl::string_view file) {
  std::string sealed(file);
  if (sealed.size() < kStatePreludeBytes) return sealed;
  ByteReader reader(file.substr(12));
  const uint64_t at = kStatePreludeBytes + uint64_t{reader.U32("body")};
  if (at + 8 > sealed.size()) return sealed;
  std::string digest;
  AppendU64(&digest, SliceDigest(sealed.data(), at));
  return sealed.replace(at, digest.size(), digest);
}

}  // namespace
}  // namespace hearth

// The first byte selects whether the digest of the state is made valid.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const absl::string_view file(reinterpret_cast<const char*>(data) + 1, size - 1);
  hearth::Try(data[0] % 2 == 0 ? std::string(file) : hearth::WithDigest(file));
  return 0;
}
