#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/proto/tiny_snapshot.h"
#include "tests/services/hearthctl/fake_worker.h"
#include "tests/services/hearthctl/run_cli.h"

namespace hearth {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

TEST(GenerateCommandTest, TheLastJsonObjectHasTheFixedFields) {
  FakeWorker worker;
  const CliResult result = RunCli({"generate", "--worker", worker.address(), "--prompt", "hi",
                                   "--max-new-tokens", "2", "--wait-published", "--json"});
  ASSERT_EQ(result.code, kExitOk) << result.err;
  const Json last = result.last();
  EXPECT_EQ(last["token_ids"], (std::vector<uint32_t>{72, 32}));
  EXPECT_EQ(last["text"], "Hello there");
  EXPECT_EQ(last["prompt_tokens"], 2);
  EXPECT_EQ(last["cached_tokens"], 0);
  EXPECT_EQ(last["source_tier"], "none");
  EXPECT_GT(last["ttft_ms"].get<double>(), 0.0);
  EXPECT_GE(last["total_ms"].get<double>(), last["ttft_ms"].get<double>());
  EXPECT_EQ(last["first_logits_sha256"].get<std::string>().substr(0, 4), "1f1f");
  EXPECT_EQ(last["finish_reason"], "length");
  EXPECT_EQ(last["published_tokens"], 32);
  EXPECT_EQ(last["durable"], "disk");
}

TEST(GenerateCommandTest, WithoutWaitPublishedNothingIsSaidAboutPublishing) {
  FakeWorker worker;
  const CliResult result =
      RunCli({"generate", "--worker", worker.address(), "--prompt", "hi", "--json"});
  EXPECT_FALSE(result.last().contains("published_tokens"));
  EXPECT_FALSE(result.last().contains("durable"));
}

// The line is gone before the answer begins.
TEST(GenerateCommandTest, ShowsHowFarAPromptIsToWhoReadsErrorsOnATerminal) {
  FakeWorker worker;
  const std::vector<std::string> words = {"generate", "--worker", worker.address(), "--prompt",
                                          "a prompt of 24 characters"};
  const CliResult shown = RunCli(words, "", /*progress=*/true);
  EXPECT_EQ(shown.code, kExitOk);
  EXPECT_THAT(shown.err, HasSubstr("\rcomputing the prompt: 12 of 25 tokens, 48 %\x1b[K\r\x1b[K"));
  EXPECT_THAT(shown.out, HasSubstr("Hello there"));
  EXPECT_THAT(RunCli(words).err, Not(HasSubstr("computing the prompt")));
  EXPECT_FALSE(worker.generated.back().report_progress());
}

TEST(GenerateCommandTest, JsonSaysWhatWasComputedHeldAndAsWhat) {
  FakeWorker worker;
  const std::vector<std::string> plain = {"generate", "--worker", worker.address(),
                                          "--prompt", "hi",       "--json"};
  const Json result = RunCli(plain).last();
  EXPECT_EQ(result.at("computed_tokens").get<double>(), 7);
  EXPECT_EQ(result.at("kv_bytes").get<double>(), 4096);
  EXPECT_EQ(result.at("exactness").get<std::string>(), "invariant");
  std::vector<std::string> chosen = plain;
  chosen.insert(chosen.end(), {"--kv-cache", "quantized", "--kv-quantization", "bits=8"});
  EXPECT_EQ(RunCli(chosen).last().at("kv_cache").get<std::string>(), "quantizedbits=8");
  EXPECT_EQ(result.at("decode_steps").get<double>(), 21);
  EXPECT_EQ(result.at("drafted_tokens").get<double>(), 99) << "the worker's choice";
  EXPECT_EQ(result.at("accepted_tokens").get<double>(), 5);
  chosen.insert(chosen.end(), {"--speculate", "0"});
  EXPECT_EQ(RunCli(chosen).last().at("drafted_tokens").get<double>(), 0);
  EXPECT_FALSE(result.contains("logprobs"));
  EXPECT_FALSE(result.contains("logits_sha256"));
  std::vector<std::string> asking = plain;
  asking.insert(asking.end(), {"--logprobs", "0"});
  EXPECT_EQ(JsonLine(RunCli(asking).last().at("logprobs")), "[-0.5,-0.5]");
  asking.push_back("--logits-sha256");
  EXPECT_EQ(RunCli(asking).last().at("logits_sha256").get<std::string>(), std::string(64, '0'));
}

TEST(GenerateCommandTest, SeveralAnswersAreTakenApart) {
  FakeWorker worker;
  std::vector<std::string> args = {"generate", "--worker", worker.address(), "--prompt", "hi"};
  EXPECT_FALSE(
      RunCli({args[0], args[1], args[2], args[3], args[4], "--json"}).last().contains("samples"));
  args.insert(args.end(), {"--n", "3"});
  EXPECT_EQ(RunCli(args).out, "-- 0 --\nHello there\n-- 1 --\nOr else\n-- 2 --\nOr else\n");
  EXPECT_EQ(worker.generated.back().n(), 3u);
  args.push_back("--json");
  const Json result = RunCli(args).last();
  EXPECT_EQ(result.at("text").get<std::string>(), "Hello there");
  EXPECT_EQ(JsonLine(result.at("samples")),
            R"([{"token_ids":[72,32],"text":"Hello there","finish_reason":"length",)"
            R"("generated_tokens":2},)"
            R"({"token_ids":[1],"text":"Or else","finish_reason":"stop","generated_tokens":1},)"
            R"({"token_ids":[2],"text":"Or else","finish_reason":"stop","generated_tokens":1}])");
}

TEST(GenerateCommandTest, ASearchIsAskedForAndItsScoreSaid) {
  FakeWorker worker;
  std::vector<std::string> args = {"generate", "--worker", worker.address(), "--prompt", "hi"};
  std::vector<std::string> json = args;
  json.push_back("--json");
  EXPECT_FALSE(RunCli(json).last().contains("beam_score"));
  EXPECT_EQ(worker.generated.back().beams(), 1u);
  EXPECT_FALSE(worker.generated.back().has_length_penalty());
  for (auto* list : {&args, &json}) {
    list->insert(list->end(), {"--beams", "4", "--length-penalty", "0.5", "--early-stopping"});
  }
  const CliResult human = RunCli(args);
  EXPECT_EQ(human.out, "Hello there\n");
  EXPECT_THAT(human.err, HasSubstr("-- score -0.25, the best that 4 beams found"));
  const v1::GenerateRequest& request = worker.generated.back();
  EXPECT_EQ(request.beams(), 4u);
  EXPECT_FLOAT_EQ(request.length_penalty(), 0.5F);
  EXPECT_TRUE(request.early_stopping());
  EXPECT_EQ(RunCli(json).last().at("beam_score").get<double>(), -0.25);
}

TEST(GenerateCommandTest, HumanFormStreamsTheTextAndSaysWhatWasCached) {
  FakeWorker worker;
  worker.stored.insert("hi");
  const CliResult result = RunCli({"generate", "--worker", worker.address(), "--prompt", "hi"});
  EXPECT_EQ(result.out, "Hello there\n");
  EXPECT_THAT(result.err, HasSubstr("16 of 2 prompt tokens cached (disk), first token after"));
}

TEST(GenerateCommandTest, ALoadsEstimateIsSaidIfItIsKnown) {
  FakeWorker worker;
  worker.stored.insert("hi");
  const Json last =
      RunCli({"generate", "--worker", worker.address(), "--prompt", "hi", "--json"}).last();
  EXPECT_EQ(last["load_decision"], "load");
  EXPECT_EQ(last["load_estimate_ms"], 12.0);
  EXPECT_FALSE(last.contains("compute_estimate_ms"));
}

TEST(GenerateCommandTest, ATextWithoutAFlagIsThePrompt) {
  FakeWorker worker;
  for (const char* command : {"generate", "tokenize", "explain"}) {
    EXPECT_EQ(RunCli({command, "--worker", worker.address(), "Water boils at"}).code, kExitOk);
    EXPECT_EQ(RunCli({command, "a", "--worker", worker.address(), "--prompt", "b"}).code,
              kExitUsage);
  }
  EXPECT_EQ(worker.generated.back().prompt().text(), "Water boils at");
}

TEST(GenerateCommandTest, ARequestThatIsTooLongIsRefusedWithTheLimit) {
  FakeWorker worker;
  const TestFolder folder;
  const std::string path = folder.Write("long.txt", std::string(10'000'000, 'a'));
  const CliResult result =
      RunCli({"generate", "--worker", worker.address(), "--prompt-file", path});
  EXPECT_EQ(result.code, kExitUsage);
  EXPECT_THAT(result.err, HasSubstr("the request is too long: 3 MiB are the most that a worker"));
}

TEST(GenerateCommandTest, AnAnswerThatIsNotWholeAtTheDeadlineNamesTheFlag) {
  FakeWorker worker;
  worker.failure_between_words = grpc::Status(grpc::StatusCode::DEADLINE_EXCEEDED, "too late");
  const CliResult result =
      RunCli({"generate", "a", "--worker", worker.address(), "--deadline", "5"});
  EXPECT_EQ(result.code, kExitFailed);
  EXPECT_THAT(result.err, HasSubstr("the answer was not whole after 5s, as --deadline has it"));
}

TEST(GenerateCommandTest, TheDeadlineIsTheRpcs) {
  FakeWorker worker;
  const std::vector<std::pair<std::string, absl::Duration>> deadlines = {
      {"600s", absl::Seconds(600)},
      {"600000ms", absl::Seconds(600)},
      {"1h10m", absl::Minutes(70)},
      {"600", absl::Seconds(600)}};
  for (const auto& [text, time] : deadlines) {
    worker.deadlines.clear();
    const absl::Time before = absl::Now();
    const CliResult result =
        RunCli({"generate", "--worker", worker.address(), "--prompt", "hi", "--deadline", text});
    EXPECT_EQ(result.code, kExitOk) << result.err;
    ASSERT_EQ(worker.deadlines.size(), 1u) << text;
    // Rounded on its way.
    EXPECT_GE(worker.deadlines[0], before + time - absl::Seconds(10)) << text;
    EXPECT_LE(worker.deadlines[0], absl::Now() + time + absl::Seconds(10)) << text;
  }
  EXPECT_EQ(RunCli({"generate", "--worker", worker.address(), "--prompt", "hi"}).code, kExitOk);
  EXPECT_GT(worker.deadlines.back(), absl::Now() + absl::Hours(1000));
}

TEST(GenerateCommandTest, AWrongDurationIsRefusedByTheFlagsName) {
  FakeWorker worker;
  for (const char* text : {"3x", "200 mss", "soon", "-1s", "inf", "", "0", "0s"}) {
    const CliResult result =
        RunCli({"generate", "--worker", worker.address(), "--prompt", "hi", "--deadline", text});
    EXPECT_EQ(result.code, kExitUsage) << text;
    EXPECT_THAT(result.err, HasSubstr("--deadline")) << text;
  }
  EXPECT_TRUE(worker.generated.empty());
}

TEST(GenerateCommandTest, EveryFlagReachesTheRequest) {
  FakeWorker worker;
  ASSERT_EQ(RunCli({"generate",
                    "--worker",
                    worker.address(),
                    "--token-ids",
                    "2, 3,4",
                    "--breakpoint",
                    "2",
                    "--breakpoint",
                    "3",
                    "--max-new-tokens",
                    "5",
                    "--temperature",
                    "0.5",
                    "--top-k",
                    "7",
                    "--top-p",
                    "0.9",
                    "--seed",
                    "11",
                    "--logprobs",
                    "3",
                    "--stop",
                    "x",
                    "--stop",
                    "y",
                    "--ignore-eos",
                    "--cache",
                    "read",
                    "--durability",
                    "sync",
                    "--deadline",
                    "30s",
                    "--json"})
                .code,
            kExitOk);
  const v1::GenerateRequest& request = worker.generated.at(0);
  EXPECT_THAT(request.prompt().token_ids().ids(), ElementsAre(2, 3, 4));
  EXPECT_THAT(request.prompt().breakpoints(), ElementsAre(2, 3));
  EXPECT_EQ(request.max_new_tokens(), 5u);
  EXPECT_FLOAT_EQ(request.sampling().temperature(), 0.5f);
  EXPECT_EQ(request.sampling().top_k(), 7u);
  EXPECT_FLOAT_EQ(request.sampling().top_p(), 0.9f);
  EXPECT_EQ(request.sampling().seed(), 11u);
  EXPECT_EQ(request.sampling().logprobs(), 3u);
  EXPECT_TRUE(request.sampling().report_logprobs());
  EXPECT_THAT(request.stop(), ElementsAre("x", "y"));
  EXPECT_TRUE(request.ignore_eos());
  EXPECT_EQ(request.cache(), v1::CACHE_MODE_READ);
  EXPECT_EQ(request.durability(), v1::DURABILITY_SYNC);
}

TEST(GenerateCommandTest, AChatFileKeepsItsBreakpoints) {
  FakeWorker worker;
  TestFolder folder;
  const std::string file = folder.Write("chat.json", R"([
      {"role": "system", "content": [{"text": "Be brief.", "cache_breakpoint": true}]},
      {"role": "user", "content": "Hello"}])");
  ASSERT_EQ(RunCli({"generate", "--worker", worker.address(), "--chat", file, "--json"}).code,
            kExitOk);
  const v1::Chat& chat = worker.generated.at(0).prompt().chat();
  ASSERT_EQ(chat.messages_size(), 2);
  EXPECT_TRUE(chat.messages(0).parts(0).cache_breakpoint());
  EXPECT_EQ(chat.messages(1).parts(0).text(), "Hello");
}

TEST(GenerateCommandTest, ARefusalNamesTheWorkerTheCodeAndTheMessage) {
  FakeWorker worker;
  worker.failure = grpc::Status(grpc::StatusCode::INVALID_ARGUMENT, "token_ids[0] is 9, limit 8");
  const CliResult result =
      RunCli({"generate", "--worker", worker.address(), "--token-ids", "9", "--json"});
  EXPECT_EQ(result.code, kExitUsage);
  EXPECT_THAT(result.err, AllOf(HasSubstr("INVALID_ARGUMENT"), HasSubstr(worker.address()),
                                HasSubstr("token_ids[0] is 9, limit 8")));
  EXPECT_EQ(result.out, "");
}

TEST(GenerateCommandTest, TextThatIsNoUtf8IsNotSentAndItsSourceIsNamed) {
  FakeWorker worker;
  TestFolder folder;
  const std::string text = folder.Write("notes.txt", "caf\xE9 noir");
  const std::string chat = folder.Write("chat.json", "[{\"role\": \"us\xFF\"}]");
  struct Case {
    std::vector<std::string> flags;
    std::string named, byte;
  };
  const std::vector<Case> cases = {
      {{"--prompt", "ab\xFF"}, "--prompt", "byte 2"},
      {{"--prompt-file", text}, text, "byte 3"},
      {{"--chat", chat}, chat, "byte 13"},
      {{"--prompt", "a", "--stop", "x", "--stop", "y\xC3"}, "--stop number 2", "byte 1"}};
  for (const Case& bad : cases) {
    std::vector<std::string> arguments = {"generate", "--worker", worker.address()};
    arguments.insert(arguments.end(), bad.flags.begin(), bad.flags.end());
    const CliResult result = RunCli(arguments);
    EXPECT_EQ(result.code, kExitUsage) << bad.named;
    EXPECT_THAT(result.err, AllOf(HasSubstr(bad.named), HasSubstr("not valid UTF-8 at " + bad.byte),
                                  HasSubstr("INVALID_ARGUMENT")));
  }
  EXPECT_EQ(worker.generated.size(), 0u);
}

TEST(TokenizeCommandTest, PrintsTokenIds) {
  FakeWorker worker;
  const CliResult json =
      RunCli({"tokenize", "--worker", worker.address(), "--prompt", "ab", "--json"});
  EXPECT_EQ(json.last()["token_ids"], (std::vector<uint32_t>{97, 98}));
  const CliResult human = RunCli({"tokenize", "--worker", worker.address(), "--prompt", "ab"});
  EXPECT_EQ(human.out, "97,98\n");
}

TEST(FingerprintCommandTest, PrintsTheDigestAndFieldsAndComparesWithAFile) {
  FakeWorker worker;
  const CliResult json = RunCli({"model", "--worker", worker.address(), "--json"});
  EXPECT_EQ(json.last()["fingerprint"].get<std::string>().substr(0, 8), "02b7d06d");
  EXPECT_EQ(json.last()["fields"]["window"], 8);
  const CliResult equal = RunCli(
      {"model", "--worker", worker.address(), "--against", HEARTH_GOLDEN_DIR "/tiny.snapshot"});
  EXPECT_EQ(equal.code, kExitOk);
  EXPECT_EQ(equal.out, "equal\n");
}

TEST(FingerprintCommandTest, AsJsonAComparisonEndsWithItsVerdict) {
  FakeWorker worker;
  const auto against = [&](const std::string& file) {
    return RunCli({"model", "--worker", worker.address(), "--against", file, "--json"});
  };
  const CliResult equal = against(HEARTH_GOLDEN_DIR "/tiny.snapshot");
  EXPECT_EQ(equal.code, kExitOk) << equal.err;
  ASSERT_EQ(equal.objects.size(), 1u) << equal.out;
  EXPECT_EQ(equal.last(), Json({{"equal", true}, {"differences", 0}}));

  TestFolder folder;
  std::vector<FingerprintField> fields = TinyFields();
  fields.back().value = uint64_t{9};  // window
  const Fingerprint other = Fingerprint::Create(fields).value();
  Manifest manifest = TinyManifest();
  manifest.fingerprint = other.digest();
  const CliResult different =
      against(folder.Write("other.snapshot", BuildSnapshotHeader(other, manifest).value()));
  EXPECT_EQ(different.code, kExitFailed);
  ASSERT_EQ(different.objects.size(), 2u) << different.out << different.err;
  EXPECT_EQ(different.objects[0]["field"], "window");
  EXPECT_EQ(different.last(), Json({{"equal", false}, {"differences", 1}}));
}

}  // namespace
}  // namespace hearth
