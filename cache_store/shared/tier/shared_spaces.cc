#include "cache_store/shared/tier/shared_spaces.h"

#include <algorithm>
#include <cassert>

namespace hearth {
namespace {

constexpr uint64_t kNumbersBytes = SharedSpace::kSealBytes + 2 * sizeof(uint64_t);
// Limit of attempts to begin a generation: if several stores try at the same time, one of them
// succeeds per attempt.
constexpr int kMaxTries = 8;

}  // namespace

SharedSpaces::Known& SharedSpaces::KnownOf(const std::string& tenant) {
  if (known_.size() >= kMaxTenants && known_.count(tenant) == 0) known_.clear();
  return known_[tenant];
}

SharedSpaces::SpacePtr SharedSpaces::SpaceOf(const std::string& tenant, absl::Time since) {
  absl::MutexLock lock(&mu_);
  const auto it = known_.find(tenant);
  return it == known_.end() || it->second.read_at < since ? nullptr : it->second.space;
}

absl::StatusOr<SharedSpaces::NumbersReply> SharedSpaces::ReadNumbers(const SharedSpace& space,
                                                                     absl::Time deadline) {
  const std::string name = space.NumbersName();
  const auto got = engine_->Get({name}, kNumbersBytes, deadline);
  assert(got.size() == 1);
  // A value that no store has written gives generation 0, so the caller overwrites the value.
  if (absl::IsNotFound(got[0].status())) return NumbersReply{{}, true};
  if (absl::IsDataLoss(got[0].status())) return NumbersReply();
  if (!got[0].ok()) return got[0].status();
  const absl::StatusOr<std::string> text = space.Open(name, *got[0]);
  if (!text.ok()) return NumbersReply();
  return NumbersReply{SharedNumbers::Parse(*text).value_or(SharedNumbers())};
}

absl::StatusOr<bool> SharedSpaces::Set(const SharedSpace& space, const SharedNumbers& numbers,
                                       bool only_if_absent, absl::Time deadline) {
  const std::string name = space.NumbersName();
  return engine_->Set(
      {{name, space.Seal(name, numbers.Text()), absl::InfiniteDuration(), only_if_absent}},
      deadline)[0];
}

absl::StatusOr<SharedSpaces::SpacePtr> SharedSpaces::Find(const std::string& tenant, bool begins,
                                                          absl::Time deadline) {
  if (SpacePtr fresh = SpaceOf(tenant, steady_->Now() - age_); fresh != nullptr) return fresh;
  const SharedSpace plain(secret_, tenant, 0);
  for (int tries = 0; tries < kMaxTries; ++tries) {
    const absl::StatusOr<NumbersReply> reply = ReadNumbers(plain, deadline);
    if (!reply.ok()) {
      if (SpacePtr believed = SpaceOf(tenant, steady_->Now() - kMaxStaleness)) return believed;
      return reply.status();
    }
    // Apply the drop before entries of the new generation are found or written. RaiseDropNumber
    // counts its errors.
    store_->RaiseDropNumber(tenant, reply->numbers.drop_number, true).status().IgnoreError();
    {
      absl::MutexLock lock(&mu_);
      KnownOf(tenant).answered_at = steady_->Now();
    }
    const SharedNumbers ours = Join(tenant, reply->numbers, begins);
    if (ours.generation == 0) return absl::NotFoundError("the tenant has no shared entries");
    if (ours == reply->numbers) return Adopt(tenant, ours);
    if (reply->numbers.generation > 0) {
      Set(plain, ours, false, deadline).IgnoreError();  // after an error, the next read tries again
      return Adopt(tenant, ours);
    }
    const absl::StatusOr<bool> set = Set(plain, ours, reply->is_absent, deadline);
    if (!set.ok()) return set.status();
    if (*set) return Adopt(tenant, ours);
  }
  return absl::UnavailableError(
      "concurrent updates of the tenant's generation in Redis; try again");
}

SharedNumbers SharedSpaces::Join(const std::string& tenant, const SharedNumbers& stored,
                                 bool begins) {
  SharedNumbers ours = stored;
  ours.drop_number = std::max(stored.drop_number, store_->DropNumber(tenant));
  const SpacePtr last = SpaceOf(tenant, absl::InfinitePast());
  const uint64_t known = last == nullptr ? 0 : last->generation();
  if (stored.generation == 0) {
    // Reuse the last known generation only if it was read recently: otherwise this store and the
    // engine may both have missed a drop.
    const bool is_believed = SpaceOf(tenant, steady_->Now() - kMaxStaleness) != nullptr;
    if (!is_believed && !begins && ours.drop_number == 0) return {};
    ours.generation = is_believed ? known : NumberAfter(std::max(known, ours.drop_number));
  } else if (ours.drop_number > stored.drop_number) {
    ours.generation = std::max(stored.generation + 1, known);
  }
  ours.generation = std::max({ours.generation, known, ours.drop_number});
  assert(ours.drop_number <= ours.generation);
  assert(ours.generation >= stored.generation && ours.drop_number >= stored.drop_number);
  return ours;
}

uint64_t SharedSpaces::NumberAfter(uint64_t number) const {
  const int64_t now = std::max<int64_t>(0, absl::ToUnixMicros(clock_->Now()));
  return std::max(static_cast<uint64_t>(now), number + 1);
}

bool SharedSpaces::CheckForDrops(const std::string& tenant, absl::Time deadline) {
  {
    absl::MutexLock lock(&mu_);
    const auto it = known_.find(tenant);
    if (it != known_.end() && it->second.answered_at >= steady_->Now() - age_) return false;
  }
  Of(tenant, deadline).status().IgnoreError();
  return true;
}

SharedSpaces::SpacePtr SharedSpaces::Adopt(const std::string& tenant,
                                           const SharedNumbers& numbers) {
  assert(numbers.generation > 0);
  auto space =
      std::make_shared<const SharedSpace>(secret_, tenant, numbers.generation, numbers.drop_number);
  absl::MutexLock lock(&mu_);
  Known& known = KnownOf(tenant);
  known.read_at = steady_->Now();
  if (known.space == nullptr || known.space->generation() < numbers.generation) {
    known.space = std::move(space);
  }
  assert(known.space->generation() >= numbers.generation);
  return known.space;
}

absl::StatusOr<DropResult> SharedSpaces::DropAll(const std::string& tenant, bool force,
                                                 absl::Time deadline, absl::Status* written) {
  const SharedSpace plain(secret_, tenant, 0);
  const absl::StatusOr<NumbersReply> before = ReadNumbers(plain, deadline);
  *written = before.status();
  uint64_t number = store_->DropNumber(tenant);
  if (before.ok()) number = std::max(number, before->numbers.generation);
  if (const SpacePtr last = SpaceOf(tenant, absl::InfinitePast()); last != nullptr) {
    number = std::max(number, last->generation());
  }
  number = NumberAfter(number);
  absl::StatusOr<DropResult> dropped = store_->RaiseDropNumber(tenant, number, force);
  // the store refused the drop: nothing was dropped
  if (store_->DropNumber(tenant) < number) return dropped;
  if (written->ok()) written->Update(Set(plain, {number, number}, false, deadline).status());
  {
    // Forget the numbers that were read before the drop: another store may also have written new
    // ones.
    absl::MutexLock lock(&mu_);
    Known& known = KnownOf(tenant);
    known.read_at = known.answered_at = absl::InfinitePast();
  }
  if (written->ok()) written->Update(Of(tenant, deadline).status());
  return dropped;
}

}  // namespace hearth
