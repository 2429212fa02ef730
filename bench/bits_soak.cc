// Checks that the tokens of random requests have the logits of a cold prefill, in whatever way they
// are computed (tests/support/random_requests.h). Runs two made-up models, with weights in 16 bits
// and in blocks (which multiply in integers), and the named models. Exits with 1 and names the
// request if logits differ. With `bf16`, products are in bfloat16, weights are not in blocks, and
// every second request runs on the emulated device.
//   bits_soak [bf16] [REQUESTS [FIRST [MODEL_DIR...]]]       default: 200 per model, from 1
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <utility>

#include "tests/support/random_requests.h"
#include "tests/support/tiny_checkpoint.h"
#include "worker/device/emulated_device.h"

namespace hearth {
namespace {

// Longest text for real models, in tokens: the logits of one token have a megabyte, and computing
// them takes a third of the time.
constexpr int kLongestReal = 300;
// Longest text with products in bfloat16: on the CPU they take 20 times as long.
constexpr int kLongestRealBf16 = 24;

bool Report(const std::string& name, absl::StatusOr<RandomRequests> requests, int count,
            uint64_t first) {
  if (!requests.ok()) {
    std::fprintf(stderr, "bits_soak: %s\n", requests.status().ToString().c_str());
    return false;
  }
  int wrong = 0;
  for (int i = 0; i < count; ++i) {
    const std::string difference = requests->Next();
    if (difference.empty()) continue;
    ++wrong;
    std::printf("%s: %s\n", name.c_str(), difference.c_str());
    std::fflush(stdout);
  }
  std::printf("%s: %d requests from %llu, %d with differing logits\n", name.c_str(), count,
              static_cast<unsigned long long>(first), wrong);
  std::fflush(stdout);
  return wrong == 0;
}

bool Run(const std::string& name, const std::string& dir, int chunk, int longest, int count,
         uint64_t first, WeightForm form = WeightForm::kStored) {
  // With weights in blocks, matrix products multiply integers, and keys and values are bfloat16.
  const KvDtype kv_dtype = form == WeightForm::kStored ? KvDtype::kFloat32 : KvDtype::kBFloat16;
  return Report(name, RandomRequests::Open(dir, chunk, longest, first, form, kv_dtype), count,
                first);
}

bool RunBf16(const std::string& dir, int chunk, int longest, int count, uint64_t first) {
  auto requests =
      RandomRequests::Open(dir, chunk, longest, first, WeightForm::kStored, KvDtype::kBFloat16,
                           std::make_shared<EmulatedDevice>(), Arithmetic::kBFloat16);
  return Report(dir + ", bf16", std::move(requests), count, first);
}

int Main(int argc, char** argv) {
  const bool bf16 = argc > 1 && std::strcmp(argv[1], "bf16") == 0;
  if (bf16) {
    --argc;
    ++argv;
  }
  const int count = argc > 1 ? std::atoi(argv[1]) : 200;
  const int first = argc > 2 ? std::atoi(argv[2]) : 1;
  if (count < 1 || first < 1) {
    std::fprintf(stderr, "usage: bits_soak [bf16] [REQUESTS [FIRST [MODEL_DIR...]]]\n");
    return 2;
  }
  bool all = true;
  for (TinyGeometry geometry : RequestGeometries()) {
    geometry.bfloat16 = bf16;
    const std::string dir = NewTinyCheckpoint(geometry, "bits_soak");
    const int longest = geometry.context_tokens - 50;
    if (bf16) {
      all &= RunBf16(dir, 16, longest, count, static_cast<uint64_t>(first));
      continue;
    }
    for (const WeightForm form : {WeightForm::kStored, WeightForm::kQ8_0, WeightForm::kQ4_0}) {
      all &= Run("window " + std::to_string(geometry.window) + ", " + WeightFormName(form), dir, 16,
                 longest, count, static_cast<uint64_t>(first), form);
    }
  }
  for (int i = 3; i < argc; ++i) {
    all &= bf16 ? RunBf16(argv[i], 128, kLongestRealBf16, count, static_cast<uint64_t>(first))
                : Run(argv[i], argv[i], 128, kLongestReal, count, static_cast<uint64_t>(first));
  }
  return all ? 0 : 1;
}

}  // namespace
}  // namespace hearth

int main(int argc, char** argv) { return hearth::Main(argc, argv); }
