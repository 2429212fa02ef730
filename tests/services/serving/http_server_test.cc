// HttpServer with callers that follow HTTP, and with callers that violate it.
#include "services/serving/http/http_server.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "services/serving/metrics.h"
#include "tests/services/serving/http_caller.h"

namespace hearth {
namespace {

using ::testing::Each;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

std::unique_ptr<HttpServer> ServeHttp(HttpServer::Handler handler, const HttpLimits& limits = {}) {
  HttpServer::Options options;
  options.listen = "127.0.0.1:0";
  options.limits = limits;
  options.hosts = {"x"};
  auto server = HttpServer::Start(options, std::move(handler));
  EXPECT_TRUE(server.ok()) << server.status();
  return *std::move(server);
}

// Answers each request with its method, path, query and body.
void EchoHttp(const HttpRequest& request, const std::shared_ptr<HttpAnswer>& answer) {
  answer->Send(200, {{"Content-Type", "text/plain"}},
               absl::StrCat(request.method, " ", request.path, " ", request.query, " ",
                            request.body(), "|"));
}

TEST(HttpServer, KeepAliveConnectionServesSeveralRequests) {
  const auto server = ServeHttp(EchoHttp);
  HttpCaller caller(server->address());
  caller.Say("GET /a?b=c HTTP/1.1\r\nHost: x\r\n\r\n");
  const std::string first = caller.HearUntil("GET /a b=c |");
  EXPECT_THAT(first, StartsWith("HTTP/1.1 200 OK\r\nDate: "));
  EXPECT_THAT(first, HasSubstr("\r\nContent-Length: 12\r\n"));
  EXPECT_THAT(first, Not(HasSubstr("Connection: close")));
  caller.Say("POST /d HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\nhi");
  EXPECT_THAT(caller.HearUntil("|"), HasSubstr("HTTP/1.1 200"));
}

TEST(HttpServer, PipelinedRequestsAnsweredInOrder) {
  const auto server = ServeHttp(EchoHttp);
  HttpCaller caller(server->address());
  caller.Say(
      "GET /1 HTTP/1.1\r\nHost: x\r\n\r\nGET /2 HTTP/1.1\r\nHost: x\r\n\r\n"
      "GET /3 HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
  EXPECT_THAT(caller.HearUntil("GET /1  |"), HasSubstr("200"));
  EXPECT_THAT(caller.HearUntil("GET /2  |"), HasSubstr("200"));
  const std::string last = caller.HearAll();
  EXPECT_THAT(last, HasSubstr("Connection: close\r\n"));
  EXPECT_THAT(last, EndsWith("GET /3  |"));
}

TEST(HttpServer, HeadRequestGetsNoBody) {
  const auto server = ServeHttp(EchoHttp);
  HttpCaller caller(server->address());
  caller.Say("HEAD / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
  const std::string all = caller.HearAll();
  EXPECT_THAT(all, HasSubstr("Content-Length: 9\r\n"));
  EXPECT_THAT(all, EndsWith("\r\n\r\n"));
}

TEST(HttpServer, SilentStreamSendsKeepAlive) {
  std::shared_ptr<HttpAnswer> kept;
  absl::Notification begun;
  const auto server = ServeHttp([&](const HttpRequest&, std::shared_ptr<HttpAnswer> answer) {
    answer->Begin(200, {{"Content-Type", "text/event-stream"}}, ": still here\n\n");
    kept = std::move(answer);
    begun.Notify();
  });
  HttpCaller caller(server->address());
  caller.Say("GET / HTTP/1.1\r\nHost: x\r\n\r\n");
  begun.WaitForNotification();
  EXPECT_THAT(caller.HearUntil("\r\n\r\n"), HasSubstr("Transfer-Encoding: chunked"));
  EXPECT_EQ(caller.HearUntil("\n\n\r\n"), "e\r\n: still here\n\n\r\n");
  EXPECT_TRUE(kept->Write("one"));
  EXPECT_THAT(caller.HearUntil("3\r\none\r\n"), EndsWith("3\r\none\r\n"));
  kept->End();
  EXPECT_THAT(caller.HearUntil("0\r\n\r\n"), EndsWith("0\r\n\r\n"));
  EXPECT_FALSE(kept->Write("after the end"));
}

TEST(HttpServer, UnsentStreamCanBecomeError) {
  HttpLimits patient;
  patient.silence = absl::Hours(1);
  for (const bool is_patient : {true, false}) {
    std::shared_ptr<HttpAnswer> kept;
    absl::Notification begun;
    const auto server = ServeHttp(
        [&](const HttpRequest&, std::shared_ptr<HttpAnswer> answer) {
          answer->Begin(200, {}, ": still here\n\n");
          answer->Begin(500, {}, ": twice\n\n");
          kept = std::move(answer);
          begun.Notify();
        },
        is_patient ? patient : HttpLimits());
    HttpCaller caller(server->address());
    caller.Say("GET / HTTP/1.1\r\nHost: x\r\n\r\n");
    begun.WaitForNotification();
    if (is_patient) {
      EXPECT_FALSE(caller.HasNews());
      EXPECT_TRUE(kept->TakeBack());
      EXPECT_FALSE(kept->Write("comes too late"));
      kept->Send(429, {}, "later.");
      EXPECT_THAT(caller.HearUntil("later."), StartsWith("HTTP/1.1 429"));
    } else {
      EXPECT_THAT(caller.HearUntil(": still here\n\n"), StartsWith("HTTP/1.1 200"));
      EXPECT_FALSE(kept->TakeBack());
      kept->End();
      EXPECT_THAT(caller.HearUntil("0\r\n\r\n"), EndsWith("0\r\n\r\n"));
    }
    caller.Say("GET / HTTP/1.1\r\nHost: y\r\n\r\n");
    EXPECT_THAT(caller.HearUntil("\r\n\r\n"), StartsWith("HTTP/1.1 403")) << "it is kept alive";
  }
}

TEST(HttpServer, ClientHangUpEndsAnswer) {
  for (const bool streams : {false, true}) {
    std::shared_ptr<HttpAnswer> kept;
    absl::Notification asked, gone;
    const auto server = ServeHttp([&](const HttpRequest&, std::shared_ptr<HttpAnswer> answer) {
      if (streams) answer->Begin(200, {}, ": still here\n\n");
      answer->OnGone([&] { gone.Notify(); });
      kept = std::move(answer);
      asked.Notify();
    });
    HttpCaller caller(server->address());
    caller.Say("GET / HTTP/1.1\r\nHost: x\r\n\r\n");
    asked.WaitForNotification();
    caller.HangUp();
    gone.WaitForNotification();
    EXPECT_FALSE(kept->Write("to nobody"));
  }
}

TEST(HttpServer, UnansweredRequestGets500) {
  const auto server = ServeHttp([](const HttpRequest&, const std::shared_ptr<HttpAnswer>&) {});
  HttpCaller caller(server->address());
  caller.Say("GET / HTTP/1.0\r\n\r\n");
  EXPECT_THAT(caller.HearAll(), StartsWith("HTTP/1.1 500 Internal Server Error\r\n"));
}

// Answers to 64 late requests, to a request in time, and to a silent connection.
struct LateAnswers {
  std::vector<std::string> halves;  // answers to requests without their end
  std::string whole, silent;
  bool is_valid;  // whether the test sent everything in time
};

LateAnswers AskLate(absl::Duration limit) {
  HttpLimits limits;
  limits.header_time = limits.request_time = limit;
  const auto server = ServeHttp(EchoHttp, limits);
  const absl::Time start = absl::Now();
  std::vector<std::unique_ptr<HttpCaller>> halves;
  for (int i = 0; i < 64; ++i) {
    halves.push_back(std::make_unique<HttpCaller>(server->address()));
    halves.back()->TrySay(
        i % 2 == 0 ? "GET /" : "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\nhalf");
  }
  HttpCaller whole(server->address());
  whole.TrySay("GET /w HTTP/1.1\r\nHost: x\r\n\r\n");
  LateAnswers answers;
  answers.whole = whole.HearUntil("|");
  // One thread reads all connections in turn, so it has also read the half requests.
  answers.is_valid = absl::Now() - start < limit;
  for (const auto& half : halves) answers.halves.push_back(half->HearAll());
  answers.silent = HttpCaller(server->address()).HearAll();
  return answers;
}

TEST(HttpServer, LateRequestsGet408) {
  LateAnswers answers;
  absl::Duration limit = absl::Milliseconds(150);
  do {  // on a busy machine, the test itself may be late
    limit *= 2;
    answers = AskLate(limit);
  } while (!answers.is_valid && limit < absl::Minutes(1));
  EXPECT_THAT(answers.whole, StartsWith("HTTP/1.1 200"));
  EXPECT_THAT(answers.halves, Each(StartsWith("HTTP/1.1 408")));
  EXPECT_EQ(answers.silent, "");
}

TEST(HttpServer, OversizedOrAmbiguousRequestIsRefused) {
  HttpLimits limits;
  limits.header_bytes = 1024;
  limits.body_bytes = 10;
  const auto server = ServeHttp(EchoHttp, limits);
  const auto ask = [&](const std::string& text) {
    HttpCaller caller(server->address());
    caller.Say(text);
    return caller.HearAll();
  };
  const std::string post = "POST / HTTP/1.1\r\nHost: x\r\n";
  EXPECT_THAT(ask(absl::StrCat(post, "A: ", std::string(2000, 'a'), "\r\n\r\n")),
              StartsWith("HTTP/1.1 431"));
  const std::string large = ask(absl::StrCat(post, "Content-Length: 11\r\n\r\nelevenbytes"));
  EXPECT_THAT(large, StartsWith("HTTP/1.1 413"));
  EXPECT_THAT(large, HasSubstr(R"("message":"the body must be at most 10 bytes")"));
  EXPECT_THAT(large, HasSubstr("Connection: close"));
  EXPECT_THAT(ask(absl::StrCat(post, "Transfer-Encoding: chunked\r\n\r\nb\r\nelevenbytes\r\n")),
              StartsWith("HTTP/1.1 413"));
  EXPECT_THAT(ask(absl::StrCat(post, "Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0")),
              StartsWith("HTTP/1.1 400"));
  EXPECT_THAT(ask(absl::StrCat(post, "Content-Length: 3\r\nContent-Length: 4\r\n\r\nabcd")),
              StartsWith("HTTP/1.1 400"));
  EXPECT_THAT(ask("no request at all\r\n\r\n"), StartsWith("HTTP/1.1 400"));
}

TEST(HttpServer, FullServerClosesIdleConnection) {
  HttpLimits limits;
  limits.connections = 2;
  const auto server = ServeHttp(EchoHttp, limits);
  const std::string ask = "GET /i HTTP/1.1\r\nHost: x\r\n\r\n";
  HttpCaller first(server->address()), second(server->address());
  for (HttpCaller* caller : {&first, &second}) {
    caller->Say(ask);
    EXPECT_THAT(caller->HearUntil("|"), StartsWith("HTTP/1.1 200"));
  }
  HttpCaller third(server->address());
  third.Say(ask);
  EXPECT_THAT(third.HearUntil("|"), StartsWith("HTTP/1.1 200"));
  EXPECT_EQ(first.HearAll(), "");
}

TEST(HttpServer, UnfinishedRequestEvictedBeforeIdleConnection) {
  HttpLimits limits;
  limits.connections = 3;
  const auto server = ServeHttp(EchoHttp, limits);
  const std::string ask = "GET /i HTTP/1.1\r\nHost: x\r\n\r\n";
  HttpCaller idle(server->address());
  idle.Say(ask);
  EXPECT_THAT(idle.HearUntil("|"), StartsWith("HTTP/1.1 200"));
  HttpCaller first(server->address()), second(server->address());
  for (HttpCaller* half : {&first, &second}) half->Say("GET /i HTTP/1.1\r\nHo");
  HttpCaller other(server->address());
  other.Say(ask);
  EXPECT_THAT(other.HearUntil("|"), StartsWith("HTTP/1.1 200"));
  EXPECT_EQ(first.HearAll(), "");
  idle.Say(ask);
  EXPECT_THAT(idle.HearUntil("|"), StartsWith("HTTP/1.1 200"));
}

TEST(HttpServer, ExpectHeaderGetsContinue) {
  const auto server = ServeHttp(EchoHttp);
  HttpCaller caller(server->address());
  caller.Say("POST / HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 4\r\n\r\n");
  EXPECT_EQ(caller.HearUntil("\r\n\r\n"), "HTTP/1.1 100 Continue\r\n\r\n");
  caller.Say("body");
  EXPECT_THAT(caller.HearUntil("body|"), StartsWith("HTTP/1.1 200"));
}

TEST(HttpServer, Http10CallerGetsNoContinue) {
  const auto server = ServeHttp(EchoHttp);
  HttpCaller caller(server->address());
  caller.Say("POST / HTTP/1.0\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 4\r\n\r\n");
  caller.Say("body");
  EXPECT_THAT(caller.HearAll(), StartsWith("HTTP/1.1 200"));
}

// The server listens on ":PORT", without a host. In an earlier version, a request with Origin but
// without Host crashed it.
TEST(HttpServer, ListenWithoutHostNeedsHostHeader) {
  HttpServer::Options options;
  options.listen = ":0";
  auto server = HttpServer::Start(options, EchoHttp);
  ASSERT_TRUE(server.ok()) << server.status();
  const auto ask = [&](const std::string& version, const std::string& headers) {
    HttpCaller caller((*server)->address());
    caller.Say(absl::StrCat("GET / HTTP/", version, "\r\n", headers, "\r\n"));
    return caller.HearUntil("\r\n");
  };
  const std::string origin = "Origin: http://evil.example\r\n";
  EXPECT_THAT(ask("1.1", origin), StartsWith("HTTP/1.1 400"));
  EXPECT_THAT(ask("1.1", "Host:\r\n" + origin), StartsWith("HTTP/1.1 400"));
  EXPECT_THAT(ask("1.0", origin), StartsWith("HTTP/1.1 403"));
  EXPECT_THAT(ask("1.0", ""), StartsWith("HTTP/1.1 200"));
}

TEST(HttpServer, DrainAnswersHealthOnly) {
  const auto server = ServeHttp(EchoHttp);
  server->Drain();
  const auto ask = [&](const std::string& path) {
    HttpCaller caller(server->address());
    caller.Say(absl::StrCat("GET ", path, " HTTP/1.1\r\nHost: x\r\n\r\n"));
    return caller.HearAll();
  };
  EXPECT_THAT(ask("/health"), EndsWith("GET /health  |"));
  EXPECT_THAT(ask("/other"), StartsWith("HTTP/1.1 503"));
}

TEST(HttpServer, DrainFinishesRunningAnswer) {
  std::shared_ptr<HttpAnswer> kept;
  absl::Notification asked;
  const auto server = ServeHttp([&](const HttpRequest&, std::shared_ptr<HttpAnswer> answer) {
    kept = std::move(answer);
    asked.Notify();
  });
  HttpCaller caller(server->address());
  caller.Say("GET / HTTP/1.1\r\nHost: x\r\n\r\n");
  asked.WaitForNotification();
  server->Drain();
  kept->Send(200, {}, "done.");
  EXPECT_THAT(caller.HearAll(), EndsWith("done."));
}

TEST(HttpPages, UnknownPageOrMethodIsRefused) {
  Metrics metrics("hearth_test");
  metrics.AddPage("/a", {"text/plain", [] { return "made."; }});
  const absl::StatusOr<std::string> address = metrics.Serve("127.0.0.1:0", {"x"});
  ASSERT_TRUE(address.ok()) << address.status();
  const auto ask = [&](const std::string& line) {
    HttpCaller caller(*address);
    caller.Say(line + " HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
    return caller.HearAll();
  };
  EXPECT_THAT(ask("GET /a"), EndsWith("\r\n\r\nmade."));
  EXPECT_THAT(ask("GET /a"), HasSubstr("X-Content-Type-Options: nosniff\r\n"));
  EXPECT_THAT(ask("GET /b"), StartsWith("HTTP/1.1 404"));
  EXPECT_THAT(ask("DELETE /a"), StartsWith("HTTP/1.1 405"));
}

}  // namespace
}  // namespace hearth
