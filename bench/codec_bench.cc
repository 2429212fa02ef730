// Savings and cost of compressing real KV: every restore point of a data folder, slice by
// slice, one thread. The store must not be running.
//   codec_bench DATA_DIR
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "cache_store/disk/slice_codec.h"
#include "cache_store/store/tiered_store.h"

namespace hearth {
namespace {

using Clock = std::chrono::steady_clock;

double Since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

struct Sums {
  uint64_t slices = 0, raw = 0, stored = 0, kept = 0, kept_raw = 0;
  double read_s = 0, encode_s = 0, decode_s = 0;
};

void Measure(const SliceView& slice, uint32_t element_bytes, Sums* sums) {
  ++sums->slices;
  sums->raw += slice.bytes.size();
  Clock::time_point start = Clock::now();
  const auto encoded = EncodeSlice(slice.bytes, element_bytes);
  sums->encode_s += Since(start);
  sums->stored += encoded.has_value() ? encoded->bytes.size() : slice.bytes.size();
  if (!encoded.has_value()) return;
  ++sums->kept;
  sums->kept_raw += slice.bytes.size();
  start = Clock::now();
  const auto decoded = DecodeSlice(encoded->bytes, slice.bytes.size());
  sums->decode_s += Since(start);
  if (!decoded.ok() ||
      std::memcmp(decoded->bytes.data(), slice.bytes.data(), slice.bytes.size()) != 0) {
    std::fprintf(stderr, "codec_bench: a slice came back changed\n");
    std::exit(1);
  }
}

int Main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: codec_bench DATA_DIR\n");
    return 2;
  }
  StoreOptions options;
  options.data_dir = argv[1];
  options.host_bytes = 0;
  auto store = TieredStore::Open(options);
  if (!store.ok()) {
    std::fprintf(stderr, "codec_bench: %s\n", std::string(store.status().message()).c_str());
    return 1;
  }
  Sums sums;
  for (const RestorePoint& point : (*store)->List("default")) {
    auto session = (*store)->FetchById(point.id, "default");
    if (!session.ok()) continue;
    const LookupPlan& plan = (*session)->plan();
    for (size_t i = 0; i < plan.objects.size(); ++i) {
      for (const uint32_t layer : plan.layout.LayersOf(plan.objects[i].id.group)) {
        const Clock::time_point start = Clock::now();
        auto slice = (*session)->ReadSlice(i, layer);
        sums.read_s += Since(start);
        if (slice.ok()) Measure(*slice, KvDtypeBytes(plan.layout.dtype), &sums);
      }
    }
  }
  const double raw = static_cast<double>(sums.raw), kept_raw = static_cast<double>(sums.kept_raw);
  std::printf("%llu slices, %.1f MB; %llu compressed; stored %.1f %% of the bytes\n",
              static_cast<unsigned long long>(sums.slices), raw / 1e6,
              static_cast<unsigned long long>(sums.kept),
              100 * static_cast<double>(sums.stored) / raw);
  std::printf("GB/s of slice bytes: encode %.2f  decode %.2f  read from disk and verify %.2f\n",
              raw / sums.encode_s / 1e9, kept_raw / sums.decode_s / 1e9, raw / sums.read_s / 1e9);
  return 0;
}

}  // namespace
}  // namespace hearth

int main(int argc, char** argv) { return hearth::Main(argc, argv); }
