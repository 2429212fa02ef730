// GemmaRunner: Gemma (gemma.h) as the engine drives it, with its KV caches kept between requests.
//
// Thread safety and ownership: as ModelRunner.
#ifndef HEARTH_WORKER_ENGINE_RUNNER_GEMMA_RUNNER_H_
#define HEARTH_WORKER_ENGINE_RUNNER_GEMMA_RUNNER_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "worker/engine/runner/model_runner.h"
#include "worker/model/torch/gemma.h"
#include "worker/model/torch/kv_cache.h"

namespace hearth {

// KvCachePool: keeps KV caches between requests, since the first touch of fresh memory is slow.
//
// Thread safety: none; the engine's thread uses it.
// Ownership: the Gemma must outlive the pool and every cache it gave out.
// Invariant: at most `max_free` caches wait here, each of length 0.
class KvCachePool {
 public:
  KvCachePool(const Gemma* gemma, int context_tokens, size_t max_free);

  // An empty cache for at least `tokens` tokens: the smallest free one that is large enough.
  absl::StatusOr<KvCache> Acquire(int tokens);
  // When too many wait, the smallest is freed: the larger serve every request it could.
  void Release(KvCache kv);

 private:
  const Gemma* const gemma_;
  const int context_tokens_;
  const size_t max_free_;
  std::vector<KvCache> free_;
};

class GemmaRunner : public ModelRunner {
 public:
  // `exactness`: exact or portable. `max_free`: KV caches that wait for the next request.
  // `kv_budget_bytes`: of the caches of all sequences; each then has as much as it may need, and
  // none waits for the next request. 0: no budget.
  GemmaRunner(std::unique_ptr<Gemma> gemma, Exactness exactness, size_t max_free,
              uint64_t kv_budget_bytes, std::vector<std::string> notes);

  const ModelConfig& config() const override { return gemma_->config(); }
  Exactness exactness() const override { return exactness_; }
  KvDtype kv_dtype() const override { return gemma_->kv_dtype(); }
  const std::string& device_kind() const override { return gemma_->device_kind(); }
  const Digest& weights_digest() const override { return gemma_->weights_digest(); }
  std::string weights() const override { return KvDtypeName(kv_dtype()); }
  std::string arithmetic() const override { return KvDtypeName(kv_dtype()); }
  const std::vector<std::string>& notes() const override { return notes_; }
  KvBytes kv_bytes() const override { return {kv_budget_bytes_, kv_used_bytes_}; }
  uint64_t MissingKvBytes(const SequenceKv* kv, int tokens, const KvChoice& choice) const override;
  absl::StatusOr<ComputeIdentity> Identify(const KvLayout& layout) override;
  absl::StatusOr<std::unique_ptr<SequenceKv>> NewKv(int tokens, const KvChoice& choice) override;
  void Release(std::unique_ptr<SequenceKv> kv) override;
  void Fork(const SequenceKv& kv, SequenceKv* fork) override;
  absl::Status Restore(const KvLayout& layout, uint32_t boundary, const KvObjects& objects,
                       SequenceKv* kv) override;
  absl::Status Step(absl::Span<const StepPart> parts) override;

 private:
  const std::unique_ptr<Gemma> gemma_;
  const Exactness exactness_;
  const uint64_t kv_budget_bytes_;
  std::atomic<uint64_t> kv_used_bytes_{0};  // of the caches that live
  KvCachePool kv_caches_;
  std::vector<std::string> notes_;
};

}  // namespace hearth

#endif  // HEARTH_WORKER_ENGINE_RUNNER_GEMMA_RUNNER_H_
