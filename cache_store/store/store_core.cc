#include "cache_store/store/store_core.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "proto/restore_rule.h"

namespace hearth {
namespace {

constexpr size_t kShownTokens = 8;
// Of a long restore point's objects the history has the first and the last ones: one removal is not
// to make it forget all others.
constexpr size_t kRecordedEnds = 1024;
// Erased values stay in files until these are rewritten or found empty. At most 1/16 of the limit,
// or 1 GiB of a large one, is dead before the disk is asked to give it back.
constexpr uint64_t kReclaimDivisor = 16;
constexpr uint64_t kReclaimBytes = uint64_t{1} << 30;
// Dead bytes in files that also hold live ones may take an eighth of the limit on top of it:
// the less, the more live bytes are moved for each byte gained.
constexpr uint64_t kDeadDivisor = 8;
// In one call: of manifests, a few hundred KiB of the log.
constexpr size_t kErasedAtOnce = 4096;

}  // namespace

absl::Status CheckPrefix(absl::Span<const uint32_t> token_ids, absl::Span<const uint32_t> cuts) {
  if (token_ids.empty() || token_ids.size() > kMaxPromptTokens) {
    return absl::InvalidArgumentError(
        absl::StrCat("token_ids: ", token_ids.size(), " tokens, must be 1 to ", kMaxPromptTokens));
  }
  return ValidateCuts(cuts, static_cast<uint32_t>(token_ids.size()));
}

absl::Status NoSuchPoint() { return absl::NotFoundError("no such restore point"); }

StoreCore::StoreCore(const StoreOptions& store_options, const StoreSeams& seams,
                     std::string store_secret, std::shared_ptr<HostArena> arena,
                     std::unique_ptr<DiskTier> disk)
    : options(store_options),
      secret(std::move(store_secret)),
      clock(seams.clock != nullptr ? seams.clock : &system_clock),
      events(&meters.counters()),
      warnings(options.on_warning),
      tiers(options, seams, std::move(arena), std::move(disk)),
      staged(options.max_staged_bytes),
      objects(options.quotas),
      catalog(&objects, options.retention,
              [this](const RestorePointEntry& point, Removal why) { OnRemoved(point, why); }),
      evictor({options.host_bytes, tiers.disk != nullptr ? options.disk_bytes : 0}, &objects,
              &catalog) {}

void StoreCore::StartJobs(std::unique_ptr<Executor> jobs, std::unique_ptr<Executor> reclaimer) {
  assert(executor == nullptr && jobs != nullptr);
  own_executor_ = std::move(jobs);
  executor = own_executor_.get();
  reclaimer_ = std::move(reclaimer);
}

void StoreCore::EndJobs() {
  own_executor_.reset();
  reclaimer_.reset();
  executor = nullptr;
}

void StoreCore::Lock() {
  mu.Lock();
  steps_ = 0;
}

bool StoreCore::Yield(size_t steps) {
  steps_ += steps;
  if (steps_ < kStepsAHold) return false;
  ++yields;
  mu.Unlock();
  let_others_in();
  Lock();
  return true;
}

RestorePoint StoreCore::Describe(const RestorePointEntry& point) const {
  mu.AssertHeld();
  RestorePoint described;
  described.id = point.id;
  described.fingerprint = point.model->fingerprint.digest();
  described.tenant = point.tenant;
  described.tokens = point.tokens();
  described.bytes = point.bytes();
  described.tier = tiers.AreOnDevice(point.objects) ? Tier::kGpu : point.slowest_tier();
  described.durable = point.durable;
  described.pinned = point.pinned;
  described.age = std::max(absl::ZeroDuration(), clock->Now() - point.uses.last);
  described.expires_in = std::max(absl::ZeroDuration(), point.expiry.at - clock->Now());
  described.hits = point.uses.hits;
  std::vector<uint32_t>& last = described.last_token_ids;
  for (const SegmentNode* node = point.node; node != nullptr && last.size() < kShownTokens;
       node = node->parent) {
    const size_t count = std::min(node->token_ids.size(), kShownTokens - last.size());
    last.insert(last.begin(), node->token_ids.end() - static_cast<ptrdiff_t>(count),
                node->token_ids.end());
  }
  return described;
}

RestorePointEntry* StoreCore::FindOwned(const Digest& id, const std::string& tenant) {
  mu.AssertHeld();
  RestorePointEntry* point = catalog.Find(id);
  if (point == nullptr || point->tenant != tenant) return nullptr;
  return HasExpired(*point, clock->Now()) ? nullptr : point;
}

HostCopy StoreCore::IntactCopy(StoredObject* object) {
  HostCopy copy;
  {
    StoreLock lock(this);
    copy = object->host;
  }
  return object->IsIntact(copy) ? copy : nullptr;
}

void StoreCore::OnRemoved(const RestorePointEntry& point, Removal why) {
  mu.AssertHeld();
  const absl::Time now = clock->Now();
  history.Record(point.id, why, now);
  const size_t count = point.objects.size();
  for (size_t i = 0; i < count; ++i) {
    if (i == kRecordedEnds && count > 2 * kRecordedEnds) i = count - kRecordedEnds;
    StoredObject* object = point.objects[i];
    if (object->names == 1) history.Record(object->key, why, now);
  }
  meters.AddRemoved(why);
  StoreEvent::Kind kind = StoreEvent::Kind::kEvicted;
  if (IsEviction(why)) Count(Counter::kEvicted);
  if (why == Removal::kDropped) {
    Count(Counter::kDropped);
    kind = StoreEvent::Kind::kDropped;
  }
  if (why == Removal::kQuarantined) kind = StoreEvent::Kind::kQuarantined;
  events.Post(kind, Describe(point), why);
}

bool StoreCore::Expire(int most) {
  mu.AssertHeld();
  const absl::Time now = clock->Now();
  bool any = false;
  for (; most > 0; --most, any = true) {
    RestorePointEntry* point = catalog.expiry().FirstExpired(now);
    if (point == nullptr) break;
    catalog.Remove(point, Removal::kExpired);
  }
  return any;
}

bool StoreCore::CarryOut(const Garbage& garbage) {
  mu.AssertHeld();
  if (tiers.device != nullptr && !garbage.gone_objects.empty()) {
    tiers.device->Erase(garbage.gone_objects);
  }
  const bool erases = !garbage.manifests.empty() || !garbage.disk_objects.empty();
  if (!erases && garbage.disk_bytes == 0) return false;
  const absl::MutexLock lock(&noted_mu_);
  noted_.Add({garbage.manifests, garbage.disk_objects, garbage.disk_bytes});
  may_erase_ = true;
  return erases;
}

void StoreCore::EraseLater() {
  assert(executor != nullptr);
  if (!executor->TrySchedule(0, [this] { EraseFromDisk().IgnoreError(); })) {
    EraseFromDisk().IgnoreError();
  }
}

void Erasures::Add(const Erasures& later) {
  object_bytes += later.object_bytes;
  const auto add = [](const std::vector<uint64_t>& numbers, std::vector<uint64_t>* to) {
    to->insert(to->end(), numbers.begin(), numbers.end());
    if (to->size() > kMaxEntries) to->erase(to->begin(), to->end() - kMaxEntries);
  };
  add(later.manifests, &manifests);
  add(later.objects, &objects);
}

absl::Status StoreCore::EraseFromDisk(absl::Span<const uint64_t> orphans) {
  if (tiers.disk == nullptr || (orphans.empty() && !may_erase_)) return absl::OkStatus();
  absl::StatusOr<Erasures> taken = EraseManifests();
  absl::Status status = taken.status();
  if (status.ok()) status = EraseObjects(orphans);
  if (status.ok()) status = EraseObjects(taken->objects);
  if (status.ok()) {
    ReclaimLater(taken->object_bytes);
    return status;
  }
  Count(Counter::kTierErrors);
  if (taken.ok()) NoteAgain({{}, std::move(taken->objects), taken->object_bytes});
  return status;
}

absl::StatusOr<Erasures> StoreCore::EraseManifests() {
  const absl::MutexLock turn(&erase_mu_);
  Erasures taken;
  {
    const absl::MutexLock lock(&noted_mu_);
    taken = std::exchange(noted_, {});
  }
  const absl::Span<const uint64_t> manifests(taken.manifests);
  absl::Status status;
  for (size_t i = 0; i < manifests.size() && status.ok(); i += kErasedAtOnce) {
    status = tiers.disk->EraseManifests(manifests.subspan(i, kErasedAtOnce));
  }
  if (!status.ok()) {
    NoteAgain(std::move(taken));
    return status;
  }
  const absl::MutexLock lock(&noted_mu_);
  may_erase_ = !noted_.manifests.empty() || !noted_.objects.empty() || noted_.object_bytes > 0;
  return taken;
}

void StoreCore::NoteAgain(Erasures numbers) {
  const absl::MutexLock lock(&noted_mu_);
  numbers.Add(noted_);
  noted_ = std::move(numbers);
  may_erase_ = true;
}

absl::Status StoreCore::EraseObjects(absl::Span<const uint64_t> objects) {
  absl::Status status;
  for (size_t i = 0; i < objects.size() && status.ok(); i += kErasedAtOnce) {
    status = tiers.disk_slices->EraseObjects(objects.subspan(i, kErasedAtOnce));
  }
  return status;
}

absl::Status StoreCore::EraseForGood() {
  absl::Status status = EraseFromDisk();
  if (status.ok() && tiers.disk != nullptr) status = tiers.disk->SettleErases();
  return status;
}

void StoreCore::ReclaimLater(uint64_t erased_bytes) {
  if (erased_bytes == 0) return;
  {
    const absl::MutexLock lock(&noted_mu_);
    unreclaimed_bytes_ += erased_bytes;
    const uint64_t worthwhile = std::min(options.disk_bytes / kReclaimDivisor, kReclaimBytes);
    if (unreclaimed_bytes_ < worthwhile || reclaim_queued_) return;
    reclaim_queued_ = true;
  }
  Executor* const by = reclaimer_ != nullptr ? reclaimer_.get() : executor;
  if (by != nullptr && by->TrySchedule(0, [this] { Reclaim(); })) return;
  const absl::MutexLock lock(&noted_mu_);
  reclaim_queued_ = false;
}

void StoreCore::Reclaim() {
  {
    const absl::MutexLock lock(&noted_mu_);
    reclaim_queued_ = false;
    unreclaimed_bytes_ = 0;
  }
  const absl::Status status =
      tiers.disk->ReclaimSpace(options.disk_bytes + options.disk_bytes / kDeadDivisor);
  if (!status.ok() && !absl::IsCancelled(status)) Count(Counter::kTierErrors);
}

}  // namespace hearth
