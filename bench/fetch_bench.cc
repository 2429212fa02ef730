// Measures how long a worker waits for its store over loopback TCP: fetch and publish of a
// 2,048-token prefix of the 270M (28.3 MB of float32), in milliseconds and GB/s, compared with a
// memcpy of the same bytes.
//
// With --shared: how fast a prefix of Gemma 3 4B is copied from shared memory and verified, on one
// thread compared with more, and compared with hashing without a copy. The times alternate.
//
// Usage: fetch_bench [repetitions] [listen address]
//        fetch_bench --shared [pairs] [tokens]

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/time/clock.h"
#include "bench/bench_kit.h"
#include "bench/turns.h"
#include "cache_store/memory/host_arena.h"
#include "cache_store/store/tiered_store.h"
#include "services/inference/remote_prefix_cache.h"
#include "services/inference/slice_copier.h"
#include "services/rpc/transport_options.h"
#include "services/serving/process.h"
#include "services/serving/server/server_runner.h"
#include "services/store/cache_service.h"

namespace hearth {
namespace {

void Report(const char* what, int repetitions, uint64_t bytes, const std::function<void()>& run) {
  std::vector<double> ms;
  run();
  for (int i = 0; i < repetitions; ++i) {
    const absl::Time start = absl::Now();
    run();
    ms.push_back(absl::ToDoubleMilliseconds(absl::Now() - start));
  }
  std::sort(ms.begin(), ms.end());
  const double median = ms[ms.size() / 2];
  std::printf("%-28s %6.1f MB  best %6.1f ms  median %6.1f ms  worst %6.1f ms  %5.2f GB/s\n", what,
              bytes / 1e6, ms.front(), median, ms.back(), bytes / median / 1e6);
}

int Run(int repetitions, const std::string& listen) {
  KeepFreedMemory();
  const Fingerprint fingerprint = Model270M();
  const KvLayout layout = *fingerprint.Layout();
  StoreOptions options;
  options.disk_bytes = 0;
  options.default_durability = Durability::kMemory;
  auto store = TieredStore::Open(options);
  if (!store.ok()) return FailToStart("fetch_bench", store.status());
  Admission admission;
  CacheService service(store->get(), &admission, "bench");
  auto server = ServerRunner::Start(listen, {{"hearth.v1.CacheStore", &service}}, &admission);
  if (!server.ok()) return FailToStart("fetch_bench", server.status());
  CacheCounters counters;
  RemotePrefixCache cache(*ConnectToStore((*server)->address()), fingerprint, layout, &counters);

  const PublishRequestSpec spec = BenchSpec(layout, 0);
  uint64_t bytes = 0;
  for (const auto& object : spec.objects) bytes += object->size_bytes;
  std::vector<char> copy(bytes);
  Report("memcpy", repetitions, bytes, [&] {
    size_t at = 0;
    for (const auto& object : spec.objects) {
      std::memcpy(copy.data() + at, object->bytes.get(), object->size_bytes);
      at += object->size_bytes;
    }
  });
  Report("publish", repetitions, bytes, [&] {
    (*store)->DropAll("default", true).status().IgnoreError();
    const PublishOutcome outcome = cache.Publish(spec, absl::InfiniteDuration());
    if (outcome.bytes_sent != bytes) std::printf("publish: %s\n", outcome.note.c_str());
  });
  PrefixRequest wanted = spec.prefix;
  wanted.token_ids.push_back(7);
  Report("fetch", repetitions, bytes, [&] {
    const FetchOutcome outcome = cache.Fetch(wanted, 0, kTokens, absl::InfiniteDuration());
    if (outcome.usable_tokens != kTokens) std::printf("fetch: %s\n", outcome.note.c_str());
  });
  return 0;
}

// A prefix in shared memory, and its fetch.
class SharedPrefix {
 public:
  SharedPrefix(const KvLayout& layout, uint32_t tokens) : layout_(layout), tokens_(tokens) {
    const PublishRequestSpec spec = BenchSpec(layout, 0, tokens);
    for (const auto& object : spec.objects) bytes_ += object->size_bytes;
    ArenaOptions options;
    options.capacity_bytes = options.ahead_bytes = bytes_ + options.slab_bytes;
    options.shared = true;
    arena_ = *HostArena::Create(options);
    arena_->WaitUntilAhead();
    segment_ = *MappedSegment::Map(FileDescriptor(dup(arena_->segment_fd())));
    for (size_t i = 0; i < spec.objects.size(); ++i) Add(i, *spec.objects[i]);
  }
  uint64_t bytes() const { return bytes_; }
  void Copy(SliceCopier* copier) const {
    auto builder = ObjectBuilder::Create(layout_, tokens_, announced_);
    RequireOk(builder.status());
    RequireOk(copier->Copy(plan_, *segment_, &*builder));
    RequireOk(builder->Take().status());
  }
  void Hash() const {
    for (int i = 0; i < plan_.objects_size(); ++i) {
      const size_t bytes = layout_.SliceBytes(announced_[plan_.objects(i)].id.tokens);
      const SegmentRange range{plan_.offsets(i), bytes, plan_.generations(i)};
      const uint64_t digest = SliceDigest(segment_->At(range), bytes);
      if (digest != digests_[i]) RequireOk(absl::DataLossError("a slice has another digest"));
    }
  }

 private:
  void Add(size_t index, const KvObject& object) {
    const size_t bytes = layout_.SliceBytes(object.id.tokens);
    const std::byte* from = object.bytes.get();
    for (const uint32_t layer : layout_.LayersOf(object.id.group)) {
      memory_.push_back(arena_->Allocate(bytes));
      std::memcpy(memory_.back().get(), from, bytes);
      const SegmentRange range = *arena_->RangeOf(memory_.back().get(), bytes);
      plan_.add_objects(static_cast<uint32_t>(index));
      plan_.add_layers(layer);
      plan_.add_offsets(range.offset);
      plan_.add_generations(range.generation);
      digests_.push_back(SliceDigest(from, bytes));
      from += bytes;
    }
    announced_.push_back({object.id, object.slice_digests});
  }

  const KvLayout layout_;
  const uint32_t tokens_;
  uint64_t bytes_ = 0;
  std::shared_ptr<HostArena> arena_;
  std::shared_ptr<const MappedSegment> segment_;
  std::vector<std::shared_ptr<std::byte>> memory_;
  std::vector<ObjectBuilder::Announced> announced_;
  std::vector<uint64_t> digests_;  // of each slice of the plan
  v1::SharedSlices plan_;
};

int RunShared(int pairs, uint32_t tokens) {
  const SharedPrefix prefix(*Model4B().Layout(), tokens);
  SliceCopier one({1});
  const auto copy_on_one = [&] { prefix.Copy(&one); };
  const auto report = [&](const char* what, int threads, const Turns& turns) {
    std::printf("%-13s %d  %7.3f ms %6.2f GB/s; copy on one thread %7.3f ms %6.2f GB/s; x%.2f\n",
                what, threads, turns.ours * 1e3, prefix.bytes() / turns.ours / 1e9,
                turns.theirs * 1e3, prefix.bytes() / turns.theirs / 1e9, turns.ratio);
  };
  std::printf("%u tokens, %.1f MB, medians of %d pairs\n", tokens, prefix.bytes() / 1e6, pairs);
  copy_on_one();  // the objects' memory is recycled from now on
  const auto hash = [&] { prefix.Hash(); };
  report("hash only", 1, Turns(pairs, hash, copy_on_one));
  const int most = std::min(ThreadPool::PhysicalCores(), SliceCopierOptions::kMaxThreads);
  for (int threads = 2; threads <= most; threads *= 2) {
    SliceCopier several({threads, /*bytes_per_thread=*/1});
    const auto copy_on_several = [&] { prefix.Copy(&several); };
    report("copy, threads", threads, Turns(pairs, copy_on_several, copy_on_one));
  }
  return 0;
}

}  // namespace
}  // namespace hearth

int main(int argc, char** argv) {
  const std::vector<std::string> words(argv + 1, argv + argc);
  const auto number = [&](size_t index, int otherwise) {
    return words.size() > index ? std::atoi(words[index].c_str()) : otherwise;
  };
  if (!words.empty() && words[0] == "--shared") {
    return hearth::RunShared(number(1, 21), static_cast<uint32_t>(number(2, hearth::kTokens)));
  }
  return hearth::Run(number(0, 20), words.size() > 1 ? words[1] : "127.0.0.1:0");
}
