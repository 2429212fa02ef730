// Link: the connection between one worker and the node, with the guarantees of TCP.
//
// Messages of a stream arrive in order, after a delay. While the network is cut, messages are held.
// If the connection breaks, they are lost, and each end notices it later. Thread safety: none.
#ifndef HEARTH_TESTS_SIMULATION_LINK_H_
#define HEARTH_TESTS_SIMULATION_LINK_H_

#include <algorithm>
#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "tests/simulation/timeline.h"

namespace hearth {

class Link {
 public:
  explicit Link(Timeline* time) : time_(time) {}

  // Delivers a message after the previous message of its stream. `last`: arrival time of the
  // previous message, updated by this call. `extra`: additional delay of a slow stream.
  void Send(absl::Time* last, absl::Duration extra, Dice* dice, std::function<void()> arrive) {
    const absl::Duration flight = dice->Between(absl::Microseconds(100), slowness_);
    *last = extra > absl::ZeroDuration() ? std::max(*last, time_->now()) + flight + extra
                                         : std::max(*last, time_->now() + flight);
    time_->After(*last - time_->now(), [this, arrive = std::move(arrive), now = connection_] {
      if (now != connection_) return;
      if (is_cut_) {
        held_.push_back(arrive);
      } else {
        arrive();
      }
    });
  }

  bool is_cut() const { return is_cut_; }
  void Cut() { is_cut_ = true; }
  // Ends a cut of the network: delivers the held messages, if the connection still exists.
  void Heal() {
    is_cut_ = false;
    std::vector<std::function<void()>> held;
    std::swap(held, held_);
    for (auto& arrive : held) {
      time_->After(absl::ZeroDuration(), [this, arrive = std::move(arrive), now = connection_] {
        if (now == connection_) arrive();
      });
    }
  }
  // Breaks the connection: all messages in flight are lost.
  void Break() {
    ++connection_;
    held_.clear();
  }
  // Sets the longest delay of a message.
  void SetSlowness(absl::Duration slowness) { slowness_ = slowness; }
  uint64_t connection() const { return connection_; }

 private:
  Timeline* const time_;
  bool is_cut_ = false;
  uint64_t connection_ = 0;
  absl::Duration slowness_ = absl::Milliseconds(2);
  std::vector<std::function<void()>> held_;
};

}  // namespace hearth

#endif  // HEARTH_TESTS_SIMULATION_LINK_H_
