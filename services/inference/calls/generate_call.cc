#include "services/inference/calls/generate_call.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "services/inference/calls/inference_conversion.h"
#include "services/rpc/slice_wire.h"

namespace hearth {

void GenerateCall::Start(FairPool* pool, const std::string& tenant, uint64_t bytes, Make make,
                         Engine* engine) {
  const std::shared_ptr<GenerateCall> self = Shared(this);
  Follow(
      pool, tenant, bytes, [self, make = std::move(make)] { return make(&self->options_); },
      engine);
}

absl::StatusOr<std::shared_ptr<EngineRequestHandle>> GenerateCall::Submit(Engine* engine,
                                                                          EngineRequest request) {
  const std::shared_ptr<GenerateCall> self = Shared(this);
  GenerateEvents events;
  events.started = [self](const StartedInfo& info) { self->Note(info); };
  events.message = [self](const v1::GenerateResponse& message) { return self->Send(message); };
  events.ended = [self](const absl::Status& status) { self->End(status); };
  return RunGenerate(engine, std::move(request), std::move(options_), std::move(events));
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

}  // namespace hearth
