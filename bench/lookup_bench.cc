// How long the store takes to find the restore point of a long prompt when it knows very many.
//
//   lookup_bench [PROMPTS]
//
// Stores PROMPTS prompts (3,907: a million chunks of 128 tokens) of 32,768 tokens each, all
// different from the first chunk on, in RAM; then looks random ones up and prints percentiles, and
// how much of a lookup is the hashing of its tokens. Then another tenant looks up prompts of this
// one and prompts that nobody stored, by turns: it must not be able to tell them apart by the time.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/time/clock.h"
#include "bench/bench_model.h"
#include "cache_store/store/tiered_store.h"
#include "proto/prefix_key.h"
#include "proto/restore_rule.h"

namespace hearth {
namespace {

constexpr uint32_t kTokens = 32768;
constexpr int kLookups = 2000;

void Percentiles(const char* what, std::vector<double> us) {
  std::sort(us.begin(), us.end());
  std::printf("%-44s p50 %7.1f us   p99 %7.1f us\n", what, us[us.size() / 2],
              us[us.size() * 99 / 100]);
}

int LookUpAsAnother(TieredStore* store, const Fingerprint& model, uint64_t prompts) {
  store->Observe(model, "other");
  std::vector<double> times[2];
  for (int i = 0; i < kLookups; ++i) {
    for (const bool stored : {false, true}) {
      const uint64_t seed = static_cast<uint64_t>(i) * 2654435761u % prompts;
      PrefixQuery query{model.digest(), "other", BenchTokens(seed, kTokens + 1), {}, ""};
      if (!stored) query.token_ids[0] ^= 1;
      const absl::Time start = absl::Now();
      const auto session = store->Fetch(query, 0, 0).value();
      times[stored].push_back(absl::ToDoubleMicroseconds(absl::Now() - start));
      if (session->plan().matched_tokens != 0) return 1;
    }
  }
  Percentiles("another tenant: what nobody stored", std::move(times[false]));
  Percentiles("another tenant: what this one stored", std::move(times[true]));
  return 0;
}

int Run(uint64_t prompts) {
  const Fingerprint model = ModelOfSmallSlices("g");
  const KvLayout layout = *model.Layout();
  StoreOptions options;
  options.disk_bytes = 0;
  options.host_bytes = uint64_t{64} << 30;
  options.default_durability = Durability::kMemory;
  auto store = TieredStore::Open(options);
  if (!store.ok()) {
    std::fprintf(stderr, "%s\n", store.status().ToString().c_str());
    return 1;
  }
  // All slices share one piece of memory: what is measured is the index.
  const SliceView slice{AllocateSlice(layout.SliceBytes(128)), {}};
  const absl::Span<const std::byte> bytes(static_cast<const std::byte*>(slice.owner.get()),
                                          layout.SliceBytes(128));
  const uint64_t digest = SliceDigest(bytes.data(), bytes.size());
  for (uint64_t seed = 0; seed < prompts; ++seed) {
    PublishSpec spec;
    spec.fingerprint = model;
    spec.tenant = "default";
    spec.token_ids = BenchTokens(seed, kTokens);
    spec.boundaries = {kTokens};
    for (const ObjectId& id : NeededObjects(layout, kTokens))
      spec.objects.push_back({id, {digest}});
    auto session = (*store)->Publish(spec).value();
    for (const uint32_t i : session->needed()) {
      if (!session->PutSlice(i, 0, SliceView{slice.owner, bytes}).ok()) return 1;
    }
    if (session->Commit()->boundaries.empty()) return 1;
    if (seed % 500 == 499) std::fprintf(stderr, "%llu prompts\n", (unsigned long long)seed + 1);
  }
  std::vector<double> lookups, hashes;
  for (int i = 0; i < kLookups; ++i) {
    const uint64_t seed = static_cast<uint64_t>(i) * 2654435761u % prompts;
    const PrefixQuery query{model.digest(), "default", BenchTokens(seed, kTokens + 1), {}, ""};
    absl::Time start = absl::Now();
    const auto session = (*store)->Fetch(query, 0, 0).value();
    lookups.push_back(absl::ToDoubleMicroseconds(absl::Now() - start));
    if (session->plan().usable_tokens != kTokens) return 1;
    start = absl::Now();
    Digest key = RootKey(model.digest(), query.tenant, "secret");
    for (uint32_t at = 0; at < kTokens; at += 128) {
      key = SegmentKey(key, absl::MakeConstSpan(query.token_ids).subspan(at, 128), {});
    }
    hashes.push_back(absl::ToDoubleMicroseconds(absl::Now() - start));
  }
  std::printf("%llu chunks of 128 tokens, prompts of %u tokens, %d lookups\n",
              (unsigned long long)(prompts * kTokens / 128), kTokens, kLookups);
  Percentiles("lookup: plan and references", std::move(lookups));
  Percentiles("of which hashing, measured alone", std::move(hashes));
  return LookUpAsAnother(store->get(), model, prompts);
}

}  // namespace
}  // namespace hearth

int main(int argc, char** argv) {
  const int prompts = argc > 1 ? std::atoi(argv[1]) : 3907;
  if (prompts < 1) {
    std::fprintf(stderr, "usage: lookup_bench [PROMPTS]\n");
    return 2;
  }
  return hearth::Run(static_cast<uint64_t>(prompts));
}
