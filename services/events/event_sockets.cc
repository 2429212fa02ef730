#include "services/events/event_sockets.h"

#include <sys/eventfd.h>
#include <unistd.h>
#include <zmq.h>

#include <algorithm>
#include <array>
#include <cassert>
#include <cerrno>
#include <limits>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "cache_store/base/clock.h"

namespace hearth {
namespace {

constexpr uint64_t kEndNumber = std::numeric_limits<uint64_t>::max();  // -1
constexpr size_t kPublishedAtOnce = 256;
constexpr int kReadAtOnce = 256;  // messages of peers, between two looks at what is to be sent
constexpr absl::Duration kRepeatPause = absl::Seconds(1);
constexpr absl::Duration kStallPause = absl::Milliseconds(5);
// Batches on their way to one asker. More would be held for each that asks and reads nothing.
constexpr int kReplayHighWater = 64;

using NumberBytes = std::array<uint8_t, 8>;

NumberBytes BytesOf(uint64_t number) {
  NumberBytes bytes;
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<uint8_t>(number >> (56 - 8 * i));
  return bytes;
}

void SetNumber(void* socket, int option, int value) {
  const int failed = zmq_setsockopt(socket, option, &value, sizeof(value));
  assert(failed == 0);
  static_cast<void>(failed);
}

absl::Status BindOne(void* socket, const std::string& address) {
  if (zmq_bind(socket, address.c_str()) == 0) return absl::OkStatus();
  const std::string why = absl::StrCat(address, ": ", zmq_strerror(zmq_errno()));
  return zmq_errno() == EADDRINUSE ? absl::FailedPreconditionError(why)
                                   : absl::InvalidArgumentError(why);
}

bool SendCopy(void* socket, const void* bytes, size_t size, int flags) {
  return zmq_send(socket, bytes, size, flags | ZMQ_DONTWAIT) >= 0;
}

// Without a copy: the message shares the payload.
bool SendShared(void* socket, const std::shared_ptr<const std::string>& payload) {
  using Owner = std::shared_ptr<const std::string>;
  auto* const owner = new Owner(payload);
  zmq_msg_t message;
  zmq_msg_init_data(
      &message, const_cast<char*>(payload->data()), payload->size(),
      [](void*, void* held) { delete static_cast<Owner*>(held); }, owner);
  if (zmq_msg_send(&message, socket, ZMQ_DONTWAIT) >= 0) return true;
  zmq_msg_close(&message);
  return false;
}

// The parts of the message that waits, or none.
std::vector<std::string> Receive(void* socket) {
  std::vector<std::string> parts;
  bool has_more = true;
  while (has_more) {
    zmq_msg_t part;
    zmq_msg_init(&part);
    if (zmq_msg_recv(&part, socket, ZMQ_DONTWAIT) < 0) {
      zmq_msg_close(&part);
      return {};
    }
    has_more = zmq_msg_more(&part) != 0;
    // Nothing that is expected has more parts; the rest is thrown away.
    if (parts.size() < 4)
      parts.emplace_back(static_cast<char*>(zmq_msg_data(&part)), zmq_msg_size(&part));
    zmq_msg_close(&part);
  }
  return parts;
}

}  // namespace

EventSockets::EventSockets(const EventSocketOptions& options, EventFeed* feed)
    : options_(options),
      feed_(feed),
      context_(zmq_ctx_new()),
      wake_fd_(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)),
      next_number_(feed->first_number()) {
  feed_->OnBatches([fd = wake_fd_] { eventfd_write(fd, 1); });
}

EventSockets::~EventSockets() {
  feed_->OnBatches([] {});
  if (publisher_ != nullptr) zmq_close(publisher_);
  if (replayer_ != nullptr) zmq_close(replayer_);
  zmq_ctx_term(context_);
  close(wake_fd_);
}

absl::StatusOr<std::unique_ptr<EventSockets>> EventSockets::Open(const EventSocketOptions& options,
                                                                 EventFeed* feed) {
  std::unique_ptr<EventSockets> sockets(new EventSockets(options, feed));
  if (absl::Status status = sockets->Bind(); !status.ok()) return status;
  return sockets;
}

absl::Status EventSockets::Bind() {
  constexpr int kHandshakeMs = 5000, kStuckMs = 60000, kLingerMs = 1000;
  const auto prepare = [](void* socket) {
    SetNumber(socket, ZMQ_LINGER, kLingerMs);
    SetNumber(socket, ZMQ_HANDSHAKE_IVL, kHandshakeMs);
    SetNumber(socket, ZMQ_TCP_MAXRT, kStuckMs);  // a peer that takes nothing is let go
    SetNumber(socket, ZMQ_TCP_KEEPALIVE, 1);
    const int64_t most = kMaxPeerBytes;
    zmq_setsockopt(socket, ZMQ_MAXMSGSIZE, &most, sizeof(most));
  };
  publisher_ = zmq_socket(context_, ZMQ_XPUB);
  prepare(publisher_);
  SetNumber(publisher_, ZMQ_SNDHWM, options_.high_water);
  SetNumber(publisher_, ZMQ_XPUB_VERBOSE, 1);  // tells of each subscriber, not of each topic
  if (absl::Status status = BindOne(publisher_, options_.publish); !status.ok()) return status;
  if (options_.replay.empty()) return absl::OkStatus();
  replayer_ = zmq_socket(context_, ZMQ_ROUTER);
  prepare(replayer_);
  SetNumber(replayer_, ZMQ_SNDHWM, kReplayHighWater);
  SetNumber(replayer_, ZMQ_RCVHWM, kReplayHighWater);
  SetNumber(replayer_, ZMQ_ROUTER_MANDATORY, 1);  // says when an asker takes no more
  return BindOne(replayer_, options_.replay);
}

std::string EventSockets::AddressOf(void* socket) {
  if (socket == nullptr) return "";
  char address[512];
  size_t size = sizeof(address);
  zmq_getsockopt(socket, ZMQ_LAST_ENDPOINT, address, &size);
  return address;
}

void EventSockets::Run(int stop_fd) {
  std::vector<zmq_pollitem_t> items = {{nullptr, stop_fd, ZMQ_POLLIN, 0},
                                       {nullptr, wake_fd_, ZMQ_POLLIN, 0},
                                       {publisher_, 0, ZMQ_POLLIN, 0}};
  if (replayer_ != nullptr) items.push_back({replayer_, 0, ZMQ_POLLIN, 0});
  while (true) {
    PublishNew();
    RepeatLast();
    GoOnWithReplays();
    const absl::Duration wait = Wait();
    const int64_t wait_ms =
        wait == absl::InfiniteDuration()
            ? -1
            : absl::ToInt64Milliseconds(absl::Ceil(wait, absl::Milliseconds(1)));
    zmq_poll(items.data(), static_cast<int>(items.size()), wait_ms);
    if ((items[0].revents & ZMQ_POLLIN) != 0) return PublishNew();
    eventfd_t woken = 0;
    if ((items[1].revents & ZMQ_POLLIN) != 0) eventfd_read(wake_fd_, &woken);
    ReadSubscriptions();
    if (replayer_ != nullptr) ReadRequests();
  }
}

absl::Duration EventSockets::Wait() const {
  if (feed_->next_number() > next_number_) return absl::ZeroDuration();
  absl::Duration wait = absl::InfiniteDuration();
  if (!replays_.empty()) wait = stalled_ ? kStallPause : absl::ZeroDuration();
  if (has_newcomer_) wait = std::min(wait, repeated_ + kRepeatPause - SteadyClock().Now());
  return std::max(wait, absl::ZeroDuration());
}

void EventSockets::PublishNew() {
  for (const KvBatch& batch : feed_->From(next_number_, kPublishedAtOnce)) {
    Publish(batch);
    next_number_ = batch.number + 1;
    has_newcomer_ = false;
  }
}

// Whoever has too much waiting already misses it, and sees that from the next number.
void EventSockets::Publish(const KvBatch& batch) {
  const NumberBytes number = BytesOf(batch.number);
  SendCopy(publisher_, options_.topic.data(), options_.topic.size(), ZMQ_SNDMORE);
  SendCopy(publisher_, number.data(), number.size(), ZMQ_SNDMORE);
  SendShared(publisher_, batch.payload);
}

void EventSockets::ReadSubscriptions() {
  for (int i = 0; i < kReadAtOnce; ++i) {
    const std::vector<std::string> parts = Receive(publisher_);
    if (parts.empty()) return;
    const std::string& message = parts[0];
    has_newcomer_ |= !message.empty() && message[0] == '\1' &&
                     absl::StartsWith(options_.topic, message.substr(1));
  }
}

void EventSockets::RepeatLast() {
  const absl::Time now = SteadyClock().Now();
  if (!has_newcomer_ || now - repeated_ < kRepeatPause) return;
  for (const KvBatch& last : feed_->From(next_number_ - 1, 1)) Publish(last);
  repeated_ = now;
  has_newcomer_ = false;
}

void EventSockets::ReadRequests() {
  for (int i = 0; i < kReadAtOnce; ++i) {
    const std::vector<std::string> parts = Receive(replayer_);
    if (parts.empty()) return;
    if (parts.size() != 3 || !parts[1].empty() || parts[2].size() != sizeof(NumberBytes)) continue;
    uint64_t number = 0;
    for (const char byte : parts[2]) number = number << 8 | static_cast<uint8_t>(byte);
    const auto same = std::find_if(replays_.begin(), replays_.end(),
                                   [&](const Replay& replay) { return replay.asker == parts[0]; });
    if (same != replays_.end()) replays_.erase(same);  // it asks anew
    if (replays_.size() < kMaxReplays + kMaxWaitingReplays) {
      replays_.push_back({parts[0], number, std::nullopt, SteadyClock().Now()});
    }
  }
}

void EventSockets::GoOnWithReplays() {
  stalled_ = true;
  for (size_t i = 0; i < std::min(replays_.size(), kMaxReplays);) {
    if (SendSome(&replays_[i])) {
      ++i;
    } else {
      replays_.erase(replays_.begin() + static_cast<ptrdiff_t>(i));
      stalled_ = false;
    }
  }
}

bool EventSockets::SendSome(Replay* replay) {
  const absl::Time now = SteadyClock().Now();
  if (!replay->left.has_value()) {
    const std::vector<KvBatch> batches = feed_->Replay(replay->number, absl::Now());
    replay->left.emplace(batches.begin(), batches.end());
    replay->left->push_back({kEndNumber, std::make_shared<const std::string>()});
    replay->moved = now;
  }
  for (int sent = 0; sent < kReplayHighWater; ++sent) {
    const KvBatch& batch = replay->left->front();
    if (!SendCopy(replayer_, replay->asker.data(), replay->asker.size(), ZMQ_SNDMORE)) {
      return zmq_errno() == EAGAIN && now - replay->moved < options_.patience;
    }
    const NumberBytes number = BytesOf(batch.number);
    SendCopy(replayer_, "", 0, ZMQ_SNDMORE);
    SendCopy(replayer_, number.data(), number.size(), ZMQ_SNDMORE);
    SendShared(replayer_, batch.payload);
    replay->left->pop_front();
    replay->moved = now;
    stalled_ = false;
    if (replay->left->empty()) return false;
  }
  return true;
}

}  // namespace hearth
