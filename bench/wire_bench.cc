// Measures how fast 1 MiB slices get from a store's RAM into a caller's buffer, verified. Compares
// with two peers in the same run: a bare gRPC stream of byte buffers that only copies, and Redis
// GET through hiredis.
//
//   wire_bench [--unix|--shared] [--repetitions N] [--only WORD] [--peer NAME=COMMAND]
// If memcached is installed, it takes part too; --peer adds a client that is its own program
// (bench/peers/peer_client.py).
// The servers run in their own processes. Prints GB/s (1e9 bytes) and the ratio to each peer, for 1
// and for 4 connections.
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "bench/bench_kit.h"
#include "bench/bench_server.h"
#include "bench/wire_peers.h"
#include "cache_store/store/tiered_store.h"
#include "services/inference/remote_prefix_cache.h"
#include "services/rpc/transport_options.h"
#include "services/serving/process.h"

namespace hearth {
namespace {

constexpr int kPrefixes = 4;
static_assert(kSlices == kPrefixes * kLayers * kTokens / 128);

// --- the server ---

int Serve(const std::string& listen, const std::string& address_file) {
  KeepFreedMemory();  // applies to the bare gRPC service too
  StoreOptions options;
  options.disk_bytes = 0;
  options.default_durability = Durability::kMemory;
  options.shared_memory = true;
  BareService bare(kSlices);
  return ServeUntilKilled("wire_bench", options, listen, address_file, &bare);
}

// --- the client ---

class HearthClient final : public Client {
 public:
  HearthClient(const std::string& address, bool shared)
      : fingerprint_(BenchFingerprint()),
        layout_(*fingerprint_.Layout()),
        cache_(*ConnectToStore(address), fingerprint_, layout_, &counters_, shared) {
    for (int i = 0; i < kPrefixes; ++i) {
      wanted_.push_back(BenchPrefix(i));
      wanted_.back().token_ids.push_back(7);
    }
  }
  void Run() override {
    for (const PrefixRequest& wanted : wanted_) {
      const FetchOutcome outcome = cache_.Fetch(wanted, 0, kTokens, absl::InfiniteDuration());
      if (outcome.usable_tokens == kTokens) continue;
      std::fprintf(stderr, "fetch: %s\n", outcome.note.c_str());
      std::exit(1);
    }
  }

 private:
  CacheCounters counters_;
  const Fingerprint fingerprint_;
  const KvLayout layout_;
  RemotePrefixCache cache_;
  std::vector<PrefixRequest> wanted_;
};

// --- the measurement ---

struct Contender {
  std::string name;
  std::vector<std::unique_ptr<Client>> clients;
  std::vector<double> rates;  // GB/s of each turn, all connections together
};

void Measure(Contender* contender) {
  std::vector<std::thread> threads;
  const absl::Time start = absl::Now();
  for (auto& client : contender->clients) threads.emplace_back([&client] { client->Run(); });
  for (std::thread& thread : threads) thread.join();
  const double seconds = absl::ToDoubleSeconds(absl::Now() - start);
  contender->rates.push_back(kBytes * contender->clients.size() / seconds / 1e9);
}

void Compare(std::vector<Contender> contenders, int connections, int repetitions) {
  // warm-up of memory and connections, not measured
  for (Contender& contender : contenders) Measure(&contender);
  for (Contender& contender : contenders) contender.rates.clear();
  for (int i = 0; i < repetitions; ++i) {
    for (Contender& contender : contenders) Measure(&contender);
  }
  std::printf("%d connection%s, 1 MiB slices, %d repetitions\n", connections,
              connections == 1 ? "" : "s", repetitions);
  for (const Contender& contender : contenders) {
    std::vector<double> ratios;  // ratio of the rates in each turn
    for (int i = 0; i < repetitions; ++i) {
      ratios.push_back(contenders[0].rates[i] / contender.rates[i]);
    }
    std::printf("  %-28s median %5.2f  best %5.2f GB/s   hearth / this: %5.2f\n",
                contender.name.c_str(), Median(contender.rates),
                *std::max_element(contender.rates.begin(), contender.rates.end()), Median(ratios));
  }
}

struct Wishes {
  bool unix_socket = false, shared = false;
  int repetitions = 9;
  std::string only;
  std::vector<std::pair<std::string, std::string>> peers;  // name and command line of each --peer
};

bool IsInstalled(const std::string& program) {
  return std::system(absl::StrCat("command -v ", program, " >/dev/null").c_str()) == 0;
}

bool FillHearth(const std::string& address) {
  CacheCounters counters;
  const Fingerprint fingerprint = BenchFingerprint();
  const KvLayout layout = *fingerprint.Layout();
  RemotePrefixCache cache(*ConnectToStore(address), fingerprint, layout, &counters);
  for (int i = 0; i < kPrefixes; ++i) {
    const PublishOutcome outcome = cache.Publish(BenchSpec(layout, i), absl::InfiniteDuration());
    if (outcome.published_tokens == kTokens) continue;
    std::fprintf(stderr, "publish: %s\n", outcome.note.c_str());
    return false;
  }
  return true;
}

int Run(const std::string& self, const Wishes& wishes) {
  KeepFreedMemory();
  std::string folder = "/tmp/wire_bench-XXXXXX";
  if (mkdtemp(folder.data()) == nullptr) return 1;
  const auto remove = absl::MakeCleanup([&folder] { std::filesystem::remove_all(folder); });
  const std::string listen =
      wishes.unix_socket ? absl::StrCat("unix:", folder, "/grpc") : std::string(kAnyPort);
  const Child server({self, "--serve", listen, folder + "/address"});
  const std::string address = WaitForFile(folder + "/address", server);
  if (!FillHearth(address)) return 1;
  using MakeClient = std::function<std::unique_ptr<Client>()>;
  std::vector<std::pair<std::string, MakeClient>> makers;
  const bool shared = wishes.shared;
  makers.emplace_back(shared ? "hearth, shared memory" : "hearth, verified", [&address, shared] {
    return std::make_unique<HearthClient>(address, shared);
  });
  const auto add_bare = [&](const char* name, const char* method, bool tuned) {
    makers.emplace_back(
        name, [=, &address] { return std::make_unique<BareClient>(address, method, tuned); });
  };
  add_bare("bare gRPC stream, same bytes", kSpreadMethod, true);
  add_bare("bare gRPC stream, one slice", kBareMethod, true);
  add_bare("as that, client as is", kBareMethod, false);
  makers.emplace_back("memcpy", [] { return std::make_unique<CopyClient>(); });
#ifdef HEARTH_BENCH_HIREDIS
  const RedisServer redis(
      folder, wishes.unix_socket ? RedisServer::Over::kUnixSocket : RedisServer::Over::kTcp,
      {"--appendonly", "no"});
  RedisClient(redis).Fill();
  makers.emplace_back("Redis GET, hiredis",
                      [&redis] { return std::make_unique<RedisClient>(redis); });
#endif
  const int memcached_port = 40000 + getpid() % 20000;
  std::unique_ptr<Child> memcached;
  if (IsInstalled("memcached")) {
    memcached = std::make_unique<Child>(std::vector<std::string>{
        "memcached", "-u", "root", "-l", "127.0.0.1", "-p", std::to_string(memcached_port), "-t",
        "2", "-I", "8m", "-m", "1024"});
    MemcachedClient(memcached_port).Fill();
    makers.emplace_back("memcached get",
                        [=] { return std::make_unique<MemcachedClient>(memcached_port); });
  }
  for (const auto& [name, command] : wishes.peers) {
    makers.emplace_back(name,
                        [command = command] { return std::make_unique<ProgramClient>(command); });
  }
  for (const int connections : {1, 4}) {
    std::vector<Contender> contenders;
    for (const auto& [name, make] : makers) {
      // --only selects clients by name, for use with a profiler
      if (name.find(wishes.only) == std::string::npos) continue;
      contenders.push_back({name, {}, {}});
      for (int i = 0; i < connections; ++i) contenders.back().clients.push_back(make());
    }
    Compare(std::move(contenders), connections, wishes.repetitions);
  }
  return 0;
}

int Main(int argc, char** argv) {
  const std::vector<std::string> words(argv + 1, argv + argc);
  if (words.size() == 3 && words[0] == "--serve") return Serve(words[1], words[2]);
  Wishes wishes;
  for (size_t i = 0; i < words.size(); ++i) {
    if (words[i] == "--unix") {
      wishes.unix_socket = true;
    } else if (words[i] == "--shared") {
      wishes.shared = wishes.unix_socket = true;
    } else if (words[i] == "--repetitions" && i + 1 < words.size()) {
      wishes.repetitions = std::max(1, std::atoi(words[++i].c_str()));
    } else if (words[i] == "--only" && i + 1 < words.size()) {
      wishes.only = words[++i];
    } else if (words[i] == "--peer" && i + 1 < words.size() &&
               words[i + 1].find('=') != std::string::npos) {
      const std::string& peer = words[++i];
      const size_t split = peer.find('=');
      wishes.peers.emplace_back(peer.substr(0, split), peer.substr(split + 1));
    } else {
      std::fprintf(stderr,
                   "usage: wire_bench [--unix|--shared] [--repetitions N] [--only WORD] "
                   "[--peer NAME=COMMAND]\n");
      return 2;
    }
  }
  return Run(argv[0], wishes);
}

}  // namespace
}  // namespace hearth

int main(int argc, char** argv) { return hearth::Main(argc, argv); }
