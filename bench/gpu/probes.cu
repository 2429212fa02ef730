// Measures a device without Hearth: memory bandwidth, copies between host and device, the cost of a
// launch, and the available ways to share its memory with another process.
//   gpu_probes [TURNS]
// Prints a line of JSON for each measurement: {"row": ..., "unit": ..., "values": [...]}, or "why"
// if it is not possible. If there is no device, prints one line and exits with 2.
#include <cuda.h>
#include <cuda_runtime.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

namespace {

constexpr size_t kDeviceBytes = size_t{1} << 30;  // far larger than any cache of a GPU
constexpr size_t kHostBytes = size_t{256} << 20;
constexpr int kLaunches = 2000;
constexpr int kShared = 1 << 20;
int turns = 7;

void Require(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return;
  std::printf("{\"row\": \"%s\", \"why\": \"%s\"}\n", what, cudaGetErrorString(error));
  std::exit(1);
}

__global__ void Read(const uint4* from, size_t count, unsigned* sum) {
  unsigned mine = 0;
  const size_t stride = size_t{gridDim.x} * blockDim.x;
  for (size_t i = size_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += stride) {
    const uint4 v = from[i];
    mine ^= v.x ^ v.y ^ v.z ^ v.w;
  }
  if (mine == 0x5eed) *sum = mine;  // never true for zeros, but the compiler cannot omit the loads
}

__global__ void Nothing() {}

constexpr int kStepThreads = 256, kStepWeights = 4;  // kStepWeights: loads of 16 bytes per thread

// Imitates a kernel of a decoding step: loads weights, which do not depend on the kernel before;
// then waits for the kernel before, and adds to the values which that kernel wrote.
__global__ void Step(const uint4* weights, unsigned* data) {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;");
#endif
  const int thread = blockIdx.x * blockDim.x + threadIdx.x;
  unsigned mine = 0;
  for (int i = 0; i < kStepWeights; ++i) {
    const uint4 v = weights[thread + i * gridDim.x * blockDim.x];
    mine += v.x ^ v.y ^ v.z ^ v.w;
  }
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
  data[thread] += mine + 1;
}

// Runs `work` several times and prints a rate, `amount` / seconds, for each run except the first.
// If `amount` is negative, prints seconds / -amount instead.
void Row(const char* row, const char* unit, double amount, const std::function<void()>& work) {
  std::printf("{\"row\": \"%s\", \"unit\": \"%s\", \"values\": [", row, unit);
  for (int turn = -1; turn < turns; ++turn) {
    Require(cudaDeviceSynchronize(), row);
    const auto begin = std::chrono::steady_clock::now();
    work();
    Require(cudaDeviceSynchronize(), row);
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
    const double value = amount > 0 ? amount / took.count() : took.count() / -amount;
    if (turn >= 0) std::printf("%s%.6g", turn == 0 ? "" : ", ", value);
  }
  std::printf("]}\n");
  std::fflush(stdout);
}

// Measures copies from shared memory that is registered with CUDA, as the store's segments are.
void Registered(void* device) {
  const char* row = "shared memory, registered";
  const int fd = memfd_create("probe", 0);
  void* memory = MAP_FAILED;
  if (fd >= 0 && ftruncate(fd, kHostBytes) == 0) {
    memory = mmap(nullptr, kHostBytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  }
  if (memory == MAP_FAILED) {
    std::printf("{\"row\": \"%s\", \"why\": \"%s\"}\n", row, std::strerror(errno));
    return;
  }
  std::memset(memory, 1, kHostBytes);
  const double host = kHostBytes / 1e9;
  const cudaError_t error = cudaHostRegister(memory, kHostBytes, cudaHostRegisterDefault);
  if (error != cudaSuccess) {
    std::printf("{\"row\": \"%s\", \"why\": \"%s\"}\n", row, cudaGetErrorString(error));
    cudaGetLastError();
  } else {
    Row("registered to device", "GB/s", host,
        [&] { cudaMemcpy(device, memory, kHostBytes, cudaMemcpyHostToDevice); });
    Row("device to registered", "GB/s", host,
        [&] { cudaMemcpy(memory, device, kHostBytes, cudaMemcpyDeviceToHost); });
    cudaHostUnregister(memory);
    Row("registering and unregistering", "GB/s", host, [&] {
      cudaHostRegister(memory, kHostBytes, cudaHostRegisterDefault);
      cudaHostUnregister(memory);
    });
  }
  munmap(memory, kHostBytes);
  close(fd);
}

void Bandwidths() {
  void *from = nullptr, *to = nullptr, *pinned = nullptr;
  unsigned* sum = nullptr;
  Require(cudaMalloc(&from, kDeviceBytes), "memory");
  Require(cudaMalloc(&to, kDeviceBytes), "memory");
  Require(cudaMalloc(&sum, sizeof(*sum)), "memory");
  Require(cudaMemset(from, 0, kDeviceBytes), "memory");
  cudaDeviceProp properties;
  Require(cudaGetDeviceProperties(&properties, 0), "properties");
  const int blocks = properties.multiProcessorCount * 8;
  Row("device memory, read", "GB/s", kDeviceBytes / 1e9, [&] {
    Read<<<blocks, 512>>>(static_cast<const uint4*>(from), kDeviceBytes / sizeof(uint4), sum);
  });
  Row("device memory, copied (read and written)", "GB/s", 2 * kDeviceBytes / 1e9,
      [&] { cudaMemcpyAsync(to, from, kDeviceBytes, cudaMemcpyDeviceToDevice); });
  std::vector<char> pageable(kHostBytes, 1);
  Require(cudaMallocHost(&pinned, kHostBytes), "pinned memory");
  std::memset(pinned, 1, kHostBytes);
  const double host = kHostBytes / 1e9;
  Row("pinned to device", "GB/s", host,
      [&] { cudaMemcpy(to, pinned, kHostBytes, cudaMemcpyHostToDevice); });
  Row("device to pinned", "GB/s", host,
      [&] { cudaMemcpy(pinned, to, kHostBytes, cudaMemcpyDeviceToHost); });
  Row("pageable to device", "GB/s", host,
      [&] { cudaMemcpy(to, pageable.data(), kHostBytes, cudaMemcpyHostToDevice); });
  Row("device to pageable", "GB/s", host,
      [&] { cudaMemcpy(pageable.data(), to, kHostBytes, cudaMemcpyDeviceToHost); });
  // 128 KiB is the size of the table of a device step, which is sent in one copy.
  Row("pinned to device, 128 KiB", "s", -1,
      [&] { cudaMemcpyAsync(to, pinned, size_t{128} << 10, cudaMemcpyHostToDevice); });
  cudaFreeHost(pinned);
  Registered(to);
  cudaFree(from), cudaFree(to), cudaFree(sum);
}

void Launches() {
  Row("a launch", "s", -kLaunches, [] {
    for (int i = 0; i < kLaunches; ++i) Nothing<<<1, 32>>>();
  });
  cudaStream_t stream;
  cudaGraph_t graph;
  cudaGraphExec_t ready;
  Require(cudaStreamCreate(&stream), "a launch in a graph");
  Require(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal), "a launch in a graph");
  for (int i = 0; i < kLaunches; ++i) Nothing<<<1, 32, 0, stream>>>();
  Require(cudaStreamEndCapture(stream, &graph), "a launch in a graph");
  Require(cudaGraphInstantiate(&ready, graph, 0), "a launch in a graph");
  Row("a launch in a graph", "s", -kLaunches, [&] { cudaGraphLaunch(ready, stream); });
}

// Measures a CUDA graph of Step kernels, each on every multiprocessor. If `early` is true, a Step
// may begin before the Step ahead of it has ended (programmatic dependent launch).
void ChainOfSteps(const char* row, bool early, int blocks, const uint4* weights, unsigned* data) {
  cudaStream_t stream;
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t ready = nullptr;
  Require(cudaStreamCreate(&stream), row);
  cudaLaunchAttribute attribute = {};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(blocks);
  config.blockDim = dim3(kStepThreads);
  config.stream = stream;
  config.attrs = &attribute;
  config.numAttrs = early ? 1 : 0;
  cudaError_t error = cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal);
  for (int i = 0; i < kLaunches && error == cudaSuccess; ++i) {
    error = cudaLaunchKernelEx(&config, Step, weights, data);
  }
  const cudaError_t ended = cudaStreamEndCapture(stream, &graph);
  if (error == cudaSuccess) error = ended;
  if (error == cudaSuccess) error = cudaGraphInstantiate(&ready, graph, 0);
  const size_t count = static_cast<size_t>(blocks) * kStepThreads;
  std::vector<unsigned> result(count);
  if (error == cudaSuccess) error = cudaMemset(data, 0, count * sizeof(unsigned));
  if (error == cudaSuccess) error = cudaGraphLaunch(ready, stream);
  if (error == cudaSuccess) error = cudaStreamSynchronize(stream);
  if (error == cudaSuccess) {
    error = cudaMemcpy(result.data(), data, count * sizeof(unsigned), cudaMemcpyDeviceToHost);
  }
  if (error != cudaSuccess) {
    std::printf("{\"row\": \"%s\", \"why\": \"%s\"}\n", row, cudaGetErrorString(error));
    cudaGetLastError();
    return;
  }
  for (const unsigned value : result) {
    if (value == kLaunches) continue;
    std::printf("{\"row\": \"%s\", \"why\": \"a step ran before the one before it ended\"}\n", row);
    return;
  }
  Row(row, "s", -kLaunches, [&] { cudaGraphLaunch(ready, stream); });
}

void DependentLaunches() {
  cudaDeviceProp properties;
  Require(cudaGetDeviceProperties(&properties, 0), "properties");
  const int blocks = properties.multiProcessorCount;
  const size_t threads = static_cast<size_t>(blocks) * kStepThreads;
  uint4* weights = nullptr;
  unsigned* data = nullptr;
  Require(cudaMalloc(&weights, threads * kStepWeights * sizeof(uint4)), "memory");
  Require(cudaMemset(weights, 0, threads * kStepWeights * sizeof(uint4)), "memory");
  Require(cudaMalloc(&data, threads * sizeof(unsigned)), "memory");
  ChainOfSteps("a small kernel in a graph", false, blocks, weights, data);
  ChainOfSteps("a small kernel in a graph, dependent launch", true, blocks, weights, data);
  cudaFree(weights), cudaFree(data);
}

// Returns a function of the driver, or null. It is looked up when the program runs, so that the
// program also starts on a machine without the driver.
template <typename Function>
Function Driver(const char* name) {
  void* found = nullptr;
  cudaGetDriverEntryPointByVersion(name, &found, 12000, cudaEnableDefault, nullptr);
  return reinterpret_cast<Function>(found);
}
#define DRIVER(name) Driver<decltype(&name)>(#name)

// Maps an allocation at new addresses. Returns null if this fails.
void* Map(CUmemGenericAllocationHandle memory, size_t bytes, CUmemAccess_flags access) {
  CUdeviceptr address = 0;
  CUmemAccessDesc allowed = {};
  allowed.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  allowed.flags = access;
  if (DRIVER(cuMemAddressReserve)(&address, bytes, 0, 0, 0) != CUDA_SUCCESS ||
      DRIVER(cuMemMap)(address, bytes, 0, memory, 0) != CUDA_SUCCESS ||
      DRIVER(cuMemSetAccess)(address, bytes, &allowed, 1) != CUDA_SUCCESS) {
    return nullptr;
  }
  return reinterpret_cast<void*>(address);
}

// Runs in a second process: checks that it can read the memory of the inherited file descriptor,
// and that the contents are right.
int Reader(const char* descriptor, const char* bytes) {
  if (cudaFree(nullptr) != cudaSuccess) return 1;
  CUmemGenericAllocationHandle memory = 0;
  void* const shared = reinterpret_cast<void*>(static_cast<intptr_t>(std::atoi(descriptor)));
  if (DRIVER(cuMemImportFromShareableHandle)(
          &memory, shared, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) != CUDA_SUCCESS) {
    return 1;
  }
  const void* const data =
      Map(memory, std::strtoull(bytes, nullptr, 10), CU_MEM_ACCESS_FLAGS_PROT_READ);
  std::vector<unsigned char> back(kShared);
  if (data == nullptr ||
      cudaMemcpy(back.data(), data, kShared, cudaMemcpyDeviceToHost) != cudaSuccess)
    return 1;
  return back[0] == 0x5a && back[kShared - 1] == 0x5a ? 0 : 1;
}

// Starts this program again as the reader, because a CUDA context does not survive fork.
void Share() {
  CUmemAllocationProp wanted = {};
  wanted.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  wanted.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  wanted.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  size_t bytes = 0;
  int fd = -1, status = -1;
  CUmemGenericAllocationHandle memory = 0;
  void* data = nullptr;
  if (DRIVER(cuMemGetAllocationGranularity)(&bytes, &wanted, CU_MEM_ALLOC_GRANULARITY_MINIMUM) ==
          CUDA_SUCCESS &&
      DRIVER(cuMemCreate)(&memory, bytes, &wanted, 0) == CUDA_SUCCESS &&
      DRIVER(cuMemExportToShareableHandle)(&fd, memory, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
                                           0) == CUDA_SUCCESS) {
    data = Map(memory, bytes, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
  }
  if (data != nullptr && cudaMemset(data, 0x5a, kShared) == cudaSuccess &&
      cudaDeviceSynchronize() == cudaSuccess) {
    fcntl(fd, F_SETFD, 0);  // the reader process inherits the file descriptor
    const pid_t child = fork();
    if (child == 0) {
      execl("/proc/self/exe", "gpu_probes", "--reader", std::to_string(fd).c_str(),
            std::to_string(bytes).c_str(), nullptr);
      _exit(127);
    }
    waitpid(child, &status, 0);
  }
  std::printf(
      "{\"row\": \"shared with another process: file of an allocation\", "
      "\"unit\": \"works\", \"values\": [%d]}\n",
      status == 0 ? 1 : 0);
  cudaGetLastError();
}

}  // namespace

int main(int argc, char** argv) {
  if (argc == 4 && std::strcmp(argv[1], "--reader") == 0) return Reader(argv[2], argv[3]);
  if (argc > 1) turns = std::atoi(argv[1]);
  int devices = 0;
  const cudaError_t error = cudaGetDeviceCount(&devices);
  if (error != cudaSuccess || devices == 0) {
    std::fprintf(stderr, "no CUDA device: %s\n", cudaGetErrorString(error));
    return 2;
  }
  Bandwidths();
  Launches();
  Share();
  DependentLaunches();
  return 0;
}
