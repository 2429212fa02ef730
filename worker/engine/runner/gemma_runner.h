// GemmaRunner: a ModelRunner for Gemma (gemma.h). Keeps KV caches between requests.
//
// Thread safety and ownership: see ModelRunner.
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

// KvCachePool: reuses KV caches between requests, because the first touch of fresh memory is slow.
//
// Thread safety: none; only the engine's thread uses the pool.
// Ownership: the Gemma must outlive the pool and every cache from the pool.
// Invariant: the pool holds at most `max_free` caches, all empty.
class KvCachePool {
 public:
  KvCachePool(const Gemma* gemma, int context_tokens, size_t max_free);

  // Returns an empty cache for at least `tokens` tokens: the smallest free cache that is large
  // enough, or a new cache.
  absl::StatusOr<KvCache> Acquire(int tokens);
  // Returns a cache to the pool. If the pool is full, frees its smallest cache: larger caches fit
  // more requests.
  void Release(KvCache kv);

 private:
  const Gemma* const gemma_;
  const int context_tokens_;
  const size_t max_free_;
  std::vector<KvCache> free_;
};

class GemmaRunner : public ModelRunner {
 public:
  // `exactness`: exact or portable. `max_free`: maximum unused KV caches to keep for reuse.
  // `kv_budget_bytes`: limit for the caches of all sequences; each cache then has exactly the
  // capacity that its sequence may need, and unused caches are freed. 0: no limit.
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
  std::string device_failure() const override { return device_failure_; }

 private:
  absl::Status StepOne(const StepPart& part);

  const std::unique_ptr<Gemma> gemma_;
  const Exactness exactness_;
  const uint64_t kv_budget_bytes_;
  std::atomic<uint64_t> kv_used_bytes_{0};  // bytes of all existing caches
  KvCachePool kv_caches_;
  std::vector<std::string> notes_;
  std::string device_failure_;
};

}  // namespace hearth

#endif  // HEARTH_WORKER_ENGINE_RUNNER_GEMMA_RUNNER_H_
