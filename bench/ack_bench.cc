// How long a store takes to acknowledge a publish, without a network: for comparing two builds.
//
//   ack_bench FOLDER disk|sync MIB [COUNT]
//
// Publishes COUNT (100) prompts of MIB MiB each, one after the other, into a store in FOLDER, which
// must be absent and is removed. Prints the median and the mean of the wall times from the begin of
// a publish to its acknowledgement, and the processor time of all its threads for each. With COUNT
// 0 it publishes once for each line that it reads, and answers with the milliseconds of wall and
// processor time: builds are compared publish by publish (bench/ack_turns.py), for the device's
// speed is not that of a second ago.
#include <sys/resource.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <string>
#include <vector>

#include "absl/time/clock.h"
#include "bench/bench_model.h"
#include "cache_store/store/tiered_store.h"
#include "proto/restore_rule.h"

namespace hearth {
namespace {

constexpr uint32_t kChunk = 128;
constexpr int kWarmUps = 5;

// One slice of noise for all: keys tell prompts apart.
SliceView NoiseOf(size_t bytes) {
  std::shared_ptr<std::byte> noise = AllocateSlice(bytes);
  uint64_t state = 88172645463325252;
  for (size_t i = 0; i + 8 <= bytes; i += 8) {
    state ^= state << 13, state ^= state >> 7, state ^= state << 17;
    std::memcpy(noise.get() + i, &state, 8);
  }
  return SliceView{noise, absl::Span<const std::byte>(noise.get(), bytes)};
}

double ProcessorSeconds() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& time) { return time.tv_sec + time.tv_usec / 1e6; };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

// Seconds from the begin to the acknowledgement.
double Publish(TieredStore* store, const Fingerprint& model, Durability level, uint64_t seed,
               uint32_t tokens) {
  const KvLayout layout = *model.Layout();
  static const SliceView noise = NoiseOf(layout.SliceBytes(kChunk));
  static const uint64_t digest = SliceDigest(noise.bytes.data(), noise.bytes.size());
  PublishSpec spec;
  spec.fingerprint = model;
  spec.tenant = "default";
  spec.token_ids = BenchTokens(seed, tokens + 1);
  spec.boundaries = {tokens};
  spec.durability = level;
  for (uint32_t begin = 0; begin < tokens; begin += kChunk) {
    PublishObject object;
    object.id = {begin, kChunk, LayerGroup::kGlobal};
    object.slice_digests.assign(layout.LayersOf(LayerGroup::kGlobal).size(), digest);
    spec.objects.push_back(std::move(object));
  }
  const absl::Time start = absl::Now();
  auto session = store->Publish(spec);
  absl::Status status = session.status();
  for (const uint32_t needed : status.ok() ? (*session)->needed() : absl::Span<const uint32_t>()) {
    for (const uint32_t layer : layout.LayersOf(LayerGroup::kGlobal)) {
      if (status.ok()) status = (*session)->PutSlice(needed, layer, noise);
    }
  }
  if (status.ok()) status = (*session)->Commit().status();
  const double seconds = absl::ToDoubleSeconds(absl::Now() - start);
  if (status.ok()) return seconds;
  std::fprintf(stderr, "%s\n", status.ToString().c_str());
  std::exit(1);
}

// As COUNT 0 says.
void TakeTurns(TieredStore* store, const Fingerprint& model, Durability level, uint32_t tokens) {
  char line[16];
  for (uint64_t seed = 1; std::fgets(line, sizeof(line), stdin) != nullptr; ++seed) {
    const double processor = ProcessorSeconds();
    const double seconds = Publish(store, model, level, seed, tokens);
    std::printf("%.4f %.4f\n", seconds * 1e3, (ProcessorSeconds() - processor) * 1e3);
    std::fflush(stdout);
  }
}

void Measure(TieredStore* store, const Fingerprint& model, Durability level, uint32_t tokens,
             int count) {
  std::vector<double> seconds;
  double processor = 0, sum = 0;
  for (int i = 0; i < kWarmUps + count; ++i) {
    if (i == kWarmUps) processor = ProcessorSeconds();
    const double took = Publish(store, model, level, static_cast<uint64_t>(i) + 1, tokens);
    if (i >= kWarmUps) seconds.push_back(took);
  }
  processor = ProcessorSeconds() - processor;
  for (const double took : seconds) sum += took;
  std::sort(seconds.begin(), seconds.end());
  std::printf("median_ms %.4f mean_ms %.4f cpu_ms %.4f\n", seconds[seconds.size() / 2] * 1e3,
              sum / count * 1e3, processor / count * 1e3);
}

int Main(int argc, char** argv) {
  const std::vector<std::string> words(argv + 1, argv + argc);
  const int count = words.size() > 3 ? std::atoi(words[3].c_str()) : 100;
  const int mib = words.size() > 2 ? std::atoi(words[2].c_str()) : 0;
  if (words.size() < 3 || words.size() > 4 || (words[1] != "disk" && words[1] != "sync") ||
      mib < 1 || mib > 256 || count < 0) {
    std::fprintf(stderr, "usage: ack_bench FOLDER disk|sync MIB [COUNT]\n");
    return 2;
  }
  if (!std::filesystem::create_directory(words[0])) return 1;
  const auto level = words[1] == "sync" ? Durability::kSync : Durability::kDisk;
  const Fingerprint model = BenchModel("gggg", 1, 256);  // 1 MiB a chunk
  {
    StoreOptions options;
    options.data_dir = words[0] + "/data";
    options.host_bytes = 0;
    options.disk_bytes = uint64_t{4} << 30;
    auto store = TieredStore::Open(options);
    if (!store.ok()) return 1;
    const uint32_t tokens = static_cast<uint32_t>(mib) * kChunk;
    if (count == 0) {
      TakeTurns(store->get(), model, level, tokens);
    } else {
      Measure(store->get(), model, level, tokens, count);
    }
  }
  std::filesystem::remove_all(words[0]);
  return 0;
}

}  // namespace
}  // namespace hearth

int main(int argc, char** argv) { return hearth::Main(argc, argv); }
