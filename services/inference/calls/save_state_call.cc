#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <cassert>
#include <cstring>
#include <memory>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/time/clock.h"
#include "proto/inference.pb.h"
#include "proto/restore_rule.h"
#include "proto/state_format.h"
#include "services/inference/calls/inference_calls.h"
#include "services/rpc/proto_conversion.h"
#include "services/rpc/slice_wire.h"
#include "services/serving/calls/stream_call.h"
#include "worker/engine/engine.h"

namespace hearth {
namespace {

// Time limit for computing a state.
constexpr absl::Duration kMostTime = absl::Minutes(5);

grpc::ByteBuffer ChunkOf(absl::string_view bytes) {
  assert(bytes.size() <= kMaxSlicePieceBytes);
  v1::StateChunk chunk;
  chunk.set_data(bytes.data(), bytes.size());
  return MessageBytes(chunk);
}

// Returns the size of the snapshot that the engine will make: objects, digests, padding and tokens.
uint64_t SnapshotBytes(const KvLayout& layout, uint32_t tokens) {
  uint64_t bytes = uint64_t{tokens} * sizeof(uint32_t);
  for (const ObjectId& id : NeededObjects(layout, tokens)) {
    bytes += layout.ObjectBytes(id.tokens, id.group);
    bytes += uint64_t{128} * (layout.LayerCount(id.group) + 1);
  }
  return bytes + (uint64_t{64} << 10);  // room for the fingerprint
}

// Returns the header of the state file. `grammar`: may be null.
absl::StatusOr<std::string> HeaderOf(const EngineRequest& rest, const GrammarSpec* grammar,
                                     size_t prompt_tokens, uint64_t snapshot_bytes) {
  SavedState state;
  state.request_id = rest.request_id.substr(0, kMaxStateTextBytes);
  state.adapter = rest.adapter;
  state.token_ids.assign(rest.token_ids.begin(), rest.token_ids.end());
  state.prompt_tokens = static_cast<uint32_t>(prompt_tokens);
  state.drawn = rest.first_draw;
  state.temperature = rest.sampling.temperature;
  state.top_k = rest.sampling.top_k;
  state.top_p = rest.sampling.top_p;
  state.seed = rest.sampling.seed;
  const TokenRules& rules = rest.sampling.rules;
  state.rules.min_p = rest.sampling.min_p;
  state.rules.repetition_penalty = rules.repetition_penalty;
  state.rules.presence_penalty = rules.presence_penalty;
  state.rules.frequency_penalty = rules.frequency_penalty;
  for (const auto& [id, bias] : rules.logit_bias) {
    state.rules.bias_ids.push_back(static_cast<uint32_t>(id));
    uint32_t bits = 0;
    std::memcpy(&bits, &bias, sizeof(bits));
    state.rules.biases.push_back(bits);
  }
  state.rules.stop_ids.assign(rules.stop_ids.begin(), rules.stop_ids.end());
  state.rules.bad_ids.assign(rules.bad_ids.begin(), rules.bad_ids.end());
  state.rules.min_tokens = rules.min_tokens;
  if (grammar != nullptr) {
    state.grammar = {grammar->json_schema, grammar->triggers, grammar->lenient,
                     GrammarLibraryVersion()};
  }
  return BuildStateHeader(state, snapshot_bytes);
}

// SaveStateCall: one SaveState stream. The engine makes the snapshot of an inference, and the
// stream sends the state's header and the snapshot.
//
// Thread safety: stream_call.h. Ownership: shared by gRPC (until OnDone), by jobs of the pool,
// which hold the call, and by the engine's callbacks.
// Invariants: (1) the file is made after its memory is reserved, and the file and the reservation
// are released before the caller sees the end; (2) one message is made at a time, after the caller
// took the previous message.
class SaveStateCall final : public StreamCall {
 public:
  SaveStateCall(grpc::CallbackServerContext* context, Generator* generator)
      : StreamCall(context), generator_(generator) {}

  void Start(Admission* admission, const Limit& limit, const grpc::ByteBuffer* request) {
    const uint64_t bytes = request->Length();
    const absl::StatusOr<Identity> caller = Enter(admission, "SaveState", bytes);
    absl::Status begun = caller.status();
    if (begun.ok()) begun = call()->TakePlace(limit, *caller);
    if (begun.ok()) begun = CheckSmall<v1::SaveStateRequest>(*request);
    if (!begun.ok()) return End(begun);
    Delegate([&] {
      const auto job = [self = Shared(this), tenant = caller->tenant,
                        message = TakeRequest(request)] {
        if (const absl::Status status = self->Begin(tenant, message); !status.ok())
          self->End(status);
        absl::MutexLock lock(&self->mutex_);
        self->Release();
      };
      return generator_->pool()->SubmitRequest(caller->tenant, bytes, job);
    });
  }

 private:
  void OnGone() override {
    cancel_.Cancel();
    StreamCall::OnGone();
  }

  bool TakeNext(grpc::ByteBuffer* message) override ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    mutex_.AssertHeld();
    if (!made_ || ended()) return false;
    absl::string_view rest = header_;
    assert(sent_ <= header_.size() + snapshot_.size());
    rest.remove_prefix(std::min(sent_, rest.size()));
    if (rest.empty()) rest = absl::string_view(snapshot_).substr(sent_ - header_.size());
    if (rest.empty()) {
      EndLocked(absl::OkStatus());
      return false;
    }
    rest = rest.substr(0, kMaxSlicePieceBytes);
    *message = ChunkOf(rest);
    sent_ += rest.size();
    return true;
  }

  void BeforeFinish() override ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    mutex_.AssertHeld();
    made_ = false;
    std::string().swap(header_);
    std::string().swap(snapshot_);
  }

  // Runs on the pool.
  absl::Status Begin(const std::string& tenant, const grpc::ByteBuffer& request) {
    v1::SaveStateRequest parsed;
    const absl::Status read = ParseAwaited(*context_, request, &parsed);
    if (!read.ok()) return read;
    const auto answer = generator_->recent()->Find(tenant, parsed.request_id());
    if (answer == nullptr) {
      return absl::NotFoundError(
          "request_id: not found among the caller's recent requests to this worker");
    }
    absl::StatusOr<EngineRequest> computed = Prepare(*answer);
    if (!computed.ok()) return computed.status();
    const auto self = Shared(this);
    EngineCallbacks callbacks;
    callbacks.on_error = [self](const absl::Status& status) { self->End(status); };
    callbacks.on_snapshot = [self](SnapshotMaker make) { self->MakeSnapshot(std::move(make)); };
    auto handle = generator_->engine()->Submit(*std::move(computed), std::move(callbacks));
    if (handle.ok()) cancel_.Set(*std::move(handle));
    return handle.status();
  }

  // Returns the request that computes the state. Reserves the memory of the state first.
  absl::StatusOr<EngineRequest> Prepare(const RecentAnswer& answer) {
    const KvLayout& layout = generator_->engine()->layout();
    if (absl::Status has_states = CheckHasStates(layout); !has_states.ok()) return has_states;
    if (answer.request().searches()) {
      return absl::FailedPreconditionError(
          "a beam search cannot be saved: its answer is not known before it ends");
    }
    rest_ = answer.Rest();
    grammar_ = answer.grammar();
    prompt_tokens_ = answer.request().token_ids.size();
    if (rest_.token_ids.size() < 2) {
      return absl::FailedPreconditionError("the inference has computed nothing to save yet");
    }
    if (!(answer.request().kv.quantization == layout.quantization)) {
      return absl::FailedPreconditionError(
          "the inference cannot be saved: its kv_cache differs from the worker's own");
    }
    // The request has all tokens except the last. The last token is the first token of rest_.
    EngineRequest computed;
    computed.token_ids.assign(rest_.token_ids.begin(), rest_.token_ids.end() - 1);
    computed.tenant = rest_.tenant;
    computed.adapter = rest_.adapter;
    computed.request_id = rest_.request_id;
    computed.traceparent = call()->note()->span.Traceparent();
    computed.cache = rest_.reads() ? CacheMode::kRead : CacheMode::kOff;
    computed.deadline = std::min(absl::FromChrono(context_->deadline()), absl::Now() + kMostTime);
    const auto tokens = static_cast<uint32_t>(computed.token_ids.size());
    if (absl::Status fits = call()->Reserve(SnapshotBytes(layout, tokens)); !fits.ok()) return fits;
    return computed;
  }

  // Calls `make` on the pool, because the engine's thread has other requests to compute.
  void MakeSnapshot(SnapshotMaker make) ABSL_LOCKS_EXCLUDED(mutex_) {
    Delegate([&] {
      auto job = [self = Shared(this), make = std::move(make)]() mutable {
        absl::StatusOr<std::string> snapshot = make();
        make = nullptr;  // releases the KV blocks that the function holds
        if (snapshot.ok()) {
          self->TakeSnapshot(*std::move(snapshot));
        } else {
          self->End(snapshot.status());
        }
        absl::MutexLock lock(&self->mutex_);
        self->Release();
      };
      return generator_->pool()->Submit(rest_.tenant, 0, std::move(job));
    });
  }

  void TakeSnapshot(std::string snapshot) ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::StatusOr<std::string> header =
        HeaderOf(rest_, grammar_.get(), prompt_tokens_, snapshot.size());
    if (!header.ok()) return End(absl::InternalError(header.status().message()));
    absl::MutexLock lock(&mutex_);
    if (ended()) return;
    // Prepare() has reserved memory for the snapshot.
    assert(snapshot.size() <= SnapshotBytes(generator_->engine()->layout(),
                                            static_cast<uint32_t>(rest_.token_ids.size() - 1)));
    header_ = *std::move(header);
    snapshot_ = std::move(snapshot);
    made_ = true;
    call()->note()->tokens = rest_.token_ids.size();
    WriteNext();
  }

  Generator* const generator_;
  RequestCancel cancel_;
  // The request that continues from the state. Set by Prepare.
  EngineRequest rest_;
  std::shared_ptr<const GrammarSpec> grammar_;
  size_t prompt_tokens_ = 0;
  bool made_ ABSL_GUARDED_BY(mutex_) = false;
  std::string header_ ABSL_GUARDED_BY(mutex_);    // header of the state, sent first
  std::string snapshot_ ABSL_GUARDED_BY(mutex_);  // snapshot, sent after the header
  size_t sent_ ABSL_GUARDED_BY(mutex_) = 0;       // bytes of header_ and snapshot_ that were sent
};

}  // namespace

ByteStream* StartSaveState(Generator* generator, Admission* admission, const Limit& limit,
                           grpc::CallbackServerContext* context, const grpc::ByteBuffer* request) {
  const auto call = std::make_shared<SaveStateCall>(context, generator);
  call->Start(admission, limit, request);
  return call.get();
}

}  // namespace hearth
