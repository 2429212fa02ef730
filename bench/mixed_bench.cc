// How long one 1 MiB fetch takes while a publisher saturates the store, beside Redis GET and SET in
// the same mix.
//
//   mixed_bench [FETCHES]
//
// RAM only on both sides, TCP, one reader and one writer. The reader takes turns between the
// contenders, a hundred fetches each; only the writer of the one that is measured runs.
#include <atomic>
#include <cstdio>
#include <filesystem>
#include <functional>
#include <thread>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "bench/bench_kit.h"
#include "bench/bench_redis.h"
#include "bench/bench_server.h"
#include "cache_store/store/tiered_store.h"
#include "services/inference/remote_prefix_cache.h"
#include "services/rpc/transport_options.h"
#include "services/serving/process.h"

namespace hearth {
namespace {

constexpr uint32_t kOneChunk = 128;  // one slice of 1 MiB
constexpr int kPrefixes = 64;        // that are read
constexpr int kTurn = 100;

int Serve(const std::string& address_file) {
  StoreOptions options;
  options.disk_bytes = 0;
  options.host_bytes = uint64_t{1} << 30;
  options.default_durability = Durability::kMemory;
  options.shared_memory = true;
  return ServeUntilKilled("mixed_bench", options, kAnyPort, address_file);
}

class HearthClient {
 public:
  HearthClient(const std::string& address, bool shared)
      : fingerprint_(BenchFingerprint(1)),
        layout_(*fingerprint_.Layout()),
        cache_(ConnectToStore(address), fingerprint_, layout_, &counters_,
               shared ? SharedMemoryUse::kCopy : SharedMemoryUse::kOff) {}
  void Publish(int number, uint32_t tokens) {
    const PublishOutcome outcome =
        cache_.Publish(BenchSpec(layout_, number, tokens), absl::InfiniteFuture());
    if (outcome.published_tokens != tokens) Fail(outcome.note);
  }
  // The same publish again and again, as far as its making goes.
  void PublishPrepared(int number) {
    if (prepared_.objects.empty()) prepared_ = BenchSpec(layout_, 0);
    prepared_.prefix = BenchPrefix(number);
    cache_.Publish(prepared_, absl::InfiniteFuture());
  }
  void Fetch(int number) {
    PrefixRequest wanted = BenchPrefix(number, kOneChunk);
    wanted.token_ids.push_back(7);
    const FetchOutcome outcome = cache_.Fetch(wanted, 0, kOneChunk, absl::InfiniteFuture());
    if (outcome.usable_tokens != kOneChunk) Fail(outcome.note);
  }

 private:
  static void Fail(const std::string& note) {
    std::fprintf(stderr, "hearth: %s\n", note.c_str());
    std::exit(1);
  }
  CacheCounters counters_;
  const Fingerprint fingerprint_;
  const KvLayout layout_;
  RemotePrefixCache cache_;
  PublishRequestSpec prepared_;
};

class RedisClient {
 public:
  explicit RedisClient(const RedisServer& server)
      : redis_(server.Connect()), value_(kSliceBytes, 'x'), to_(kSliceBytes) {}
  void Set(const std::string& key) { redis_.Set(key, value_); }
  void Get(const std::string& key) { redis_.Get(key, to_.data()); }

 private:
  RedisConnection redis_;
  const std::string value_;
  std::vector<char> to_;
};

struct Contender {
  const char* name;
  std::function<void(int)> read, write;
  std::vector<double> milliseconds;
  uint64_t written = 0;
};

// kTurn reads, each timed, while `write` runs as fast as it can.
void Turn(Contender* contender, bool counts) {
  std::atomic<bool> stop{false};
  std::thread writer([&] {
    for (; !stop.load(); ++contender->written)
      contender->write(static_cast<int>(contender->written));
  });
  for (int i = 0; i < kTurn; ++i) {
    const absl::Time start = absl::Now();
    contender->read(i % kPrefixes);
    if (counts) contender->milliseconds.push_back(absl::ToDoubleMilliseconds(absl::Now() - start));
  }
  stop.store(true);
  writer.join();
}

double Percentile(std::vector<double> values, double share) {
  std::sort(values.begin(), values.end());
  return values[static_cast<size_t>(share * (values.size() - 1))];
}

int Run(const std::string& self, int fetches) {
  KeepFreedMemory();
  std::string folder = "/tmp/mixed_bench-XXXXXX";
  if (mkdtemp(folder.data()) == nullptr) return 1;
  const auto remove = absl::MakeCleanup([&folder] { std::filesystem::remove_all(folder); });
  const Child server({self, "--serve", folder + "/address"});
  const std::string address = WaitForFile(folder + "/address");
  const RedisServer redis(
      folder, RedisServer::Over::kTcp,
      {"--appendonly", "no", "--maxmemory", "1gb", "--maxmemory-policy", "allkeys-lru"});

  HearthClient wire(address, false), shared(address, true), hearth_writer(address, false);
  RedisClient reader(redis), writer(redis);
  for (int i = 0; i < kPrefixes; ++i) {
    hearth_writer.Publish(i, kOneChunk);
    reader.Set(absl::StrCat("read", i));
  }
  // Each publish is 16 slices, a SET is one; new keys, so that both also evict.
  const auto publish = [&](int n) { hearth_writer.PublishPrepared(1000 + n); };
  std::vector<Contender> contenders = {
      {"hearth, TCP", [&](int i) { wire.Fetch(i); }, publish, {}},
      {"hearth, shared memory", [&](int i) { shared.Fetch(i); }, publish, {}},
      {"Redis GET",
       [&](int i) { reader.Get(absl::StrCat("read", i)); },
       [&](int n) { writer.Set(absl::StrCat("write", n)); },
       {}}};
  for (Contender& contender : contenders) Turn(&contender, false);
  for (int done = 0; done < fetches; done += kTurn) {
    for (Contender& contender : contenders) Turn(&contender, true);
  }
  std::printf("1 MiB fetches beside a writer, milliseconds (%zu each)\n",
              contenders[0].milliseconds.size());
  const double peer = Percentile(contenders.back().milliseconds, 0.99);
  for (const Contender& contender : contenders) {
    std::printf("  %-22s p50 %6.2f  p99 %6.2f   p99 / Redis: %4.2f\n", contender.name,
                Percentile(contender.milliseconds, 0.5), Percentile(contender.milliseconds, 0.99),
                Percentile(contender.milliseconds, 0.99) / peer);
  }
  return 0;
}

int Main(int argc, char** argv) {
  const std::vector<std::string> words(argv + 1, argv + argc);
  if (words.size() == 2 && words[0] == "--serve") return Serve(words[1]);
  if (words.size() > 1 || (words.size() == 1 && std::atoi(words[0].c_str()) <= 0)) {
    std::fprintf(stderr, "usage: mixed_bench [FETCHES]\n");
    return 2;
  }
  return Run(argv[0], words.empty() ? 3000 : std::atoi(words[0].c_str()));
}

}  // namespace
}  // namespace hearth

int main(int argc, char** argv) { return hearth::Main(argc, argv); }
