// One process exports memory of a CUDA device, and a second process maps it.
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "cache_store/memory/cuda_memory.h"

namespace hearth {
namespace {

constexpr uint64_t kBytes = uint64_t{32} << 20;
constexpr char kHandle[] = "HEARTH_TEST_HANDLE";

std::vector<std::byte> Pattern() {
  std::vector<std::byte> bytes(kBytes);
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(i * 7 + i / 4096);
  return bytes;
}

TEST(CudaIpc, ExportedMemoryReadByOtherProcess) {
  const auto memory = OpenCudaMemory(0, kBytes);
  if (absl::IsFailedPrecondition(memory.status())) GTEST_SKIP() << memory.status().message();
  ASSERT_TRUE(memory.ok()) << memory.status();
  const std::vector<std::byte> pattern = Pattern();
  ASSERT_TRUE((*memory)->StartCopyIn(0, pattern).ok());
  ASSERT_TRUE((*memory)->Wait().ok());
  const absl::StatusOr<DeviceMemoryHandle> handle = (*memory)->Export();
  ASSERT_TRUE(handle.ok()) << handle.status();
  char self[4096] = {};
  ASSERT_GT(readlink("/proc/self/exe", self, sizeof(self) - 1), 0);
  const std::string hex =
      absl::BytesToHexString({reinterpret_cast<const char*>(&*handle), sizeof(*handle)});
  // Starts this program again as the reader, because a CUDA context does not survive fork.
  EXPECT_EQ(
      std::system(absl::StrCat(kHandle, "=", hex, " '", self, "' --gtest_also_run_disabled_tests",
                               " --gtest_filter=CudaIpc.DISABLED_Reader")
                      .c_str()),
      0);
}

TEST(CudaIpc, DISABLED_Reader) {
  const char* hex = std::getenv(kHandle);
  ASSERT_NE(hex, nullptr) << "started by ExportedMemoryReadByOtherProcess";
  const std::string bytes = absl::HexStringToBytes(hex);
  DeviceMemoryHandle handle;
  ASSERT_EQ(bytes.size(), sizeof(handle));
  std::memcpy(&handle, bytes.data(), sizeof(handle));
  const auto imported = ImportCudaMemory(0, handle);
  ASSERT_TRUE(imported.ok()) << imported.status();
  const std::vector<SegmentRange> ranges = {{4096, 1 << 20, 0}, {kBytes - 8192, 8192, 0}};
  const auto copies = (*imported)->Copy(ranges);
  ASSERT_TRUE(copies.ok()) << copies.status();
  const std::vector<std::byte> pattern = Pattern();
  for (size_t i = 0; i < ranges.size(); ++i) {
    std::vector<std::byte> back(ranges[i].bytes);
    ASSERT_EQ(cudaMemcpy(back.data(), (*copies)[i].get(), back.size(), cudaMemcpyDeviceToHost),
              cudaSuccess);
    EXPECT_EQ(std::memcmp(back.data(), pattern.data() + ranges[i].offset, back.size()), 0);
  }
  handle.device[0] ^= 1;
  EXPECT_TRUE(absl::IsFailedPrecondition(ImportCudaMemory(0, handle).status()));
}

}  // namespace
}  // namespace hearth
