// Tests `usage.hearth_cache`, which requests with `hearth_explain` get. The store is a function of
// the test.
#include "services/openai/cache_report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/synchronization/notification.h"
#include "nlohmann/json.hpp"
#include "services/openai/openai_server.h"
#include "tests/services/inference/worker_server.h"
#include "tests/services/serving/http_caller.h"

namespace hearth {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;
using ::testing::StartsWith;

v1::ExplainResponse TwoBoundaries() {
  v1::ExplainResponse response;
  v1::BoundaryInfo* boundary = response.add_boundaries();
  boundary->set_boundary(16);
  boundary->set_usable(true);
  boundary->set_slowest_tier(v1::TIER_DISK);
  boundary = response.add_boundaries();
  boundary->set_boundary(32);
  boundary->set_reason_code("removed");
  boundary->set_reason("evicted 12s ago: host_full");
  response.set_omitted_boundaries(3);
  return response;
}

const json kTwoBoundaries = {
    {{"tokens", 16}, {"tier", "disk"}},
    {{"tokens", 32}, {"reason", "evicted 12s ago: host_full"}, {"reason_code", "removed"}}};

TEST(CacheReport, UnmarkedBoundaryWasNotKept) {
  v1::ExplainResponse response;
  response.add_boundaries()->set_reason_code("tail_gone");
  const json report = json::parse(CacheReport(response, StartedInfo()));
  EXPECT_EQ(report["boundaries"][0]["reason"], "not kept: no request asked for this boundary");
  EXPECT_EQ(report["tier"], "none");
}

class HearthExplainTest : public ::testing::Test {
 protected:
  void Serve(ExplainPrefix explain) {
    WorkerServer::Options options = WorkerServer::Invariant();
    options.explain = std::move(explain);
    server_ = std::make_unique<WorkerServer>(options);
    OpenAiOptions http;
    http.http.listen = "127.0.0.1:0";
    http.generator = server_->generator();
    http.admission = server_->admission();
    http.model = "tiny";
    openai_ = OpenAiServer::Open(std::move(http)).value();
  }
  static std::string Request(const std::string& path, const json& body) {
    const std::string text = body.dump();
    return absl::StrCat("POST ", path,
                        " HTTP/1.0\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                        "Content-Length: ",
                        text.size(), "\r\n\r\n", text);
  }
  // Returns the whole response, including its headers.
  std::string Post(const std::string& path, const json& body) {
    HttpCaller caller(openai_->address());
    caller.Say(Request(path, body));
    return caller.HearAll();
  }
  json UsageOf(const std::string& path, const json& body) {
    const std::string answer = Post(path, body);
    EXPECT_THAT(answer, StartsWith("HTTP/1.1 200")) << answer;
    return json::parse(answer.substr(answer.find("\r\n\r\n")), nullptr, false)["usage"];
  }
  static json Chat() {
    return {{"temperature", 0},
            {"max_tokens", 4},
            {"hearth_explain", true},
            {"messages", {{{"role", "user"}, {"content", "the keeper of the lamp"}}}}};
  }
  static json Completion() {
    return {{"prompt", "the keeper"}, {"max_tokens", 4}, {"hearth_explain", true}};
  }

  std::unique_ptr<WorkerServer> server_;
  std::unique_ptr<OpenAiServer> openai_;
};

TEST_F(HearthExplainTest, UsageListsBoundaries) {
  std::vector<PrefixRequest> asked;
  Serve([&](PrefixRequest prefix, absl::Time, const ExplainCallback& done) {
    asked.push_back(std::move(prefix));
    done(absl::OkStatus(), TwoBoundaries());
  });
  const json expected = {{"restored_tokens", 0},
                         {"tier", "none"},
                         {"load_decision", "none"},
                         {"boundaries", kTwoBoundaries},
                         {"omitted_boundaries", 3}};
  const json usage = UsageOf("/v1/chat/completions", Chat());
  EXPECT_EQ(usage["hearth_cache"], expected);
  ASSERT_EQ(asked.size(), 1u);
  EXPECT_EQ(asked[0].token_ids.size(), usage["prompt_tokens"]) << "the store gets the whole prompt";
  EXPECT_EQ(UsageOf("/v1/completions", Completion())["hearth_cache"], expected);
  json prewarm = Chat();
  prewarm["prompt_cache_options"] = {{"prewarm", true}};
  const json warm = UsageOf("/v1/chat/completions", prewarm)["hearth_cache"];
  EXPECT_EQ(warm["boundaries"], kTwoBoundaries);
  EXPECT_EQ(warm["tier"], "worker");
  EXPECT_GT(warm["restored_tokens"], 0);
  EXPECT_EQ(asked.size(), 3u);
  json silent = Chat();
  silent["hearth_explain"] = false;
  EXPECT_FALSE(UsageOf("/v1/chat/completions", silent).contains("hearth_cache"));
  EXPECT_EQ(asked.size(), 3u) << "the store is asked only for hearth_explain";
}

TEST_F(HearthExplainTest, StreamEndsWithBoundaries) {
  Serve([&](PrefixRequest, absl::Time, const ExplainCallback& done) {
    done(absl::OkStatus(), TwoBoundaries());
  });
  for (const auto& [path, base] :
       {std::pair("/v1/chat/completions", Chat()), std::pair("/v1/completions", Completion())}) {
    json body = base;
    body["stream"] = true;
    const std::string answer = Post(path, body);
    std::vector<std::string> events;
    for (const absl::string_view line : absl::StrSplit(answer, '\n')) {
      if (absl::StartsWith(line, "data: ")) events.emplace_back(line.substr(6));
    }
    ASSERT_GE(events.size(), 3u) << answer;
    EXPECT_EQ(events.back(), "[DONE]");
    events.pop_back();
    EXPECT_EQ(json::parse(events.back())["usage"]["hearth_cache"]["boundaries"], kTwoBoundaries);
    events.pop_back();
    for (const std::string& event : events) EXPECT_FALSE(json::parse(event).contains("usage"));
  }
}

// The answer must say what the store had before the request published its prompt.
TEST_F(HearthExplainTest, RequestRunsAfterStoreAnswers) {
  ExplainCallback done;
  absl::Notification is_asked;
  Serve([&](PrefixRequest, absl::Time, ExplainCallback callback) {
    done = std::move(callback);
    is_asked.Notify();
  });
  HttpCaller caller(openai_->address());
  caller.Say(Request("/v1/chat/completions", Chat()));
  is_asked.WaitForNotification();
  EXPECT_EQ(server_->engine()->Stats().counters.at("requests"), 0u);
  std::thread store([&] { done(absl::OkStatus(), TwoBoundaries()); });
  store.join();
  EXPECT_THAT(caller.HearAll(), HasSubstr("evicted 12s ago"));
  EXPECT_EQ(server_->engine()->Stats().counters.at("requests"), 1u);
}

TEST_F(HearthExplainTest, FailureOfStoreIsReported) {
  absl::Status failure;
  Serve([&](PrefixRequest, absl::Time, const ExplainCallback& done) {
    done(failure, v1::ExplainResponse());
  });
  const auto error = [&](absl::Status status) {
    failure = std::move(status);
    const json report = UsageOf("/v1/chat/completions", Chat())["hearth_cache"];
    EXPECT_FALSE(report.contains("boundaries"));
    return report.value("error", "");
  };
  EXPECT_EQ(error(absl::UnavailableError("connection refused")), "the store did not answer");
  EXPECT_EQ(error(absl::DeadlineExceededError("")), "the store did not answer");
  EXPECT_EQ(error(absl::PermissionDeniedError("no valid identity")), "no valid identity");
  Serve(nullptr);
  EXPECT_EQ(error(absl::OkStatus()), "explain: the worker runs without a store");
}

TEST_F(HearthExplainTest, DisconnectedCallerComputesNothing) {
  ExplainCallback done;
  absl::Notification is_asked;
  Serve([&](PrefixRequest, absl::Time, ExplainCallback callback) {
    done = std::move(callback);
    is_asked.Notify();
  });
  HttpCaller caller(openai_->address());
  caller.Say(Request("/v1/chat/completions", Chat()));
  is_asked.WaitForNotification();
  caller.Reset();
  EXPECT_TRUE(server_->admission()->WaitIdle(absl::Now() + absl::Minutes(2)));
  done(absl::OkStatus(), TwoBoundaries());
  EXPECT_EQ(server_->engine()->Stats().counters.at("requests"), 0u);
}

TEST_F(HearthExplainTest, ErrorsOfPromptAreUnchanged) {
  Serve([&](PrefixRequest, absl::Time, const ExplainCallback& done) {
    done(absl::OkStatus(), TwoBoundaries());
  });
  std::string longer = "the lamp";
  for (int i = 0; i < 8; ++i) longer += " " + longer;
  json body = Completion();
  body["prompt"] = longer;
  const std::string too_long = Post("/v1/completions", body);
  EXPECT_THAT(too_long, StartsWith("HTTP/1.1 400"));
  EXPECT_THAT(too_long, HasSubstr("maximum context length"));
  body["prompt"] = {"a", "b"};
  const std::string several = Post("/v1/completions", body);
  EXPECT_THAT(several, StartsWith("HTTP/1.1 400"));
  EXPECT_THAT(several, HasSubstr("hearth_explain: needs one prompt; got 2"));
}

}  // namespace
}  // namespace hearth
