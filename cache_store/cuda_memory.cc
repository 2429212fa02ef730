#include "cache_store/cuda_memory.h"

#include <cuda_runtime_api.h>

#include <cassert>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"

namespace hearth {
namespace {

// Errors of a context that is broken stay: every later call returns them too. One that does not
// come again was the call's own.
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
  // Beside the default stream, on which libtorch computes.
  error = cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking);
  if (error != cudaSuccess) return Failed("cudaStreamCreate", error);
  return absl::OkStatus();
}

absl::Status CudaMemory::StartCopy(void* to, const void* from, size_t bytes, cudaMemcpyKind kind) {
  // The current device is a thread's own.
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

}  // namespace

absl::StatusOr<std::unique_ptr<DeviceMemory>> OpenCudaMemory(int index, uint64_t bytes) {
  int count = 0;
  cudaError_t error = cudaGetDeviceCount(&count);
  if (error != cudaSuccess) {
    cudaGetLastError();
    return absl::FailedPreconditionError(
        absl::StrCat("no CUDA device: ", cudaGetErrorString(error)));
  }
  if (index < 0 || index >= count) {
    return absl::FailedPreconditionError(
        absl::StrCat("no CUDA device ", index, ": there are ", count));
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
