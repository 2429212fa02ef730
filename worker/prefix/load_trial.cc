#include "worker/prefix/load_trial.h"

#include <algorithm>
#include <cassert>
#include <chrono>
#include <cmath>
#include <iterator>

namespace hearth {
namespace {

// Of what was measured before, the next load leaves this, and so many tokens an e-th.
constexpr double kKept = 0.5, kMemoryTokens = 8192;
constexpr absl::Duration kTryAgain = absl::Seconds(30);
// Loads this short are taken whatever computing would cost: they spare others the computing.
constexpr absl::Duration kShortLoad = absl::Milliseconds(10);
// A transfer is judged when a tenth of the computing time has passed: that much may be lost by it.
constexpr double kGraceShare = 0.1;
constexpr absl::Duration kLeastGrace = absl::Milliseconds(20);
// A plan has at least this long: a busy machine is not a silent store.
constexpr absl::Duration kLeastPlanPatience = absl::Milliseconds(50);
// A load that goes on as it should ends in time; this bounds one that nobody looks at.
constexpr double kMaxComputeTimes = 8;

constexpr const char* kSourceNames[] = {"wire",   "wire-disk", "shared-memory",
                                        "device", "local",     "local-disk"};
static_assert(std::size(kSourceNames) == static_cast<size_t>(LoadSource::kCount));
constexpr const char* kDecisionNames[] = {"none", "miss", "load", "compute", "abandoned"};
static_assert(std::size(kDecisionNames) == static_cast<size_t>(LoadDecision::kAbandoned) + 1);

}  // namespace

const char* LoadSourceName(LoadSource source) { return kSourceNames[static_cast<size_t>(source)]; }
const char* LoadDecisionName(LoadDecision decision) {
  return kDecisionNames[static_cast<size_t>(decision)];
}

absl::Time LoadModel::SteadyNow() {
  return absl::UnixEpoch() + absl::FromChrono(std::chrono::steady_clock::now().time_since_epoch());
}

std::optional<absl::Duration> LoadModel::Rate::TimeOf(uint64_t more) const {
  if (units == 0) return std::nullopt;
  return absl::Seconds(seconds / units * static_cast<double>(more));
}

void LoadModel::OnStep(uint32_t tokens, absl::Duration took) {
  const double kept = std::exp(-static_cast<double>(tokens) / kMemoryTokens);
  absl::MutexLock lock(&mu_);
  computing_.seconds = computing_.seconds * kept + absl::ToDoubleSeconds(took);
  computing_.units = computing_.units * kept + tokens;
}

void LoadModel::OnLoad(LoadSource source, uint64_t bytes, absl::Duration took, bool alone) {
  absl::MutexLock lock(&mu_);
  Rate& rate = loads_[static_cast<size_t>(source)];
  const double kept = alone ? 0 : kKept;
  rate.seconds = rate.seconds * kept + absl::ToDoubleSeconds(took);
  rate.units = rate.units * kept + static_cast<double>(bytes);
  rate.at = clock_();
}

std::optional<absl::Duration> LoadModel::ComputeTime(uint32_t tokens) const {
  absl::MutexLock lock(&mu_);
  return computing_.TimeOf(tokens);
}

std::optional<absl::Duration> LoadModel::LoadTime(LoadSource source, uint64_t bytes) const {
  absl::MutexLock lock(&mu_);
  return loads_[static_cast<size_t>(source)].TimeOf(bytes);
}

std::optional<absl::Duration> LoadModel::LeastLoadTime(uint64_t bytes) const {
  absl::MutexLock lock(&mu_);
  std::optional<absl::Duration> least;
  for (auto rate = loads_.begin(); rate + 1 != loads_.end(); ++rate) {
    const auto time = rate->TimeOf(bytes);
    if (time.has_value()) least = std::min(least.value_or(*time), *time);
  }
  const auto plan = loads_.back().TimeOf(1);
  return plan.has_value() ? least.value_or(absl::ZeroDuration()) + *plan : least;
}

bool LoadModel::TriesAgain(LoadSource source) {
  const absl::Time now = clock_();
  absl::MutexLock lock(&mu_);
  absl::Time& at = loads_[static_cast<size_t>(source)].at;
  if (now - at < kTryAgain) return false;
  at = now;
  return true;
}

void LoadTrial::Arm(LoadModel* model, Work work, Extend extend) {
  assert(model_ == nullptr);  // once
  model_ = model;
  work_ = std::move(work);
  extend_ = std::move(extend);
}

std::shared_ptr<LoadTrial> LoadTrial::Next(uint32_t have_tokens) const {
  auto next = std::make_shared<LoadTrial>();
  next->Arm(model_, work_, extend_);
  next->work_.have_tokens = have_tokens;
  return next;
}

// The time that starting at `boundary` saves, with others' steps in between.
std::optional<absl::Duration> LoadTrial::Spares(uint32_t boundary) const {
  const auto time = [&](uint32_t begin) {
    const uint32_t own = work_.tokens - std::min(begin, work_.tokens);
    uint64_t all = own;
    for (const uint32_t other : work_.beside) all += std::min(own, other);
    return model_->ComputeTime(static_cast<uint32_t>(std::min<uint64_t>(all, UINT32_MAX)));
  };
  const auto all = time(work_.have_tokens);
  if (!all.has_value()) return std::nullopt;
  return std::max(*all - *time(boundary), absl::ZeroDuration());
}

bool LoadTrial::Chooses(LoadSource source, std::optional<absl::Duration> load, uint32_t boundary,
                        uint64_t bytes) {
  report_.bytes = bytes;
  report_.load_estimate = load;
  report_.compute_estimate = Spares(boundary);
  report_.decision = LoadDecision::kLoad;
  if (!Decides() || !load.has_value() || !report_.compute_estimate.has_value()) return true;
  if (*load <= *report_.compute_estimate || *load <= kShortLoad) return true;
  tries_ = tries_ || model_->TriesAgain(source);
  if (!tries_) report_.decision = LoadDecision::kCompute;
  return tries_;
}

bool LoadTrial::WorthAsking(uint32_t boundary, uint64_t bytes) {
  absl::MutexLock lock(&mu_);
  if (!Chooses(LoadSource::kCount, model_->LeastLoadTime(bytes), boundary, bytes)) return false;
  report_ = LoadReport();  // the rest is the fetch's to say
  return true;
}

absl::Duration LoadTrial::PlanPatience() const {
  const auto spares = Decides() ? Spares(work_.tokens) : std::nullopt;
  if (!spares.has_value()) return work_.budget;
  return std::min(work_.budget, std::max(*spares, kLeastPlanPatience));
}

void LoadTrial::OnAsk() {
  absl::MutexLock lock(&mu_);
  if (model_ == nullptr) return;
  asked_ = model_->Now();
  report_ = LoadReport();
  report_.decision = LoadDecision::kMiss;  // until a plan says otherwise
}

void LoadTrial::OnPlan(bool late) {
  absl::MutexLock lock(&mu_);
  if (model_ == nullptr) return;
  report_.plan_was_late = late;
  model_->OnPlan(model_->Now() - asked_);
}

bool LoadTrial::Accepts(const LoadOffer& offer) {
  if (model_ == nullptr) return true;
  std::optional<absl::Duration> compute;
  {
    absl::MutexLock lock(&mu_);
    offer_ = offer;
    report_.source = offer.source;
    report_.boundary = offer.boundary;
    const auto load = model_->LoadTime(offer.source, offer.bytes);
    if (!Chooses(offer.source, load, offer.boundary, offer.bytes)) return false;
    accepted_ = model_->Now();
    compute = report_.compute_estimate;
  }
  if (Decides() && compute.has_value() && extend_ != nullptr) {
    extend_(work_.budget + *compute * kMaxComputeTimes);
  }
  return true;
}

// The transfer may go on as long as what is left of it, at the rate that was seen, takes less than
// computing. A message that is on its way counts as if it were here.
std::optional<absl::Duration> LoadTrial::Patience(uint64_t received_bytes) const {
  absl::MutexLock lock(&mu_);
  if (!Decides() || !accepted_.has_value() || !report_.compute_estimate.has_value()) {
    return std::nullopt;
  }
  const absl::Duration compute = *report_.compute_estimate, passed = model_->Now() - *accepted_;
  const double seen = static_cast<double>(received_bytes + offer_.message_bytes);
  const double left = static_cast<double>(offer_.bytes) - seen;
  // From accepted_ on; no single message is waited for longer than computing takes.
  absl::Duration until = passed + std::max(compute, kLeastGrace);
  if (left > 0) until = std::min(until, compute * (seen / left));
  until = std::max({until, compute * kGraceShare, kLeastGrace});
  return std::max(until - passed, absl::ZeroDuration());
}

void LoadTrial::OnArrived() {
  absl::MutexLock lock(&mu_);
  if (!accepted_.has_value()) return;
  report_.took = model_->Now() - *accepted_;
  accepted_.reset();
}

void LoadTrial::OnCutOff(uint64_t received_bytes, LoadDecision decision) {
  OnArrived();
  absl::MutexLock lock(&mu_);
  if (model_ == nullptr) return;
  report_.decision = decision;
  // Not more than this can have come.
  const uint64_t seen = std::max<uint64_t>(received_bytes + offer_.message_bytes, 1);
  model_->OnLoad(offer_.source, seen, report_.took, /*alone=*/true);
}

void LoadTrial::OnFailed() {
  OnArrived();
  absl::MutexLock lock(&mu_);
  if (report_.decision == LoadDecision::kLoad) report_.decision = LoadDecision::kMiss;
}

void LoadTrial::OnRestored(absl::Duration copied) {
  absl::MutexLock lock(&mu_);
  if (model_ == nullptr || report_.decision != LoadDecision::kLoad) return;
  report_.took += copied;
  model_->OnLoad(offer_.source, offer_.bytes, report_.took, /*alone=*/tries_);
}

LoadReport LoadTrial::report() const {
  absl::MutexLock lock(&mu_);
  return report_;
}

}  // namespace hearth
