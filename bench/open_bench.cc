// How long after its start a store serves from a folder of very many restore points.
//
//   open_bench FOLDER [PROMPTS]
//
// Stores PROMPTS prompts (10,000) of 1,280 tokens with a restore point every 128 tokens in FOLDER,
// which must not exist, closes it, and opens it six times: three that load the whole index first,
// three that serve meanwhile. Of each: when Open returned, when the first slice of the newest and
// of the oldest prompt was read, which of the two was asked for first, when all was loaded and
// changes were taken, and how long the slowest of the hits on other prompts took until then.
#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "absl/time/clock.h"
#include "bench/bench_model.h"
#include "cache_store/store/tiered_store.h"
#include "proto/restore_rule.h"

namespace hearth {
namespace {

constexpr uint32_t kChunk = 128, kTokens = 10 * kChunk;

PublishSpec Spec(const Fingerprint& model, uint64_t seed) {
  PublishSpec spec;
  spec.fingerprint = model;
  spec.tenant = "default";
  spec.token_ids = BenchTokens(seed, kTokens + 1);
  for (uint32_t end = kChunk; end <= kTokens; end += kChunk) spec.boundaries.push_back(end);
  const KvLayout layout = *model.Layout();
  for (uint32_t begin = 0; begin < kTokens; begin += kChunk) {
    for (const LayerGroup group : {LayerGroup::kGlobal, LayerGroup::kLocal}) {
      PublishObject object;
      object.id = {begin, kChunk, group};
      const std::vector<std::byte> bytes(layout.SliceBytes(kChunk));
      object.slice_digests.assign(layout.LayersOf(group).size(),
                                  SliceDigest(bytes.data(), bytes.size()));
      spec.objects.push_back(std::move(object));
    }
  }
  return spec;
}

absl::Status Publish(TieredStore* store, const Fingerprint& model, uint64_t seed) {
  const PublishSpec spec = Spec(model, seed);
  const KvLayout layout = *model.Layout();
  auto session = store->Publish(spec);
  if (!session.ok()) return session.status();
  const std::vector<std::byte> bytes(layout.SliceBytes(kChunk));
  for (const uint32_t i : (*session)->needed()) {
    for (const uint32_t layer : layout.LayersOf(spec.objects[i].id.group)) {
      const absl::Status put = (*session)->PutSlice(i, layer, SliceView{nullptr, bytes});
      if (!put.ok()) return put;
    }
  }
  return (*session)->Commit().status();
}

// Since `start`, in milliseconds.
double Ms(absl::Time start) { return absl::ToDoubleMilliseconds(absl::Now() - start); }

void FirstHit(TieredStore* store, const Fingerprint& model, uint64_t seed) {
  const PublishSpec asked = Spec(model, seed);
  const auto session =
      store->Fetch({model.digest(), "default", asked.token_ids, {}, ""}, 0, 0).value();
  if (session->plan().usable_tokens != kTokens) std::printf("not a hit: ");
  session->ReadSlice(0, 5).value();
}

// Waits for the index; false: not long enough.
bool TakesChanges(TieredStore* store) {
  return absl::IsNotFound(store->SetPinned(Digest{}, "default", true).status());
}

void Reopen(const StoreOptions& options, const Fingerprint& model, uint64_t prompts,
            bool oldest_first) {
  const absl::Time start = absl::Now();
  const auto store = TieredStore::Open(options).value();
  const double opened = Ms(start);
  double hit[2];  // of the newest, of the oldest
  for (const bool oldest : {oldest_first, !oldest_first}) {
    FirstHit(store.get(), model, oldest ? 0 : prompts - 1);
    hit[oldest ? 1 : 0] = Ms(start);
  }
  double loaded = 0;
  std::atomic<bool> is_loaded{false};
  std::thread changes([&] {
    while (!TakesChanges(store.get())) {
    }
    loaded = Ms(start);
    is_loaded.store(true);
  });
  double slowest = 0;
  std::mt19937_64 random(1);
  for (uint64_t seed = prompts / 2; !is_loaded.load(); seed = random() % prompts) {
    const absl::Time asked = absl::Now();
    FirstHit(store.get(), model, seed);
    slowest = std::max(slowest, Ms(asked));
    absl::SleepFor(absl::Milliseconds(1));
  }
  changes.join();
  const StoreStats stats = store->Stats();
  std::printf(
      "%s: open %.0f ms, first hit of the newest prompt %.1f, of the oldest %.1f%s, all "
      "loaded %.0f, slowest hit meanwhile %.1f; %llu restore points, %llu objects\n",
      options.load_in_background ? "serves meanwhile" : "loads first", opened, hit[0], hit[1],
      oldest_first ? " (asked for first)" : "", loaded, slowest,
      static_cast<unsigned long long>(stats.restore_points),
      static_cast<unsigned long long>(stats.objects));
}

int Run(const std::string& folder, uint64_t prompts) {
  const Fingerprint model = ModelOfSmallSlices("lllllg");
  StoreOptions options;
  options.data_dir = folder;
  options.host_bytes = 64 << 20;
  options.scrub.bytes_per_s = 0;
  {
    const auto store = TieredStore::Open(options).value();
    for (uint64_t seed = 0; seed < prompts; ++seed) {
      const absl::Status stored = Publish(store.get(), model, seed);
      if (!stored.ok()) {
        std::fprintf(stderr, "%s\n", stored.ToString().c_str());
        return 1;
      }
    }
  }
  for (int i = 0; i < 6; ++i) {
    options.load_in_background = i % 2 == 1;
    Reopen(options, model, prompts, /*oldest_first=*/i / 2 % 2 == 1);
  }
  return 0;
}

}  // namespace
}  // namespace hearth

int main(int argc, char** argv) {
  if (argc < 2) return 2;
  return hearth::Run(argv[1], argc > 2 ? std::strtoull(argv[2], nullptr, 10) : 10000);
}
