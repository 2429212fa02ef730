// DeviceStep: one forward pass of a batch on a Device, in float32, or with products in bfloat16 or
// integers. Its bits equal those of the CPU kernels. A layer takes nine launches, with warpgroup
// products twelve, one or two more that quantize rows if its matrices are quantized, and two more
// for each matrix product that LoRA adapters of the step's rows change. A step of at most
// kGraphRows rows is replayed from a captured graph; there is one graph for each of 1, 2, 4, ...
// rows, with and without adapters.
//
// Thread safety: none; one step at a time. The device and the model must outlive the DeviceStep.
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
#include "worker/device/device_adapters.h"
#include "worker/device/device_model.h"
#include "worker/device/integer_product_program.h"
#include "worker/device/product_choice.h"
#include "worker/device/step_plan.h"
#include "worker/kernels/greedy_key.h"

namespace hearth {

struct DeviceStepLimits {
  int rows = 4096;  // maximum rows (tokens) of a step
  int wanted = 32;  // maximum rows of a step whose logits are computed
  // maximum attention items of a step of few rows: the sum of the splits of all its rows
  int few_items = 8192;
  int blocks = 32 * 1024;  // maximum KV blocks of a step, all sequences together
};

class DeviceStep {
 public:
  static constexpr int kGraphRows = 32;
  static constexpr int kSlices = 32;  // thread blocks that search the logits of a row

  // If the device has too little memory, device->error() is set.
  DeviceStep(Device* device, const DeviceModel* model, const DeviceStepLimits& limits);

  // Called before launches that read or write the KV of the layers up to `layer`: makes them wait
  // for transfers (Device::MakeLaunchesWait).
  using AwaitLayer = std::function<void(int layer)>;
  using StageLayer = std::function<void(int layer)>;
  // Appends the tokens of each part to its sequence and writes their keys and values to the part's
  // KV blocks. Returns the logits of the wanted rows: [wanted][vocabulary] in device memory, valid
  // until the next step. A step of many rows waits before each layer. A graph cannot wait for an
  // event that is recorded after its capture, so a step of few rows waits for all layers first.
  // `stage`: launches programs after the layer's keys and values are written, before they are read;
  // such a step is launched without a graph. REQUIRES: the parts are within the limits.
  const float* Run(absl::Span<const DevicePart> parts, const AwaitLayer& await = nullptr,
                   const StageLayer& stage = nullptr);
  // Runs a step and copies its logits to `logits`, [wanted][vocabulary] in host memory.
  void Run(absl::Span<const DevicePart> parts, float* logits);
  // Finds the greatest key of each wanted row of the last step: [wanted] in device memory, valid
  // until the next call.
  const GreedyKey* FindGreatest();

  // Adds a LoRA adapter; returns its number for DevicePart::adapter. Errors and requirements are
  // those of DeviceAdapters::Add.
  int AddAdapter(absl::Span<const AdapterLayer> layers);

  // For measurements. Repeat runs the last step again. RunSlowly launches the programs of the last
  // step one by one, and calls `before(name, layer)` before each launch.
  void Repeat();
  using Before = std::function<void(const char* name, int layer)>;
  void RunSlowly(const Before& before);
  // Sets the tilings of the products of all steps with the same RowsOfGraph(rows).
  void SetChoice(int rows, const ProductChoice& choice);
  ProductChoice ChoiceFor(int rows) const;
  // Uses the tilings and the overlap of another step of the same model.
  void UseChoicesOf(const DeviceStep& other);
  // Returns how a product of `rows` rows is computed, in the first layer.
  ProductKind KindFor(StepProduct product, int rows) const;
  // Launches one product of a layer. It reads the rows `row_numbers`, or if null the first rows, of
  // the buffer that the step before it has written. For measurements also without a step. With
  // quantized weights, the rows of all products except `down` and the output matrix are those that
  // were quantized last, so the results have no meaning.
  void LaunchProduct(StepProduct product, int layer, int tiling, int rows,
                     const int32_t* row_numbers = nullptr);
  const DeviceMatrix& MatrixOf(StepProduct product, int layer) const;
  int most_rows() const { return many_.capacity().rows; }
  // In steps of at most `rows` rows, launches may overlap (Device::SetOverlap).
  void SetOverlapRows(int rows);
  int overlap_rows() const { return overlap_rows_; }
  static int RowsOfGraph(int rows);
  // Steps of more than kGraphRows rows use WarpgroupProductProgram, if the products are in
  // bfloat16, the model's shape fits, and no row has an adapter. REQUIRES: the device
  // has_warpgroups(). Default: false.
  void UseWarpgroups(bool use);

 private:
  // Buffers in device memory. Shapes: x, normed and projected [rows][hidden]; qkv [rows][(heads + 2
  // * kv_heads) * head_dim]; attended [rows][heads * head_dim]; gated [rows][intermediate]; logits
  // [wanted][vocabulary]. With warpgroup products the memory of gated holds two Bf16Rows instead:
  // the gated rows, then the rows that a product reads.
  struct Buffers {
    float *x, *normed, *qkv, *attended, *projected, *gated, *logits;
  };
  // Input and output of a product.
  struct Ends {
    const float* x;
    int x_stride;
    float* y;
    int y_stride;
    // the program that writes x also quantizes x, if the product's weights are quantized
    bool is_quantized;
  };
  Ends EndsOf(StepProduct product, int rows) const;
  // Parameters of the launches of one step.
  struct Form {
    const StepPlan* plan;
    int rows, wanted;
    bool splits;
    int adapter_runs;  // runs of a tile (StepPlan::adapter_runs), or more; 0: no adapters
    ProductChoice choice;
    bool is_staged, reads_copies;  // DevicePart::reads_copies
  };
  std::unique_ptr<DeviceGraph>& GraphOf(const Form& form) {
    return graphs_[form.adapter_runs > 0][form.wanted > 0 ? form.rows : -form.rows];
  }
  void LaunchOnce(const AwaitLayer& await, const StageLayer& stage);
  void LaunchAll(const Form& form, const Before& before);
  void LaunchLayer(const Form& form, int layer, const Before& before);
  void LaunchAttention(const Form& form, int layer, const Before& before);
  // A product of the matrix with these ends; `is_pair`: with GELU. `tiling` is a tiling of `kind`;
  // if the matrix needs another kind, the tiling is chosen by a table.
  void Multiply(ProductKind kind, int tiling, bool is_pair, const DeviceMatrix& matrix,
                const Ends& ends, int rows, const int32_t* row_numbers, float softcap);
  void LaunchWarpgroups(StepProduct product, int layer, int tiling, int rows);
  void LaunchInLayer(const Form& form, int layer, StepProduct product);
  void LaunchAdapters(const Form& form, int layer, StepProduct product);
  // Quantizes the rows unless they `are_quantized`, and multiplies them.
  void LaunchIntegers(IntegerArguments product, int tiling, bool are_quantized);
  void AllocateQuantized(int rows);
  // Returns where to quantize `rows` rows for a product of the matrix; null if its weights are not
  // quantized.
  IntegerRows QuantizedFor(const DeviceMatrix& matrix, int rows) const {
    if (matrix.form == IntegerForm::kNone) return {};
    return {quantized_.ints, quantized_.scales, IntegerRows::PaddedRows(rows)};
  }
  bool CombineQuantizes() const { return shape_.head_dim % IntegerTile::kInputs == 0; }
  // `next`: the matrix that multiplies the result; null: the output matrix, which multiplies some
  // of the rows.
  void LaunchNorm(const Form& form, const float* y_norm, const float* x_norm,
                  const DeviceMatrix* next);
  // How products of a matrix with rows in float32 are computed.
  ProductKind KindOf(const DeviceMatrix& matrix) const {
    if (matrix.form != IntegerForm::kNone) return ProductKind::kInteger;
    return model_->multiplies_bf16 ? ProductKind::kBf16 : ProductKind::kFloat;
  }
  // Rows of a Bf16Rows for the largest step.
  int64_t PackedPitch() const {
    constexpr int kGrain = Bf16Rows::kGrain;
    return (many_.capacity().rows + kGrain - 1) / kGrain * kGrain;
  }
  float* NewFloats(int64_t count) { return arena_.Take<float>(static_cast<size_t>(count)); }

  Device* const device_;
  DeviceArena arena_;
  const DeviceModel* const model_;
  const DeviceShape& shape_;
  StepPlan few_, many_;
  Buffers buffers_;
  // Rows of the next product; unused if no matrix is quantized. The programs before a product write
  // it, except the rows of `down` and of the output matrix, and of `out` in steps of many rows.
  IntegerRows quantized_;
  SplitStates states_;
  GreedyKey *slice_keys_, *keys_;  // [wanted][kSlices]; [wanted]
  // Measured: with 32 rows overlap is slower, because waiting blocks occupy registers and shared
  // memory that running blocks need.
  int overlap_rows_ = 8;
  bool uses_warpgroups_ = false;
  std::map<int, ProductChoice> choices_;
  DeviceAdapters adapters_;
  std::map<int, std::unique_ptr<DeviceGraph>> graphs_[2];  // [1]: with adapters
  Form last_ = {};
  // After the device had no memory for a graph, this many steps are launched without trying again.
  static constexpr int kRetryGraphAfter = 256;
  int graphless_steps_ = 0;
  const AwaitLayer* await_ = nullptr;  // set while Run launches many rows
  const StageLayer* stage_ = nullptr;  // of the step that is being launched
};

}  // namespace hearth

#endif  // HEARTH_WORKER_DEVICE_DEVICE_STEP_H_
