#include "services/inference/calls/request_call.h"

#include <utility>

namespace hearth {

void RequestCall::Follow(FairPool* pool, const std::string& tenant, uint64_t bytes,
                         MakeRequest make, Engine* engine) {
  {
    absl::MutexLock lock(&mutex_);
    Hold();
  }
  const std::shared_ptr<RequestCall> self = Shared(this);
  PrepareRequest(pool, tenant, bytes, std::move(make),
                 [self, engine](absl::StatusOr<EngineRequest> prepared) {
                   self->Prepared(engine, std::move(prepared));
                 });
}

void RequestCall::Prepared(Engine* engine, absl::StatusOr<EngineRequest> prepared) {
  if (prepared.ok()) {
    Begin(engine, *std::move(prepared));
  } else {
    End(prepared.status());
  }
  absl::MutexLock lock(&mutex_);
  Release();
}

void RequestCall::Begin(Engine* engine, EngineRequest request) {
  const auto handle = Submit(engine, std::move(request));
  if (!handle.ok()) return End(handle.status());
  absl::MutexLock lock(&mutex_);
  handle_ = *handle;
  if (cancelled_) handle_->Cancel();
}

void RequestCall::OnGone() {
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
