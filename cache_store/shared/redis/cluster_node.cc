#include "cache_store/shared/redis/cluster_node.h"

#include <sys/epoll.h>

#include <algorithm>
#include <array>
#include <cassert>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "cache_store/shared/redis/cluster_router.h"
#include "cache_store/shared/redis/slot_map.h"

namespace hearth {
namespace {

constexpr absl::Duration kLookPause = absl::Milliseconds(100);
// Interval of pings to an idle node, so that a lost node is noticed before a caller needs it.
constexpr absl::Duration kHeartbeat = absl::Seconds(1);
// Longest pause between two attempts to reach a node that has never served, in multiples of the
// first pause. The pause grows because a slot map may name hundreds of absent nodes.
constexpr uint32_t kLongestPause = 8;

// Limit of the bytes of unanswered commands and their replies on one connection.
constexpr uint64_t kInFlightBytesMax = uint64_t{32} << 20;
// If this many bytes wait to be sent, further commands stay in the queue.
constexpr size_t kUnsentBytes = size_t{256} << 10;
// Pieces of output shorter than this are copied and joined with the following pieces.
constexpr size_t kShortBytes = size_t{16} << 10;
constexpr size_t kReadBytes = size_t{64} << 10;
// Limit of bytes read from or written to one connection before the loop serves other connections.
constexpr size_t kReadAtOnce = size_t{1} << 20, kWrittenAtOnce = size_t{64} << 10;
// A connection that moves fewer bytes than this within the time limit counts as silent.
constexpr size_t kProgressBytes = size_t{64} << 10;

}  // namespace

ClusterNode::Connection::~Connection() {
  if (transport != nullptr) parts->loop.Forget(transport->fd());
}

ClusterNode::ClusterNode(RedisParts* parts, const NodeAddress& address, Lane lane,
                         ClusterRouter* router)
    : parts_(parts),
      address_(address),
      lane_(lane),
      router_(router),
      last_used_(parts->loop.Now()) {
  // Make the first attempt in a later task, because it reports to the router, which must know this
  // node by then.
  attempt_timer_ = parts_->loop.At(Now(), [this] { Attempt(); });
}

ClusterNode::~ClusterNode() {
  EndAttempt();
  if (look_timer_.has_value()) parts_->loop.Cancel(*look_timer_);
}

bool ClusterNode::IsIdle() const {
  return waiting_.empty() && (connection_ == nullptr || connection_->awaited.empty());
}

void ClusterNode::EndAttempt() {
  if (attempt_timer_.has_value()) parts_->loop.Cancel(*attempt_timer_);
  attempt_timer_.reset();
}

void ClusterNode::Attempt() {
  assert(connection_ == nullptr);
  if (attempts_++ > 0) ++parts_->counters.reconnects;
  connection_ = std::make_shared<Connection>(parts_);
  attempt_timer_ = parts_->loop.At(Now() + parts_->options.connect_wait, [this] {
    Close(absl::UnavailableError("connecting timed out"));
  });
  parts_->resolver.Resolve(address_,
                           [this, of = std::weak_ptr<Connection>(connection_)](auto addresses) {
                             if (!of.expired()) Connect(std::move(addresses));
                           });
}

void ClusterNode::Connect(absl::StatusOr<HostResolver::Addresses> addresses) {
  if (!addresses.ok()) return Close(addresses.status());
  SslHandle ssl;
  if (parts_->options.use_tls) {
    absl::StatusOr<SslHandle> tls = parts_->tls.Make(address_.host);
    if (!tls.ok()) return Close(tls.status());
    ssl = *std::move(tls);
  }
  // Try the addresses of the host one after another.
  assert(attempts_ > 0 && !addresses->empty());
  const SocketAddress& address = (*addresses)[(attempts_ - 1) % addresses->size()];
  absl::StatusOr<std::unique_ptr<Transport>> transport =
      Transport::Connect(address, std::move(ssl));
  if (!transport.ok()) return Close(transport.status());
  connection_->transport = *std::move(transport);
  const Transport& made = *connection_->transport;
  parts_->loop.Watch(made.fd(), made.Awaited(false), this);
}

// Sends the first commands of a connection: authentication, the client's name, and a ping that
// shows whether the node serves.
void ClusterNode::Greet() {
  connection_->phase = Phase::kGreeting;
  const RedisOptions& options = parts_->options;
  absl::StatusOr<std::string> password = parts_->password.Get();
  if (!password.ok()) return Close(password.status());
  std::vector<std::string> commands;
  if (!password->empty()) {
    commands.push_back(options.user.empty() ? FormatCommand({"AUTH", *password})
                                            : FormatCommand({"AUTH", options.user, *password}));
  }
  commands.push_back(FormatCommand({"CLIENT", "SETNAME", "hearth-store"}));
  commands.push_back(FormatCommand({"PING"}));
  for (std::string& command : commands) {
    const bool is_last = &command == &commands.back();
    SendText(std::move(command), {}, 0, [this, is_last](const absl::StatusOr<RedisReply>& reply) {
      OnGreeting(reply, is_last);
    });
  }
}

// Handles a reply to a first command. NOPERM counts as success, because a restricted user may not
// have the rights for setting the name and for the ping.
void ClusterNode::OnGreeting(const absl::StatusOr<RedisReply>& reply, bool is_last) {
  if (!reply.ok()) return;  // the connection is being closed; nothing to do
  if (reply->kind == RedisReply::Kind::kError && !absl::StartsWith(reply->text, "NOPERM")) {
    return Close(StatusOfError(reply->text));
  }
  if (!is_last) return;
  assert(connection_ != nullptr && connection_->phase == Phase::kGreeting);
  connection_->phase = Phase::kOpen;
  connection_->opened = Now();
  EndAttempt();
  look_timer_ = parts_->loop.At(Now() + kLookPause, [this] { Look(); });
  quiet_looks_ = 0;
  refuses_ = false;
  router_->OnNodeUp(this);
  Pump();
}

void ClusterNode::Close(const absl::Status& why) {
  if (connection_ == nullptr) return;
  const ConnectionPtr gone = std::exchange(connection_, nullptr);
  EndAttempt();
  if (look_timer_.has_value()) parts_->loop.Cancel(*look_timer_);
  look_timer_.reset();
  const absl::Status named(why.code(),
                           absl::StrCat("redis ", address_.Text(), ": ", why.message()));
  for (const Awaited& each : gone->awaited) {
    if (each.done != nullptr) each.done(named);
  }
  const absl::Duration pause = parts_->options.probe_pause;
  const bool was_open = gone->phase == Phase::kOpen;
  // A node that served until now is tried again at once; any other node only after a pause.
  const bool served = was_open && Now() - gone->opened >= pause && !IsSilent();
  has_served_ |= was_open;
  const uint32_t times =
      has_served_ ? 1 : std::min(kLongestPause, 1u << std::min(attempts_ - 1, 8u));
  attempt_timer_ = parts_->loop.At(Now() + (served ? absl::ZeroDuration() : times * pause),
                                   [this] { Attempt(); });
  if (!served) Refuse(named);
}

void ClusterNode::Refuse(const absl::Status& why) {
  const bool is_new = !std::exchange(refuses_, true);
  why_refuses_ = why;
  std::deque<KeyRequest> waiting;
  waiting.swap(waiting_);
  for (const KeyRequest& request : waiting) router_->OnAnswer(this, request, why);
  if (is_new) router_->OnNodeDown(this);
}

void ClusterNode::Send(const KeyRequest& request) {
  last_used_ = Now();
  if (refuses_) return router_->OnAnswer(this, request, why_refuses_);
  waiting_.push_back(request);
  Pump();
}

void ClusterNode::Pump() {
  while (!waiting_.empty() && IsUp() && connection_->output.size() < kUnsentBytes) {
    const KeyRequest& next = waiting_.front();
    if (next.IsWanted()) {
      const uint64_t under_way = connection_->bytes_in_flight;
      const uint64_t cost = next.command().Cost();
      if (under_way > 0 && under_way + cost > kInFlightBytesMax) return;
      SendNow(next);
    }
    waiting_.pop_front();
  }
}

void ClusterNode::SendNow(const KeyRequest& request) {
  const KeyCommand& command = request.command();
  if (request.asks) SendText(FormatCommand({"ASKING"}), {}, 0, nullptr);
  SendText(command.Format(), command.Limits(), command.Cost(),
           [this, request](absl::StatusOr<RedisReply> reply) {
             router_->OnAnswer(this, request, std::move(reply));
           });
}

void ClusterNode::RequestSlots(Done done) {
  assert(IsUp());
  SendText(FormatCommand({"CLUSTER", "SLOTS"}), kSlotMapLimits, 0, std::move(done));
}

void ClusterNode::SendText(std::string command, const ReplyLimits& limits, uint64_t cost,
                           Done done) {
  assert(connection_ != nullptr && connection_->phase != Phase::kConnecting);
  if (connection_->awaited.empty()) {
    connection_->last_progress = Now();
    connection_->moved_bytes = 0;
  }
  connection_->output.Append(std::move(command));
  connection_->awaited.push_back({limits, cost, std::move(done)});
  connection_->bytes_in_flight += cost;
  Later(&Connection::flushes,
        &ClusterNode::Flush);  // runs after this task, so that several commands are sent together
}

void ClusterNode::Later(bool Connection::*is_to_be, void (ClusterNode::*task)()) {
  if (std::exchange((*connection_).*is_to_be, true)) return;
  parts_->loop.Post([this, is_to_be, task, of = std::weak_ptr<Connection>(connection_)] {
    const ConnectionPtr connection = of.lock();
    if (connection == nullptr || connection != connection_) return;
    (*connection).*is_to_be = false;
    (this->*task)();
  });
}

void ClusterNode::OnReady(uint32_t events) {
  const ConnectionPtr held = connection_;
  if (held->phase == Phase::kConnecting) {
    const absl::StatusOr<bool> established = held->transport->Establish();
    if (!established.ok()) return Close(established.status());
    if (*established) Greet();
  } else {
    if ((events & (EPOLLIN | EPOLLERR | EPOLLHUP)) != 0) Receive();
    if (connection_ != nullptr && (events & EPOLLOUT) != 0) Flush();
  }
  if (connection_ == nullptr) return;
  const Transport& transport = *held->transport;
  parts_->loop.Watch(transport.fd(), transport.Awaited(!held->output.empty()), this);
}

void ClusterNode::Moved(size_t bytes) {
  assert(connection_ != nullptr);
  connection_->moved_bytes += bytes;
  if (connection_->moved_bytes < kProgressBytes) return;
  connection_->moved_bytes = 0;
  connection_->last_progress = Now();
}

void ClusterNode::Flush() {
  const ConnectionPtr held = connection_;
  absl::Cord& output = held->output;
  for (size_t left = kWrittenAtOnce; left > 0 && !output.empty();) {
    absl::string_view piece = *output.chunk_begin();
    std::string joined;
    if (piece.size() < std::min(kShortBytes, output.size())) {
      piece = joined = std::string(output.Subcord(0, kWrittenAtOnce));
    }
    const absl::StatusOr<size_t> written = held->transport->Write(piece.substr(0, left));
    if (!written.ok()) return Close(written.status());
    if (*written == 0) break;
    assert(*written <= left && *written <= output.size());
    output.RemovePrefix(*written);
    left -= *written;
    parts_->counters.sent_bytes += *written;
    Moved(*written);
  }
  parts_->loop.Watch(held->transport->fd(), held->transport->Awaited(!output.empty()), this);
  Pump();
}

void ClusterNode::Receive() {
  const ConnectionPtr held = connection_;
  std::array<char, kReadBytes> bytes;
  size_t left = kReadAtOnce;
  while (left > 0) {
    // If only a little of a long text is missing, read it together with the bytes that follow.
    const absl::Span<char> room = held->reader.Room();
    const bool is_direct = room.size() > bytes.size();
    const absl::Span<char> into = is_direct ? room : absl::MakeSpan(bytes);
    const absl::StatusOr<size_t> read = held->transport->Read(into.data(), into.size());
    if (!read.ok()) return Close(read.status());
    if (*read == 0) break;
    assert(*read <= into.size());
    left -= std::min(left, *read);
    Moved(*read);
    if (is_direct) {
      held->reader.Filled(*read);
    } else {
      held->reader.Feed(bytes.data(), *read);
    }
    TakeReplies();
    if (connection_ == nullptr) return;
    // A TLS read returns one record, so read again. If a plain socket returned less than requested,
    // it has no more bytes.
    if (!parts_->options.use_tls && *read < into.size()) break;
  }
  // Continue after the other connections were served.
  if (left == 0 && held->transport->HasUnread()) {
    Later(&Connection::receives, &ClusterNode::ReceiveMore);
  }
  Pump();
}

void ClusterNode::ReceiveMore() { OnReady(EPOLLIN); }

void ClusterNode::TakeReplies() {
  const ConnectionPtr held = connection_;
  std::deque<Awaited>& awaited = held->awaited;
  while (!awaited.empty() && held->reader.HasBytes()) {
    absl::StatusOr<std::optional<RedisReply>> reply = held->reader.Next(awaited.front().limits);
    if (!reply.ok()) return Close(reply.status());
    if (!reply->has_value()) return;
    held->last_progress = Now();
    held->moved_bytes = 0;
    const Done done = std::move(awaited.front().done);
    assert(held->bytes_in_flight >= awaited.front().cost);
    held->bytes_in_flight -= awaited.front().cost;
    awaited.pop_front();
    if (done != nullptr) done(*std::move(*reply));
    if (connection_ == nullptr) return;
  }
  if (awaited.empty() && held->reader.HasBytes()) {
    Close(absl::DataLossError("the server sent a reply without a request"));
  }
}

bool ClusterNode::IsSilent() const { return quiet_looks_ * kLookPause >= parts_->options.silence; }

// Checks whether an open connection is alive. Silence is counted in checks instead of time, because
// a delay of the loop itself must not count as the node's silence.
void ClusterNode::Look() {
  look_timer_ = parts_->loop.At(Now() + kLookPause, [this] { Look(); });
  const absl::Time progress = connection_->last_progress;
  quiet_looks_ = std::exchange(seen_progress_, progress) == progress ? quiet_looks_ + 1 : 0;
  if (connection_->awaited.empty()) {
    quiet_looks_ = 0;
    if (Now() - progress >= kHeartbeat) SendText(FormatCommand({"PING"}), {}, 0, nullptr);
    return;
  }
  if (IsSilent()) Close(absl::UnavailableError("the server does not answer"));
}

}  // namespace hearth
