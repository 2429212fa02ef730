#include "services/serving/access/connection_acceptor.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <linux/tcp.h>
#include <malloc.h>
#include <netinet/in.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cassert>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace hearth {
namespace {

// Period of the checks. Between two checks a sender at 2 GB/s can exceed the limits by 40 MB.
constexpr int kCheckMs = 20;
constexpr int kEventsAtOnce = 64;
constexpr absl::Duration kTrimPause = absl::Seconds(5);

// First byte of a TLS connection (a ClientHello). Clear-text HTTP/2 begins with "PRI *".
constexpr unsigned char kTlsHandshake = 0x16;
// A fatal TLS alert, protocol_version, which every TLS client understands.
constexpr char kTlsAlert[] = {0x15, 0x03, 0x01, 0x00, 0x02, 0x02, 0x46};
// Answer to a client without TLS: an empty SETTINGS frame, which a client must receive first, and a
// GOAWAY frame with INADEQUATE_SECURITY and a text for people.
constexpr char kThisIsTls[] =
    "\0\0\0\x04\0\0\0\0\0"
    "\0\0\x1e\x07\0\0\0\0\0"
    "\0\0\0\0"
    "\0\0\0\x0c"
    "this server speaks TLS";
static_assert(sizeof(kThisIsTls) - 1 == 9 + 9 + 0x1e);

// Name of a connection's other end, as gRPC writes it. Admission finds the connection of a call by
// this name: "ipv4:127.0.0.1:4711", "ipv6:%5B::1%5D:4711".
std::string PeerName(const sockaddr_storage& address) {
  char text[INET6_ADDRSTRLEN] = "";
  if (address.ss_family == AF_INET) {
    const auto& v4 = reinterpret_cast<const sockaddr_in&>(address);
    inet_ntop(AF_INET, &v4.sin_addr, text, sizeof(text));
    return absl::StrCat("ipv4:", text, ":", ntohs(v4.sin_port));
  }
  const auto& v6 = reinterpret_cast<const sockaddr_in6&>(address);
  if (IN6_IS_ADDR_V4MAPPED(&v6.sin6_addr)) {
    inet_ntop(AF_INET, &v6.sin6_addr.s6_addr[12], text, sizeof(text));
    return absl::StrCat("ipv4:", text, ":", ntohs(v6.sin6_port));
  }
  inet_ntop(AF_INET6, &v6.sin6_addr, text, sizeof(text));
  return absl::StrCat("ipv6:%5B", text, "%5D:", ntohs(v6.sin6_port));
}

// Returns the bytes that the kernel received and sent on the socket; zeros if it is not a TCP
// socket.
ConnectionTracker::KernelBytes KernelBytesOf(int fd) {
  tcp_info info;
  std::memset(&info, 0, sizeof(info));
  socklen_t bytes = sizeof(info);
  if (getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &bytes) != 0) return {};
  return {info.tcpi_bytes_received, info.tcpi_bytes_acked};
}

// Shuts down both directions of the socket and discards unread bytes. A process or thread that
// holds a duplicate descriptor sees the end of the connection.
void CutSocket(int fd) {
  shutdown(fd, SHUT_RDWR);
  while (recv(fd, nullptr, size_t{1} << 20, MSG_DONTWAIT | MSG_TRUNC) > 0) {
  }
}

// Returns true if an error of accept concerns only one connection, or if no connection was waiting:
// accept may be called again at once. For any other error, the process or the machine does not have
// descriptors or memory, and the listener stays ready.
bool IsPerConnectionError(int error) {
  return error != EMFILE && error != ENFILE && error != ENOBUFS && error != ENOMEM;
}

}  // namespace

absl::StatusOr<std::unique_ptr<ConnectionAcceptor>> ConnectionAcceptor::Open(Options options) {
  std::unique_ptr<ConnectionAcceptor> acceptor(new ConnectionAcceptor(std::move(options)));
  if (acceptor->poll_ < 0 || acceptor->wake_ < 0) {
    return CannotListen(acceptor->options_.listen, "", std::strerror(errno));
  }
  if (absl::Status status = acceptor->listeners_.Open(); !status.ok()) return status;
  return acceptor;
}

ConnectionAcceptor::ConnectionAcceptor(Options options)
    : options_(std::move(options)),
      clock_(options_.clock == nullptr ? &steady_clock_ : options_.clock),
      poll_(epoll_create1(EPOLL_CLOEXEC)),
      wake_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
      listeners_(options_.listen) {
  assert(options_.tracker != nullptr);
}

ConnectionAcceptor::~ConnectionAcceptor() {
  if (thread_.joinable()) {
    eventfd_write(wake_, 1);
    thread_.join();
  }
  // Close only the acceptor's descriptors: gRPC has duplicates, and ends these connections itself.
  for (const auto& [fd, entry] : entries_) {
    if (entry.connection != nullptr) options_.tracker->Remove(entry.connection);
    close(fd);
  }
  if (poll_ >= 0) close(poll_);
  if (wake_ >= 0) close(wake_);
}

void ConnectionAcceptor::Start() {
  assert(!thread_.joinable() && options_.take != nullptr && options_.on_refused != nullptr);
  Watch(wake_, EPOLLIN, true);
  for (const int fd : listeners_.fds()) Watch(fd, EPOLLIN, true);
  thread_ = std::thread([this] { Run(); });
}

bool ConnectionAcceptor::Watch(int fd, uint32_t events, bool is_new, uint32_t number) {
  epoll_event event{};
  event.events = events;
  event.data.u64 = uint64_t{number} << 32 | static_cast<uint32_t>(fd);
  return epoll_ctl(poll_, is_new ? EPOLL_CTL_ADD : EPOLL_CTL_MOD, fd, &event) == 0;
}

void ConnectionAcceptor::Run() {
  epoll_event events[kEventsAtOnce];
  absl::Time next_check = clock_->Now();
  for (;;) {
    const bool is_quiet = entries_.empty() && !closed_some_ && !is_accept_paused_;
    const int count = epoll_wait(poll_, events, kEventsAtOnce, is_quiet ? -1 : kCheckMs);
    for (int i = 0; i < count; ++i) {
      const int fd = static_cast<int>(static_cast<uint32_t>(events[i].data.u64));
      if (fd == wake_) return;
      const std::vector<int>& listeners = listeners_.fds();
      const bool is_listener = std::find(listeners.begin(), listeners.end(), fd) != listeners.end();
      if (is_listener) {
        Accept(fd);
      } else {
        OnReady(fd, static_cast<uint32_t>(events[i].data.u64 >> 32), events[i].events);
      }
    }
    const absl::Time now = clock_->Now();
    if (now < next_check) continue;
    next_check = now + absl::Milliseconds(kCheckMs);
    CheckConnections(now);
  }
}

void ConnectionAcceptor::Accept(int listener) {
  sockaddr_storage address;
  socklen_t bytes = sizeof(address);
  const int fd = accept4(listener, reinterpret_cast<sockaddr*>(&address), &bytes,
                         SOCK_NONBLOCK | SOCK_CLOEXEC);
  if (fd < 0) return IsPerConnectionError(errno) ? void() : PauseAccepting();
  const absl::Time now = clock_->Now();
  const uint32_t number = ++last_number_;
  std::string peer;
  if (listeners_.is_local()) {
    // gRPC gives all unix connections the same name, "unix:"
    peer = absl::StrCat("unix:#", number);
  } else {
    SetOn(fd, IPPROTO_TCP, TCP_NODELAY);
    peer = PeerName(address);
  }
  const std::shared_ptr<Connection> newcomer = options_.tracker->Add(peer, fd, now);
  const bool is_new = entries_.emplace(fd, Entry{newcomer, listener, number, now}).second;
  assert(is_new);  // Close erases the entry of a descriptor
  if (options_.tracker->connections() > options_.tracker->limits().connections) {
    const std::shared_ptr<Connection> goes = options_.tracker->FindReplaceable(*newcomer, now);
    const std::string why =
        absl::StrCat("limit of ", options_.tracker->limits().connections, " connections reached");
    const auto it = goes != nullptr ? entries_.find(goes->fd()) : entries_.end();
    if (it == entries_.end()) return Refuse(fd, why);
    options_.on_refused(goes->peer(), why + ": closing the oldest idle connection");
    if (it->second.awaits_first_byte) {
      Close(goes->fd());
    } else {
      CutSocket(goes->fd());
    }
  }
  if (!Watch(fd, EPOLLIN | EPOLLRDHUP, true, number)) CloseForErrno(fd);
}

// Called if no descriptor or memory is free: new connections wait in the kernel until the next
// check. The listeners stay ready, so they are not watched until then.
void ConnectionAcceptor::PauseAccepting() {
  options_.on_refused("", absl::StrCat("accept failed: ", std::strerror(errno)));
  is_accept_paused_ = true;
  for (const int fd : listeners_.fds()) Watch(fd, 0, false);
}

void ConnectionAcceptor::Refuse(int fd, const std::string& why) {
  options_.on_refused(entries_.at(fd).connection->peer(), why);
  Close(fd);
}

void ConnectionAcceptor::Close(int fd) {
  const auto it = entries_.find(fd);
  if (it == entries_.end()) return;
  assert(it->second.connection != nullptr);
  options_.tracker->Remove(it->second.connection);
  // Stop watching: while a call runs, gRPC's duplicate keeps the socket open, and epoll would
  // report its end again and again.
  epoll_ctl(poll_, EPOLL_CTL_DEL, fd, nullptr);
  close(fd);
  entries_.erase(it);
}

void ConnectionAcceptor::CloseForErrno(int fd) {
  Refuse(fd, absl::StrCat("closed after an error: ", std::strerror(errno)));
}

void ConnectionAcceptor::OnReady(int fd, uint32_t number, uint32_t events) {
  const auto it = entries_.find(fd);
  // Since epoll reported the event, the descriptor may have been given to another connection.
  if (it == entries_.end() || it->second.number != number) return;
  // Both directions are shut down: gRPC has ended the connection, or the client is gone.
  if ((events & (EPOLLHUP | EPOLLERR)) != 0) return Close(fd);
  if (it->second.is_closing) return Drain(fd);
  if (it->second.awaits_first_byte) OnFirstByte(fd, &it->second);
}

void ConnectionAcceptor::OnFirstByte(int fd, Entry* entry) {
  unsigned char first = 0;
  if (recv(fd, &first, 1, MSG_PEEK) != 1) return Close(fd);
  if ((first == kTlsHandshake) != options_.speaks_tls) return RejectTlsMismatch(fd, entry);
  HandOver(fd, entry);
}

void ConnectionAcceptor::HandOver(int fd, Entry* entry) {
  assert(entry->awaits_first_byte && !entry->is_closing);
  const int handed = fcntl(fd, F_DUPFD_CLOEXEC, 0);
  if (handed < 0) return CloseForErrno(fd);
  if (!Watch(fd, 0, false,
             entry->number)) {  // from now on, epoll reports only the end of the connection
    CloseForErrno(fd);
    close(handed);
    return;
  }
  entry->awaits_first_byte = false;
  if (listeners_.is_local()) {
    // The calls of a unix connection are not known, so it counts as busy and never makes room.
    entry->connection->MarkAuthenticated();
    entry->connection->CallBegins(/*is_upload=*/false);
  }
  options_.take(entry->listener, handed);
}

// Called if only one of client and server uses TLS. Answers in the client's protocol, then closes.
void ConnectionAcceptor::RejectTlsMismatch(int fd, Entry* entry) {
  const absl::string_view answer = options_.speaks_tls
                                       ? absl::string_view(kThisIsTls, sizeof(kThisIsTls) - 1)
                                       : absl::string_view(kTlsAlert, sizeof(kTlsAlert));
  options_.on_refused(entry->connection->peer(),
                      options_.speaks_tls ? "the client does not use TLS; this server requires it"
                                          : "the client uses TLS; this server does not");
  send(fd, answer.data(), answer.size(), MSG_NOSIGNAL);
  shutdown(fd, SHUT_WR);
  // If a socket is closed over unread bytes, the kernel discards the answer. So the acceptor reads
  // until the client closes the connection, or until its time is up.
  assert(entry->awaits_first_byte && !entry->is_closing);
  entry->is_closing = true;
  Drain(fd);
}

void ConnectionAcceptor::Drain(int fd) {
  char unread[4096];
  const ssize_t count = recv(fd, unread, sizeof(unread), 0);
  if (count == 0 || (count < 0 && errno != EAGAIN && errno != EINTR)) Close(fd);
}

void ConnectionAcceptor::CheckConnections(absl::Time now) {
  if (std::exchange(is_accept_paused_, false)) {
    for (const int fd : listeners_.fds()) Watch(fd, EPOLLIN, false);
  }
  std::vector<int> silent;
  for (const auto& [fd, entry] : entries_) {
    if (entry.awaits_first_byte && now - entry.since > options_.first_byte) silent.push_back(fd);
  }
  for (const int fd : silent) Close(fd);
  const auto excessive = options_.tracker->FindExcessive(now, [this](const Connection& asked) {
    const auto it = entries_.find(asked.fd());
    // Before its first byte, a connection was not handed to gRPC, which can hold no bytes of it.
    if (it == entries_.end() || it->second.awaits_first_byte)
      return ConnectionTracker::KernelBytes();
    return KernelBytesOf(asked.fd());
  });
  for (const ConnectionTracker::Excess& excess : excessive) {
    options_.on_refused(excess.connection->peer(), excess.why);
    CutSocket(excess.connection->fd());
    closed_some_ = true;
  }
  // After kTrimPause gRPC has freed the memory of the closed connections, but malloc keeps it.
  if (!excessive.empty()) trimmed_ = now;
  if (closed_some_ && now - trimmed_ > kTrimPause) {
    closed_some_ = false;
    // On another thread, because trimming 150 MiB takes 50 to 120 ms on a busy machine.
    trimmer_.TrySchedule(
        0, options_.trim != nullptr ? options_.trim : [] { malloc_trim(0); });
  }
}

}  // namespace hearth
