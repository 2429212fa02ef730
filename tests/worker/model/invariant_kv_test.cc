// Tests KV blocks: how sequences share blocks, how the budget counts blocks, and that neither
// changes the bits of a result.
#include "worker/model/invariant/invariant_kv.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <thread>
#include <vector>

#include "proto/restore_rule.h"
#include "tests/support/tiny_checkpoint.h"
#include "worker/model/invariant/invariant_gemma.h"

namespace hearth {
namespace {

using ::testing::HasSubstr;

constexpr int kSplit = 16;

TEST(KvBlocks, SharedBlockCountsOnce) {
  KvBlocks arena(1000);
  auto taken = arena.Take({100, 300});
  ASSERT_TRUE(taken.ok());
  EXPECT_EQ(arena.used_bytes(), 400u);
  KvBlock shared = taken->front();
  taken->clear();
  EXPECT_EQ(arena.used_bytes(), 100u);
  absl::StatusOr<KvBlock> again = arena.Adopt(shared, 100);
  EXPECT_EQ(again->get(), shared.get());
  EXPECT_EQ(arena.used_bytes(), 100u);
  shared = nullptr;
  EXPECT_EQ(arena.used_bytes(), 100u);
  again = KvBlock();
  EXPECT_EQ(arena.used_bytes(), 0u);
}

TEST(KvBlocks, FailedTakeLeavesBudgetUnchanged) {
  KvBlocks arena(1000);
  const auto taken = arena.Take({600});
  const auto refused = arena.Take({300, 101});
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(refused.status().message(),
            "kv-bytes: 401 more bytes are needed, but 600 of 1000 bytes are in use");
  EXPECT_EQ(arena.used_bytes(), 600u);
  EXPECT_TRUE(arena.Take({300, 100}).ok());
  // The size exceeds any machine's memory, so the budget must refuse it before an allocation.
  EXPECT_EQ(arena.Take({size_t{1} << 60}).status().code(), absl::StatusCode::kResourceExhausted);
}

TEST(KvBlocks, AdoptedBlockCountsOnce) {
  KvBlocks arena(1000);
  KvBlock theirs(new std::byte[700]), more(new std::byte[301]);
  absl::StatusOr<KvBlock> block = arena.Adopt(theirs, 700);
  ASSERT_TRUE(block.ok());
  EXPECT_EQ(block->get(), theirs.get());
  EXPECT_EQ(arena.used_bytes(), 700u);
  EXPECT_EQ(arena.Adopt(more, 301).status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(more.use_count(), 1);
  EXPECT_TRUE(arena.Owns(*block));
  EXPECT_FALSE(arena.Owns(theirs));
  absl::StatusOr<KvBlock> again = arena.Adopt(theirs, 700);
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(again->get(), theirs.get());
  EXPECT_EQ(arena.used_bytes(), 700u);
  EXPECT_EQ(theirs.use_count(), 2);
  block = KvBlock();
  EXPECT_EQ(arena.used_bytes(), 700u) << "the other sequence has it";
  again = KvBlock();
  EXPECT_EQ(theirs.use_count(), 1);
  EXPECT_EQ(arena.used_bytes(), 0u);
  again = arena.Adopt(theirs, 700);
  EXPECT_EQ(arena.used_bytes(), 700u) << "nobody had it any more";
}

// For the sanitizers: one thread releases the memory while another thread adopts it.
TEST(KvBlocks, ConcurrentAdoptAndReleaseAreSafe) {
  KvBlocks arena(1000);
  const KvBlock theirs(new std::byte[100]);
  const auto use = [&] {
    for (int i = 0; i < 1000; ++i) EXPECT_EQ(arena.Adopt(theirs, 100)->get(), theirs.get());
  };
  std::thread other(use);
  use();
  other.join();
  EXPECT_EQ(arena.used_bytes(), 0u);
  EXPECT_EQ(theirs.use_count(), 1);
}

TEST(KvBlocks, BlockOutlivesArena) {
  auto arena = std::make_unique<KvBlocks>(1000);
  KvBlock block = arena->Take({64})->front();
  arena.reset();
  block[63] = std::byte{1};
}

TEST(KvBlocks, FreedBlockCallsCallbackOnce) {
  KvBlocks arena(1000);
  int calls = 0;
  auto taken = arena.Take({100, 300, 500});
  const KvBlock theirs(new std::byte[100]);
  taken->pop_back();
  arena.CallOnNextFree([&] { ++calls; });
  EXPECT_EQ(calls, 0) << "nothing is freed since";
  KvBlock shared = taken->back();
  taken->pop_back();
  EXPECT_EQ(calls, 0) << "another holder has it";
  shared = nullptr;
  EXPECT_EQ(calls, 1);
  taken->clear();
  EXPECT_EQ(calls, 1);
  absl::StatusOr<KvBlock> adopted = arena.Adopt(theirs, 100);
  arena.CallOnNextFree([&] {
    ++calls;
    EXPECT_TRUE(arena.Take({1000}).ok()) << "under no lock, with all of it free";
  });
  adopted = KvBlock();
  EXPECT_EQ(calls, 2);
}

// A model with local and global layers; its window is one and a half chunks.
class InvariantKvTest : public testing::Test {
 protected:
  static std::unique_ptr<InvariantGemma> Load(uint64_t kv_bytes = uint64_t{1} << 30) {
    TinyGeometry geometry;
    geometry.layer_types = "lgl";
    geometry.window = 24;
    static const std::string* const dir = new std::string(NewTinyCheckpoint(geometry, "kv"));
    auto gemma = InvariantGemma::Load(*dir, {/*threads=*/1, kSplit, kv_bytes});
    EXPECT_TRUE(gemma.ok()) << gemma.status();
    return *std::move(gemma);
  }
  static std::vector<int32_t> Tokens(int begin, int end) {
    std::vector<int32_t> tokens;
    for (int i = begin; i < end; ++i) tokens.push_back(3 + (i * 29) % 150);
    return tokens;
  }
  // Computes up to position `end` in steps of `step` tokens. Returns the logits of the last token.
  static std::vector<float> StepTo(const InvariantGemma& gemma, int end, int step,
                                   InvariantGemma::Kv* kv) {
    std::vector<float> logits;
    while (kv->length() < end) {
      const int next = std::min(end, kv->length() + step);
      EXPECT_TRUE(gemma.Step(kv, Tokens(kv->length(), next), next == end ? 1 : 0, &logits).ok());
    }
    return logits;
  }
  static std::vector<float> Cold(const InvariantGemma& gemma, int end) {
    InvariantGemma::Kv kv = gemma.NewKv();
    return StepTo(gemma, end, end, &kv);
  }
  // Restores `to` from `from` as the engine does: complete chunks by reference, the rest by copy.
  static void Restore(const InvariantGemma::Kv& from, int boundary, InvariantGemma::Kv* to) {
    const KvLayout& layout = from.layout();
    to->BeginRestore(boundary);
    for (const ObjectId& id : NeededObjects(layout, static_cast<uint32_t>(boundary))) {
      if (const KvBlock block = from.Share(id); block != nullptr) {
        ASSERT_TRUE(to->Adopt(id, block).ok());
        continue;
      }
      std::vector<std::vector<std::byte>> bytes;
      std::vector<const std::byte*> slices;
      for (const uint32_t layer : layout.LayersOf(id.group)) {
        bytes.emplace_back(layout.SliceBytes(id.tokens));
        const int number = static_cast<int>(layer), end = static_cast<int>(id.begin + id.tokens);
        from.CopyOut(number, std::max(from.first_held(number), static_cast<int>(id.begin)), end,
                     static_cast<int>(id.begin), static_cast<int>(id.tokens), bytes.back().data());
      }
      for (const auto& slice : bytes) slices.push_back(slice.data());
      ASSERT_TRUE(to->CopyIn(id, slices).ok());
    }
    to->FinishRestore();
  }
};

TEST_F(InvariantKvTest, BlocksOutsideWindowAreDropped) {
  const auto gemma = Load();
  InvariantGemma::Kv kv = gemma->NewKv();
  StepTo(*gemma, 160, 1, &kv);
  const KvLayout& layout = kv.layout();
  const uint64_t globals = 10 * layout.ObjectBytes(kSplit, LayerGroup::kGlobal);
  const uint64_t local = layout.ObjectBytes(kSplit, LayerGroup::kLocal);
  EXPECT_EQ(gemma->kv_blocks().used_bytes(), globals + 2 * local);
  EXPECT_EQ(kv.first_held(0), 128);  // row 159 - 23 = 136 is in this block
  EXPECT_EQ(kv.first_held(1), 0);
  kv = InvariantGemma::Kv();
  EXPECT_EQ(gemma->kv_blocks().used_bytes(), 0u);
}

TEST_F(InvariantKvTest, ReusedMemoryKeepsLogitBits) {
  const auto fresh = Load(), used = Load();
  const std::vector<float> want = Cold(*fresh, 75);
  InvariantGemma::Kv kv = used->NewKv();
  StepTo(*used, 75, 75, &kv);
  for (int layer = 0; layer < 3; ++layer) {
    for (int at = kv.first_held(layer); at < 75; at += kSplit) {
      auto* floats = reinterpret_cast<float*>(kv.SliceAt(layer, at));
      std::fill_n(floats, kv.layout().SliceBytes(kSplit) / sizeof(float), std::nanf(""));
    }
  }
  kv = InvariantGemma::Kv();
  for (const int step : {1, 7, 75}) {
    InvariantGemma::Kv again = used->NewKv();
    EXPECT_EQ(StepTo(*used, 75, step, &again), want) << step;
  }
}

TEST_F(InvariantKvTest, RestoreAtAnyBoundaryKeepsBits) {
  const auto gemma = Load();
  const std::vector<float> want = Cold(*gemma, 75);
  for (int boundary = 1; boundary < 75; ++boundary) {
    InvariantGemma::Kv from = gemma->NewKv(), to = gemma->NewKv();
    StepTo(*gemma, boundary, 5, &from);
    Restore(from, boundary, &to);
    EXPECT_EQ(StepTo(*gemma, 75, 75, &to), want) << boundary;
    // A different continuation after the same blocks must not change the blocks.
    InvariantGemma::Kv other = gemma->NewKv();
    Restore(from, boundary, &other);
    std::vector<float> unused;
    ASSERT_TRUE(gemma->Step(&other, std::vector<int32_t>(20, 9), 1, &unused).ok());
    EXPECT_EQ(StepTo(*gemma, 75, 1, &from), want) << boundary;
  }
}

TEST_F(InvariantKvTest, CompleteChunksAreSharedByReference) {
  const auto gemma = Load();
  InvariantGemma::Kv from = gemma->NewKv(), to = gemma->NewKv();
  StepTo(*gemma, 64, 64, &from);
  const uint64_t before = gemma->kv_blocks().used_bytes();
  Restore(from, 64, &to);
  EXPECT_EQ(gemma->kv_blocks().used_bytes(), before);
  EXPECT_EQ(from.Share({48, 16, LayerGroup::kGlobal}), to.Share({48, 16, LayerGroup::kGlobal}));
  EXPECT_EQ(from.Share({48, 15, LayerGroup::kGlobal}), nullptr);  // not a complete chunk
  EXPECT_EQ(from.Share({64, 16, LayerGroup::kGlobal}), nullptr);  // rows after length()
  // The first row of the window is 41, so its block is held and the block before it is not.
  EXPECT_NE(to.Share({32, 16, LayerGroup::kLocal}), nullptr);
  EXPECT_EQ(to.Share({16, 16, LayerGroup::kLocal}), nullptr);
}

TEST_F(InvariantKvTest, RefusedStepChangesNothing) {
  const auto roomy = Load();
  const std::vector<float> want = Cold(*roomy, 40);
  const KvLayout layout = roomy->NewKv().layout();
  const uint64_t chunk = layout.ObjectBytes(kSplit, LayerGroup::kGlobal) +
                         layout.ObjectBytes(kSplit, LayerGroup::kLocal);
  const auto gemma = Load(3 * chunk);
  InvariantGemma::Kv other = gemma->NewKv(), kv = gemma->NewKv();
  StepTo(*gemma, 10, 10, &other);
  StepTo(*gemma, 30, 30, &kv);
  std::vector<float> logits;
  const absl::Status refused = gemma->Step(&kv, Tokens(30, 40), 1, &logits);
  EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(refused.message()), HasSubstr("kv-bytes"));
  EXPECT_EQ(kv.length(), 30);
  other = InvariantGemma::Kv();
  EXPECT_EQ(StepTo(*gemma, 40, 10, &kv), want);
}

}  // namespace
}  // namespace hearth
