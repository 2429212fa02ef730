#include "services/inference/calls/generate_call.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "services/inference/calls/inference_conversion.h"
#include "services/rpc/slice_wire.h"

namespace hearth {

absl::StatusOr<std::shared_ptr<EngineRequestHandle>> GenerateCall::Submit(EngineRequest request) {
  return RunGenerate(engine(), std::move(request), std::move(options_), Shared(this));
}

bool GenerateCall::OnMessage(const v1::GenerateResponse& message) {
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

void GenerateCall::OnStarted(const StartedInfo& info) {
  absl::MutexLock lock(&mutex_);
  if (!ended()) NoteStart(info, call()->note());
}

}  // namespace hearth
