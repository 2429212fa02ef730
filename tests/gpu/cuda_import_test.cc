// One process exports memory of a CUDA device, and a second process maps it, read only.
#include <cuda.h>
#include <cuda_runtime_api.h>
#include <fcntl.h>
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

TEST(CudaImport, ExportedMemoryReadByOtherProcess) {
  const auto memory = OpenCudaMemory(0, kBytes);
  if (absl::IsFailedPrecondition(memory.status())) GTEST_SKIP() << memory.status().message();
  ASSERT_TRUE(memory.ok()) << memory.status();
  const std::vector<std::byte> pattern = Pattern();
  ASSERT_TRUE((*memory)->StartCopyIn(0, pattern).ok());
  ASSERT_TRUE((*memory)->Wait().ok());
  const absl::StatusOr<ExportedMemory> exported = (*memory)->Export();
  ASSERT_TRUE(exported.ok()) << exported.status();
  EXPECT_GE(exported->handle.bytes, kBytes);
  ASSERT_EQ(fcntl(exported->fd, F_SETFD, 0), 0);  // the reader inherits the descriptor
  char self[4096] = {};
  ASSERT_GT(readlink("/proc/self/exe", self, sizeof(self) - 1), 0);
  const std::string hex =
      absl::BytesToHexString({reinterpret_cast<const char*>(&*exported), sizeof(*exported)});
  // Starts this program again as the reader, because a CUDA context does not survive fork.
  EXPECT_EQ(
      std::system(absl::StrCat(kHandle, "=", hex, " '", self, "' --gtest_also_run_disabled_tests",
                               " --gtest_filter=CudaImport.DISABLED_Reader")
                      .c_str()),
      0);
}

TEST(CudaImport, DISABLED_Reader) {
  const char* hex = std::getenv(kHandle);
  ASSERT_NE(hex, nullptr) << "started by ExportedMemoryReadByOtherProcess";
  const std::string bytes = absl::HexStringToBytes(hex);
  ExportedMemory exported;
  ASSERT_EQ(bytes.size(), sizeof(exported));
  std::memcpy(&exported, bytes.data(), sizeof(exported));
  DeviceMemoryHandle handle = exported.handle;
  const auto imported = ImportCudaMemory(0, handle, exported.fd);
  ASSERT_TRUE(imported.ok()) << imported.status();
  const std::byte* const data = (*imported)->data();
  const std::vector<std::byte> pattern = Pattern();
  for (const SegmentRange& range :
       {SegmentRange{4096, 1 << 20, 0}, SegmentRange{kBytes - 8192, 8192, 0}}) {
    std::vector<std::byte> back(range.bytes);
    ASSERT_EQ(cudaMemcpy(back.data(), data + range.offset, back.size(), cudaMemcpyDeviceToHost),
              cudaSuccess);
    EXPECT_EQ(std::memcmp(back.data(), pattern.data() + range.offset, back.size()), 0);
  }
  // Not memory, and less memory than the handle says.
  EXPECT_FALSE(ImportCudaMemory(0, handle, STDERR_FILENO).ok());
  handle.bytes *= 2;
  EXPECT_FALSE(ImportCudaMemory(0, handle, exported.fd).ok());
  handle.device[0] ^= 1;
  EXPECT_TRUE(absl::IsFailedPrecondition(ImportCudaMemory(0, handle, exported.fd).status()));
  void* found = nullptr;
  ASSERT_EQ(
      cudaGetDriverEntryPointByVersion("cuMemGetAccess", &found, 12000, cudaEnableDefault, nullptr),
      cudaSuccess);
  CUmemLocation location = {};
  location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  unsigned long long access = 0;
  ASSERT_EQ(reinterpret_cast<decltype(&cuMemGetAccess)>(found)(&access, &location,
                                                               reinterpret_cast<CUdeviceptr>(data)),
            CUDA_SUCCESS);
  EXPECT_EQ(access, uint64_t{CU_MEM_ACCESS_FLAGS_PROT_READ});
}

}  // namespace
}  // namespace hearth
