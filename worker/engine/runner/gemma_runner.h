// GemmaRunner: Gemma (gemma.h) as the engine drives it, with its KV caches kept between requests.
//
// Thread safety and ownership: as ModelRunner.
#ifndef HEARTH_WORKER_ENGINE_RUNNER_GEMMA_RUNNER_H_
#define HEARTH_WORKER_ENGINE_RUNNER_GEMMA_RUNNER_H_

#include <memory>
#include <string>
#include <vector>

#include "worker/engine/runner/kv_cache_pool.h"
#include "worker/engine/runner/model_runner.h"
#include "worker/model/torch/gemma.h"

namespace hearth {

class GemmaRunner : public ModelRunner {
 public:
  // `exactness`: exact or portable. `max_free`: KV caches that wait for the next request.
  GemmaRunner(std::unique_ptr<Gemma> gemma, Exactness exactness, size_t max_free);

  const ModelConfig& config() const override { return gemma_->config(); }
  Exactness exactness() const override { return exactness_; }
  KvDtype kv_dtype() const override { return gemma_->kv_dtype(); }
  const std::string& device_kind() const override { return gemma_->device_kind(); }
  const Digest& weights_digest() const override { return gemma_->weights_digest(); }
  std::string weights() const override { return KvDtypeName(kv_dtype()); }
  const std::vector<std::string>& notes() const override { return gemma_->notes(); }
  absl::StatusOr<ComputeIdentity> Identify(const KvLayout& layout) override;
  absl::StatusOr<std::unique_ptr<SequenceKv>> NewKv(int tokens, const KvObjects& shared,
                                                    const KvChoice& choice) override;
  void Release(std::unique_ptr<SequenceKv> kv) override;
  absl::StatusOr<std::vector<std::unique_ptr<SequenceKv>>> NewForks(SequenceKv* kv, int prompt,
                                                                    int tokens, uint32_t forks,
                                                                    ForkUse use) override;
  void Fork(const SequenceKv& kv, SequenceKv* fork) override;
  absl::Status Restore(const KvLayout& layout, uint32_t boundary, const KvObjects& objects,
                       SequenceKv* kv) override;
  absl::Status Step(absl::Span<const StepPart> parts) override;

 private:
  const std::unique_ptr<Gemma> gemma_;
  const Exactness exactness_;
  KvCachePool kv_caches_;
};

}  // namespace hearth

#endif  // HEARTH_WORKER_ENGINE_RUNNER_GEMMA_RUNNER_H_
