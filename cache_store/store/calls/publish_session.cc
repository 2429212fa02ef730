#include "cache_store/store/calls/publish_session.h"

#include <algorithm>
#include <cassert>
#include <cstring>
#include <map>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "proto/caller_gone.h"
#include "proto/prefix_key.h"
#include "proto/restore_rule.h"

namespace hearth {
namespace {

// Limit of the objects that the boundaries of one publish need, counted for each boundary. An
// object costs about 200 ns here, and a fraction of that under the lock. Without the limit, a 64k
// prompt with a boundary at each of its 4,096 chunks of 16 tokens would need 8 million.
constexpr uint64_t kMaxNamedObjects = uint64_t{1} << 20;
// An announcement of a publish that takes more memory than this counts as received bytes: for a
// prompt of a million tokens in small chunks it takes 40 MiB. Smaller announcements are not
// counted.
constexpr uint64_t kFreeBeginBytes = uint64_t{64} << 10;

// Returns the memory of the announcement, its keys and the bookkeeping of its objects. Objects
// count twice, because the caller has a copy of them.
uint64_t BeginBytes(const PublishSpec& spec) {
  constexpr size_t kObjectBytes = 2 * sizeof(PublishObject) + sizeof(PublishSessionImpl::Item) +
                                  sizeof(KeyedSegment) + 3 * sizeof(uint64_t);
  uint64_t bytes = (spec.token_ids.size() + spec.cuts.size()) * sizeof(uint32_t) +
                   spec.objects.size() * kObjectBytes;
  for (const PublishObject& object : spec.objects) {
    bytes += object.slice_digests.size() * (sizeof(uint64_t) + sizeof(SliceView));
  }
  return bytes > kFreeBeginBytes ? bytes : 0;
}

absl::Status CommittedAlready() {
  return absl::FailedPreconditionError("the publish was committed already");
}

absl::Status CheckPrompt(const PublishSpec& spec, const KvLayout& layout) {
  if (absl::Status status = CheckPrefix(spec.token_ids, spec.cuts); !status.ok()) return status;
  if (spec.tenant.empty() || spec.tenant.size() > kMaxTenantBytes) {
    return absl::InvalidArgumentError(absl::StrCat("tenant: must have 1 to ", kMaxTenantBytes,
                                                   " bytes; got ", spec.tenant.size()));
  }
  const uint32_t tokens = static_cast<uint32_t>(spec.token_ids.size());
  if (spec.boundaries.empty()) return absl::InvalidArgumentError("boundaries: must not be empty");
  const std::vector<uint32_t> ends = StepEnds(tokens, spec.cuts, layout.chunk_tokens);
  uint32_t previous = 0;
  uint64_t named = 0;
  for (const uint32_t boundary : spec.boundaries) {
    named += boundary / layout.chunk_tokens + 1;
    if (named > kMaxNamedObjects) {
      return absl::InvalidArgumentError(absl::StrCat(
          "boundaries: ", spec.boundaries.size(), " boundaries need more than ", kMaxNamedObjects,
          " objects together; declare fewer boundaries, or use larger chunks"));
    }
    if (boundary <= previous || boundary > StoredTokens(tokens, layout)) {
      return absl::InvalidArgumentError(absl::StrCat("boundaries: must be above ", previous,
                                                     " and at most ", StoredTokens(tokens, layout),
                                                     "; got ", boundary));
    }
    if (!layout.MayEndAt(boundary)) {
      return absl::InvalidArgumentError(
          absl::StrCat("boundaries: ", boundary, " must be a multiple of chunk_tokens, ",
                       layout.chunk_tokens, ", because pages cannot be split"));
    }
    if (CutsAreKeyed(layout.exactness) && !std::binary_search(ends.begin(), ends.end(), boundary)) {
      return absl::InvalidArgumentError(
          absl::StrCat("boundaries: ", boundary, " is neither a multiple of ", layout.chunk_tokens,
                       ", a prefill cut nor the prompt's end"));
    }
    previous = boundary;
  }
  return absl::OkStatus();
}

absl::Status TierFull(absl::string_view tier, uint64_t new_bytes, uint64_t limit_bytes) {
  return absl::ResourceExhaustedError(
      absl::StrCat(tier, " tier full: ", new_bytes, " bytes do not fit in ", tier, "_bytes, ",
                   limit_bytes, ", next to entries that are pinned or in use"));
}

}  // namespace

absl::Status PublishSessionImpl::Begin() {
  if (absl::Status status = Prepare(); !status.ok()) return status;
  StoreLock lock(core_);
  return PlanNeeded();
}

absl::Status PublishSessionImpl::Prepare() {
  model_ = core_->fingerprints.Learn(spec_.fingerprint, spec_.tenant);
  drop_number_ = core_->drop_numbers.Of(spec_.tenant);
  if (model_ == nullptr) return spec_.fingerprint.Layout().status();
  const KvLayout& layout = model_->layout;
  if (absl::Status status = CheckPrompt(spec_, layout); !status.ok()) return status;
  if (absl::Status status = Stage(BeginBytes(spec_)); !status.ok()) return status;
  if (spec_.drop_number.value_or(drop_number_) != drop_number_) {
    return absl::CancelledError("the tenant was dropped during the publish");
  }
  const Digest root =
      RootKey(spec_.fingerprint.digest(), spec_.tenant, core_->secret, drop_number_);
  chain_ = ChainOf(spec_.chains, layout, root, spec_.token_ids, spec_.cuts, spec_.boundaries.back(),
                   spec_.boundaries, spec_.stopped);
  if (!chain_->is_whole) return CallerGone();
  std::map<ObjectId, size_t> announced;
  for (size_t i = 0; i < spec_.objects.size(); ++i) {
    if (!announced.emplace(spec_.objects[i].id, i).second) {
      return absl::InvalidArgumentError(
          absl::StrCat("objects: ", ObjectName(spec_.objects[i].id), " is announced twice"));
    }
  }
  for (const LayerGroup group : {LayerGroup::kGlobal, LayerGroup::kLocal}) {
    layers_[static_cast<size_t>(group)] = layout.LayersOf(group);
  }
  items_.resize(spec_.objects.size());
  boundaries_.reserve(spec_.boundaries.size());
  std::vector<bool> wanted(spec_.objects.size(), false);
  for (const uint32_t boundary : spec_.boundaries) {
    Boundary& named = boundaries_.emplace_back();
    named.boundary = boundary;
    named.segment = chain_->EndingAt(boundary, layout.chunk_tokens);
    assert(named.segment != nullptr);  // CheckPrompt() refused other boundaries
    for (const ObjectId& id : NeededObjects(layout, boundary)) {
      const auto it = announced.find(id);
      if (it == announced.end()) {
        return absl::InvalidArgumentError(absl::StrCat("objects: boundary ", boundary, " needs ",
                                                       ObjectName(id), ", which is not announced"));
      }
      named.items.push_back(it->second);
      if (wanted[it->second]) continue;
      wanted[it->second] = true;
      const PublishObject& object = spec_.objects[it->second];
      Item& item = items_[it->second];
      item.segment = chain_->EndingAt(id.begin + id.tokens, layout.chunk_tokens);
      item.layers = &layers_[static_cast<size_t>(id.group)];
      item.slice_bytes = layout.SliceBytes(id.tokens);
      const bool without = object.absent && object.slice_digests.empty();
      if (!without && object.slice_digests.size() != item.layers->size()) {
        return absl::InvalidArgumentError(absl::StrCat(
            "objects: ", ObjectName(id), " has ", object.slice_digests.size(),
            " digests; must have one for each of its group's ", item.layers->size(), " layers"));
      }
    }
  }
  for (size_t i = 0; i < wanted.size(); ++i) {
    if (!wanted[i]) {
      return absl::InvalidArgumentError(
          absl::StrCat("objects: no boundary needs ", ObjectName(spec_.objects[i].id)));
    }
    assert(items_[i].segment != nullptr);
  }
  return absl::OkStatus();
}

std::vector<uint32_t> PublishSessionImpl::CutsUpTo(uint32_t boundary) const {
  if (!CutsAreKeyed(model_->layout.exactness)) return {};
  return {spec_.cuts.begin(), std::upper_bound(spec_.cuts.begin(), spec_.cuts.end(), boundary)};
}

absl::Status PublishSessionImpl::Stage(uint64_t bytes) {
  const uint64_t most_of_tenant = core_->options.quotas.Of(spec_.tenant).max_bytes;
  const absl::Status status = core_->staged.Reserve(spec_.tenant, bytes, most_of_tenant);
  if (!status.ok()) {
    core_->Count(Counter::kPublishesRefusedStaged);
    return status;
  }
  staged_bytes_ += bytes;
  assert(staged_bytes_ <= core_->options.max_staged_bytes);
  return absl::OkStatus();
}

absl::StatusOr<std::shared_ptr<std::byte>> PublishSessionImpl::AllocateSlice(size_t bytes) {
  if (absl::Status status = Stage(bytes); !status.ok()) return status;
  std::shared_ptr<std::byte> memory = core_->tiers.AllocateSlice(bytes);
  allocated_ = memory.get();
  assert(memory != nullptr);
  return memory;
}

absl::Status PublishSessionImpl::PutSlice(uint32_t object, uint32_t layer, SliceView slice,
                                          std::optional<uint64_t> digest) {
  assert(!digest.has_value() || slice.owner != nullptr);
  if (committed_) return CommittedAlready();
  if (object >= items_.size() || !items_[object].needed) {
    return absl::InvalidArgumentError(absl::StrCat("object ", object, " was not requested"));
  }
  Item& item = items_[object];
  const auto it = std::lower_bound(item.layers->begin(), item.layers->end(), layer);
  if (it == item.layers->end() || *it != layer) {
    return absl::InvalidArgumentError(
        absl::StrCat("layer ", layer, " is not in the group of object ", object));
  }
  const size_t place = static_cast<size_t>(it - item.layers->begin());
  if (item.whole != nullptr || item.staged[place].owner != nullptr) {
    return absl::InvalidArgumentError(
        absl::StrCat("object ", object, ", layer ", layer, ": the slice was sent twice"));
  }
  if (slice.bytes.size() != item.slice_bytes) {
    return absl::InvalidArgumentError(absl::StrCat("object ", object, ", layer ", layer,
                                                   ": must have ", item.slice_bytes, " bytes; got ",
                                                   slice.bytes.size()));
  }
  if (slice.owner == nullptr || std::exchange(allocated_, nullptr) != slice.owner.get()) {
    if (absl::Status status = Stage(slice.bytes.size()); !status.ok()) return status;
  }
  if (slice.owner == nullptr) {
    std::shared_ptr<std::byte> memory = core_->tiers.AllocateSlice(slice.bytes.size());
    std::memcpy(memory.get(), slice.bytes.data(), slice.bytes.size());
    slice = SliceView{memory, {memory.get(), slice.bytes.size()}};
  }
  assert(place < spec_.objects[object].slice_digests.size());  // see Prepare()
  // Verify the digest after the copy, so that exactly the kept bytes are verified.
  if (!digest.has_value()) digest = SliceDigest(slice.bytes.data(), slice.bytes.size());
  if (*digest != spec_.objects[object].slice_digests[place]) {
    core_->Count(Counter::kDigestMismatches);
    return absl::DataLossError(absl::StrCat("object ", object, ", layer ", layer,
                                            ": bytes do not match the announced digest"));
  }
  received_bytes_ += slice.bytes.size();
  assert(received_bytes_ <= staged_bytes_ && item.staged_slices < item.layers->size());
  item.staged[place] = std::move(slice);
  if (++item.staged_slices == item.layers->size()) {
    item.whole = std::make_shared<const std::vector<SliceView>>(std::move(item.staged));
  }
  return absl::OkStatus();
}

absl::StatusOr<PublishResult> PublishSessionImpl::Commit() {
  if (std::exchange(committed_, true)) return CommittedAlready();
  const Stopwatch stopwatch;
  absl::StatusOr<PublishResult> result = RunCommit();
  if (result.ok()) {
    core_->meters.commits[StoreMeters::Of(result->durable)].Observe(stopwatch.Elapsed());
  }
  return result;
}

absl::Status PublishSessionImpl::PlanNeeded() {
  core_->mu.AssertHeld();
  core_->Expire();
  for (size_t i = 0; i < items_.size(); ++i) {
    Item& item = items_[i];
    const absl::StatusOr<StoredObject*> stored = Stored(i);
    if (!stored.ok()) return stored.status();
    item.object = *stored;
    item.needed = item.object == nullptr && !spec_.objects[i].absent;
    if (item.object != nullptr) core_->objects.Hold(item.object);
  }
  // Do not request objects that are needed only by boundaries that cannot be completed.
  std::vector<bool> useful(items_.size(), false);
  for (const Boundary& named : boundaries_) {
    const bool possible = std::all_of(named.items.begin(), named.items.end(), [&](const size_t i) {
      return items_[i].needed || items_[i].object != nullptr;
    });
    if (!possible) continue;
    for (const size_t i : named.items) useful[i] = true;
  }
  uint64_t needed_bytes = 0, needed_objects = 0;
  for (size_t i = 0; i < items_.size(); ++i) {
    Item& item = items_[i];
    item.needed = item.needed && useful[i];
    if (!item.needed) continue;
    ++needed_objects;
    item.staged.resize(item.layers->size());
    needed_.push_back(static_cast<uint32_t>(i));
    needed_bytes += item.slice_bytes * item.layers->size();
  }
  if (needed_bytes + staged_bytes_ > core_->options.max_staged_bytes) {
    core_->Count(Counter::kPublishesRefusedStaged);
    // Not kResourceExhausted, because a retry would not fit either.
    return absl::InvalidArgumentError(absl::StrCat("publish: must have at most max_staged_bytes, ",
                                                   core_->options.max_staged_bytes, "; got ",
                                                   needed_bytes, " bytes"));
  }
  // Check the quota before slices are received. Before the commit, other restore points of the
  // tenant may be evicted; the commit checks again.
  assert(needed_objects == needed_.size());
  if (core_->catalog.accounts().FitsWithPins(spec_.tenant, needed_bytes, needed_objects)) {
    return absl::OkStatus();
  }
  core_->Count(Counter::kPublishesRefusedQuota);
  return core_->catalog.accounts().NoRoom(spec_.tenant, needed_bytes, needed_objects);
}

PublishSessionImpl::~PublishSessionImpl() {
  if (!committed_) core_->Count(Counter::kPublishesAbandoned);
  assert(plan_.promised.empty() && plan_.points_reserved_bytes == 0);
  // Free the slices that the RAM tier did not take before their memory is uncounted; the RAM tier
  // counts the others.
  plan_.work.objects.clear();
  for (Item& item : items_) {
    item.staged.clear();
    item.whole = nullptr;
  }
  core_->staged.Release(spec_.tenant, staged_bytes_);
  const bool any_held = std::any_of(items_.begin(), items_.end(),
                                    [](const Item& item) { return item.object != nullptr; });
  if (!any_held) return;
  StoreLock lock(core_);
  ReleaseItems();
}

void PublishSessionImpl::ReleaseItems() {
  core_->mu.AssertHeld();
  for (Item& item : items_) {
    if (item.object == nullptr) continue;
    core_->objects.Release(std::exchange(item.object, nullptr));
  }
}

absl::StatusOr<PublishResult> PublishSessionImpl::RunCommit() {
  Durability wanted = spec_.durability;
  if (wanted == Durability::kShared) {
    wanted = Durability::kDisk;
    plan_.notes.push_back("no shared tier: kept in this store only");
  }
  const Durability asked =
      wanted == Durability::kDefault ? core_->options.default_durability : wanted;
  plan_.level = core_->tiers.disk == nullptr ? Durability::kMemory : asked;
  if (plan_.level < wanted) plan_.notes.push_back("no disk tier: kept in memory only");
  absl::Status status;
  if (core_->tiers.disk != nullptr) plan_.may_evict = core_->MayEvictForDisk(received_bytes_);
  {
    StoreLock lock(core_, StoreLock::kErasesItself);
    ClaimKeys();
    status = AdoptStaged();
    if (status.ok()) {
      ChooseBoundaries();
      status = MakeRoom();
    }
    const bool is_done = !status.ok() || plan_.level == Durability::kMemory;
    if (is_done) EndWrite(status);
    if (is_done) core_->flight.Release(plan_.work.claims);
  }
  core_->EraseFromDisk().IgnoreError();
  if (status.ok() && plan_.level != Durability::kMemory) {
    status = writer_->Persist(&plan_.work, plan_.level == Durability::kSync,
                              [this](const absl::Status& written) { EndWrite(written); });
  }
  if (!status.ok()) return status;
  assert(plan_.promised.empty());
  for (const ComputeClaims::Wake& wake : plan_.wakes) wake();
  if (core_->tiers.disk != nullptr && !plan_.unwritten.empty()) {
    writer_->Schedule(plan_.unwritten, plan_.unwritten_bytes);
  }
  return Result();
}

void PublishSessionImpl::EndWrite(const absl::Status& written) {
  core_->mu.AssertHeld();
  if (written.ok()) Reveal();
  core_->evictor.UnreserveHost(plan_.host_reserved_bytes);
  EndPlan();
  if (!written.ok()) return;
  std::vector<Digest> keys;
  for (const Boundary& kept : boundaries_) {
    if (kept.shown) keys.push_back(kept.segment->key);
  }
  core_->claims.Published(keys, &plan_.wakes);
  ReleaseItems();
}

PublishResult PublishSessionImpl::Result() {
  PublishResult result;
  result.durable = plan_.level;
  for (const Boundary& kept : boundaries_) {
    if (kept.shown) result.boundaries.push_back(kept.boundary);
  }
  result.bytes_received = received_bytes_;
  result.notes = std::move(plan_.notes);
  core_->Count(Counter::kPublishedBytes, result.bytes_received);
  return result;
}

void PublishSessionImpl::ClaimKeys() {
  core_->mu.AssertHeld();
  assert(plan_.work.claims.empty());
  for (const Item& item : items_) {
    const bool on_disk = item.object != nullptr && item.object->on_disk;
    if (!on_disk) plan_.work.claims.push_back(item.segment->key);
  }
  for (const Boundary& named : boundaries_) plan_.work.claims.push_back(named.segment->key);
  core_->Claim(plan_.work.claims);
}

// Creates an object for each completely received item, or finds the object that another publisher
// stored first.
absl::Status PublishSessionImpl::AdoptStaged() {
  core_->mu.AssertHeld();
  for (size_t i = 0; i < items_.size(); ++i) {
    Item& item = items_[i];
    if (item.object != nullptr) {
      item.lost = item.object->retired || IsDropped();
      continue;
    }
    if (!item.complete() || IsDropped()) continue;
    const absl::StatusOr<StoredObject*> stored = Stored(i);
    if (!stored.ok()) return stored.status();
    item.object = *stored;
    if (item.object != nullptr) {
      core_->objects.Hold(item.object);
      // In the class `portable`, bytes may differ within rounding. If the stored object has other
      // digests than the received one, the received bytes are not used.
      item.needed = item.object->slice_digests() == spec_.objects[i].slice_digests;
    } else {
      item.object = core_->objects.NewObject(core_->objects.NextNumber(), item.segment->key,
                                             spec_.objects[i].id, spec_.objects[i].slice_digests,
                                             *item.layers, item.slice_bytes, spec_.publisher);
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<StoredObject*> PublishSessionImpl::Stored(size_t i) const {
  core_->mu.AssertHeld();
  const PublishObject& announced = spec_.objects[i];
  const SegmentNode* node = core_->catalog.index().Find(items_[i].segment->key);
  if (node == nullptr) return nullptr;
  if (!node->Is(*items_[i].segment, spec_.token_ids)) {
    return absl::InternalError("key collision: another prompt is stored under the same key");
  }
  StoredObject* object = node->objects[static_cast<size_t>(announced.id.group)];
  // In the class `portable`, bytes agree only within rounding: the first stored object stays.
  if (object == nullptr || announced.slice_digests.empty() ||
      object->slice_digests() == announced.slice_digests ||
      !BitsFollowKeys(model_->layout.exactness)) {
    return object;
  }
  core_->Count(Counter::kNondeterminism);
  return absl::AbortedError(
      absl::StrCat(ObjectName(announced.id),
                   " is stored with different bytes under the same key: nondeterminism"));
}

void PublishSessionImpl::ChooseBoundaries() {
  core_->mu.AssertHeld();
  const auto is_missing = [this](const size_t i) {
    return items_[i].object == nullptr || items_[i].lost;
  };
  const auto is_left_out = [&](const Boundary& named) {
    const auto missing = std::count_if(named.items.begin(), named.items.end(), is_missing);
    if (missing == 0) return false;
    plan_.notes.push_back(absl::StrCat("boundary ", named.boundary, " left out: ", missing, " of ",
                                       named.items.size(), " objects did not arrive"));
    return true;
  };
  boundaries_.erase(std::remove_if(boundaries_.begin(), boundaries_.end(), is_left_out),
                    boundaries_.end());
}

// Reserves quota, and RAM or disk space, for the new objects, and lists the objects that must be
// written.
absl::Status PublishSessionImpl::MakeRoom() {
  core_->mu.AssertHeld();
  Persisting& work = plan_.work;
  absl::flat_hash_set<StoredObject*> listed;
  uint64_t new_bytes = 0, new_objects = 0, host_bytes = 0;
  const absl::Time now = core_->clock->Now();
  plan_.expires = ExpiryOf(now);
  const uint64_t most_s = core_->catalog.accounts().QuotaOf(spec_.tenant).max_ttl_s;
  const uint64_t keep_s = spec_.hint.keep_s;
  plan_.kept_until = now + absl::Seconds(most_s > 0 ? std::min(keep_s, most_s) : keep_s);
  for (Boundary& kept : boundaries_) {
    HoldPoint(&kept, now);
    std::vector<StoredObject*> objects;
    for (const size_t i : kept.items) {
      const Item& item = items_[i];
      assert(item.object != nullptr && item.object->sessions > 0 && !item.lost);
      StoredObject* object = objects.emplace_back(item.object);
      if (!listed.insert(object).second) continue;
      plan_.promised.push_back(object);
      if (object->names == 0) ++new_objects, new_bytes += object->bytes();
      if (object->on_disk) continue;
      if (!object->in_host()) host_bytes += object->bytes();
      work.objects.push_back({object, item.segment->key,
                              item.complete() ? item.whole : object->host, item.complete()});
      work.reserved_bytes += object->disk_cost_bytes();
    }
    work.reserved_bytes += ManifestCostBytes(kept.boundary, spec_.tenant.size(), objects);
  }
  if (!core_->evictor.Promise(spec_.tenant, plan_.promised)) {
    plan_.promised.clear();
    core_->Count(Counter::kPublishesRefusedQuota);
    return core_->catalog.accounts().NoRoom(spec_.tenant, new_bytes, new_objects);
  }
  assert(work.objects.size() <= plan_.promised.size());
  if (absl::Status status = ReservePoints(); !status.ok()) return status;
  const bool has_disk = core_->tiers.disk != nullptr;
  if (plan_.level == Durability::kMemory) {
    if (core_->evictor.ReserveHost(host_bytes, spec_.tenant)) {
      plan_.host_reserved_bytes = plan_.unwritten_bytes = host_bytes;
      return absl::OkStatus();
    }
    plan_.level = Durability::kDisk;  // RAM has no space: use the disk instead
  }
  if (has_disk && !plan_.may_evict && !core_->evictor.FitsOnDisk(work.reserved_bytes)) {
    core_->Count(Counter::kPublishesRefusedFull);
    return absl::ResourceExhaustedError(
        "disk tier: No space left on device: other programs' files fill the volume, so eviction "
        "would not help; make room on it");
  }
  if (!has_disk || !core_->evictor.ReserveDisk(work.reserved_bytes, spec_.tenant)) {
    core_->Count(Counter::kPublishesRefusedFull);
    return has_disk ? TierFull("disk", work.reserved_bytes, core_->disk_limit_bytes)
                    : TierFull("host", host_bytes, core_->options.host_bytes);
  }
  ListManifests();
  return absl::OkStatus();
}

// Reserves RAM for the bookkeeping of the new nodes and restore points. An eviction may remove
// nodes that were counted as existing, so after an eviction, counts again.
absl::Status PublishSessionImpl::ReservePoints() {
  core_->mu.AssertHeld();
  uint64_t& reserved = plan_.points_reserved_bytes;
  for (bool is_counted = false; !is_counted;) {
    const uint64_t bytes = PointBytesToAdd();
    if (bytes <= reserved) break;
    const uint64_t evicted = core_->catalog.evicted();
    if (!core_->evictor.ReservePoints(bytes - reserved, spec_.tenant)) {
      core_->Count(Counter::kPublishesRefusedFull);
      return absl::ResourceExhaustedError(absl::StrCat(
          "host tier full: ", bytes, " bytes for a restore point's bookkeeping do not fit: ",
          core_->evictor.PointBytes() - reserved, " bytes are in use, at most ",
          core_->evictor.limits().point_bytes,
          ", and too few can be evicted, because restore points are pinned or being read; raise "
          "host_bytes, ",
          core_->options.host_bytes));
    }
    reserved = bytes;
    is_counted = core_->catalog.evicted() == evicted;
  }
  return absl::OkStatus();
}

// Counts the bookkeeping of the missing nodes and restore points, and of a RAM copy of each object.
uint64_t PublishSessionImpl::PointBytesToAdd() const {
  core_->mu.AssertHeld();
  const PrefixIndex& index = core_->catalog.index();
  uint64_t bytes = Catalog::SpaceCostBytes(spec_.tenant.size());
  for (const std::vector<KeyedSegment>* segments : {&chain_->chunks, &chain_->remainders}) {
    for (const KeyedSegment& segment : *segments) {
      if (index.Find(segment.key) != nullptr) continue;
      bytes += PrefixIndex::NodeCostBytes(segment.segment.tokens, segment.cuts.size());
    }
  }
  for (const Boundary& kept : boundaries_) {
    if (kept.held) continue;
    bytes += RestorePointEntry::CostBytes(kept.items.size(), CutsUpTo(kept.boundary).size());
  }
  for (const Item& item : items_) {
    if (item.object == nullptr || item.object->in_host()) continue;
    bytes += StoredObject::HostCopyCostBytes(item.layers->size());
  }
  return bytes;
}

// Finds an existing restore point, protects it from eviction until EndPlan(), and sets its new
// expiry.
void PublishSessionImpl::HoldPoint(Boundary* kept, absl::Time now) {
  core_->mu.AssertHeld();
  RestorePointEntry* point = core_->catalog.Find(kept->segment->key);
  if (point != nullptr && HasExpired(*point, now)) {
    core_->catalog.Remove(point, Removal::kExpired);
    point = nullptr;
  }
  kept->held = point != nullptr;
  kept->expires = plan_.expires;
  if (kept->held) {
    core_->catalog.HoldPoint(point);
    core_->catalog.BeginRenewal(point);
    // The first publish sets the expiry; later publishes only extend it. A publish without a time
    // to live does not remove an expiry.
    const bool asks = plan_.expires != absl::InfiniteFuture();
    if (!point->expiry.inherited) {
      kept->expires = asks ? std::max<absl::Time>(plan_.expires, point->expiry.at)
                           : absl::Time(point->expiry.at);
    }
  }
  kept->expires = std::max(kept->expires, plan_.kept_until);
  kept->number = kept->held ? point->number : core_->objects.NextNumber();
  kept->manifest = kept->held ? point->manifest : kept->number;
}

void PublishSessionImpl::ListManifests() {
  core_->mu.AssertHeld();
  plan_.work.fingerprint = FingerprintRecord{spec_.fingerprint, spec_.tenant};
  for (Boundary& kept : boundaries_) {
    RestorePointEntry* point = kept.held ? core_->catalog.Find(kept.segment->key) : nullptr;
    // Write a new manifest if the manifest on disk has an earlier expiry than RAM.
    const bool is_written = point != nullptr && point->durable;
    if (is_written && !EndsEarlier(*point, kept) && kept.expires <= point->expiry.written) continue;
    kept.write = true;
    if (is_written) kept.manifest = core_->objects.NextNumber();
    if (point != nullptr && point->pinned) plan_.work.pins.push_back(kept.manifest);
    plan_.work.manifests.push_back(RecordFor(kept));
    if (is_written) plan_.work.manifests.back().replaced = point->manifest;
    plan_.work.points.push_back(kept.segment->key);
    assert(plan_.work.manifests.size() == plan_.work.points.size());
  }
}

ManifestRecord PublishSessionImpl::RecordFor(const Boundary& kept) {
  std::vector<StoredObject*> objects;
  for (const size_t i : kept.items) objects.push_back(items_[i].object);
  ManifestRecord record = DiskWriter::NewRecord(
      kept.manifest, spec_.tenant,
      {spec_.token_ids.begin(), spec_.token_ids.begin() + kept.boundary}, objects);
  record.created_unix_s = static_cast<uint64_t>(absl::ToUnixSeconds(core_->clock->Now()));
  record.expires_unix_s = ExpiresUnixSeconds(kept.expires);
  record.manifest.fingerprint = spec_.fingerprint.digest();
  record.manifest.cuts = CutsUpTo(kept.boundary);
  assert(record.number > 0 && record.manifest.token_count == kept.boundary);
  assert(record.objects.size() == kept.items.size());
  return record;
}

// Releases the reserved quota and the protected restore points.
void PublishSessionImpl::EndPlan() {
  core_->mu.AssertHeld();
  core_->objects.Unpromise(plan_.promised);
  plan_.promised.clear();
  core_->evictor.UnreservePoints(std::exchange(plan_.points_reserved_bytes, 0));
  for (const Boundary& kept : boundaries_) {
    if (!kept.held) continue;
    RestorePointEntry* point = core_->catalog.Find(kept.segment->key);
    if (point == nullptr || point->number != kept.number) continue;
    assert(point->sessions > 0);  // HoldPoint() took the reference
    core_->catalog.EndRenewal(point);
    core_->catalog.ReleasePoint(point);
  }
}

absl::Time PublishSessionImpl::ExpiryOf(absl::Time now) {
  core_->mu.AssertHeld();
  const TenantQuota& quota = core_->catalog.accounts().QuotaOf(spec_.tenant);
  absl::Duration ttl = spec_.ttl;
  if (ttl <= absl::ZeroDuration()) {
    ttl = quota.default_ttl_s > 0 ? absl::Seconds(quota.default_ttl_s) : core_->options.default_ttl;
  }
  const absl::Duration most = absl::Seconds(quota.max_ttl_s);
  if (quota.max_ttl_s > 0 && (ttl == absl::ZeroDuration() || ttl > most)) {
    if (spec_.ttl > most) {
      plan_.notes.push_back(
          absl::StrCat("ttl_s lowered to the tenant's max_ttl_s, ", quota.max_ttl_s));
    }
    ttl = most;
  }
  return ttl == absl::ZeroDuration() ? absl::InfiniteFuture() : now + ttl;
}

void PublishSessionImpl::Reveal() {
  core_->mu.AssertHeld();
  core_->catalog.feed().BeginPublish(static_cast<uint32_t>(spec_.token_ids.size()));
  for (Boundary& kept : boundaries_) {
    for (const size_t i : kept.items) {
      // Count the object: it is only in RAM, where space was reserved for it.
      const Item& item = items_[i];
      if (!item.complete() || item.object->in_host() || item.object->on_disk) continue;
      PutInHost(item, &plan_.host_reserved_bytes);
    }
    AdmitToHost(kept);
    // If an existing restore point was dropped during the write, leave it out of the result.
    RestorePointEntry* known = core_->catalog.Find(kept.segment->key);
    const bool is_gone = kept.held && (known == nullptr || known->number != kept.number);
    const bool is_dropped = is_gone || IsDropped();
    kept.shown = !is_dropped && IsWhole(kept);
    if (kept.shown) {
      Show(kept);
    } else {
      plan_.notes.push_back(absl::StrCat("boundary ", kept.boundary, " left out: ",
                                         is_dropped ? "it was dropped during the publish"
                                                    : "an object was lost during the publish"));
      if (kept.write) core_->objects.DiscardManifest(kept.manifest);
    }
    if (core_->Yield(kept.items.size())) {
      core_->catalog.feed().BeginPublish(static_cast<uint32_t>(spec_.token_ids.size()));
    }
  }
}

void PublishSessionImpl::Show(const Boundary& kept) {
  core_->mu.AssertHeld();
  SegmentNode* end = LinkBoundary(kept);
  std::vector<StoredObject*> objects;
  for (const size_t i : kept.items) objects.push_back(items_[i].object);
  RestorePointEntry* point = end->restore_point;
  const bool is_new = point == nullptr;
  if (is_new) {
    point =
        core_->catalog.AddRestorePoint(kept.number, spec_.tenant, model_, end, std::move(objects),
                                       CutsUpTo(kept.boundary), core_->clock->Now());
    core_->catalog.Renew(point, kept.expires);
    core_->Count(Counter::kPublishedRestorePoints);
  }
  assert(point->tokens() == kept.boundary && point->objects.size() == kept.items.size());
  const bool is_renewed = !is_new && EndsEarlier(*point, kept);
  if (is_renewed) core_->catalog.Renew(point, kept.expires);
  const bool is_made_durable = kept.write && !point->durable;
  // A lookup may have created the restore point during the write; then the point gets the manifest
  // that was written.
  if (kept.write) core_->catalog.SetDurable(point, kept.manifest, kept.expires);
  if (!point->durable || (is_renewed && !kept.write)) plan_.unwritten.push_back(point->id());
  core_->catalog.Touch(point, core_->clock->Now());
  if (spec_.hint.is_given()) {
    core_->catalog.SetHint(point, spec_.hint.priority, plan_.kept_until, core_->clock->Now());
  }
  // Send the event now that the restore point is complete, so that the event agrees with List.
  if (is_new) {
    core_->events.Post(StoreEvent::Kind::kStored, core_->Describe(*point));
  } else if (is_made_durable) {
    core_->events.Post(StoreEvent::Kind::kDurable, core_->Describe(*point));
  }
}

bool PublishSessionImpl::IsWhole(const Boundary& kept) const {
  return std::all_of(kept.items.begin(), kept.items.end(),
                     [&](const size_t i) { return IsThere(*items_[i].object); });
}

SegmentNode* PublishSessionImpl::LinkBoundary(const Boundary& kept) {
  core_->mu.AssertHeld();
  PrefixIndex& index = core_->catalog.index();
  const uint32_t chunk_tokens = model_->layout.chunk_tokens;
  SegmentNode* node = index.EnsureRoot(chain_->root);
  size_t next = 0;  // the items are in the order of their segments
  for (const Segment& segment : SegmentsTo(kept.boundary, chunk_tokens)) {
    node = index.Ensure(node, *chain_->EndingAt(segment.end(), chunk_tokens), spec_.token_ids);
    // collisions are impossible: AdoptStaged() checked for them, and the keys are claimed
    assert(node != nullptr);
    for (; next < kept.items.size(); ++next) {
      StoredObject* object = items_[kept.items[next]].object;
      if (object->id.begin != segment.begin) break;
      if (object->node == nullptr) core_->objects.Link(object, node);
    }
  }
  assert(next == kept.items.size());
  return node;
}

void PublishSessionImpl::PutInHost(const Item& item, uint64_t* reserved_bytes) {
  core_->mu.AssertHeld();
  assert(item.whole != nullptr && !item.object->in_host());
  const uint64_t bytes = std::min(*reserved_bytes, item.object->bytes());
  core_->evictor.UnreserveHost(bytes);
  *reserved_bytes -= bytes;
  core_->objects.SetInHost(item.object, item.whole);
}

void PublishSessionImpl::AdmitToHost(const Boundary& kept) {
  core_->mu.AssertHeld();
  uint64_t bytes = 0;
  for (const size_t i : kept.items) {
    const Item& item = items_[i];
    if (item.object->in_host()) continue;
    if (!item.complete()) return;  // an object is only on disk: the next fetch promotes it
    bytes += item.object->bytes();
  }
  if (!core_->evictor.ReserveHost(bytes, spec_.tenant)) return;
  for (const size_t i : kept.items) {
    if (!items_[i].object->in_host()) PutInHost(items_[i], &bytes);
  }
  assert(bytes == 0);  // every object for which space was reserved is in RAM
  core_->evictor.UnreserveHost(bytes);
}

}  // namespace hearth
