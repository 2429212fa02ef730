// The shared engine: probes and restores over three Redis nodes, against bare hiredis, and how long
// a lost node is missed.
//
//   shared_bench [--tls] [--faults | --writer]
//
// Starts servers of its own. --tls: everything through TLS, bare hiredis too.
// --writer: probes and restores while another thread publishes through the same client.
#include <atomic>
#include <cstdio>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "bench/shared/bare_redis.h"
#include "bench/turns.h"
#include "cache_store/shared/redis/key_slot.h"
#include "cache_store/shared/redis/redis_cluster.h"
#include "tests/cache_store/shared/redis_servers.h"

namespace hearth {
namespace {

constexpr int kProbes = 512;  // keys of one EXISTS
constexpr int kProbeTurns = 500;
constexpr int kValues = 64;
constexpr size_t kValueBytes = 1048512;
constexpr int kRestoreTurns = 31;

absl::Time Soon() { return absl::Now() + absl::Seconds(30); }

std::vector<std::string> Keys(const char* kind, int count) {
  std::vector<std::string> keys;
  for (int i = 0; i < count; ++i) keys.push_back(absl::StrCat("h1:{", kind, i, "}:g:0"));
  return keys;
}

void Fill(RedisCluster* engine) {
  const std::vector<std::string> keys = Keys("value", kValues);
  std::string content(kValueBytes, ' ');
  for (size_t i = 0; i < content.size(); ++i) content[i] = static_cast<char>(i * 2654435761u >> 13);
  for (const std::string& key : keys) RequireOk(engine->Set({{key, content}}, Soon())[0].status());
  const std::vector<std::string> probed = Keys("probe", kProbes);
  for (int i = 0; i < kProbes; i += 2) {
    RequireOk(engine->Set({{probed[i], "x"}}, Soon())[0].status());
  }
}

double At(std::vector<double> values, double share) {
  std::sort(values.begin(), values.end());
  return values[static_cast<size_t>(share * static_cast<double>(values.size() - 1))];
}

void Probe(RedisCluster* engine, BareRedis* bare) {
  const std::vector<std::string> keys = Keys("probe", kProbes);
  std::vector<double> ours, theirs;
  for (int turn = 0; turn < kProbeTurns; ++turn) {
    ours.push_back(1e3 * Seconds([&] {
                     for (const auto& exists : engine->Exists(keys, Soon()))
                       RequireOk(exists.status());
                   }));
    theirs.push_back(1e3 * Seconds([&] { bare->Ask("EXISTS", keys); }));
  }
  std::printf("EXISTS of %d keys: p50 %.2f ms, p99 %.2f; bare hiredis %.2f, %.2f\n", kProbes,
              At(ours, 0.5), At(ours, 0.99), At(theirs, 0.5), At(theirs, 0.99));
}

void Restore(RedisCluster* engine, BareRedis* bare) {
  const std::vector<std::string> keys = Keys("value", kValues);
  const auto restore = [&] {
    for (auto& value : engine->Get(keys, kValueBytes, Soon())) {
      RequireOk(value.status());
      engine->Recycle(*std::move(value));
    }
  };
  const auto take = [&] {
    for (const BareRedis::Reply& reply : bare->Ask("GET", keys)) {
      if (reply->len != kValueBytes) std::exit(1);
    }
  };
  restore();
  take();
  const CostTurns turns(kRestoreTurns, 1, restore, take);
  const double megabytes = kValues * kValueBytes * 1e-6;
  std::printf(
      "restore of %.0f MB: %.2f GB/s, bare hiredis %.2f: %.2f of it; of its processor time "
      "%.2f\n",
      megabytes, megabytes / turns.our_wall, megabytes / turns.their_wall, turns.wall_ratio,
      1 / turns.processor_ratio);
}

// Publishes 64 MiB after 64 MiB until it ends, in calls as large as the tier's.
class Publisher {
 public:
  explicit Publisher(RedisCluster* engine) : engine_(engine) {
    thread_ = std::thread([this] { Run(); });
  }
  ~Publisher() {
    ends_ = true;
    thread_.join();
  }
  double megabytes() const { return static_cast<double>(values_) * kValueBytes * 1e-6; }

 private:
  void Run() {
    const std::string content(kValueBytes, 'w');
    const std::vector<std::string> keys = Keys("written", 64);
    for (size_t begin = 0; !ends_; begin = (begin + kValuesACall) % keys.size()) {
      std::vector<SharedValue> values;
      for (size_t i = 0; i < kValuesACall; ++i) values.push_back({keys[begin + i], content});
      for (const auto& written : engine_->Set(values, Soon())) RequireOk(written.status());
      values_ += kValuesACall;
    }
  }

  static constexpr size_t kValuesACall = 32;
  RedisCluster* const engine_;
  std::atomic<bool> ends_{false};
  std::atomic<uint64_t> values_{0};
  std::thread thread_;
};

void BesideAWriter(RedisCluster* engine, BareRedis* bare) {
  const Publisher publisher(engine);
  const std::vector<std::string> probed = Keys("probe", kProbes), values = Keys("value", 8);
  std::vector<double> ours, theirs, reads;
  const double before = publisher.megabytes();
  const double took = Seconds([&] {
    for (int turn = 0; turn < kProbeTurns; ++turn) {
      ours.push_back(1e3 * Seconds([&] { engine->Exists(probed, Soon()); }));
      theirs.push_back(1e3 * Seconds([&] { bare->Ask("EXISTS", probed); }));
      if (turn % 10 > 0) continue;
      reads.push_back(1e3 * Seconds([&] { engine->Get(values, kValueBytes, Soon()); }));
    }
  });
  std::printf(
      "beside a writer of %.0f MB/s: EXISTS of %d keys: p50 %.2f ms, p99 %.2f; bare hiredis %.2f, "
      "%.2f; 8 values: p50 %.1f ms, p99 %.1f\n",
      (publisher.megabytes() - before) / took, kProbes, At(ours, 0.5), At(ours, 0.99),
      At(theirs, 0.5), At(theirs, 0.99), At(reads, 0.5), At(reads, 0.99));
}

// Milliseconds until `is_so`, while the keys of the other nodes must be readable.
double Until(RedisCluster* engine, const RedisServers& servers, int lost,
             const std::function<bool(int failed)>& is_so) {
  const std::vector<std::string> keys = Keys("probe", kProbes);
  const absl::Time start = absl::Now();
  for (;;) {
    const auto exists = engine->Exists(keys, Soon());
    int failed = 0;
    for (int i = 0; i < kProbes; ++i) {
      const bool may_fail = servers.ShareOf(KeySlot(keys[i])) == lost;
      if (!may_fail) RequireOk(exists[i].status());
      failed += exists[i].ok() ? 0 : 1;
    }
    if (is_so(failed)) return absl::ToDoubleMilliseconds(absl::Now() - start);
    absl::SleepFor(absl::Milliseconds(5));
  }
}

void Faults() {
  const auto fails = [](int failed) { return failed > 0; };
  const auto holds = [](int failed) { return failed == 0; };
  for (int turn = 0; turn < 5; ++turn) {
    RedisServers servers({3, 1});
    const auto engine =
        RedisCluster::Open(ParseRedisUrl("redis://" + servers.addresses()).value()).value();
    Until(engine.get(), servers, 0, holds);
    servers.at(0).Kill();
    std::printf("primary killed: readable again after %.0f ms",
                Until(engine.get(), servers, 0, holds));
    RedisServers alone({3, 0});
    const auto other =
        RedisCluster::Open(ParseRedisUrl("redis://" + alone.addresses()).value()).value();
    Until(other.get(), alone, 1, holds);
    alone.at(1).Stop();
    std::printf("; stopped: noticed after %.0f ms", Until(other.get(), alone, 1, fails));
    const absl::Time end = absl::Now() + absl::Seconds(2 + turn * 0.3);
    double longest = 0;
    while (absl::Now() < end) {
      longest = std::max(longest, Until(other.get(), alone, 1, fails));
    }
    alone.at(1).Continue();
    std::printf(", then at most %.1f ms a call; found %.0f ms after it went on\n", longest,
                Until(other.get(), alone, 1, holds));
  }
}

void Run(bool use_tls, bool beside_a_writer) {
  BenchServers servers(3, use_tls);
  const auto engine = RedisCluster::Open(servers.Client()).value();
  Fill(engine.get());
  BareRedis bare(&servers);
  if (beside_a_writer) return BesideAWriter(engine.get(), &bare);
  Probe(engine.get(), &bare);
  Restore(engine.get(), &bare);
}

}  // namespace
}  // namespace hearth

int main(int argc, char** argv) {
  bool use_tls = false, faults = false, beside_a_writer = false;
  for (int i = 1; i < argc; ++i) {
    use_tls |= std::strcmp(argv[i], "--tls") == 0;
    faults |= std::strcmp(argv[i], "--faults") == 0;
    beside_a_writer |= std::strcmp(argv[i], "--writer") == 0;
  }
  if (faults) {
    hearth::Faults();
  } else {
    hearth::Run(use_tls, beside_a_writer);
  }
  return 0;
}
