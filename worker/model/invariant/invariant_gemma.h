// InvariantGemma: a Gemma 3 model that computes on worker/kernels, so that a row's bits depend on
// its tokens alone, not on the step it came in, on the sequences beside it, on prefill or decode,
// nor on the number of threads.
//
// In float32, on the CPU with weights in the bits that they are stored in, or as told; those in
// blocks may multiply in integers (integer_product.h). On a device with weights in bfloat16
// (device_forward.h). It serves the class `invariant`; Gemma (gemma.h) serves the others.
//
// Thread safety: const methods from any thread, one Step at a time. Owns its weights.
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
#include "proto/fingerprint.h"  // Digest
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

// InvariantForward: the forward pass over the rows of a step, as loops of one list that runs on the
// threads: the whole of it, or its pieces for the self-test.
//
// Thread safety: none; one step at a time. Keeps its memory for the next step.
// Ownership: weights and threads must outlive it.
class InvariantForward : public Forward {
 public:
  // `layout`: of the model's KV. `hooks`: empty, but in tests.
  InvariantForward(const InvariantWeights* weights, const KvLayout& layout, ThreadPool* pool,
                   LayerHooks hooks);

  absl::Status Run(Parts parts) override;
  absl::StatusOr<int> SelfTest(const StepLimits& limits) override;
  std::shared_ptr<BlockMemory> memory() const override { return HostMemory(); }
  // Products of as many rows cost the least for each.
  int alone_rows() const override { return 512; }
  std::string device_kind() const override { return "cpu"; }

  // The pieces. Nothing that a list is given moves or grows until it has run.
  void Begin(Parts parts);
  void AddEmbedding(const std::vector<float>& first_norm, KernelPhases* list);
  // `number`: of the layer in the layout of the parts' Kv.
  void AddWholeLayer(const InvariantLayer& layer, int number, const std::vector<float>& next_norm,
                     KernelPhases* list);
  // The logits of rows that the final norm has been through.
  void AddHead(const ConstRows& normed, absl::Span<float* const> to, KernelPhases* list);
  void RunList(KernelPhases* list) { list->RunOn(pool_); }

  // Called with the results of each operation, from the next list on; null: none.
  using Observer = std::function<void(const char* operation, const Rows& values, int64_t columns)>;
  void SetObserver(Observer observer) { hooks_.observer = std::move(observer); }
  // The memory that the step's rows go through.
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
  std::vector<float*> logits_;  // of each wanted row
  Workspace workspace_;
};

struct InvariantGemmaOptions {
  int threads = 1;
  int chunk = 128;  // C, a multiple of 16 up to 1024
  // Of all sequences together; on a device 0: three quarters of what it has free then.
  uint64_t kv_bytes = uint64_t{1} << 40;
  std::string digest_cache_dir = "";  // of weight digests; empty: none
  // Of layers and head; an embedding that is not the head has the bits that are stored.
  WeightForm weights = WeightForm::kStored;
  Arithmetic arithmetic = Arithmetic::kFloat32;  // of the matrices in blocks
  // Or kBFloat16; none: that where a matrix multiplies in integers.
  std::optional<KvDtype> kv_dtype = KvDtype::kFloat32;
  std::shared_ptr<Device> device = nullptr;  // that computes; null: the CPU
};

class InvariantGemma {
 public:
  // Version of the order of every sum and of every function: raised when a bit may change.
  static constexpr int kKernelsVersion = 1;
  // A sequence's keys and values. Of the model whose NewKv made it; once moved from, of none.
  using Kv = InvariantKv;

  // Errors name the file, tensor or field.
  static absl::StatusOr<std::unique_ptr<InvariantGemma>> Load(const std::string& model_dir,
                                                              const InvariantGemmaOptions& options);
  ~InvariantGemma();

  const ModelConfig& config() const { return weights_->config(); }
  int threads() const { return pool_->threads(); }
  WeightForm weights() const { return weights_->form(); }
  Arithmetic arithmetic() const { return weights_->arithmetic(); }  // kInt8 where a matrix has it
  // SHA-256 tree digest of every tensor used (name, shape, dtype, bytes).
  const Digest& weights_digest() const { return weights_->digest(); }
  KvDtype kv_dtype() const { return layout_->dtype; }
  // "cpu", or the device's kind.
  std::string device_kind() const { return forward_->device_kind(); }
  // The most rows that a step should have of a sequence that is alone; at least a chunk.
  uint32_t alone_rows() const;
  // Notes on the load and the self-test for the log, one sentence each.
  const std::vector<std::string>& notes() const { return notes_; }
  const KvBlocks& kv_blocks() const { return *kv_blocks_; }

  // Checks that this machine computes what the class promises (invariant_self_test.h) in steps up
  // to `limits`; adds a note. Success is remembered in `cache_dir`, if there is one, by weights,
  // kernels, program, CPU and limits. A kernel of integers that fails is refused by a note, and the
  // next slower one is used by this process from then on. On a device the host's copy of the
  // matrices, which this alone reads, is freed: call it once.
  absl::Status SelfTest(const std::string& cache_dir, const StepLimits& limits = {});

  // For tests: replaces the product in models loaded from now on; null: ends that.
  using ProductFunction = std::function<void(const ConstRows& x, const PackedWeights& weights,
                                             const Rows& y, Workspace*, ParallelFor)>;
  static void ReplaceProduct(ProductFunction product);

  using Part = InvariantPart;

  // `quantization`: of whole chunks. REQUIRES: ChooseKv gave it, for the layout of a Kv.
  Kv NewKv(const KvQuantization& quantization = {}) const;
  // An adapter of this model, on its threads: not beside a Step. Errors name the file, and the
  // field or tensor.
  absl::StatusOr<std::shared_ptr<const LoraAdapter>> LoadAdapter(const std::string& dir) const;
  // Appends all parts' tokens, with one pass through the weights. kInvalidArgument, with nothing
  // changed, where a text would be longer than the model's max_position_embeddings, a token or a
  // Kv is not of this model, more is wanted than there is or than kStepLogitsMax, or two parts have
  // one Kv or one place for logits; kResourceExhausted likewise, where kv_bytes has no room for all
  // rows. Where there are several parts the error says which.
  absl::Status Step(absl::Span<const Part> parts) const;
  // A step of one part.
  absl::Status Step(Kv* kv, absl::Span<const int32_t> tokens, int want,
                    std::vector<float>* logits) const;

 private:
  InvariantGemma(std::shared_ptr<const KvLayout> layout, uint64_t kv_bytes,
                 std::unique_ptr<ThreadPool> pool, std::unique_ptr<InvariantWeights> weights,
                 std::unique_ptr<Forward> forward);
  absl::Status SelfTestOnce(const std::string& cache_dir, const StepLimits& limits);

  const uint64_t number_;  // of this model in this process
  const std::shared_ptr<const KvLayout> layout_;
  const std::unique_ptr<ThreadPool> pool_;
  const std::unique_ptr<InvariantWeights> weights_;
  const std::unique_ptr<Forward> forward_;
  const std::unique_ptr<KvBlocks> kv_blocks_;
  std::vector<std::string> notes_;
};

}  // namespace hearth

#endif  // HEARTH_WORKER_MODEL_INVARIANT_INVARIANT_GEMMA_H_
