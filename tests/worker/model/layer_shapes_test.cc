// A layer in the shape of Gemma 3 1B: its bits do not depend on step size, threads or instruction
// set, also after the window has moved.
#include <gtest/gtest.h>

#include <cstring>

#include "tests/support/made_up_layer.h"
#include "tests/worker/kernels/kernel_kit.h"

namespace hearth {
namespace {

TEST(LayerShapes, GemmaLayerBitsIgnoreStepSize) {
  constexpr int64_t kBegin = 500, kEnd = 530;  // the window of a local layer moves after 512 tokens
  MadeUpLayer layer(kShape1B, kEnd);
  ThreadPool one(1), three(3);
  for (const bool local : {true, false}) {
    const std::vector<float> want = layer.Run(local, kBegin, kEnd, kEnd - kBegin, &one);
    const auto expect = [&](int64_t step, ThreadPool* pool, const std::string& what) {
      const std::vector<float> is = layer.Run(local, kBegin, kEnd, step, pool);
      EXPECT_EQ(std::memcmp(is.data(), want.data(), want.size() * sizeof(float)), 0)
          << (local ? "local, " : "global, ") << what << ", steps of " << step;
    };
    for (const KernelTarget target : UsableTargets()) {
      if (target == KernelTarget::kPlain) continue;  // kPlain takes minutes
      ForceTarget(target);
      expect(7, &three, KernelTargetName(target));
    }
    ForceTarget(UsableTargets().back());
    expect(1, &three, "three threads");
  }
}

}  // namespace
}  // namespace hearth
