// Host names are resolved by a limited number of threads, however slow the name server is.
#include "cache_store/shared/redis/host_resolver.h"

#include <dlfcn.h>
#include <gtest/gtest.h>
#include <netdb.h>
#include <netinet/in.h>

#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"

namespace {

// Host names that end in ".slow" resolve to 127.0.0.1 only after the test sets slow_answers.
absl::Mutex slow_mu;
int slow_asked = 0;
bool slow_answers = false;

}  // namespace

extern "C" int getaddrinfo(const char* node, const char* service, const addrinfo* hints,
                           addrinfo** found) {
  static const auto real =
      reinterpret_cast<decltype(&getaddrinfo)>(dlsym(RTLD_NEXT, "getaddrinfo"));
  const bool is_numeric = hints != nullptr && (hints->ai_flags & AI_NUMERICHOST) != 0;
  if (node == nullptr || is_numeric || !absl::EndsWith(node, ".slow")) {
    return real(node, service, hints, found);
  }
  absl::MutexLock lock(&slow_mu);
  ++slow_asked;
  slow_mu.Await(absl::Condition(&slow_answers));
  return real("127.0.0.1", service, hints, found);
}

namespace hearth {
namespace {

using Addresses = absl::StatusOr<HostResolver::Addresses>;

TEST(HostResolverTest, ConcurrentLookupsAreLimitedAndMerged) {
  constexpr uint16_t kPort = 6379;
  {
    absl::MutexLock lock(&slow_mu);
    slow_asked = 0;
    slow_answers = false;
  }
  EventLoop loop;
  HostResolver resolver(&loop);
  std::vector<uint16_t> ports;  // ports of the addresses in the answers
  int refused = 0, left = 0;
  absl::Notification all;
  loop.Post([&] {
    for (size_t name = 0; name <= HostResolver::kMaxNames; ++name) {
      for (int again = 0; again < 2; ++again) {
        ++left;
        resolver.Resolve({absl::StrCat(name, ".slow"), kPort}, [&](const Addresses& addresses) {
          refused += absl::IsUnavailable(addresses.status()) ? 1 : 0;
          if (addresses.ok()) {
            const auto* address = reinterpret_cast<const sockaddr_in*>(&addresses->at(0).storage);
            ports.push_back(ntohs(address->sin_port));
          }
          if (--left == 0) all.Notify();
        });
      }
    }
    EXPECT_EQ(refused, 2) << "the last name's";
    resolver.Resolve({"::1", 7}, [&](const Addresses& addresses) {
      ASSERT_TRUE(addresses.ok()) << "an address waits for no name";
      const auto* address = reinterpret_cast<const sockaddr_in6*>(&addresses->at(0).storage);
      EXPECT_EQ(ntohs(address->sin6_port), 7);
    });
    absl::MutexLock lock(&slow_mu);
    slow_answers = true;
  });
  loop.Start();
  all.WaitForNotification();
  loop.Stop();
  EXPECT_EQ(slow_asked, static_cast<int>(HostResolver::kMaxNames));
  EXPECT_EQ(ports.size(), 2 * HostResolver::kMaxNames);
  for (const uint16_t port : ports) EXPECT_EQ(port, kPort);
}

}  // namespace
}  // namespace hearth
