#include "proto/state_format.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "proto/byte_codec.h"
#include "proto/kv_layout.h"
#include "tests/proto/tiny_state.h"

namespace hearth {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// Returns the offset of the header's digest, which is also the number of bytes that the digest
// covers.
size_t DigestAt(const std::string& file) {
  ByteReader reader(absl::string_view(file).substr(12));
  return kStatePreludeBytes + reader.U32("body");
}

// Returns the file with a valid digest of its header.
std::string Resealed(std::string file) {
  const size_t at = DigestAt(file);
  if (at + 8 > file.size()) return file;
  std::string digest;
  AppendU64(&digest, SliceDigest(file.data(), at));
  return file.replace(at, digest.size(), digest);
}

// Changes a saved state, writes it with the tiny snapshot, and parses the file.
absl::Status ParsedAs(void (*change)(SavedState*)) {
  SavedState state = TinyState();
  change(&state);
  const std::string snapshot = TinyFile();
  const auto header = BuildStateHeader(state, snapshot.size());
  if (!header.ok()) return header.status();
  const std::string file = *header + snapshot;
  return ParseStateFile(file).status();
}

TEST(StateFormatTest, WrittenStateIsReadBack) {
  const std::string file = TinyStateFile();
  const auto parsed = ParseStateFile(file);
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  const SavedState& state = parsed->state;
  EXPECT_EQ(state.request_id, "7712d13f4371680c");
  EXPECT_EQ(state.adapter, "legal");
  EXPECT_EQ(state.token_ids, TinyState().token_ids);
  EXPECT_EQ(state.prompt_tokens, 17u);
  EXPECT_EQ(state.drawn, 4u);
  EXPECT_EQ(static_cast<float>(state.temperature), 0.7F);
  EXPECT_EQ(state.top_k, 40u);
  EXPECT_EQ(static_cast<float>(state.top_p), 0.95F);
  EXPECT_EQ(state.seed, UINT64_MAX);
  EXPECT_EQ(parsed->snapshot, TinyFile());
  const auto prelude = ParseStatePrelude(file.substr(0, kStatePreludeBytes));
  ASSERT_TRUE(prelude.ok()) << prelude.status();
  EXPECT_EQ(prelude->file_bytes, file.size());
  EXPECT_EQ(prelude->snapshot_offset % 64, 0u);
}

TEST(StateFormatTest, LogitRulesSelectStateVersion) {
  SavedState state = TinyState();
  state.rules.min_p = 0.25;
  state.rules.repetition_penalty = 1.5;
  state.rules.bias_ids = {4};
  state.rules.biases = {0x3f800000};
  state.rules.bad_ids = {7, 8};
  state.rules.min_tokens = 3;
  const std::string snapshot = TinyFile();
  const std::string file = *BuildStateHeader(state, snapshot.size()) + snapshot;
  const auto parsed = ParseStateFile(file);
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  EXPECT_TRUE(parsed->state.rules == state.rules);
  EXPECT_EQ(ParseStatePrelude(file)->version, 2u);
  EXPECT_EQ(ParseStatePrelude(TinyStateFile())->version, 1u);
  std::string forged = file;
  forged[8] = 1;
  EXPECT_THAT(std::string(ParseStateFile(Resealed(forged)).status().message()),
              HasSubstr("state of version 1 has the fields of version 2"));
  forged = TinyStateFile();
  forged[8] = 2;
  EXPECT_THAT(std::string(ParseStateFile(Resealed(forged)).status().message()),
              HasSubstr("state of version 2 has the fields of version 1"));
  state.rules.biases.clear();
  EXPECT_FALSE(BuildStateHeader(state, 1).ok());
}

TEST(StateFormatTest, GrammarSurvivesRoundTrip) {
  SavedState state = TinyState();
  state.grammar = {R"({"type":"string"})", {"{\"name\":", "[{"}, true, "llguidance@1.9.1"};
  const std::string snapshot = TinyFile();
  const std::string file = *BuildStateHeader(state, snapshot.size()) + snapshot;
  const auto parsed = ParseStateFile(file);
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  EXPECT_TRUE(parsed->state.grammar == state.grammar);
  EXPECT_EQ(ParseStatePrelude(file)->version, 3u);
  state.grammar.json_schema.assign((116 << 10) + 1, 'x');
  EXPECT_FALSE(BuildStateHeader(state, 1).ok());
  state.grammar.json_schema.clear();
  EXPECT_FALSE(BuildStateHeader(state, 1).ok()) << "triggers without a schema";
}

TEST(StateFormatTest, GrammarLimitsAreExact) {
  const auto is_saved = [](size_t schema, size_t triggers, const std::string& trigger) {
    SavedState state = TinyState();
    state.grammar.json_schema.assign(schema, 'x');
    state.grammar.triggers.assign(triggers, trigger);
    const auto header = BuildStateHeader(state, TinyFile().size());
    if (!header.ok()) {
      EXPECT_THAT(
          std::string(header.status().message()),
          HasSubstr("grammar: must have at most 118784 bytes of schema, 16 triggers of 1 to "
                    "64 bytes of UTF-8"));
    }
    return header.ok() && ParseStateFile(*header + TinyFile()).ok();
  };
  EXPECT_TRUE(is_saved(116 << 10, 16, std::string(64, 't')));
  EXPECT_FALSE(is_saved((116 << 10) + 1, 16, "t"));
  EXPECT_FALSE(is_saved(1, 17, "t"));
  EXPECT_FALSE(is_saved(1, 16, std::string(65, 't')));
  EXPECT_FALSE(is_saved(1, 1, ""));
  EXPECT_FALSE(is_saved(1, 1, "\xFF"));
}

TEST(StateFormatTest, MismatchedTokensAreNamed) {
  const absl::Status token = ParsedAs([](SavedState* state) { state->token_ids[5] = 9; });
  EXPECT_EQ(token.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(token.message()),
              AllOf(HasSubstr("input tokens differs"), HasSubstr("token_ids[5] = 9")));
  const absl::Status count = ParsedAs([](SavedState* state) { state->token_ids.push_back(3); });
  EXPECT_EQ(count.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(count.message()),
              AllOf(HasSubstr("token count differs"), HasSubstr("21"), HasSubstr("20")));
}

TEST(StateFormatTest, ImpossibleStateIsRefused) {
  const auto refused = [](void (*change)(SavedState*)) {
    EXPECT_EQ(ParsedAs(change).code(), absl::StatusCode::kInvalidArgument);
  };
  refused([](SavedState* state) { state->token_ids.resize(1); });
  refused([](SavedState* state) { state->prompt_tokens = 0; });
  refused([](SavedState* state) { state->prompt_tokens = 22; });
  refused([](SavedState* state) { state->drawn = (uint64_t{1} << 32) + 1; });
  refused([](SavedState* state) { state->request_id.assign(kMaxStateTextBytes + 1, 'x'); });
  refused([](SavedState* state) { state->top_p = std::numeric_limits<double>::infinity(); });
}

TEST(StateFormatTest, TruncatedFileIsDataLoss) {
  const std::string whole = TinyStateFile();
  for (size_t length = 0; length < whole.size(); ++length) {
    const std::string part = whole.substr(0, length);
    ASSERT_EQ(ParseStateFile(part).status().code(), absl::StatusCode::kDataLoss) << length;
    ASSERT_EQ(ParseStatePrelude(part).ok(), length >= kStatePreludeBytes) << length;
  }
  EXPECT_EQ(ParseStateFile(whole + "x").status().code(), absl::StatusCode::kDataLoss);
}

TEST(StateFormatTest, FlippedHeaderBitIsDataLoss) {
  const std::string whole = TinyStateFile();
  const size_t end = ParseStatePrelude(whole)->snapshot_offset;
  for (size_t bit = 0; bit < end * 8; ++bit) {
    std::string bad = whole;
    bad[bit / 8] ^= static_cast<char>(1 << (bit % 8));
    ASSERT_EQ(ParseStateFile(bad).status().code(), absl::StatusCode::kDataLoss) << bit;
  }
}

TEST(StateFormatTest, AcceptedForgedStateReserializesEqually) {
  const std::string whole = TinyStateFile();
  const size_t end = DigestAt(whole);
  int refused = 0;
  for (size_t bit = 0; bit < end * 8; ++bit) {
    std::string forged = whole;
    forged[bit / 8] ^= static_cast<char>(1 << (bit % 8));
    forged = Resealed(forged);
    const auto parsed = ParseStateFile(forged);
    if (parsed.ok()) {
      const auto again = BuildStateHeader(parsed->state, parsed->snapshot.size());
      ASSERT_TRUE(again.ok()) << bit;
      ASSERT_EQ(*again + std::string(parsed->snapshot), forged) << bit;
    } else {
      ++refused;
    }
  }
  EXPECT_GT(refused, 100);
}

// Request id and adapter name are put into logs and messages without escapes.
TEST(StateFormat, InvalidNamesInStateAreRefused) {
  for (const char* name : {"\xff\xfe", "a b", "a\nb"}) {
    SavedState state = TinyState();
    state.request_id = name;
    EXPECT_FALSE(BuildStateHeader(state, 100).ok()) << name;
    state = TinyState();
    state.adapter = name;
    EXPECT_FALSE(BuildStateHeader(state, 100).ok()) << name;
  }
}

TEST(StateFormat, InvalidTemperatureIsRefused) {
  SavedState state = TinyState();
  state.temperature = 1e30F;
  EXPECT_FALSE(BuildStateHeader(state, 100).ok());
}

}  // namespace
}  // namespace hearth
