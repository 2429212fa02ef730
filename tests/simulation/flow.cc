#include "tests/simulation/flow.h"

#include <utility>

#include "absl/strings/str_cat.h"

namespace hearth {

std::shared_ptr<Flow> Flow::Make(Peer* peer, std::shared_ptr<CacheCall> call, Dice dice) {
  switch (call->kind) {
    case CacheCall::Kind::kFetch:
      return MakeFetchFlow(peer, std::move(call), dice);
    case CacheCall::Kind::kLease:
      return MakeLeaseFlow(peer, std::move(call), dice);
    case CacheCall::Kind::kPublish:
      break;
  }
  return MakePublishFlow(peer, std::move(call), dice);
}

std::string Flow::CallName() const {
  return absl::StrCat(KindName(call_->kind), " ", call_->prefix.request_id);
}

PrefixQuery Flow::Query() const {
  PrefixQuery query;
  query.fingerprint = peer_->oracle->fingerprint().digest();
  query.tenant = call_->prefix.tenant;
  query.token_ids = call_->prefix.token_ids;
  query.cuts = call_->prefix.cuts;
  if (gives_up_) query.stopped = [] { return true; };
  return query;
}

void Flow::Start() {
  began_ = peer_->time->now();
  gives_up_ = dice_.Chance(2);
  if (dice_.Chance(4)) trickle_ = dice_.Between(absl::Milliseconds(10), absl::Seconds(3));
  if (!peer_->breaker.Allows(began_)) {
    return Fail(absl::UnavailableError("the store did not answer recently"));
  }
  SetDeadline(Budget());
  ToNode([self = shared_from_this()] { self->Enter(); });
}

void Flow::Enter() {
  if (peer_->node->is_draining()) return FailAtNode(absl::UnavailableError("draining"));
  is_served_ = true;
  peer_->node->Enter(shared_from_this());
  Begin();
}

void Flow::SetDeadline(absl::Duration budget) {
  const uint64_t number = ++deadlines_;
  peer_->time->After(budget, [self = shared_from_this(), number] {
    if (self->is_over_ || number != self->deadlines_) return;
    if (!self->has_answer_) self->peer_->breaker.OnSilence(self->peer_->time->now());
    self->Fail(absl::DeadlineExceededError("too late"));
  });
}

void Flow::ToNode(std::function<void()> then) {
  peer_->link->Send(
      &last_to_node_, trickle_, &dice_, [self = shared_from_this(), then = std::move(then)] {
        if (self->peer_->node->is_up()) return then();
        self->peer_->link->Send(&self->last_to_worker_, absl::ZeroDuration(), &self->dice_, [self] {
          self->Fail(absl::UnavailableError("connection refused"));
        });
      });
}

void Flow::ToWorker(std::function<void()> then) {
  peer_->link->Send(&last_to_worker_, trickle_, &dice_,
                    [self = shared_from_this(), then = std::move(then)] {
                      if (self->is_over_) return;
                      if (!std::exchange(self->has_answer_, true)) self->peer_->breaker.OnAnswer();
                      then();
                    });
}

void Flow::FailAtNode(const absl::Status& status) {
  StopServing();
  ToWorker([this, status] { Fail(status); });
}

void Flow::Fail(const absl::Status& status) {
  if (is_over_) return;
  SetFailure(status);
  Answer(absl::StrCat("failed: ", absl::StatusCodeToString(status.code())));
}

// Ends the call at the worker. Also notifies the node, so that the node releases the objects that
// it holds for this call.
void Flow::Answer(const std::string& what) {
  if (is_over_) return;
  is_over_ = true;
  peer_->time->Note(absl::StrCat(CallName(), ": ", what));
  const absl::Duration took = peer_->time->now() - began_;
  if (took > Budget() + call_->terms.wait + absl::Seconds(1)) {
    peer_->time->Violated(16, absl::StrCat(CallName(), " took ", absl::FormatDuration(took)));
  }
  if (!KeepsServing()) ReleaseAtNode();
  peer_->worker->Answer(call_.get());
}

void Flow::ReleaseAtNode() {
  peer_->link->Send(&last_to_node_, absl::ZeroDuration(), &dice_,
                    [self = shared_from_this()] { self->StopServing(); });
}

}  // namespace hearth
