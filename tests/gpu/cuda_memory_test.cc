// Device memory through the CUDA runtime: the bytes that are read equal the bytes that were
// written.
#include "cache_store/memory/cuda_memory.h"

#include <gtest/gtest.h>

#include <cstring>
#include <random>

#include "cache_store/memory/device_tier.h"

namespace hearth {
namespace {

constexpr uint64_t kMiB = uint64_t{1} << 20;

std::vector<std::byte> RandomBytes(size_t count, uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<std::byte> bytes(count);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
  return bytes;
}

// Returns 64 MiB of memory of device 0. If there is no device, returns null and stores the reason
// in `why`.
std::shared_ptr<DeviceMemory> Device(std::string* why) {
  absl::StatusOr<std::unique_ptr<DeviceMemory>> memory = OpenCudaMemory(0, 64 * kMiB);
  if (memory.ok()) return *std::move(memory);
  *why = std::string(memory.status().message());
  EXPECT_TRUE(absl::IsFailedPrecondition(memory.status())) << memory.status();
  return nullptr;
}

TEST(CudaMemory, ErrorWithoutDeviceIsOneLine) {
  std::string why;
  if (Device(&why) != nullptr) GTEST_SKIP() << "there is a device";
  EXPECT_EQ(why.substr(0, 14), "no CUDA device");
  EXPECT_EQ(why.find('\n'), std::string::npos);
}

TEST(CudaMemory, MissingDeviceIsRefused) {
  std::string why;
  if (Device(&why) == nullptr) GTEST_SKIP() << why;
  EXPECT_TRUE(absl::IsFailedPrecondition(OpenCudaMemory(4096, kMiB).status()));
  EXPECT_TRUE(absl::IsResourceExhausted(OpenCudaMemory(0, uint64_t{1} << 60).status()));
}

TEST(CudaMemory, CopiedBytesReadBack) {
  std::string why;
  const auto memory = Device(&why);
  if (memory == nullptr) GTEST_SKIP() << why;
  const std::vector<std::byte> first = RandomBytes(kMiB, 1), second = RandomBytes(kMiB + 13, 2);
  ASSERT_TRUE(memory->StartCopyIn(0, first).ok());
  ASSERT_TRUE(memory->StartCopyIn(3 * kMiB, second).ok());
  ASSERT_TRUE(memory->Wait().ok());
  std::vector<std::byte> back(second.size());
  ASSERT_TRUE(memory->StartCopyOut(3 * kMiB, absl::MakeSpan(back)).ok());
  ASSERT_TRUE(memory->Wait().ok());
  EXPECT_EQ(back, second);
  back.resize(first.size());
  ASSERT_TRUE(memory->StartCopyOut(0, absl::MakeSpan(back)).ok());
  ASSERT_TRUE(memory->Wait().ok());
  EXPECT_EQ(back, first);
}

TEST(CudaMemory, GpuTierSurvivesEvictions) {
  std::string why;
  const auto memory = Device(&why);
  if (memory == nullptr) GTEST_SKIP() << why;
  DeviceTier tier(memory, [](const absl::Status& lost) { ADD_FAILURE() << lost; });
  for (uint32_t object = 0; object < 100; ++object) {
    const std::vector<std::byte> bytes = RandomBytes(3 * kMiB + object, object);
    const StoredSlice slice{object, 0, bytes.size(), SliceDigest(bytes.data(), bytes.size())};
    // CopyIn also reads the copied bytes back and compares them with the source.
    const auto copy = tier.CopyIn({{slice, CopySlice(bytes)}});
    ASSERT_TRUE(copy.ok()) << copy.status();
    tier.MakeVisible(object, *copy);
  }
  EXPECT_EQ(tier.usage().evicted_objects, 100 - tier.usage().objects.size());
  EXPECT_GE(tier.usage().objects.size(), 15u);
}

}  // namespace
}  // namespace hearth
