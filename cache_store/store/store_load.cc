// Filling the index after a start. Opening reads the records once, of manifests only which objects
// they name; the manifests themselves are read, checked and adopted a few at a time, before Open
// returns or, with load_in_background, while the store serves.
//
// Until all are adopted, whatever looks up one prompt adopts what that prompt needs first, and
// finds what it would find later. What changes what is stored waits: nothing is written or evicted
// on the word of half an index, so a close or a crash meanwhile loses nothing and no limit is
// passed.
#include <algorithm>
#include <atomic>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "cache_store/store/sessions.h"
#include "cache_store/store/unloaded_index.h"

namespace hearth {
namespace {

// Under one hold of the lock.
constexpr size_t kObjectsAtOnce = 1024;  // objects, or restore points
// After an error of the disk.
constexpr absl::Duration kReadAgain = absl::Seconds(1);

// Between two holds of the lock: whoever lets go and takes it at once again leaves no chance to
// those who wait.
void LetOthersIn() { absl::SleepFor(absl::Microseconds(50)); }

}  // namespace

absl::Status Store::Recover() {
  if (disk_ == nullptr) return absl::OkStatus();
  absl::StatusOr<DiskContents> contents = disk_->Load();
  if (!contents.ok()) return contents.status();
  NoteDamage(std::move(contents->damage), contents->mended);
  const auto lost = std::move(contents->lost);
  auto unloaded = std::make_shared<UnloadedIndex>(*std::move(contents));
  {
    absl::MutexLock lock(&mu_);
    for (const auto& promise : lost) NoteLost(promise.id);
    catalog_.ReserveNumbersBelow(unloaded->next_number());
    // All of them: the book forgets what is over its limit and no restore point refers to.
    for (const auto& [name, model] : unloaded->models()) {
      if (model != nullptr) fingerprints_.Remember(model, name.first);
    }
    unloaded_ = std::move(unloaded);
    catalog_.BeginAdopting();
  }
  is_loading_.store(true);
  if (options_.load_in_background) return absl::OkStatus();
  absl::StatusOr<bool> more = true;
  while (more.ok() && *more) more = LoadNext();
  // A full disk takes no erase: what could not be erased is noted.
  if (more.ok()) FinishLoading().IgnoreError();
  return more.status();
}

void Store::NoteDamage(std::vector<std::string> damage, const std::vector<std::string>& mended) {
  counters_.Add(Counter::kRecoveryDamage, damage.size());
  for (const std::string& line : damage) {
    warnings_.Say("damage", line);
    const bool is_mended = std::find(mended.begin(), mended.end(), line) != mended.end();
    if (!is_mended && unmended_.empty()) unmended_ = line;
  }
  damage_ = std::move(damage);
}

void Store::NoteLost(const Digest& id) {
  counters_.Add(Counter::kRecoveryLostRestorePoints);
  ++removed_[static_cast<size_t>(Removal::kLost)];
  history_.Record(id, Removal::kLost, clock_->Now());
}

bool Store::NoteDropped(const UnloadedIndex& unloaded) {
  std::vector<uint64_t> manifests;
  std::string first;
  size_t lost = 0;
  for (const UnloadedIndex::Dropped& dropped : unloaded.DroppedPromises()) {
    manifests.push_back(dropped.manifest);
    absl::MutexLock lock(&mu_);
    // Of two that a crash left one is of no use.
    if (catalog_.Find(dropped.point) != nullptr) {
      if (damage_.empty()) erasures_.AddManifests({dropped.manifest});
      continue;
    }
    NoteLost(dropped.point);
    if (lost++ == 0) first = DigestHex(dropped.point).substr(0, 16);
  }
  disk_->Unpromise(manifests);
  if (lost == 0) return true;
  warnings_.Say("damage", absl::StrCat(lost,
                                       " restore points that were acknowledged do not match "
                                       "their objects and are lost, the first is ",
                                       first));
  return false;
}

absl::Duration Store::LoadStep() {
  if (!is_loading_.load()) return absl::InfiniteDuration();
  const absl::StatusOr<bool> more = LoadNext();
  if (!more.ok()) return kReadAgain;
  if (*more) return absl::ZeroDuration();
  FinishLoading().IgnoreError();  // what could not be erased is noted
  return absl::InfiniteDuration();
}

// False: none is left.
absl::StatusOr<bool> Store::LoadNext() {
  std::vector<uint64_t> numbers;
  {
    absl::MutexLock lock(&mu_);
    numbers = unloaded_->Next(kManifestsAtOnce);
  }
  if (numbers.empty()) return false;
  if (LoadManifests(numbers).ok()) return true;
  // One that cannot be read keeps no other back.
  absl::Status failed;
  bool any = false;
  for (const uint64_t number : numbers) {
    absl::Status status = LoadManifests({number});
    if (status.ok()) {
      any = true;
      continue;
    }
    counters_.Add(Counter::kTierErrors);
    failed = std::move(status);
    absl::MutexLock lock(&mu_);
    unloaded_->Postpone(number);
  }
  if (any || failed.ok()) return true;
  return failed;
}

void Store::LoadFor(const PromptChain& chain, const KvLayout& layout) {
  if (!is_loading_.load()) return;
  std::vector<uint64_t> numbers;
  {
    absl::MutexLock lock(&mu_);
    if (unloaded_ == nullptr) return;
    numbers = unloaded_->Touching(chain, layout.exactness);
  }
  if (LoadManifests(numbers).ok()) return;
  // What cannot be read now is not found now.
  for (const uint64_t number : numbers) {
    if (!LoadManifests({number}).ok()) counters_.Add(Counter::kTierErrors);
  }
}

absl::Status Store::LoadPoint(const Digest& id) {
  if (!is_loading_.load()) return absl::OkStatus();
  std::vector<uint64_t> numbers;
  {
    absl::MutexLock lock(&mu_);
    if (unloaded_ == nullptr) return absl::OkStatus();
    numbers = unloaded_->EndingAt(id);
  }
  absl::Status status = LoadManifests(numbers);
  if (!status.ok()) counters_.Add(Counter::kTierErrors);
  return status;
}

absl::Status Store::WaitUntilLoaded() {
  if (!is_loading_.load()) return absl::OkStatus();
  absl::MutexLock lock(&mu_);
  const auto is_loaded = [this]()
                             ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return unloaded_ == nullptr; };
  if (mu_.AwaitWithTimeout(absl::Condition(&is_loaded), load_patience_)) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat("the index is still loading, ", unloaded_->left(),
                                             " of ", unloaded_->manifests(),
                                             " restore points are left: try again later"));
}

// All manifests are settled: what none of them names is collected, and the store is as any other.
absl::Status Store::FinishLoading() {
  const uint64_t file_bytes = disk_->FileBytes();
  // Freed behind the lock: it may be large.
  std::shared_ptr<UnloadedIndex> unloaded;
  std::vector<Digest> points;
  {
    absl::MutexLock lock(&mu_);
    unloaded = unloaded_;
    points = implicit_points_;
  }
  counters_.Add(Counter::kRecoveryUnreadManifests, unloaded->given_up());
  const bool all_there = NoteDropped(*unloaded);
  const bool may_erase = damage_.empty() && all_there && unloaded->given_up() == 0;
  std::vector<uint64_t> collected;
  if (damage_.empty() && all_there) collected = unloaded->unreadable_objects();
  std::vector<StoredObject*> held;
  for (const auto& [number, object] : unloaded->objects()) {
    if (object.adopted != nullptr) {
      held.push_back(object.adopted);
    } else if (may_erase) {  // else what was not read may name it
      collected.push_back(number);
    }
  }
  for (size_t i = 0; i < held.size(); i += kObjectsAtOnce) {
    LetOthersIn();
    absl::MutexLock lock(&mu_);
    for (StoredObject* object : absl::MakeSpan(held).subspan(i, kObjectsAtOnce)) {
      catalog_.Release(object);
    }
  }
  const size_t known = points.size();
  for (const Digest& id : unloaded->Ids()) points.push_back(id);
  AdoptUses(points);
  std::vector<Digest> write_behind;
  {
    absl::MutexLock lock(&mu_);
    catalog_.EndAdopting(absl::MakeSpan(implicit_points_).subspan(known), clock_->Now());
    // Opened with a smaller limit than it was filled under.
    if (!catalog_.ReserveDisk(0, "")) counters_.Add(Counter::kPublishesRefusedFull);
    Garbage garbage = catalog_.TakeGarbage();
    garbage.disk_objects.insert(garbage.disk_objects.end(), collected.begin(), collected.end());
    // Of manifests that went while the note was written.
    const std::vector<uint64_t>& strays = unloaded->stray_uses();
    garbage.manifests.insert(garbage.manifests.end(), strays.begin(), strays.end());
    // Evicted now, collected, or erased before and not yet given back.
    garbage.disk_bytes = file_bytes - std::min(file_bytes, catalog_.disk_bytes());
    counters_.Add(Counter::kRecoveryCollectedObjects, garbage.disk_objects.size());
    Settle(garbage);
    unloaded_ = nullptr;
    write_behind = std::move(implicit_points_);
    is_loading_.store(false);
  }
  unloaded = nullptr;
  {
    absl::MutexLock lock(&mu_);
    fingerprints_.Trim();
  }
  for (const Digest& id : write_behind) ScheduleWriteBehind({id}, 0);
  return SettleDisk();
}

// A part under each hold of the lock: there may be millions.
void Store::AdoptUses(absl::Span<const Digest> points) {
  std::vector<Catalog::PastUse> uses;
  uses.reserve(points.size());
  for (size_t i = 0; i < points.size(); i += kObjectsAtOnce) {
    LetOthersIn();
    absl::MutexLock lock(&mu_);
    const std::vector<Catalog::PastUse> some = catalog_.UsesOf(points.subspan(i, kObjectsAtOnce));
    uses.insert(uses.end(), some.begin(), some.end());
  }
  std::sort(uses.rbegin(), uses.rend());
  for (size_t i = 0; i < uses.size(); i += kObjectsAtOnce) {
    LetOthersIn();
    absl::MutexLock lock(&mu_);
    catalog_.AdoptUses(absl::MakeSpan(uses).subspan(i, kObjectsAtOnce), clock_->Now());
  }
}

}  // namespace hearth
