// Compares an InvariantGemma with quantized weights of different types on the emulated device with
// one on the CPU, bit for bit.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

#include "tests/worker/kernels/kernel_kit.h"
#include "tests/worker/model/file_kit.h"
#include "tests/worker/model/gguf_kit.h"
#include "worker/device/emulated_device.h"
#include "worker/model/invariant/invariant_gemma.h"

namespace hearth {
namespace {

using ::testing::HasSubstr;

using TypeOf = std::function<ElementType(const std::string& name)>;

absl::StatusOr<std::unique_ptr<InvariantGemma>> LoadGguf(const TypeOf& type_of,
                                                         std::shared_ptr<Device> device) {
  const std::string path = ::testing::TempDir() + "device_integers.gguf";
  WriteAll(path, WholeGguf(type_of).Bytes());
  InvariantGemmaOptions options{1, 16};
  options.arithmetic = Arithmetic::kInt8;
  options.kv_dtype = std::nullopt;
  options.device = std::move(device);
  return InvariantGemma::Load(path, options);
}

// Matrices that are multiplied together have different types: q, k and v, and gate and up. Each
// type is once that of the embedding.
TEST(DeviceIntegers, FileWithMixedTypesMatchesCpuBits) {
  constexpr ElementType kTypes[] = {ElementType::kQ8_0, ElementType::kQ4_0, ElementType::kQ4_1,
                                    ElementType::kQ5_0, ElementType::kQ5_1, ElementType::kQ4_K,
                                    ElementType::kQ5_K, ElementType::kQ6_K};
  for (size_t first = 0; first < std::size(kTypes); ++first) {
    const auto load = [&](std::shared_ptr<Device> device) {
      size_t next = first;
      return LoadGguf([&](const std::string&) { return kTypes[next++ % std::size(kTypes)]; },
                      std::move(device));
    };
    const auto cpu = load(nullptr), device = load(std::make_shared<EmulatedDevice>());
    ASSERT_TRUE(cpu.ok() && device.ok()) << cpu.status() << device.status();
    EXPECT_EQ((*device)->arithmetic(), Arithmetic::kInt8);
    EXPECT_EQ((*device)->kv_dtype(), KvDtype::kBFloat16);
    EXPECT_TRUE((*device)->SelfTest("").ok());
    InvariantGemma::Kv on_cpu = (*cpu)->NewKv(), on_device = (*device)->NewKv();
    for (const int tokens : {40, 1, 9}) {
      std::vector<int32_t> text;
      for (int i = 0; i < tokens; ++i) text.push_back((i * 31 + tokens) % 265);
      std::vector<float> ours, theirs;
      ASSERT_TRUE((*cpu)->Step(&on_cpu, text, 2 - tokens % 2, &ours).ok());
      ASSERT_TRUE((*device)->Step(&on_device, text, 2 - tokens % 2, &theirs).ok());
      ASSERT_EQ(theirs.size(), ours.size());
      EXPECT_EQ(FirstDifference(theirs.data(), ours.data(), static_cast<int64_t>(ours.size())), "")
          << FormOf(kTypes[first]).name << ", " << tokens << " tokens";
    }
  }
}

// Matrices that are not quantized are multiplied in float32.
TEST(DeviceIntegers, FileWithBfloat16MatricesMatchesCpuBits) {
  const TypeOf type_of = [](const std::string& name) {
    return name.find("attn") == name.npos ? ElementType::kQ8_0 : ElementType::kBFloat16;
  };
  const auto cpu = LoadGguf(type_of, nullptr);
  const auto device = LoadGguf(type_of, std::make_shared<EmulatedDevice>());
  ASSERT_TRUE(cpu.ok() && device.ok()) << cpu.status() << device.status();
  InvariantGemma::Kv on_cpu = (*cpu)->NewKv(), on_device = (*device)->NewKv();
  std::vector<float> ours, theirs;
  ASSERT_TRUE((*cpu)->Step(&on_cpu, {5, 6, 7}, 3, &ours).ok());
  ASSERT_TRUE((*device)->Step(&on_device, {5, 6, 7}, 3, &theirs).ok());
  EXPECT_EQ(FirstDifference(theirs.data(), ours.data(), static_cast<int64_t>(ours.size())), "");
}

TEST(DeviceIntegers, PartlyQuantizedStackIsUnsupported) {
  const auto device = LoadGguf(
      [](const std::string& name) {
        return name.find("attn_v") == name.npos ? ElementType::kQ8_0 : ElementType::kBFloat16;
      },
      std::make_shared<EmulatedDevice>());
  EXPECT_EQ(device.status().code(), absl::StatusCode::kUnimplemented);
  EXPECT_THAT(std::string(device.status().message()),
              HasSubstr("layer 0: q, k and v: the device multiplies these matrices together, but "
                        "only some of them"));
}

}  // namespace
}  // namespace hearth
