#include "cache_store/shared/tier/shared_spaces.h"

#include <algorithm>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace hearth {
namespace {

// "9223372036854775807" is Redis's largest number.
constexpr uint64_t kMaxNumberBytes = 19;

}  // namespace

SharedSpaces::SpacePtr SharedSpaces::SpaceOf(const std::string& tenant, absl::Time since) {
  absl::MutexLock lock(&mu_);
  const auto it = known_.find(tenant);
  return it == known_.end() || it->second.read_at < since ? nullptr : it->second.space;
}

absl::StatusOr<SharedSpaces::SpacePtr> SharedSpaces::Of(const std::string& tenant,
                                                        absl::Time deadline) {
  if (SpacePtr fresh = SpaceOf(tenant, clock_->Now() - age_); fresh != nullptr) {
    return fresh;
  }
  const SpacePtr last = SpaceOf(tenant, absl::InfinitePast());
  const std::string name =
      (last != nullptr ? *last : SharedSpace(secret_, tenant, 0)).GenerationName();
  const std::vector<absl::StatusOr<std::string>> got =
      engine_->Get({name}, kMaxNumberBytes, deadline);
  int64_t number = 0;
  const bool is_absent = absl::IsNotFound(got[0].status());
  const bool is_number = got[0].ok() && absl::SimpleAtoi(*got[0], &number) && number >= 0;
  if (!is_absent && !is_number) {
    if (last != nullptr) return last;
    return got[0].ok() ? absl::DataLossError("the tenant's generation is no number")
                       : got[0].status();
  }
  const uint64_t generation = static_cast<uint64_t>(number);
  if (last != nullptr && generation < last->generation()) {
    const std::string known = absl::StrCat(last->generation());
    engine_->Set({SharedValue{name, known}}, deadline);
  }
  if (generation > (last == nullptr ? 0 : last->generation())) {
    const absl::StatusOr<bool> dropped = WasDropped(tenant, generation, deadline);
    if (!dropped.ok() && last != nullptr) return last;
    if (!dropped.ok()) return dropped.status();
    // Before anybody writes what is here under the new generation.
    if (*dropped) on_dropped_(tenant);
  }
  return Adopt(tenant, generation);
}

absl::StatusOr<bool> SharedSpaces::WasDropped(const std::string& tenant, uint64_t generation,
                                              absl::Time deadline) {
  const SharedSpace space(secret_, tenant, generation);
  const std::string name = space.DropName();
  const std::vector<absl::StatusOr<std::string>> got =
      engine_->Get({name}, SharedSpace::kSealBytes + kMaxNumberBytes, deadline);
  if (got[0].ok()) return space.Open(name, *got[0]).ok();
  if (absl::IsNotFound(got[0].status()) || absl::IsDataLoss(got[0].status())) return false;
  return got[0].status();
}

bool SharedSpaces::IsDue(const std::string& tenant) {
  const absl::Time now = clock_->Now();
  absl::MutexLock lock(&mu_);
  if (known_.size() >= kMaxTenants && known_.count(tenant) == 0) known_.clear();
  Known& known = known_[tenant];
  if (std::max(known.read_at, known.due_at) > now - age_) return false;
  known.due_at = now;
  return true;
}

SharedSpaces::SpacePtr SharedSpaces::Adopt(const std::string& tenant, uint64_t generation) {
  absl::MutexLock lock(&mu_);
  if (known_.size() >= kMaxTenants && known_.count(tenant) == 0) known_.clear();
  Known& known = known_[tenant];
  known.read_at = clock_->Now();
  if (known.space == nullptr || known.space->generation() < generation) {
    known.space = std::make_shared<const SharedSpace>(secret_, tenant, generation);
  }
  return known.space;
}

absl::Status SharedSpaces::DropAll(const std::string& tenant, absl::Time deadline) {
  const std::string name = SharedSpace(secret_, tenant, 0).GenerationName();
  const absl::StatusOr<int64_t> next = engine_->Increment(name, deadline);
  if (!next.ok()) return next.status();
  const SpacePtr last = SpaceOf(tenant, absl::InfinitePast());
  uint64_t generation = static_cast<uint64_t>(std::max<int64_t>(*next, 1));
  if (last != nullptr && generation <= last->generation()) {
    // The engine had lost the number.
    generation = last->generation() + 1;
    const std::string text = absl::StrCat(generation);
    const auto set = engine_->Set({SharedValue{name, text}}, deadline);
    if (!set[0].ok()) return set[0].status();
  }
  const SharedSpace space(secret_, tenant, generation);
  const std::string marker = space.DropName();
  const std::string sealed = space.Seal(marker, absl::StrCat(generation));
  const auto marked = engine_->Set({SharedValue{marker, sealed}}, deadline);
  if (!marked[0].ok()) return marked[0].status();
  Adopt(tenant, generation);
  return absl::OkStatus();
}

}  // namespace hearth
