// InvariantGemma: a Gemma 3 model on worker/kernels or on a device. The bits of a row depend only
// on its tokens: not on the other rows of its step, on other sequences, on prefill or decoding, or
// on the number of threads.
//
// The model computes in float32, or multiplies in bfloat16 (bf16_product.h). On the CPU the weights
// keep their stored bits, or have the form given in the options; quantized weights may be
// multiplied in integers (integer_product.h). On a device the weights are bfloat16
// (device_forward.h). This class serves the exactness class `invariant`; Gemma (gemma.h) serves the
// other classes.
//
// Thread safety: const methods may be called from any thread, but only one Step at a time.
// Ownership: owns its weights.
#ifndef HEARTH_WORKER_MODEL_INVARIANT_INVARIANT_GEMMA_H_
#define HEARTH_WORKER_MODEL_INVARIANT_INVARIANT_GEMMA_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "proto/fingerprint.h"  // for Digest
#include "proto/kv_quantization.h"
#include "worker/kernels/layer.h"
#include "worker/kernels/product.h"
#include "worker/kernels/rope_table.h"
#include "worker/model/invariant/forward.h"
#include "worker/model/invariant/invariant_kv.h"
#include "worker/model/invariant/invariant_step.h"
#include "worker/model/invariant/invariant_weights.h"
#include "worker/model/invariant/kv_blocks.h"
#include "worker/model/model_config.h"
#include "worker/model/thread_pool.h"

namespace hearth {

// InvariantForward: the forward pass of a step on the CPU, as one list of loops that the thread
// pool runs. Start computes the whole pass; the self-test calls its parts (Begin, AddEmbedding,
// ...).
//
// Thread safety: none; one step at a time. The buffers are reused by the next step.
// Ownership: weights and thread pool must outlive the InvariantForward.
class InvariantForward : public Forward {
 public:
  // `layout`: layout of the model's KV cache. `hooks`: empty except in tests.
  InvariantForward(const InvariantWeights* weights, const KvLayout& layout, ThreadPool* pool,
                   LayerHooks hooks);

  absl::Status Start(Parts parts) override;
  absl::StatusOr<int> SelfTest(const StepLimits& limits) override;
  std::shared_ptr<BlockMemory> memory() const override { return HostMemory(); }
  // With 512 rows the time per row of a matrix product is lowest.
  int alone_rows() const override { return 512; }
  std::string device_kind() const override { return "cpu"; }

  // The parts of Start. REQUIRES: arguments of a list neither move nor grow until the list has run.
  void Begin(Parts parts);
  void AddEmbedding(const std::vector<float>& first_norm, KernelPhases* list);
  // `number`: the layer's number in the KvLayout of the parts.
  void AddWholeLayer(const InvariantLayer& layer, int number, const std::vector<float>& next_norm,
                     KernelPhases* list);
  // Adds the logits of rows that the final norm has normed. to[i]: buffer of [vocabulary] floats
  // for row i.
  void AddHead(const ConstRows& normed, absl::Span<float* const> to, KernelPhases* list);
  void RunList(KernelPhases* list) { list->RunOn(pool_); }

  // Function that every later list calls with the results of each operation; null: none.
  using Observer = std::function<void(const char* operation, const Rows& values, int64_t columns)>;
  void SetObserver(Observer observer) { hooks_.observer = std::move(observer); }
  // Returns the buffers of the step's rows.
  const LayerRows& rows() const { return step_.shared(); }
  LayerWeights WeightsOf(const InvariantLayer& layer) const;
  const RopeTable& RopeOf(const InvariantLayer& layer) const {
    return layer.local ? local_rope_ : global_rope_;
  }

 private:
  void AddLastLayer(const InvariantLayer& layer, int number, KernelPhases* list);
  float epsilon() const { return static_cast<float>(config_.rms_norm_eps); }

  const InvariantWeights* const weights_;
  const ModelConfig& config_;
  const KvLayout layout_;
  const int64_t chunk_;
  const ElementType kv_type_;
  ThreadPool* const pool_;
  LayerHooks hooks_;
  RopeTable global_rope_, local_rope_;
  InvariantStep step_;
  std::vector<float*> logits_;  // addresses of the logits of the wanted rows
  Workspace workspace_;
};

struct InvariantGemmaOptions {
  int threads = 1;
  int chunk = 128;  // tokens of a KV block; a multiple of 16 up to 1024
  // Maximum bytes of KV memory for all sequences. On a device, 0 means three quarters of the memory
  // that is free after loading the weights.
  uint64_t kv_bytes = uint64_t{1} << 40;
  uint64_t kv_offload_bytes = uint64_t{1} << 40;  // maximum bytes of offloaded KV in host memory
  std::string digest_cache_dir = "";  // folder in which weight digests are cached; empty: none
  // Weight form of the layers and the output matrix. If the embedding is untied, it keeps its
  // stored bits.
  WeightForm weights = WeightForm::kStored;
  // kInt8: arithmetic of quantized matrices; kBFloat16: arithmetic of all matrices
  Arithmetic arithmetic = Arithmetic::kFloat32;
  // kFloat32 or kBFloat16; nullopt: kFloat32 if `arithmetic` of the loaded model is kFloat32, else
  // kBFloat16. Arithmetic kBFloat16 needs kBFloat16.
  std::optional<KvDtype> kv_dtype = KvDtype::kFloat32;
  std::shared_ptr<Device> device = nullptr;  // device that computes; null: the CPU computes
};

class InvariantGemma {
 public:
  // Version of the order of all operations. Increment this version when any bit may change.
  static constexpr int kKernelsVersion = 1;
  // The keys and values of one sequence. A Kv works only with the model whose NewKv created it. A
  // moved-from Kv cannot be used.
  using Kv = InvariantKv;

  // Loads a model. Error messages name the file, tensor or field.
  static absl::StatusOr<std::unique_ptr<InvariantGemma>> Load(const std::string& model_dir,
                                                              const InvariantGemmaOptions& options);
  ~InvariantGemma();

  const ModelConfig& config() const { return weights_->config(); }
  int threads() const { return pool_->threads(); }
  WeightForm weights() const { return weights_->form(); }
  // Returns kInt8 if any matrix is multiplied in integers, kBFloat16 if all are in bfloat16.
  Arithmetic arithmetic() const { return weights_->arithmetic(); }
  // Returns the SHA-256 tree digest of all tensors that the model uses (name, shape, dtype, bytes).
  const Digest& weights_digest() const { return weights_->digest(); }
  KvDtype kv_dtype() const { return layout_->dtype; }
  // Returns "cpu", or the device's kind ("cuda" or "emulated").
  std::string device_kind() const { return forward_->device_kind(); }
  // Returns the maximum rows of a step that has only one sequence; at least a chunk.
  uint32_t alone_rows() const;
  // Returns notes about loading and the self-test for the log, one sentence each.
  const std::vector<std::string>& notes() const { return notes_; }
  const KvBlocks& kv_blocks() const { return *kv_blocks_; }
  // Returns the host memory of offloaded sequences (InvariantKv::Offload); null on the CPU.
  KvBlocks* offload_blocks() const { return offload_blocks_.get(); }

  // Runs the self-test (invariant_self_test.h) with steps up to `limits`, and adds a note about the
  // result. If `cache_dir` is not empty, a pass is recorded there, and a start with the same
  // weights, kernels, program, CPU and limits skips the test. If an integer kernel of the
  // CPU fails, the process uses the next slower kernel. On a device, this call frees the host's
  // copy of the matrices, so call it only once.
  absl::Status SelfTest(const std::string& cache_dir, const StepLimits& limits = {});

  // For tests: replaces the matrix product in models loaded later; null restores the real product.
  using ProductFunction = std::function<void(const ConstRows& x, const PackedWeights& weights,
                                             const Rows& y, Workspace*, ParallelFor)>;
  static void ReplaceProduct(ProductFunction product);

  using Part = InvariantPart;

  // Returns an empty Kv. `quantization`: how complete chunks are quantized. REQUIRES: ChooseKv
  // returned `quantization` for the layout of this model.
  Kv NewKv(const KvQuantization& quantization = {}) const;
  // Loads a LoRA adapter for this model; uses the model's thread pool. Error messages name the
  // file, and the field or tensor. REQUIRES: no Step is running.
  absl::StatusOr<std::shared_ptr<const LoraAdapter>> LoadAdapter(const std::string& dir) const;
  // Appends the tokens of all parts in one pass through the weights. After an error nothing has
  // changed; if the step has several parts, the message names the part.
  // kInvalidArgument: a sequence would exceed max_position_embeddings; a token is not in the
  // vocabulary; a Kv belongs to another model; more logits are wanted than the part has tokens, or
  // more than kStepLogitsMax; or two parts have the same Kv or logits buffer. kResourceExhausted:
  // kv_bytes is too small for all rows.
  absl::Status Step(absl::Span<const Part> parts) const;
  // The two halves of Step. If is_asynchronous(), Start may return before the step is computed.
  // Until Finish has returned, the parts and their sequences must not change, and no other step may
  // start. Finish is called only if Start succeeded, with the same parts.
  absl::Status Start(absl::Span<const Part> parts) const;
  absl::Status Finish(absl::Span<const Part> parts) const;
  bool is_asynchronous() const { return forward_->is_asynchronous(); }
  // Runs a step with one part.
  absl::Status Step(Kv* kv, absl::Span<const int32_t> tokens, int want,
                    std::vector<float>* logits) const;

 private:
  InvariantGemma(std::shared_ptr<const KvLayout> layout, uint64_t kv_bytes,
                 uint64_t kv_offload_bytes, std::unique_ptr<ThreadPool> pool,
                 std::unique_ptr<InvariantWeights> weights, std::unique_ptr<Forward> forward);
  absl::Status SelfTestOnce(const std::string& cache_dir, const StepLimits& limits);
  // If the options leave the KV budget to the device, chooses the budget from the device's free
  // memory. Does nothing once blocks were taken.
  void ChooseBudget() const;

  std::shared_ptr<Device> sized_by_;  // chooses the KV budget; null: the options have the budget
  const uint64_t number_;             // number of this model within the process
  const std::shared_ptr<const KvLayout> layout_;
  const std::unique_ptr<ThreadPool> pool_;
  const std::unique_ptr<InvariantWeights> weights_;
  const std::unique_ptr<Forward> forward_;
  const std::unique_ptr<KvBlocks> kv_blocks_, offload_blocks_;
  std::vector<std::string> notes_;
};

}  // namespace hearth

#endif  // HEARTH_WORKER_MODEL_INVARIANT_INVARIANT_GEMMA_H_
