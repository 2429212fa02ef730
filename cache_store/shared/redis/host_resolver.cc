#include "cache_store/shared/redis/host_resolver.h"

#include <netdb.h>

#include <cassert>
#include <cstring>
#include <system_error>
#include <thread>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"

namespace hearth {
namespace {

absl::StatusOr<HostResolver::Addresses> Ask(const NodeAddress& node, int flags) {
  addrinfo hints = {};
  hints.ai_flags = flags | AI_NUMERICSERV;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const int result =
      getaddrinfo(node.host.c_str(), absl::StrCat(node.port).c_str(), &hints, &found);
  if (result != 0) {
    return absl::UnavailableError(
        absl::StrCat("redis: cannot resolve ", node.host, ": ", gai_strerror(result)));
  }
  HostResolver::Addresses addresses;
  for (const addrinfo* each = found; each != nullptr; each = each->ai_next) {
    SocketAddress& address = addresses.emplace_back();
    assert(each->ai_addrlen <= sizeof(address.storage));
    std::memcpy(&address.storage, each->ai_addr, each->ai_addrlen);
    address.bytes = each->ai_addrlen;
  }
  freeaddrinfo(found);
  return addresses;
}

}  // namespace

struct HostResolver::SharedState {
  absl::Mutex mu;
  HostResolver* resolver ABSL_GUARDED_BY(mu);  // null: the resolver was destroyed
  EventLoop* const loop;
};

HostResolver::HostResolver(EventLoop* loop) : state_(new SharedState{{}, this, loop}) {}

HostResolver::~HostResolver() {
  absl::MutexLock lock(&state_->mu);
  state_->resolver = nullptr;
}

void HostResolver::Resolve(const NodeAddress& node, Done done) {
  absl::StatusOr<Addresses> numeric = Ask(node, AI_NUMERICHOST);
  if (numeric.ok()) return done(std::move(numeric));
  const auto asked = waiting_.find(node);
  if (asked != waiting_.end()) {
    asked->second.push_back(std::move(done));
    return;
  }
  if (waiting_.size() >= kMaxNames) {
    return done(absl::UnavailableError(absl::StrCat("redis: cannot resolve ", node.host, ": ",
                                                    kMaxNames, " other names are being resolved")));
  }
  try {
    std::thread([state = state_, node] {
      absl::StatusOr<Addresses> addresses = Ask(node, 0);
      absl::MutexLock lock(&state->mu);
      if (state->resolver == nullptr) return;
      state->loop->Post([resolver = state->resolver, node, addresses = std::move(addresses)] {
        const auto asked = resolver->waiting_.extract(node);
        for (const Done& each : asked.mapped()) each(addresses);
      });
    }).detach();
  } catch (const std::system_error& error) {
    return done(absl::UnavailableError(
        absl::StrCat("redis: cannot start a thread to resolve ", node.host, ": ", error.what())));
  }
  waiting_[node].push_back(std::move(done));
}

}  // namespace hearth
