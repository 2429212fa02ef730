#include "worker/device/cuda_device.h"

#include <cuda_runtime_api.h>

#include <cstring>
#include <utility>

#include "worker/device/cuda_kernels.h"
#include "worker/device/gpu_problem.h"

namespace hearth {
namespace {

cudaStream_t Stream(void* stream) { return static_cast<cudaStream_t>(stream); }

}  // namespace

class CudaDevice::Graph : public DeviceGraph {
 public:
  Graph(CudaDevice* device, cudaGraphExec_t ready) : device_(device), ready_(ready) {}
  ~Graph() override {
    if (ready_ != nullptr) cudaGraphExecDestroy(ready_);
  }
  void Replay() override {
    if (!device_->Use()) return;
    device_->Check(cudaGraphLaunch(ready_, Stream(device_->stream_)), "a graph's launch");
  }

 private:
  CudaDevice* const device_;
  const cudaGraphExec_t ready_;
};

class CudaDevice::Event : public DeviceEvent {
 public:
  explicit Event(int gpu) : gpu_(gpu) {}
  ~Event() override {
    if (event_ == nullptr) return;
    cudaSetDevice(gpu_);
    cudaEventDestroy(event_);
  }
  // Any thread. In a thread that has not chosen a GPU, a call would use GPU 0 and its memory.
  bool Wait() override {
    return is_recorded_ && cudaSetDevice(gpu_) == cudaSuccess &&
           cudaEventSynchronize(event_) == cudaSuccess;
  }
  // Records the event in `stream`. Without time stamps an event costs less; a waiting thread
  // sleeps.
  cudaError_t Record(cudaStream_t stream) {
    constexpr unsigned kFlags = cudaEventDisableTiming | cudaEventBlockingSync;
    if (event_ == nullptr) {
      const cudaError_t made = cudaEventCreateWithFlags(&event_, kFlags);
      if (made != cudaSuccess) return made;
    }
    const cudaError_t recorded = cudaEventRecord(event_, stream);
    is_recorded_ = recorded == cudaSuccess;
    return recorded;
  }
  cudaError_t MakeWait(cudaStream_t stream) const { return cudaStreamWaitEvent(stream, event_, 0); }

 private:
  const int gpu_;
  cudaEvent_t event_ = nullptr;
  bool is_recorded_ = false;
};

CudaDevice::CudaDevice(int number) : number_(number), launched_(std::make_unique<Event>(number)) {
  int driver = 0, gpus = 0;
  cudaDriverGetVersion(&driver);
  const cudaError_t counted = cudaGetDeviceCount(&gpus);
  cudaGetLastError();
  const std::string problem =
      GpuProblem(driver, CUDART_VERSION, counted == cudaSuccess ? gpus : 0,
                 cudaGetErrorString(counted == cudaSuccess ? cudaErrorNoDevice : counted), number);
  if (!problem.empty()) Fail(problem);
  if (!Use()) return;
  for (void** queue : {&stream_, &transfers_}) {
    cudaStream_t stream;
    if (!Check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "a stream")) return;
    *queue = stream;
  }
  void* ring = nullptr;
  if (!Check(cudaMallocHost(&ring, kRingBytes), "pinned memory")) return;
  ring_ = static_cast<std::byte*>(ring);
  int shared_bytes = 0;
  for (const auto& [to, attribute] :
       {std::pair{&processors_, cudaDevAttrMultiProcessorCount},
        std::pair{&shared_bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin},
        std::pair{&major_, cudaDevAttrComputeCapabilityMajor}}) {
    if (!Check(cudaDeviceGetAttribute(to, attribute, number_), "attributes")) return;
  }
  shared_bytes_ = static_cast<size_t>(shared_bytes);
  if (FindKernels()) return;
  int minor = 0;
  cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, number_);
  Fail("GPU " + std::to_string(number_) + " has compute capability " + std::to_string(major_) +
       "." + std::to_string(minor) + "; this worker has kernels for sm_" HEARTH_CUDA_GENERATIONS);
}

// Finds the programs that fit in the GPU's registers and shared memory. Returns false if no program
// fits.
bool CudaDevice::FindKernels() {
  bool any = false;
  for (int program = 0; program < CudaKernels(); ++program) {
    const CudaKernel& kernel = KernelNumber(program);
    const bool fits =
        kernel.function != nullptr &&
        cudaFuncSetAttribute(kernel.function, cudaFuncAttributeMaxDynamicSharedMemorySize,
                             static_cast<int>(kernel.shared_bytes)) == cudaSuccess;
    takes_.push_back(fits);
    any = any || fits;
  }
  cudaGetLastError();  // clears the errors that cudaFuncSetAttribute set
  return any;
}

CudaDevice::~CudaDevice() {
  cudaSetDevice(number_);
  cudaFreeHost(ring_);
  for (void* queue : {stream_, transfers_}) {
    if (queue != nullptr) cudaStreamDestroy(Stream(queue));
  }
}

bool CudaDevice::Use() { return error().empty() && Check(cudaSetDevice(number_), "the GPU"); }

bool CudaDevice::Check(int code, const char* what) {
  if (code != cudaSuccess) {
    Fail(std::string(what) + ": " + cudaGetErrorString(static_cast<cudaError_t>(code)));
  }
  return error().empty();
}

size_t CudaDevice::free_bytes() const {
  size_t free = 0, all = 0;
  if (cudaSetDevice(number_) != cudaSuccess || cudaMemGetInfo(&free, &all) != cudaSuccess) free = 0;
  return free;
}

bool CudaDevice::CanRun(int program) const { return takes_[static_cast<size_t>(program)]; }

CudaDevice::Facts CudaDevice::FactsOfProgram(int program) const {
  const CudaKernel& kernel = KernelNumber(program);
  cudaFuncAttributes attributes = {};
  if (kernel.function != nullptr) cudaFuncGetAttributes(&attributes, kernel.function);
  return {attributes.numRegs, static_cast<int>(attributes.localSizeBytes),
          static_cast<int>(kernel.shared_bytes), static_cast<int>(kernel.threads)};
}

HostPinning CudaDevice::pinning() const {
  const auto pin = [number = number_](void* memory, size_t bytes) {
    if (cudaSetDevice(number) == cudaSuccess &&
        cudaHostRegister(memory, bytes, cudaHostRegisterPortable) == cudaSuccess) {
      return true;
    }
    cudaGetLastError();  // the memory stays pageable
    return false;
  };
  const auto unpin = [number = number_](void* memory) {
    if (cudaSetDevice(number) != cudaSuccess || cudaHostUnregister(memory) != cudaSuccess) {
      cudaGetLastError();
    }
  };
  return {pin, unpin};
}

void* CudaDevice::Allocate(size_t bytes) {
  void* memory = nullptr;
  if (!Use()) return nullptr;
  const cudaError_t allocated = cudaMalloc(&memory, bytes);
  if (allocated == cudaErrorMemoryAllocation) {
    cudaGetLastError();
    return nullptr;
  }
  return Check(allocated, "an allocation") ? memory : nullptr;
}

void CudaDevice::Free(void* memory) {
  Wait();
  cudaSetDevice(number_);  // also after a failure
  cudaFree(memory);
}

void CudaDevice::CopyOn(void* stream, CopyWay way, void* to, const void* from,
                        const CopyRuns& runs) {
  if (!Use()) return;
  constexpr cudaMemcpyKind kKinds[] = {cudaMemcpyHostToDevice, cudaMemcpyDeviceToHost,
                                       cudaMemcpyDeviceToDevice};
  // With one run the strides are unused; pass `bytes`, because CUDA rejects a pitch below the
  // width.
  const size_t from_pitch = runs.count > 1 ? runs.from_stride : runs.bytes;
  const size_t to_pitch = runs.count > 1 ? runs.to_stride : runs.bytes;
  Check(cudaMemcpy2DAsync(to, to_pitch, from, from_pitch, runs.bytes, runs.count,
                          kKinds[static_cast<int>(way)], Stream(stream)),
        "a copy");
}

void CudaDevice::Copy(CopyWay way, void* to, const void* from, const CopyRuns& runs) {
  CopyOn(stream_, way, to, from, runs);
  Wait();
}

void CudaDevice::StartTransfer(CopyWay way, void* to, const void* from, const CopyRuns& runs) {
  CopyOn(transfers_, way, to, from, runs);
}

void CudaDevice::MakeTransfersWait() {
  if (!Use()) return;
  if (!Check(launched_->Record(Stream(stream_)), "an event of the launches")) return;
  Check(launched_->MakeWait(Stream(transfers_)), "a wait of the transfers");
}

std::shared_ptr<DeviceEvent> CudaDevice::RecordTransfers() {
  auto event = std::make_shared<Event>(number_);
  if (Use() && Check(event->Record(Stream(transfers_)), "an event of the transfers")) return event;
  // The caller cannot wait for the copies before it frees their memory.
  cudaSetDevice(number_);
  cudaStreamSynchronize(Stream(transfers_));
  return event;
}

void CudaDevice::MakeLaunchesWait(const DeviceEvent& event) {
  if (!Use()) return;
  Check(static_cast<const Event&>(event).MakeWait(Stream(stream_)), "a wait for transfers");
}

// A small copy goes through the pinned ring buffer, so the host does not wait for earlier launches.
void CudaDevice::CopyIn(void* to, const void* from, size_t bytes) {
  if (!Use()) return;
  const bool is_small = bytes <= kRingBytes / 8;
  if (is_small) {
    if (ring_used_ + bytes > kRingBytes) {
      Wait();
      ring_used_ = 0;
    }
    std::memcpy(ring_ + ring_used_, from, bytes);
    from = ring_ + ring_used_;
    ring_used_ += (bytes + 255) / 256 * 256;
  }
  Check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyHostToDevice, Stream(stream_)), "a copy");
  if (!is_small) Check(cudaStreamSynchronize(Stream(stream_)), "a copy to the device");
}

void CudaDevice::CopyOut(void* to, const void* from, size_t bytes) {
  if (!Use()) return;
  Check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToHost, Stream(stream_)), "a copy");
  Check(cudaStreamSynchronize(Stream(stream_)), "a copy from the device");
}

void* CudaDevice::AllocateHost(size_t bytes) {
  void* memory = nullptr;
  if (!Use() || cudaMallocHost(&memory, bytes) != cudaSuccess) {
    cudaGetLastError();
    return nullptr;
  }
  return memory;
}

void CudaDevice::FreeHost(void* memory) {
  cudaSetDevice(number_);
  cudaFreeHost(memory);
}

void CudaDevice::StartCopyOut(void* to, const void* from, size_t bytes) {
  if (!Use()) return;
  Check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToHost, Stream(stream_)), "a copy");
}

void CudaDevice::Launch(int program, const void* arguments, int blocks) {
  if (!Use()) return;
  const CudaKernel& kernel = KernelNumber(program);
  if (!takes_[static_cast<size_t>(program)]) {
    Check(cudaErrorInvalidConfiguration, "a program that this GPU has no room for");
    return;
  }
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(static_cast<unsigned>(blocks));
  config.blockDim = dim3(kernel.threads);
  config.dynamicSmemBytes = kernel.shared_bytes;
  config.stream = Stream(stream_);
  cudaLaunchAttribute dependent = {};
  dependent.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  dependent.val.programmaticStreamSerializationAllowed = 1;
  config.attrs = &dependent;
  config.numAttrs = overlap_ ? 1 : 0;
  void* list[] = {const_cast<void*>(arguments)};
  Check(cudaLaunchKernelExC(&config, kernel.function, list), "a launch");
}

double CudaDevice::Time(const std::function<void()>& launches) {
  if (!Use()) return -1;
  cudaEvent_t events[2] = {};
  float milliseconds = -1;
  for (cudaEvent_t& event : events) Check(cudaEventCreate(&event), "an event");
  if (error().empty()) cudaEventRecord(events[0], Stream(stream_));
  launches();
  if (error().empty()) cudaEventRecord(events[1], Stream(stream_));
  Wait();
  if (error().empty()) cudaEventElapsedTime(&milliseconds, events[0], events[1]);
  for (cudaEvent_t event : events) {
    if (event != nullptr) cudaEventDestroy(event);
  }
  return double{milliseconds} * 1e3;
}

std::unique_ptr<DeviceGraph> CudaDevice::Capture(const std::function<void()>& launches) {
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t ready = nullptr;
  Use();
  Check(cudaStreamBeginCapture(Stream(stream_), cudaStreamCaptureModeThreadLocal), "a capture");
  launches();
  Check(cudaStreamEndCapture(Stream(stream_), &graph), "a capture's end");
  cudaError_t made = cudaSuccess;
  if (error().empty()) made = cudaGraphInstantiate(&ready, graph, 0);
  // allocates what the first launch would allocate
  if (error().empty() && made == cudaSuccess) made = cudaGraphUpload(ready, Stream(stream_));
  if (graph != nullptr) cudaGraphDestroy(graph);
  auto captured = std::make_unique<Graph>(this, ready);
  if (made == cudaErrorMemoryAllocation) {
    cudaGetLastError();
    return nullptr;
  }
  Check(made, "a graph");
  return captured;
}

void CudaDevice::Wait() {
  if (Use()) Check(cudaStreamSynchronize(Stream(stream_)), "the programs' end");
}

}  // namespace hearth
