// InvariantRunner: a ModelRunner for InvariantGemma. Whole chunks of KV are restored and saved by
// reference, without copying.
//
// Thread safety and ownership: see ModelRunner.
#ifndef HEARTH_WORKER_ENGINE_RUNNER_INVARIANT_RUNNER_H_
#define HEARTH_WORKER_ENGINE_RUNNER_INVARIANT_RUNNER_H_

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "worker/engine/runner/model_runner.h"
#include "worker/model/invariant/invariant_gemma.h"

namespace hearth {

class InvariantRunner : public ModelRunner {
 public:
  // `notes`: log lines, in addition to the model's notes. `kv`: default KV options of requests.
  InvariantRunner(std::unique_ptr<InvariantGemma> gemma, KvChoice kv,
                  std::vector<std::string> notes);

  // Loads an adapter. REQUIRES: no sequence exists yet. Errors name the file, and the field or
  // tensor.
  absl::Status LoadAdapter(const std::string& name, const std::string& dir);
  void AddNote(std::string note) { notes_.push_back(std::move(note)); }

  const ModelConfig& config() const override { return gemma_->config(); }
  Exactness exactness() const override { return Exactness::kInvariant; }
  KvDtype kv_dtype() const override { return gemma_->kv_dtype(); }
  const std::string& device_kind() const override { return device_kind_; }
  const Digest& weights_digest() const override { return gemma_->weights_digest(); }
  std::string weights() const override { return WeightFormName(gemma_->weights()); }
  std::string arithmetic() const override { return ArithmeticName(gemma_->arithmetic()); }
  const std::vector<std::string>& notes() const override { return notes_; }
  KvChoice kv() const override { return kv_; }
  uint32_t step_tokens(const KvLayout&) const override { return gemma_->alone_rows(); }
  KvBytes kv_bytes() const override;
  uint64_t MissingKvBytes(const SequenceKv* kv, int tokens, const KvChoice& choice) const override;
  bool CountsKvBytes(const KvObject& object) const override;
  void WhenKvFreed(std::function<void()> on_freed) override {
    gemma_->kv_blocks().CallOnNextFree(std::move(on_freed));
  }
  absl::StatusOr<ComputeIdentity> Identify(const KvLayout& layout) override;
  absl::StatusOr<std::unique_ptr<SequenceKv>> NewKv(int tokens, const KvChoice& choice) override;
  bool may_offload() const override { return gemma_->offload_blocks() != nullptr; }
  bool Offload(SequenceKv* kv) override;
  absl::Span<const ModelAdapter> adapters() const override { return adapters_; }
  void UseAdapter(const std::string& name, SequenceKv* kv) override;
  void Release(std::unique_ptr<SequenceKv> kv) override { kv.reset(); }
  void Fork(const SequenceKv& kv, SequenceKv* fork) override;
  absl::Status Restore(const KvLayout& layout, uint32_t boundary, const KvObjects& objects,
                       SequenceKv* kv) override;
  bool batches() const override { return true; }
  absl::Status MakeRoom(SequenceKv* kv, int tokens) override;
  absl::Status Step(absl::Span<const StepPart> parts) override;
  bool is_asynchronous() const override { return gemma_->is_asynchronous(); }
  absl::Status Start(absl::Span<const StepPart> parts) override;
  absl::Status Finish() override { return gemma_->Finish(started_); }
  void Forget(SequenceKv* kv, int length) override;
  std::string device_failure() const override;

 private:
  const std::unique_ptr<InvariantGemma> gemma_;
  const KvChoice kv_;
  std::vector<std::string> notes_;
  std::vector<ModelAdapter> adapters_;
  std::vector<std::shared_ptr<const LoraAdapter>> adapter_weights_;  // parallel to adapters_
  const std::string device_kind_;
  std::vector<InvariantGemma::Part> started_;  // parts of the latest step
};

}  // namespace hearth

#endif  // HEARTH_WORKER_ENGINE_RUNNER_INVARIANT_RUNNER_H_
