// Fuzz target: manifests and other stored records, as a damaged disk or an attacker may return
// them.
#include "cache_store/disk/stored_records.h"
#include "tests/fuzz/fuzz_input.h"

namespace hearth {
namespace {

void Try(uint8_t which, const std::string& bytes) {
  switch (which % 4) {
    case 0:
      if (const auto parsed = ParseManifest(bytes); parsed.ok()) {
        Require(SerializeManifest(*parsed) == bytes, "a manifest with another encoding");
      }
      return;
    case 1:
      if (const auto parsed = ParseManifestRecord(bytes); parsed.ok()) {
        Require(SerializeManifestRecord(*parsed) == bytes, "a record with another encoding");
      }
      return;
    case 2:
      if (const auto parsed = ParseObject(bytes); parsed.ok()) {
        Require(SerializeObject(*parsed) == bytes, "an object with another encoding");
      }
      return;
    default:
      if (const auto parsed = Fingerprint::Parse(bytes); parsed.ok()) {
        Require(parsed->Serialize() == bytes, "a fingerprint with another encoding");
        parsed->Layout().IgnoreError();
      }
  }
}

}  // namespace
}  // namespace hearth

// The first byte selects the parser, and whether the digest of the input is made valid.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const std::string bytes(reinterpret_cast<const char*>(data) + 1, size - 1);
  hearth::Try(data[0] & 3, (data[0] & 4) != 0 ? hearth::Sealed(bytes) : bytes);
  return 0;
}
