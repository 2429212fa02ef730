// Tests KV memory that is reserved before the first step: decoding then allocates nothing.
#include <gtest/gtest.h>

#include <cstdint>
#include <cstdlib>
#include <memory>
#include <new>
#include <vector>

#include "tests/support/tiny_checkpoint.h"
#include "worker/model/invariant/invariant_gemma.h"

namespace {
// Number of calls of operator new in this thread.
thread_local int64_t allocations = 0;
}  // namespace

void* operator new(size_t bytes) {
  ++allocations;
  if (void* memory = std::malloc(bytes > 0 ? bytes : 1); memory != nullptr) return memory;
  throw std::bad_alloc();
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, size_t /*bytes*/) noexcept { std::free(memory); }

namespace hearth {
namespace {

constexpr int kSteps = 170, kPrompt = 40;

class StaticKvTest : public testing::Test {
 protected:
  StaticKvTest() {
    TinyGeometry geometry;
    geometry.layer_types = "lgl";
    geometry.window = 24;
    dir_ = NewTinyCheckpoint(geometry, "static");
    auto gemma = InvariantGemma::Load(dir_, {/*threads=*/1, /*chunk=*/16, uint64_t{1} << 30});
    EXPECT_TRUE(gemma.ok()) << gemma.status();
    gemma_ = *std::move(gemma);
    uint64_t taken = 0;
    int64_t allocated = 0;
    InvariantGemma::Kv dynamic = gemma_->NewKv();
    want_ = Run(&dynamic, &taken, &allocated);
    EXPECT_GT(taken, 0u);
    EXPECT_GT(allocated, 0);
  }
  // Computes a prompt, then single tokens. Returns the logits of each step. For the decoding steps:
  // `taken` is the number of KV blocks taken, `allocated` the number of calls of operator new in
  // MakeRoom.
  std::vector<float> Run(InvariantGemma::Kv* kv, uint64_t* taken, int64_t* allocated) {
    std::vector<float> all, logits;
    for (int at = 0; at < kSteps; at = kv->length()) {
      const int count = at == 0 ? kPrompt : 1;
      const std::vector<int32_t> tokens(static_cast<size_t>(count), 3 + at * 29 % 150);
      if (at == kPrompt) *taken = TakenBlocks();
      const int64_t before = allocations;
      EXPECT_TRUE(kv->MakeRoom(count).ok());
      if (at >= kPrompt) *allocated += allocations - before;
      EXPECT_TRUE(gemma_->Step(kv, tokens, 1, &logits).ok());
      all.insert(all.end(), logits.begin(), logits.end());
    }
    *taken = TakenBlocks() - *taken;
    return all;
  }
  uint64_t TakenBlocks() const { return gemma_->kv_blocks().taken_blocks(); }
  std::string dir_;
  std::unique_ptr<InvariantGemma> gemma_;
  // expected logits, computed with a KV that allocates blocks as it grows
  std::vector<float> want_;
};

TEST_F(StaticKvTest, DecodingAllocatesNothingAndKeepsBits) {
  uint64_t taken = 0;
  int64_t allocated = 0;
  InvariantGemma::Kv kv = gemma_->NewKv();
  // In local layers, the window and the step cover at most five blocks.
  kv.ReserveBlocks(11, 5);
  EXPECT_EQ(Run(&kv, &taken, &allocated), want_);
  EXPECT_EQ(taken, 0u);
  EXPECT_EQ(allocated, 0);
}

TEST_F(StaticKvTest, ReleasedReservedBlocksAreReused) {
  InvariantGemma::Kv kv = gemma_->NewKv();
  kv.ReserveBlocks(11, 5);
  ASSERT_TRUE(kv.MakeRoom(kPrompt).ok());
  const uint64_t taken = TakenBlocks();
  for (int i = 0; i < 20; ++i) {
    kv.ReleaseRoom();
    ASSERT_TRUE(kv.MakeRoom(kPrompt).ok());
  }
  EXPECT_EQ(TakenBlocks(), taken);
}

TEST_F(StaticKvTest, DecodingGrowsBeyondReservedBlocks) {
  uint64_t taken = 0;
  int64_t allocated = 0;
  InvariantGemma::Kv kv = gemma_->NewKv();
  kv.ReserveBlocks(4, 1);
  EXPECT_EQ(Run(&kv, &taken, &allocated), want_);
  EXPECT_GT(taken, 0u);
}

}  // namespace
}  // namespace hearth
