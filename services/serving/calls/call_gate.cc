#include "services/serving/calls/call_gate.h"

#include <grpcpp/server_context.h>

#include <algorithm>
#include <cassert>
#include <utility>
#include <vector>

#include "services/rpc/request_id.h"

namespace hearth {

CallGate::Call::Call(CallGate* gate, const char* method)
    : gate_(gate), method_(method), start_(SteadyClock().Now()) {}

CallGate::Call::~Call() {
  if (connection_ != nullptr) {
    connection_->CallEnds();
    if (reads_on_) connection_->StreamEnds();
  }
  gate_->NoteEnd({method_, code_,
                  absl::ToDoubleSeconds(std::min(SteadyClock().Now(), end_) - start_),
                  std::move(note_)});
}

void CallGate::Call::CameFrom(const std::string& peer, uint64_t bytes, bool reads_on) {
  assert(connection_ == nullptr);
  connection_ = gate_->connections_.Find(peer);
  if (connection_ == nullptr) return;
  reads_on_ = reads_on;
  connection_->CallBegins();
  if (reads_on) connection_->StreamBegins();
  connection_->Taken(bytes + gate_->connections_.limits().call_bytes);
}

void CallGate::Call::Took(uint64_t bytes) {
  if (connection_ != nullptr) connection_->Taken(bytes);
}

void CallGate::Call::Known() {
  if (connection_ != nullptr) connection_->Known();
}

absl::Status CallGate::Call::Finish(absl::Status status) {
  code_ = status.code();
  return status;
}

CallGate::CallGate(Recorder recorder) : recorder_(std::move(recorder)) {}

CallGate::~CallGate() {
  absl::MutexLock lock(&mutex_);
  assert(running_ == 0);
}

std::unique_ptr<CallGate::Call> CallGate::Enter(const char* method) {
  absl::MutexLock lock(&mutex_);
  if (closed_) return nullptr;
  ++running_;
  return std::unique_ptr<Call>(new Call(this, method));
}

absl::Status CallGate::ClosedError() {
  return absl::UnavailableError("the server is shutting down; ask another one");
}

void CallGate::Close() {
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

bool CallGate::closed() const {
  absl::MutexLock lock(&mutex_);
  return closed_;
}

std::shared_ptr<void> CallGate::OnClose(std::function<void()> on_close) {
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

bool CallGate::WaitIdle(absl::Time deadline) {
  absl::MutexLock lock(&mutex_);
  const auto idle = [this]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) { return running_ == 0; };
  return mutex_.AwaitWithDeadline(absl::Condition(&idle), deadline);
}

int CallGate::running() const {
  absl::MutexLock lock(&mutex_);
  return running_;
}

void CallGate::NoteEnd(const CallRecord& record) {
  if (recorder_) recorder_(record);
  absl::MutexLock lock(&mutex_);
  assert(running_ > 0);
  --running_;
}

absl::StatusOr<Identity> EnterCall(CallGate* gate, Identities* identities, const char* method,
                                   const grpc::ServerContextBase& context, uint64_t bytes,
                                   std::unique_ptr<CallGate::Call>* call, bool reads_on) {
  absl::StatusOr<Identity> caller = CallerOf(identities, context);
  *call = gate->Enter(method);
  if (*call == nullptr) return CallGate::ClosedError();
  (*call)->CameFrom(context.peer(), bytes, reads_on);
  (*call)->note()->request_id = RequestIdOf(context);
  if (!caller.ok()) return caller;
  (*call)->Known();
  (*call)->note()->tenant = caller->tenant;
  return caller;
}

}  // namespace hearth
