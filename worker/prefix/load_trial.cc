#include "worker/prefix/load_trial.h"

#include <algorithm>
#include <cassert>
#include <iterator>
#include <utility>

namespace hearth {
namespace {

// Loads this short are taken whatever computing would cost: they spare others the computing.
constexpr absl::Duration kShortLoad = absl::Milliseconds(10);

// A transfer is judged when a tenth of the computing time has passed: that much may be lost by it.
constexpr double kGraceShare = 0.1;
constexpr absl::Duration kLeastGrace = absl::Milliseconds(20);

// A plan has at least this long: a busy machine is not a silent store.
constexpr absl::Duration kLeastPlanPatience = absl::Milliseconds(50);

// A load that goes on as it should ends in time; this bounds one that nobody looks at.
constexpr double kMaxComputeTimes = 8;

constexpr uint64_t kProbeBytes = uint64_t{1} << 20;
constexpr absl::Duration kProbeTime = absl::Seconds(2);

constexpr const char* kDecisionNames[] = {"none", "miss", "load", "compute", "abandoned"};
static_assert(std::size(kDecisionNames) == static_cast<size_t>(LoadDecision::kAbandoned) + 1,
              "one name a decision");

}  // namespace

double LoadTrial::Work::TokensUntil(uint32_t own) const {
  double all = own;
  for (const uint32_t other : beside) all += std::min(own, other);
  for (const uint32_t other : by_length) all += other <= own ? other : 0;
  all += std::min<double>(all, oldest + (promised > own ? promised : 0));
  const double tenant = all;
  for (const uint32_t other : tenants) all += std::min<double>(tenant, other);
  return all;
}

const char* LoadDecisionName(LoadDecision decision) {
  assert(static_cast<size_t>(decision) < std::size(kDecisionNames));
  return kDecisionNames[static_cast<size_t>(decision)];
}

LoadTrial::~LoadTrial() {
  absl::MutexLock lock(&mu_);
  EndTransfer();
}

void LoadTrial::Arm(LoadModel* model, Work work, Extend extend) {
  absl::MutexLock lock(&mu_);
  assert(model_ == nullptr);  // once
  model_ = model;
  work_ = std::move(work);
  extend_ = std::move(extend);
}

void LoadTrial::ArmProbe(LoadModel* model, std::optional<LoadSource> why) {
  absl::MutexLock lock(&mu_);
  assert(model_ == nullptr && model != nullptr);
  model_ = model;
  probe_ = true;
  probe_why_ = why;
}

std::shared_ptr<LoadTrial> LoadTrial::Next(uint32_t have_tokens) const {
  auto next = std::make_shared<LoadTrial>();
  absl::MutexLock lock(&mu_);
  Work work = work_;
  work.have_tokens = have_tokens;
  next->Arm(model_, std::move(work), extend_);
  return next;
}

// A probe takes no more than it measures.
uint64_t LoadTrial::ComingBytes() const {
  mu_.AssertHeld();
  return probe_ ? std::min(offer_.bytes, kProbeBytes) : offer_.bytes;
}

// The time that starting at `boundary` saves, with others' steps in between.
std::optional<absl::Duration> LoadTrial::Spares(uint32_t boundary) const {
  mu_.AssertHeld();
  const auto time = [&](uint32_t begin) -> std::optional<absl::Duration> {
    if (begin >= work_.tokens) return absl::ZeroDuration();
    const auto alone = model_->ComputeTime(begin, work_.tokens, work_.step_tokens);
    if (!alone.has_value()) return alone;
    const uint32_t tokens = work_.tokens - begin;
    return *alone * (work_.TokensUntil(tokens) / tokens);
  };
  const auto all = time(work_.have_tokens), rest = time(boundary);
  if (!all.has_value() || !rest.has_value()) return std::nullopt;
  return std::max(*all - *rest, absl::ZeroDuration());
}

bool LoadTrial::WorthAsking(uint32_t boundary, uint64_t bytes) {
  absl::MutexLock lock(&mu_);
  if (!Decides()) return true;
  const auto spares = Spares(boundary);
  const auto load = model_->LeastLoadTime(bytes);
  if (!spares.has_value() || !load.has_value()) return true;
  if (*load <= *spares || *load <= kShortLoad) return true;
  report_.decision = LoadDecision::kCompute;
  report_.bytes = bytes;
  report_.load_estimate = load;
  report_.compute_estimate = spares;
  return false;
}

absl::Duration LoadTrial::PlanPatience() {
  absl::MutexLock lock(&mu_);
  if (!Decides()) return work_.budget;
  const auto spares = Spares(work_.tokens);
  if (!spares.has_value()) return work_.budget;
  const absl::Duration patience = std::max(*spares, kLeastPlanPatience);
  hurried_ = patience < work_.budget;
  return std::min(work_.budget, patience);
}

void LoadTrial::OnAsk() {
  absl::MutexLock lock(&mu_);
  if (model_ == nullptr) return;
  asked_ = model_->Now();
  report_.decision = LoadDecision::kMiss;  // until a plan says otherwise
}

void LoadTrial::OnPlan(bool late) {
  absl::MutexLock lock(&mu_);
  if (model_ == nullptr) return;
  report_.plan_was_late = late;
  model_->OnPlan(model_->Now() - asked_, late);
}

bool LoadTrial::Accepts(const LoadOffer& offer) {
  Extend extend;
  absl::Duration most;
  {
    absl::MutexLock lock(&mu_);
    if (model_ == nullptr) return true;
    EndTransfer();  // of a try before this one
    offer_ = offer;
    report_.source = offer.source;
    report_.boundary = offer.boundary;
    report_.bytes = offer.bytes;
    report_.load_estimate = model_->LoadTime(offer.source, offer.bytes);
    report_.compute_estimate = probe_ ? std::nullopt : Spares(offer.boundary);
    report_.decision = LoadDecision::kLoad;
    const auto& load = report_.load_estimate;
    const auto& compute = report_.compute_estimate;
    if (Decides() && load.has_value() && compute.has_value() && *load > *compute &&
        *load > kShortLoad) {
      report_.decision = LoadDecision::kCompute;
      return false;
    }
    accepted_ = model_->Now();
    transfers_ = true;
    model_->OnBegin(ComingBytes());
    if (Decides()) {
      model_->OnAccepted(offer.source);
      if (compute.has_value() && extend_ != nullptr) {
        extend = extend_;
        most = work_.budget + *compute * kMaxComputeTimes;
      }
    }
  }
  if (extend != nullptr) extend(most);
  return true;
}

// The transfer may go on as long as what is left of it, at the rate that was seen, takes less than
// computing. A message that is on its way counts as if it were here.
std::optional<absl::Duration> LoadTrial::Patience(uint64_t received_bytes) const {
  absl::MutexLock lock(&mu_);
  if (model_ == nullptr || !transfers_) return std::nullopt;
  const absl::Duration passed = model_->Now() - accepted_;
  absl::Duration until;  // from accepted_ on
  if (probe_) {
    until = received_bytes < kProbeBytes ? kProbeTime : absl::ZeroDuration();
  } else {
    if (!Decides() || !report_.compute_estimate.has_value()) return std::nullopt;
    const absl::Duration compute = *report_.compute_estimate;
    const double seen = static_cast<double>(received_bytes + offer_.message_bytes);
    const double left = static_cast<double>(offer_.bytes) - seen;
    until = passed + std::max(compute, kLeastGrace);  // no single message is waited for longer
    if (left > 0) until = std::min(until, compute * (seen / left));
    until = std::max({until, compute * kGraceShare, kLeastGrace});
  }
  return std::max(until - passed, absl::ZeroDuration());
}

void LoadTrial::EndTransfer() {
  mu_.AssertHeld();
  if (!std::exchange(transfers_, false)) return;
  model_->OnEnd(ComingBytes());
  report_.took = model_->Now() - accepted_;
}

void LoadTrial::OnCutOff(uint64_t received_bytes, LoadDecision decision) {
  absl::MutexLock lock(&mu_);
  if (!transfers_) return;
  EndTransfer();
  report_.decision = decision;
  // Not more than this can have come.
  uint64_t seen = received_bytes;
  if (!probe_ || received_bytes < kProbeBytes) seen += offer_.message_bytes;
  model_->OnLoad(offer_.source, std::max<uint64_t>(seen, 1), report_.took, /*cut_off=*/true);
  if (probe_) model_->OnProbed(probe_why_);
}

void LoadTrial::OnArrived() {
  absl::MutexLock lock(&mu_);
  if (!transfers_) return;
  EndTransfer();
  if (!probe_) return;
  model_->OnLoad(offer_.source, offer_.bytes, report_.took, /*cut_off=*/true);
  model_->OnProbed(probe_why_);
}

void LoadTrial::OnFailed() {
  absl::MutexLock lock(&mu_);
  EndTransfer();
  if (report_.decision == LoadDecision::kLoad) report_.decision = LoadDecision::kMiss;
}

void LoadTrial::OnRestored(absl::Duration copied) {
  absl::MutexLock lock(&mu_);
  if (model_ == nullptr || probe_ || report_.decision != LoadDecision::kLoad) return;
  report_.took += copied;
  model_->OnLoad(offer_.source, offer_.bytes, report_.took);
}

bool LoadTrial::is_probe() const {
  absl::MutexLock lock(&mu_);
  return probe_;
}

bool LoadTrial::is_hurried() const {
  absl::MutexLock lock(&mu_);
  return hurried_;
}

std::shared_ptr<LoadTrial> LoadTrial::TakeProbe() {
  absl::MutexLock lock(&mu_);
  const LoadDecision decision = report_.decision;
  const bool computes = decision == LoadDecision::kCompute || decision == LoadDecision::kAbandoned;
  if (!Decides() || !computes || !model_->MayProbe(report_.source)) return nullptr;
  auto probe = std::make_shared<LoadTrial>();
  probe->ArmProbe(model_, report_.source);
  return probe;
}

LoadReport LoadTrial::report() const {
  absl::MutexLock lock(&mu_);
  return report_;
}

}  // namespace hearth
