#include "cache_store/shared/redis/cluster_node.h"

#include <algorithm>
#include <cassert>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "cache_store/shared/redis/slot_map.h"

namespace hearth {
namespace {

constexpr absl::Duration kLookPause = absl::Milliseconds(100);
// An idle node is asked whether it is there, so that no caller is the first to notice its loss.
constexpr absl::Duration kHeartbeat = absl::Seconds(1);
// A node that never served is probed ever more seldom: a map may name hundreds that are not there.
constexpr uint32_t kLongestPause = 8;  // times the first one

}  // namespace

ClusterNode::ClusterNode(RedisParts* parts, const NodeAddress& address, Lane lane,
                         Observer* observer)
    : parts_(parts),
      address_(address),
      lane_(lane),
      observer_(observer),
      last_used_(parts->loop.Now()) {
  // In a task of its own: what it finds, it tells an observer who knows it by then.
  attempt_timer_ = parts_->loop.At(Now(), [this] { Attempt(); });
}

ClusterNode::~ClusterNode() {
  EndAttempt();
  if (look_timer_.has_value()) parts_->loop.Cancel(*look_timer_);
}

bool ClusterNode::IsIdle() const {
  return waiting_.empty() && (connection_ == nullptr || connection_->commands_in_flight() == 0);
}

void ClusterNode::EndAttempt() {
  if (attempt_timer_.has_value()) parts_->loop.Cancel(*attempt_timer_);
  attempt_timer_.reset();
}

void ClusterNode::Retire() {
  parts_->loop.Post([gone = std::shared_ptr<NodeConnection>(std::move(connection_))] {});
}

void ClusterNode::Attempt() {
  assert(connection_ == nullptr);
  if (attempts_ > 0) ++parts_->counters.reconnects;
  connection_ = std::make_unique<NodeConnection>(parts_, address_, attempts_++, this);
  attempt_timer_ = parts_->loop.At(Now() + parts_->options.connect_wait, [this] {
    connection_->Close(absl::UnavailableError("no connection in time"));
  });
  connection_->Open();
}

void ClusterNode::OnOpen() {
  EndAttempt();
  look_timer_ = parts_->loop.At(Now() + kLookPause, [this] { Look(); });
  quiet_looks_ = 0;
  refuses_ = false;
  observer_->OnNodeUp(this);
  Pump();
}

void ClusterNode::OnClosed(const absl::Status& why) {
  EndAttempt();
  if (look_timer_.has_value()) parts_->loop.Cancel(*look_timer_);
  look_timer_.reset();
  const absl::Duration pause = parts_->options.probe_pause;
  // One that served until now may be back at once; one that did not is not asked without a pause.
  const bool served = connection_->opened() > absl::InfinitePast() &&
                      Now() - connection_->opened() >= pause && !IsSilent();
  has_served_ |= connection_->opened() > absl::InfinitePast();
  const uint32_t times =
      has_served_ ? 1 : std::min(kLongestPause, 1u << std::min(attempts_ - 1, 8u));
  Retire();
  attempt_timer_ = parts_->loop.At(Now() + (served ? absl::ZeroDuration() : times * pause),
                                   [this] { Attempt(); });
  if (!served) Refuse(why);
}

void ClusterNode::Refuse(const absl::Status& why) {
  const bool is_new = !std::exchange(refuses_, true);
  why_refuses_ = why;
  std::deque<KeyRequest> waiting;
  waiting.swap(waiting_);
  for (const KeyRequest& request : waiting) observer_->OnAnswer(this, request, why);
  if (is_new) observer_->OnNodeDown(this);
}

void ClusterNode::Send(const KeyRequest& request) {
  last_used_ = Now();
  if (refuses_) return observer_->OnAnswer(this, request, why_refuses_);
  waiting_.push_back(request);
  Pump();
}

void ClusterNode::Pump() {
  while (!waiting_.empty() && IsUp() && !connection_->has_enough_to_send()) {
    const KeyRequest& next = waiting_.front();
    if (next.IsWanted()) {
      const uint64_t under_way = connection_->bytes_in_flight();
      const uint64_t cost = next.command().Cost();
      if (under_way > 0 && under_way + cost > parts_->options.in_flight_bytes_max) return;
      SendNow(next);
    }
    waiting_.pop_front();
  }
}

void ClusterNode::SendNow(const KeyRequest& request) {
  static constexpr absl::string_view kAsking[] = {"ASKING"};
  const KeyCommand& command = request.command();
  if (request.asks) connection_->Send(FormatCommand(kAsking), {}, 0, nullptr);
  connection_->Send(command.Format(), command.Limits(), command.Cost(),
                    [this, request](absl::StatusOr<RedisReply> reply) {
                      observer_->OnAnswer(this, request, std::move(reply));
                    });
}

void ClusterNode::AskForSlots(NodeConnection::Done done) {
  static constexpr absl::string_view kSlots[] = {"CLUSTER", "SLOTS"};
  assert(IsUp());
  connection_->Send(FormatCommand(kSlots), kSlotMapLimits, 0, std::move(done));
}

bool ClusterNode::IsSilent() const { return quiet_looks_ * kLookPause >= parts_->options.silence; }

// Of a connection that is open: is it still alive? Silence is counted in looks, not by the clock: a
// loop that was held up itself has looked once.
void ClusterNode::Look() {
  static constexpr absl::string_view kPing[] = {"PING"};
  look_timer_ = parts_->loop.At(Now() + kLookPause, [this] { Look(); });
  const absl::Time progress = connection_->last_progress();
  quiet_looks_ = std::exchange(seen_progress_, progress) == progress ? quiet_looks_ + 1 : 0;
  if (connection_->commands_in_flight() == 0) {
    quiet_looks_ = 0;
    if (Now() - progress >= kHeartbeat) {
      connection_->Send(FormatCommand(kPing), {}, 0, nullptr);
    }
    return;
  }
  if (IsSilent()) connection_->Close(absl::UnavailableError("it does not answer"));
}

}  // namespace hearth
