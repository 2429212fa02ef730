// Link: the connection between one worker and the node, with TCP's guarantees.
//
// Messages on a stream arrive in order, after a while; or they are held while the network is cut;
// or they are lost with the connection, which both ends learn at some time. Thread safety: none.
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

  // Behind `*last`, when the message before it on its stream arrives; `extra`: of one that
  // trickles.
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
  // Held messages arrive, if the connection is still there.
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
  // All messages under way are lost.
  void Break() {
    ++connection_;
    held_.clear();
  }
  // The longest time that a message takes.
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
