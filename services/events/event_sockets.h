// EventSockets: publishes a feed's batches over ZeroMQ, and answers who missed some.
//
// A batch is [topic, number, payload], the number 8 bytes, the highest first. A request for a
// replay is the number that is wanted first, in the same bytes; its answers are [number, payload]
// each, and at the end number -1 without a payload. Who subscribes is sent the last batch again
// within a second, and so learns what it lacks. Thread safety: Run on one thread; all else before
// it. Ownership: borrows the feed. Invariants: 1. a subscriber or asker that does not read costs
// high_water batches, never a wait.
// 2. at most kMaxReplays answers are on their way and kMaxWaitingReplays wait; of each asker one.
// 3. a message of a peer has at most kMaxPeerBytes, or ends its connection. (ZeroMQ keeps all
// topics that a subscriber asks for, however many.)
#ifndef HEARTH_SERVICES_EVENTS_EVENT_SOCKETS_H_
#define HEARTH_SERVICES_EVENTS_EVENT_SOCKETS_H_

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "services/events/event_feed.h"

namespace hearth {

struct EventSocketOptions {
  std::string publish;  // tcp://ADDRESS:PORT or ipc://PATH; port * is any that is free
  std::string replay;   // empty: none
  std::string topic;
  int high_water = 1000;  // batches that wait for one subscriber
  // With an asker that takes nothing of its answer.
  absl::Duration patience = absl::Seconds(10);
};

class EventSockets {
 public:
  static constexpr int kMaxPeerBytes = 512;
  static constexpr size_t kMaxReplays = 4;
  static constexpr size_t kMaxWaitingReplays = 256;

  // kFailedPrecondition: the address is in use; kInvalidArgument: it is none.
  static absl::StatusOr<std::unique_ptr<EventSockets>> Open(const EventSocketOptions& options,
                                                            EventFeed* feed);
  ~EventSockets();

  // Publishes until `stop_fd` can be read.
  void Run(int stop_fd);
  // As they are bound.
  std::string publish_address() const { return AddressOf(publisher_); }
  std::string replay_address() const { return AddressOf(replayer_); }

 private:
  struct Replay {
    std::string asker;
    uint64_t number = 0;
    std::optional<std::deque<KvBatch>> left;  // once begun
    absl::Time moved;                         // a batch was taken last
  };

  EventSockets(const EventSocketOptions& options, EventFeed* feed);
  absl::Status Bind();
  static std::string AddressOf(void* socket);
  // When to go on though nothing happens.
  absl::Duration Wait() const;
  void PublishNew();
  void Publish(const KvBatch& batch);
  void ReadSubscriptions();
  void RepeatLast();
  void ReadRequests();
  void GoOnWithReplays();
  // False: the asker is gone, or has taken nothing for too long.
  bool SendSome(Replay* replay);

  const EventSocketOptions options_;
  EventFeed* const feed_;
  void* const context_;
  void* publisher_ = nullptr;
  void* replayer_ = nullptr;  // null: none
  int wake_fd_ = -1;
  uint64_t next_number_;
  bool has_newcomer_ = false;  // who may not know how far the others are
  bool stalled_ = false;       // no asker took anything
  absl::Time repeated_ = absl::InfinitePast();
  std::deque<Replay> replays_;  // the first kMaxReplays are on their way
};

}  // namespace hearth

#endif  // HEARTH_SERVICES_EVENTS_EVENT_SOCKETS_H_
