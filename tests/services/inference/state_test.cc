// SaveState on one worker and LoadState on another: the inference continues there, or the state is
// refused.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <thread>
#include <vector>

#include "proto/snapshot_format.h"
#include "proto/state_format.h"
#include "services/inference/calls/recent_answers.h"
#include "services/rpc/call_metadata.h"
#include "tests/services/inference/worker_server.h"

namespace hearth {
namespace {

using ::testing::HasSubstr;

v1::GenerateRequest Sampled(uint32_t max_new_tokens) {
  std::vector<uint32_t> ids;
  for (uint32_t i = 0; i < 53; ++i) ids.push_back(2 + i * 7 % 90);
  v1::GenerateRequest request = IdsRequest(ids, max_new_tokens);
  request.mutable_sampling()->set_temperature(1.2F);
  request.mutable_sampling()->set_top_k(50);
  request.mutable_sampling()->set_seed(7);
  return request;
}

Generation Generate(WorkerServer* worker, const v1::GenerateRequest& request,
                    const std::string& id) {
  grpc::ClientContext context;
  SendRequestId(id, &context);
  return worker->Generate(request, &context);
}

struct Saved {
  grpc::Status status;
  std::string file;
};

Saved Save(WorkerServer* worker, const std::string& id) {
  v1::SaveStateRequest request;
  request.set_request_id(id);
  grpc::ClientContext context;
  const auto reader = worker->stub()->SaveState(&context, request);
  Saved saved;
  v1::StateChunk chunk;
  while (reader->Read(&chunk)) saved.file += chunk.data();
  saved.status = reader->Finish();
  return saved;
}

struct Loaded {
  grpc::Status status;
  v1::LoadStateResponse response;
};

Loaded Load(WorkerServer* worker, const std::string& file, size_t chunk_bytes = 1 << 20) {
  grpc::ClientContext context;
  Loaded loaded;
  const auto writer = worker->stub()->LoadState(&context, &loaded.response);
  v1::StateChunk chunk;
  for (size_t at = 0; at < file.size(); at += chunk_bytes) {
    chunk.set_data(file.substr(at, chunk_bytes));
    if (!writer->Write(chunk)) break;
  }
  writer->WritesDone();
  loaded.status = writer->Finish();
  return loaded;
}

v1::GenerateRequest RestOf(const v1::LoadStateResponse& loaded, uint32_t max_new_tokens) {
  v1::GenerateRequest request = IdsRequest({}, max_new_tokens);
  *request.mutable_prompt()->mutable_token_ids()->mutable_ids() = loaded.token_ids();
  *request.mutable_sampling() = loaded.sampling();
  request.set_first_draw(loaded.first_draw());
  return request;
}

class SavedStates : public ::testing::Test {
 protected:
  SavedStates() { saved_ = SavedAfter(8); }
  std::string SavedAfter(uint32_t tokens) {
    begun_ = Generate(&first_, Sampled(tokens), "half");
    Saved saved = Save(&first_, "half");
    EXPECT_TRUE(saved.status.ok()) << saved.status.error_message();
    return saved.file;
  }

  WorkerServer first_{WorkerServer::Invariant()}, second_{WorkerServer::Invariant()};
  Generation begun_;
  std::string saved_;
};

TEST_F(SavedStates, ContinueExactlyOnAnotherWorker) {
  const Generation whole = Generate(&first_, Sampled(16), "whole");
  const Loaded loaded = Load(&second_, saved_, /*chunk_bytes=*/1000);
  ASSERT_TRUE(loaded.status.ok()) << loaded.status.error_message();
  EXPECT_EQ(loaded.response.request_id(), "half");
  EXPECT_EQ(loaded.response.first_draw(), 8u);
  EXPECT_EQ(loaded.response.prompt_tokens(), 53u);
  EXPECT_EQ(loaded.response.token_ids_size(), 61);
  const Generation rest = second_.Generate(RestOf(loaded.response, 8));
  EXPECT_EQ(rest.started.cached_tokens(), 60u);
  std::vector<uint32_t> both = begun_.ids;
  both.insert(both.end(), rest.ids.begin(), rest.ids.end());
  EXPECT_EQ(both, whole.ids);
  EXPECT_EQ(both.size(), 16u);
}

TEST_F(SavedStates, RunningRequestCanBeSaved) {
  grpc::ClientContext context;
  SendRequestId("running", &context);
  const auto reader = first_.stub()->Generate(&context, Sampled(300));
  v1::GenerateResponse message;
  while (reader->Read(&message) && !message.has_token()) {
  }
  const Saved saved = Save(&first_, "running");
  ASSERT_TRUE(saved.status.ok()) << saved.status.error_message();
  context.TryCancel();
  reader->Finish();
  const Loaded loaded = Load(&second_, saved.file);
  ASSERT_TRUE(loaded.status.ok()) << loaded.status.error_message();
  const auto drawn = static_cast<uint32_t>(loaded.response.first_draw());
  ASSERT_GE(drawn, 1u);
  const Generation whole = Generate(&first_, Sampled(drawn + 5), "whole");
  const Generation rest = second_.Generate(RestOf(loaded.response, 5));
  EXPECT_EQ(rest.ids, std::vector<uint32_t>(whole.ids.begin() + drawn, whole.ids.end()));
}

TEST_F(SavedStates, UnknownRequestReturnsNotFound) {
  EXPECT_EQ(Save(&first_, "other").status.error_code(), grpc::StatusCode::NOT_FOUND);
  EXPECT_EQ(Save(&second_, "half").status.error_code(), grpc::StatusCode::NOT_FOUND);
  EXPECT_EQ(Save(&first_, "").status.error_code(), grpc::StatusCode::NOT_FOUND);
}

TEST_F(SavedStates, ExactClassCannotSaveStates) {
  WorkerServer exact{WorkerServer::Options()};
  Generate(&exact, Sampled(2), "half");
  const Saved saved = Save(&exact, "half");
  EXPECT_EQ(saved.status.error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_THAT(saved.status.error_message(), HasSubstr("this worker has the class exact"));
}

TEST_F(SavedStates, BeamSearchCannotBeSaved) {
  v1::GenerateRequest search = IdsRequest({2, 9, 16, 23}, 4);
  search.set_beams(2);
  Generate(&first_, search, "search");
  const Saved saved = Save(&first_, "search");
  EXPECT_EQ(saved.status.error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_THAT(saved.status.error_message(), HasSubstr("beam search"));
}

TEST_F(SavedStates, MismatchNamesDifferingPart) {
  const StateFile parsed = ParseStateFile(saved_).value();
  const SnapshotHeader header = ParseSnapshotHeader(parsed.snapshot).value();
  const auto refusal = [&](void (*change)(SavedState*, SnapshotHeader*)) {
    SavedState state = parsed.state;
    SnapshotHeader changed = header;
    change(&state, &changed);
    // Writes the header by hand, because BuildSnapshotHeader would refuse these values.
    std::string snapshot(parsed.snapshot);
    const size_t fingerprint = header.fingerprint.Serialize().size();
    const size_t manifest = SerializeManifest(header.manifest).size();
    const std::string bytes = SerializeManifest(changed.manifest);
    EXPECT_EQ(bytes.size(), manifest);
    snapshot.replace(40 + fingerprint, manifest, bytes);
    const size_t end = 40 + fingerprint + manifest;
    const uint64_t digest = SliceDigest(snapshot.data(), end);
    snapshot.replace(end, 8, reinterpret_cast<const char*>(&digest), 8);
    const Loaded loaded =
        Load(&second_, BuildStateHeader(state, snapshot.size()).value() + snapshot);
    EXPECT_EQ(loaded.status.error_code(), grpc::StatusCode::FAILED_PRECONDITION);
    return loaded.status.error_message();
  };
  EXPECT_THAT(
      refusal([](SavedState*, SnapshotHeader* header) { ++header->manifest.next_position; }),
      HasSubstr("position index differs"));
  EXPECT_THAT(refusal([](SavedState*, SnapshotHeader* header) {
                header->manifest.attention_mask = "prefix";
              }),
              HasSubstr("attention mask differs"));
  EXPECT_THAT(refusal([](SavedState* state, SnapshotHeader*) { state->token_ids[3] ^= 1; }),
              HasSubstr("input tokens differs"));
  EXPECT_THAT(refusal([](SavedState* state, SnapshotHeader*) { state->token_ids.pop_back(); }),
              HasSubstr("token count differs"));
  EXPECT_THAT(
      refusal([](SavedState* state, SnapshotHeader*) { state->token_ids.back() = 1 << 20; }),
      HasSubstr("input tokens differs"));
  WorkerServer::Options blocks = WorkerServer::Invariant();
  blocks.engine.weights = WeightsChoice::kQ8_0;
  blocks.engine.arithmetic = ArithmeticChoice::kFloat32;
  WorkerServer other(blocks);
  EXPECT_THAT(Load(&other, saved_).status.error_message(), HasSubstr("model config field weights"));
}

TEST_F(SavedStates, StateBeyondContextIsRefused) {
  WorkerServer::Options shorter = WorkerServer::Invariant();
  shorter.geometry.context_tokens = 60;
  WorkerServer other(shorter);
  EXPECT_THAT(Load(&other, saved_).status.error_message(),
              HasSubstr("position index differs: saved 61 tokens, running a context of 60"));
}

TEST_F(SavedStates, FlippedStateBitIsRefused) {
  for (size_t i = 0; i < 300; ++i) {
    std::string bad = saved_;
    const size_t at = i < 100 ? i : saved_.size() * i / 300;
    bad[at] ^= static_cast<char>(1 << (i % 8));
    EXPECT_FALSE(Load(&second_, bad).status.ok()) << at;
  }
  EXPECT_TRUE(Load(&second_, saved_).status.ok());
}

TEST_F(SavedStates, WrongStateLengthIsDataLoss) {
  const size_t snapshot = ParseStatePrelude(saved_)->snapshot_offset;
  for (const size_t length : {size_t{0}, size_t{1}, kStatePreludeBytes - 1, kStatePreludeBytes,
                              snapshot - 1, snapshot, snapshot + 41, saved_.size() - 1}) {
    EXPECT_EQ(Load(&second_, saved_.substr(0, length)).status.error_code(),
              grpc::StatusCode::DATA_LOSS)
        << length;
  }
  EXPECT_EQ(Load(&second_, saved_ + "x").status.error_code(), grpc::StatusCode::DATA_LOSS);
  EXPECT_EQ(Load(&second_, saved_ + "x", 100).status.error_code(), grpc::StatusCode::DATA_LOSS);
}

TEST_F(SavedStates, OversizedStateIsRefused) {
  std::string huge = saved_.substr(0, kStatePreludeBytes);
  const uint64_t bytes = uint64_t{1} << 40;
  huge.replace(24, 8, reinterpret_cast<const char*>(&bytes), 8);
  const Loaded loaded = Load(&second_, huge);
  EXPECT_EQ(loaded.status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_THAT(loaded.status.error_message(), HasSubstr("--pool-bytes"));
}

TEST(SlowStateCallers, SilentUploadTimesOut) {
  WorkerServer::Options options = WorkerServer::Invariant();
  options.patience = absl::Milliseconds(50);
  WorkerServer worker(options);
  grpc::ClientContext context;
  v1::LoadStateResponse response;
  const auto writer = worker.stub()->LoadState(&context, &response);
  // the caller has sent nothing and has not ended the stream
  const grpc::Status status = writer->Finish();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
  EXPECT_THAT(status.error_message(), HasSubstr("state: the caller transferred 0 bytes"));
}

TEST_F(SavedStates, AnnouncedBytesDoNotReserveMemory) {
  std::string huge = saved_.substr(0, kStatePreludeBytes);
  const uint64_t bytes = uint64_t{128} << 20;  // half of the limit, because each byte counts twice
  huge.replace(24, 8, reinterpret_cast<const char*>(&bytes), 8);
  v1::StateChunk chunk;
  chunk.set_data(huge);
  grpc::ClientContext context;
  v1::LoadStateResponse response;
  const auto silent = second_.stub()->LoadState(&context, &response);
  ASSERT_TRUE(silent->Write(chunk));
  const grpc::Status loaded = Load(&second_, saved_).status;
  EXPECT_TRUE(loaded.ok()) << loaded.error_message();
  context.TryCancel();
  EXPECT_FALSE(silent->Finish().ok());
}

// The limit has room for the state of one call only.
TEST_F(SavedStates, SilentUploadBlocksOnlyUntilTimeout) {
  WorkerServer::Options options = WorkerServer::Invariant();
  options.patience = absl::Milliseconds(50);
  WorkerServer worker(options);
  std::string huge = saved_.substr(0, kStatePreludeBytes);
  const uint64_t bytes = uint64_t{128} << 20;  // half of the limit, because each byte counts twice
  huge.replace(24, 8, reinterpret_cast<const char*>(&bytes), 8);
  v1::StateChunk chunk;
  chunk.set_data(huge);
  bool announced = false;
  while (!announced) {  // if the worker timed out before the Write (busy machine), try again
    grpc::ClientContext context;
    v1::LoadStateResponse response;
    const auto silent = worker.stub()->LoadState(&context, &response);
    announced = silent->Write(chunk);
    const grpc::Status ended = silent->Finish();  // the caller has not ended the stream
    EXPECT_EQ(ended.error_code(), grpc::StatusCode::DEADLINE_EXCEEDED) << ended.error_message();
  }
  // The memory is free as soon as the worker has noticed that the call has ended.
  while (Load(&worker, saved_).status.error_code() == grpc::StatusCode::RESOURCE_EXHAUSTED) {
    std::this_thread::yield();
  }
}

TEST(RecentAnswersTest, BusyTenantLosesOldestAnswersFirst) {
  RecentAnswers answers;
  EngineRequest request;
  request.token_ids = {2, 3};
  request.tenant = "quiet";
  request.request_id = "one";
  request.max_new_tokens = 1;
  answers.Begin(request)->Add(9);
  request.tenant = "loud";
  for (int i = 0; i < 100; ++i) {
    request.request_id = std::to_string(i);
    ASSERT_NE(answers.Begin(request), nullptr);
  }
  const auto kept = answers.Find("quiet", "one");
  ASSERT_NE(kept, nullptr);
  EXPECT_EQ(kept->Rest().token_ids, (std::vector<int32_t>{2, 3, 9}));
  EXPECT_EQ(kept->Rest().first_draw, 1u);
  EXPECT_EQ(answers.Find("loud", "one"), nullptr);
  EXPECT_EQ(answers.Find("loud", "36"), nullptr);  // dropped: at most 64 answers are kept
  EXPECT_NE(answers.Find("loud", "37"), nullptr);
  request.max_new_tokens = UINT32_MAX;
  request.request_id = "large";
  EXPECT_EQ(answers.Begin(request), nullptr);
}

}  // namespace
}  // namespace hearth
