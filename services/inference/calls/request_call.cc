#include "services/inference/calls/request_call.h"

#include <utility>

namespace hearth {

void RequestCall::Follow(Engine* engine, FairPool* pool, const std::string& tenant, uint64_t bytes,
                         Make make) {
  engine_ = engine;
  pool_ = pool;
  Delegate([&] {
    return pool->SubmitRequest(tenant, bytes, [self = Shared(this), make = std::move(make)] {
      absl::StatusOr<EngineRequest> made = make();
      const absl::Status begun = made.ok() ? self->Begin(*std::move(made)) : made.status();
      if (!begun.ok()) self->End(begun);
      absl::MutexLock lock(&self->mutex_);
      self->Release();
    });
  });
}

absl::Status RequestCall::Begin(EngineRequest request) {
  const auto handle = Submit(std::move(request));
  if (!handle.ok()) return handle.status();
  absl::MutexLock lock(&mutex_);
  handle_ = *handle;
  if (cancelled_) handle_->Cancel();
  return absl::OkStatus();
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
