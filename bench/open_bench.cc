// How long a store takes to open a folder of very many restore points, and what its first fetch
// takes.
//
//   open_bench FOLDER [PROMPTS]
//
// Stores PROMPTS prompts (10,000) of 1,280 tokens with a restore point every 128 tokens in FOLDER,
// which must not exist, closes it, and opens it three times.
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "absl/time/clock.h"
#include "bench/bench_model.h"
#include "cache_store/tiered_store.h"
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

int Run(const std::string& folder, uint64_t prompts) {
  const Fingerprint model = ModelOfSmallSlices("lllllg");
  StoreOptions options;
  options.data_dir = folder;
  options.host_bytes = 64 << 20;
  options.scrub_bytes_per_s = 0;
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
  for (int i = 0; i < 3; ++i) {
    const absl::Time start = absl::Now();
    const auto store = TieredStore::Open(options).value();
    const absl::Time opened = absl::Now();
    const PublishSpec asked = Spec(model, prompts / 2);
    const auto session =
        store->Fetch({model.digest(), "default", asked.token_ids, {}}, 0, 0).value();
    const auto slice = session->ReadSlice(0, 5).value();
    const StoreStats stats = store->Stats();
    std::printf("%llu restore points, %llu objects: open %.0f ms, first fetch %.2f ms\n",
                static_cast<unsigned long long>(stats.restore_points),
                static_cast<unsigned long long>(stats.objects),
                absl::ToDoubleMilliseconds(opened - start),
                absl::ToDoubleMilliseconds(absl::Now() - opened));
  }
  return 0;
}

}  // namespace
}  // namespace hearth

int main(int argc, char** argv) {
  if (argc < 2) return 2;
  return hearth::Run(argv[1], argc > 2 ? std::strtoull(argv[2], nullptr, 10) : 10000);
}
