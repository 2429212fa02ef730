#include <grpcpp/grpcpp.h>

#include <cassert>
#include <cstdint>
#include <cstring>
#include <memory>
#include <new>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "proto/caller_gone.h"
#include "proto/inference.pb.h"
#include "proto/state_format.h"
#include "services/inference/calls/inference_calls.h"
#include "services/rpc/request_bytes.h"
#include "services/rpc/slice_wire.h"
#include "services/serving/calls/upload_call.h"
#include "worker/text/grammar.h"
#include "worker/text/schema/schema_check.h"

namespace hearth {
namespace {

// A saved grammar becomes the grammar of a request again.
static_assert(kMaxStateSchemaBytes == SchemaLimits::kBytes && kMaxStateTriggers == kMaxTriggers &&
              kMaxStateTriggerBytes == kMaxTriggerBytes);

absl::Status TooManyBytes(uint64_t announced, uint64_t seen) {
  return absl::DataLossError(absl::StrCat(
      "state: must have ", announced, " bytes, as its header announces; got ", seen, " or more"));
}

// Maximum number of elements in one message. The limit is low, because gRPC's own thread parses the
// message.
constexpr uint64_t kMaxChunkElements = 16;

void RulesToProto(const SavedState::Rules& rules, v1::SamplingParams* out) {
  out->set_min_p(static_cast<float>(rules.min_p));
  out->set_repetition_penalty(static_cast<float>(rules.repetition_penalty));
  out->set_presence_penalty(static_cast<float>(rules.presence_penalty));
  out->set_frequency_penalty(static_cast<float>(rules.frequency_penalty));
  for (size_t i = 0; i < rules.bias_ids.size(); ++i) {
    float bias = 0;
    std::memcpy(&bias, &rules.biases[i], sizeof(bias));
    (*out->mutable_logit_bias())[rules.bias_ids[i]] = bias;
  }
  out->mutable_stop_token_ids()->Add(rules.stop_ids.begin(), rules.stop_ids.end());
  out->mutable_bad_token_ids()->Add(rules.bad_ids.begin(), rules.bad_ids.end());
  out->set_min_tokens(static_cast<uint32_t>(rules.min_tokens));
}

void StateToProto(const SavedState& state, const std::string& adapter, v1::LoadStateResponse* out) {
  out->set_request_id(state.request_id);
  out->mutable_token_ids()->Add(state.token_ids.begin(), state.token_ids.end());
  out->set_prompt_tokens(state.prompt_tokens);
  out->set_first_draw(state.drawn);
  out->mutable_sampling()->set_temperature(static_cast<float>(state.temperature));
  out->mutable_sampling()->set_top_k(state.top_k);
  out->mutable_sampling()->set_top_p(static_cast<float>(state.top_p));
  out->mutable_sampling()->set_seed(state.seed);
  RulesToProto(state.rules, out->mutable_sampling());
  if (!state.grammar.json_schema.empty()) {
    v1::Grammar* const grammar = out->mutable_grammar();
    grammar->set_json_schema(state.grammar.json_schema);
    grammar->mutable_triggers()->Add(state.grammar.triggers.begin(), state.grammar.triggers.end());
    grammar->set_lenient(state.grammar.lenient);
  }
  out->set_adapter(adapter);
  out->set_computed_tokens(static_cast<uint32_t>(state.token_ids.size() - 1));
}

// The snapshot does not cover the last tokens of a saved state: checks them like the tokens of a
// new request.
absl::Status CheckTokens(const SavedState& state, const ModelConfig& config) {
  const auto context = static_cast<size_t>(config.max_position_embeddings);
  if (state.token_ids.size() > context) {
    return absl::FailedPreconditionError(
        absl::StrCat("cannot restore: position index differs: saved ", state.token_ids.size(),
                     " tokens, running a context of ", context));
  }
  const uint32_t last = state.token_ids.back();
  if (last < static_cast<uint32_t>(config.vocab_size)) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      "cannot restore: input tokens differs: saved token_ids[", state.token_ids.size() - 1,
      "] = ", last, ", running a vocabulary of ", config.vocab_size));
}

// Refuses a state whose grammar was enforced by another version of the grammar library, because
// another version may allow other tokens.
absl::Status CheckGrammar(const SavedState& state) {
  const std::string running = GrammarLibraryVersion();
  if (state.grammar.json_schema.empty() || state.grammar.library == running) {
    return absl::OkStatus();
  }
  return absl::FailedPreconditionError(
      absl::StrCat("cannot restore: grammar library differs: saved ", state.grammar.library,
                   ", running ", running.empty() ? "none" : running));
}

// LoadStateCall: one LoadState stream. It receives a file, checks the file on a pool, and puts the
// file's keys and values into the worker's prefix pool.
//
// Thread safety and ownership: upload_call.h; the service must outlive the call.
// Invariant: before the call reads more, memory is reserved for all bytes received up to now.
class LoadStateCall final : public UploadCall<grpc::ServerReadReactor<grpc::ByteBuffer>> {
 public:
  LoadStateCall(grpc::CallbackServerContext* context, Generator* generator,
                grpc::ByteBuffer* response)
      : UploadCall(context), generator_(generator), response_(response) {}

  void Start(Admission* admission, const Limit& limit) {
    const absl::StatusOr<Identity> caller = Enter(admission, "LoadState", limit);
    if (!caller.ok()) return End(caller.status());
    tenant_ = caller->tenant;
    Read();
  }

 private:
  absl::Status OnMessage() override {
    v1::StateChunk chunk;
    absl::Status status = ParseMessage(message_, &chunk, kMaxChunkElements);
    message_.Clear();
    if (!status.ok()) return status;
    if (file_bytes_ > 0 && chunk.data().size() > file_bytes_ - file_.size()) {
      return TooManyBytes(file_bytes_, file_.size() + chunk.data().size());
    }
    assert(file_bytes_ == 0 || file_.size() + chunk.data().size() <= file_bytes_);
    file_ += chunk.data();
    if (file_bytes_ == 0 && file_.size() >= kStatePreludeBytes) {
      if (status = ReadPrelude(); !status.ok()) return status;
    }
    // Twice the bytes: for the file, and for the objects made of it.
    if (status = call_->Reserve(2 * file_.size()); !status.ok()) return status;
    Read();
    return absl::OkStatus();
  }

  // Reads the file's size from its first bytes, when they have arrived.
  absl::Status ReadPrelude() {
    const absl::StatusOr<StatePrelude> prelude = ParseStatePrelude(file_);
    if (!prelude.ok()) return prelude.status();
    if (prelude->file_bytes < file_.size()) {
      return TooManyBytes(prelude->file_bytes, file_.size());
    }
    if (prelude->file_bytes > UINT64_MAX / 2) {
      return absl::DataLossError(absl::StrCat("state announces ", prelude->file_bytes, " bytes"));
    }
    // There must be room for the whole file now. But bytes that have not arrived reserve no memory.
    const absl::Status fits = call_->Reserve(2 * file_.size(), 2 * prelude->file_bytes);
    if (!fits.ok()) return fits;
    assert(file_bytes_ == 0 && prelude->file_bytes >= file_.size());
    file_bytes_ = prelude->file_bytes;
    try {
      file_.reserve(file_bytes_);
    } catch (const std::bad_alloc&) {
      return absl::ResourceExhaustedError(
          absl::StrCat("not enough memory to receive a state of ", file_bytes_, " bytes"));
    }
    return absl::OkStatus();
  }

  absl::Status OnUploadEnd() override {
    if (context_->IsCancelled()) return CallerGone();
    if (file_bytes_ == 0 || file_.size() < file_bytes_) {
      return absl::DataLossError(
          absl::StrCat("state ends after ", file_.size(), " bytes of ",
                       file_bytes_ == 0 ? "its header" : absl::StrCat(file_bytes_)));
    }
    // Until the job ends, the call neither reads nor writes, so no other thread uses it.
    return generator_->pool()->Submit(tenant_, 0, [this, self = shared_from_this()] {
      End(context_->IsCancelled() ? CallerGone() : Load());
    });
  }

  // Runs on the pool.
  absl::Status Load() {
    const absl::StatusOr<StateFile> file = ParseStateFile(file_);
    if (!file.ok()) return file.status();
    absl::Status status = CheckTokens(file->state, generator_->engine()->config());
    status.Update(CheckGrammar(file->state));
    if (!status.ok()) return status;
    const absl::StatusOr<std::string> adapter =
        generator_->engine()->AddSnapshot(tenant_, file->snapshot);
    if (!adapter.ok()) return adapter.status();
    v1::LoadStateResponse made;
    StateToProto(file->state, *adapter, &made);
    call_->note()->tokens = file->state.token_ids.size();
    *response_ = MessageBytes(made);
    return absl::OkStatus();
  }

  void BeforeFinish() override { std::string().swap(file_); }

  Generator* const generator_;
  grpc::ByteBuffer* const response_;
  std::string tenant_;
  std::string file_;
  uint64_t file_bytes_ = 0;  // size that the file announces; 0: not known yet
};

}  // namespace

grpc::ServerReadReactor<grpc::ByteBuffer>* StartLoadState(Generator* generator,
                                                          Admission* admission, const Limit& limit,
                                                          grpc::CallbackServerContext* context,
                                                          grpc::ByteBuffer* response) {
  const auto call = std::make_shared<LoadStateCall>(context, generator, response);
  call->Start(admission, limit);
  return call.get();
}

}  // namespace hearth
