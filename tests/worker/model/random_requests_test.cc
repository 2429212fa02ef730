// Runs random requests on two small models; bits_soak runs hundreds of requests, also on real
// models.
#include "tests/support/random_requests.h"

#include <gtest/gtest.h>

#include <cmath>

#include "tests/support/tiny_checkpoint.h"

namespace hearth {
namespace {

void ExpectBits(const TinyGeometry& geometry, int longest, WeightForm form = WeightForm::kStored,
                KvDtype kv_dtype = KvDtype::kFloat32) {
  const std::string dir = NewTinyCheckpoint(geometry, "random_requests");
  auto requests = RandomRequests::Open(dir, /*chunk=*/16, longest, /*first=*/1, form, kv_dtype);
  ASSERT_TRUE(requests.ok()) << requests.status();
  for (int i = 0; i < 10; ++i) EXPECT_EQ(requests->Next(), "");
}

TEST(RandomRequests, Window100EightKvHeadsKeepBits) { ExpectBits(RequestGeometries()[0], 300); }

TEST(RandomRequests, Window512OneKvHeadKeepsBits) { ExpectBits(RequestGeometries()[1], 700); }

TEST(RandomRequests, EightBitWeightsKeepBits) {
  ExpectBits(RequestGeometries()[0], 300, WeightForm::kQ8_0);
}

TEST(RandomRequests, FourBitWeightsKeepBits) {
  ExpectBits(RequestGeometries()[1], 700, WeightForm::kQ4_0);
}

// With a bfloat16 KV cache, a row attends to its own key and value in stored (rounded) form in
// every step.
TEST(RandomRequests, BFloat16KvKeepsBits) {
  ExpectBits(RequestGeometries()[0], 300, WeightForm::kStored, KvDtype::kBFloat16);
  ExpectBits(RequestGeometries()[1], 700, WeightForm::kQ8_0, KvDtype::kBFloat16);
}

// The product is wrong in one case: in steps of seven rows, it changes one bit of one row.
TEST(RandomRequests, StepDependentProductIsDetected) {
  InvariantGemma::ReplaceProduct([](const ConstRows& x, const PackedWeights& weights, const Rows& y,
                                    Workspace* workspace, ParallelFor parallel) {
    Product(x, weights, y, workspace, parallel);
    if (x.rows == 7) *y.Row(3) = std::nextafter(*y.Row(3), 1e9F);
  });
  auto requests = RandomRequests::Open(NewTinyCheckpoint(RequestGeometries()[0], "dependent"),
                                       /*chunk=*/16, 300, /*first=*/1);
  InvariantGemma::ReplaceProduct(nullptr);
  ASSERT_TRUE(requests.ok()) << requests.status();
  std::string all;
  for (int i = 0; i < 20; ++i) all += requests->Next();
  EXPECT_NE(all.find("steps of 7, beside 0 others"), std::string::npos) << all;
}

}  // namespace
}  // namespace hearth
