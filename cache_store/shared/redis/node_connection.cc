#include "cache_store/shared/redis/node_connection.h"

#include <algorithm>
#include <array>
#include <cassert>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "cache_store/shared/redis/redis_reply.h"

namespace hearth {
namespace {

// A shorter piece of what is to be sent is joined with those behind it.
constexpr size_t kShortBytes = size_t{16} << 10;
constexpr size_t kReadBytes = size_t{64} << 10;
// Read of one connection before the others have their turn.
constexpr size_t kReadAtOnce = size_t{1} << 20;
// Written to one connection before the others have their turn.
constexpr size_t kWrittenAtOnce = size_t{64} << 10;
// A connection that moves fewer bytes in its time of silence is taken to be silent.
constexpr size_t kProgressBytes = size_t{64} << 10;

}  // namespace

NodeConnection::NodeConnection(RedisParts* parts, const NodeAddress& node, uint32_t attempt,
                               Owner* owner)
    : parts_(parts), node_(node), attempt_(attempt), owner_(owner), reader_(&parts->texts) {}

NodeConnection::~NodeConnection() {
  if (transport_ != nullptr) parts_->loop.Forget(transport_->fd());
}

void NodeConnection::Open() {
  assert(phase_ == Phase::kNew);
  phase_ = Phase::kConnecting;
  parts_->resolver.Resolve(node_, [this, lives = std::weak_ptr<char>(lives_)](auto addresses) {
    if (!lives.expired() && phase_ == Phase::kConnecting) Connect(std::move(addresses));
  });
}

void NodeConnection::Connect(absl::StatusOr<HostResolver::Addresses> addresses) {
  if (!addresses.ok()) return Close(addresses.status());
  SslHandle ssl;
  if (parts_->options.use_tls) {
    absl::StatusOr<SslHandle> made = parts_->tls.Make(node_.host);
    if (!made.ok()) return Close(made.status());
    ssl = *std::move(made);
  }
  const SocketAddress& address = (*addresses)[attempt_ % addresses->size()];
  absl::StatusOr<std::unique_ptr<Transport>> transport =
      Transport::Connect(address, std::move(ssl));
  if (!transport.ok()) return Close(transport.status());
  transport_ = *std::move(transport);
  parts_->loop.Watch(transport_->fd(), transport_->Awaited(false), this);
}

// Who we are, our name for people, and whether the node serves at all.
void NodeConnection::Greet() {
  phase_ = Phase::kGreeting;
  const RedisOptions& options = parts_->options;
  absl::StatusOr<std::string> password = parts_->password.Text();
  if (!password.ok()) return Close(password.status());
  std::vector<std::vector<absl::string_view>> commands;
  if (!password->empty() && !options.user.empty()) {
    commands.push_back({"AUTH", options.user, *password});
  } else if (!password->empty()) {
    commands.push_back({"AUTH", *password});
  }
  commands.push_back({"CLIENT", "SETNAME", "hearth-store"});
  commands.push_back({"PING"});
  for (const auto& words : commands) {
    const bool is_last = &words == &commands.back();
    Send(FormatCommand(words), {}, 0,
         [this, is_last](const absl::StatusOr<RedisReply>& reply) { OnGreeting(reply, is_last); });
  }
}

// A user who may only touch keys is refused the name and the ping: that is an answer, too.
void NodeConnection::OnGreeting(const absl::StatusOr<RedisReply>& reply, bool is_last) {
  if (!reply.ok() || phase_ != Phase::kGreeting) return;  // it is being closed
  if (reply->kind == RedisReply::Kind::kError && !absl::StartsWith(reply->text, "NOPERM")) {
    return Close(StatusOfError(reply->text));
  }
  if (!is_last) return;
  phase_ = Phase::kOpen;
  opened_ = parts_->loop.Now();
  owner_->OnOpen();
}

void NodeConnection::Send(std::string command, const ReplyLimits& limits, uint64_t cost,
                          Done done) {
  assert(phase_ == Phase::kGreeting || phase_ == Phase::kOpen);
  if (awaited_.empty()) {
    last_progress_ = parts_->loop.Now();
    moved_bytes_ = 0;
  }
  output_.Append(std::move(command));
  awaited_.push_back({limits, cost, std::move(done)});
  bytes_in_flight_ += cost;
  Later(&flushes_, &NodeConnection::Flush);  // together with what else is sent now
}

void NodeConnection::Later(bool* is_to_be, void (NodeConnection::*task)()) {
  if (std::exchange(*is_to_be, true)) return;
  parts_->loop.Post([this, is_to_be, task, lives = std::weak_ptr<char>(lives_)] {
    if (lives.expired()) return;
    *is_to_be = false;
    if (phase_ != Phase::kClosed) (this->*task)();
  });
}

void NodeConnection::Close(const absl::Status& why) {
  if (phase_ == Phase::kClosed) return;
  phase_ = Phase::kClosed;
  if (transport_ != nullptr) {
    parts_->loop.Forget(transport_->fd());
    transport_.reset();
  }
  const absl::Status named(why.code(), absl::StrCat("redis ", node_.Text(), ": ", why.message()));
  const std::deque<Awaited> awaited = std::exchange(awaited_, {});
  bytes_in_flight_ = 0;
  for (const Awaited& each : awaited) {
    if (each.done != nullptr) each.done(named);
  }
  owner_->OnClosed(named);
}

void NodeConnection::OnReady(uint32_t events) {
  if (phase_ == Phase::kConnecting) {
    const absl::StatusOr<bool> established = transport_->Establish();
    if (!established.ok()) return Close(established.status());
    if (*established) Greet();
  } else {
    if ((events & (EPOLLIN | EPOLLERR | EPOLLHUP)) != 0) Receive();
    if (phase_ != Phase::kClosed && (events & EPOLLOUT) != 0) Flush();
  }
  if (phase_ == Phase::kClosed) return;
  parts_->loop.Watch(transport_->fd(), transport_->Awaited(!output_.empty()), this);
}

void NodeConnection::Moved(size_t bytes) {
  moved_bytes_ += bytes;
  if (moved_bytes_ < kProgressBytes) return;
  moved_bytes_ = 0;
  last_progress_ = parts_->loop.Now();
}

void NodeConnection::Flush() {
  for (size_t left = kWrittenAtOnce; left > 0 && !output_.empty();) {
    absl::string_view piece = *output_.chunk_begin();
    std::string joined;
    if (piece.size() < std::min(kShortBytes, output_.size())) {
      piece = joined = std::string(output_.Subcord(0, kWrittenAtOnce));
    }
    const absl::StatusOr<size_t> written = transport_->Write(piece.substr(0, left));
    if (!written.ok()) return Close(written.status());
    if (*written == 0) break;
    output_.RemovePrefix(*written);
    left -= *written;
    parts_->counters.sent_bytes += *written;
    Moved(*written);
  }
  parts_->loop.Watch(transport_->fd(), transport_->Awaited(!output_.empty()), this);
  if (phase_ == Phase::kOpen && !has_enough_to_send()) owner_->OnMoved();
}

void NodeConnection::Receive() {
  std::array<char, kReadBytes> bytes;
  size_t left = kReadAtOnce;
  while (left > 0) {
    // The end of a long text is read together with what comes after it.
    const absl::Span<char> room = reader_.Room();
    const bool is_direct = room.size() > bytes.size();
    const absl::Span<char> into = is_direct ? room : absl::MakeSpan(bytes);
    const absl::StatusOr<size_t> read = transport_->Read(into.data(), into.size());
    if (!read.ok()) return Close(read.status());
    if (*read == 0) break;
    left -= std::min(left, *read);
    Moved(*read);
    if (is_direct) {
      reader_.Filled(*read);
    } else {
      reader_.Feed(bytes.data(), *read);
    }
    if (!TakeReplies()) return;
    // TLS gives a record at a time; a socket that gave less than it could has no more.
    if (!parts_->options.use_tls && *read < into.size()) break;
  }
  // After the others have had their turn.
  if (left == 0 && transport_->HasUnread()) Later(&receives_, &NodeConnection::ReceiveMore);
  if (phase_ == Phase::kOpen) owner_->OnMoved();
}

// Whether the connection is still there.
bool NodeConnection::TakeReplies() {
  while (!awaited_.empty() && reader_.HasBytes()) {
    absl::StatusOr<std::optional<RedisReply>> reply = reader_.Next(awaited_.front().limits);
    if (!reply.ok()) {
      Close(reply.status());
      return false;
    }
    if (!reply->has_value()) return true;
    last_progress_ = parts_->loop.Now();
    moved_bytes_ = 0;
    const Done done = std::move(awaited_.front().done);
    bytes_in_flight_ -= awaited_.front().cost;
    awaited_.pop_front();
    if (done != nullptr) done(*std::move(*reply));
    if (phase_ == Phase::kClosed) return false;
  }
  if (awaited_.empty() && reader_.HasBytes()) {
    Close(absl::DataLossError("it answers what nobody asked"));
    return false;
  }
  return true;
}

}  // namespace hearth
