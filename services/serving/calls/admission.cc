#include "services/serving/calls/admission.h"

#include <grpcpp/server_context.h>

#include <algorithm>
#include <cassert>
#include <utility>
#include <vector>

#include "services/rpc/request_id.h"

namespace hearth {

Admission::Call::Call(Admission* admission, const char* method)
    : admission_(admission), method_(method), start_(SteadyClock().Now()) {}

Admission::Call::~Call() {
  if (connection_ != nullptr) {
    connection_->CallEnds();
    if (reads_on_) connection_->StreamEnds();
  }
  admission_->NoteEnd({method_, code_,
                       absl::ToDoubleSeconds(std::min(SteadyClock().Now(), end_) - start_),
                       std::move(note_)});
}

void Admission::Call::CameFrom(const std::string& peer, uint64_t bytes, bool reads_on) {
  assert(connection_ == nullptr);
  connection_ = admission_->connections_.Find(peer);
  if (connection_ == nullptr) return;
  reads_on_ = reads_on;
  connection_->CallBegins();
  if (reads_on) connection_->StreamBegins();
  connection_->Taken(bytes + admission_->connections_.limits().call_bytes);
}

void Admission::Call::Took(uint64_t bytes) {
  if (connection_ != nullptr) connection_->Taken(bytes);
}

absl::Status Admission::Call::Finish(absl::Status status) {
  code_ = status.code();
  return status;
}

Admission::Admission(Recorder recorder, Identities* identities, Identity everybody)
    : recorder_(std::move(recorder)), identities_(identities), everybody_(std::move(everybody)) {}

Admission::~Admission() {
  absl::MutexLock lock(&mutex_);
  assert(running_ == 0);
}

std::unique_ptr<Admission::Call> Admission::Enter(const char* method, const std::string& peer,
                                                  uint64_t bytes, bool reads_on) {
  std::unique_ptr<Call> call;
  {
    absl::MutexLock lock(&mutex_);
    if (closed_) return nullptr;
    ++running_;
    call.reset(new Call(this, method));
  }
  call->CameFrom(peer, bytes, reads_on);
  return call;
}

absl::StatusOr<Identity> Admission::Enter(const char* method,
                                          const grpc::ServerContextBase& context, uint64_t bytes,
                                          std::unique_ptr<Call>* call, bool reads_on) {
  absl::StatusOr<Identity> caller =
      identities_ == nullptr ? everybody_ : identities_->Identify(context);
  *call = Enter(method, context.peer(), bytes, reads_on);
  if (*call == nullptr) return ClosedError();
  (*call)->note_.request_id = RequestIdOf(context);
  if (!caller.ok()) return caller;
  if ((*call)->connection_ != nullptr) (*call)->connection_->Known();
  (*call)->note_.tenant = caller->tenant;
  return caller;
}

std::shared_ptr<void> Admission::Follow(const grpc::ServerContextBase& context, const Identity& was,
                                        Identities::EndStream end) {
  if (identities_ == nullptr) return nullptr;
  return identities_->Follow(context, was, std::move(end));
}

absl::Status Admission::ClosedError() {
  return absl::UnavailableError("the server is shutting down; ask another one");
}

void Admission::Close() {
  std::vector<std::shared_ptr<Listener>> listeners;
  {
    absl::MutexLock lock(&mutex_);
    if (closed_) return;
    closed_ = true;
    for (const auto& weak : listeners_) {
      if (auto listener = weak.lock()) listeners.push_back(std::move(listener));
    }
    listeners_.clear();
  }
  for (const auto& listener : listeners) {
    absl::MutexLock lock(&listener->mutex);
    if (listener->run) listener->run();
  }
}

bool Admission::closed() const {
  absl::MutexLock lock(&mutex_);
  return closed_;
}

std::shared_ptr<void> Admission::OnClose(std::function<void()> on_close) {
  assert(on_close != nullptr);
  auto listener = std::make_shared<Listener>();
  bool closed = false;
  {
    absl::MutexLock lock(&mutex_);
    closed = closed_;
    listeners_.remove_if([](const std::weak_ptr<Listener>& weak) { return weak.expired(); });
    if (!closed) listeners_.push_back(listener);
  }
  {
    absl::MutexLock lock(&listener->mutex);
    listener->run = std::move(on_close);
    // Close may have passed between the two locks and found nothing to run.
    if (closed || this->closed()) {
      listener->run();
      listener->run = nullptr;
    }
  }
  return std::shared_ptr<void>(listener.get(), [listener](void*) {
    absl::MutexLock lock(&listener->mutex);
    listener->run = nullptr;
  });
}

bool Admission::WaitIdle(absl::Time deadline) {
  absl::MutexLock lock(&mutex_);
  const auto idle = [this]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) { return running_ == 0; };
  return mutex_.AwaitWithDeadline(absl::Condition(&idle), deadline);
}

int Admission::running() const {
  absl::MutexLock lock(&mutex_);
  return running_;
}

void Admission::NoteEnd(const CallRecord& record) {
  if (recorder_) recorder_(record);
  absl::MutexLock lock(&mutex_);
  assert(running_ > 0);
  --running_;
}

}  // namespace hearth
