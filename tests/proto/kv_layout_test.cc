#include "proto/kv_layout.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/proto/tiny_snapshot.h"

namespace hearth {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

KvLayout Good() { return TinyFingerprint().Layout().value(); }

TEST(KvLayoutTest, OutOfRangeFieldIsNamed) {
  EXPECT_TRUE(Good().Validate().ok());
  const auto message = [](void (*change)(KvLayout*)) {
    KvLayout layout = Good();
    change(&layout);
    return std::string(layout.Validate().message());
  };
  EXPECT_THAT(message([](KvLayout* l) { l->chunk_tokens = 8; }), HasSubstr("chunk_tokens is 8"));
  EXPECT_THAT(message([](KvLayout* l) { l->chunk_tokens = 2048; }), HasSubstr("chunk_tokens"));
  EXPECT_THAT(message([](KvLayout* l) { l->chunk_tokens = 48; }), HasSubstr("power of two"));
  EXPECT_THAT(message([](KvLayout* l) { l->kv_heads = 0; }), HasSubstr("kv_heads is 0"));
  EXPECT_THAT(message([](KvLayout* l) { l->head_dim = 1 << 20; }), HasSubstr("head_dim"));
  EXPECT_THAT(message([](KvLayout* l) { l->layers.clear(); }), HasSubstr("layer count is 0"));
  EXPECT_THAT(message([](KvLayout* l) { l->window = 0; }), HasSubstr("window is 0"));
}

TEST(KvLayoutTest, WindowIsOptionalWithoutLocalLayers) {
  KvLayout layout = Good();
  layout.layers = {LayerGroup::kGlobal};
  layout.window = 0;
  EXPECT_TRUE(layout.Validate().ok());
}

TEST(KvLayoutTest, SizesMatchGemma27B) {
  KvLayout layout;
  layout.window = 1024;
  layout.kv_heads = 16;
  layout.head_dim = 128;
  layout.dtype = KvDtype::kBFloat16;
  for (int i = 0; i < 62; ++i) {
    layout.layers.push_back(i % 6 == 5 ? LayerGroup::kGlobal : LayerGroup::kLocal);
  }
  EXPECT_EQ(layout.SliceBytes(128), 1u << 20);
  EXPECT_EQ(layout.LayersOf(LayerGroup::kGlobal).size(), 10u);
  EXPECT_EQ(layout.LayerCount(LayerGroup::kGlobal), 10u);
  // 52 local layers with 1 MiB each.
  EXPECT_EQ(layout.ObjectBytes(128, LayerGroup::kLocal), 52u << 20);
}

TEST(KvLayoutTest, LayersOfGroupAreInModelOrder) {
  KvLayout layout = Good();
  layout.layers = {LayerGroup::kLocal, LayerGroup::kGlobal, LayerGroup::kLocal};
  EXPECT_THAT(layout.LayersOf(LayerGroup::kLocal), ElementsAre(0, 2));
  EXPECT_THAT(layout.LayersOf(LayerGroup::kGlobal), ElementsAre(1));
}

TEST(KvLayoutTest, EnumNamesAreFixed) {
  EXPECT_STREQ(TierName(Tier::kNone), "none");
  EXPECT_STREQ(TierName(Tier::kWorker), "worker");
  EXPECT_STREQ(TierName(Tier::kGpu), "gpu");
  EXPECT_STREQ(TierName(Tier::kHost), "host");
  EXPECT_STREQ(TierName(Tier::kDisk), "disk");
  EXPECT_STREQ(DurabilityName(Durability::kSync), "sync");
  EXPECT_STREQ(KvDtypeName(KvDtype::kBFloat16), "bfloat16");
}

}  // namespace
}  // namespace hearth
