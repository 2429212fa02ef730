#include "worker/prefix/load_model.h"

#include <algorithm>
#include <cassert>
#include <cmath>

namespace hearth {
namespace {

// Each load halves the weight of earlier loads; 8,192 prefilled tokens reduce the weight of earlier
// steps to 1/e.
constexpr double kKept = 0.5, kMemoryTokens = 8192;
constexpr absl::Duration kRetryAfter = absl::Seconds(30);
// Loads expected to take less time are always made: they save computing time for other requests.
constexpr absl::Duration kShortLoad = absl::Milliseconds(20);
// A load without data, or a retry, may waste at most 1/20 of the computing time.
constexpr int kLossShare = 20;
// Minimum of every limit: a short pause of a busy machine does not mean that the link is slow.
constexpr absl::Duration kLeastLimit = absl::Milliseconds(50);

}  // namespace

void LoadModel::OnStep(uint32_t tokens, absl::Duration took) {
  absl::MutexLock lock(&mu_);
  assert(tokens > 0);
  computing_.Add(std::exp(-static_cast<double>(tokens) / kMemoryTokens), tokens, took);
}

void LoadModel::OnFetch(const LoadReport& load) {
  const absl::Time now = Now();
  absl::MutexLock lock(&mu_);
  if (load.plan_took.has_value()) {
    plans_.Add(0, 1, *load.plan_took);
    plans_.at = now;
  }
  if (!load.source.has_value()) return;
  Rate& rate = loads_[static_cast<size_t>(*load.source)];
  if (load.is_late) {
    rate.Add(0, std::max<uint64_t>(load.received, 1), load.took);
  } else if (load.decision == LoadDecision::kLoad) {
    rate.Add(load.retries ? 0 : kKept, load.bytes, load.took);
  } else {
    return;
  }
  rate.at = now;
}

std::optional<absl::Duration> LoadModel::LoadTime(const LoadReport& load) const {
  mu_.AssertHeld();
  if (load.source.has_value()) return loads_[static_cast<size_t>(*load.source)].TimeOf(load.bytes);
  std::optional<absl::Duration> least;
  for (const Rate& rate : loads_) {
    const auto time = rate.TimeOf(load.bytes);
    if (time.has_value()) least = std::min(least.value_or(*time), *time);
  }
  const auto plan = plans_.TimeOf(1);
  return plan.has_value() ? least.value_or(absl::ZeroDuration()) + *plan : least;
}

void LoadModel::Compare(const LoadWork& work, LoadReport* load) const {
  const uint32_t end = std::min(load->boundary, work.tokens);
  const uint64_t spared = end - std::min(end, work.have_tokens);
  absl::MutexLock lock(&mu_);
  load->load_estimate = LoadTime(*load);
  load->compute_estimate = computing_.TimeOf(spared * (uint64_t{1} + work.others));
  const bool computing_is_faster =
      load->load_estimate.has_value() && load->compute_estimate.has_value() &&
      *load->load_estimate > std::max(*load->compute_estimate, kShortLoad);
  load->decision = computing_is_faster ? LoadDecision::kCompute : LoadDecision::kLoad;
}

void LoadModel::Decide(const LoadWork& work, LoadReport* load) {
  const absl::Time now = Now();
  Compare(work, load);
  if (choice_ != LoadChoice::kAuto) {
    load->decision = LoadDecision::kLoad;
    return;
  }
  if (!load->compute_estimate.has_value()) return;
  if (load->decision == LoadDecision::kCompute) {
    absl::MutexLock lock(&mu_);
    Rate& rate = load->source.has_value() ? loads_[static_cast<size_t>(*load->source)] : plans_;
    if (now - rate.at < kRetryAfter) return;
    rate.at = now;
    load->decision = LoadDecision::kLoad;
    load->retries = true;
  }
  const absl::Duration most = std::max(*load->compute_estimate, kLeastLimit);
  const absl::Duration loss = std::max(most / kLossShare, kLeastLimit);
  // Allow twice the estimate: links become slower, and other transfers share them.
  assert(loss <= most);  // std::clamp() needs this
  const absl::Duration expected = 2 * load->load_estimate.value_or(most);
  load->limits = LoadLimits{load->retries ? loss : std::clamp(expected, loss, most), loss};
}

}  // namespace hearth
