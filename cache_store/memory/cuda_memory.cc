#include "cache_store/memory/cuda_memory.h"

#include <cuda_runtime_api.h>

#include <cassert>
#include <cstring>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"

namespace hearth {
namespace {

// Converts a CUDA error. Makes another CUDA call: if it fails too, the CUDA context is broken and
// the device is lost; if it succeeds, the error concerned only the failed call.
absl::Status Failed(const char* what, cudaError_t error) {
  const std::string text = absl::StrCat("CUDA: ", what, ": ", cudaGetErrorString(error));
  cudaGetLastError();
  const bool lost = cudaDeviceSynchronize() != cudaSuccess;
  cudaGetLastError();
  if (lost) return absl::UnavailableError(text);
  if (error == cudaErrorMemoryAllocation) return absl::ResourceExhaustedError(text);
  return absl::InternalError(text);
}

class CudaMemory final : public DeviceMemory {
 public:
  CudaMemory(int index, std::string name, uint64_t bytes)
      : index_(index), name_(std::move(name)), bytes_(bytes) {}
  ~CudaMemory() override;

  absl::Status Allocate();
  std::string name() const override { return name_; }
  const std::byte* data() const override { return data_; }
  uint64_t size_bytes() const override { return bytes_; }
  absl::Status StartCopyIn(uint64_t offset, absl::Span<const std::byte> from) override;
  absl::Status StartCopyOut(uint64_t offset, absl::Span<std::byte> to) override;
  absl::Status Wait() override;
  absl::StatusOr<DeviceMemoryHandle> Export() override;

 private:
  absl::Status StartCopy(void* to, const void* from, size_t bytes, cudaMemcpyKind kind);

  const int index_;
  const std::string name_;
  const uint64_t bytes_;
  std::byte* data_ = nullptr;
  cudaStream_t stream_ = nullptr;
};

CudaMemory::~CudaMemory() {
  cudaSetDevice(index_);
  if (stream_ != nullptr) cudaStreamDestroy(stream_);
  if (data_ != nullptr) cudaFree(data_);
}

absl::Status CudaMemory::Allocate() {
  cudaError_t error = cudaSetDevice(index_);
  if (error != cudaSuccess) return Failed("cudaSetDevice", error);
  void* data = nullptr;
  error = cudaMalloc(&data, bytes_);
  if (error != cudaSuccess) return Failed("cudaMalloc", error);
  data_ = static_cast<std::byte*>(data);
  // Use a stream of its own: libtorch computes on the default stream.
  error = cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking);
  if (error != cudaSuccess) return Failed("cudaStreamCreate", error);
  return absl::OkStatus();
}

absl::Status CudaMemory::StartCopy(void* to, const void* from, size_t bytes, cudaMemcpyKind kind) {
  // Set the current device, which is a setting of each thread.
  cudaError_t error = cudaSetDevice(index_);
  if (error == cudaSuccess) error = cudaMemcpyAsync(to, from, bytes, kind, stream_);
  return error == cudaSuccess ? absl::OkStatus() : Failed("cudaMemcpyAsync", error);
}

absl::Status CudaMemory::StartCopyIn(uint64_t offset, absl::Span<const std::byte> from) {
  assert(offset <= bytes_ && from.size() <= bytes_ - offset);
  return StartCopy(data_ + offset, from.data(), from.size(), cudaMemcpyHostToDevice);
}

absl::Status CudaMemory::StartCopyOut(uint64_t offset, absl::Span<std::byte> to) {
  assert(offset <= bytes_ && to.size() <= bytes_ - offset);
  return StartCopy(to.data(), data_ + offset, to.size(), cudaMemcpyDeviceToHost);
}

absl::Status CudaMemory::Wait() {
  cudaError_t error = cudaSetDevice(index_);
  if (error == cudaSuccess) error = cudaStreamSynchronize(stream_);
  return error == cudaSuccess ? absl::OkStatus() : Failed("cudaStreamSynchronize", error);
}

absl::StatusOr<DeviceMemoryHandle> CudaMemory::Export() {
  DeviceMemoryHandle handle;
  cudaIpcMemHandle_t memory;
  cudaDeviceProp properties;
  cudaError_t error = cudaSetDevice(index_);
  if (error == cudaSuccess) error = cudaGetDeviceProperties(&properties, index_);
  if (error == cudaSuccess) error = cudaIpcGetMemHandle(&memory, data_);
  if (error != cudaSuccess) return Failed("cudaIpcGetMemHandle", error);
  static_assert(sizeof(handle.memory) == sizeof(memory));
  static_assert(sizeof(handle.device) == sizeof(properties.uuid));
  std::memcpy(handle.memory.data(), &memory, sizeof(memory));
  std::memcpy(handle.device.data(), &properties.uuid, sizeof(properties.uuid));
  return handle;
}

class ImportedCudaMemory final : public ImportedMemory {
 public:
  explicit ImportedCudaMemory(int index) : index_(index) {}
  ~ImportedCudaMemory() override;
  absl::Status Map(const DeviceMemoryHandle& handle);
  absl::StatusOr<std::vector<std::shared_ptr<const std::byte>>> Copy(
      absl::Span<const SegmentRange> ranges) override;

 private:
  const int index_;
  std::byte* data_ = nullptr;
};

ImportedCudaMemory::~ImportedCudaMemory() {
  cudaSetDevice(index_);
  if (data_ != nullptr) cudaIpcCloseMemHandle(data_);
}

absl::Status ImportedCudaMemory::Map(const DeviceMemoryHandle& handle) {
  cudaDeviceProp properties;
  cudaError_t error = cudaSetDevice(index_);
  if (error == cudaSuccess) error = cudaGetDeviceProperties(&properties, index_);
  if (error != cudaSuccess) return Failed("cudaGetDeviceProperties", error);
  if (std::memcmp(handle.device.data(), &properties.uuid, sizeof(properties.uuid)) != 0) {
    return absl::FailedPreconditionError(
        "the store's gpu tier is on a different GPU than this process uses");
  }
  cudaIpcMemHandle_t memory;
  std::memcpy(&memory, handle.memory.data(), sizeof(memory));
  void* data = nullptr;
  error = cudaIpcOpenMemHandle(&data, memory, cudaIpcMemLazyEnablePeerAccess);
  if (error != cudaSuccess) return Failed("cudaIpcOpenMemHandle", error);
  data_ = static_cast<std::byte*>(data);
  return absl::OkStatus();
}

// Copies and allocates on the calling thread's own stream, so that callers wait neither for each
// other nor for libtorch.
absl::StatusOr<std::vector<std::shared_ptr<const std::byte>>> ImportedCudaMemory::Copy(
    absl::Span<const SegmentRange> ranges) {
  const cudaStream_t stream = cudaStreamPerThread;
  std::vector<std::shared_ptr<const std::byte>> copies;
  cudaError_t error = cudaSetDevice(index_);
  for (const SegmentRange& range : ranges) {
    void* to = nullptr;
    if (error == cudaSuccess) error = cudaMallocAsync(&to, range.bytes, stream);
    if (error != cudaSuccess) break;
    copies.emplace_back(static_cast<const std::byte*>(to), [index = index_](const std::byte* copy) {
      cudaSetDevice(index);
      cudaFreeAsync(const_cast<std::byte*>(copy), cudaStreamPerThread);
    });
    error =
        cudaMemcpyAsync(to, data_ + range.offset, range.bytes, cudaMemcpyDeviceToDevice, stream);
  }
  const cudaError_t ended = cudaStreamSynchronize(stream);
  if (error == cudaSuccess) error = ended;
  if (error != cudaSuccess) return Failed("copying from the store's gpu tier", error);
  return copies;
}

}  // namespace

absl::StatusOr<std::unique_ptr<ImportedMemory>> ImportCudaMemory(int index,
                                                                 const DeviceMemoryHandle& handle) {
  auto memory = std::make_unique<ImportedCudaMemory>(index);
  if (absl::Status status = memory->Map(handle); !status.ok()) return status;
  return memory;
}

absl::StatusOr<std::unique_ptr<DeviceMemory>> OpenCudaMemory(int index, uint64_t bytes) {
  int driver = 0, count = 0;
  cudaDriverGetVersion(&driver);  // 0: there is no driver
  cudaError_t error = cudaGetDeviceCount(&count);
  if (driver == 0 || error != cudaSuccess) {
    cudaGetLastError();
    return absl::FailedPreconditionError(absl::StrCat(
        "no CUDA device: ", driver == 0 ? "there is no NVIDIA driver" : cudaGetErrorString(error),
        ": check nvidia-smi and CUDA_VISIBLE_DEVICES; in a container, use the NVIDIA runtime and "
        "request a GPU"));
  }
  if (index < 0 || index >= count) {
    return absl::FailedPreconditionError(
        absl::StrCat("no CUDA device ", index, ": number of devices: ", count));
  }
  cudaDeviceProp properties;
  error = cudaGetDeviceProperties(&properties, index);
  if (error != cudaSuccess) return Failed("cudaGetDeviceProperties", error);
  auto memory = std::make_unique<CudaMemory>(
      index, absl::StrCat("cuda:", index, ", ", properties.name), bytes);
  if (absl::Status status = memory->Allocate(); !status.ok()) return status;
  return memory;
}

}  // namespace hearth
