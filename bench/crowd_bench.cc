// The cost of a publish in a store that holds very many restore points, where it has to make room.
//
//   crowd_bench [POINTS]
//
// Fills a RAM-only store with POINTS (100,000) prompts of 1,024 tokens, all different, and then
// publishes more under each of the rules by which something has to go: the store is full; full with
// a pin; full beside a tenant that is guaranteed half of it; a tenant at its ceiling that has few
// points, or half of all. Prints percentiles of a whole publish, and of listing a small tenant.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "absl/time/clock.h"
#include "bench/bench_model.h"
#include "cache_store/store/tiered_store.h"
#include "proto/restore_rule.h"

namespace hearth {
namespace {

constexpr uint32_t kTokens = 1024;
constexpr uint64_t kFew = 50;
constexpr int kPublishes = 200;

class Crowd {
 public:
  Crowd() : memory_(AllocateSlice(slice_bytes())) {
    digest_ = SliceDigest(memory_.get(), slice_bytes());
  }
  uint64_t point_bytes() const { return kTokens / 128 * slice_bytes(); }

  void Open(uint64_t points, RetentionPolicy policy, const TenantQuotas& quotas) {
    StoreOptions options;
    options.disk_bytes = 0;
    options.host_bytes = points * point_bytes();
    options.default_durability = Durability::kMemory;
    options.quotas = quotas;
    options.retention = policy;
    store_ = TieredStore::Open(options).value();
  }
  void Fill(const std::string& tenant, uint64_t points) {
    for (uint64_t i = 0; i < points; ++i) Publish(tenant);
  }
  double PublishUs(const std::string& tenant) {
    const absl::Time start = absl::Now();
    Publish(tenant);
    return absl::ToDoubleMicroseconds(absl::Now() - start);
  }
  TieredStore* store() { return store_.get(); }

 private:
  uint64_t slice_bytes() const { return layout_.SliceBytes(128); }
  void Publish(const std::string& tenant) {
    PublishSpec spec;
    spec.fingerprint = model_;
    spec.tenant = tenant;
    spec.token_ids = BenchTokens(++seed_, kTokens);
    spec.boundaries = {kTokens};
    for (const ObjectId& id : NeededObjects(layout_, kTokens)) {
      spec.objects.push_back({id, {digest_}});
    }
    auto session = store_->Publish(spec).value();
    const absl::Span<const std::byte> bytes(memory_.get(), slice_bytes());
    for (const uint32_t i : session->needed()) {
      if (!session->PutSlice(i, 0, SliceView{memory_, bytes}).ok()) std::abort();
    }
    if (session->Commit()->boundaries.empty()) std::abort();
  }

  const Fingerprint model_ = ModelOfSmallSlices("g");
  const KvLayout layout_ = *model_.Layout();
  const std::shared_ptr<std::byte> memory_;
  uint64_t digest_ = 0;
  uint64_t seed_ = 0;
  std::unique_ptr<TieredStore> store_;
};

void Print(const char* what, std::vector<double> us) {
  std::sort(us.begin(), us.end());
  std::printf("  %-46s p50 %9.1f us   p99 %9.1f us\n", what, us[us.size() / 2],
              us[us.size() * 99 / 100]);
}

void Measure(Crowd* crowd, const char* what, const std::string& tenant) {
  std::vector<double> us;
  for (int i = 0; i < kPublishes; ++i) us.push_back(crowd->PublishUs(tenant));
  Print(what, std::move(us));
}

void RunPolicy(uint64_t points, RetentionPolicy policy) {
  Crowd crowd;
  const uint64_t unit = crowd.point_bytes();
  crowd.Open(2 * points, policy, {});
  crowd.Fill("a", points);
  Measure(&crowd, "room for all", "a");

  crowd.Open(points, policy, {});
  crowd.Fill("a", points);
  Measure(&crowd, "full", "a");
  const RestorePoint pinned = crowd.store()->List("a").front();
  if (!crowd.store()->SetPinned(pinned.id, "a", true).ok()) std::abort();
  Measure(&crowd, "full, one point pinned", "a");
  crowd.Fill("b", kFew);
  std::vector<double> us;
  for (int i = 0; i < kPublishes; ++i) {
    const absl::Time start = absl::Now();
    if (crowd.store()->List("b").size() != kFew) std::abort();
    us.push_back(absl::ToDoubleMicroseconds(absl::Now() - start));
  }
  Print("listing a tenant of 50 points", std::move(us));

  TenantQuotas quotas;
  quotas.by_tenant["floor"].floor_bytes = points / 2 * unit;
  crowd.Open(points, policy, quotas);
  crowd.Fill("floor", points / 2);
  crowd.Fill("a", points / 2);
  Measure(&crowd, "full, half of it guaranteed to another", "a");

  quotas = {};
  quotas.by_tenant["few"].max_bytes = kFew * unit;
  quotas.by_tenant["half"].max_bytes = points / 2 * unit;
  crowd.Open(2 * points, policy, quotas);
  crowd.Fill("a", points / 2);
  crowd.Fill("half", points / 2);
  crowd.Fill("few", kFew);
  Measure(&crowd, "a tenant of 50 points at its ceiling", "few");
  Measure(&crowd, "a tenant of half of all at its ceiling", "half");
}

}  // namespace
}  // namespace hearth

int main(int argc, char** argv) {
  const int points = argc > 1 ? std::atoi(argv[1]) : 100'000;
  if (points < 1000) {
    std::fprintf(stderr, "usage: crowd_bench [POINTS], at least 1000\n");
    return 2;
  }
  for (const bool lru : {false, true}) {
    std::printf("%d restore points, --retention %s\n", points, lru ? "lru" : "default");
    hearth::RunPolicy(static_cast<uint64_t>(points),
                      lru ? hearth::RetentionPolicy::kLru : hearth::RetentionPolicy::kDefault);
  }
}
