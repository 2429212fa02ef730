#include "worker/engine/engine_impl.h"

#include <algorithm>
#include <cassert>
#include <exception>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "worker/engine/request_check.h"
#include "worker/engine/runner/kv_snapshot.h"
#include "worker/engine/runner/model_fingerprint.h"

namespace hearth {
namespace {

// The prefix for which memory is made resident at start.
constexpr uint32_t kPrefaultTokens = 2048;

// For one that waits for memory while nothing else is to be done.
constexpr absl::Duration kRoomRetry = absl::Milliseconds(50);

absl::Status ShuttingDown() { return absl::UnavailableError("the worker is shutting down"); }

EngineOptions WithPlaces(EngineOptions options, Exactness exactness) {
  options.max_running = options.PlacesOf(exactness);
  return options;
}

}  // namespace

class EngineImpl::Handle : public EngineRequestHandle {
 public:
  Handle(std::shared_ptr<Link> link, std::shared_ptr<RequestState> state)
      : link_(std::move(link)), state_(std::move(state)) {}
  void Cancel() override {
    state_->cancelled = true;
    absl::MutexLock lock(&link_->mu);
    if (link_->engine != nullptr) link_->engine->Ring();
  }

 private:
  const std::shared_ptr<Link> link_;
  const std::shared_ptr<RequestState> state_;
};

EngineImpl::EngineImpl(const EngineOptions& options, std::unique_ptr<ModelRunner> model,
                       std::string why_not_invariant)
    : options_(WithPlaces(options, model->exactness())),
      model_(std::move(model)),
      why_not_invariant_(std::move(why_not_invariant)),
      layout_(LayoutOf(model_->config(), model_->kv_dtype(), options.chunk_tokens,
                       model_->exactness())),
      keeper_(options_.memory, options_.cache.publish_timeout, layout_, &counters_,
              [this] {
                ++releases_;
                Ring();
              }),
      fetcher_(options_.cache, options_.max_running, layout_, &keeper_.pool(), &counters_,
               [this] { Ring(); }),
      audit_(options_.cache, layout_, model_.get(), &keeper_.pool(), &counters_,
             [this] { Ring(); }),
      room_(model_.get(), &keeper_, &audit_),
      restorer_(layout_, model_.get(), &keeper_, &room_, &counters_),
      scheduler_(options_.max_running, options.max_queued),
      // Of those that run, and of as many that are over.
      digests_(/*threads=*/1, size_t{2} * options_.max_running) {
  absl::MutexLock lock(&link_->mu);
  link_->engine = this;
}

EngineImpl::~EngineImpl() {
  {
    absl::MutexLock lock(&link_->mu);
    link_->engine = nullptr;
  }
  PrefixCache* cache = nullptr;
  {
    absl::MutexLock lock(&mu_);
    stopping_ = true;
    cache = cache_;
    bell_.SignalAll();
  }
  if (thread_.joinable()) thread_.join();
  if (cache != nullptr) cache->CancelCalls();
  fetcher_.Stop();
  audit_.Stop();
  digests_.Stop();
  keeper_.publisher().Stop();
}

absl::Status EngineImpl::Start() {
  if (absl::Status status = layout_.Validate(); !status.ok()) return status;
  absl::Notification started;
  absl::Status status;
  // The canary runs on the thread that will step the model, with its compute threads.
  thread_ = std::thread([this, &started, &status] { Run(&started, &status); });
  started.WaitForNotification();
  PrefaultObjects(layout_, std::min<uint32_t>(kPrefaultTokens, config().max_position_embeddings));
  return status;
}

absl::Status EngineImpl::ComputeFingerprint() {
  absl::StatusOr<ComputeIdentity> identity = model_->Identify(layout_);
  if (!identity.ok()) return identity.status();
  absl::StatusOr<Fingerprint> fingerprint =
      FingerprintOf(model_->config(), layout_, model_->weights_digest(), *identity);
  if (!fingerprint.ok()) return fingerprint.status();
  fingerprint_ = *std::move(fingerprint);
  return absl::OkStatus();
}

void EngineImpl::SetCache(PrefixCache* cache) {
  absl::MutexLock lock(&mu_);
  assert(active_ == 0);
  cache_ = cache;
}

absl::StatusOr<std::shared_ptr<EngineRequestHandle>> EngineImpl::Submit(EngineRequest request,
                                                                        EngineCallbacks callbacks) {
  if (absl::Status status = CheckRequest(request, config()); !status.ok()) return status;
  if (request.samples > options_.max_running) {
    return absl::InvalidArgumentError(absl::StrCat("n: ", request.samples,
                                                   " samples take as many places; max_running is ",
                                                   options_.max_running));
  }
  absl::MutexLock lock(&mu_);
  if (draining_ || stopping_) {
    counters_.Add(EngineCounter::kRequestsRefused);
    return ShuttingDown();
  }
  const SequenceId id = next_id_++;
  if (!scheduler_.Enqueue(id, request.samples, request.tenant)) {
    counters_.Add(EngineCounter::kRequestsRefused);
    return absl::ResourceExhaustedError(absl::StrCat("the request queue is full: max_queued is ",
                                                     options_.max_queued, ", max_running ",
                                                     options_.max_running));
  }
  counters_.Add(EngineCounter::kRequests);
  auto sequence = std::make_shared<Sequence>(id, std::move(request), std::move(callbacks));
  sequences_[id] = sequence;
  ++active_;
  bell_.Signal();
  return std::make_shared<Handle>(link_, sequence->state);
}

PrefixCache* EngineImpl::cache() const {
  absl::MutexLock lock(&mu_);
  return cache_;
}

void EngineImpl::Ring() {
  absl::MutexLock lock(&mu_);
  bell_.Signal();
}

void EngineImpl::Drain(absl::Time deadline) {
  {
    absl::MutexLock lock(&mu_);
    draining_ = true;
    const auto idle = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return active_ == 0; };
    if (!mu_.AwaitWithDeadline(absl::Condition(&idle), deadline)) {
      out_of_time_ = true;  // what runs ends with the next round
      bell_.Signal();
    }
  }
  keeper_.publisher().WaitIdle(deadline);
}

std::vector<std::string> EngineImpl::notes() const {
  std::vector<std::string> notes = model_->notes();
  notes.push_back(absl::StrCat("max-running: ", options_.max_running, " places"));
  if (options_.exactness == ExactnessChoice::kAuto && !why_not_invariant_.empty() &&
      warnings().empty()) {
    notes.push_back(absl::StrCat("exact, not invariant (--exactness auto): ", why_not_invariant_));
  }
  return notes;
}

std::vector<std::string> EngineImpl::warnings() const {
  if (layout_.exactness == Exactness::kInvariant || options_.FlagsOfInvariant().empty()) return {};
  return {absl::StrCat(ExactnessName(layout_.exactness), ", not invariant: ", why_not_invariant_)};
}

EngineStats EngineImpl::Stats() const {
  EngineStats stats;
  stats.pool_bytes = keeper_.pool().bytes();
  stats.staged_bytes = keeper_.staged_bytes();
  stats.kv_budget_bytes = model_->kv_bytes().budget;
  stats.kv_used_bytes = model_->kv_bytes().used;
  stats.counters = counters_.Snapshot();
  absl::MutexLock lock(&mu_);
  stats.running = scheduler_.running();
  stats.queued = scheduler_.queued();
  return stats;
}

void EngineImpl::Run(absl::Notification* started, absl::Status* start_status) {
  try {
    *start_status = ComputeFingerprint();
  } catch (const std::exception& error) {
    *start_status = absl::InternalError(absl::StrCat("canary: ", error.what()));
  }
  started->Notify();
  while (std::optional<Round> round = NextRound()) {
    for (const Ending& ending : round->endings) Fail(ending.sequence, ending.status);
    if (round->admitting) AdmitWaiting();
    for (const SequencePtr& sequence : round->looked_up) Begin(sequence);
    if (!round->step.empty()) Step(round->step);
    if (round->auditing != nullptr) audit_.Step(round->auditing);
  }
}

std::optional<EngineImpl::Round> EngineImpl::NextRound() {
  absl::MutexLock lock(&mu_);
  for (;;) {
    Round round;
    Sweep(absl::Now(), &round);
    round.admitting = MayAdmit();
    PlanStep(&round);
    if (!round.endings.empty() || round.admitting || !round.looked_up.empty() ||
        !round.step.empty()) {
      return round;
    }
    if (stopping_) return std::nullopt;
    const bool idle = sequences_.empty() && !draining_;
    if (idle && cache_ != nullptr && audit_.HasWork()) {
      round.auditing = cache_;
      return round;
    }
    // Memory is let go without a bell where a cache holds it beyond its call.
    const bool lacking = !scheduler_.Candidates().empty();
    const absl::Time retry = lacking ? absl::Now() + kRoomRetry : absl::InfiniteFuture();
    if (bell_.WaitWithDeadline(&mu_, std::min(NextTimer(), retry)) && lacking) ++releases_;
  }
}

absl::Status EngineImpl::WhyEnd(const Sequence& sequence, absl::Time now) const {
  if (sequence.state->failed) return absl::CancelledError("another sample failed");
  if (sequence.state->cancelled) return absl::CancelledError("cancelled by the caller");
  if (stopping_ || out_of_time_) return ShuttingDown();
  if (now >= sequence.request.deadline) {
    return absl::DeadlineExceededError("the request's deadline passed");
  }
  return absl::OkStatus();
}

void EngineImpl::Sweep(absl::Time now, Round* round) {
  for (const auto& [id, sequence] : sequences_) {
    if (absl::Status why = WhyEnd(*sequence, now); !why.ok()) {
      round->endings.push_back({sequence, std::move(why)});
      continue;
    }
    const FetchWait::News news = sequence->fetch.Look(now);
    if (news == FetchWait::News::kLate) counters_.Add(EngineCounter::kFetchTimeouts);
    if (news != FetchWait::News::kNone) round->looked_up.push_back(sequence);
  }
  // Places are free before anybody is told so.
  for (const Ending& ending : round->endings) {
    scheduler_.Remove(ending.sequence->id);
    sequences_.erase(ending.sequence->id);
  }
}

absl::Time EngineImpl::NextTimer() const {
  absl::Time timer = absl::InfiniteFuture();
  for (const auto& [id, sequence] : sequences_) {
    timer = std::min({timer, sequence->request.deadline, sequence->fetch.deadline()});
  }
  return timer;
}

}  // namespace hearth
