// The hit rate of a fleet of real stores that share three real Redis, on a slice of a trace, beside
// what the simulator says of the same slice:
//
//   shared_fleet_hits STORE TRACE REQUESTS SPEED ENGINE_MIB HOST_MIB
//
// STORE: the program hearth-store, of which ten run; each request goes to one at random, as many
// times faster than in the trace as SPEED says, and what is not found is published. A block of the
// trace is a chunk of 512 tokens of a small model; ends of prompts that are no whole block are left
// out. ENGINE_MIB: of all three together; HOST_MIB: of each store's RAM. The simulator is given as
// many blocks as the engine was seen to hold.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "bench/bench_kit.h"
#include "cache_store/base/secret.h"
#include "cache_store/simulate/fleet.h"
#include "cache_store/simulate/simulate.h"
#include "proto/cache_store.grpc.pb.h"
#include "services/inference/remote_prefix_cache.h"
#include "services/rpc/transport_options.h"
#include "tests/cache_store/shared/redis_servers.h"
#include "tests/support/test_folder.h"

namespace hearth {
namespace {

constexpr uint32_t kNodes = 10, kShards = 3;
constexpr uint32_t kBlockTokens = Trace::kBlockTokens;
constexpr absl::Duration kCallTimeout = absl::Seconds(30);
// Of the trace's time, as that between two uses that count is: longer than a slice.
constexpr absl::Duration kTtl = absl::Minutes(20);

// One value of 27 KB a block: with its tokens it fits one of jemalloc's sizes.
Fingerprint Model() {
  return Fingerprint::Create({{"chunk_tokens", uint64_t{kBlockTokens}},
                              {"window", uint64_t{512}},
                              {"kv_heads", uint64_t{1}},
                              {"head_dim", uint64_t{6}},
                              {"kv_dtype", std::string("float32")},
                              {"exactness", std::string("exact")},
                              {"layer_types", std::string("g")},
                              {"object_layout", uint64_t{1}},
                              {"codec", std::string("raw")}})
      .value();
}

// Whole blocks only.
Trace SliceOf(const Trace& trace, size_t requests) {
  Trace slice;
  std::set<uint32_t> unique;
  for (size_t i = 0; i < std::min(requests, trace.requests.size()); ++i) {
    TraceRequest request = trace.requests[i];
    request.blocks.resize(request.tokens / kBlockTokens);
    request.tokens = static_cast<uint32_t>(request.blocks.size()) * kBlockTokens;
    unique.insert(request.blocks.begin(), request.blocks.end());
    if (!request.blocks.empty()) slice.requests.push_back(std::move(request));
  }
  slice.unique_blocks = slice.unique_full_blocks = static_cast<uint32_t>(unique.size());
  return slice;
}

PrefixRequest PrefixOf(const TraceRequest& request) {
  PrefixRequest prefix;
  for (const uint32_t block : request.blocks) {
    for (uint32_t i = 0; i < kBlockTokens; ++i) prefix.token_ids.push_back(block + (i << 24));
  }
  return prefix;
}

std::shared_ptr<const KvObject> ObjectOf(const KvLayout& layout, uint32_t block,
                                         const ObjectId& id) {
  auto object = std::make_shared<KvObject>();
  object->id = id;
  object->size_bytes = layout.ObjectBytes(id.tokens, id.group);
  object->bytes = AllocateAligned(object->size_bytes);
  std::mt19937 random(block);
  for (size_t at = 0; at < object->size_bytes; at += 4) {
    const uint32_t drawn = static_cast<uint32_t>(random());
    std::memcpy(object->bytes.get() + at, &drawn, 4);
  }
  object->slice_digests.push_back(SliceDigest(object->bytes.get(), object->size_bytes));
  return object;
}

// Ten stores, and what a worker at each would do.
class RealFleet {
 public:
  RealFleet(const std::string& program, const std::string& redis, int host_mib, absl::Duration ttl)
      : fingerprint_(Model()), layout_(*fingerprint_.Layout()) {
    const std::string secret = folder_.path() + "/secret";
    if (!ReadOrMakeSecret(secret).ok()) std::abort();
    for (uint32_t i = 0; i < kNodes; ++i) {
      const std::string at = absl::StrCat(folder_.path(), "/", i);
      processes_.push_back(std::make_unique<Child>(
          std::vector<std::string>{program,
                                   "--listen",
                                   "unix:" + at + ".sock",
                                   "--address-file",
                                   at,
                                   "--data-dir",
                                   "",
                                   "--durability",
                                   "memory",
                                   "--host-bytes",
                                   absl::StrCat(host_mib, "MiB"),
                                   "--secret-file",
                                   secret,
                                   "--shared",
                                   "redis://" + redis,
                                   "--shared-memory",
                                   "off",
                                   "--log-level",
                                   "error",
                                   "--shared-ttl",
                                   absl::StrCat(absl::ToInt64Seconds(ttl), "s")}));
    }
    for (uint32_t i = 0; i < kNodes; ++i) {
      const std::string address = WaitForFile(absl::StrCat(folder_.path(), "/", i));
      caches_.push_back(std::make_unique<RemotePrefixCache>(
          ConnectToStore(address), fingerprint_, layout_, &counters_, SharedMemoryUse::kOff));
    }
  }

  uint64_t block_bytes() const { return layout_.ObjectBytes(kBlockTokens, LayerGroup::kGlobal); }

  // Blocks that were restored.
  size_t Serve(const TraceRequest& request, size_t node) {
    PrefixRequest wanted = PrefixOf(request);
    const uint32_t tokens = static_cast<uint32_t>(wanted.token_ids.size());
    wanted.token_ids.push_back(7);
    const FetchOutcome found = caches_[node]->Fetch(wanted, 0, tokens, absl::Now() + kCallTimeout);
    if (found.usable_tokens == tokens) return request.blocks.size();
    PublishRequestSpec spec;
    spec.prefix = std::move(wanted);
    spec.prefix.token_ids.pop_back();
    spec.boundaries = {tokens};
    spec.durability = Durability::kShared;  // the replay is faster than the trace
    for (const ObjectId& id : NeededObjects(layout_, tokens)) {
      spec.objects.push_back(ObjectOf(layout_, request.blocks[id.begin / kBlockTokens], id));
    }
    const PublishOutcome stored = caches_[node]->Publish(spec, absl::Now() + kCallTimeout);
    if (stored.published_tokens != tokens) ++refused_;
    return found.usable_tokens / kBlockTokens;
  }
  uint64_t refused() const { return refused_; }
  // Of all stores together.
  uint64_t Of(const std::string& counter) const {
    uint64_t sum = 0;
    for (uint32_t i = 0; i < kNodes; ++i) {
      const auto stub = v1::CacheStore::NewStub(
          ConnectToStore(WaitForFile(absl::StrCat(folder_.path(), "/", i))));
      grpc::ClientContext context;
      v1::StatsResponse stats;
      if (!stub->Stats(&context, v1::StatsRequest(), &stats).ok()) std::abort();
      sum += stats.counters().at(counter);
    }
    return sum;
  }

 private:
  TestFolder folder_;
  const Fingerprint fingerprint_;
  const KvLayout layout_;
  CacheCounters counters_;
  std::vector<std::unique_ptr<Child>> processes_;
  std::vector<std::unique_ptr<RemotePrefixCache>> caches_;
  uint64_t refused_ = 0;
};

uint64_t BlocksIn(RedisServers* redis) {
  uint64_t values = 0;
  for (int i = 0; i < redis->primaries(); ++i) {
    uint64_t here = 0;
    const std::string size = redis->at(i).Ask({"DBSIZE"});
    if (!absl::SimpleAtoi(size, &here)) std::abort();
    values += here;
  }
  return values;
}

struct Measured {
  double rate = 0;
  uint64_t engine_blocks = 0;  // on average over the second half
};

Measured Replay(const Trace& trace, double speed, RedisServers* redis, RealFleet* fleet) {
  std::mt19937_64 random(7);
  uint64_t all = 0, found = 0, seen = 0, looks = 0, least = ~uint64_t{0}, most = 0;
  absl::Duration behind;
  const absl::Time start = absl::Now();
  for (size_t i = 0; i < trace.requests.size(); ++i) {
    const TraceRequest& request = trace.requests[i];
    const absl::Time due = start + absl::Milliseconds(request.at_ms) / speed;
    behind = std::max(behind, absl::Now() - due);
    absl::SleepFor(due - absl::Now());
    all += request.blocks.size();
    found += fleet->Serve(request, random() % kNodes);
    if (i < trace.requests.size() / 2 || i % 5 != 0) continue;
    const uint64_t blocks = BlocksIn(redis);
    least = std::min(least, blocks);
    most = std::max(most, blocks);
    seen += blocks;
    ++looks;
  }
  std::fprintf(stderr,
               "%zu requests, %llu publishes refused, %.1f s late at most, %llu to %llu blocks\n",
               trace.requests.size(), static_cast<unsigned long long>(fleet->refused()),
               absl::ToDoubleSeconds(behind), static_cast<unsigned long long>(least),
               static_cast<unsigned long long>(most));
  for (const char* counter :
       {"shared_lookups", "shared_hits", "shared_unanswered", "shared_vanished_parts",
        "shared_rejected_values", "shared_not_kept", "shared_written_objects",
        "shared_writes_skipped", "shared_writes_failed"}) {
    std::fprintf(stderr, "%s %llu\n", counter, static_cast<unsigned long long>(fleet->Of(counter)));
  }
  return {static_cast<double>(found) / static_cast<double>(all),
          seen / std::max<uint64_t>(1, looks)};
}

int Main(int argc, char** argv) {
  if (argc != 7) return 2;
  const auto whole = ReadTraceFile(argv[2]);
  if (!whole.ok()) return 1;
  const Trace trace = SliceOf(*whole, static_cast<size_t>(std::atoi(argv[3])));
  const double speed = std::atof(argv[4]);
  const int engine_mib = std::atoi(argv[5]), host_mib = std::atoi(argv[6]);
  RedisServers redis({kShards,
                      0,
                      false,
                      {"--maxmemory", absl::StrCat(engine_mib / kShards, "mb"),
                       "--maxmemory-policy", "volatile-ttl", "--maxmemory-samples", "64"}});
  RealFleet fleet(argv[1], redis.addresses(), host_mib, kTtl / speed);
  const Measured real = Replay(trace, speed, &redis, &fleet);
  FleetShape shape;
  shape.nodes = kNodes;
  shape.shards = kShards;
  shape.shared_blocks = real.engine_blocks;
  shape.node_blocks = (static_cast<uint64_t>(host_mib) << 20) / fleet.block_bytes();
  FleetShape bare = shape;
  bare.node_blocks = 0;
  const double share = static_cast<double>(real.engine_blocks) / trace.unique_blocks;
  std::printf(
      "engine of %llu blocks, %.3f of %u: real %.4f, simulated %.4f, without memory of their own "
      "%.4f, one lru store %.4f, one learnt store %.4f\n",
      static_cast<unsigned long long>(real.engine_blocks), share, trace.unique_blocks, real.rate,
      SimulateFleet(trace, shape).found, SimulateFleet(trace, bare).found,
      HitRate(trace, std::nullopt, SimulatedPolicy::kLru, share),
      HitRate(trace, std::nullopt, SimulatedPolicy::kDefault, share));
  return 0;
}

}  // namespace
}  // namespace hearth

int main(int argc, char** argv) { return hearth::Main(argc, argv); }
