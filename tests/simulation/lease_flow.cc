// LeaseFlow: a Lease call, which decides which worker computes a prefix and which workers wait. The
// node's end behaves like services/store/lease_call.cc.
#include <utility>

#include "absl/strings/str_cat.h"
#include "tests/simulation/flow.h"

namespace hearth {
namespace {

class LeaseFlow final : public Flow {
 public:
  LeaseFlow(Peer* peer, std::shared_ptr<CacheCall> call, Dice dice)
      : Flow(peer, std::move(call), dice) {}
  ~LeaseFlow() override { turn_ = ClaimDecision(); }

  // If the engine has released its lease, notifies the node.
  void OnEngineRest() override {
    if (!holds_ || !*released_ || has_let_go_ || is_worker_dead_) return;
    has_let_go_ = true;
    ReleaseAtNode();
  }
  bool is_done() const override { return Flow::is_done() && (!holds_ || has_let_go_); }

  // If the node drains, waiting workers get the answer to compute, and leases end.
  void OnNodeDrain() override {
    if (!is_served_) return;
    if (turn_.role != ClaimRole::kCompute) {
      ToWorker([this] { AnswerTurn(ClaimRole::kNone, 0, 0); });
    }
    StopServing();
  }

  Turn turn() const override {
    Turn turn;
    if (is_woken_) return turn;
    turn.role = turn_.role;
    turn.until = turn_.until;
    const auto name = [this](uint32_t end) {
      return PrefixName(call_->prefix.tenant, call_->prefix.token_ids, call_->prefix.cuts, end,
                        peer_->oracle->layout());
    };
    if (turn.role == ClaimRole::kWait) turn.waited_for = name(turn_.boundary);
    if (turn.role == ClaimRole::kCompute) {
      for (uint32_t end = 1; end <= turn_.boundary; ++end) turn.promised.push_back(name(end));
    }
    return turn;
  }

 private:
  void Begin() override {
    const LeaseTerms& terms = call_->terms;
    store()->Observe(peer_->oracle->fingerprint(), call_->prefix.tenant);
    ask_ = ClaimRequest{call_->above_tokens,
                        call_->max_tokens,
                        terms.min_tokens,
                        terms.lease,
                        peer_->time->store_clock()->Now() + terms.wait,
                        0,
                        nullptr};
    ask_.wake = [weak = weak_from_this(), this] {
      const auto self = weak.lock();
      if (self == nullptr || is_woken_ || !is_served_) return;
      is_woken_ = true;
      peer_->time->After(absl::ZeroDuration(), [self, this] { Ask(); });
    };
    Ask();
  }

  void Ask() {
    if (!is_served_) return;
    ClaimDecision before = std::exchange(turn_, ClaimDecision());
    ask_.waited_for = before.boundary;
    is_woken_ = false;
    const uint64_t round = ++round_;
    before.ticket.reset();
    if (!is_served_) return;
    if (peer_->node->is_draining()) return OnNodeDrain();
    absl::StatusOr<ClaimDecision> turn = store()->Claim(Query(), ask_);
    if (!turn.ok()) {
      if (!MayFail() && !(gives_up_ && absl::IsCancelled(turn.status()))) {
        peer_->time->Violated(8, absl::StrCat("a lease failed: ", turn.status().ToString()));
      }
      return FailAtNode(turn.status());
    }
    turn_ = *std::move(turn);
    if (turn_.role == ClaimRole::kWait) {
      if (turn_.until > ask_.wait_until) {
        peer_->time->Violated(16, "is to wait for longer than it would");
      }
      if (!std::exchange(waited_, true)) ToWorker([this] { AnswerWait(); });
    } else {
      ToWorker([this, role = turn_.role, usable = turn_.usable_tokens,
                matched = turn_.matched_tokens] { AnswerTurn(role, usable, matched); });
      if (turn_.role == ClaimRole::kNone) return StopServing();
    }
    const absl::Duration left = turn_.until - peer_->time->store_clock()->Now();
    peer_->time->After(std::max(left, absl::ZeroDuration()),
                       [self = shared_from_this(), this, round] { OnAlarm(round); });
  }

  void OnAlarm(uint64_t round) {
    if (!is_served_ || round != round_ || is_woken_) return;
    if (turn_.role == ClaimRole::kCompute) return StopServing();
    Ask();
  }

  // A wait has a deadline of its own: the wait time of the request plus 250 ms.
  void AnswerWait() { SetDeadline(call_->terms.wait + absl::Milliseconds(250)); }

  void AnswerTurn(ClaimRole role, uint32_t usable_tokens, uint32_t matched_tokens) {
    call_->turn.usable_tokens = usable_tokens;
    call_->turn.matched_tokens = matched_tokens;
    if (role == ClaimRole::kCompute) {
      holds_ = true;
      call_->turn.lease = peer_->worker->MakeLease(call_->prefix.request_id, released_);
    }
    Answer(role == ClaimRole::kCompute ? "is to compute" : waited_ ? "has waited" : "goes on");
  }

  // Ends the claim to compute the prefix, which wakes the calls that wait for it.
  void EndServing() override {
    ClaimDecision turn = std::exchange(turn_, ClaimDecision());
    ++round_;
    is_served_ = false;
  }
  void SetFailure(const absl::Status&) override { call_->turn = LeaseOutcome(); }
  absl::Duration Budget() const override { return kFetchBudget; }
  bool KeepsServing() const override { return holds_; }

  // State of the call at the node.
  ClaimRequest ask_;
  ClaimDecision turn_;
  bool waited_ = false, is_woken_ = false;
  uint64_t round_ = 0;
  // State of the call at the worker.
  bool holds_ = false, has_let_go_ = false;
  const std::shared_ptr<std::atomic<bool>> released_ = std::make_shared<std::atomic<bool>>(false);
};

}  // namespace

std::shared_ptr<Flow> MakeLeaseFlow(Peer* peer, std::shared_ptr<CacheCall> call, Dice dice) {
  return std::make_shared<LeaseFlow>(peer, std::move(call), dice);
}

}  // namespace hearth
