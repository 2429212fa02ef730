#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "proto/snapshot_format.h"
#include "tests/proto/tiny_snapshot.h"

namespace hearth {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// Changes the manifest of a saved state, and compares the state with the model that saved it.
absl::Status CheckChanged(void (*change)(Manifest*)) {
  SnapshotHeader header = ParseSnapshotHeader(TinyFile()).value();
  change(&header.manifest);
  return CheckRestorable(header, TinyFingerprint());
}

absl::Status CheckRunning(FingerprintField changed) {
  std::vector<FingerprintField> fields = TinyFields();
  for (FingerprintField& field : fields) {
    if (field.name == changed.name) field = changed;
  }
  return CheckRestorable(ParseSnapshotHeader(TinyFile()).value(),
                         Fingerprint::Create(fields).value());
}

TEST(CheckRestorableTest, SnapshotOfSameModelIsAccepted) {
  EXPECT_TRUE(CheckChanged([](Manifest*) {}).ok());
}

TEST(CheckRestorableTest, ConfigDifferencesPrecedeDigestDifferences) {
  std::vector<FingerprintField> saved = TinyFields(), running = TinyFields();
  saved.push_back({"canary_sha256", std::string("aa")});
  running.push_back({"canary_sha256", std::string("bb")});
  for (FingerprintField& field : running) {
    if (field.name == "window") field.value = uint64_t{4096};
  }
  const auto differences =
      Compare(Fingerprint::Create(saved).value(), Fingerprint::Create(running).value());
  ASSERT_EQ(differences.size(), 2u);
  EXPECT_EQ(differences[0].field, "window");
  EXPECT_EQ(differences[1].field, "canary_sha256");
}

TEST(CheckRestorableTest, RowLayoutModelRefusesPageSnapshot) {
  const absl::Status refused =
      CheckRestorable(ParseSnapshotHeader(PageFile()).value(), TinyFingerprint());
  EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(refused.message(),
            "cannot restore: model config field object_layout differs: saved \"2\", running \"1\"");
}

TEST(CheckRestorableTest, MismatchNamesBothValues) {
  const absl::Status count = CheckChanged([](Manifest* m) { m->token_count = 19; });
  EXPECT_EQ(count.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(count.message(), AllOf(HasSubstr("token count"), HasSubstr("19"), HasSubstr("20")));
  const absl::Status position = CheckChanged([](Manifest* m) { m->next_position = 21; });
  EXPECT_EQ(position.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(position.message(),
              AllOf(HasSubstr("position index"), HasSubstr("21"), HasSubstr("20")));
  const absl::Status mask = CheckChanged([](Manifest* m) { m->attention_mask = "prefix"; });
  EXPECT_THAT(mask.message(),
              AllOf(HasSubstr("attention mask"), HasSubstr("prefix"), HasSubstr("causal")));
  const absl::Status tokens = CheckChanged([](Manifest* m) { m->token_ids[3] = 64; });
  EXPECT_THAT(tokens.message(), AllOf(HasSubstr("input tokens"), HasSubstr("token_ids[3] = 64"),
                                      HasSubstr("a vocabulary of 64")));
  const absl::Status kv = CheckChanged([](Manifest* m) { m->objects.erase(m->objects.begin()); });
  EXPECT_THAT(kv.message(), AllOf(HasSubstr("KV"), HasSubstr("global object [0, 16)")));
  const absl::Status model = CheckRunning({"window", uint64_t{9}});
  EXPECT_EQ(model.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(model.message(), AllOf(HasSubstr("model config field window"),
                                     HasSubstr("saved \"8\""), HasSubstr("running \"9\"")));
}

TEST(CheckRestorableTest, ChangedDtypeIsNamed) {
  EXPECT_THAT(CheckRunning({"kv_dtype", std::string("bfloat16")}).message(),
              AllOf(HasSubstr("kv_dtype"), HasSubstr("float16"), HasSubstr("bfloat16")));
}

}  // namespace
}  // namespace hearth
