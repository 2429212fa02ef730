// Measures how fast the store accepts, returns and recovers restore points on this machine.
//
//   store_bench FOLDER GIB
//
// Publishes restore points of 2,048 tokens of the 270M's geometry (float32, C=128: 28 MB each in
// slices of 256 KiB) until GIB are on disk. Fetches some from RAM and, after reopening, from disk:
// first from the device, because tables are written past the page cache, then from the page cache.
// Takes turns with a memcpy of the same number of bytes between warm buffers. Prints a row for
// each. FOLDER must be empty or absent.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "absl/time/clock.h"
#include "bench/bench_model.h"
#include "cache_store/store/tiered_store.h"
#include "proto/restore_rule.h"
#include "services/serving/process.h"

namespace hearth {
namespace {

constexpr uint32_t kTokens = 2048;
constexpr size_t kCopiedSlices = 2048;  // slices to copy with memcpy: 512 MiB

// Returns a slice of random bytes. All slices are windows into one buffer, so creating a slice
// costs nothing.
SliceView Noise(uint64_t seed, size_t bytes) {
  constexpr size_t kNoiseBytes = size_t{64} << 20;
  static const std::shared_ptr<std::byte> noise = [] {
    std::shared_ptr<std::byte> memory = AllocateSlice(kNoiseBytes);
    uint64_t state = 88172645463325252;
    for (size_t i = 0; i < kNoiseBytes; i += 8) {
      state ^= state << 13, state ^= state >> 7, state ^= state << 17;
      std::memcpy(memory.get() + i, &state, 8);
    }
    return memory;
  }();
  const size_t offset = seed * 64 * 40503 % (kNoiseBytes - bytes) / 64 * 64;
  return SliceView{noise, absl::Span<const std::byte>(noise.get() + offset, bytes)};
}

class Bench {
 public:
  explicit Bench(const std::string& folder) { options_.data_dir = folder; }

  void Open(uint64_t host_bytes) {
    store_.reset();
    options_.host_bytes = host_bytes;
    options_.disk_bytes = uint64_t{200} << 30;
    const absl::Time start = absl::Now();
    auto store = TieredStore::Open(options_);
    if (!store.ok()) {
      std::fprintf(stderr, "%s\n", store.status().ToString().c_str());
      std::exit(1);
    }
    store_ = *std::move(store);
    std::printf("%-34s %8.3f s\n", "open", absl::ToDoubleSeconds(absl::Now() - start));
  }

  uint64_t Publish(uint64_t first, uint64_t count, Durability level) {
    uint64_t bytes = 0;
    absl::Duration spent;
    for (uint64_t seed = first; seed < first + count; ++seed) {
      PublishSpec spec = Spec(seed, level);
      const absl::Time start = absl::Now();
      auto session = store_->Publish(spec).value();
      for (const uint32_t i : session->needed()) {
        for (const uint32_t layer : layout_.LayersOf(spec.objects[i].id.group)) {
          const absl::Status put = session->PutSlice(i, layer, SliceOf(seed, i, layer));
          if (!put.ok()) std::exit(2);
        }
      }
      bytes += session->Commit().value().bytes_received;
      spent += absl::Now() - start;
    }
    Row("publish, acknowledged " + std::string(DurabilityName(level)), bytes, spent);
    return bytes;
  }

  // Fetches prompts `first` to `first` + `count` - 1. Returns GB/s.
  double Fetch(const char* what, uint64_t first, uint64_t count) {
    uint64_t bytes = 0;
    absl::Duration spent, lookups;
    for (uint64_t seed = first; seed < first + count; ++seed) {
      const PrefixQuery query{model_.digest(), "default", BenchTokens(seed, kTokens + 1), {}, ""};
      const absl::Time start = absl::Now();
      auto session = store_->Fetch(query, 0, 0).value();
      lookups += absl::Now() - start;
      const LookupPlan& plan = session->plan();
      if (plan.usable_tokens != kTokens) std::exit(3);
      for (size_t i = 0; i < plan.objects.size(); ++i) {
        for (const uint32_t layer : layout_.LayersOf(plan.objects[i].id.group)) {
          bytes += session->ReadSlice(i, layer).value().bytes.size();
        }
      }
      spent += absl::Now() - start;
    }
    Row(what, bytes, spent);
    std::printf("%-34s %8.3f ms\n", "  of which lookup, each",
                absl::ToDoubleMilliseconds(lookups) / static_cast<double>(count));
    return static_cast<double>(bytes) / 1e9 / absl::ToDoubleSeconds(spent);
  }

  void BesideMemcpy(const char* what, uint64_t first, uint64_t count) {
    constexpr int kTurns = 7;
    const size_t slice_bytes = layout_.SliceBytes(128);
    const std::vector<char> from(kCopiedSlices * slice_bytes, 1);
    std::vector<char> to(from.size(), 2);
    std::vector<double> ratios;
    for (int i = 0; i < kTurns; ++i) {
      const double fetched = Fetch(what, first, count);
      const absl::Time start = absl::Now();
      for (size_t at = 0; at < from.size(); at += slice_bytes) {
        std::memcpy(to.data() + at, from.data() + at, slice_bytes);
      }
      const absl::Duration spent = absl::Now() - start;
      Row("memcpy, warm", from.size(), spent);
      ratios.push_back(fetched * 1e9 * absl::ToDoubleSeconds(spent) / from.size());
    }
    std::sort(ratios.begin(), ratios.end());
    std::printf("%-34s %8.2f of memcpy (median of %d turns)\n", what, ratios[kTurns / 2], kTurns);
  }

 private:
  SliceView SliceOf(uint64_t seed, uint32_t object, uint32_t layer) const {
    return Noise(seed * 1000003 + object * 64 + layer, layout_.SliceBytes(128));
  }
  PublishSpec Spec(uint64_t seed, Durability level) const {
    PublishSpec spec;
    spec.fingerprint = model_;
    spec.tenant = "default";
    spec.token_ids = BenchTokens(seed, kTokens + 1);
    spec.boundaries = {kTokens};
    spec.durability = level;
    for (const ObjectId& id : NeededObjects(layout_, kTokens)) {
      PublishObject object;
      object.id = id;
      for (const uint32_t layer : layout_.LayersOf(id.group)) {
        const SliceView view = SliceOf(seed, static_cast<uint32_t>(spec.objects.size()), layer);
        object.slice_digests.push_back(SliceDigest(view.bytes.data(), view.bytes.size()));
      }
      spec.objects.push_back(std::move(object));
    }
    return spec;
  }
  static void Row(const std::string& what, uint64_t bytes, absl::Duration spent) {
    std::printf("%-34s %8.3f GB/s\n", what.c_str(),
                static_cast<double>(bytes) / 1e9 / absl::ToDoubleSeconds(spent));
  }

  StoreOptions options_;
  const Fingerprint model_ = Model270M();
  const KvLayout layout_ = model_.Layout().value();
  std::unique_ptr<TieredStore> store_;
};

}  // namespace
}  // namespace hearth

int main(int argc, char** argv) {
  if (argc != 3) {
    std::fprintf(stderr, "usage: store_bench FOLDER GIB\n");
    return 64;
  }
  const uint64_t points = static_cast<uint64_t>(std::atof(argv[2]) * (1 << 30) / 28.3e6);
  hearth::KeepFreedMemory();  // as hearth-store does at its start
  hearth::Bench bench(argv[1]);
  bench.Open(uint64_t{2} << 30);
  bench.Publish(0, points, hearth::Durability::kDisk);
  bench.Publish(points, 8, hearth::Durability::kSync);
  bench.Fetch("fetch from RAM, verified", points, 8);
  bench.Open(0);
  bench.Fetch("fetch from disk, device", points - 20, 20);
  bench.BesideMemcpy("fetch from disk, again: page cache", points - 20, 20);
  return 0;
}
