// DeviceForward: the forward pass of an InvariantGemma on a device: products in float32 or bfloat16
// with bfloat16 weights, and in integers with quantized weights. It divides the parts of a step so
// that each DeviceStep is within its limits (worker/device/device_step.h).
//
// Thread safety: none; one step at a time. Ownership: shares ownership of the device; weights and
// thread pool must outlive the DeviceForward.
#ifndef HEARTH_WORKER_MODEL_INVARIANT_DEVICE_FORWARD_H_
#define HEARTH_WORKER_MODEL_INVARIANT_DEVICE_FORWARD_H_

#include <array>
#include <deque>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/device/device.h"
#include "worker/device/device_model.h"
#include "worker/device/device_step.h"
#include "worker/kernels/rope_table.h"
#include "worker/model/invariant/forward.h"
#include "worker/model/invariant/invariant_weights.h"
#include "worker/model/invariant/kv_staging.h"

namespace hearth {

class DeviceForward : public Forward {
 public:
  // Copies the weights to the device. kUnimplemented: the message names the shape, weight form or
  // dtype that the device programs do not support. kResourceExhausted: the device has too little
  // memory for the model.
  static absl::StatusOr<std::unique_ptr<DeviceForward>> Make(std::shared_ptr<Device> device,
                                                             const InvariantWeights* weights,
                                                             const KvLayout& layout,
                                                             ThreadPool* pool);

  absl::Status Start(Parts parts) override;
  // If the device fails, the step fails, so rows that are shared or stored later are valid.
  absl::Status Finish(Parts parts) override;
  bool is_asynchronous() const override { return device_->is_asynchronous(); }
  absl::Status AddAdapter(const std::shared_ptr<const LoraAdapter>& adapter) override;
  // Compares this device with the CPU (InvariantForward) for one local layer, one global
  // layer and the output matrix, with the weights of the model. Logits, keys and values must have
  // the same bits. Before this, chooses how products are computed: measures the tilings if the
  // device can, and uses warpgroup instructions if they give the bits of mma.sync.
  absl::StatusOr<int> SelfTest(const StepLimits& limits) override;
  std::shared_ptr<BlockMemory> memory() const override { return memory_; }
  int alone_rows() const override { return limits_.rows; }
  std::string device_kind() const override { return device_->kind(); }
  std::vector<std::string> notes() const override { return notes_; }

 private:
  // RoPE tables of one theta: [max positions][head_dim / 2] in device memory; the first `positions`
  // rows are valid.
  struct Rotations {
    RopeTable table;
    int64_t positions = 0;
    float *cos = nullptr, *sin = nullptr;
  };
  // The parts that one DeviceStep computes.
  struct Piece {
    std::vector<DevicePart> parts;
    // destination of a part's logits (null: only its keys are copied), and number of its wanted
    // rows
    std::vector<std::pair<float*, int>> logits;
    // addresses of each part's KV blocks, by layer group
    std::deque<std::array<std::vector<std::byte*>, 2>> addresses;
    int rows = 0, wanted = 0;
    size_t blocks = 0;
    KvStaging* staging = nullptr;  // of all parts
  };

  DeviceForward(std::shared_ptr<Device> device, const InvariantWeights* weights,
                const KvLayout& layout, ThreadPool* pool);
  absl::Status Upload();
  absl::Status CheckBf16();
  void ChooseProducts();
  void ExtendRotations(int64_t positions);
  int FirstStaged(bool is_global, int begin) const;
  // Returns whether attention reads copies in float32 of all blocks of the sequence.
  bool Widens(const InvariantKv& kv) const {
    return kv.seals() && model_.shape.kv_is_bf16 && !model_.multiplies_bf16;
  }
  // Returns the parts in the order in which Start computes them.
  std::vector<const InvariantPart*> InOrder(Parts parts) const;
  KvStaging::Counts StagedBlocks(const InvariantKv& kv, int begin) const;
  absl::Status AddBlocks(const InvariantKv& kv, int begin, int rows, Piece* piece,
                         std::array<std::byte*, 2>* written);
  absl::Status TakeResults(Parts parts);
  std::shared_ptr<float[]> TakeFloats(size_t floats);
  void RunPiece(Piece* piece, const DeviceStep::AwaitLayer& await);
  int NumberOf(const LoraAdapter* adapter) const;
  absl::Status Failure() const;

  const std::shared_ptr<Device> device_;
  const std::shared_ptr<BlockMemory> memory_;
  const InvariantWeights* const weights_;
  const KvLayout layout_;
  ThreadPool* const pool_;
  DeviceStepLimits limits_;
  std::vector<std::string> notes_;
  DeviceArena arena_;
  DeviceModel model_;
  std::array<Rotations, 2> rotations_;  // [0]: local, [1]: global
  std::unique_ptr<DeviceStep> step_;
  // [1]: of quantized sequences whose attention computes in float32 from KV in bfloat16
  std::array<std::unique_ptr<KvStaging>, 2> stagings_;
  // Pinned memory for the results of steps: a step uses one that no sequence holds.
  struct Pinned {
    std::shared_ptr<float[]> memory;
    size_t floats = 0;
  };
  std::vector<Pinned> pinned_;
  GreedyKey* keys_ = nullptr;  // of the step's wanted rows; null if no part wants greedy tokens
  int keys_copied_ = 0;
  // the adapters by their number in `step_`
  std::vector<std::shared_ptr<const LoraAdapter>> adapters_;
};

}  // namespace hearth

#endif  // HEARTH_WORKER_MODEL_INVARIANT_DEVICE_FORWARD_H_
