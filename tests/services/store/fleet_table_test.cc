#include "services/store/fleet_table.h"

#include <gtest/gtest.h>

#include <numeric>

#include "tests/support/fake_clock.h"

namespace hearth {
namespace {

Identity CallerOf(Role role, const std::string& name = "w") {
  return {name, role, kDefaultTenant, "", false};
}

v1::ReportRequest ReportOf(uint32_t worker, uint64_t sequence = 1) {
  v1::ReportRequest report;
  std::string instance(16, 'i');
  for (size_t i = 0; i < 4; ++i) instance[i] = static_cast<char>(worker >> (8 * i));
  report.set_instance(instance);
  report.set_sequence(sequence);
  report.set_name("host:" + std::to_string(10000 + worker));
  return report;
}

void AddModel(v1::ReportRequest* report, const std::string& name, uint8_t digest) {
  v1::ServedModel* const model = report->add_models();
  model->set_name(name);
  model->set_fingerprint_digest(std::string(32, static_cast<char>(digest)));
}

class FleetTableTest : public ::testing::Test {
 protected:
  absl::Status Take(const v1::ReportRequest& report, Role role = Role::kWorker) {
    return table_.Take(report, CallerOf(role), "ipv4:127.0.0.1:5");
  }
  void NoteWords(const std::vector<uint32_t>& tokens, const std::string& words,
                 Role role = Role::kWorker) {
    table_.NoteWords(CallerOf(role), Digest{}, tokens, words);
  }
  static std::vector<uint32_t> Tokens(uint32_t first, size_t count = FleetTable::kWordsTokens) {
    std::vector<uint32_t> tokens(count);
    std::iota(tokens.begin(), tokens.end(), first);
    return tokens;
  }

  FakeClock clock_;
  FleetTable table_{&clock_};
};

TEST_F(FleetTableTest, RepeatedReportCountsOnce) {
  v1::ReportRequest report = ReportOf(1);
  report.set_unasked_tokens(100);
  report.set_unasked_held_tokens(80);
  report.set_token_ns(2'000'000);
  ASSERT_TRUE(Take(report).ok());
  ASSERT_TRUE(Take(report).ok());
  EXPECT_EQ(table_.Totals().unasked_tokens, 100u);
  EXPECT_EQ(table_.Totals().unasked_held_tokens, 80u);
  EXPECT_EQ(table_.Totals().saved_us, 160'000u);
  report.set_sequence(2);
  ASSERT_TRUE(Take(report).ok());
  EXPECT_EQ(table_.Totals().unasked_held_tokens, 160u);
}

TEST_F(FleetTableTest, TimePerTokenIsLimited) {
  v1::ReportRequest report = ReportOf(1);
  report.set_unasked_held_tokens(UINT32_MAX);
  report.set_token_ns(UINT64_MAX);
  ASSERT_TRUE(Take(report).ok());
  EXPECT_EQ(table_.Totals().saved_us, uint64_t{UINT32_MAX} * 1'000'000);
}

TEST_F(FleetTableTest, SilentWorkerIsDisconnectedThenForgotten) {
  ASSERT_TRUE(Take(ReportOf(1)).ok());
  clock_.Advance(FleetTable::kConnected - absl::Seconds(1));
  EXPECT_EQ(table_.Totals().workers, 1u);
  clock_.Advance(absl::Seconds(1));
  EXPECT_EQ(table_.Totals().workers, 0u);
  ASSERT_EQ(table_.Workers().size(), 1u);
  EXPECT_FALSE(table_.Workers()[0].is_connected);
  EXPECT_EQ(table_.Workers()[0].age, FleetTable::kConnected);
  clock_.Advance(FleetTable::kForgotten);
  EXPECT_TRUE(table_.Workers().empty());
}

TEST_F(FleetTableTest, LeavingWorkerIsCountedAndRemoved) {
  ASSERT_TRUE(Take(ReportOf(1)).ok());
  v1::ReportRequest last = ReportOf(1, 2);
  last.set_unasked_held_tokens(7);
  last.set_leaving(true);
  ASSERT_TRUE(Take(last).ok());
  EXPECT_TRUE(table_.Workers().empty());
  EXPECT_EQ(table_.Totals().unasked_held_tokens, 7u);
}

TEST_F(FleetTableTest, WorkersAreSortedAndModelsCountedOnce) {
  for (const uint32_t worker : {3u, 1u, 2u}) {
    v1::ReportRequest report = ReportOf(worker);
    AddModel(&report, "gemma", 7);
    if (worker == 2) AddModel(&report, "adapter", 8);
    ASSERT_TRUE(Take(report).ok());
  }
  EXPECT_EQ(table_.Totals().workers, 3u);
  EXPECT_EQ(table_.Totals().models, 2u);
  const std::vector<FleetWorker> workers = table_.Workers();
  ASSERT_EQ(workers.size(), 3u);
  EXPECT_EQ(workers[0].report.name(), "host:10001");
  EXPECT_EQ(workers[2].report.name(), "host:10003");
  EXPECT_EQ(workers[0].caller, "w");
  EXPECT_EQ(workers[0].peer, "ipv4:127.0.0.1:5");
}

TEST_F(FleetTableTest, FullTableKeepsConnectedWorkers) {
  for (uint32_t i = 0; i < FleetTable::kMaxWorkers; ++i) ASSERT_TRUE(Take(ReportOf(i)).ok());
  EXPECT_TRUE(absl::IsResourceExhausted(Take(ReportOf(5000))));
  EXPECT_TRUE(Take(ReportOf(3, 2)).ok());  // a known worker may always report
  clock_.Advance(FleetTable::kConnected - absl::Seconds(1));
  ASSERT_TRUE(Take(ReportOf(0, 2)).ok());
  clock_.Advance(absl::Seconds(1));
  EXPECT_TRUE(Take(ReportOf(5000)).ok());  // replaces a worker that is silent
  EXPECT_EQ(table_.Workers().size(), FleetTable::kMaxWorkers);
  EXPECT_EQ(table_.Totals().workers, 2u);  // 0 and 5000
}

TEST_F(FleetTableTest, TenantsMayNotReport) {
  EXPECT_TRUE(absl::IsPermissionDenied(Take(ReportOf(1), Role::kTenant)));
  EXPECT_TRUE(Take(ReportOf(1), Role::kAnonymous).ok());
  EXPECT_TRUE(Take(ReportOf(2), Role::kAdmin).ok());
}

TEST_F(FleetTableTest, FieldsOverTheirLimitsAreRefused) {
  const std::string long_text(FleetTable::kMaxNameBytes + 1, 'x');
  std::vector<v1::ReportRequest> wrong(8, ReportOf(1));
  wrong[0].set_instance("short");
  wrong[1].set_name(long_text);
  wrong[2].set_version(long_text);
  wrong[3].set_device(long_text);
  for (int i = 0; i <= FleetTable::kMaxModels; ++i) AddModel(&wrong[4], "m", 1);
  wrong[5].add_models();
  wrong[6].set_unasked_tokens(uint64_t{1} << 32);
  wrong[7].set_unasked_held_tokens(uint64_t{1} << 32);
  for (const v1::ReportRequest& report : wrong) {
    EXPECT_TRUE(absl::IsInvalidArgument(Take(report))) << report.ShortDebugString();
  }
  EXPECT_TRUE(table_.Workers().empty());
}

// Parsed unknown fields may need a hundred times the bytes of the message.
TEST_F(FleetTableTest, UnknownFieldsAreDropped) {
  v1::ReportRequest report = ReportOf(1);
  report.GetReflection()->MutableUnknownFields(&report)->AddLengthDelimited(999, "x");
  ASSERT_TRUE(Take(report).ok());
  const v1::ReportRequest kept = table_.Workers().at(0).report;
  EXPECT_TRUE(kept.GetReflection()->GetUnknownFields(kept).empty());
  EXPECT_EQ(kept.name(), report.name());
}

TEST_F(FleetTableTest, WordsAreKeptOnlyIfShown) {
  NoteWords(Tokens(1), "Once upon a time");
  EXPECT_EQ(table_.Words(Digest{}, Tokens(1)), "");
  table_.ShowWords();
  EXPECT_EQ(table_.Words(Digest{}, Tokens(1)), "");
  NoteWords(Tokens(1), "Once upon a time");
  EXPECT_EQ(table_.Words(Digest{}, Tokens(1)), "Once upon a time");
  EXPECT_EQ(table_.Words(Digest{}, Tokens(1, 100)), "Once upon a time");
  EXPECT_EQ(table_.Words(Digest{}, Tokens(2)), "");
  EXPECT_EQ(table_.Words(Digest{1}, Tokens(1)), "");  // another model
}

TEST_F(FleetTableTest, UnusableWordsAreIgnored) {
  table_.ShowWords();
  NoteWords(Tokens(1), "of a tenant", Role::kTenant);
  NoteWords(Tokens(1), std::string(FleetTable::kMaxWordsBytes + 1, 'x'));
  NoteWords(Tokens(1), "not UTF-8: \xff");
  NoteWords(Tokens(1), "");
  NoteWords(Tokens(1, FleetTable::kWordsTokens - 1), "short prompt");
  EXPECT_EQ(table_.Words(Digest{}, Tokens(1)), "");
  EXPECT_EQ(table_.Words(Digest{}, Tokens(1, FleetTable::kWordsTokens - 1)), "");
}

TEST_F(FleetTableTest, LeastRecentWordsAreDropped) {
  table_.ShowWords();
  for (uint32_t i = 0; i < FleetTable::kMaxWords; ++i) NoteWords(Tokens(i), "some");
  NoteWords(Tokens(0), "some");  // used again
  NoteWords(Tokens(100'000), "new");
  EXPECT_EQ(table_.Words(Digest{}, Tokens(0)), "some");
  EXPECT_EQ(table_.Words(Digest{}, Tokens(1)), "");
  EXPECT_EQ(table_.Words(Digest{}, Tokens(100'000)), "new");
}

}  // namespace
}  // namespace hearth
