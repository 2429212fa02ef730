#include "worker/prefix/load_trial.h"

#include <algorithm>
#include <cmath>

namespace hearth {
namespace {

// Of what was measured before, the next load leaves this, and so many tokens an e-th.
constexpr double kKept = 0.5, kMemoryTokens = 8192;
constexpr absl::Duration kTryAgain = absl::Seconds(30);
// Loads this short are taken whatever computing would cost: they spare others the computing.
constexpr absl::Duration kShortLoad = absl::Milliseconds(20);
// Others are judged when a twentieth of the computing time has passed: that may be lost by it.
constexpr double kGraceShare = 0.05;
// A plan has at least this long: a busy machine is not a silent store.
constexpr absl::Duration kLeastPlanPatience = absl::Milliseconds(50);
// A load that goes on as it should ends in time; this bounds one that nobody looks at.
constexpr double kMaxComputeTimes = 8;

}  // namespace

void LoadModel::OnStep(uint32_t tokens, absl::Duration took) {
  absl::MutexLock lock(&mu_);
  computing_.Add(std::exp(-static_cast<double>(tokens) / kMemoryTokens), tokens, took);
}

void LoadModel::OnLoad(LoadSource source, uint64_t bytes, absl::Duration took, bool alone) {
  absl::MutexLock lock(&mu_);
  Rate& rate = loads_[static_cast<size_t>(source)];
  rate.Add(alone ? 0 : kKept, bytes, took);
  rate.at = clock_();
}

std::optional<absl::Duration> LoadModel::LoadTime(LoadSource source, uint64_t bytes) const {
  absl::MutexLock lock(&mu_);
  if (source != LoadSource::kCount) return loads_[static_cast<size_t>(source)].TimeOf(bytes);
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

// The time that starting at `boundary` saves, where prompts share the steps alike.
std::optional<absl::Duration> LoadTrial::Spares(uint32_t boundary) const {
  const uint32_t end = std::min(boundary, work_.tokens);
  const uint64_t spared = end - std::min(end, work_.have_tokens);
  return model_->ComputeTime(spared * (1 + work_.others));
}

bool LoadTrial::Chooses(LoadSource source, uint32_t boundary, uint64_t bytes) {
  report_.bytes = bytes;
  report_.decision = LoadDecision::kLoad;
  const auto& load = report_.load_estimate = model_->LoadTime(source, bytes);
  const auto& compute = report_.compute_estimate = Spares(boundary);
  if (!Decides() || !load.has_value() || !compute.has_value()) return true;
  if (*load <= std::max(*compute, kShortLoad)) return true;
  tries_ = tries_ || model_->TriesAgain(source);
  if (!tries_) report_.decision = LoadDecision::kCompute;
  return tries_;
}

bool LoadTrial::WorthAsking(uint32_t boundary, uint64_t bytes) {
  absl::MutexLock lock(&mu_);
  if (!Chooses(LoadSource::kCount, boundary, bytes)) return false;
  report_ = LoadReport();  // the rest is the fetch's to say
  return true;
}

absl::Duration LoadTrial::PlanPatience() const {
  const auto spares = Decides() ? Spares(work_.tokens) : std::nullopt;
  if (!spares.has_value()) return work_.budget;
  return std::min(work_.budget, std::max(*spares, kLeastPlanPatience));
}

absl::Duration LoadTrial::MostTime() const {
  const auto spares = Decides() ? Spares(work_.tokens) : std::nullopt;
  return work_.budget + spares.value_or(absl::ZeroDuration()) * kMaxComputeTimes;
}

void LoadTrial::OnPlan(absl::Duration took, bool late) {
  absl::MutexLock lock(&mu_);
  report_ = LoadReport{LoadDecision::kMiss};  // until an offer says otherwise
  report_.plan_was_late = late;
  model_->OnPlan(took);
}

bool LoadTrial::Accepts(const LoadOffer& offer) {
  absl::MutexLock lock(&mu_);
  message_bytes_ = offer.message_bytes;
  report_.source = offer.source;
  report_.boundary = offer.boundary;
  if (!Chooses(offer.source, offer.boundary, offer.bytes)) return false;
  accepted_ = Now();
  return true;
}

// The transfer may go on as long as what is left of it, at the rate that was seen, takes less than
// computing. A message that is on its way counts as if it were here.
std::optional<absl::Duration> LoadTrial::Patience(uint64_t received_bytes) const {
  absl::MutexLock lock(&mu_);
  if (!Decides() || !accepted_.has_value() || !report_.compute_estimate.has_value()) {
    return std::nullopt;
  }
  const absl::Duration compute = *report_.compute_estimate, passed = Now() - *accepted_;
  const double seen = static_cast<double>(received_bytes + message_bytes_);
  const double left = static_cast<double>(report_.bytes) - seen;
  // From accepted_ on; no single message is waited for longer than computing takes.
  absl::Duration until = passed + std::max(compute, kShortLoad);
  if (left > 0) until = std::min(until, compute * (seen / left));
  until = std::max({until, compute * kGraceShare, kShortLoad});
  return std::max(until - passed, absl::ZeroDuration());
}

void LoadTrial::OnEnd(LoadDecision decision, std::optional<uint64_t> received_bytes) {
  absl::MutexLock lock(&mu_);
  if (report_.decision == LoadDecision::kLoad) report_.decision = decision;
  if (!accepted_.has_value()) return;
  report_.took = Now() - *std::exchange(accepted_, std::nullopt);
  if (decision == LoadDecision::kMiss && !received_bytes.has_value()) return;
  const uint64_t came = received_bytes.has_value()  // not more than this can have come
                            ? std::max<uint64_t>(*received_bytes + message_bytes_, 1)
                            : report_.bytes;
  model_->OnLoad(report_.source.value_or(LoadSource::kWire), came, report_.took,
                 /*alone=*/tries_ || received_bytes.has_value());
}

}  // namespace hearth
