// DeviceStep: the forward pass of a step on a Device, in float32, with the bits of the CPU's
// kernels. A layer takes nine launches. Steps of up to kGraphRows rows run as graphs of 1, 2, 4,
// ... rows.
//
// Thread safety: none; one step at a time. The device and the model must outlive it.
#ifndef HEARTH_WORKER_DEVICE_DEVICE_STEP_H_
#define HEARTH_WORKER_DEVICE_DEVICE_STEP_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>

#include "absl/types/span.h"
#include "worker/device/attend_programs.h"
#include "worker/device/device.h"
#include "worker/device/device_model.h"
#include "worker/device/product_choice.h"
#include "worker/device/step_plan.h"

namespace hearth {

struct DeviceStepLimits {
  int rows = 4096;         // rows of a step
  int wanted = 32;         // rows with logits
  int few_items = 8192;    // in a step of few rows: splits of all its rows
  int blocks = 32 * 1024;  // KV blocks of all sequences of a step
};

class DeviceStep {
 public:
  static constexpr int kGraphRows = 32;

  // If the device has too little memory, the device fails.
  DeviceStep(Device* device, const DeviceModel* model, const DeviceStepLimits& limits);

  // Appends the parts' tokens; their keys and values go to the parts' blocks. Returns the logits of
  // the wanted rows, [wanted][vocabulary] in device memory, valid until the next step. REQUIRES:
  // the parts are within the limits.
  const float* Run(absl::Span<const DevicePart> parts);
  // As Run, and copies the logits to `logits` in host memory.
  void Run(absl::Span<const DevicePart> parts, float* logits);

  // For measurements. Repeat runs the last step again. RunSlowly launches its programs one by one,
  // and calls `before(name, layer)` before each.
  void Repeat();
  using Before = std::function<void(const char* name, int layer)>;
  void RunSlowly(const Before& before);
  // Sets the product shapes of steps with `rows` rows: a number that RowsOfGraph returns, or the
  // rows of a larger step.
  void SetChoice(int rows, const ProductChoice& choice);
  ProductChoice ChoiceFor(int rows) const;
  // Lets launches overlap (Device::SetOverlap) in steps of at most `rows` rows.
  void SetOverlapRows(int rows);
  static int RowsOfGraph(int rows);

 private:
  // In device memory: x, normed and projected are [rows][hidden]; qkv is
  // [rows][(heads + 2 * kv_heads) * head_dim]; attended is [rows][heads * head_dim]; gated is
  // [rows][intermediate]; logits is [wanted][vocabulary].
  struct Buffers {
    float *x, *normed, *qkv, *attended, *projected, *gated, *logits;
  };
  // The parameters of a step's launches.
  struct Form {
    const StepPlan* plan;
    int rows, wanted;
    bool splits;
    ProductChoice choice;
  };
  void LaunchAll(const Form& form, const Before& before);
  void LaunchLayer(const Form& form, int layer, const Before& before);
  void LaunchAttention(const Form& form, int layer, const Before& before);
  void LaunchProduct(int shape, bool is_pair, const DeviceMatrix& matrix, const float* x,
                     int x_stride, float* y, int y_stride, int rows, const int32_t* row_numbers,
                     float softcap);
  void LaunchNorm(const Form& form, const float* y_norm, const float* x_norm);
  float* NewFloats(int64_t count) { return arena_.Take<float>(static_cast<size_t>(count)); }

  Device* const device_;
  DeviceArena arena_;
  const DeviceModel* const model_;
  const DeviceShape& shape_;
  StepPlan few_, many_;
  Buffers buffers_;
  SplitStates states_;
  // Measured: with 32 rows overlap costs time, because waiting blocks take room from running ones.
  int overlap_rows_ = 8;
  std::map<int, ProductChoice> choices_;
  std::map<int, std::unique_ptr<DeviceGraph>> graphs_;
  Form last_ = {};
};

}  // namespace hearth

#endif  // HEARTH_WORKER_DEVICE_DEVICE_STEP_H_
