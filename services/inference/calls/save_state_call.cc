#include "services/inference/calls/save_state_call.h"

#include <algorithm>
#include <cassert>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "proto/caller_gone.h"
#include "proto/restore_rule.h"
#include "proto/state_format.h"
#include "services/rpc/proto_conversion.h"
#include "services/rpc/slice_wire.h"

namespace hearth {
namespace {

grpc::ByteBuffer ChunkOf(absl::string_view bytes) {
  assert(bytes.size() <= kMaxSlicePieceBytes);
  v1::StateChunk chunk;
  chunk.set_data(bytes.data(), bytes.size());
  return MessageBytes(chunk);
}

// Of the file that the engine will make: objects, their digests and padding, and the tokens.
uint64_t SnapshotBytes(const KvLayout& layout, uint32_t tokens) {
  uint64_t bytes = uint64_t{tokens} * sizeof(uint32_t);
  for (const ObjectId& id : NeededObjects(layout, tokens)) {
    bytes += layout.ObjectBytes(id.tokens, id.group);
    bytes += uint64_t{128} * (layout.LayersOf(id.group).size() + 1);
  }
  return bytes + (uint64_t{64} << 10);  // the fingerprint
}

absl::StatusOr<std::string> HeaderOf(const EngineRequest& rest, size_t prompt_tokens,
                                     uint64_t snapshot_bytes) {
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
  return BuildStateHeader(state, snapshot_bytes);
}

}  // namespace

void SaveStateCall::Start(Service service, grpc::ByteBuffer request, std::shared_ptr<void> place) {
  service_ = std::move(service);
  {
    absl::MutexLock lock(&mutex_);
    place_ = std::move(place);
    SetAlarm();
  }
  Delegate([&] {
    return service_.pool->SubmitRequest(service_.tenant, request.Length(),
                                        [self = Shared(this), request] {
                                          const absl::Status begun = self->Begin(request);
                                          if (!begun.ok()) self->End(begun);
                                          absl::MutexLock lock(&self->mutex_);
                                          self->Release();
                                        });
  });
}

absl::Status SaveStateCall::Begin(const grpc::ByteBuffer& request) {
  v1::SaveStateRequest parsed;
  if (absl::Status status = ParseAwaited(*context_, request, &parsed); !status.ok()) return status;
  const std::shared_ptr<RecentAnswer> answer =
      service_.answers->Find(service_.tenant, parsed.request_id());
  if (answer == nullptr) {
    return absl::NotFoundError(
        "request_id: this worker has no such request of this caller's among its last ones");
  }
  const KvLayout& layout = service_.engine->layout();
  if (absl::Status has_states = CheckHasStates(layout); !has_states.ok()) return has_states;
  if (answer->request().searches()) {
    return absl::FailedPreconditionError(
        "a search with beams has no saved states: nothing of its answer is known before its end");
  }
  EngineRequest rest = answer->Rest();
  if (rest.token_ids.size() < 2) {
    return absl::FailedPreconditionError("the inference has computed nothing yet: one token");
  }
  if (!(answer->request().kv.quantization == layout.quantization)) {
    return absl::FailedPreconditionError(
        "the inference kept its keys and values in another class than the worker's: it has no "
        "saved state");
  }
  const auto tokens = static_cast<uint32_t>(rest.token_ids.size() - 1);
  auto room = std::make_unique<StateLimit::Reservation>(service_.limit);
  if (absl::Status fits = room->GrowTo(SnapshotBytes(layout, tokens)); !fits.ok()) return fits;
  {
    absl::MutexLock lock(&mutex_);
    if (ended()) return CallerGone();
    room_ = std::move(room);
  }
  return Submit(std::move(rest), answer->request().token_ids.size());
}

// All tokens but the last, which the rest begins with.
absl::Status SaveStateCall::Submit(EngineRequest rest, size_t prompt_tokens) {
  EngineRequest computed;
  computed.token_ids.assign(rest.token_ids.begin(), rest.token_ids.end() - 1);
  computed.tenant = rest.tenant;
  computed.adapter = rest.adapter;
  computed.request_id = rest.request_id;
  const bool reads = rest.cache == CacheMode::kDefault || rest.cache == CacheMode::kRead;
  computed.cache = reads ? CacheMode::kRead : CacheMode::kOff;
  computed.deadline =
      std::min(absl::FromChrono(context_->deadline()), absl::Now() + service_.timeout);
  EngineCallbacks callbacks;
  callbacks.on_error = [self = Shared(this)](const absl::Status& status) { self->End(status); };
  callbacks.on_snapshot = [self = Shared(this), rest = std::move(rest),
                           prompt_tokens](SnapshotMaker make) {
    self->MakeSnapshot(rest, prompt_tokens, std::move(make));
  };
  auto handle = service_.engine->Submit(std::move(computed), std::move(callbacks));
  if (!handle.ok()) return handle.status();
  absl::MutexLock lock(&mutex_);
  handle_ = *std::move(handle);
  if (cancelled_) handle_->Cancel();
  return absl::OkStatus();
}

// The engine's thread has other requests to compute.
void SaveStateCall::MakeSnapshot(const EngineRequest& rest, size_t prompt_tokens,
                                 SnapshotMaker make) {
  Delegate([&] {
    return service_.pool->Submit(
        service_.tenant, kStateJobBytes,
        [self = Shared(this), rest, prompt_tokens, make = std::move(make)]() mutable {
          absl::StatusOr<std::string> snapshot = make();
          make = nullptr;  // and the blocks that it holds
          if (snapshot.ok()) {
            self->TakeSnapshot(rest, prompt_tokens, *std::move(snapshot));
          } else {
            self->End(snapshot.status());
          }
          absl::MutexLock lock(&self->mutex_);
          self->Release();
        });
  });
}

void SaveStateCall::TakeSnapshot(const EngineRequest& rest, size_t prompt_tokens,
                                 std::string snapshot) {
  absl::StatusOr<std::string> header = HeaderOf(rest, prompt_tokens, snapshot.size());
  if (!header.ok()) return End(absl::InternalError(header.status().message()));
  absl::MutexLock lock(&mutex_);
  if (ended()) return;
  header_ = *std::move(header);
  snapshot_ = std::move(snapshot);
  made_ = true;
  made_at_ = absl::Now();
  call()->note()->tokens = rest.token_ids.size();
  WriteNext();
}

bool SaveStateCall::TakeNext(grpc::ByteBuffer* message) {
  mutex_.AssertHeld();
  if (!made_ || ended()) return false;
  absl::string_view rest = header_;
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

void SaveStateCall::BeforeFinish() {
  mutex_.AssertHeld();
  if (alarm_ != nullptr) alarm_->Cancel();
  made_ = false;
  std::string().swap(header_);
  std::string().swap(snapshot_);
  room_.reset();
  place_.reset();
}

void SaveStateCall::CancelRequest() {
  std::shared_ptr<EngineRequestHandle> handle;
  {
    absl::MutexLock lock(&mutex_);
    cancelled_ = true;
    handle = handle_;
  }
  if (handle != nullptr) handle->Cancel();
}

void SaveStateCall::OnGone() {
  CancelRequest();
  StreamCall::OnGone();
}

// Not a shared pointer: the alarm is this call's own. A cancelled one may ring after the call.
void SaveStateCall::SetAlarm() {
  mutex_.AssertHeld();
  alarm_ = std::make_unique<grpc::Alarm>();
  alarm_->Set(absl::ToChronoTime(absl::Now() + std::min(service_.timeout, service_.patience)),
              [weak = Weak(this)](bool rang) {
                const auto self = rang ? weak.lock() : nullptr;
                if (self != nullptr) self->OnAlarm();
              });
}

void SaveStateCall::OnAlarm() {
  bool writes = false;
  {
    absl::MutexLock lock(&mutex_);
    if (ended()) return;
    // Until it is made the engine's deadline bounds it.
    const absl::Duration taken = made_ ? absl::Now() - made_at_ : absl::ZeroDuration();
    absl::Status late = CheckStatePace(sent_, header_.size() + snapshot_.size(), taken,
                                       service_.timeout, service_.patience);
    if (late.ok()) return SetAlarm();
    AbortLocked(std::move(late));
    writes = writing();
    Hold();
  }
  CancelRequest();
  if (writes) context_->TryCancel();  // a write that may never end by itself
  absl::MutexLock lock(&mutex_);
  Release();
}

}  // namespace hearth
