#include "cache_store/shared/redis/host_resolver.h"

#include <netdb.h>
#include <netinet/in.h>

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

absl::StatusOr<HostResolver::Addresses> Ask(const std::string& host, int flags) {
  addrinfo hints = {};
  hints.ai_flags = flags;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const int result = getaddrinfo(host.c_str(), nullptr, &hints, &found);
  if (result != 0) {
    return absl::UnavailableError(
        absl::StrCat("redis: no address of ", host, ": ", gai_strerror(result)));
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

absl::StatusOr<HostResolver::Addresses> WithPort(absl::StatusOr<HostResolver::Addresses> addresses,
                                                 uint16_t port) {
  if (!addresses.ok()) return addresses;
  for (SocketAddress& address : *addresses) {
    const bool is_v6 = address.storage.ss_family == AF_INET6;
    (is_v6 ? reinterpret_cast<sockaddr_in6*>(&address.storage)->sin6_port
           : reinterpret_cast<sockaddr_in*>(&address.storage)->sin_port) = htons(port);
  }
  return addresses;
}

}  // namespace

struct HostResolver::Asker {
  absl::Mutex mu;
  HostResolver* resolver ABSL_GUARDED_BY(mu);  // null once it is gone
  EventLoop* const loop;
};

HostResolver::HostResolver(EventLoop* loop) : asker_(new Asker{{}, this, loop}) {}

HostResolver::~HostResolver() {
  absl::MutexLock lock(&asker_->mu);
  asker_->resolver = nullptr;
}

void HostResolver::Resolve(const NodeAddress& node, Done done) {
  absl::StatusOr<Addresses> numeric = Ask(node.host, AI_NUMERICHOST);
  if (numeric.ok()) return done(WithPort(std::move(numeric), node.port));
  const auto asked = waiting_.find(node.host);
  if (asked != waiting_.end()) {
    asked->second.push_back({node.port, std::move(done)});
    return;
  }
  if (waiting_.size() >= kMaxNames) {
    return done(absl::UnavailableError(
        absl::StrCat("redis: ", node.host, " is not looked up: ", kMaxNames, " other names are")));
  }
  try {
    std::thread([asker = asker_, host = node.host] {
      const absl::StatusOr<Addresses> addresses = Ask(host, 0);
      absl::MutexLock lock(&asker->mu);
      if (asker->resolver == nullptr) return;
      asker->loop->Post([resolver = asker->resolver, host, addresses] {
        const auto asked = resolver->waiting_.extract(host);
        for (const Waiting& each : asked.mapped()) each.done(WithPort(addresses, each.port));
      });
    }).detach();
  } catch (const std::system_error& error) {
    return done(absl::UnavailableError(
        absl::StrCat("redis: no thread to look ", node.host, " up: ", error.what())));
  }
  waiting_[node.host].push_back({node.port, std::move(done)});
}

}  // namespace hearth
