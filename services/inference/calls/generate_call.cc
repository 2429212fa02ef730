#include "services/inference/calls/generate_call.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "services/inference/calls/inference_conversion.h"
#include "services/rpc/slice_wire.h"

namespace hearth {

void GenerateCall::Start(FairPool* pool, const std::string& tenant, uint64_t bytes, Make make,
                         Engine* engine) {
  {
    absl::MutexLock lock(&mutex_);
    Hold();
  }
  const std::shared_ptr<GenerateCall> self = Shared(this);
  PrepareRequest(
      pool, tenant, bytes, [self, make = std::move(make)] { return make(&self->options_); },
      [self, engine](absl::StatusOr<EngineRequest> prepared) {
        self->Prepared(engine, std::move(prepared));
      });
}

void GenerateCall::Prepared(Engine* engine, absl::StatusOr<EngineRequest> prepared) {
  if (prepared.ok()) {
    Submit(engine, *std::move(prepared));
  } else {
    End(prepared.status());
  }
  absl::MutexLock lock(&mutex_);
  Release();
}

void GenerateCall::Submit(Engine* engine, EngineRequest request) {
  const std::shared_ptr<GenerateCall> self = Shared(this);
  GenerateEvents events;
  events.started = [self](const StartedInfo& info) { self->Note(info); };
  events.message = [self](const v1::GenerateResponse& message) { return self->Send(message); };
  events.ended = [self](const absl::Status& status) { self->End(status); };
  auto handle = RunGenerate(engine, std::move(request), std::move(options_), std::move(events));
  if (!handle.ok()) return End(handle.status());
  absl::MutexLock lock(&mutex_);
  handle_ = *std::move(handle);
  if (cancelled_) handle_->Cancel();
}

bool GenerateCall::Send(const v1::GenerateResponse& message) {
  grpc::ByteBuffer bytes = MessageBytes(message);
  {
    absl::MutexLock lock(&mutex_);
    if (!ended()) call()->note()->generated += static_cast<uint64_t>(message.token().ids_size());
    PushLocked(std::move(bytes));
    WriteNext();
    if (message.token().ids_size() == 0 || ready_bytes() <= kMaxWaitingBytes) return true;
  }
  End(absl::ResourceExhaustedError(
      absl::StrCat("the caller does not read: ", kMaxWaitingBytes, " bytes wait to be sent")));
  return false;
}

void GenerateCall::Note(const StartedInfo& info) {
  absl::MutexLock lock(&mutex_);
  if (!ended()) NoteStart(info, call()->note());
}

void GenerateCall::OnGone() {
  std::shared_ptr<EngineRequestHandle> handle;
  {
    absl::MutexLock lock(&mutex_);
    cancelled_ = true;
    handle = handle_;
  }
  if (handle != nullptr) handle->Cancel();
  StreamCall::OnGone();
}

}  // namespace hearth
