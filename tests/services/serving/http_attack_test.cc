// HttpServer with callers that attack its memory, its connections, or its process.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "services/serving/http/http_server.h"
#include "services/serving/metrics.h"
#include "tests/services/serving/http_caller.h"

namespace hearth {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

constexpr char kGet[] = "GET /get HTTP/1.1\r\nHost: localhost\r\n\r\n";
constexpr char kPost[] = "POST /post HTTP/1.1\r\nHost: localhost\r\n";
// Maximum number of bytes that the budget counts when only idle connections are open.
constexpr uint64_t kAlmostNothing = uint64_t{16} << 10;

class HttpAttackTest : public ::testing::Test {
 protected:
  HttpAttackTest() { options_.listen = "127.0.0.1:0"; }
  void Serve(HttpServer::Handler handler) {
    auto server = HttpServer::Start(options_, std::move(handler));
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
  }
  void ServeEcho() {
    Serve([](const HttpRequest& request, const std::shared_ptr<HttpAnswer>& answer) {
      answer->Send(200, {}, absl::StrCat(request.path, " ", request.body().size(), "|"));
    });
  }
  // Starts a server whose handler stores each answer in kept_.
  void ServeKept() {
    Serve([this](const HttpRequest& request, std::shared_ptr<HttpAnswer> answer) {
      if (request.path == "/now") return answer->Send(200, {}, "now|");
      absl::MutexLock lock(&mutex_);
      kept_.push_back(std::move(answer));
    });
  }
  std::shared_ptr<HttpAnswer> Kept(size_t index) {
    absl::MutexLock lock(&mutex_);
    const auto is_there = [&] { return kept_.size() > index; };
    mutex_.Await(absl::Condition(&is_there));
    return kept_[index];
  }
  void TearDown() override {
    absl::MutexLock lock(&mutex_);
    kept_.clear();
  }
  std::string Ask(const std::string& text) {
    HttpCaller caller(server_->address());
    caller.Say(text);
    return caller.HearUntil("\r\n\r\n");
  }
  // Waits until the server has read what other callers have sent: one thread reads all connections
  // in turn.
  void Settle() {
    HttpCaller caller(server_->address(), "127.0.0.9");
    caller.Say("GET /now HTTP/1.0\r\nHost: localhost\r\n\r\n");
    EXPECT_THAT(caller.HearAll(), HasSubstr("HTTP/1.1 200"));
  }
  void AwaitNothingHeld() {
    while (server_->held_bytes() > kAlmostNothing) Settle();
  }

  HttpServer::Options options_;
  absl::Mutex mutex_;
  std::vector<std::shared_ptr<HttpAnswer>> kept_ ABSL_GUARDED_BY(mutex_);
  std::unique_ptr<HttpServer> server_;
};

// Sends `head`, then `piece` again and again until the server answers. Returns the answer.
std::string Flood(const HttpServer& server, const std::string& head, const std::string& piece) {
  HttpCaller caller(server.address());
  caller.Say(head);
  uint64_t most = 0, sent = 0;
  while (!caller.HasNews() && sent < (uint64_t{256} << 20) && caller.TrySay(piece)) {
    sent += piece.size();
    most = std::max(most, server.held_bytes());
  }
  EXPECT_LT(most, uint64_t{256} << 10);
  return caller.HearUntil("\r\n\r\n");
}

TEST_F(HttpAttackTest, EndlessChunkHeaderOrTrailerIsRefused) {
  ServeEcho();
  const std::string head = absl::StrCat(kPost, "Transfer-Encoding: chunked\r\n\r\n");
  const std::string letters(64 << 10, 'a');
  EXPECT_THAT(Flood(*server_, head + "1;", letters), StartsWith("HTTP/1.1 431"));
  EXPECT_THAT(Flood(*server_, head + "1;a=\"", letters), StartsWith("HTTP/1.1 431"));
  EXPECT_THAT(Flood(*server_, head, std::string(64 << 10, '0')), StartsWith("HTTP/1.1 431"));
  EXPECT_THAT(Flood(*server_, head + "0\r\nA: ", letters), StartsWith("HTTP/1.1 431"));
  EXPECT_THAT(Flood(*server_, head + "0\r\n", "A: b\r\nA: c\r\n"), StartsWith("HTTP/1.1 431"));
  Settle();
}

TEST_F(HttpAttackTest, ManyChunkExtensionsAreRefused) {
  options_.limits.body_bytes = 100000;
  ServeEcho();
  const std::string head = absl::StrCat(kPost, "Transfer-Encoding: chunked\r\n\r\n");
  EXPECT_THAT(Flood(*server_, head, absl::StrCat("1;", std::string(9000, 'a'), "\r\nx\r\n")),
              StartsWith("HTTP/1.1 413"));
}

TEST_F(HttpAttackTest, EndlessSplitHeadersAreRefused) {
  ServeEcho();
  HttpCaller caller(server_->address());
  caller.Say("GET / HTTP/1.1\r\nA");
  // Each send ends after the first letter of the next header.
  for (int i = 0; i < 20000 && !caller.HasNews(); ++i) {
    if (!caller.TrySay(": 1\r\nA")) break;
  }
  EXPECT_THAT(caller.HearUntil("\r\n\r\n"), StartsWith("HTTP/1.1 431"));
}

TEST_F(HttpAttackTest, SplitLastChunkIsAccepted) {
  ServeEcho();
  for (const std::string& first : {std::string(), std::string("3\r\nabc\r\n")}) {
    HttpCaller caller(server_->address());
    caller.Say(absl::StrCat(kPost, "Transfer-Encoding: chunked\r\n\r\n", first));
    for (const char* piece : {"0", "\r", "\n", "\r", "\n"}) {
      Settle();
      caller.Say(piece);
    }
    EXPECT_THAT(caller.HearUntil("|"), EndsWith(first.empty() ? "/post 0|" : "/post 3|"));
  }
}

TEST_F(HttpAttackTest, UnfinishedBodiesStayWithinBudget) {
  options_.budget_bytes = 1 << 20;
  options_.limits.body_bytes = 256 << 10;
  ServeEcho();
  std::vector<std::unique_ptr<HttpCaller>> callers;
  const std::string half =
      absl::StrCat(kPost, "Content-Length: 200001\r\n\r\n", std::string(200000, 'b'));
  for (int i = 0; i < 20; ++i) {
    callers.push_back(std::make_unique<HttpCaller>(server_->address()));
    callers.back()->TrySay(half);
    Settle();
    EXPECT_LE(server_->held_bytes(), options_.budget_bytes);
  }
  const auto answered = [&] {
    return std::count_if(callers.begin(), callers.end(),
                         [](const auto& caller) { return caller->HasNews(); });
  };
  // The last refusals may not have arrived yet.
  for (const absl::Time end = absl::Now() + absl::Minutes(2);
       answered() < 14 && absl::Now() < end;) {
    Settle();
  }
  size_t refused = 0;
  for (const auto& caller : callers) {
    if (!caller->HasNews()) continue;
    EXPECT_THAT(caller->HearUntil("\r\n\r\n"), StartsWith("HTTP/1.1 503"));
    ++refused;
  }
  EXPECT_GE(refused, 14u);
  EXPECT_LT(refused, 20u);
  callers.clear();
  AwaitNothingHeld();
}

TEST_F(HttpAttackTest, BodyMemoryFollowsReceivedBytes) {
  constexpr size_t kBody = size_t{2} << 20, kSent = 1100000, kSlack = size_t{128} << 10;
  ServeEcho();
  HttpCaller caller(server_->address());
  caller.Say(absl::StrCat(kPost, "Content-Length: ", kBody, "\r\n\r\n"));
  caller.Say(std::string(kSent, 'b'));
  while (server_->held_bytes() < kSent) Settle();
  EXPECT_LT(server_->held_bytes(), kSent + kSlack);
  caller.Say(std::string(kBody - kSent, 'b'));
  EXPECT_THAT(caller.HearUntil("|"), EndsWith(absl::StrCat("/post ", kBody, "|")));
}

TEST_F(HttpAttackTest, RefusalIsSentBeforeTheBody) {
  options_.check_head = [](const HttpRequest& head) {
    HttpVerdict verdict;
    const std::string* token = head.Header("authorization");
    if (token == nullptr) verdict.refusal = HttpRefusal{401, {{"A", "b"}}, "no token|"};
    return verdict;
  };
  ServeEcho();
  HttpCaller caller(server_->address());
  caller.Say(absl::StrCat(kPost, "Expect: 100-continue\r\nContent-Length: 100000\r\n\r\n"));
  const std::string refusal = caller.HearUntil("|");
  EXPECT_THAT(refusal, StartsWith("HTTP/1.1 401"));
  EXPECT_THAT(refusal, HasSubstr("A: b\r\n"));
  EXPECT_THAT(refusal, HasSubstr("Connection: close\r\n"));
  HttpCaller other(server_->address());
  other.Say(kGet);
  EXPECT_THAT(other.HearUntil("no token|"), Not(HasSubstr("Connection: close")));
  other.Say("GET / HTTP/1.1\r\nHost: localhost\r\nAuthorization: b\r\n\r\n");
  EXPECT_THAT(other.HearUntil("|"), StartsWith("HTTP/1.1 200"));
}

TEST_F(HttpAttackTest, AnswerOverMemoryBudgetGets503) {
  options_.budget_bytes = 1 << 20;
  Serve([](const HttpRequest& request, const std::shared_ptr<HttpAnswer>& answer) {
    if (request.path != "/now" && !answer->Hold(request.path == "/hold" ? 2 << 20 : 1)) {
      return answer->Send(503, {}, "no room");
    }
    answer->Send(200, {}, std::string(request.path == "/large" ? 2 << 20 : 100, 'a'));
  });
  for (const char* path : {"/large", "/hold"}) {
    EXPECT_THAT(Ask(absl::StrCat("GET ", path, " HTTP/1.0\r\nHost: localhost\r\n\r\n")),
                StartsWith("HTTP/1.1 503"));
  }
  EXPECT_THAT(Ask(kGet), StartsWith("HTTP/1.1 200"));
  AwaitNothingHeld();
}

TEST_F(HttpAttackTest, UnreadAnswerEndsConnection) {
  options_.limits.slow_time = absl::Milliseconds(1);
  options_.limits.slow_bytes = uint64_t{1} << 40;
  Serve([](const HttpRequest& request, const std::shared_ptr<HttpAnswer>& answer) {
    answer->Send(200, {}, std::string(request.path == "/get" ? 32 << 20 : 1, 'a'));
  });
  HttpCaller caller(server_->address());
  caller.Say(kGet);
  caller.HearUntil("aaaa");
  AwaitNothingHeld();
  EXPECT_LT(caller.HearAll().size(), size_t{32} << 20);
}

TEST_F(HttpAttackTest, LargeAnswerArrivesWhole) {
  Serve([](const HttpRequest&, const std::shared_ptr<HttpAnswer>& answer) {
    answer->Send(200, {}, std::string(32 << 20, 'a') + "|");
  });
  HttpCaller caller(server_->address());
  caller.Say("GET /get HTTP/1.0\r\nHost: localhost\r\n\r\n");
  caller.HearUntil("\r\n\r\n");
  EXPECT_EQ(caller.HearAll().size(), (size_t{32} << 20) + 1);
}

TEST_F(HttpAttackTest, BudgetEvictsLargestAnswer) {
  options_.budget_bytes = 1 << 20;
  ServeKept();
  HttpCaller large(server_->address()), small(server_->address());
  large.Say(kGet);
  const auto large_answer = Kept(0);
  small.Say(kGet);
  const auto small_answer = Kept(1);
  absl::Notification gone;
  large_answer->OnGone([&] { gone.Notify(); });
  EXPECT_TRUE(large_answer->Hold(700000));
  EXPECT_TRUE(small_answer->Hold(500000));
  gone.WaitForNotification();
  EXPECT_THAT(large.HearAll(), StartsWith("HTTP/1.1 503"));
  large_answer->Send(200, {}, "too late");
  small_answer->Send(200, {}, "in time|");
  EXPECT_THAT(small.HearUntil("|"), EndsWith("in time|"));
}

TEST_F(HttpAttackTest, BudgetEndsLargestStream) {
  options_.budget_bytes = 4 << 20;
  ServeKept();
  HttpCaller caller(server_->address());
  caller.Say(kGet);
  const auto answer = Kept(0);
  absl::Notification gone;
  answer->OnGone([&] { gone.Notify(); });
  answer->Begin(200, {});
  while (answer->Write(std::string(1 << 16, 'x'))) {
  }
  gone.WaitForNotification();
  AwaitNothingHeld();
}

TEST_F(HttpAttackTest, LargeEventIsDeliveredWhole) {
  ServeKept();
  HttpCaller caller(server_->address());
  caller.Say(kGet);
  const auto answer = Kept(0);
  answer->Begin(200, {});
  EXPECT_TRUE(answer->Write(std::string(8 << 20, 'x')));
  EXPECT_TRUE(answer->Write("last"));
  answer->End();
  EXPECT_GT(caller.HearUntil("last\r\n0\r\n\r\n").size(), size_t{8} << 20);
}

TEST_F(HttpAttackTest, ThrowingHandlerGives500) {
  Serve([](const HttpRequest& request, const std::shared_ptr<HttpAnswer>& answer) {
    if (request.path == "/now") return answer->Send(200, {}, "now");
    if (request.query == "stream" || request.query == "head") answer->Begin(200, {}, ": waiting");
    if (request.query == "stream") answer->Write("a part");
    if (request.query == "number") throw 1;
    throw std::runtime_error("a fault");
  });
  for (const char* query : {"", "?number", "?head"}) {
    EXPECT_THAT(Ask(absl::StrCat("GET /", query, " HTTP/1.0\r\nHost: localhost\r\n\r\n")),
                StartsWith("HTTP/1.1 500"));
    EXPECT_THAT(Ask(absl::StrCat("POST /", query, " HTTP/1.0\r\nHost: localhost\r\n",
                                 "Content-Length: 1\r\n\r\n1")),
                StartsWith("HTTP/1.1 500"));
  }
  HttpCaller caller(server_->address());
  caller.Say("GET /?stream HTTP/1.1\r\nHost: localhost\r\n\r\n");
  EXPECT_THAT(caller.HearAll(), EndsWith("a part\r\n"));
  Settle();
}

TEST_F(HttpAttackTest, ThrowingPageGives500) {
  Metrics metrics("hearth_test");
  metrics.AddPage("/bad", {"text/plain", []() -> std::string { throw 1; }});
  const absl::StatusOr<std::string> address = metrics.Serve("127.0.0.1:0");
  ASSERT_TRUE(address.ok()) << address.status();
  for (int i = 0; i < 3; ++i) {
    HttpCaller caller(*address);
    caller.Say("GET /bad HTTP/1.0\r\nHost: localhost\r\n\r\n");
    EXPECT_THAT(caller.HearAll(), StartsWith("HTTP/1.1 500"));
  }
}

TEST_F(HttpAttackTest, UnknownHostGets403) {
  Metrics metrics("hearth_test");
  metrics.AddPage("/a", {"text/plain", [] { return "made."; }});
  const absl::StatusOr<std::string> address = metrics.Serve("127.0.0.1:0", {"stats.example.com"});
  ASSERT_TRUE(address.ok()) << address.status();
  const auto ask = [&](const std::string& host) {
    HttpCaller caller(*address);
    caller.Say(absl::StrCat("GET /a HTTP/1.0\r\nHost: ", host, "\r\n\r\n"));
    return caller.HearAll();
  };
  for (const char* own : {"localhost:9080", "10.0.0.7:9080", "[::1]", "stats.example.com"}) {
    EXPECT_THAT(ask(own), EndsWith("made.")) << own;
  }
  const std::string refusal = ask("attacker.example.com");
  EXPECT_THAT(refusal, StartsWith("HTTP/1.1 403"));
  EXPECT_THAT(refusal, HasSubstr("--metrics-hosts"));
}

TEST_F(HttpAttackTest, AmbiguousHeadersAreRefused) {
  ServeEcho();
  const std::string get = "GET / HTTP/1.1\r\nHost: localhost\r\n", chunks = "\r\n0\r\n\r\n";
  const std::vector<std::pair<std::string, int>> cases = {
      {"GET / HTTP/1.1\r\n\r\n", 400},
      {"GET / HTTP/1.1\r\nHost:\r\n\r\n", 400},
      {"GET / HTTP/1.0\r\n\r\n", 200},
      {"GET / HTTP/1.0\r\nOrigin: http://a.example.com\r\n\r\n", 403},
      {"GET / HTTP/1.1\r\nHost: a.example.com\r\n\r\n", 403},
      {get + "\r\n", 200},
      {get + "Host: localhost\r\n\r\n", 400},
      {get + "Authorization: Bearer a\r\nauthorization: Bearer b\r\n\r\n", 400},
      {get + "A: b\r\n c\r\n\r\n", 400},
      {get + "A: b\nB: c\r\n\r\n", 400},
      {get + "A : b\r\n\r\n", 400},
      {get + std::string("A: b\0c\r\n\r\n", 10), 400},
      {get + "Content-Length: 0\r\nContent-Length: 0\r\n\r\n", 400},
      {get + "Content-Length: 0, 0\r\n\r\n", 400},
      {get + "Content-Length: +0\r\n\r\n", 400},
      {get + "Content-Length: 0x0\r\n\r\n", 400},
      {kPost + std::string("Transfer-Encoding: chunked\r\n") + chunks, 200},
      {kPost + std::string("Transfer-Encoding: Chunked\r\n") + chunks, 200},
      {kPost + std::string("Transfer-Encoding: gzip, chunked\r\n") + chunks, 400},
      {kPost + std::string("Transfer-Encoding: chunked, gzip\r\n") + chunks, 400},
      {kPost + std::string("Transfer-Encoding: chunked, chunked\r\n") + chunks, 400},
      {kPost + std::string("Transfer-Encoding: identity\r\n") + chunks, 400},
      {kPost + std::string("Transfer-Encoding: xchunked\r\n") + chunks, 400},
      {kPost + std::string("Transfer-Encoding: \"chunked\"\r\n") + chunks, 400},
      {kPost + std::string("Transfer-Encoding:\r\n chunked\r\n") + chunks, 400},
      {kPost + std::string("Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n") + chunks,
       400},
      {kPost + std::string("Transfer-Encoding: chunked\r\nContent-Length: 5\r\n") + chunks, 400},
      {kPost + std::string("Content-Length: 5\r\nTransfer-Encoding: chunked\r\n") + chunks, 400},
      {kPost + std::string("Content-Length: 5\r\nTransfer-Encoding: gzip\r\n") + chunks, 400},
      {kPost + std::string("Transfer-Encoding: chunked\r\n\r\n-1\r\n"), 400},
      {kPost + std::string("Transfer-Encoding: chunked\r\n\r\nxy\r\n"), 400},
      {"POST / HTTP/1.0\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n" + chunks, 400},
  };
  for (const auto& [text, status] : cases) {
    const std::string reply = Ask(text);
    EXPECT_THAT(reply, StartsWith(absl::StrCat("HTTP/1.1 ", status))) << text;
    if (status == 400) {
      EXPECT_THAT(reply, HasSubstr("Connection: close")) << text;
    }
  }
}

TEST_F(HttpAttackTest, TrailersAreNotHeaders) {
  Serve([](const HttpRequest& request, const std::shared_ptr<HttpAnswer>& answer) {
    answer->Send(200, {}, request.Header("authorization") == nullptr ? "none|" : "some|");
  });
  HttpCaller caller(server_->address());
  caller.Say(absl::StrCat(kPost, "Transfer-Encoding: chunked\r\n\r\n1\r\nx\r\n0\r\n",
                          "Authorization: Bearer a\r\n\r\n"));
  EXPECT_THAT(caller.HearUntil("|"), EndsWith("none|"));
}

TEST_F(HttpAttackTest, HalfClosedCallerIsAnswered) {
  ServeKept();
  size_t index = 0;
  for (const char* version : {"1.0", "1.1"}) {
    for (const bool streams : {false, true}) {
      HttpCaller caller(server_->address());
      caller.Say(absl::StrCat("GET / HTTP/", version, "\r\nHost: localhost\r\n\r\n"));
      caller.EndInput();
      const auto answer = Kept(index++);
      Settle();
      if (streams) {
        answer->Begin(200, {}, ": still here\n\n");
        Settle();
        EXPECT_TRUE(answer->Write("part"));
        answer->Write("done.");
        answer->End();
      } else {
        answer->Send(200, {}, "done.");
      }
      const std::string all = caller.HearAll();
      EXPECT_THAT(all, HasSubstr("HTTP/1.1 200 OK")) << version << streams;
      EXPECT_THAT(all, HasSubstr("done.")) << version << streams;
    }
  }
}

TEST_F(HttpAttackTest, HalfClosedPipelineIsAnswered) {
  ServeEcho();
  HttpCaller caller(server_->address());
  caller.Say(
      "GET /1 HTTP/1.1\r\nHost: localhost\r\n\r\nGET /2 HTTP/1.1\r\nHost: localhost\r\n\r\n");
  caller.EndInput();
  EXPECT_THAT(caller.HearAll(), EndsWith("/2 0|"));
}

TEST_F(HttpAttackTest, HangUpAfterExtraBytesIsNoticed) {
  ServeKept();
  size_t index = 0;
  for (const std::string& more : {std::string("G"), std::string(100000, 'G')}) {
    HttpCaller caller(server_->address());
    caller.Say(absl::StrCat(kGet, more));
    const auto answer = Kept(index++);
    absl::Notification gone;
    answer->OnGone([&] { gone.Notify(); });
    Settle();
    caller.HangUp();
    gone.WaitForNotification();
  }
}

TEST_F(HttpAttackTest, BusiestAddressIsEvictedFirst) {
  options_.limits.connections = 5;
  ServeKept();
  HttpCaller honest(server_->address(), "127.0.0.2");
  honest.Say("GET /now HTTP/1.1\r\nHost: localhost\r\n\r\n");
  honest.HearUntil("now|");
  std::vector<std::unique_ptr<HttpCaller>> attackers;
  for (int i = 0; i < 3; ++i) {
    attackers.push_back(std::make_unique<HttpCaller>(server_->address(), "127.0.0.3"));
    attackers.back()->Say(kGet);
    Kept(i);
  }
  HttpCaller silent(server_->address(), "127.0.0.3");
  HttpCaller newcomer(server_->address(), "127.0.0.4");
  newcomer.Say("GET /now HTTP/1.1\r\nHost: localhost\r\n\r\n");
  EXPECT_THAT(newcomer.HearUntil("now|"), StartsWith("HTTP/1.1 200"));
  EXPECT_EQ(silent.HearAll(), "");  // a connection without an answer in progress is closed first
  HttpCaller next(server_->address(), "127.0.0.4");
  next.Say("GET /now HTTP/1.1\r\nHost: localhost\r\n\r\n");
  EXPECT_THAT(next.HearUntil("now|"), StartsWith("HTTP/1.1 200"));
  EXPECT_EQ(attackers[0]->HearAll(), "");  // the oldest connection is closed next
  honest.Say("GET /now HTTP/1.1\r\nHost: localhost\r\n\r\n");
  EXPECT_THAT(honest.HearUntil("now|"), StartsWith("HTTP/1.1 200"));
}

TEST_F(HttpAttackTest, StalledConnectionIsEvictedFirst) {
  options_.limits.header_time = absl::Minutes(10);  // keeps the silent caller in a slow test
  options_.limits.connections = 3;
  options_.limits.stall_time = absl::ZeroDuration();
  ServeKept();
  HttpCaller silent(server_->address(), "127.0.0.3");
  HttpCaller stalled(server_->address(), "127.0.0.3");
  stalled.Say(kGet);
  Kept(0)->Send(200, {}, std::string(32 << 20, 'a'));
  stalled.HearUntil("aaaa");
  HttpCaller idle(server_->address(), "127.0.0.3");
  idle.Say("GET /now HTTP/1.1\r\nHost: localhost\r\n\r\n");
  EXPECT_THAT(idle.HearUntil("now|"), StartsWith("HTTP/1.1 200"));
  HttpCaller newcomer(server_->address(), "127.0.0.3");
  newcomer.Say("GET /now HTTP/1.1\r\nHost: localhost\r\n\r\n");
  EXPECT_THAT(newcomer.HearUntil("now|"), StartsWith("HTTP/1.1 200"));
  EXPECT_LT(stalled.HearAll().size(), size_t{32} << 20);
  EXPECT_FALSE(silent.HasNews());
}

TEST_F(HttpAttackTest, FullServerStillAnswersHealth) {
  options_.limits.connections = 2;
  options_.trusted_proxies = *Cidr::ParseList("127.0.0.4/31");
  options_.check_head = [](const HttpRequest& head) {
    HttpVerdict verdict;
    verdict.is_authenticated = head.Header("authorization") != nullptr;
    return verdict;
  };
  ServeKept();
  HttpCaller known(server_->address(), "127.0.0.3"), proxy(server_->address(), "127.0.0.5");
  known.Say("GET / HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer a\r\n\r\n");
  proxy.Say(kGet);
  Kept(0)->Send(200, {}, "idle|");
  Kept(1)->Send(200, {}, "idle|");
  for (HttpCaller* caller : {&known, &proxy}) caller->HearUntil("idle|");
  HttpCaller other(server_->address(), "127.0.0.3");
  other.Say("GET /now HTTP/1.1\r\nHost: localhost\r\n\r\n");
  EXPECT_THAT(other.HearUntil("\r\n\r\n"), StartsWith("HTTP/1.1 503"));
  HttpCaller health(server_->address(), "127.0.0.3");
  health.Say("GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n");
  Kept(2)->Send(200, {}, "healthy");
  EXPECT_THAT(health.HearAll(), EndsWith("healthy"));
  for (HttpCaller* caller : {&known, &proxy}) {
    caller->Say("GET /now HTTP/1.1\r\nHost: localhost\r\n\r\n");
    EXPECT_THAT(caller->HearUntil("now|"), StartsWith("HTTP/1.1 200"));
  }
}

TEST_F(HttpAttackTest, ManyHeaderFieldsAreRefused) {
  options_.limits.header_time = absl::Minutes(10);  // for all fields together
  ServeEcho();
  const auto with_fields = [](int count) {
    std::string text = kGet;
    text.resize(text.size() - 2);
    for (int i = 1; i < count; ++i) text += "a:\r\n";  // counts from 1, because Host is a field too
    return text + "\r\n";
  };
  EXPECT_THAT(Ask(with_fields(128)), StartsWith("HTTP/1.1 200"));
  EXPECT_THAT(Ask(with_fields(129)), StartsWith("HTTP/1.1 431"));
  EXPECT_THAT(Ask(with_fields(4000)), StartsWith("HTTP/1.1 431"));
  HttpCaller caller(server_->address());
  caller.Say("GET / HTTP/1.1\r\nA");
  for (int i = 0; i < 1000 && !caller.HasNews() && caller.TrySay(":\r\nA"); ++i) Settle();
  EXPECT_THAT(caller.HearUntil("\r\n\r\n"), StartsWith("HTTP/1.1 431"));
}

TEST_F(HttpAttackTest, HeaderMemoryIsCounted) {
  ServeEcho();
  constexpr size_t kFields = 100;
  std::string head = absl::StrCat(kPost, "Content-Length: 5\r\n");
  for (size_t i = 2; i < kFields; ++i) head += "a:\r\n";
  for (const char* end : {"", "\r\n"}) {
    HttpCaller caller(server_->address());
    caller.Say(head + end);
    Settle();
    EXPECT_GE(server_->held_bytes(), kFields * 150) << end;
    caller.HangUp();
    AwaitNothingHeld();
  }
}

TEST_F(HttpAttackTest, RequestIsFreedBeforeAnswerEnds) {
  Serve([this](const HttpRequest& request, std::shared_ptr<HttpAnswer> answer) {
    if (request.path == "/now") return answer->Send(200, {}, "now|");
    HttpHold document(answer.get());
    EXPECT_TRUE(document.Add(200000));
    EXPECT_GT(server_->held_bytes(), 300000u);
    absl::MutexLock lock(&mutex_);
    kept_.push_back(std::move(answer));
  });
  HttpCaller caller(server_->address());
  caller.Say(absl::StrCat(kPost, "Content-Length: 100000\r\n\r\n", std::string(100000, 'b')));
  const auto answer = Kept(0);
  AwaitNothingHeld();
  answer->Send(200, {}, "done|");
  EXPECT_THAT(caller.HearUntil("|"), StartsWith("HTTP/1.1 200"));
}

TEST_F(HttpAttackTest, HeldBodyIsCountedOnce) {
  options_.budget_bytes = 1 << 20;
  ServeKept();
  HttpCaller caller(server_->address());
  caller.Say(kGet);
  const auto answer = Kept(0);
  ASSERT_TRUE(answer->Hold(700000));
  answer->Send(200, {}, std::string(700000, 'a') + "|", 700000);
  EXPECT_THAT(caller.HearUntil("|"), StartsWith("HTTP/1.1 200"));
  AwaitNothingHeld();
}

TEST_F(HttpAttackTest, StalledStreamOverBudgetIsEnded) {
  options_.budget_bytes = 32 << 20;
  options_.limits.slow_time = absl::Hours(1);
  ServeKept();
  HttpCaller caller(server_->address());
  caller.Say(kGet);
  const auto answer = Kept(0);
  absl::Notification gone;
  answer->OnGone([&] { gone.Notify(); });
  answer->Begin(200, {});
  EXPECT_TRUE(answer->Write(std::string(24 << 20, 'x')));  // more than the kernel buffers
  Settle();
  EXPECT_TRUE(answer->Write("x"));
  Settle();
  while (answer->Write(std::string(1 << 20, 'x'))) {
  }
  EXPECT_TRUE(gone.WaitForNotificationWithTimeout(absl::Seconds(60)));
  AwaitNothingHeld();
}

TEST_F(HttpAttackTest, EndedAnswerFreesStoredRequest) {
  const auto budget = std::make_shared<HttpBudget>(1 << 20);
  for (const bool closes : {false, true}) {
    HttpAnswer answer(false, true, true, {}, HttpErrorBody, 0,
                      std::make_shared<HttpBudget::Account>(budget, "", nullptr), [] {});
    answer.KeepRequest({});
    if (closes) {
      answer.Abandon();
    } else {
      answer.Begin(200, {});
      EXPECT_FALSE(answer.Write(std::string(2 << 20, 'x')));  // the budget has no room
    }
    EXPECT_FALSE(answer.TakeRequest().has_value());
  }
}

TEST_F(HttpAttackTest, SlowUploaderReceivesRefusal) {
  options_.limits.request_time = absl::Hours(1);
  options_.check_head = [](const HttpRequest& head) {
    HttpVerdict verdict;
    if (head.path != "/now") verdict.refusal = HttpRefusal{401, {}, "no token|"};
    return verdict;
  };
  bool pauses = true, is_open = false;
  std::string answer;
  absl::Duration& linger = options_.limits.linger_time = absl::Milliseconds(250);
  // On a busy machine the test itself may pause, and the server may close the connection. Then the
  // test tries a longer linger time.
  while (pauses && linger < absl::Minutes(1)) {
    linger *= 2;
    ServeKept();
    absl::Time last = absl::Now();
    const absl::Time end = last + 4 * linger;
    HttpCaller caller(server_->address());
    caller.Say(absl::StrCat(kPost, "Content-Length: 1000000\r\n\r\n"));
    for (pauses = false, is_open = true; is_open && !pauses && absl::Now() < end;) {
      is_open = caller.TrySay("b");
      Settle();
      pauses = absl::Now() - std::exchange(last, absl::Now()) > linger / 2;
    }
    answer = caller.HearUntil("|");
  }
  EXPECT_FALSE(pauses);
  EXPECT_TRUE(is_open);
  EXPECT_THAT(answer, StartsWith("HTTP/1.1 401"));
}

TEST_F(HttpAttackTest, BytesOverBudgetKeepAnswer) {
  options_.budget_bytes = 64 << 10;
  ServeKept();
  HttpCaller caller(server_->address());
  caller.Say(kGet);
  const auto answer = Kept(0);
  ASSERT_TRUE(answer->Hold(50000));
  caller.Say(std::string(15000, 'G'));
  Settle();
  answer->Send(200, {}, "done|");
  EXPECT_THAT(caller.HearUntil("|"), StartsWith("HTTP/1.1 200"));
}

TEST_F(HttpAttackTest, RefusedRequestEndsConnectionProtection) {
  options_.limits.connections = 1;
  options_.check_head = [](const HttpRequest& head) {
    HttpVerdict verdict;
    verdict.is_authenticated = head.Header("authorization") != nullptr;
    if (!verdict.is_authenticated) verdict.refusal = HttpRefusal{401, {}, "no token|"};
    return verdict;
  };
  ServeKept();
  const std::string known = "GET /now HTTP/1.1\r\nHost: localhost\r\nAuthorization: a\r\n\r\n";
  HttpCaller caller(server_->address(), "127.0.0.3");
  caller.Say(known);
  EXPECT_THAT(caller.HearUntil("now|"), StartsWith("HTTP/1.1 200"));
  caller.Say(kGet);
  EXPECT_THAT(caller.HearUntil("|"), StartsWith("HTTP/1.1 401"));
  HttpCaller newcomer(server_->address(), "127.0.0.4");
  newcomer.Say(known);
  EXPECT_THAT(newcomer.HearUntil("now|"), StartsWith("HTTP/1.1 200"));
}

TEST_F(HttpAttackTest, SlowHandlerDoesNotDelayOthers) {
  absl::Notification entered, release;
  Serve([&](const HttpRequest& request, const std::shared_ptr<HttpAnswer>& answer) {
    if (request.body().size() > (64 << 10)) {
      entered.Notify();
      release.WaitForNotification();
    }
    answer->Send(200, {}, absl::StrCat(request.body().size(), "|"));
  });
  HttpCaller large(server_->address());
  large.Say(absl::StrCat(kPost, "Content-Length: 100000\r\n\r\n", std::string(100000, 'b')));
  entered.WaitForNotification();
  EXPECT_THAT(Ask(kGet), StartsWith("HTTP/1.1 200"));
  EXPECT_THAT(Ask(absl::StrCat(kPost, "Content-Length: 1\r\n\r\n1")), StartsWith("HTTP/1.1 200"));
  release.Notify();
  EXPECT_THAT(large.HearUntil("100000|"), StartsWith("HTTP/1.1 200"));
}

}  // namespace
}  // namespace hearth
