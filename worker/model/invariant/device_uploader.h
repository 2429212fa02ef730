// DeviceUploader: copies a model's matrices and norms to a device, in the layout of the device's
// programs (worker/device/product_program.h, worker/device/integer_matrix.h).
//
// Thread safety: none; packs with all threads of the pool. Ownership: the arena owns the device
// memory. If the device has too little memory, device->error() is set.
#ifndef HEARTH_WORKER_MODEL_INVARIANT_DEVICE_UPLOADER_H_
#define HEARTH_WORKER_MODEL_INVARIANT_DEVICE_UPLOADER_H_

#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "worker/device/device.h"
#include "worker/device/device_model.h"
#include "worker/kernels/packed_weights.h"
#include "worker/model/thread_pool.h"

namespace hearth {

// Returns the form that holds the weights of a block type with the fewest bytes.
IntegerForm FormFor(ElementType type);
// Writes one output of a matrix with blocks to a column of a packed matrix. REQUIRES: `packed` has
// IntegerMatrixBytes bytes, zero before the first call; `form` is FormFor(weights.type()), or
// kInt8Parts; concurrent calls write different columns; the thread has the mode that float_mode.h
// sets.
void PackIntegers(const PackedWeights& weights, int output, IntegerForm form, int column,
                  unsigned char* packed);

class DeviceUploader {
 public:
  DeviceUploader(Device* device, DeviceArena* arena, ThreadPool* pool)
      : device_(device), arena_(arena), pool_(pool) {}

  const float* Floats(const std::vector<float>& values);
  // Returns the matrix, in integers if the matrices' arithmetic is kInt8, else in bfloat16.
  // `matrices`: matrices to stack; if is_pair, the two matrices of a pair. `name`: for status().
  DeviceMatrix Matrix(const std::string& name, const std::vector<const PackedWeights*>& matrices,
                      bool is_pair = false);

  // kUnimplemented: the device does not support a matrix; the message names the first such matrix.
  const absl::Status& status() const { return status_; }

 private:
  // Calls pack(output) for each output of a matrix, on all threads of the pool.
  using PackOutput = absl::FunctionRef<void(int output)>;
  void ForEachOutput(const PackedWeights& matrix, PackOutput pack);
  // Returns whether bfloat16 can represent all weights.
  bool PackBfloat16(const PackedWeights& from, absl::FunctionRef<int(int output)> column_of,
                    int columns, uint16_t* packed);
  void Refuse(const std::string& name, const std::string& why);

  Device* const device_;
  DeviceArena* const arena_;
  ThreadPool* const pool_;
  absl::Status status_;
};

}  // namespace hearth

#endif  // HEARTH_WORKER_MODEL_INVARIANT_DEVICE_UPLOADER_H_
