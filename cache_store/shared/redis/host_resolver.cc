#include "cache_store/shared/redis/host_resolver.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/epoll.h>
#include <sys/time.h>

#include <cassert>
#include <cstring>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"

namespace hearth {
namespace {

// A name server is asked twice, within the time that a connection may take to be made.
constexpr int kAnswerMs = 400;
constexpr int kTries = 2;

absl::Status NoAddress(const NodeAddress& node, absl::string_view why) {
  return absl::UnavailableError(absl::StrCat("redis: no address of ", node.host, ": ", why));
}

std::optional<SocketAddress> Numeric(const NodeAddress& node) {
  SocketAddress address;
  auto* v4 = reinterpret_cast<sockaddr_in*>(&address.storage);
  auto* v6 = reinterpret_cast<sockaddr_in6*>(&address.storage);
  if (inet_pton(AF_INET, node.host.c_str(), &v4->sin_addr) == 1) {
    v4->sin_family = AF_INET;
    v4->sin_port = htons(node.port);
    address.bytes = sizeof(*v4);
  } else if (inet_pton(AF_INET6, node.host.c_str(), &v6->sin6_addr) == 1) {
    v6->sin6_family = AF_INET6;
    v6->sin6_port = htons(node.port);
    address.bytes = sizeof(*v6);
  } else {
    return std::nullopt;
  }
  return address;
}

}  // namespace

struct HostResolver::Question {
  HostResolver* resolver;
  NodeAddress node;
  Done done;
};

HostResolver::HostResolver(EventLoop* loop) : loop_(loop) {
  ares_options options = {};
  options.timeout = kAnswerMs;
  options.tries = kTries;
  options.sock_state_cb = &OnSocket;
  options.sock_state_cb_data = this;
  const int masks = ARES_OPT_TIMEOUTMS | ARES_OPT_TRIES | ARES_OPT_SOCK_STATE_CB;
  if (ares_init_options(&channel_, &options, masks) != ARES_SUCCESS) channel_ = nullptr;
}

HostResolver::~HostResolver() {
  ends_ = true;
  if (timer_.has_value()) loop_->Cancel(*timer_);
  if (channel_ != nullptr) ares_destroy(channel_);
}

void HostResolver::Resolve(const NodeAddress& node, Done done) {
  if (const std::optional<SocketAddress> address = Numeric(node); address.has_value()) {
    return done(Addresses{*address});
  }
  if (channel_ == nullptr) return done(NoAddress(node, "no name server is set"));
  ares_addrinfo_hints hints = {};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = ARES_AI_NUMERICSERV;
  const std::string port = std::to_string(node.port);
  auto* question = new Question{this, node, std::move(done)};
  ares_getaddrinfo(channel_, node.host.c_str(), port.c_str(), &hints, &OnAnswer, question);
  SetTimer();
}

void HostResolver::OnAnswer(void* asked, int status, int /*timeouts*/, ares_addrinfo* found) {
  const std::unique_ptr<Question> question(static_cast<Question*>(asked));
  Addresses addresses;
  for (const ares_addrinfo_node* each = found == nullptr ? nullptr : found->nodes; each != nullptr;
       each = each->ai_next) {
    SocketAddress address;
    assert(each->ai_addrlen <= sizeof(address.storage));
    std::memcpy(&address.storage, each->ai_addr, each->ai_addrlen);
    address.bytes = each->ai_addrlen;
    addresses.push_back(address);
  }
  if (found != nullptr) ares_freeaddrinfo(found);
  if (question->resolver->ends_) return;
  if (addresses.empty()) return question->done(NoAddress(question->node, ares_strerror(status)));
  question->done(std::move(addresses));
}

void HostResolver::OnSocket(void* self, int fd, int reads, int writes) {
  auto* resolver = static_cast<HostResolver*>(self);
  if (reads == 0 && writes == 0) {
    resolver->loop_->Forget(fd);
    resolver->sockets_.erase(fd);
    return;
  }
  std::unique_ptr<Socket>& socket = resolver->sockets_[fd];
  if (socket == nullptr) socket = std::make_unique<Socket>(resolver, fd);
  const uint32_t events = (reads != 0 ? EPOLLIN : 0u) | (writes != 0 ? EPOLLOUT : 0u);
  resolver->loop_->Watch(fd, events, socket.get());
}

void HostResolver::Process(int fd, uint32_t events) {
  const bool reads = (events & (EPOLLIN | EPOLLERR | EPOLLHUP)) != 0;
  const bool writes = (events & EPOLLOUT) != 0;
  ares_process_fd(channel_, reads ? fd : ARES_SOCKET_BAD, writes ? fd : ARES_SOCKET_BAD);
  SetTimer();
}

void HostResolver::SetTimer() {
  if (timer_.has_value()) loop_->Cancel(*timer_);
  timer_.reset();
  timeval wait = {};
  if (ares_timeout(channel_, nullptr, &wait) == nullptr) return;
  timer_ = loop_->At(loop_->Now() + absl::DurationFromTimeval(wait),
                     [this] { Process(ARES_SOCKET_BAD, 0); });
}

}  // namespace hearth
