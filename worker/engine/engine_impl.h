// EngineImpl: the engine's thread and the components that it drives.
//
// The thread works in rounds, which RoundPlanner plans. A round ends cancelled and expired
// sequences, admits waiting sequences, starts sequences whose prefix lookup has ended, and runs one
// step. The step computes one token and the guessed tokens of each decoding sequence, and some
// prompt tokens. If the model does not batch, the round runs one step for each decoding sequence,
// and one step of one prompt. Every sequence gets its step within one round. Cache lookups and
// publishes run on other threads. On a device, rounds that only decode are taken together: see
// StepAhead.
//
// Thread safety: as Engine. Only the engine's sources include this header.
#ifndef HEARTH_WORKER_ENGINE_ENGINE_IMPL_H_
#define HEARTH_WORKER_ENGINE_ENGINE_IMPL_H_

#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "worker/engine/answer_writer.h"
#include "worker/engine/beam_driver.h"
#include "worker/engine/engine.h"
#include "worker/engine/engine_audit.h"
#include "worker/engine/engine_counters.h"
#include "worker/engine/kv_memory.h"
#include "worker/engine/prefix_fetcher.h"
#include "worker/engine/prefix_keeper.h"
#include "worker/engine/prefix_restorer.h"
#include "worker/engine/request/request_check.h"
#include "worker/engine/round_planner.h"
#include "worker/engine/runner/model_runner.h"
#include "worker/engine/sequence.h"

namespace hearth {

class EngineImpl : public Engine {
 public:
  EngineImpl(const EngineOptions& options, std::unique_ptr<ModelRunner> model,
             std::string why_not_invariant);
  ~EngineImpl() override;
  // Starts the thread and computes the canary and the fingerprint on it. REQUIRES: called once.
  absl::Status Start();

  void SetCache(PrefixCache* cache) override;
  absl::Status Complete(EngineRequest* request) const override;
  absl::StatusOr<std::shared_ptr<EngineRequestHandle>> Submit(EngineRequest request,
                                                              EngineCallbacks callbacks) override;
  absl::StatusOr<std::string> AddSnapshot(const std::string& tenant,
                                          absl::string_view file) override {
    return keeper_.AddSnapshot(tenant, fingerprint_, adapters_, file);
  }
  void Drain(absl::Time deadline) override;
  const ModelConfig& config() const override { return model_->config(); }
  const Fingerprint& fingerprint() const override { return fingerprint_; }
  const std::vector<AdapterInfo>& adapters() const override { return adapters_; }
  absl::Status CheckAdapter(const std::string& name) const override {
    return CheckAdapterName(name, model_->adapters());
  }
  const KvLayout& layout() const override { return layout_; }
  std::string device() const override { return model_->device_kind(); }
  std::string dtype() const override { return KvDtypeName(model_->kv_dtype()); }
  std::string weights() const override { return model_->weights(); }
  std::string arithmetic() const override { return model_->arithmetic(); }
  std::vector<std::string> notes() const override;
  std::vector<std::string> warnings() const override;
  std::string why_not_invariant() const override { return why_not_invariant_; }
  EngineStats Stats() const override;
  void NoteCacheWrites(uint32_t tokens) override {
    counters_.Add(EngineCounter::kCacheWriteTokens, tokens);
  }
  LoadReport EstimateLoad(uint32_t boundary) const override;

 private:
  class Handle;
  // The handles' pointer to the engine. Null after the engine's destruction, which handles may
  // outlive.
  struct Link {
    absl::Mutex mu;
    EngineImpl* engine ABSL_GUARDED_BY(mu) = nullptr;
  };

  // Main loop.
  void Run(absl::Notification* started, absl::Status* start_status);
  absl::Status ComputeFingerprint();
  // Calls on_device_failure if the device has failed, once.
  void ReportDeviceFailure();

  // Admission, prefix lookup, and start of prefill.
  void AdmitWaiting();
  void LookUp(const SequencePtr& sequence);
  // `looks_again`: repeat the lookup in the pool, because the pool may have changed during the
  // fetch.
  void Begin(const SequencePtr& sequence, FetchOutcome fetched, bool looks_again = false);
  absl::Status TryBegin(const SequencePtr& sequence, FetchOutcome fetched);

  void Step(std::vector<SequencePart> parts);
  // Allocates KV memory for each part of a step, oldest sequence first. Removes the parts that got
  // no memory.
  void MakeRoom(std::vector<SequencePart>* parts);
  // Runs a prefill step that also reports the log probabilities of the prompt's tokens.
  absl::Status StepWithPromptLogprobs(const SequencePart& part);
  absl::Status ReportPromptLogprobs(Sequence* sequence, uint32_t begin, uint32_t rows);
  absl::Status StepModel(absl::Span<const SequencePart> parts);
  // Handles the results of a step with the status `stepped`. If `alone`, first computes each part
  // again, as a step of its own.
  void HandleResults(absl::Span<const SequencePart> parts, const absl::Status& stepped, bool alone);
  // For a model that computes asynchronously: while only decoding is left to do, starts each step
  // before the tokens of the previous step are sent.
  void StepAhead();
  bool StartAhead();
  void FinishAhead();
  // Removes `sequence` from the step that runs ahead, if the step has it: waits for the step, and
  // removes the sequence's rows.
  void LeaveAhead(Sequence* sequence);
  absl::Status AfterPrefill(const SequencePart& part);
  absl::Status AfterDecode(const SequencePart& part);
  absl::Status FinishPrefill(const SequencePtr& sequence);
  absl::Status BeginSamples(const SequencePtr& first);

  const EngineOptions options_;
  const std::unique_ptr<ModelRunner> model_;
  const std::string why_not_invariant_;
  const KvLayout layout_;
  // Constant after Start().
  Fingerprint fingerprint_;
  std::vector<AdapterInfo> adapters_;
  const std::shared_ptr<Link> link_ = std::make_shared<Link>();
  mutable EngineCounters counters_;
  RoundPlanner planner_;
  PrefixKeeper keeper_;
  PrefixFetcher fetcher_;
  // The members from `audit_` to `restorer_` are used by the engine's thread only.
  EngineAudit audit_;
  AnswerWriter answers_;
  BeamDriver beams_;
  KvMemory memory_;
  PrefixRestorer restorer_;

  // The step that was started before the tokens of the previous step were sent. Between StartAhead
  // and FinishAhead the engine's thread runs only callbacks.
  struct StepAheadState {
    std::vector<SequencePart> parts;
    bool is_running = false, has_several = false;
    absl::Status status;  // result of the last FinishAhead
  };
  StepAheadState ahead_;
  bool has_reported_failure_ = false;

  std::thread thread_;
};

}  // namespace hearth

#endif  // HEARTH_WORKER_ENGINE_ENGINE_IMPL_H_
