// OpenStore: reads the secret, opens the disk and the other tiers, and rebuilds the index from
// disk.
//
// Every manifest is read, verified and compared with the records of its objects. Manifests that do
// not match are dropped, counted and reported. Objects that no manifest uses are erased. If the
// disk cannot read a manifest, the manifest and all objects that it might use are left alone until
// the next start. If the disk fails completely, its error is returned and nothing is erased;
// another start may succeed.
#include <sys/stat.h>

#include <algorithm>
#include <cassert>
#include <cerrno>
#include <cstring>
#include <future>
#include <limits>
#include <map>
#include <optional>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "cache_store/base/prompt_chain.h"
#include "cache_store/base/secret.h"
#include "cache_store/disk/damage_confirmation.h"
#include "cache_store/store/calls/store.h"
#include "proto/prefix_key.h"
#include "proto/restore_rule.h"

namespace hearth {
namespace {

constexpr uint64_t kSmallestSlab = kSegmentDataAlignment;
constexpr uint64_t kLargestSlab = uint64_t{32} << 20;
constexpr uint64_t kMaxAhead = uint64_t{256} << 20;

absl::Status MakeFolder(const std::string& path) {
  // Do not create parent folders, so that a mistyped path creates no tree of folders.
  if (mkdir(path.c_str(), 0700) == 0 || errno == EEXIST) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat("data_dir ", path, ": ", strerror(errno)));
}

// Returns the options of the arena: with space for the RAM tier and for publishes that are being
// received. A part of the arena is made resident ahead of use.
ArenaOptions ArenaOf(const StoreOptions& options) {
  ArenaOptions arena;
  arena.slab_bytes = std::clamp(options.host_bytes / 64, kSmallestSlab, kLargestSlab);
  arena.slab_bytes -= arena.slab_bytes % kSegmentDataAlignment;
  arena.ahead_bytes = std::clamp(options.host_bytes / 16, arena.slab_bytes, kMaxAhead);
  arena.capacity_bytes =
      options.host_bytes + std::min(options.host_bytes, options.max_staged_bytes);
  arena.shared = options.shared_memory;
  arena.huge_pages = options.huge_pages;
  arena.warn = options.on_warning;
  return arena;
}

// Number of manifests that are read at once. For the longest prompts, a manifest has 4 MB.
constexpr size_t kManifestsAtOnce = 64;

class Recovery {
 public:
  Recovery(StoreCore* core, DamageConfirmation confirmation);
  absl::Status Run() ABSL_LOCKS_EXCLUDED(core_->mu);

 private:
  struct Model {
    std::shared_ptr<const KnownFingerprint> known;
    Digest root;  // key from which the tenant's keys are derived
  };
  // The nodes of a manifest's prompt in the index, and the restore point's objects.
  struct Path {
    struct Step {
      KeyedSegment segment;
      SegmentNode* node;  // null: the index does not have the node yet
    };
    std::vector<Step> steps;
    std::vector<StoredObject*> objects;  // objects in the manifest's order; null: missing
  };

  using Records = absl::StatusOr<std::vector<std::optional<ManifestRecord>>>;
  // Adds the restore point of each manifest to the index, or drops the manifest. Returns the
  // manifests that are damaged or were misread; if `records` is an error, returns all.
  std::vector<uint64_t> TakeAll(absl::Span<const uint64_t> manifests, const Records& records)
      ABSL_LOCKS_EXCLUDED(core_->mu);
  // Reads the manifests that could not be read in a batch again, one by one.
  absl::Status ReadAgain(std::vector<uint64_t> manifests) ABSL_LOCKS_EXCLUDED(core_->mu);
  void Take(const ManifestRecord& record) ABSL_EXCLUSIVE_LOCKS_REQUIRED(core_->mu);
  Path PathOf(const ManifestRecord& record, const Model& model)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(core_->mu);
  static bool Fits(const ManifestRecord& record, const KvLayout& layout, const Path& path);
  // Adds the nodes and the restore point of a manifest to the index.
  void Adopt(const ManifestRecord& record, const Model& model, Path path)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(core_->mu);
  void Drop(uint64_t number, const std::string& tenant, const Digest& point)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(core_->mu);
  void WarnLostPoints() ABSL_EXCLUSIVE_LOCKS_REQUIRED(core_->mu);
  void KeepLoadedPoints() ABSL_EXCLUSIVE_LOCKS_REQUIRED(core_->mu);
  // Erases everything that no manifest uses. Call after all manifests were read.
  void Collect() ABSL_EXCLUSIVE_LOCKS_REQUIRED(core_->mu);

  StoreCore* const core_;
  DamageConfirmation confirmation_;
  DiskContents contents_;
  uint64_t next_number_ = 1;  // larger than every number on disk
  std::map<std::pair<std::string, Digest>, Model> models_;
  const absl::flat_hash_set<uint64_t> pinned_;
  const absl::flat_hash_map<uint64_t, uint64_t> uses_;
  std::vector<StoredObject*> objects_;
  std::vector<Digest> lost_;  // ids of dropped restore points; all zeros: unknown id
  size_t unread_ = 0;         // number of manifests that cannot be read
};

Recovery::Recovery(StoreCore* core, DamageConfirmation confirmation)
    : core_(core),
      confirmation_(std::move(confirmation)),
      contents_(core->tiers.disk->Load()),
      pinned_(contents_.pinned.begin(), contents_.pinned.end()),
      uses_(contents_.uses.begin(), contents_.uses.end()) {
  for (const FingerprintRecord& record : contents_.fingerprints) {
    auto model = MakeKnown(record.fingerprint);
    if (model == nullptr) {
      core->warnings.Say(
          "damage",
          absl::StrCat("a stored fingerprint is not valid; its restore points are dropped: ",
                       record.fingerprint.Layout().status().message()));
      continue;
    }
    const Digest& digest = record.fingerprint.digest();
    models_[{record.tenant, digest}] = {std::move(model), core->RootOf(digest, record.tenant)};
  }
  const auto above = [this](uint64_t number) { next_number_ = std::max(next_number_, number + 1); };
  above(contents_.last_number);
  std::for_each(contents_.manifests.begin(), contents_.manifests.end(), above);
  for (const auto& [number, used] : contents_.uses) above(number);
  std::for_each(contents_.pinned.begin(), contents_.pinned.end(), above);
  std::for_each(contents_.unreadable_objects.begin(), contents_.unreadable_objects.end(), above);
  for (const ObjectRecord& record : contents_.objects) above(record.number);
}

absl::Status Recovery::Run() {
  core_->damage = std::move(contents_.damage);
  core_->Count(Counter::kRecoveryDamage, core_->damage.size());
  for (const std::string& line : core_->damage) core_->warnings.Say("damage", line);
  core_->Count(Counter::kRecoveryLostRestorePoints, contents_.lost_points);
  {
    StoreLock lock(core_);
    core_->objects.ReserveNumbersBelow(next_number_);
    // Add all fingerprints; FingerprintBook::Trim() later removes those above the limit that no
    // restore point uses.
    for (const auto& [name, model] : models_) core_->fingerprints.Remember(model.known, name.first);
    core_->catalog.BeginAdopting();
    // Add the objects of all records. They stay held, and invisible until a manifest uses them.
    objects_.reserve(contents_.objects.size());
    for (ObjectRecord& record : contents_.objects) {
      StoredObject* object = objects_.emplace_back(
          core_->objects.NewObject(record.number, record.key, record.id, record.slice_digests,
                                   record.layers, record.slice_bytes));
      object->in_table.store(record.in_table);
      core_->objects.AdoptOnDisk(object);
    }
    contents_.objects = {};
  }
  std::vector<uint64_t> again;
  // While this thread adds manifests to the index, another thread reads the next ones.
  absl::Span<const uint64_t> left(contents_.manifests);
  absl::Span<const uint64_t> coming;
  std::future<Records> records;
  const auto read_next = [&] {
    coming = left.last(std::min(left.size(), kManifestsAtOnce));
    left.remove_suffix(coming.size());
    if (coming.empty()) return;
    records = std::async(std::launch::async, [disk = core_->tiers.disk.get(), numbers = coming] {
      return disk->ReadManifests(numbers);
    });
  };
  for (read_next(); !coming.empty();) {
    const absl::Span<const uint64_t> numbers = coming;
    const Records read = records.get();
    read_next();
    const std::vector<uint64_t> left_out = TakeAll(numbers, read);
    again.insert(again.end(), left_out.begin(), left_out.end());
  }
  if (absl::Status read = ReadAgain(std::move(again)); !read.ok()) return read;
  {
    StoreLock lock(core_, StoreLock::kErasesItself);
    WarnLostPoints();
    Collect();
  }
  core_->EraseFromDisk()
      .IgnoreError();  // a full disk refuses erases, which are recorded and tried again later
  return absl::OkStatus();
}

// Reads each manifest until the result is certain. An unreadable manifest does not block the
// others. A manifest that gives the same wrong bytes each time is damaged.
absl::Status Recovery::ReadAgain(std::vector<uint64_t> manifests) {
  DiskTier* const disk = core_->tiers.disk.get();
  std::vector<uint64_t> wrong, failed;
  // description of all wrong results, to notice whether the wrong bytes changed between reads
  std::string what;
  do {
    wrong.clear();
    failed.clear();
    what.clear();
    for (const uint64_t number : manifests) {
      const Records read = disk->ReadManifests({number});
      if (!read.ok() && !disk->IsOpen()) return read.status();
      if (TakeAll({number}, read).empty()) continue;
      const absl::StatusOr<ManifestRecord> record = disk->ReadManifest(number);
      if (record.ok() && record->number == number) {
        StoreLock lock(core_, StoreLock::kErasesItself);
        Take(*record);
      } else if (!read.ok() || absl::IsUnavailable(record.status())) {
        failed.push_back(number);
      } else {
        wrong.push_back(number);
        absl::StrAppend(&what, "restore point ", number, ": ", record.status().ToString(), "; ");
      }
    }
    manifests = wrong;
    manifests.insert(manifests.end(), failed.begin(), failed.end());
  } while (!wrong.empty() && confirmation_.ReadAgain(what));
  // Unless the damage is confirmed, keep the manifests with wrong bytes, too.
  if (!confirmation_.confirmed()) wrong.clear();
  unread_ = manifests.size() - wrong.size();
  core_->Count(Counter::kTierErrors, unread_);
  StoreLock lock(core_, StoreLock::kErasesItself);
  for (const uint64_t number : wrong) Drop(number, "", {});
  return absl::OkStatus();
}

// Processes the newest manifest first: a crash between the write of a manifest and the erase of the
// replaced one may leave two manifests of one restore point, and the newest one must stay.
std::vector<uint64_t> Recovery::TakeAll(absl::Span<const uint64_t> manifests,
                                        const Records& records) {
  if (!records.ok()) return {manifests.rbegin(), manifests.rend()};
  assert(records->size() == manifests.size());
  std::vector<uint64_t> left_out;
  StoreLock lock(core_, StoreLock::kErasesItself);
  for (size_t i = manifests.size(); i-- > 0;) {
    const std::optional<ManifestRecord>& record = (*records)[i];
    record.has_value() ? Take(*record) : left_out.push_back(manifests[i]);
  }
  return left_out;
}

void Recovery::Take(const ManifestRecord& record) {
  const Manifest& manifest = record.manifest;
  const auto model = models_.find({record.tenant, manifest.fingerprint});
  if (model == models_.end() || !ValidateManifest(manifest, model->second.known->layout).ok()) {
    return Drop(record.number, record.tenant, {});
  }
  Path path = PathOf(record, model->second);
  assert(!path.steps.empty() && path.objects.size() == record.objects.size());
  const SegmentNode* const end = path.steps.back().node;
  if (end != nullptr && end->restore_point != nullptr) {  // the restore point has a newer manifest
    core_->objects.DiscardManifest(record.number);
  } else if (Fits(record, model->second.known->layout, path)) {
    Adopt(record, model->second, std::move(path));
  } else {
    Drop(record.number, record.tenant, path.steps.back().segment.key);
  }
}

// Finds or computes the path of a manifest. Most segments are already in the index, because an
// earlier manifest had them. A node with the same parent, tokens and cuts has the key that hashing
// would give, so its key need not be computed.
Recovery::Path Recovery::PathOf(const ManifestRecord& record, const Model& model) {
  const Manifest& manifest = record.manifest;
  const KvLayout& layout = model.known->layout;
  const PrefixIndex& index = core_->catalog.index();
  assert(record.objects.size() == manifest.objects.size());
  Path path;
  path.objects.reserve(record.objects.size());
  Digest parent = model.root;
  SegmentNode* node = index.Find(parent);
  for (const Segment& segment : SegmentsTo(manifest.token_count, layout.chunk_tokens)) {
    KeyedSegment keyed{segment, {}, CutsBetween(segment, manifest.cuts, layout.exactness)};
    SegmentNode* known = nullptr;
    for (size_t i = path.objects.size();
         i < record.objects.size() && manifest.objects[i].id.begin == segment.begin; ++i) {
      StoredObject* object = core_->objects.Find(record.objects[i]);
      path.objects.push_back(object);
      if (object != nullptr && object->node != nullptr) known = object->node;
    }
    if (node != nullptr && known != nullptr && known->parent == node &&
        known->Is(keyed, manifest.token_ids)) {
      node = known;
      keyed.key = known->key;
    } else {
      keyed.key = SegmentKey(
          parent, absl::MakeSpan(manifest.token_ids).subspan(segment.begin, segment.tokens),
          keyed.CutOffsets());
      node = index.Find(keyed.key);
    }
    parent = keyed.key;
    path.steps.push_back({keyed, node});
  }
  return path;
}

// Returns whether all objects match the manifest, and no key belongs to another object. REQUIRES:
// the manifest is valid.
bool Recovery::Fits(const ManifestRecord& record, const KvLayout& layout, const Path& path) {
  for (size_t i = 0; i < path.objects.size(); ++i) {
    StoredObject* const object = path.objects[i];
    const ManifestObject& named = record.manifest.objects[i];
    const Path::Step& step = path.steps[named.id.begin / layout.chunk_tokens];
    if (object == nullptr || object->key() != step.segment.key || !(object->id == named.id) ||
        object->slice_digests() != named.slice_digests ||
        object->layers() != layout.LayersOf(named.id.group) ||
        object->slice_bytes != layout.SliceBytes(named.id.tokens)) {
      return false;
    }
    // If two objects on disk have the same key, the first one that is added stays, and a manifest
    // that uses the other is dropped.
    if (object->node == nullptr && step.node != nullptr &&
        step.node->objects[static_cast<size_t>(named.id.group)] != nullptr) {
      return false;
    }
  }
  return true;
}

void Recovery::Adopt(const ManifestRecord& record, const Model& model, Path path) {
  const Manifest& manifest = record.manifest;
  SegmentNode* node = core_->catalog.index().EnsureRoot(model.root);
  size_t next = 0;
  for (const Path::Step& step : path.steps) {
    const KeyedSegment& segment = step.segment;
    node = step.node != nullptr ? step.node
                                : core_->catalog.index().Ensure(node, segment, manifest.token_ids);
    assert(node != nullptr);
    for (; next < path.objects.size() && path.objects[next]->id.begin == segment.segment.begin;
         ++next) {
      if (path.objects[next]->node == nullptr) core_->objects.Link(path.objects[next], node);
    }
  }
  const auto noted = uses_.find(record.number);
  const uint64_t used_unix_s =
      std::max(record.created_unix_s, noted == uses_.end() ? 0 : noted->second);
  assert(next == path.objects.size());  // Fits() found a segment for each object
  RestorePointEntry* point = core_->catalog.AddRestorePoint(
      record.number, record.tenant, model.known, node, std::move(path.objects), manifest.cuts,
      absl::FromUnixSeconds(static_cast<int64_t>(used_unix_s)));
  core_->catalog.AdoptEnd(point, EndOf(record), record.inherited);
  core_->catalog.SetDurable(point, record.number, EndOf(record));
  core_->catalog.SetPinned(point, pinned_.contains(record.number));
  core_->Count(Counter::kRecoveredRestorePoints);
}

void Recovery::Drop(uint64_t number, const std::string& tenant, const Digest& point) {
  core_->Count(Counter::kRecoveryDroppedManifests);
  core_->objects.DiscardManifest(number);
  if (core_->drop_numbers.Of(tenant) > 0) {
    // The restore point is from before a drop of all entries, because its keys have a smaller drop
    // number.
    core_->meters.CountRemoved(Removal::kDropped);
  } else {
    lost_.push_back(point);
  }
}

void Recovery::WarnLostPoints() {
  if (unread_ > 0) {
    core_->Count(Counter::kRecoveryUnreadManifests, unread_);
    core_->warnings.Say(
        "damage",
        absl::StrCat(
            unread_,
            " restore points cannot be read; they stay on disk, and the next start tries again"));
  }
  std::string first;
  size_t lost = 0;
  for (const Digest& id : lost_) {
    // another manifest of the same restore point was added
    if (core_->catalog.Find(id) != nullptr) continue;
    core_->meters.CountRemoved(Removal::kLost);
    core_->history.Record(id, Removal::kLost, core_->clock->Now());
    if (contents_.may_lack) continue;
    core_->Count(Counter::kRecoveryLostRestorePoints);
    if (lost++ == 0) first = DigestHex(id).substr(0, 16);
  }
  if (lost == 0) return;
  core_->warnings.Say("damage", absl::StrCat(lost,
                                             " acknowledged restore points are lost, because they "
                                             "do not match their objects; the first is ",
                                             first));
}

void Recovery::Collect() {
  for (StoredObject* object : objects_) core_->objects.Release(object);
  // erase nothing: unread manifests may use these objects
  if (unread_ > 0) core_->objects.TakeGarbage();
  core_->catalog.EndAdopting(core_->clock->Now());
  while (core_->Expire(1)) {
  }
  // The disk may have more than the limit, because the limit was larger when it was filled.
  core_->evictor.TrimDisk(std::numeric_limits<int>::max());
  if (!core_->evictor.FitsOnDisk(0)) core_->Count(Counter::kPublishesRefusedFull);
  KeepLoadedPoints();
  Garbage garbage = core_->objects.TakeGarbage();
  if (unread_ == 0) {
    garbage.disk_objects.insert(garbage.disk_objects.end(), contents_.unreadable_objects.begin(),
                                contents_.unreadable_objects.end());
  }
  // Erase recorded uses whose manifests do not exist: the manifest was erased while the use was
  // recorded.
  const absl::flat_hash_set<uint64_t> known(contents_.manifests.begin(), contents_.manifests.end());
  for (const auto& [number, used] : uses_) {
    if (!known.contains(number)) garbage.manifests.push_back(number);
  }
  // The files contain bytes that were erased just now, or earlier and not reclaimed yet.
  const uint64_t file_bytes = core_->tiers.disk->FileBytes();
  garbage.disk_bytes = file_bytes - std::min(file_bytes, core_->objects.sums().disk_bytes());
  core_->Count(Counter::kRecoveryCollectedObjects, garbage.disk_objects.size());
  core_->ProcessGarbage(garbage);
  core_->fingerprints.Trim();
}

// Warns if the bookkeeping of the loaded restore points exceeds its limit: the limit may have been
// larger, or an earlier release did not count the bookkeeping. The points are kept: evicting them
// here would lose them before the operator can read the reason.
void Recovery::KeepLoadedPoints() {
  const uint64_t bytes = core_->evictor.PointBytes();
  const uint64_t limit = core_->evictor.limits().point_bytes;
  core_->evictor.KeepLoadedPoints();
  if (limit == 0 || bytes <= limit) return;
  core_->warnings.Say(
      "points",
      absl::StrCat("the bookkeeping of ", core_->catalog.size(), " restore points takes ", bytes,
                   " bytes of RAM, above its limit of ", limit, " (",
                   core_->options.host_bytes > 0 ? "half of --host-bytes"
                                                 : "--disk-bytes / 256 without --host-bytes",
                   "): all are kept, but each new restore point evicts others; set --host-bytes "
                   "(--store-host-bytes for an embedded store) to at least ",
                   2 * bytes));
}

// Reads the tenants' drop numbers. They are part of the keys: without them, entries that were
// published after a drop would not match their keys and would be erased.
absl::Status ReadDropNumbers(StoreCore* core, DamageConfirmation confirmation) {
  DiskTier* const disk = core->tiers.disk.get();
  absl::StatusOr<std::string> note = disk->ReadNote(DropNumbers::kNote);
  while (!note.ok() && confirmation.ReadAgain(note.status().message())) {
    note = disk->ReadNote(DropNumbers::kNote);
  }
  if (!note.ok() && !absl::IsDataLoss(note.status())) {
    return absl::Status(note.status().code(),
                        absl::StrCat("data folder ", confirmation.dir(),
                                     ": the record of which tenants dropped all entries cannot be "
                                     "read; check the disk, then start again: ",
                                     note.status().message()));
  }
  if (!note.ok() && !confirmation.confirmed()) {
    return ReadsDifferently(confirmation.dir(), note.status().message());
  }
  if (!note.ok()) {
    core->warnings.Say(
        "damage", absl::StrCat("the record of which tenants dropped all entries cannot be read: ",
                               note.status().message()));
  }
  core->drop_numbers.Parse(note.value_or(""));
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<LocalStore>> TieredStore::Open(const StoreOptions& options) {
  return OpenStore(options, StoreSeams{});
}

absl::StatusOr<std::unique_ptr<LocalStore>> OpenStore(const StoreOptions& options,
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
    seams.disk.warnings = std::make_shared<Warnings>(options.on_warning);
    seams.disk.background_bytes_per_s = options.background_disk_bytes_per_s;
    absl::StatusOr<std::unique_ptr<DiskTier>> opened =
        DiskTier::Open(options.data_dir, SecretCheck(*secret), seams.disk);
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
  const auto confirmation = [&options, wait = seams.disk.wait] {
    return DamageConfirmation(options.data_dir, wait,
                              std::make_shared<Warnings>(options.on_warning));
  };
  auto store = std::make_unique<Store>(options, std::move(seams), *std::move(secret),
                                       std::move(arena), std::move(disk));
  if (wants_disk) {
    store->volume()->Begin();
    absl::Status status = ReadDropNumbers(store->core(), confirmation());
    if (status.ok()) status = Recovery(store->core(), confirmation()).Run();
    if (!status.ok()) return status;
  }
  if (!is_tests) store->StartThreads();
  return store;
}

}  // namespace hearth
