// What workers say they served: who may say it, and where it is shown.
#include "services/store/worker_reports.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "tests/services/store/store_peer.h"

namespace hearth {
namespace {

using ::testing::HasSubstr;

class WorkerReportsTest : public TenantsFixture {
 protected:
  static v1::ReportRequest Served(uint64_t requests, uint64_t own_tokens) {
    v1::ReportRequest report;
    report.set_requests(requests);
    report.set_prompt_tokens(3 * own_tokens);
    report.set_cached_tokens(2 * own_tokens);
    report.set_own_tokens(own_tokens);
    return report;
  }
};

TEST_F(WorkerReportsTest, AreCountedTogetherAndShownInStats) {
  StoreServer server(options_, access_);
  Peer worker(server, As("worker"));
  for (const uint64_t own : {100, 11}) {
    EXPECT_THAT(worker.Unary(&v1::CacheStore::Stub::Report, Served(1, own)), HasSubstr("status 0"));
  }
  const std::string stats = worker.Unary(&v1::CacheStore::Stub::Stats, v1::StatsRequest());
  for (const char* counter :
       {"\"worker_requests\"\n  value: 2", "\"worker_prompt_tokens\"\n  value: 333",
        "\"worker_cached_tokens\"\n  value: 222", "\"worker_own_tokens\"\n  value: 111"}) {
    EXPECT_THAT(stats, HasSubstr(counter));
  }
}

TEST_F(WorkerReportsTest, ReportsOfATenantAreRefused) {
  StoreServer server(options_, access_);
  Peer a(server, As("a"));
  EXPECT_THAT(a.Unary(&v1::CacheStore::Stub::Report, Served(1, 1)),
              HasSubstr("status 7 report: for workers and administrators"));
  EXPECT_EQ(server.service()->reports().Read().requests, 0u);
}

TEST_F(WorkerReportsTest, ReportsTooLargeToBeTrueAreRefusedByName) {
  WorkerReports reports;
  v1::ReportRequest report = Served(1, 5);
  report.set_own_tokens(WorkerReports::kMaxOfOne + 1);
  const absl::Status refused = reports.Add(report, "a");
  EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(refused.message()), HasSubstr("own_tokens: 1099511627777"));
  EXPECT_EQ(reports.Read().prompt_tokens, 0u) << "all of it or nothing";
}

TEST_F(WorkerReportsTest, ReportsThatComeAgainAreCountedOnce) {
  WorkerReports reports;
  for (const char* id : {"a", "b", "a", "b"}) EXPECT_TRUE(reports.Add(Served(1, 5), id).ok());
  EXPECT_EQ(reports.Read().requests, 2u);
  EXPECT_EQ(reports.Read().own_tokens, 10u);
}

}  // namespace
}  // namespace hearth
