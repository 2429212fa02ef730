// InvariantGemma: a Gemma 3 model on worker/kernels. A row's bits depend only on its tokens: not on
// its step, on other sequences of the step, on prefill or decoding, or on the number of threads.
//
// It computes in float32. On the CPU the weights keep their stored bits, or the form in the
// options; block weights may multiply in integers (integer_product.h). On a device the weights are
// bfloat16 (device_forward.h). It serves the class `invariant`; Gemma (gemma.h) serves the other
// classes.
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

// InvariantForward: the forward pass over a step's rows on the CPU, as loops of one list that runs
// on the threads. Run computes all of it; the self-test uses its pieces.
//
// Thread safety: none; one step at a time. It keeps its memory for the next step.
// Ownership: weights and threads must outlive it.
class InvariantForward : public Forward {
 public:
  // `layout`: layout of the model's KV. `hooks`: empty except in tests.
  InvariantForward(const InvariantWeights* weights, const KvLayout& layout, ThreadPool* pool,
                   LayerHooks hooks);

  absl::Status Run(Parts parts) override;
  absl::StatusOr<int> SelfTest(const StepLimits& limits) override;
  std::shared_ptr<BlockMemory> memory() const override { return HostMemory(); }
  // At this number of rows a product costs the least for each row.
  int alone_rows() const override { return 512; }
  std::string device_kind() const override { return "cpu"; }

  // The pieces of Run. The arguments of a list must neither move nor grow until the list has run.
  void Begin(Parts parts);
  void AddEmbedding(const std::vector<float>& first_norm, KernelPhases* list);
  // `number`: the layer's number in the layout of the parts' Kv.
  void AddWholeLayer(const InvariantLayer& layer, int number, const std::vector<float>& next_norm,
                     KernelPhases* list);
  // Adds the logits of rows that went through the final norm; to[i]: [vocabulary].
  void AddHead(const ConstRows& normed, absl::Span<float* const> to, KernelPhases* list);
  void RunList(KernelPhases* list) { list->RunOn(pool_); }

  // Called with the results of each operation of later lists; null: no calls.
  using Observer = std::function<void(const char* operation, const Rows& values, int64_t columns)>;
  void SetObserver(Observer observer) { hooks_.observer = std::move(observer); }
  // The buffers of the step's rows.
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
  std::vector<float*> logits_;  // addresses of the wanted rows' logits
  Workspace workspace_;
};

struct InvariantGemmaOptions {
  int threads = 1;
  int chunk = 128;  // C: tokens of a chunk, a multiple of 16 up to 1024
  // KV memory of all sequences. On a device, 0 means three quarters of the memory that is free
  // after loading.
  uint64_t kv_bytes = uint64_t{1} << 40;
  std::string digest_cache_dir = "";  // cache folder of weight digests; empty: none
  // Weight form of layers and head. An embedding that differs from the head keeps its stored bits.
  WeightForm weights = WeightForm::kStored;
  Arithmetic arithmetic = Arithmetic::kFloat32;  // arithmetic of block matrices
  // kFloat32 or kBFloat16; nullopt: kBFloat16 if a matrix multiplies in integers, else kFloat32.
  std::optional<KvDtype> kv_dtype = KvDtype::kFloat32;
  std::shared_ptr<Device> device = nullptr;  // the device that computes; null: the CPU
};

class InvariantGemma {
 public:
  // Version of the order of all sums and of all functions. Raise it when a bit may change.
  static constexpr int kKernelsVersion = 1;
  // The keys and values of a sequence. A Kv works only with the model whose NewKv made it; a
  // moved-from Kv works with none.
  using Kv = InvariantKv;

  // Errors name the file, tensor or field.
  static absl::StatusOr<std::unique_ptr<InvariantGemma>> Load(const std::string& model_dir,
                                                              const InvariantGemmaOptions& options);
  ~InvariantGemma();

  const ModelConfig& config() const { return weights_->config(); }
  int threads() const { return pool_->threads(); }
  WeightForm weights() const { return weights_->form(); }
  Arithmetic arithmetic() const { return weights_->arithmetic(); }  // kInt8 if any matrix uses it
  // SHA-256 tree digest of every tensor used (name, shape, dtype, bytes).
  const Digest& weights_digest() const { return weights_->digest(); }
  KvDtype kv_dtype() const { return layout_->dtype; }
  // "cpu", or the device's kind.
  std::string device_kind() const { return forward_->device_kind(); }
  // The most rows that a step should have for a sequence alone; at least a chunk.
  uint32_t alone_rows() const;
  // Notes on the load and the self-test for the log, one sentence each.
  const std::vector<std::string>& notes() const { return notes_; }
  const KvBlocks& kv_blocks() const { return *kv_blocks_; }

  // Checks that this machine computes what the class promises (invariant_self_test.h) in steps up
  // to `limits`, and adds a note. If `cache_dir` is not empty, a success is recorded there, by
  // weights, kernels, program, CPU and limits. If an integer kernel fails, a note says so and this
  // process uses the next slower kernel. On a device, this call frees the host's copy of the
  // matrices, so call it once.
  absl::Status SelfTest(const std::string& cache_dir, const StepLimits& limits = {});

  // For tests: replaces the product in models loaded later; null: restores it.
  using ProductFunction = std::function<void(const ConstRows& x, const PackedWeights& weights,
                                             const Rows& y, Workspace*, ParallelFor)>;
  static void ReplaceProduct(ProductFunction product);

  using Part = InvariantPart;

  // Returns an empty Kv. `quantization`: of whole chunks. REQUIRES: ChooseKv returned it, for the
  // layout of a Kv.
  Kv NewKv(const KvQuantization& quantization = {}) const;
  // Loads an adapter for this model on the model's threads. Errors name the file, and the field or
  // tensor. REQUIRES: no Step runs.
  absl::StatusOr<std::shared_ptr<const LoraAdapter>> LoadAdapter(const std::string& dir) const;
  // Appends the tokens of all parts in one pass through the weights. After an error nothing has
  // changed, and with several parts the error names the part. kInvalidArgument: a sequence would
  // exceed max_position_embeddings; a token or a Kv does not belong to this model; more logits are
  // wanted than tokens, or than kStepLogitsMax; or two parts share a Kv or a place for logits.
  // kResourceExhausted: kv_bytes has no room for all rows.
  absl::Status Step(absl::Span<const Part> parts) const;
  // A step of one part.
  absl::Status Step(Kv* kv, absl::Span<const int32_t> tokens, int want,
                    std::vector<float>* logits) const;

 private:
  InvariantGemma(std::shared_ptr<const KvLayout> layout, uint64_t kv_bytes,
                 std::unique_ptr<ThreadPool> pool, std::unique_ptr<InvariantWeights> weights,
                 std::unique_ptr<Forward> forward);
  absl::Status SelfTestOnce(const std::string& cache_dir, const StepLimits& limits);

  const uint64_t number_;  // number of this model in the process
  const std::shared_ptr<const KvLayout> layout_;
  const std::unique_ptr<ThreadPool> pool_;
  const std::unique_ptr<InvariantWeights> weights_;
  const std::unique_ptr<Forward> forward_;
  const std::unique_ptr<KvBlocks> kv_blocks_;
  std::vector<std::string> notes_;
};

}  // namespace hearth

#endif  // HEARTH_WORKER_MODEL_INVARIANT_INVARIANT_GEMMA_H_
