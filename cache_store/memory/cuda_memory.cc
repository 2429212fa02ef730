#include "cache_store/memory/cuda_memory.h"

#include <cuda.h>
#include <cuda_runtime_api.h>
#include <fcntl.h>
#include <unistd.h>

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

// Calls a function of the driver. It is looked up here, so that the program also starts on a
// machine without the driver. The driver's errors have the runtime's numbers.
template <typename Function, typename... Arguments>
absl::Status CallDriver(const char* name, Arguments... arguments) {
  void* found = nullptr;
  cudaError_t error =
      cudaGetDriverEntryPointByVersion(name, &found, 12000, cudaEnableDefault, nullptr);
  if (error == cudaSuccess && found == nullptr) error = cudaErrorNotSupported;
  if (error == cudaSuccess) {
    error = static_cast<cudaError_t>(reinterpret_cast<Function>(found)(arguments...));
  }
  return error == cudaSuccess ? absl::OkStatus() : Failed(name, error);
}
#define HEARTH_CALL_DRIVER(function, ...) CallDriver<decltype(&function)>(#function, __VA_ARGS__)

// Makes `index` the thread's current device, and creates its primary context.
absl::Status Use(int index) {
  cudaError_t error = cudaSetDevice(index);
  if (error == cudaSuccess) error = cudaFree(nullptr);
  return error == cudaSuccess ? absl::OkStatus() : Failed("cudaSetDevice", error);
}

// Addresses of this process for a whole allocation, which keep the allocation.
class Mapping {
 public:
  explicit Mapping(int index) : index_(index) {}
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;
  ~Mapping();
  // `bytes`: the size of the allocation, or less; a multiple of the driver's granularity.
  absl::Status Map(CUmemGenericAllocationHandle allocation, uint64_t bytes,
                   CUmemAccess_flags access);
  std::byte* data() const { return reinterpret_cast<std::byte*>(address_); }

 private:
  const int index_;
  uint64_t bytes_ = 0;
  CUdeviceptr address_ = 0;
};

Mapping::~Mapping() {
  if (address_ == 0) return;
  cudaSetDevice(index_);
  HEARTH_CALL_DRIVER(cuMemUnmap, address_, bytes_).IgnoreError();
  HEARTH_CALL_DRIVER(cuMemAddressFree, address_, bytes_).IgnoreError();
}

absl::Status Mapping::Map(CUmemGenericAllocationHandle allocation, uint64_t bytes,
                          CUmemAccess_flags access) {
  assert(address_ == 0);
  bytes_ = bytes;
  CUmemAccessDesc allowed = {};
  allowed.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  allowed.location.id = index_;
  allowed.flags = access;
  absl::Status status = HEARTH_CALL_DRIVER(cuMemAddressReserve, &address_, bytes, 0, 0, 0);
  if (status.ok()) status = HEARTH_CALL_DRIVER(cuMemMap, address_, bytes, 0, allocation, 0);
  if (status.ok()) status = HEARTH_CALL_DRIVER(cuMemSetAccess, address_, bytes, &allowed, 1);
  return status;
}

class CudaMemory final : public DeviceMemory {
 public:
  CudaMemory(int index, std::string name, uint64_t bytes)
      : index_(index), name_(std::move(name)), bytes_(bytes), mapping_(index) {}
  ~CudaMemory() override;

  absl::Status Allocate();
  std::string name() const override { return name_; }
  const std::byte* data() const override { return memory(); }
  uint64_t size_bytes() const override { return bytes_; }
  absl::Status StartCopyIn(uint64_t offset, absl::Span<const std::byte> from) override;
  absl::Status StartCopyOut(uint64_t offset, absl::Span<std::byte> to) override;
  absl::Status Wait() override;
  absl::StatusOr<ExportedMemory> Export() override {
    if (exported_.fd >= 0) return exported_;
    return absl::UnimplementedError(
        absl::StrCat(name_, ": its driver has no file descriptors for memory"));
  }

 private:
  absl::Status StartCopy(void* to, const void* from, size_t bytes, cudaMemcpyKind kind);
  std::byte* memory() const { return unshared_ != nullptr ? unshared_ : mapping_.data(); }

  const int index_;
  const std::string name_;
  const uint64_t bytes_;
  std::byte* unshared_ = nullptr;  // the memory, if the device cannot share memory
  Mapping mapping_;
  ExportedMemory exported_;
  cudaStream_t stream_ = nullptr;
};

CudaMemory::~CudaMemory() {
  cudaSetDevice(index_);
  if (stream_ != nullptr) {
    cudaStreamSynchronize(stream_);  // unmapping does not wait for copies
    cudaStreamDestroy(stream_);
  }
  if (exported_.fd >= 0) close(exported_.fd);
  if (unshared_ != nullptr) cudaFree(unshared_);
}

absl::Status CudaMemory::Allocate() {
  if (absl::Status status = Use(index_); !status.ok()) return status;
  size_t free_bytes = 0, all_bytes = 0;
  cudaDeviceProp properties;
  cudaError_t error = cudaMemGetInfo(&free_bytes, &all_bytes);
  if (error != cudaSuccess) return Failed("cudaMemGetInfo", error);
  error = cudaGetDeviceProperties(&properties, index_);
  if (error != cudaSuccess) return Failed("cudaGetDeviceProperties", error);
  // Use a stream of its own: libtorch computes on the default stream.
  error = cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking);
  if (error != cudaSuccess) return Failed("cudaStreamCreateWithFlags", error);
  if (bytes_ > free_bytes) {
    return absl::ResourceExhaustedError(absl::StrCat(name_, ": free bytes: ", free_bytes, " of ",
                                                     all_bytes, "; ", bytes_, " are wanted"));
  }
  int is_exportable = 0;
  absl::Status status =
      HEARTH_CALL_DRIVER(cuDeviceGetAttribute, &is_exportable,
                         CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED, index_);
  if (!status.ok() || is_exportable == 0) {
    void* memory = nullptr;
    error = cudaMalloc(&memory, bytes_);
    unshared_ = static_cast<std::byte*>(memory);
    return error == cudaSuccess ? absl::OkStatus() : Failed("cudaMalloc", error);
  }
  CUmemAllocationProp wanted = {};
  wanted.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  wanted.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  wanted.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  wanted.location.id = index_;
  size_t granule = 0;
  status = HEARTH_CALL_DRIVER(cuMemGetAllocationGranularity, &granule, &wanted,
                              CU_MEM_ALLOC_GRANULARITY_MINIMUM);
  if (!status.ok()) return status;
  const uint64_t bytes = (bytes_ + granule - 1) / granule * granule;
  CUmemGenericAllocationHandle allocation = 0;
  status = HEARTH_CALL_DRIVER(cuMemCreate, &allocation, bytes, &wanted, 0);
  if (!status.ok()) return status;
  status = mapping_.Map(allocation, bytes, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
  if (status.ok()) {
    status = HEARTH_CALL_DRIVER(cuMemExportToShareableHandle, &exported_.fd, allocation,
                                CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
  }
  status.Update(HEARTH_CALL_DRIVER(cuMemRelease, allocation));
  if (!status.ok()) return status;
  fcntl(exported_.fd, F_SETFD, FD_CLOEXEC);
  static_assert(sizeof(exported_.handle.device) == sizeof(properties.uuid));
  std::memcpy(exported_.handle.device.data(), &properties.uuid, sizeof(properties.uuid));
  exported_.handle.bytes = bytes;
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
  return StartCopy(memory() + offset, from.data(), from.size(), cudaMemcpyHostToDevice);
}

absl::Status CudaMemory::StartCopyOut(uint64_t offset, absl::Span<std::byte> to) {
  assert(offset <= bytes_ && to.size() <= bytes_ - offset);
  return StartCopy(to.data(), memory() + offset, to.size(), cudaMemcpyDeviceToHost);
}

absl::Status CudaMemory::Wait() {
  cudaError_t error = cudaSetDevice(index_);
  if (error == cudaSuccess) error = cudaStreamSynchronize(stream_);
  return error == cudaSuccess ? absl::OkStatus() : Failed("cudaStreamSynchronize", error);
}

class ImportedCudaMemory final : public ImportedMemory {
 public:
  explicit ImportedCudaMemory(int index) : index_(index), mapping_(index) {}
  absl::Status Map(const DeviceMemoryHandle& handle, int fd);
  const std::byte* data() const override { return mapping_.data(); }

 private:
  const int index_;
  Mapping mapping_;
};

absl::Status ImportedCudaMemory::Map(const DeviceMemoryHandle& handle, int fd) {
  if (absl::Status status = Use(index_); !status.ok()) return status;
  cudaDeviceProp properties;
  const cudaError_t error = cudaGetDeviceProperties(&properties, index_);
  if (error != cudaSuccess) return Failed("cudaGetDeviceProperties", error);
  if (std::memcmp(handle.device.data(), &properties.uuid, sizeof(properties.uuid)) != 0) {
    return absl::FailedPreconditionError(
        "the store's gpu tier is on a different GPU than this process uses");
  }
  CUmemGenericAllocationHandle allocation = 0;
  absl::Status status = HEARTH_CALL_DRIVER(cuMemImportFromShareableHandle, &allocation,
                                           reinterpret_cast<void*>(static_cast<intptr_t>(fd)),
                                           CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
  if (!status.ok()) return status;
  // Fails if the allocation is smaller.
  status = mapping_.Map(allocation, handle.bytes, CU_MEM_ACCESS_FLAGS_PROT_READ);
  status.Update(HEARTH_CALL_DRIVER(cuMemRelease, allocation));
  return status;
}

}  // namespace

absl::StatusOr<std::unique_ptr<ImportedMemory>> ImportCudaMemory(int index,
                                                                 const DeviceMemoryHandle& handle,
                                                                 int fd) {
  auto memory = std::make_unique<ImportedCudaMemory>(index);
  if (absl::Status status = memory->Map(handle, fd); !status.ok()) return status;
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
