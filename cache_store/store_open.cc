// Opening a store: the secret, the disk, and the index rebuilt from its manifests.
#include <sys/stat.h>

#include <algorithm>
#include <cassert>
#include <cerrno>
#include <cstring>
#include <map>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "cache_store/decoding_tier.h"
#include "cache_store/secret.h"
#include "cache_store/sessions.h"
#include "cache_store/verified_tier.h"
#include "proto/prefix_key.h"

namespace hearth {
namespace {

constexpr uint64_t kSmallestSlab = kSegmentDataAlignment;
constexpr uint64_t kLargestSlab = uint64_t{32} << 20;
constexpr uint64_t kMostAhead = uint64_t{256} << 20;

absl::Status MakeFolder(const std::string& path) {
  // Parents are the operator's: a typo should not make a tree.
  if (mkdir(path.c_str(), 0700) == 0 || errno == EEXIST) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat("data_dir ", path, ": ", strerror(errno)));
}

uint64_t MakeIncarnation() {
  const absl::StatusOr<std::string> random = MakeSecret();
  uint64_t incarnation = 0;
  if (random.ok()) std::memcpy(&incarnation, random->data(), sizeof(incarnation));
  return incarnation;
}

std::string SecretCheck(const std::string& secret) {
  return DigestHex(Sha256(absl::StrCat("hearth.secret_check.v1", secret)));
}

// Room for the tier and for what is on its way into it, some of it resident before it is asked for.
ArenaOptions ArenaOf(const StoreOptions& options) {
  ArenaOptions arena;
  arena.slab_bytes = std::clamp(options.host_bytes / 64, kSmallestSlab, kLargestSlab);
  arena.slab_bytes -= arena.slab_bytes % kSegmentDataAlignment;
  arena.ahead_bytes = std::clamp(options.host_bytes / 16, arena.slab_bytes, kMostAhead);
  arena.capacity_bytes =
      options.host_bytes + std::min(options.host_bytes, options.max_staged_bytes);
  arena.shared = options.shared_memory;
  arena.huge_pages = options.huge_pages;
  arena.warn = options.on_warning;
  return arena;
}

DiskTierOptions DiskOf(const StoreOptions& options, const StoreSeams& seams) {
  DiskTierOptions disk;
  disk.env = seams.disk_env;
  disk.background_bytes_per_s = options.background_disk_bytes_per_s;
  return disk;
}

void Append(const std::vector<uint64_t>& numbers, std::vector<uint64_t>* to) {
  to->insert(to->end(), numbers.begin(), numbers.end());
}

// Of all that anything on disk goes by.
uint64_t LastNumber(const DiskContents& contents) {
  uint64_t last = contents.last_number;
  const auto take = [&last](uint64_t number) { last = std::max(last, number); };
  for (const ObjectRecord& record : contents.objects) take(record.number);
  for (const ManifestRecord& record : contents.manifests) take(record.number);
  for (const auto& [number, used] : contents.uses) take(number);
  for (const std::vector<uint64_t>* numbers :
       {&contents.pinned, &contents.unreadable_manifests, &contents.unreadable_objects}) {
    std::for_each(numbers->begin(), numbers->end(), take);
  }
  return last;
}

Catalog::Limits LimitsOf(const StoreOptions& options, bool has_disk) {
  return Catalog::Limits{options.host_bytes, has_disk ? options.disk_bytes : 0, options.retention};
}

}  // namespace

absl::StatusOr<std::unique_ptr<TieredStore>> TieredStore::Open(const StoreOptions& options) {
  return OpenStore(options, StoreSeams{});
}

absl::StatusOr<std::unique_ptr<TieredStore>> OpenStore(const StoreOptions& options,
                                                       StoreSeams seams) {
  if (absl::Status status = options.Validate(); !status.ok()) return status;
  const bool wants_disk = options.has_disk();
  absl::StatusOr<std::string> secret;
  std::unique_ptr<DiskTier> disk;
  if (wants_disk) {
    if (absl::Status status = MakeFolder(options.data_dir); !status.ok()) return status;
  }
  if (!options.secret_file.empty()) {
    secret = ReadSecret(options.secret_file);
  } else {
    secret = wants_disk ? ReadOrMakeSecret(options.data_dir + "/secret") : MakeSecret();
  }
  if (!secret.ok()) return secret.status();
  if (wants_disk) {
    absl::StatusOr<std::unique_ptr<DiskTier>> opened =
        DiskTier::Open(options.data_dir, SecretCheck(*secret), DiskOf(options, seams));
    if (!opened.ok()) return opened.status();
    disk = *std::move(opened);
  }
  const bool is_tests = seams.executor != nullptr;
  std::shared_ptr<HostArena> arena;
  if (options.host_bytes > 0) {
    absl::StatusOr<std::shared_ptr<HostArena>> made = HostArena::Create(ArenaOf(options));
    if (!made.ok()) return made.status();
    arena = *std::move(made);
  }
  auto store = std::make_unique<Store>(options, std::move(seams), *std::move(secret),
                                       std::move(arena), std::move(disk));
  if (absl::Status status = store->Recover(); !status.ok()) return status;
  if (!is_tests) store->StartThreads();
  return store;
}

Store::Store(const StoreOptions& options, StoreSeams seams, std::string secret,
             std::shared_ptr<HostArena> arena, std::unique_ptr<DiskTier> disk)
    : options_(options),
      secret_(std::move(secret)),
      incarnation_(MakeIncarnation()),
      clock_(seams.clock != nullptr ? seams.clock : &system_clock_),
      events_(&counters_),
      arena_(std::move(arena)),
      host_(options.host_bytes),
      disk_(std::move(disk)),
      device_(options.device == nullptr
                  ? nullptr
                  : std::make_unique<DeviceTier>(options.device, options.on_device_lost,
                                                 options.shared_memory)),
      catalog_(LimitsOf(options, disk_ != nullptr), options.quotas,
               [this](const RestorePointEntry& point, Removal why) { OnRemoved(point, why); }),
      uses_noted_(clock_->Now()),
      executor_(std::move(seams.executor)) {
  SliceTier* host = &host_;
  if (seams.wrap_host) host = (wrapped_host_ = seams.wrap_host(host)).get();
  unverified_host_ = host;
  host_slices_ = std::make_unique<VerifiedTier>(host);
  if (disk_ != nullptr) {
    SliceTier* slices = disk_.get();
    if (seams.wrap_disk) slices = (wrapped_disk_ = seams.wrap_disk(slices)).get();
    decoded_disk_ = std::make_unique<DecodingTier>(slices);
    disk_slices_ = std::make_unique<VerifiedTier>(decoded_disk_.get());
  }
  if (executor_ == nullptr) {
    executor_ = std::make_unique<ThreadExecutor>(options.max_background_bytes);
    if (disk_ != nullptr) reclaimer_ = std::make_unique<ThreadExecutor>(0);
    if (device_ != nullptr) {
      device_copier_ = std::make_unique<ThreadExecutor>(options.max_background_bytes);
    }
  }
}

Store::~Store() {
  scrubber_.reset();
  upkeeper_.reset();
  if (disk_ != nullptr) disk_->StopReclaiming();  // the next start goes on with it
  device_copier_.reset();
  executor_.reset();  // runs what was accepted
  reclaimer_.reset();
  if (disk_ == nullptr) return;
  while (NoteUses()) {
  }
  uint64_t erased_bytes = 0;
  EraseFromDisk({}, &erased_bytes).IgnoreError();
  disk_->Sync().IgnoreError();
}

absl::Status Store::Recover() {
  if (disk_ == nullptr) return absl::OkStatus();
  absl::StatusOr<DiskContents> contents = disk_->Load();
  if (!contents.ok()) return contents.status();
  const uint64_t file_bytes = disk_->FileBytes();
  Garbage garbage;
  {
    absl::MutexLock lock(&mu_);
    // All of them: the book forgets what is over its limit and no restore point refers to.
    std::map<std::pair<std::string, Digest>, std::shared_ptr<const KnownFingerprint>> models;
    for (const FingerprintRecord& record : contents->fingerprints) {
      models[{record.tenant, record.fingerprint.digest()}] = MakeKnown(record.fingerprint);
    }
    catalog_.ReserveNumbersBelow(LastNumber(*contents) + 1);
    ObjectTable table;
    for (ObjectRecord& record : contents->objects) {
      const uint64_t number = record.number;
      table.emplace(number, RecoveredObject{std::move(record), nullptr});
    }
    const absl::flat_hash_set<uint64_t> pinned(contents->pinned.begin(), contents->pinned.end());
    absl::flat_hash_map<uint64_t, uint64_t> uses(contents->uses.begin(), contents->uses.end());
    // Newest first: of two manifests for one boundary the older was about to be erased.
    for (auto it = contents->manifests.rbegin(); it != contents->manifests.rend(); ++it) {
      // From here on it is the last use, as when it was written again.
      if (const auto used = uses.extract(it->number)) {
        it->created_unix_s = std::max(it->created_unix_s, used.mapped());
      }
      const auto model = models.find({it->tenant, it->manifest.fingerprint});
      if (model != models.end() &&
          AdoptManifest(*it, model->second, pinned.count(it->number) > 0, &table)) {
        continue;
      }
      counters_.Add(Counter::kRecoveryDroppedManifests);
      garbage.manifests.push_back(it->number);
    }
    catalog_.AdoptUses(clock_->Now());
    // Of manifests that went while the note was written.
    for (const auto& [number, used] : uses) garbage.manifests.push_back(number);
    for (auto& [name, model] : models) {
      if (model != nullptr) fingerprints_.Remember(std::move(model), name.first);
    }
    for (const auto& [number, recovered] : table) {
      if (recovered.adopted != nullptr) {
        catalog_.Release(recovered.adopted);
      } else {
        garbage.disk_objects.push_back(number);
      }
    }
    // Opened with a smaller limit than it was filled under.
    if (!catalog_.ReserveDisk(0, "")) counters_.Add(Counter::kPublishesRefusedFull);
    const Garbage evicted = catalog_.TakeGarbage();
    Append(evicted.manifests, &garbage.manifests);
    Append(evicted.disk_objects, &garbage.disk_objects);
    counters_.Add(Counter::kRecoveryDroppedManifests, contents->unreadable_manifests.size());
    Append(contents->unreadable_manifests, &garbage.manifests);
    Append(contents->unreadable_objects, &garbage.disk_objects);
    // Evicted now, collected below, or erased before and not yet given back.
    garbage.disk_bytes = file_bytes - std::min(file_bytes, catalog_.disk_bytes());
    counters_.Add(Counter::kRecoveryCollectedObjects, garbage.disk_objects.size());
    erasures_.AddManifests(garbage.manifests);
    erasures_.AddObjects(garbage.disk_objects, garbage.disk_bytes);
  }
  return SettleDisk();
}

// Rebuilds the path and the restore point of one manifest. False: it does not match its objects.
bool Store::AdoptManifest(const ManifestRecord& record,
                          std::shared_ptr<const KnownFingerprint> model, bool pinned,
                          ObjectTable* table) {
  const Manifest& manifest = record.manifest;
  if (model == nullptr || !ValidateManifest(manifest, model->layout).ok()) return false;
  const KvLayout& layout = model->layout;
  const PromptChain chain =
      MakeChain(layout, RootKey(manifest.fingerprint, record.tenant, secret_), manifest.token_ids,
                manifest.cuts, manifest.token_count, {&manifest.token_count, 1});
  const KeyedSegment* last = chain.EndingAt(manifest.token_count, layout.chunk_tokens);
  if (last == nullptr || catalog_.Find(last->key) != nullptr) return false;
  for (size_t i = 0; i < record.objects.size(); ++i) {
    const auto it = table->find(record.objects[i]);
    if (it == table->end()) return false;
    const ObjectRecord& object = it->second.record;
    const ManifestObject& named = manifest.objects[i];
    const KeyedSegment* segment =
        chain.EndingAt(named.id.begin + named.id.tokens, layout.chunk_tokens);
    if (segment == nullptr || object.key != segment->key || !(object.id == named.id) ||
        object.slice_digests != named.slice_digests ||
        object.layers != layout.LayersOf(named.id.group) ||
        object.slice_bytes != layout.SliceBytes(named.id.tokens)) {
      return false;
    }
    // Of two objects of one key the first adopted stays; a manifest naming the other goes.
    if (it->second.adopted == nullptr) {
      const SegmentNode* node = catalog_.index().Find(segment->key);
      if (node != nullptr && node->objects[static_cast<size_t>(named.id.group)] != nullptr) {
        return false;
      }
    }
  }
  SegmentNode* node = catalog_.index().EnsureRoot(chain.root);
  std::vector<StoredObject*> objects;
  size_t next = 0;
  for (const Segment& segment : SegmentsTo(manifest.token_count, layout.chunk_tokens)) {
    const KeyedSegment& keyed = *chain.EndingAt(segment.end(), layout.chunk_tokens);
    node = catalog_.index().Ensure(node, keyed, manifest.token_ids);
    assert(node != nullptr);
    for (; next < record.objects.size(); ++next) {
      if (manifest.objects[next].id.begin != segment.begin) break;
      RecoveredObject& recovered = table->at(record.objects[next]);
      if (recovered.adopted == nullptr) {
        const ObjectRecord& object = recovered.record;
        recovered.adopted =
            catalog_.NewObject(object.number, object.key, object.id, object.slice_digests,
                               object.layers, object.slice_bytes);
        catalog_.Link(recovered.adopted, node);
        catalog_.AdoptOnDisk(recovered.adopted, object.compressed_bytes);
      }
      objects.push_back(recovered.adopted);
    }
  }
  RestorePointEntry* point =
      catalog_.AddRestorePoint(record.number, record.tenant, model, node, std::move(objects),
                               manifest.cuts, absl::FromUnixSeconds(record.created_unix_s));
  catalog_.Renew(point, record.expires_unix_s == 0 ? absl::InfiniteFuture()
                                                   : absl::FromUnixSeconds(record.expires_unix_s));
  catalog_.SetDurable(point);
  catalog_.SetPinned(point, pinned);
  counters_.Add(Counter::kRecoveredRestorePoints);
  return true;
}

}  // namespace hearth
