// Fuzz target: untrusted snapshot files. Parses the header, verifies the digests of the slices, and
// compares the state with a model.
#include "proto/snapshot_format.h"
#include "tests/fuzz/fuzz_input.h"
#include "tests/proto/tiny_snapshot.h"

namespace hearth {
namespace {

void Try(absl::string_view file) {
  VerifySnapshotFile(file).IgnoreError();
  const absl::StatusOr<SnapshotHeader> header = ParseSnapshotHeader(file);
  if (!header.ok()) return;
  CheckRestorable(*header, TinyFingerprint()).IgnoreError();
  Require(ValidateManifest(header->manifest, header->layout).ok(),
          "a header with a manifest that would not be written was accepted");
  const absl::StatusOr<std::string> built =
      BuildSnapshotHeader(header->fingerprint, header->manifest);
  Require(built.ok() && file.substr(0, built->size()) == *built,
          "a header was accepted that has another encoding");
}

}  // namespace
}  // namespace hearth

// If the first byte is odd, the last 8 bytes are replaced by a valid digest, so the input is a file
// with only a header.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const absl::string_view file(reinterpret_cast<const char*>(data) + 1, size - 1);
  hearth::Try(data[0] % 2 == 0 ? std::string(file) : hearth::Sealed(file));
  return 0;
}
