// How long requests about one very long restore point keep others from the store's mutex.
//
//   hold_bench [SECONDS]
//
// One tenant has a restore point of 65,536 chunks of 16 tokens, in RAM, and asks for it by Explain,
// List, Fetch, Quarantine, Drop and Publish, one after the other without a pause, SECONDS (5) each;
// another one fetches prompts of 4,096 tokens all the time. Prints for each call the longest hold
// of the mutex, which the store counts, and the percentiles of the other's fetches meanwhile.
#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "bench/bench_model.h"
#include "cache_store/store/store_core.h"
#include "cache_store/store/store_seams.h"
#include "proto/restore_rule.h"

namespace hearth {
namespace {

constexpr uint32_t kChunk = 16, kLong = 1u << 20, kShort = 4096;
constexpr uint64_t kShortPrompts = 64;

class HoldBench {
 public:
  explicit HoldBench(SteppedStore* store)
      : store_(store),
        model_(Fingerprint::Create({{"chunk_tokens", uint64_t{kChunk}},
                                    {"window", uint64_t{512}},
                                    {"kv_heads", uint64_t{1}},
                                    {"head_dim", uint64_t{2}},
                                    {"kv_dtype", std::string("bfloat16")},
                                    {"exactness", std::string("exact")},
                                    {"layer_types", std::string("lg")},
                                    {"object_layout", uint64_t{1}},
                                    {"codec", std::string("raw")}})
                   .value()) {
    for (uint64_t seed = 0; seed < kShortPrompts; ++seed) Publish("other", seed, kShort);
    Publish("long", 1000, kLong);
    others_ = std::thread([this] { FetchOthers(); });
  }
  ~HoldBench() {
    stop_ = true;
    others_.join();
  }

  // Calls `step` for so long. `prepare`: before each, when nothing is measured.
  void Measure(const char* what, absl::Duration time, const std::function<void()>& step,
               const std::function<void()>& prepare = nullptr) {
    others_ms_.clear();
    absl::Duration longest, mean;
    int steps = 0;
    for (const absl::Time end = absl::Now() + time; absl::Now() < end; ++steps) {
      if (prepare) prepare();
      TakeLongestHold();
      is_measured_ = true;
      const absl::Time start = absl::Now();
      step();
      mean += absl::Now() - start;
      longest = std::max(longest, TakeLongestHold());
      is_measured_ = false;
      while (is_fetching_) std::this_thread::yield();
    }
    std::sort(others_ms_.begin(), others_ms_.end());
    const auto percentile = [this](size_t of_1000) {
      return others_ms_.empty() ? 0 : others_ms_[others_ms_.size() * of_1000 / 1000];
    };
    std::printf(
        "%-11s %6d calls of %8.2f ms   longest hold %7.2f ms   the other's %7zu fetches: "
        "p50 %6.3f  p99 %6.3f  p99.9 %7.3f ms\n",
        what, steps, absl::ToDoubleMilliseconds(mean) / std::max(steps, 1),
        absl::ToDoubleMilliseconds(longest), others_ms_.size(), percentile(500), percentile(990),
        percentile(999));
  }
  // Since the last call.
  absl::Duration TakeLongestHold() {
    StoreCore* const core = store_->core();
    StoreLock lock(core);
    return std::exchange(core->longest_hold, absl::ZeroDuration());
  }
  void PublishLong() { Publish("long", 1000, kLong); }
  PrefixQuery LongQuery() const {
    return PrefixQuery{model_.digest(), "long", BenchTokens(1000, kLong), {}, ""};
  }
  static void Must(bool is_true, const char* what) {
    if (is_true) return;
    std::fprintf(stderr, "hold_bench: %s failed\n", what);
    std::exit(1);
  }

 private:
  void Publish(const std::string& tenant, uint64_t seed, uint32_t tokens) {
    const KvLayout layout = *model_.Layout();
    const std::vector<std::byte> zeros(layout.SliceBytes(kChunk));
    const uint64_t digest = SliceDigest(zeros.data(), zeros.size());
    PublishSpec spec;
    spec.fingerprint = model_;
    spec.tenant = tenant;
    spec.token_ids = BenchTokens(seed, tokens);
    spec.boundaries = {tokens};
    for (const ObjectId& id : NeededObjects(layout, tokens)) spec.objects.push_back({id, {digest}});
    auto session = store_->Publish(spec).value();
    for (const uint32_t i : session->needed()) {
      const uint32_t layer = layout.LayersOf(spec.objects[i].id.group)[0];
      Must(session->PutSlice(i, layer, SliceView{nullptr, zeros}).ok(), "put");
    }
    Must(session->Commit()->boundaries.size() == 1, "publish");
  }
  void FetchOthers() {
    for (uint64_t seed = 0; !stop_; seed = (seed + 1) % kShortPrompts) {
      is_fetching_ = true;
      const bool counts = is_measured_;
      const PrefixQuery query{model_.digest(), "other", BenchTokens(seed, kShort + 1), {}, ""};
      const absl::Time start = absl::Now();
      Must(store_->Fetch(query, 0, 0).value()->plan().usable_tokens == kShort, "fetch");
      if (counts) others_ms_.push_back(absl::ToDoubleMilliseconds(absl::Now() - start));
      is_fetching_ = false;
      while (!is_measured_ && !stop_) std::this_thread::yield();
    }
  }

  SteppedStore* const store_;
  const Fingerprint model_;
  std::atomic<bool> stop_{false}, is_measured_{false}, is_fetching_{false};
  std::vector<double> others_ms_;  // of the thread while it measures
  std::thread others_;
};

int Run(absl::Duration time) {
  StoreOptions options;
  options.disk_bytes = 0;
  options.host_bytes = uint64_t{4} << 30;
  options.default_durability = Durability::kMemory;
  const std::unique_ptr<TieredStore> store = OpenStore(options, StoreSeams()).value();
  HoldBench bench(static_cast<SteppedStore*>(store.get()));
  const PrefixQuery query = bench.LongQuery();
  bench.Measure("alone", time, [] { absl::SleepFor(absl::Milliseconds(100)); });
  bench.Measure("Explain", time,
                [&] { bench.Must(store->Explain(query)->matched_tokens == kLong, "explain"); });
  bench.Measure("List", time, [&] { bench.Must(store->List("long").size() == 1, "list"); });
  bench.Measure("Fetch", time, [&] {
    bench.Must(store->Fetch(query, 0, kLong).value()->plan().usable_tokens == kLong, "long fetch");
  });
  bench.Measure(
      "Quarantine", time,
      [&] {
        bench.Must(store->Quarantine(query, {{0, kChunk, LayerGroup::kGlobal}}).ok(), "out");
      },
      [&] { bench.PublishLong(); });
  bench.Measure(
      "Drop", time, [&] { bench.Must(store->DropAll("long", true).ok(), "drop"); },
      [&] { bench.PublishLong(); });
  bench.Measure(
      "Publish", time, [&] { bench.PublishLong(); },
      [&] { bench.Must(store->DropAll("long", true).ok(), "drop"); });
  return 0;
}

}  // namespace
}  // namespace hearth

int main(int argc, char** argv) {
  const int seconds = argc > 1 ? std::atoi(argv[1]) : 5;
  if (seconds < 1) {
    std::fprintf(stderr, "usage: hold_bench [SECONDS]\n");
    return 2;
  }
  return hearth::Run(absl::Seconds(seconds));
}
