#include "cache_store/store/calls/store.h"

#include <algorithm>
#include <cassert>
#include <cstring>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "cache_store/base/secret.h"
#include "cache_store/catalog/catalog.h"
#include "proto/prefix_key.h"

namespace hearth {
namespace {

// Interval of checks whether the disk lost records while in use, so that these are soon written
// again.
constexpr absl::Duration kDiskCheckInterval = absl::Seconds(1);
// Number of expired restore points removed during one hold of the lock, and how long expired points
// may stay if there are no lookups.
constexpr int kExpiredAtOnce = 64;
constexpr absl::Duration kMaxPause = absl::Seconds(1), kShortestPause = absl::Milliseconds(1);
// Interval of writing last uses to disk: a crash loses the uses of the last interval. A use takes
// about 40 bytes; a batch has 4,096.
constexpr absl::Duration kNoteUsesEvery = absl::Minutes(1);
constexpr size_t kUsesAtOnce = 4096;

uint64_t MakeIncarnation() {
  const absl::StatusOr<std::string> random = MakeSecret();
  uint64_t incarnation = 0;
  if (random.ok()) std::memcpy(&incarnation, random->data(), sizeof(incarnation));
  return incarnation;
}

constexpr size_t kShownPins = 8;
constexpr uint32_t kFirstTokens = 32;  // see RestorePoint::first_token_ids

}  // namespace

Store::Store(const StoreOptions& options, StoreSeams seams, std::string secret,
             std::shared_ptr<HostArena> arena, std::unique_ptr<DiskTier> disk)
    : incarnation_(MakeIncarnation()),
      core_(std::make_unique<StoreCore>(options, seams, std::move(secret), std::move(arena),
                                        std::move(disk))),
      uses_noted_(core_->clock->Now()),
      writer_(core_.get()),
      quarantiner_(core_.get()),
      promoter_(core_.get(), seams.executor != nullptr || options.device == nullptr
                                 ? nullptr
                                 : std::make_unique<ThreadExecutor>(options.max_background_bytes)),
      fetcher_(core_.get(), &quarantiner_, &promoter_, &writer_),
      claims_(core_.get(), &fetcher_),
      explainer_(core_.get(), &fetcher_),
      scrubber_(core_.get(), &quarantiner_, &writer_),
      volume_(core_.get()) {
  std::unique_ptr<Executor> jobs = std::move(seams.executor), reclaimer;
  if (jobs == nullptr) {
    jobs = std::make_unique<ThreadExecutor>(options.max_background_bytes);
    if (core_->tiers.disk != nullptr) reclaimer = std::make_unique<ThreadExecutor>(0);
  }
  core_->StartJobs(std::move(jobs), std::move(reclaimer));
}

Store::~Store() {
  threads_.clear();  // pending background work will be done after the next start
  DiskTier* const disk = core_->tiers.disk.get();
  if (disk != nullptr) disk->StopReclaiming();  // the next start continues reclaiming
  promoter_.StopCopying();
  core_->EndJobs();
  if (disk == nullptr) return;
  while (NoteUses()) {
  }
  core_->EraseFromDisk().IgnoreError();
  disk->Sync().IgnoreError();
}

void Store::StartThreads() {
  const auto start = [this](std::function<absl::Duration()> step) {
    threads_.push_back(std::make_unique<RepeatingThread>(std::move(step)));
  };
  start([this] { return UpkeepStep(); });
  if (core_->tiers.disk == nullptr) return;
  start([this] { return std::min(scrubber_.Step(), kDiskCheckInterval); });
}

absl::Duration Store::UpkeepStep() {
  absl::Time next;
  bool removed = false;
  {
    StoreLock lock(core_.get(), StoreLock::kErasesItself);
    removed = core_->Expire(kExpiredAtOnce);
    next = core_->catalog.expiry().next();
  }
  if (removed) core_->EraseFromDisk().IgnoreError();
  if (core_->tiers.disk != nullptr) volume_.Step();
  const absl::Time now = core_->clock->Now();
  if (now - uses_noted_ >= kNoteUsesEvery || now < uses_noted_) {
    if (NoteUses()) return kShortestPause;
    uses_noted_ = now;
  }
  return std::clamp(next - now, kShortestPause, kMaxPause);
}

bool Store::NoteUses() {
  if (core_->tiers.disk == nullptr) return false;
  std::vector<std::pair<uint64_t, absl::Time>> uses;
  {
    StoreLock lock(core_.get());
    uses = core_->catalog.TakeUses(kUsesAtOnce);
  }
  if (uses.empty()) return false;
  // If the last uses cannot be written, forget them: they are only hints for eviction.
  if (!core_->tiers.disk->NoteUses(uses).ok()) core_->Count(Counter::kTierErrors);
  return true;
}

absl::StatusOr<std::unique_ptr<PublishSession>> Store::Publish(PublishSpec spec) {
  core_->Count(Counter::kPublishes);
  auto session = std::make_unique<PublishSessionImpl>(core_.get(), &writer_, std::move(spec));
  if (absl::Status status = session->Begin(); !status.ok()) return status;
  return session;
}

void Store::Observe(const Fingerprint& fingerprint, const std::string& tenant) {
  core_->fingerprints.Learn(fingerprint, tenant);
}

absl::StatusOr<RestorePoint> Store::SetPinned(const Digest& id, const std::string& tenant,
                                              bool pinned) {
  RestorePoint described;
  uint64_t durable_number = 0;
  {
    StoreLock lock(core_.get());
    // Check before claiming, so that a caller does not wait for another tenant's restore point or
    // block its calls.
    if (core_->FindOwned(id, tenant) == nullptr) return NoSuchPoint();
    // Claim the restore point: pins of one point are then written in order, and not during the
    // write that makes the point durable.
    core_->Claim({id});
    const absl::Status status = PinLocked(id, tenant, pinned, &described, &durable_number);
    if (!status.ok() || durable_number == 0) core_->flight.Release({id});
    if (!status.ok()) return status;
  }
  if (durable_number == 0) return described;
  absl::Status status = core_->tiers.disk->SetPinned(durable_number, pinned);
  bool gone = false;
  {
    StoreLock lock(core_.get());
    RestorePointEntry* point = core_->catalog.Find(id);
    gone = point == nullptr || point->manifest != durable_number;
    if (!status.ok() && !gone) {
      core_->catalog.SetPinned(point, !pinned);
      core_->events.Post(pinned ? StoreEvent::Kind::kUnpinned : StoreEvent::Kind::kPinned,
                         core_->Describe(*point));
    }
  }
  // If the restore point was dropped since, the drop may have erased the pin before this call wrote
  // it.
  if (gone && pinned) status = core_->tiers.disk->SetPinned(durable_number, false);
  StoreLock lock(core_.get());
  core_->flight.Release({id});
  if (!status.ok()) return status;
  return described;
}

absl::Status Store::PinLocked(const Digest& id, const std::string& tenant, bool pinned,
                              RestorePoint* described, uint64_t* durable_number) {
  core_->mu.AssertHeld();
  RestorePointEntry* point = core_->FindOwned(id, tenant);
  if (point == nullptr) return NoSuchPoint();
  if (point->pinned != pinned) {
    if (pinned) {
      const absl::Status status =
          MayPin(core_->options.quotas, core_->catalog.accounts(),
                 PinRoomOf(core_->options.quotas, core_->capacity_bytes(),
                           core_->options.max_pinned_fraction),
                 core_->objects.sums().pinned_bytes(), tenant, core_->catalog.BytesToPin(*point));
      if (!status.ok()) return status;
    }
    core_->catalog.SetPinned(point, pinned);
    if (point->durable) *durable_number = point->manifest;
    core_->events.Post(pinned ? StoreEvent::Kind::kPinned : StoreEvent::Kind::kUnpinned,
                       core_->Describe(*point));
  }
  *described = core_->Describe(*point);
  return absl::OkStatus();
}

absl::StatusOr<DropResult> Store::Drop(const Digest& id, const std::string& tenant, bool force) {
  DropResult result;
  {
    StoreLock lock(core_.get(), StoreLock::kErasesItself);
    RestorePointEntry* point = core_->FindOwned(id, tenant);
    if (point == nullptr) return NoSuchPoint();
    if (point->pinned && !force) {
      result.kept_pinned = 1;
      return result;
    }
    quarantiner_.RemovePoint(point, Removal::kDropped, &result);
  }
  if (absl::Status status = core_->EraseForGood(); !status.ok()) return status;
  return result;
}

absl::StatusOr<DropResult> Store::DropAll(const std::string& tenant, bool force) {
  DropResult result;
  {
    StoreLock lock(core_.get(), StoreLock::kErasesItself);
    if (absl::Status status = CheckUnpinned(tenant, force); !status.ok()) return status;
    result = DropPointsOf(tenant, core_->objects.NextNumber(), force);
  }
  if (absl::Status status = core_->EraseForGood(); !status.ok()) return status;
  return result;
}

absl::StatusOr<DropResult> Store::RaiseDropNumber(const std::string& tenant, uint64_t number,
                                                  bool force) {
  // Check without notes_mu_ first: most calls change nothing.
  if (number <= core_->drop_numbers.Of(tenant)) return DropResult();
  absl::Status noted;
  uint64_t end = 0;
  {
    absl::MutexLock turn(&notes_mu_);
    std::string note;
    {
      StoreLock lock(core_.get());
      if (number <= core_->drop_numbers.Of(tenant)) return DropResult();
      if (absl::Status status = CheckUnpinned(tenant, force); !status.ok()) return status;
      core_->drop_numbers.Set(tenant, number, [this](const std::string& other) {
        core_->mu.AssertHeld();
        return core_->catalog.points_of_tenants().contains(other);
      });
      end = core_->objects.NextNumber();
      note = core_->drop_numbers.Text();
    }
    if (core_->tiers.disk != nullptr)
      noted = core_->tiers.disk->WriteNote(DropNumbers::kNote, note);
    if (!noted.ok()) core_->Count(Counter::kTierErrors);
  }
  DropResult result;
  {
    StoreLock lock(core_.get(), StoreLock::kErasesItself);
    result = DropPointsOf(tenant, end, true);
  }
  noted.Update(core_->EraseForGood());
  if (!noted.ok()) return noted;
  return result;
}

absl::Status Store::CheckUnpinned(const std::string& tenant, bool force) {
  core_->mu.AssertHeld();
  if (force) return absl::OkStatus();
  std::vector<std::string> ids;
  for (RestorePointEntry* point : core_->catalog.Pinned()) {
    if (point->tenant() == tenant) ids.push_back(DigestHex(point->id()).substr(0, 16));
  }
  if (ids.empty()) return absl::OkStatus();
  const size_t count = ids.size();
  ids.resize(std::min(count, kShownPins));
  return absl::FailedPreconditionError(
      absl::StrCat(count, " restore points are pinned in this store: ", absl::StrJoin(ids, ", "),
                   count > ids.size() ? ", ..." : "", "; unpin them first, or use force"));
}

DropResult Store::DropPointsOf(const std::string& tenant, uint64_t end, bool force) {
  core_->mu.AssertHeld();
  return quarantiner_.RemovePoints(tenant, Removal::kDropped, [&](const RestorePointEntry& point) {
    if (point.pinned && !force) return false;
    // Also drop restore points that lookups have created since from objects of the remaining
    // points.
    return point.number < end || point.expiry.inherited;
  });
}

std::vector<RestorePoint> Store::DescribeInSteps(std::vector<Catalog::PointName> names) {
  std::sort(names.begin(), names.end());
  std::vector<RestorePoint> described;
  StoreLock lock(core_.get());
  for (const Catalog::PointName& name : names) {
    RestorePointEntry* point = core_->catalog.Find(name);
    if (point == nullptr) continue;
    described.push_back(core_->Describe(*point));
    core_->Yield(1 + point->objects.size());
  }
  return described;
}

std::vector<RestorePoint> Store::List(const std::string& tenant) {
  std::vector<Catalog::PointName> names;
  {
    StoreLock lock(core_.get());
    core_->Expire();
    names = core_->catalog.NamesOf(tenant);
  }
  std::vector<RestorePoint> listed = DescribeInSteps(std::move(names));
  std::reverse(listed.begin(), listed.end());  // now the most recently used first
  return listed;
}

std::vector<RestorePoint> Store::Hottest(size_t limit) {
  std::vector<RestorePoint> described;
  StoreLock lock(core_.get());
  for (RestorePointEntry* point : core_->catalog.MostHit(limit)) {
    described.push_back(core_->Describe(*point));
    std::vector<uint32_t>& first = described.back().first_token_ids;
    for (const SegmentNode* node = point->node; node->parent != nullptr; node = node->parent) {
      if (node->begin() >= kFirstTokens) continue;
      first.insert(first.begin(), node->token_ids().begin(), node->token_ids().end());
    }
  }
  return described;
}

TenantFigures Store::StatsOf(const std::string& tenant) {
  StoreLock lock(core_.get());
  return {incarnation_, core_->catalog.accounts().UsageOf(tenant),
          core_->catalog.accounts().QuotaOf(tenant)};
}

StoreStats Store::Stats() {
  StoreStats stats;
  stats.incarnation = incarnation_;
  std::map<std::string, uint64_t>& counters = stats.counters;
  counters = core_->meters.counters.Snapshot();
  // A tier in front of this store is known only from the hits that it reported.
  const bool has_shared = core_->meters.hit_tokens[StoreMeters::Of(Tier::kShared)] > 0;
  stats.latencies = core_->meters.Latencies(core_->tiers.disk != nullptr,
                                            core_->tiers.device != nullptr, has_shared);
  stats.staged_bytes = core_->staged.bytes();
  stats.most_staged_bytes = core_->staged.most_bytes();
  if (core_->tiers.arena != nullptr) {
    const HostArena::Usage memory = core_->tiers.arena->usage();
    stats.resident_bytes = memory.resident_bytes;
    counters[CounterName(Counter::kHostGrowthsFailed)] = memory.failed_growths;
  }
  StoreLock lock(core_.get());
  counters[CounterName(Counter::kDemoted)] = core_->objects.demoted();
  const DeviceTier::Usage device =
      core_->tiers.device == nullptr ? DeviceTier::Usage() : core_->tiers.device->usage();
  counters[CounterName(Counter::kGpuEvictedObjects)] = device.evicted_objects;
  counters[CounterName(Counter::kLastFullScrubUnixS)] =
      static_cast<uint64_t>(scrubber_.finished_unix_s());
  const auto add = [&](TierUsage usage, Counter read, const TierFlow& flow) {
    usage.hit_tokens = core_->meters.hit_tokens[StoreMeters::Of(usage.tier)];
    usage.read_bytes = core_->meters.counters.Get(read);
    usage.written_bytes = flow.written_bytes;
    usage.unread_bytes = flow.unread_bytes;
    stats.tiers.push_back(usage);
  };
  assert(core_->objects.sums().host_bytes() <= core_->options.host_bytes);
  const StoreTiers& tiers = core_->tiers;
  const bool has_disk = tiers.disk != nullptr;
  const uint64_t evicted = core_->catalog.evicted();
  const StorageSums& sums = core_->objects.sums();
  add({Tier::kHost, sums.host_used_bytes(), core_->options.host_bytes, sums.host_objects(),
       has_disk ? core_->objects.demoted() : evicted},
      Counter::kBytesReadHost, core_->objects.flow(Tier::kHost));
  if (has_disk) {
    add({Tier::kDisk, sums.disk_bytes(), core_->disk_limit_bytes, sums.disk_objects(), evicted},
        Counter::kBytesReadDisk, core_->objects.flow(Tier::kDisk));
  }
  if (tiers.device != nullptr) {
    add({Tier::kGpu, device.bytes, device.capacity_bytes, device.objects.size()},
        Counter::kBytesReadGpu, {device.written_bytes, device.unread_bytes});
  }
  if (has_shared) add({Tier::kShared}, Counter::kSharedReadBytes, {});
  stats.restore_points = core_->catalog.size();
  stats.objects = core_->objects.all().size();
  stats.pinned_bytes = core_->objects.sums().pinned_bytes();
  stats.point_bytes = core_->catalog.cost_bytes();
  stats.point_limit_bytes = core_->evictor.limits().point_bytes;
  for (size_t i = 0; i < kRemovals; ++i) {
    stats.removed[RemovalName(static_cast<Removal>(i))] = core_->meters.removed[i];
  }
  return stats;
}

WatchStart Store::Subscribe(const std::string& tenant, const WatchFrom& from,
                            EventCallback callback) {
  const bool known = from.incarnation == incarnation_;
  std::vector<Catalog::PointName> names;
  WatchStart start;
  {
    // Events are posted under this lock, so the subscriber gets an event for each change after
    // `start.sequence`.
    StoreLock lock(core_.get());
    start = core_->events.Subscribe(
        tenant, known ? std::optional<uint64_t>(from.sequence) : std::nullopt, std::move(callback));
    start.incarnation = incarnation_;
    if (start.resumed || !from.snapshot) return start;
    names = core_->catalog.NamesOf(tenant);
  }
  start.snapshot = DescribeInSteps(std::move(names));
  return start;
}

std::optional<ChunkRun> Store::ChunksOf(const Digest& id, const std::string& tenant, uint32_t first,
                                        uint32_t most_tokens) {
  StoreLock lock(core_.get());
  RestorePointEntry* point = core_->FindOwned(id, tenant);
  if (point == nullptr) return std::nullopt;
  const uint32_t chunk_tokens = point->model->layout.chunk_tokens;
  const uint32_t chunks = point->tokens() / chunk_tokens;
  if (point->tokens() % chunk_tokens != 0 || first >= chunks) return std::nullopt;
  ChunkRun run;
  run.chunk_tokens = chunk_tokens;
  run.first_chunk = first;
  const uint32_t count = std::min(std::max(1u, most_tokens / chunk_tokens), chunks - first);
  const SegmentNode* node = point->node;
  for (uint32_t skipped = chunks - first - count; skipped > 0; --skipped) node = node->parent;
  assert(count > 0 && first + count <= chunks);
  run.ids.resize(count);
  run.token_ids.resize(size_t{count} * chunk_tokens);
  for (uint32_t i = count; i-- > 0; node = node->parent) {
    assert(node->parent != nullptr && node->token_ids().size() == chunk_tokens);
    run.ids[i] = ChunkId(node->key);
    absl::c_copy(node->token_ids(),
                 run.token_ids.begin() + static_cast<ptrdiff_t>(size_t{i} * chunk_tokens));
  }
  if (first > 0) run.parent_id = ChunkId(node->key);
  return run;
}

absl::StatusOr<BackupReport> Store::BackUp(const std::string& to) {
  if (core_->tiers.disk == nullptr) {
    return absl::FailedPreconditionError("no disk tier: nothing to back up");
  }
  if (!core_->damage.empty()) {
    return absl::DataLossError(absl::StrCat(
        "no backup was made, because the last start found damage: ", core_->damage[0],
        "; older backups may have the lost entries; to back up the rest, start the store again"));
  }
  // Ignore errors: a full disk refuses erases, but can still be backed up.
  core_->EraseFromDisk().IgnoreError();
  return core_->tiers.disk->BackUp(to);
}

absl::Status Store::Flush(absl::Time deadline) {
  if (!core_->executor->WaitIdle(deadline)) {
    return absl::DeadlineExceededError("write-behind did not finish in time");
  }
  return core_->tiers.disk == nullptr ? absl::OkStatus() : core_->tiers.disk->Sync();
}

std::optional<SharedMemory> Store::shared_memory() const {
  if (!core_->options.shared_memory || core_->tiers.arena == nullptr) return std::nullopt;
  return SharedMemory{core_->tiers.arena->segment_fd(), core_->tiers.arena->layout()};
}

std::shared_ptr<std::byte> Store::AllocateSlice(size_t bytes) {
  return core_->tiers.AllocateSlice(bytes);
}

void Store::WaitForMemory() {
  if (core_->tiers.arena != nullptr) core_->tiers.arena->WaitUntilAhead();
}

std::optional<SharedMemory> Store::shared_device() const {
  if (core_->tiers.device == nullptr || core_->tiers.device->segment() == nullptr) {
    return std::nullopt;
  }
  return SharedMemory{core_->tiers.device->segment()->fd(),
                      core_->tiers.device->segment()->layout(), core_->tiers.device->memory_fd()};
}

}  // namespace hearth
