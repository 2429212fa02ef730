#include "cache_store/store/store_core.h"

#include <algorithm>
#include <cassert>
#include <cstring>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "cache_store/base/disk_sizes.h"
#include "proto/restore_rule.h"

namespace hearth {
namespace {

constexpr size_t kShownTokens = 8;
// If a removed restore point has many objects, only this many of its first and last objects are
// recorded in the history, so that one removal does not displace all other records.
constexpr size_t kRecordedEnds = 1024;
// Erased slices stay in files until the files are rewritten, or found to be without live slices. A
// reclaim starts when 1/16 of the limit is erased (or 1 GiB, for a large limit). On a small volume
// it starts at 1/32, and at 1/16 a publish waits for it.
constexpr uint64_t kReclaimDivisor = 16;
constexpr uint64_t kReclaimBytes = uint64_t{1} << 30;
// Erased bytes in files with live bytes may take 1/8 of the limit in addition; a smaller fraction
// would move more live bytes for each byte gained. On a small volume, 1/16.
constexpr uint64_t kDeadDivisor = 8;
// After a write that found the disk full, writes of any size are tried again when 1/kFreeDivisor of
// the limit is free.
constexpr uint64_t kFreeDivisor = 20;
// Number of erases in one call of the disk tier; for manifests, a few hundred KiB of the log.
constexpr size_t kErasedAtOnce = 4096;
// Limit of recorded erases of each kind (8 MB). Beyond it, the oldest ones are left to the next
// start.
constexpr size_t kMaxNoted = size_t{1} << 20;

template <typename Erase>
absl::Status InSteps(absl::Span<const uint64_t> numbers, Erase erase) {
  absl::Status status;
  for (size_t i = 0; i < numbers.size() && status.ok(); i += kErasedAtOnce) {
    status = erase(numbers.subspan(i, kErasedAtOnce));
  }
  return status;
}

// Appends the erases from disk in `later` to `noted`.
void Note(const Garbage& later, Garbage* noted) {
  const auto add = [](const std::vector<uint64_t>& numbers, std::vector<uint64_t>* to) {
    to->insert(to->end(), numbers.begin(), numbers.end());
    if (to->size() > kMaxNoted) to->erase(to->begin(), to->end() - kMaxNoted);
  };
  add(later.manifests, &noted->manifests);
  add(later.disk_objects, &noted->disk_objects);
  noted->disk_bytes += later.disk_bytes;
}

constexpr char kLookupLatency[] = "lookup";
constexpr char kSliceReadLatency[] = "slice_read";
constexpr char kFetchLatency[] = "fetch";
constexpr char kCommitLatency[] = "publish_commit";

}  // namespace

absl::Status CheckPrefix(absl::Span<const uint32_t> token_ids, absl::Span<const uint32_t> cuts) {
  if (token_ids.empty() || token_ids.size() > kMaxPromptTokens) {
    return absl::InvalidArgumentError(absl::StrCat("token_ids: must have 1 to ", kMaxPromptTokens,
                                                   " tokens; got ", token_ids.size()));
  }
  return ValidateCuts(cuts, static_cast<uint32_t>(token_ids.size()));
}

absl::Status NoSuchPoint() { return absl::NotFoundError("no such restore point"); }

StoreTiers::StoreTiers(const StoreOptions& options, const StoreSeams& seams,
                       std::shared_ptr<HostArena> host_arena, std::unique_ptr<DiskTier> disk_tier)
    : is_shared(options.shared_memory),
      min_table_bytes(seams.min_table_bytes),
      arena(std::move(host_arena)),
      disk(std::move(disk_tier)),
      device(options.device == nullptr
                 ? nullptr
                 : std::make_unique<DeviceTier>(options.device, options.on_device_lost,
                                                options.shared_memory)) {
  if (disk == nullptr) return;
  disk_slices = disk.get();
  if (seams.wrap_disk) disk_slices = (wrapped_disk = seams.wrap_disk(disk_slices)).get();
}

std::shared_ptr<std::byte> StoreTiers::AllocateSlice(size_t bytes) const {
  std::shared_ptr<std::byte> memory;
  if (arena != nullptr) memory = arena->Allocate(bytes);
  return memory != nullptr ? memory : hearth::AllocateSlice(bytes);
}

SliceView StoreTiers::InArena(const SliceView& slice) const {
  if (!is_shared || arena == nullptr) return slice;
  std::shared_ptr<std::byte> memory = arena->Allocate(slice.bytes.size());
  if (memory == nullptr) return slice;
  std::memcpy(memory.get(), slice.bytes.data(), slice.bytes.size());
  const absl::Span<const std::byte> bytes(memory.get(), slice.bytes.size());
  return SliceView{std::move(memory), bytes};
}

absl::StatusOr<SliceView> StoreTiers::ReadFromDisk(const StoredObject& object, size_t slice) const {
  const absl::StatusOr<std::optional<SliceView>> read = disk_slices->Read(object.Slice(slice));
  if (!read.ok()) return OfDisk(read.status());
  if (read->has_value() && object.IsIntact(slice, **read)) return **read;
  const std::string what = absl::StrCat("disk tier: a slice of layer ", object.layers()[slice]);
  if (!read->has_value()) return absl::DataLossError(absl::StrCat(what, " is missing"));
  const absl::Span<const std::byte> bytes = (*read)->bytes;
  return absl::DataLossError(
      absl::StrCat(what, " differs from what was written: ", bytes.size(), " bytes with digest ",
                   absl::Hex(SliceDigest(bytes.data(), bytes.size()), absl::kZeroPad16)));
}

bool StoreTiers::AreOnDevice(absl::Span<StoredObject* const> objects) const {
  return device != nullptr && !objects.empty() &&
         std::all_of(objects.begin(), objects.end(),
                     [this](StoredObject* object) { return device->Has(object->number); });
}

std::vector<LatencySeries> StoreMeters::Latencies(bool has_disk, bool has_device,
                                                  bool has_shared) const {
  std::vector<LatencySeries> series = {
      {kLookupLatency, "Time to find the longest restore point of a prompt, without reading it.",
       "", "", lookups.Read()}};
  for (const Tier tier : {Tier::kHost, Tier::kDisk}) {
    if (tier == Tier::kDisk && !has_disk) continue;
    series.push_back(
        {kSliceReadLatency,
         "Time to read one slice from a tier, including verification unless the caller verifies.",
         "tier", TierName(tier), slice_reads[Of(tier)].Read()});
  }
  for (const Tier tier : {Tier::kGpu, Tier::kHost, Tier::kDisk, Tier::kShared}) {
    if ((tier == Tier::kDisk && !has_disk) || (tier == Tier::kGpu && !has_device)) continue;
    if (tier == Tier::kShared && !has_shared) continue;
    series.push_back({kFetchLatency,
                      "Time from a lookup's end until the last slice of its restore point was "
                      "sent, by slowest tier.",
                      "tier", TierName(tier), fetches[Of(tier)].Read()});
  }
  for (const Durability level : {Durability::kMemory, Durability::kDisk, Durability::kSync}) {
    series.push_back({kCommitLatency, "Time from a publish's last byte to its acknowledgement.",
                      "durability", DurabilityName(level), commits[Of(level)].Read()});
  }
  return series;
}

uint64_t DropNumbers::Of(const std::string& tenant) const {
  absl::ReaderMutexLock lock(&mu_);
  const auto it = numbers_.find(tenant);
  return it == numbers_.end() ? 0 : it->second;
}

void DropNumbers::Set(const std::string& tenant, uint64_t number,
                      absl::FunctionRef<bool(const std::string& tenant)> has_any) {
  absl::MutexLock lock(&mu_);
  if (numbers_.size() >= kMaxTenants) {
    absl::erase_if(numbers_, [&](const auto& entry) { return !has_any(entry.first); });
  }
  uint64_t& own = numbers_[tenant];
  assert(own <= number);  // lowering the number would make dropped entries visible
  own = number;
}

std::string DropNumbers::Text() const {
  absl::ReaderMutexLock lock(&mu_);
  std::string text;
  for (const auto& [tenant, number] : numbers_) {
    absl::StrAppend(&text, number, " ", absl::CEscape(tenant), "\n");
  }
  return text;
}

void DropNumbers::Parse(absl::string_view text) {
  absl::MutexLock lock(&mu_);
  for (const absl::string_view line : absl::StrSplit(text, '\n')) {
    const std::pair<absl::string_view, absl::string_view> words =
        absl::StrSplit(line, absl::MaxSplits(' ', 1));
    uint64_t number = 0;
    std::string tenant;
    if (absl::SimpleAtoi(words.first, &number) && absl::CUnescape(words.second, &tenant)) {
      numbers_[tenant] = number;
    }
  }
}

StoreCore::StoreCore(const StoreOptions& store_options, const StoreSeams& seams,
                     std::string store_secret, std::shared_ptr<HostArena> arena,
                     std::unique_ptr<DiskTier> disk)
    : options(store_options),
      secret(std::move(store_secret)),
      clock(seams.clock != nullptr ? seams.clock : &system_clock),
      events(&meters.counters),
      warnings(options.on_warning),
      tiers(options, seams, std::move(arena), std::move(disk)),
      staged(options.max_staged_bytes),
      disk_limit_bytes(options.disk_bytes),
      objects(options.quotas),
      catalog(&objects, options.retention,
              [this](const RestorePointEntry& point, Removal why) { OnRemoved(point, why); }),
      evictor({options.host_bytes, tiers.disk != nullptr ? options.disk_bytes : 0,
               options.most_point_bytes()},
              &objects, &catalog) {}

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

void StoreCore::SetDiskLimit(uint64_t bytes) {
  mu.AssertHeld();
  assert(bytes <= options.disk_bytes);
  disk_limit_bytes.store(bytes);
  evictor.SetDiskLimit(bytes);
}

void StoreCore::Lock() {
  waiting_.fetch_add(1);
  mu.Lock();
  waiting_.fetch_sub(1);
  ++holds_;
  steps_ = 0;
}

// Counts this thread as waiting, so that another thread in this function yields to it. If two
// threads wait here, the first one's condition becomes true when the second one has taken the lock.
void StoreCore::AwaitOthers() {
  waiting_.fetch_add(1);
  const auto had_it = [this, holds = holds_]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu) {
    return holds_ != holds || (waiting_.load() == 1 && !flight.HasReadyClaimant());
  };
  mu.Await(absl::Condition(&had_it));
  waiting_.fetch_sub(1);
  ++holds_;
  steps_ = 0;
}

void StoreCore::Claim(const std::vector<Digest>& keys) {
  flight.Claim(&mu, keys);
  ++holds_;  // counts as a hold: other threads may have had the lock
}

void StoreCore::YieldLock() {
  Lock();
  AwaitOthers();
  mu.Unlock();
}

bool StoreCore::Yield(size_t steps) {
  steps_ += steps;
  if (steps_ < kStepsPerHold) return false;
  ++yields;
  if (between_holds != nullptr) {
    mu.Unlock();
    between_holds();
    Lock();
  }
  AwaitOthers();
  return true;
}

RestorePoint StoreCore::Describe(const RestorePointEntry& point) const {
  mu.AssertHeld();
  RestorePoint described;
  described.id = point.id();
  described.fingerprint = point.model->fingerprint.digest();
  described.tenant = point.tenant();
  described.tokens = point.tokens();
  described.bytes = point.bytes();
  described.tier = tiers.AreOnDevice(point.objects) ? Tier::kGpu : point.slowest_tier();
  described.durable = point.durable;
  described.pinned = point.pinned;
  described.age = std::max(absl::ZeroDuration(), clock->Now() - point.uses.last);
  described.expires_in = std::max(absl::ZeroDuration(), point.expiry.at - clock->Now());
  described.hits = point.uses.hits;
  described.priority = point.hint.priority;
  described.kept = std::max(absl::ZeroDuration(), point.hint.kept_until - clock->Now());
  std::vector<uint32_t>& last = described.last_token_ids;
  for (const SegmentNode* node = point.node; node != nullptr && last.size() < kShownTokens;
       node = node->parent) {
    const absl::Span<const uint32_t> ids = node->token_ids();
    const size_t count = std::min(ids.size(), kShownTokens - last.size());
    last.insert(last.begin(), ids.end() - static_cast<ptrdiff_t>(count), ids.end());
  }
  return described;
}

RestorePointEntry* StoreCore::FindOwned(const Digest& id, const std::string& tenant) {
  mu.AssertHeld();
  RestorePointEntry* point = catalog.Find(id);
  if (point == nullptr || point->tenant() != tenant) return nullptr;
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
  history.Record(point.id(), why, now);
  const size_t count = point.objects.size();
  for (size_t i = 0; i < count; ++i) {
    if (i == kRecordedEnds && count > 2 * kRecordedEnds) i = count - kRecordedEnds;
    StoredObject* object = point.objects[i];
    if (object->names == 1) history.Record(object->key(), why, now);
  }
  meters.CountRemoved(why);
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
  catalog.EndKeeps(now);
  bool any = false;
  for (; most > 0; --most, any = true) {
    RestorePointEntry* point = catalog.expiry().FirstExpired(now);
    if (point == nullptr) break;
    assert(HasExpired(*point, now));
    catalog.Remove(point, Removal::kExpired);
  }
  return any;
}

bool StoreCore::ProcessGarbage(const Garbage& garbage) {
  mu.AssertHeld();
  if (tiers.device != nullptr && !garbage.gone_objects.empty()) {
    tiers.device->Erase(garbage.gone_objects);
  }
  const bool erases = !garbage.manifests.empty() || !garbage.disk_objects.empty();
  if (!erases && garbage.disk_bytes == 0) return false;
  const absl::MutexLock lock(&pending_mu_);
  Note(garbage, &pending_erases_);
  may_erase_ = true;
  return erases;
}

void StoreCore::EraseLater() {
  assert(executor != nullptr);
  if (!executor->TrySchedule(0, [this] { EraseFromDisk().IgnoreError(); })) {
    EraseFromDisk().IgnoreError();
  }
}

absl::Status StoreCore::EraseFromDisk(absl::Span<const uint64_t> orphans) {
  if (tiers.disk == nullptr || (orphans.empty() && !may_erase_)) return absl::OkStatus();
  Garbage taken;
  absl::Status status;
  {
    const absl::MutexLock turn(&erase_mu_);
    {
      const absl::MutexLock lock(&pending_mu_);
      taken = std::exchange(pending_erases_, {});
    }
    status =
        InSteps(taken.manifests, [this](auto some) { return tiers.disk->EraseManifests(some); });
    if (status.ok()) taken.manifests.clear();
    RequeueErases(status.ok() ? Garbage() : std::exchange(taken, {}));
  }
  const auto erase = [this](auto some) { return tiers.disk_slices->EraseObjects(some); };
  if (status.ok()) status = InSteps(orphans, erase);
  if (status.ok()) status = InSteps(taken.disk_objects, erase);
  if (status.ok()) {
    ReclaimLater(taken.disk_bytes);
  } else {
    Count(Counter::kTierErrors);
    RequeueErases(std::move(taken));
  }
  return status;
}

void StoreCore::RequeueErases(Garbage taken) {
  const absl::MutexLock lock(&pending_mu_);
  Note(pending_erases_, &taken);
  pending_erases_ = std::move(taken);
  may_erase_ = !pending_erases_.manifests.empty() || !pending_erases_.disk_objects.empty() ||
               pending_erases_.disk_bytes > 0;
}

absl::Status StoreCore::EraseForGood() {
  absl::Status status = EraseFromDisk();
  if (status.ok() && tiers.disk != nullptr) status = tiers.disk->SettleErases();
  return status;
}

void StoreCore::ReclaimLater(uint64_t erased_bytes) {
  if (erased_bytes == 0) return;
  {
    const absl::MutexLock lock(&pending_mu_);
    unreclaimed_bytes_ += erased_bytes;
    const uint64_t divisor = has_small_volume() ? 2 * kReclaimDivisor : kReclaimDivisor;
    if (unreclaimed_bytes_ < std::min(disk_limit_bytes / divisor, kReclaimBytes)) return;
  }
  QueueReclaim();
}

void StoreCore::ReclaimSoon() {
  {
    const absl::MutexLock lock(&pending_mu_);
    reclaims_all_ = true;
  }
  QueueReclaim();
}

void StoreCore::ReclaimBeforeWrite() {
  if (!has_small_volume()) return;
  {
    const absl::MutexLock lock(&pending_mu_);
    if (unreclaimed_bytes_ < disk_limit_bytes / kReclaimDivisor) return;
  }
  Reclaim();
}

void StoreCore::QueueReclaim() {
  {
    const absl::MutexLock lock(&pending_mu_);
    if (std::exchange(reclaim_queued_, true)) return;
  }
  Executor* const by = reclaimer_ != nullptr ? reclaimer_.get() : executor;
  if (by != nullptr && by->TrySchedule(0, [this] { Reclaim(); })) return;
  const absl::MutexLock lock(&pending_mu_);
  reclaim_queued_ = false;
}

void StoreCore::Reclaim() {
  const absl::MutexLock turn(&reclaim_mu_);
  const uint64_t number = reclaims_begun.fetch_add(1) + 1;
  bool all = false;
  {
    const absl::MutexLock lock(&pending_mu_);
    reclaim_queued_ = false;
    all = std::exchange(reclaims_all_, false);
    unreclaimed_bytes_ = 0;
  }
  const uint64_t limit_bytes = disk_limit_bytes;
  uint64_t most_bytes =
      limit_bytes + limit_bytes / (has_small_volume() ? 2 * kDeadDivisor : kDeadDivisor);
  if (all) {
    Lock();  // Lock() counts this thread as waiting, so that Yield() lets it take the lock
    most_bytes = std::min(most_bytes, objects.sums().disk_bytes());
    mu.Unlock();
  }
  assert(number > last_reclaim.load());  // reclaim_mu_ keeps the order of the numbers
  const absl::Status status = tiers.disk->ReclaimSpace(most_bytes);
  if (status.ok()) reclaims.fetch_add(1);
  // kResourceExhausted: there was no space for a flush, but tables without live slices were
  // deleted.
  if (status.ok() || absl::IsResourceExhausted(status)) last_reclaim.store(number);
  if (!status.ok() && !absl::IsCancelled(status)) Count(Counter::kTierErrors);
}

bool StoreCore::MayEvictForDisk(uint64_t bytes) {
  if (!lacks_room.load()) return true;
  assert(tiers.disk != nullptr);
  const uint64_t free_bytes = tiers.disk->FreeBytes();
  // On a small volume, about a tenth is free in normal operation, so a twentieth of the limit
  // suffices.
  const uint64_t needed = std::min(bytes, disk_limit_bytes / kFreeDivisor);
  if (free_bytes < kReserveBytes || free_bytes - kReserveBytes < needed) return false;
  lacks_room.store(false);
  return true;
}

}  // namespace hearth
