#include "services/store/fleet_page.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>

#include "absl/strings/match.h"
#include "tests/services/serving/http_caller.h"
#include "tests/services/store/store_peer.h"

namespace hearth {
namespace {

constexpr char kSecretWords[] = "Dear <b>doctor</b>, my \"heart\"";

class FleetPageTest : public TenantsFixture {
 protected:
  // Opens a store with a worker that has reported, and one prefix of the tenant zebra.
  void Open(const AccessFlags& access, bool shows_words = true,
            const std::string& words = kSecretWords) {
    server_ = std::make_unique<StoreServer>(options_, access);
    if (shows_words) server_->service()->fleet()->ShowWords();
    const bool has_identities = !access.identities_file.empty();
    Peer worker(*server_, has_identities ? As("worker") : ClientAccess());
    v1::ReportRequest report = KitReport();
    report.set_running(3);
    report.set_prompt_tokens(1000);
    report.set_cached_tokens(900);
    const std::string told = worker.Unary(&v1::CacheStore::Stub::Report, report);
    EXPECT_TRUE(absl::EndsWith(told, "status 0 \n")) << told;
    EXPECT_EQ(absl::StrContains(told, "shows_prompt_text: true"), shows_words);
    v1::Prefix prefix = PrefixOf(kBoundary);
    if (has_identities) prefix.set_tenant("zebra");
    EXPECT_TRUE(absl::StrContains(worker.Publish(prefix, 1, words), "boundaries: 40"));
    metrics_.AddPage("/fleet.json",
                     FleetPage({server_->store(), server_->service()->fleet(),
                                server_->access().identities.get(), access.plaintext_tokens}));
    address_ = metrics_.Serve("127.0.0.1:0", {"x"}).value();
  }
  // Returns the whole answer to a request with a token; "": without one.
  std::string Ask(const std::string& token) const {
    HttpCaller caller(address_);
    const std::string header = token.empty() ? "" : "Authorization: Bearer " + token + "\r\n";
    caller.Say("GET /fleet.json HTTP/1.1\r\nHost: x\r\nConnection: close\r\n" + header + "\r\n");
    return caller.HearAll();
  }
  static nlohmann::json JsonOf(const std::string& answer) {
    return nlohmann::json::parse(answer.substr(answer.find("\r\n\r\n")));
  }
  static nlohmann::json OnlyPrefix(const nlohmann::json& json) {
    EXPECT_EQ(json["prefixes"].size(), 1u);
    return json["prefixes"].begin().value();
  }

  std::unique_ptr<StoreServer> server_;
  Metrics metrics_{"hearth_test"};
  std::string address_;
};

TEST_F(FleetPageTest, AdminSeesNamesAndWords) {
  Open(access_);
  const std::string answer = Ask("token-root");
  ASSERT_TRUE(absl::StartsWith(answer, "HTTP/1.1 200")) << answer;
  const nlohmann::json json = JsonOf(answer);
  ASSERT_EQ(json["workers"].size(), 1u);
  const nlohmann::json& worker = json["workers"][0];
  EXPECT_EQ(worker["name"], "host:7070");
  EXPECT_EQ(worker["caller"], "worker");
  EXPECT_EQ(worker["models"], nlohmann::json::array({"small model"}));
  EXPECT_EQ(worker["connected"], true);
  EXPECT_EQ(worker["running"], 3);
  EXPECT_EQ(worker["cached_tokens"], 900);
  ASSERT_EQ(json["models"].size(), 1u);
  EXPECT_EQ(json["models"][0]["name"], "small model");
  EXPECT_EQ(json["models"][0]["workers"], 1);
  const nlohmann::json prefix = OnlyPrefix(json);
  EXPECT_EQ(prefix["tenant"], "zebra");
  EXPECT_EQ(prefix["model"], "small model");
  EXPECT_EQ(prefix["words"], kSecretWords);
}

TEST_F(FleetPageTest, OtherCallersSeeNothing) {
  Open(access_);
  for (const char* token : {"", "wrong", "token-a", "token-worker", "token-writer"}) {
    const std::string answer = Ask(token);
    const bool is_known = absl::StartsWith(token, "token-");
    EXPECT_TRUE(absl::StartsWith(answer, is_known ? "HTTP/1.1 403" : "HTTP/1.1 401")) << answer;
    for (const char* secret : {"zebra", "host:7070", "small model", "Dear"}) {
      EXPECT_FALSE(absl::StrContains(answer, secret)) << token << answer;
    }
  }
}

TEST_F(FleetPageTest, WordsNeedTheFlag) {
  Open(access_, /*shows_words=*/false);
  const nlohmann::json json = JsonOf(Ask("token-root"));
  EXPECT_EQ(json["shows_prompt_text"], false);
  EXPECT_FALSE(OnlyPrefix(json).contains("words"));
  EXPECT_EQ(OnlyPrefix(json)["tenant"], "zebra");
}

TEST_F(FleetPageTest, WordsNeedAnAdminToken) {
  Open(AccessFlags());  // everyone is anonymous
  const nlohmann::json json = JsonOf(Ask(""));
  EXPECT_EQ(json["workers"][0]["name"], "host:7070");
  EXPECT_EQ(OnlyPrefix(json)["tenant"], "default");
  EXPECT_FALSE(absl::StrContains(json.dump(), "Dear")) << json;
}

TEST_F(FleetPageTest, TokensInClearTextStayOnTheHost) {
  Open(access_);
  FleetPageOptions options{server_->store(), server_->service()->fleet(),
                           server_->access().identities.get(), false};
  HttpRequest request;
  request.headers = {{"authorization", "Bearer token-root"}};
  for (const char* near : {"127.0.0.1:5000", "127.9.8.7:5000", "::1:5000"}) {
    request.peer = near;
    EXPECT_TRUE(CheckFleetReader(options, request).ok()) << near;
  }
  for (const char* far : {"192.0.2.1:5000", "2001:db8::1:5000", ""}) {
    request.peer = far;
    EXPECT_TRUE(absl::IsPermissionDenied(CheckFleetReader(options, request))) << far;
    options.plaintext_tokens = true;
    EXPECT_TRUE(CheckFleetReader(options, request).ok()) << far;
    options.plaintext_tokens = false;
  }
}

TEST_F(FleetPageTest, NamesAreHiddenIfNoEntryHasAToken) {
  AccessFlags access;
  access.identities_file = folder_.Write(
      "names.json",
      R"({"identities":[{"name":"root","role":"admin","certificate":"root.example"}]})");
  const ServerAccess opened = OpenAccess(access, "127.0.0.1:0").value();
  HttpRequest request;
  request.peer = "127.0.0.1:5000";
  const absl::Status status =
      CheckFleetReader({nullptr, nullptr, opened.identities.get(), false}, request);
  EXPECT_TRUE(absl::IsPermissionDenied(status)) << status;
}

TEST_F(FleetPageTest, FetchBringsMissingWords) {
  Open(access_, true, "");
  EXPECT_EQ(OnlyPrefix(JsonOf(Ask("token-root")))["words"], "");
  v1::FetchRequest fetch;
  *fetch.mutable_prefix() = PrefixOf(kPrompt);
  fetch.mutable_prefix()->set_tenant("zebra");
  fetch.set_first_words("words of the fetch");
  Peer(*server_, As("worker")).Fetch(fetch);
  EXPECT_EQ(OnlyPrefix(JsonOf(Ask("token-root")))["words"], "words of the fetch");
}

}  // namespace
}  // namespace hearth
