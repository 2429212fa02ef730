#include <cuda_runtime.h>

#include "bench/gpu/seeded_fill.h"

namespace hearth {
namespace {

constexpr int kTensorsMax = 3;

struct Tensors {
  SeededMatrix seeded[kTensorsMax];
  int outputs[kTensorsMax];
  int count;
};

__global__ void Fill(Tensors tensors, uint16_t* data, int inputs, int columns, bool is_pair) {
  const long long all = static_cast<long long>(inputs) * columns;
  for (long long i = blockIdx.x * static_cast<long long>(blockDim.x) + threadIdx.x; i < all;
       i += static_cast<long long>(gridDim.x) * blockDim.x) {
    const int input = static_cast<int>(i / 8 / columns * 8 + i % 8);
    int output = static_cast<int>(i / 8 % columns), tensor = 0;
    if (is_pair) {
      tensor = output % 16 / 8;
      output = output / 16 * 8 + output % 8;
      if (output >= tensors.outputs[tensor]) tensor = kTensorsMax;
    } else {
      while (tensor < tensors.count && output >= tensors.outputs[tensor]) {
        output -= tensors.outputs[tensor++];
      }
    }
    data[i] = tensor < tensors.count ? tensors.seeded[tensor].Weight(output, input) : 0;
  }
}

}  // namespace

DeviceMatrix FillSeededMatrix(CudaDevice* device, const std::vector<SeededRows>& rows, int inputs,
                              bool is_pair) {
  Tensors tensors = {};
  int outputs = 0;
  for (const SeededRows& one : rows) {
    tensors.seeded[tensors.count] = one.seeded;
    tensors.outputs[tensors.count++] = one.outputs;
    outputs += one.outputs;
  }
  if (is_pair) outputs /= 2;
  const int columns = PaddedColumns(is_pair ? 2 * outputs : outputs);
  auto* data =
      static_cast<uint16_t*>(device->Allocate(sizeof(uint16_t) * MatrixValues(inputs, columns)));
  if (data != nullptr) {
    Fill<<<8 * device->processors(), 256, 0, static_cast<cudaStream_t>(device->stream())>>>(
        tensors, data, inputs, columns, is_pair);
  }
  return {data, inputs, columns, outputs};
}

}  // namespace hearth
