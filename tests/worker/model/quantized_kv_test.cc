// Tests KV quantization of complete chunks: no bit depends on the steps, on other sequences in the
// batch, or on whether a chunk was computed or restored.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <vector>

#include "proto/restore_rule.h"
#include "tests/support/tiny_checkpoint.h"
#include "worker/model/invariant/invariant_gemma.h"

namespace hearth {
namespace {

constexpr int kChunk = 16, kTokens = 75;

class SealedKv : public testing::Test {
 protected:
  std::unique_ptr<InvariantGemma> Load(int threads = 2) const {
    TinyGeometry geometry;
    geometry.layer_types = "lgl";
    geometry.window = 24;
    static const std::string* const dir = new std::string(NewTinyCheckpoint(geometry, "quantized"));
    InvariantGemmaOptions options{threads, kChunk, uint64_t{1} << 30};
    options.kv_dtype = kv_dtype_;
    auto gemma = InvariantGemma::Load(*dir, options);
    EXPECT_TRUE(gemma.ok()) << gemma.status();
    return *std::move(gemma);
  }
  static std::vector<int32_t> Text(int begin, int end) {
    std::vector<int32_t> tokens;
    for (int i = begin; i < end; ++i) tokens.push_back(3 + (i * 29) % 150);
    return tokens;
  }
  // Returns the logits of all tokens from kv->length() to `end`, computed in steps of `step`
  // tokens.
  static std::vector<float> AllTo(const InvariantGemma& gemma, int end, int step,
                                  InvariantGemma::Kv* kv) {
    std::vector<float> all, logits;
    while (kv->length() < end) {
      const std::vector<int32_t> tokens = Text(kv->length(), std::min(end, kv->length() + step));
      EXPECT_TRUE(gemma.Step(kv, tokens, static_cast<int>(tokens.size()), &logits).ok());
      all.insert(all.end(), logits.begin(), logits.end());
    }
    return all;
  }
  static std::vector<float> Last(const std::vector<float>& all, int rows, int vocabulary) {
    return {all.end() - static_cast<ptrdiff_t>(rows) * vocabulary, all.end()};
  }

  KvDtype kv_dtype_ = KvDtype::kFloat32;
};

struct QuantizedForm {
  const char* options;
  KvDtype kv_dtype;  // dtype of keys and values before quantization
};

class QuantizedKvTest : public SealedKv, public testing::WithParamInterface<QuantizedForm> {
 protected:
  QuantizedKvTest() { kv_dtype_ = GetParam().kv_dtype; }
  static KvQuantization Quantization() {
    uint32_t residual = 0;
    return *ParseKvQuantization(GetParam().options, &residual);
  }
};

TEST_P(QuantizedKvTest, StepSizeAndThreadsKeepBits) {
  const auto one = Load(1), two = Load(2);
  InvariantGemma::Kv first = one->NewKv(Quantization());
  const std::vector<float> want = AllTo(*one, kTokens, 1, &first);
  for (const int step : {2, 5, 16, 17, 33, kTokens}) {
    InvariantGemma::Kv kv = two->NewKv(Quantization());
    EXPECT_EQ(AllTo(*two, kTokens, step, &kv), want) << step;
  }
}

TEST_P(QuantizedKvTest, UnquantizedSequencesInBatchKeepBits) {
  const auto gemma = Load();
  InvariantGemma::Kv alone = gemma->NewKv(Quantization());
  const std::vector<float> want = AllTo(*gemma, 40, 40, &alone);
  InvariantGemma::Kv plain_alone = gemma->NewKv();
  const std::vector<float> plain_want = AllTo(*gemma, 40, 40, &plain_alone);
  EXPECT_NE(want, plain_want) << "whole chunks are read in fewer bits";
  InvariantGemma::Kv kv = gemma->NewKv(Quantization()), plain = gemma->NewKv();
  std::vector<float> all, plain_all;
  StepLogits logits, plain_logits;
  for (int at = 0; at < 40; at += 8) {
    const std::vector<int32_t> text = Text(at, at + 8);
    ASSERT_TRUE(gemma->Step({{{&kv, text, 8, &logits}, {&plain, text, 8, &plain_logits}}}).ok());
    all.insert(all.end(), logits.values().begin(), logits.values().end());
    plain_all.insert(plain_all.end(), plain_logits.values().begin(), plain_logits.values().end());
  }
  EXPECT_EQ(all, want);
  EXPECT_EQ(plain_all, plain_want);
}

TEST_P(QuantizedKvTest, RestoreOrForkKeepsBits) {
  const auto gemma = Load();
  const int vocabulary = gemma->config().vocab_size;
  InvariantGemma::Kv cold = gemma->NewKv(Quantization());
  const std::vector<float> want = AllTo(*gemma, kTokens, kTokens, &cold);
  for (const int boundary : {1, 15, 16, 17, 31, 32, 48, 61, 74}) {
    InvariantGemma::Kv from = gemma->NewKv(Quantization()), to = gemma->NewKv(Quantization());
    InvariantGemma::Kv copied = gemma->NewKv(Quantization()), fork = gemma->NewKv(Quantization());
    AllTo(*gemma, boundary, 5, &from);
    const KvLayout& layout = from.layout();
    to.BeginRestore(boundary);
    copied.BeginRestore(boundary);
    for (const ObjectId& id : NeededObjects(layout, static_cast<uint32_t>(boundary))) {
      std::vector<std::vector<std::byte>> bytes;
      std::vector<const std::byte*> slices;
      const int begin = static_cast<int>(id.begin), end = static_cast<int>(id.begin + id.tokens);
      for (const uint32_t layer : layout.LayersOf(id.group)) {
        const int number = static_cast<int>(layer);
        bytes.emplace_back(layout.SliceBytes(id.tokens));
        from.CopyOut(number, std::max(from.first_held(number), begin), end, begin,
                     static_cast<int>(id.tokens), bytes.back().data());
      }
      for (const auto& slice : bytes) slices.push_back(slice.data());
      ASSERT_TRUE(copied.CopyIn(id, slices).ok());
      const KvBlock shared = from.Share(id);
      EXPECT_EQ(shared != nullptr, id.tokens == kChunk);
      ASSERT_TRUE((shared != nullptr ? to.Adopt(id, shared) : to.CopyIn(id, slices)).ok());
    }
    to.FinishRestore();
    copied.FinishRestore();
    fork.ShareAll(from);
    const std::vector<float> rest = Last(want, kTokens - boundary, vocabulary);
    EXPECT_EQ(AllTo(*gemma, kTokens, kTokens, &to), rest) << boundary;
    EXPECT_EQ(AllTo(*gemma, kTokens, 7, &copied), rest) << boundary;
    EXPECT_EQ(AllTo(*gemma, kTokens, 3, &fork), rest) << boundary;
    EXPECT_EQ(AllTo(*gemma, kTokens, 1, &from), rest) << boundary;
  }
}

TEST_P(QuantizedKvTest, MemoryHoldsQuantizedBlocksAndTail) {
  const auto gemma = Load();
  InvariantGemma::Kv kv = gemma->NewKv(Quantization());
  AllTo(*gemma, 160, 64, &kv);
  AllTo(*gemma, 165, 1, &kv);
  const KvLayout& layout = kv.layout();
  const uint64_t global = layout.ObjectBytes(kChunk, LayerGroup::kGlobal);
  const uint64_t local = layout.ObjectBytes(kChunk, LayerGroup::kLocal);
  const uint64_t plain = layout.layers.size() * layout.PlainSliceBytes(kChunk);
  // In local layers, the window of row 164 begins at position 141.
  EXPECT_EQ(gemma->kv_blocks().used_bytes(), 10 * global + 2 * local + plain);
  EXPECT_EQ(kv.held_bytes(0),
            10 * global + 2 * local + 5 * layout.layers.size() * layout.PlainSliceBytes(1));
  EXPECT_EQ(kv.held_bytes(160), 5 * layout.layers.size() * layout.PlainSliceBytes(1));
  EXPECT_LT(global, layout.LayersOf(LayerGroup::kGlobal).size() * layout.PlainSliceBytes(kChunk));
  kv = InvariantGemma::Kv();
  EXPECT_EQ(gemma->kv_blocks().used_bytes(), 0u);
}

INSTANTIATE_TEST_SUITE_P(
    Options, QuantizedKvTest,
    testing::Values(QuantizedForm{"bits=8,group=16", KvDtype::kFloat32},
                    QuantizedForm{"bits=4,group=16,axis_key=0", KvDtype::kFloat32},
                    QuantizedForm{"bits=2,group=8,axis_value=-1", KvDtype::kFloat32},
                    QuantizedForm{"bits=8,group=16", KvDtype::kBFloat16},
                    QuantizedForm{"bits=4,group=16,axis_key=0", KvDtype::kBFloat16}));

}  // namespace
}  // namespace hearth
