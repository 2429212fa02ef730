// Measures publishes acknowledged as `disk` and `sync` by a store process, compared with Redis SET
// with an append-only file, fsync every second and always.
//
//   publish_bench FOLDER [REPETITIONS [MIB]]
//
// Each repetition publishes MIB new slices of 1 MiB (default 64; a multiple of 4) over TCP. Redis
// runs once waiting for each answer, and once pipelined. No data waits to be written to the disk
// when a turn begins, and Redis does not rewrite its file. FOLDER must not exist; it is removed at
// the end.
#include <cstdio>
#include <filesystem>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "bench/bench_kit.h"
#include "bench/bench_redis.h"
#include "bench/bench_server.h"
#include "cache_store/store/tiered_store.h"
#include "services/inference/remote_prefix_cache.h"
#include "services/rpc/transport_options.h"

namespace hearth {
namespace {

constexpr int kMaxSlices = kLayers * kTokens / 128;

int Serve(const std::string& folder, const std::string& address_file) {
  StoreOptions options;
  options.data_dir = folder;
  return ServeUntilKilled("publish_bench", options, kAnyPort, address_file);
}

// Waits long for the connection: on a busy machine connecting can take longer than the timeout of a
// publish.
std::shared_ptr<grpc::Channel> Connected(const std::string& address) {
  const std::shared_ptr<grpc::Channel> channel = *ConnectToStore(address);
  if (!channel->WaitForConnected(absl::ToChronoTime(absl::Now() + absl::Minutes(1)))) std::exit(1);
  return channel;
}

class Hearth {
 public:
  Hearth(const std::string& address, Durability durability)
      : durability_(durability),
        fingerprint_(BenchFingerprint()),
        layout_(*fingerprint_.Layout()),
        cache_(Connected(address), fingerprint_, layout_, &counters_) {}
  // Publishes new slices. Returns the seconds until the acknowledgement.
  double Publish(int number, int slices) {
    const uint32_t tokens = static_cast<uint32_t>(slices) / kLayers * 128;
    PublishRequestSpec spec = BenchSpec(layout_, number, tokens);
    spec.durability = durability_;
    const absl::Time start = absl::Now();
    const PublishOutcome outcome = cache_.Publish(spec, absl::InfiniteDuration());
    const double seconds = absl::ToDoubleSeconds(absl::Now() - start);
    if (outcome.published_tokens == tokens && outcome.durable >= durability_) return seconds;
    std::fprintf(stderr, "publish: %s\n", outcome.note.c_str());
    std::exit(1);
  }

 private:
  const Durability durability_;
  CacheCounters counters_;
  const Fingerprint fingerprint_;
  const KvLayout layout_;
  RemotePrefixCache cache_;
};

class Redis {
 public:
  Redis(const std::string& folder, const char* fsync)
      : folder_(absl::StrCat(folder, "/redis-", fsync)),
        made_(std::filesystem::create_directory(folder_)),
        server_(
            folder_, RedisServer::Over::kTcp,
            {"--appendonly", "yes", "--appendfsync", fsync, "--auto-aof-rewrite-percentage", "0"}),
        redis_(server_.Connect()) {}
  double Set(int number, int slices, bool pipelined) {
    const std::string value(kSliceBytes, static_cast<char>('a' + number % 26));
    const absl::Time start = absl::Now();
    for (int i = 0; i < slices; ++i) {
      redis_.SendSet(absl::StrCat(number % 8, ":", i), value);
      if (!pipelined) redis_.TakeReply();
    }
    for (int i = 0; pipelined && i < slices; ++i) redis_.TakeReply();
    return absl::ToDoubleSeconds(absl::Now() - start);
  }

 private:
  const std::string folder_;
  const bool made_;
  const RedisServer server_;
  RedisConnection redis_;
};

void Report(const char* name, int slices, const std::vector<double>& seconds,
            const std::vector<double>& ours) {
  const double bytes = slices * double{kSliceBytes};
  std::vector<double> ratios;
  for (size_t i = 0; i < seconds.size(); ++i) ratios.push_back(seconds[i] / ours[i]);
  std::printf("  %-34s median %5.2f  best %5.2f GB/s   hearth / this: %5.2f\n", name,
              bytes / Median(seconds) / 1e9,
              bytes / *std::min_element(seconds.begin(), seconds.end()) / 1e9, Median(ratios));
}

int Run(const std::string& self, const std::string& folder, int repetitions, int slices) {
  if (!std::filesystem::create_directory(folder)) {
    std::fprintf(stderr, "%s exists\n", folder.c_str());
    return 1;
  }
  const auto remove = absl::MakeCleanup([&folder] { std::filesystem::remove_all(folder); });
  const Child server({self, "--serve", folder + "/hearth", folder + "/address"});
  const std::string address = WaitForFile(folder + "/address", server);
  int number = 0;
  for (const bool sync : {false, true}) {
    Hearth hearth(address, sync ? Durability::kSync : Durability::kDisk);
    Redis redis(folder, sync ? "always" : "everysec");
    std::vector<double> ours, single, pipelined;
    for (int i = -1; i < repetitions; ++i) {
      // Write dirty pages to disk now, so that a turn does not have to write data of the turn
      // before.
      ::sync();
      const double h = hearth.Publish(++number, slices);
      ::sync();
      const double s = redis.Set(number, slices, false);
      ::sync();
      const double p = redis.Set(number, slices, true);
      if (i < 0) continue;  // the first turns warm up connections and memory and are not counted
      ours.push_back(h), single.push_back(s), pipelined.push_back(p);
    }
    std::printf("%s\n", sync ? "sync / appendfsync always" : "disk / appendfsync everysec");
    Report("hearth, one publish", slices, ours, ours);
    Report("Redis SET, one after the other", slices, single, ours);
    Report("Redis SET, all at once", slices, pipelined, ours);
  }
  return 0;
}

int Main(int argc, char** argv) {
  const std::vector<std::string> words(argv + 1, argv + argc);
  if (words.size() == 3 && words[0] == "--serve") return Serve(words[1], words[2]);
  const int repetitions = words.size() > 1 ? std::atoi(words[1].c_str()) : 8;
  const int slices = words.size() > 2 ? std::atoi(words[2].c_str()) : kMaxSlices;
  if (words.empty() || words.size() > 3 || words[0][0] == '-' || repetitions < 1 ||
      slices < kLayers || slices > kMaxSlices || slices % kLayers != 0) {
    std::fprintf(stderr, "usage: publish_bench FOLDER [REPETITIONS [MIB]]\n");
    return 2;
  }
  return Run(argv[0], words[0], repetitions, slices);
}

}  // namespace
}  // namespace hearth

int main(int argc, char** argv) { return hearth::Main(argc, argv); }
