// Tests of hearthctl diff, which prints the differences between two snapshot files.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/proto/tiny_snapshot.h"
#include "tests/services/hearthctl/run_cli.h"

namespace hearth {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// Returns a snapshot file like the tiny one, with these fields and another first token. `change`
// edits its first slice.
std::string Changed(const std::vector<FingerprintField>& fields, uint32_t first_token,
                    void (*change)(std::string* slice)) {
  const Fingerprint fingerprint = Fingerprint::Create(fields).value();
  Manifest manifest = TinyManifest();
  manifest.fingerprint = fingerprint.digest();
  manifest.token_ids[0] = first_token;
  const SnapshotHeader whole = ParseSnapshotHeader(TinyFile()).value();
  std::vector<std::string> slices;
  for (ManifestObject& object : manifest.objects) {
    for (uint64_t& digest : object.slice_digests) {
      const size_t n = slices.size();
      slices.push_back(TinySlice(n, whole.layout.SliceBytes(object.id.tokens)));
      if (n == 0 && change != nullptr) change(&slices[0]);
      digest = SliceDigest(slices[n].data(), slices[n].size());
    }
  }
  std::string file = BuildSnapshotHeader(fingerprint, manifest).value();
  const SnapshotHeader header = ParseSnapshotHeader(file).value();
  for (size_t n = 0; n < slices.size(); ++n) {
    file.resize(header.slice_offsets[n], '\0');
    file += slices[n];
  }
  return file;
}

TEST(DiffCommand, DifferingFieldTokenAndSliceNamed) {
  TestFolder folder;
  const std::string a = folder.Write("a", TinyFile());
  std::vector<FingerprintField> fields = TinyFields();
  for (FingerprintField& field : fields) {
    if (field.name == "vocab_size") field.value = uint64_t{65};
  }
  // The bits of 1.0 and 1.5 in float16. The first slice of the tiny file has neither value.
  const std::string b = folder.Write("b", Changed(fields, 3, [](std::string* slice) {
                                       (*slice)[0] = '\0';
                                       (*slice)[1] = '\x3C';
                                     }));
  const std::string c = folder.Write("c", Changed(fields, 3, [](std::string* slice) {
                                       (*slice)[0] = '\0';
                                       (*slice)[1] = '\x3E';
                                     }));
  const CliResult result = RunCli({"diff", a, b});
  EXPECT_EQ(result.code, kExitFailed);
  EXPECT_THAT(result.out, AllOf(HasSubstr("field vocab_size: \"64\" | \"65\""),
                                HasSubstr("token at 0: 2 | 3"), HasSubstr("slice layer ")));
  const CliResult slices = RunCli({"diff", b, c, "--json"});
  EXPECT_EQ(slices.code, kExitFailed);
  ASSERT_EQ(slices.objects.size(), 2u) << slices.out;
  EXPECT_EQ(slices.objects[0]["part"], "slice");
  EXPECT_NE(slices.objects[0]["a"], slices.objects[0]["b"]);
  EXPECT_EQ(slices.last(), (Json{{"equal", false}, {"differences", 1}}));
}

}  // namespace
}  // namespace hearth
