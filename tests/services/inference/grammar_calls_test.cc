// Generate calls with a grammar over gRPC: valid JSON, refusals with their path, and saved states.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "proto/state_format.h"
#include "services/rpc/call_metadata.h"
#include "tests/services/inference/worker_server.h"

namespace hearth {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr char kSchema[] = R"({"type": "object", "properties": {
  "flag": {"enum": ["red", "blue"]}, "sails": {"type": "integer", "minimum": 0, "maximum": 999},
  "ship": {"type": "string", "maxLength": 8}}, "required": ["flag", "sails", "ship"]})";

v1::GenerateRequest SchemaRequest(const std::string& schema, uint32_t max_new_tokens = 100) {
  v1::GenerateRequest request = TextRequest("the keeper of the light", max_new_tokens);
  request.set_ignore_eos(false);
  request.mutable_sampling()->set_temperature(1);
  request.mutable_sampling()->set_seed(5);
  request.mutable_grammar()->set_json_schema(schema);
  return request;
}

TEST(GrammarCallsTest, AnswerIsCompleteJson) {
  WorkerServer worker(WorkerServer::Invariant());
  const Generation answer = worker.Generate(SchemaRequest(kSchema));
  ASSERT_TRUE(answer.status.ok()) << answer.status.error_message();
  const auto json = nlohmann::json::parse(answer.text, nullptr, false);
  EXPECT_EQ(json.size(), 3u) << answer.text;
  EXPECT_EQ(answer.finished.reason(), v1::FINISH_REASON_EOS);
  const GrammarEngine::Stats stats = worker.generator()->grammar_stats();
  EXPECT_EQ(stats.compiled, 1u);
  EXPECT_EQ(stats.refused, 0u);
}

TEST(GrammarCallsTest, RefusalNamesFieldAndPath) {
  WorkerServer worker(WorkerServer::Invariant());
  const auto refused =
      worker.Generate(SchemaRequest(R"({"properties": {"a": {"not": {}}}})")).status;
  EXPECT_EQ(refused.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(refused.error_message(),
            "grammar.json_schema: #/properties/a/not: the keyword not cannot be enforced");
  EXPECT_THAT(refused.error_details(), HasSubstr("grammar.json_schema"));
  v1::GenerateRequest lenient = SchemaRequest(R"({"properties": {"a": {"not": {}}}})", 3);
  lenient.mutable_grammar()->set_lenient(true);
  EXPECT_TRUE(worker.Generate(lenient).status.ok());
  v1::GenerateRequest beams = SchemaRequest(kSchema);
  beams.mutable_sampling()->clear_temperature();
  beams.set_beams(2);
  EXPECT_EQ(worker.Generate(beams).status.error_message(),
            "grammar: cannot be combined with beams 2");
  EXPECT_EQ(worker.generator()->grammar_stats().refused, 1u);
}

class NoEvents final : public GenerationSink {
 public:
  void OnStarted(const StartedInfo&, std::optional<uint64_t>) override { ADD_FAILURE(); }
  void OnPrompt(absl::Span<const SampledToken>, bool) override { ADD_FAILURE(); }
  bool OnTokens(const TokenDelta&) override { return false; }
  void OnFinished(const FinishedInfo&, uint32_t, uint32_t) override { ADD_FAILURE(); }
  void OnPrefill(const v1::PrefillResponse&) override { ADD_FAILURE(); }
  void OnEnd(const absl::Status&) override { ADD_FAILURE(); }
};

TEST(GrammarCallsTest, UnawaitedRequestCompilesNothing) {
  WorkerServer worker(WorkerServer::Invariant());
  Generator* const generator = worker.generator();
  const auto cancelled = std::make_shared<NoEvents>(), late = std::make_shared<NoEvents>();
  cancelled->cancel()->Cancel();
  EXPECT_TRUE(
      absl::IsCancelled(generator->Generate({"tenant", "one"}, SchemaRequest(kSchema), cancelled)));
  EXPECT_TRUE(absl::IsDeadlineExceeded(generator->Generate(
      {"tenant", "two", "", absl::InfinitePast()}, SchemaRequest(kSchema), late)));
  const GrammarEngine::Stats stats = generator->grammar_stats();
  EXPECT_EQ(stats.compiled + stats.refused, 0u);
  EXPECT_EQ(stats.bytes, 0u);
}

TEST(GrammarCallsTest, ModelWithoutTokenizerIsRefused) {
  WorkerServer::Options options = WorkerServer::Invariant();
  options.with_tokenizer = false;
  WorkerServer worker(std::move(options));
  v1::GenerateRequest request = IdsRequest({5, 6, 7});
  request.set_ignore_eos(false);
  request.mutable_grammar()->set_json_schema("{}");
  const auto refused = worker.Generate(request).status;
  EXPECT_EQ(refused.error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_THAT(refused.error_message(), StartsWith("grammar: DIR/tokenizer.model has"));
}

Generation GenerateAs(WorkerServer* worker, const v1::GenerateRequest& request,
                      const std::string& id) {
  grpc::ClientContext context;
  SendRequestId(id, &context);
  return worker->Generate(request, &context);
}

std::string SavedFile(WorkerServer* worker, const std::string& id) {
  v1::SaveStateRequest request;
  request.set_request_id(id);
  grpc::ClientContext context;
  const auto reader = worker->stub()->SaveState(&context, request);
  std::string file;
  v1::StateChunk chunk;
  while (reader->Read(&chunk)) file += chunk.data();
  EXPECT_TRUE(reader->Finish().ok());
  return file;
}

grpc::Status LoadedFile(WorkerServer* worker, const std::string& file,
                        v1::LoadStateResponse* response) {
  grpc::ClientContext context;
  const auto writer = worker->stub()->LoadState(&context, response);
  v1::StateChunk chunk;
  chunk.set_data(file);
  writer->Write(chunk);
  writer->WritesDone();
  return writer->Finish();
}

TEST(GrammarCallsTest, SavedStateContinuesOnAnotherWorker) {
  WorkerServer first(WorkerServer::Invariant()), second(WorkerServer::Invariant());
  const Generation whole = first.Generate(SchemaRequest(kSchema));
  const Generation half = GenerateAs(&first, SchemaRequest(kSchema, 7), "half");
  const std::string file = SavedFile(&first, "half");
  v1::LoadStateResponse loaded;
  const grpc::Status status = LoadedFile(&second, file, &loaded);
  ASSERT_TRUE(status.ok()) << status.error_message();
  EXPECT_THAT(loaded.grammar().json_schema(), HasSubstr("\"additionalProperties\":false"));
  v1::GenerateRequest rest = SchemaRequest(loaded.grammar().json_schema());
  *rest.mutable_prompt()->mutable_token_ids()->mutable_ids() = loaded.token_ids();
  *rest.mutable_sampling() = loaded.sampling();
  rest.set_first_draw(loaded.first_draw());
  std::vector<uint32_t> both = half.ids;
  const Generation continued = second.Generate(rest);
  both.insert(both.end(), continued.ids.begin(), continued.ids.end());
  EXPECT_EQ(both, whole.ids);
  EXPECT_EQ(half.ids.size(), 7u);
}

TEST(GrammarCallsTest, AlreadyDrawnTokensAgainstGrammarAreRefused) {
  WorkerServer worker(WorkerServer::Invariant());
  v1::GenerateRequest request = SchemaRequest(kSchema);
  request.set_first_draw(3);
  const auto refused = worker.Generate(request).status;
  EXPECT_EQ(refused.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(refused.error_message(),
              StartsWith("first_draw: the prompt's last 3 tokens do not obey the grammar: token"));
}

TEST(GrammarCallsTest, StateOfOtherLibraryIsRefused) {
  WorkerServer worker(WorkerServer::Invariant());
  GenerateAs(&worker, SchemaRequest(kSchema, 7), "half");
  const std::string file = SavedFile(&worker, "half");
  auto parsed = ParseStateFile(file);
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  EXPECT_EQ(parsed->state.grammar.library, GrammarLibraryVersion());
  parsed->state.grammar.library = "llguidance@0.9.0";
  const std::string other =
      *BuildStateHeader(parsed->state, parsed->snapshot.size()) + std::string(parsed->snapshot);
  v1::LoadStateResponse loaded;
  const grpc::Status refused = LoadedFile(&worker, other, &loaded);
  EXPECT_EQ(refused.error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_EQ(refused.error_message(),
            "cannot restore: grammar library differs: saved llguidance@0.9.0, running " +
                GrammarLibraryVersion());
}

// A request kept for SaveState holds only the schema, not the compiled grammar.
TEST(GrammarCallsTest, RecentAnswerKeepsOnlySchema) {
  WorkerServer worker(WorkerServer::Invariant());
  GenerateAs(&worker, SchemaRequest(kSchema, 3), "kept");
  const auto answer = worker.generator()->recent()->Find("default", "kept");
  ASSERT_NE(answer, nullptr);
  EXPECT_EQ(answer->request().grammar, nullptr);
  ASSERT_NE(answer->grammar(), nullptr);
  EXPECT_THAT(answer->grammar()->json_schema, HasSubstr("\"flag\""));
}

}  // namespace
}  // namespace hearth
