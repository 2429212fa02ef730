// A Lease: who computes, who waits. services/store/lease_call.cc at the node.
#include <utility>

#include "absl/strings/str_cat.h"
#include "tests/simulation/flow.h"

namespace hearth {
namespace {

class LeaseFlow final : public Flow {
 public:
  LeaseFlow(Peer* peer, std::shared_ptr<CacheCall> call, Dice dice)
      : Flow(peer, std::move(call), dice) {}
  ~LeaseFlow() override { turn_ = LeaseTurn(); }

  // The engine lets go of it some time; the node hears of it then.
  void Look() override {
    if (!holds_ || !*released_ || has_let_go_ || is_worker_dead_) return;
    has_let_go_ = true;
    LetGo();
  }
  bool is_done() const override { return Flow::is_done() && (!holds_ || has_let_go_); }

  // Whoever waits computes, and a lease is of no use any more.
  void NodeDrains() override {
    if (!is_served_) return;
    if (turn_.role != LeaseRole::kCompute) {
      ToWorker([this] { AnswerTurn(LeaseRole::kNone, 0, 0); });
    }
    NodeGone();
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
    if (turn.role == LeaseRole::kWait) turn.waited_for = name(turn_.boundary);
    if (turn.role == LeaseRole::kCompute) {
      for (uint32_t end = 1; end <= turn_.boundary; ++end) turn.promised.push_back(name(end));
    }
    return turn;
  }

 private:
  void Begin() override {
    const LeaseTerms& terms = call_->terms;
    store()->Observe(peer_->oracle->fingerprint(), call_->prefix.tenant);
    ask_ = LeaseAsk{call_->above_tokens,
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
    LeaseTurn before = std::exchange(turn_, LeaseTurn());
    ask_.waited_for = before.boundary;
    is_woken_ = false;
    const uint64_t round = ++round_;
    before.ticket.reset();
    if (!is_served_) return;
    if (peer_->node->is_draining()) return NodeDrains();
    absl::StatusOr<LeaseTurn> turn = store()->Lease(Query(), ask_);
    if (!turn.ok()) {
      if (!MayFail() && !(gives_up_ && absl::IsCancelled(turn.status()))) {
        peer_->time->Violated(8, absl::StrCat("a lease failed: ", turn.status().ToString()));
      }
      return FailAtNode(turn.status());
    }
    turn_ = *std::move(turn);
    if (turn_.role == LeaseRole::kWait) {
      if (turn_.until > ask_.wait_until) {
        peer_->time->Violated(16, "is to wait for longer than it would");
      }
      if (!std::exchange(waited_, true)) ToWorker([this] { AnswerWait(); });
    } else {
      ToWorker([this, role = turn_.role, usable = turn_.usable_tokens,
                matched = turn_.matched_tokens] { AnswerTurn(role, usable, matched); });
      if (turn_.role == LeaseRole::kNone) return NodeGone();
    }
    const absl::Duration left = turn_.until - peer_->time->store_clock()->Now();
    peer_->time->After(std::max(left, absl::ZeroDuration()),
                       [self = shared_from_this(), this, round] { OnAlarm(round); });
  }

  void OnAlarm(uint64_t round) {
    if (!is_served_ || round != round_ || is_woken_) return;
    if (turn_.role == LeaseRole::kCompute) return NodeGone();
    Ask();
  }

  // From here on the wait has a budget of its own.
  void AnswerWait() { SetDeadline(call_->terms.wait + absl::Milliseconds(250)); }

  void AnswerTurn(LeaseRole role, uint32_t usable_tokens, uint32_t matched_tokens) {
    call_->turn.usable_tokens = usable_tokens;
    call_->turn.matched_tokens = matched_tokens;
    if (role == LeaseRole::kCompute) {
      holds_ = true;
      call_->turn.lease = peer_->worker->MakeLease(call_->prefix.request_id, released_);
    }
    Answer(role == LeaseRole::kCompute ? "is to compute" : waited_ ? "has waited" : "goes on");
  }

  // What is given up here wakes others.
  void EndServing() override {
    LeaseTurn turn = std::exchange(turn_, LeaseTurn());
    ++round_;
    is_served_ = false;
  }
  void Give(const absl::Status&) override { call_->turn = LeaseOutcome(); }
  absl::Duration Budget() const override { return kFetchBudget; }
  bool GoesOn() const override { return holds_; }

  // At the node.
  LeaseAsk ask_;
  LeaseTurn turn_;
  bool waited_ = false, is_woken_ = false;
  uint64_t round_ = 0;
  // At the worker.
  bool holds_ = false, has_let_go_ = false;
  const std::shared_ptr<std::atomic<bool>> released_ = std::make_shared<std::atomic<bool>>(false);
};

}  // namespace

std::shared_ptr<Flow> MakeLeaseFlow(Peer* peer, std::shared_ptr<CacheCall> call, Dice dice) {
  return std::make_shared<LeaseFlow>(peer, std::move(call), dice);
}

}  // namespace hearth
