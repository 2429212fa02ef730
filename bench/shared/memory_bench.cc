// What values of the shared engine take in a Redis of its own, against the keys and values of the
// objects that they are of: shared_memory_bench, for each model's objects some 200 MB of them.
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "cache_store/shared/redis/redis_cluster.h"
#include "cache_store/shared/shared_object.h"
#include "cache_store/shared/shared_space.h"
#include "tests/cache_store/shared/redis_servers.h"
#include "tests/support/test_folder.h"

namespace hearth {
namespace {

constexpr uint32_t kTokens = 128;
constexpr uint64_t kPayloadBytes = uint64_t{200} << 20;

struct Geometry {
  const char* name;
  uint32_t global_slices, local_slices;  // of an object
  uint64_t slice_bytes;                  // of float32
};
constexpr Geometry kGeometries[] = {{"270M", 3, 15, 2 * kTokens * 1 * 256 * 4},
                                    {"1B", 4, 22, 2 * kTokens * 1 * 256 * 4},
                                    {"4B", 5, 29, 2 * kTokens * 4 * 256 * 4},
                                    {"12B", 8, 40, 2 * kTokens * 8 * 256 * 4}};

class Bench {
 public:
  Bench() : redis_(folder_.path(), {}) {
    engine_ = RedisCluster::Open(ParseRedisUrl("redis://" + redis_.address()).value()).value();
  }

  // Used memory for each byte of the payload.
  double Measure(LayerGroup group, uint32_t slices, uint64_t slice_bytes) {
    redis_.Ask({"FLUSHALL", "SYNC"});
    const uint64_t before = UsedBytes();
    SharedShape shape;
    shape.id = {0, kTokens, group};
    shape.token_ids.assign(kTokens, 7);
    shape.slices = slices;
    shape.slice_bytes = slice_bytes;
    const auto bytes = std::shared_ptr<std::byte>(new std::byte[slice_bytes](),
                                                  [](std::byte* at) { delete[] at; });
    const std::vector<SliceView> views(slices, SliceView{bytes, {bytes.get(), slice_bytes}});
    const SharedFacts facts{std::vector<uint64_t>(slices, 1), 0};
    uint64_t payload = 0;
    for (uint64_t number = 0; payload < kPayloadBytes; ++number, payload += shape.object_bytes()) {
      Digest key{};
      key[0] = static_cast<uint8_t>(number);
      key[1] = static_cast<uint8_t>(number >> 8);
      for (uint32_t part = 0; part < shape.parts(); ++part) {
        const std::string name = space_.PartName(key, group, part);
        const std::string value = space_.Seal(name, shape.TextOf(part, facts, views));
        const SharedValue set{name, value, absl::Hours(24), false};
        engine_->Set({set}, absl::Now() + absl::Seconds(30)).at(0).value();
      }
    }
    return static_cast<double>(UsedBytes() - before) / static_cast<double>(payload);
  }

 private:
  uint64_t UsedBytes() const {
    const std::string info = redis_.Ask({"INFO", "memory"});
    const size_t at = info.find("used_memory:") + 12;
    uint64_t bytes = 0;
    if (!absl::SimpleAtoi(info.substr(at, info.find('\r', at) - at), &bytes)) std::abort();
    return bytes;
  }

  TestFolder folder_;
  RedisProcess redis_;
  std::unique_ptr<RedisCluster> engine_;
  const SharedSpace space_{"secret", "default", 0};
};

int Main() {
  Bench bench;
  std::printf("used_memory for each byte of keys and values\nmodel  type      global  local\n");
  for (const Geometry& model : kGeometries) {
    for (const uint64_t less : {1, 2}) {
      const uint64_t slice = model.slice_bytes / less;
      std::printf("%-5s  %-8s  %.4f  %.4f\n", model.name, less == 1 ? "float32" : "bfloat16",
                  bench.Measure(LayerGroup::kGlobal, model.global_slices, slice),
                  bench.Measure(LayerGroup::kLocal, model.local_slices, slice));
      std::fflush(stdout);
    }
  }
  return 0;
}

}  // namespace
}  // namespace hearth

int main() { return hearth::Main(); }
