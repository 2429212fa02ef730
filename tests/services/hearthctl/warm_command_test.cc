#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <set>
#include <string>
#include <vector>

#include "proto/cache_store.grpc.pb.h"
#include "tests/services/hearthctl/fake_worker.h"
#include "tests/services/hearthctl/run_cli.h"

namespace hearth {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

class WarmCommandTest : public ::testing::Test {
 protected:
  CliResult Warm(const std::string& yaml, std::vector<std::string> more = {}) {
    std::vector<std::string> arguments = {
        "warm",  "--worker", worker_.address(), "--file", folder_.Write("prompts.yaml", yaml),
        "--json"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return RunCli(arguments, "", progress_);
  }

  FakeWorker worker_;
  TestFolder folder_;
  bool progress_ = false;  // as if a person read the errors on a terminal
};

// Knows how to pin, and nothing else.
class PinStore final : public v1::CacheStore::Service {
 public:
  PinStore() {
    grpc::ServerBuilder builder;
    int port = 0;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
    builder.RegisterService(this);
    server_ = builder.BuildAndStart();
    address_ = "127.0.0.1:" + std::to_string(port);
  }
  ~PinStore() override { server_->Shutdown(); }
  const std::string& address() const { return address_; }

  std::set<std::string> refused;  // ids that cannot be pinned
  std::vector<std::string> pinned;

  grpc::Status Pin(grpc::ServerContext*, const v1::PinRequest* request, v1::PinResponse*) override {
    if (refused.count(request->restore_point_id()) > 0) {
      return {grpc::StatusCode::NOT_FOUND, "evicted meanwhile"};
    }
    pinned.push_back(request->restore_point_id());
    return grpc::Status::OK;
  }

 private:
  std::string address_;
  std::unique_ptr<grpc::Server> server_;
};

constexpr char kTwoPrompts[] = R"(
prompts:
  - name: long
    text: "forty characters, more than two chunks.."
    breakpoints: [5]
chats:
  - messages:
      - {role: system, content: "You answer in one short sentence."}
)";

TEST_F(WarmCommandTest, ComputesWhatIsMissingAndNothingTheSecondTime) {
  const CliResult first = Warm(kTwoPrompts);
  ASSERT_EQ(first.code, kExitOk) << first.err;
  EXPECT_EQ(first.last()["coverage"], 1.0);
  EXPECT_EQ(first.last()["entries"], 2);
  EXPECT_GT(first.last()["computed_tokens"].get<double>(), 0);
  EXPECT_EQ(first.objects.at(0)["wanted"], (std::vector<uint32_t>{5, 32}));
  EXPECT_EQ(worker_.prefilled.size(), 2u);

  const CliResult second = Warm(kTwoPrompts);
  EXPECT_EQ(second.code, kExitOk);
  EXPECT_EQ(second.last()["computed_tokens"], 0);
  EXPECT_EQ(second.objects.at(0)["outcome"], "already stored");
  EXPECT_EQ(worker_.prefilled.size(), 2u);
}

TEST_F(WarmCommandTest, ATimeToLiveIsPassedOnAndRenewsWhatIsThere) {
  const std::string file = std::string(kTwoPrompts) + "    ttl: 90s\n";
  ASSERT_EQ(Warm(file, {"--ttl", "36h"}).code, kExitOk);
  ASSERT_EQ(worker_.prefilled.size(), 2u);
  EXPECT_EQ(worker_.prefilled[0].ttl_s(), 36u * 3600);
  EXPECT_EQ(worker_.prefilled[1].ttl_s(), 90u);
  const CliResult second = Warm(file);
  EXPECT_EQ(second.code, kExitOk);
  EXPECT_EQ(worker_.prefilled.size(), 3u) << "only the one that says how long";
  EXPECT_THAT(Warm(file, {"--ttl", "soon"}).err, HasSubstr("--ttl: \"soon\" is not a time"));
}

TEST_F(WarmCommandTest, ShowsHowFarAPromptIsToWhoReadsErrorsOnATerminal) {
  constexpr char kFile[] = "prompts: [{text: \"the keeper of the lamp, who is away\"}]";
  progress_ = true;
  EXPECT_THAT(Warm(kFile).err,
              HasSubstr("\rcomputing the prompt: 1 of 35 tokens, 2 %\x1b[K\r\x1b[K"));
  EXPECT_EQ(worker_.prefilled.size(), 1u);
  worker_.stored.clear();
  progress_ = false;
  EXPECT_THAT(Warm(kFile).err, Not(HasSubstr("computing the prompt")));
}

TEST_F(WarmCommandTest, BelowTheCoverageItFailsAndSaysWhy) {
  worker_.store_works = false;
  const CliResult result = Warm(kTwoPrompts);
  EXPECT_EQ(result.code, kExitFailed);
  EXPECT_EQ(result.last()["coverage"], 0.0);
  EXPECT_THAT(result.objects.at(0)["note"].get<std::string>(),
              AllOf(HasSubstr("store unreachable"), HasSubstr("boundary 32: never stored")))
      << "why it was not published, and what that leaves";
  EXPECT_THAT(result.err, HasSubstr("coverage 0 is below 1"));
  EXPECT_EQ(Warm(kTwoPrompts, {"--min-coverage", "0"}).code, kExitOk);
}

TEST_F(WarmCommandTest, APromptWithoutABoundaryWorthKeepingIsNotComputed) {
  const CliResult alone = Warm("prompts:\n  - text: short\n", {"--min-coverage", "0"});
  EXPECT_EQ(alone.code, kExitOk);
  EXPECT_EQ(alone.objects.at(0)["outcome"], "nothing to keep");
  EXPECT_EQ(worker_.prefilled.size(), 0u);
}

TEST_F(WarmCommandTest, AFileWithNothingToKeepKeepsNothingWarm) {
  const CliResult result = Warm("prompts:\n  - text: short\n");
  EXPECT_EQ(result.code, kExitFailed);
  EXPECT_TRUE(result.last()["coverage"].is_null()) << result.out;
  EXPECT_THAT(result.err, HasSubstr("nothing in it is worth keeping"));
}

TEST_F(WarmCommandTest, AFailedPromptsBoundariesCountAsMissing) {
  worker_.prefill_failure = grpc::Status(grpc::StatusCode::UNAVAILABLE, "the queue is full");
  const CliResult prefill = Warm(kTwoPrompts);
  EXPECT_EQ(prefill.code, kExitFailed);
  EXPECT_EQ(prefill.last()["coverage"], 0.0);
  EXPECT_EQ(prefill.last()["failed"], 2);
  EXPECT_EQ(prefill.last()["boundaries"], 3);
}

TEST_F(WarmCommandTest, TheCoverageOfAPromptThatIsNotEvenTokenizedIsUnknown) {
  worker_.failure = grpc::Status(grpc::StatusCode::UNAVAILABLE, "going down");
  worker_.answers_get_model = true;
  const CliResult result = Warm(kTwoPrompts);
  EXPECT_EQ(result.code, kExitFailed);
  EXPECT_TRUE(result.last()["coverage"].is_null()) << result.out;
  const CliResult text =
      RunCli({"warm", "--worker", worker_.address(), "--file", folder_.File("prompts.yaml")});
  EXPECT_THAT(text.out, HasSubstr("coverage unknown: 0 of 0 boundaries of 2 prompts"));
}

TEST_F(WarmCommandTest, PinsNeedAStore) {
  const CliResult result = Warm("prompts:\n  - {text: a, pin: true}\n");
  EXPECT_EQ(result.code, kExitUsage);
  EXPECT_THAT(result.err, HasSubstr("--store"));
}

constexpr char kPinned[] = R"(
prompts:
  - {name: long, text: "forty characters, more than two chunks..", breakpoints: [5], pin: true}
)";

TEST_F(WarmCommandTest, APinHoldsEveryBoundaryThatIsWorthKeeping) {
  PinStore store;
  const CliResult result = Warm(kPinned, {"--store", store.address()});
  EXPECT_EQ(result.code, kExitOk) << result.err;
  EXPECT_THAT(store.pinned,
              ElementsAre(FakeWorker::RestorePointId(5), FakeWorker::RestorePointId(32)));
  EXPECT_EQ(result.objects.at(0)["pinned"], true);
  EXPECT_EQ(result.objects.at(0)["pinned_boundaries"], (std::vector<uint32_t>{5, 32}));
  EXPECT_EQ(result.last()["failed"], 0);
}

TEST_F(WarmCommandTest, ABoundaryThatCannotBePinnedFailsTheRunAndTheOthersArePinned) {
  PinStore store;
  store.refused = {FakeWorker::RestorePointId(5)};
  const CliResult refused = Warm(kPinned, {"--store", store.address()});
  EXPECT_EQ(refused.code, kExitFailed);
  EXPECT_THAT(store.pinned, ElementsAre(FakeWorker::RestorePointId(32)));
  EXPECT_EQ(refused.objects.at(0)["pinned"], false);
  EXPECT_EQ(refused.objects.at(0)["pinned_boundaries"], (std::vector<uint32_t>{32}));
  EXPECT_EQ(refused.last()["failed"], 1);
  EXPECT_THAT(refused.err,
              AllOf(HasSubstr("long: not pinned at boundary 5"), HasSubstr("evicted meanwhile")));

  worker_.without_restore_point = {32};
  store.refused.clear();
  const CliResult nameless = Warm(kPinned, {"--store", store.address()});
  EXPECT_EQ(nameless.code, kExitFailed);
  EXPECT_EQ(nameless.objects.at(0)["pinned_boundaries"], (std::vector<uint32_t>{5}));
  EXPECT_THAT(nameless.err, HasSubstr("not pinned at boundary 32: it has no restore point"));
}

TEST_F(WarmCommandTest, ARefusedPromptIsNamedAndFailsTheRun) {
  worker_.failure = grpc::Status(grpc::StatusCode::UNAVAILABLE, "draining");
  const CliResult result = Warm(kTwoPrompts);
  EXPECT_EQ(result.code, kExitFailed) << "it was reached";
  EXPECT_THAT(result.err, HasSubstr("draining"));
}

}  // namespace
}  // namespace hearth
