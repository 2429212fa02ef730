// Measures how long a worker waits for its store over loopback TCP: fetch and publish of a
// 2,048-token prefix of the 270M (28.3 MB of float32), in milliseconds and GB/s, compared with a
// memcpy of the same bytes.
//
// Usage: fetch_bench [repetitions] [listen address]

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "absl/time/clock.h"
#include "bench/bench_kit.h"
#include "cache_store/store/tiered_store.h"
#include "services/inference/remote_prefix_cache.h"
#include "services/rpc/transport_options.h"
#include "services/serving/process.h"
#include "services/serving/server/server_runner.h"
#include "services/store/cache_service.h"

namespace hearth {
namespace {

void Report(const char* what, int repetitions, uint64_t bytes, const std::function<void()>& run) {
  std::vector<double> ms;
  run();
  for (int i = 0; i < repetitions; ++i) {
    const absl::Time start = absl::Now();
    run();
    ms.push_back(absl::ToDoubleMilliseconds(absl::Now() - start));
  }
  std::sort(ms.begin(), ms.end());
  const double median = ms[ms.size() / 2];
  std::printf("%-28s %6.1f MB  best %6.1f ms  median %6.1f ms  worst %6.1f ms  %5.2f GB/s\n", what,
              bytes / 1e6, ms.front(), median, ms.back(), bytes / median / 1e6);
}

int Run(int repetitions, const std::string& listen) {
  KeepFreedMemory();
  const Fingerprint fingerprint = Model270M();
  const KvLayout layout = *fingerprint.Layout();
  StoreOptions options;
  options.disk_bytes = 0;
  options.default_durability = Durability::kMemory;
  auto store = TieredStore::Open(options);
  if (!store.ok()) return FailToStart("fetch_bench", store.status());
  Admission admission;
  CacheService service(store->get(), &admission, "bench");
  auto server = ServerRunner::Start(listen, {{"hearth.v1.CacheStore", &service}}, &admission);
  if (!server.ok()) return FailToStart("fetch_bench", server.status());
  CacheCounters counters;
  RemotePrefixCache cache(*ConnectToStore((*server)->address()), fingerprint, layout, &counters);

  const PublishRequestSpec spec = BenchSpec(layout, 0);
  uint64_t bytes = 0;
  for (const auto& object : spec.objects) bytes += object->size_bytes;
  std::vector<char> copy(bytes);
  Report("memcpy", repetitions, bytes, [&] {
    size_t at = 0;
    for (const auto& object : spec.objects) {
      std::memcpy(copy.data() + at, object->bytes.get(), object->size_bytes);
      at += object->size_bytes;
    }
  });
  Report("publish", repetitions, bytes, [&] {
    (*store)->DropAll("default", true).status().IgnoreError();
    const PublishOutcome outcome = cache.Publish(spec, absl::InfiniteDuration());
    if (outcome.bytes_sent != bytes) std::printf("publish: %s\n", outcome.note.c_str());
  });
  PrefixRequest wanted = spec.prefix;
  wanted.token_ids.push_back(7);
  Report("fetch", repetitions, bytes, [&] {
    const FetchOutcome outcome = cache.Fetch(wanted, 0, kTokens, absl::InfiniteDuration());
    if (outcome.usable_tokens != kTokens) std::printf("fetch: %s\n", outcome.note.c_str());
  });
  return 0;
}

}  // namespace
}  // namespace hearth

int main(int argc, char** argv) {
  return hearth::Run(argc > 1 ? std::atoi(argv[1]) : 20, argc > 2 ? argv[2] : "127.0.0.1:0");
}
