#include "worker/prefix/load_model.h"

#include <algorithm>
#include <cassert>
#include <chrono>

namespace hearth {
namespace {

// A source that is too slow is looked at again after so long, then after twice that, and so on.
constexpr absl::Duration kFirstProbePause = absl::Seconds(5);
constexpr absl::Duration kLongestProbePause = absl::Minutes(5);

// Of what was learned before, the next measurement leaves this.
constexpr double kKept = 0.5;

constexpr const char* kSourceNames[] = {"wire",   "wire-disk", "shared-memory",
                                        "device", "local",     "local-disk"};
static_assert(sizeof(kSourceNames) / sizeof(kSourceNames[0]) ==
                  static_cast<size_t>(LoadSource::kCount),
              "one name a source");

}  // namespace

const char* LoadSourceName(LoadSource source) {
  assert(source < LoadSource::kCount);
  return kSourceNames[static_cast<size_t>(source)];
}

absl::Time LoadModel::SteadyNow() {
  return absl::UnixEpoch() + absl::FromChrono(std::chrono::steady_clock::now().time_since_epoch());
}

void LoadModel::OnStep(uint32_t rows, double position, absl::Duration took) {
  absl::MutexLock lock(&mu_);
  steps_.Add(rows, position, absl::ToDoubleSeconds(took));
}

void LoadModel::OnPlan(absl::Duration took, bool late) {
  absl::MutexLock lock(&mu_);
  if (late) {
    plan_ = std::max(plan_.value_or(took), took);
  } else {
    const bool first = !plan_.has_value() || plan_was_late_;
    plan_ = first ? took : *plan_ * kKept + took * (1 - kKept);
  }
  plan_was_late_ = late;
}

void LoadModel::OnLoad(LoadSource source, uint64_t bytes, absl::Duration took, bool cut_off) {
  assert(source < LoadSource::kCount);
  if (bytes == 0) return;
  absl::MutexLock lock(&mu_);
  Rate& rate = rates_[static_cast<size_t>(source)];
  const double kept = cut_off ? 0 : kKept;
  rate.seconds = rate.seconds * kept + absl::ToDoubleSeconds(took);
  rate.bytes = rate.bytes * kept + static_cast<double>(bytes);
}

void LoadModel::OnBegin(uint64_t bytes) {
  absl::MutexLock lock(&mu_);
  under_way_bytes_ += bytes;
}

void LoadModel::OnEnd(uint64_t bytes) {
  absl::MutexLock lock(&mu_);
  assert(bytes <= under_way_bytes_);
  under_way_bytes_ -= bytes;
}

std::optional<absl::Duration> LoadModel::ComputeTime(uint32_t begin, uint32_t end,
                                                     uint32_t step_tokens) const {
  absl::MutexLock lock(&mu_);
  if (!steps_.known()) return std::nullopt;
  return absl::Seconds(steps_.Seconds(begin, end, step_tokens));
}

// Transfers under way come first, or share the link: either way they are in front.
absl::Duration LoadModel::LoadTimeLocked(const Rate& rate, uint64_t bytes) const {
  mu_.AssertHeld();
  assert(rate.known());
  return absl::Seconds(rate.seconds / rate.bytes * static_cast<double>(bytes + under_way_bytes_));
}

std::optional<absl::Duration> LoadModel::LoadTime(LoadSource source, uint64_t bytes) const {
  assert(source < LoadSource::kCount);
  absl::MutexLock lock(&mu_);
  const Rate& rate = rates_[static_cast<size_t>(source)];
  if (!rate.known()) return std::nullopt;
  return LoadTimeLocked(rate, bytes);
}

std::optional<absl::Duration> LoadModel::LeastLoadTime(uint64_t bytes) const {
  absl::MutexLock lock(&mu_);
  std::optional<absl::Duration> least;
  for (const Rate& rate : rates_) {
    if (!rate.known()) continue;
    const absl::Duration time = LoadTimeLocked(rate, bytes);
    least = std::min(least.value_or(time), time);
  }
  if (!plan_.has_value()) return least;
  return least.value_or(absl::ZeroDuration()) + *plan_;
}

bool LoadModel::MayProbe(std::optional<LoadSource> source) {
  const absl::Time now = clock_();
  absl::MutexLock lock(&mu_);
  Probes& probes = ProbesOf(source);
  if (now < probes.next) return false;
  if (probes.next == absl::InfinitePast()) {  // found too slow for the first time
    probes.pause = kFirstProbePause;
    probes.next = now + probes.pause;
    return false;
  }
  probes.next = now + probes.pause;
  return true;
}

void LoadModel::OnProbed(std::optional<LoadSource> source) {
  absl::MutexLock lock(&mu_);
  Probes& probes = ProbesOf(source);
  probes.pause = std::min(probes.pause * 2, kLongestProbePause);
}

void LoadModel::OnAccepted(LoadSource source) {
  assert(source < LoadSource::kCount);
  absl::MutexLock lock(&mu_);
  probes_[static_cast<size_t>(source)] = Probes();
  probes_.back() = Probes();
}

}  // namespace hearth
