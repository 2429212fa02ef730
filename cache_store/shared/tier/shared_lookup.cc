#include "cache_store/shared/tier/shared_lookup.h"

#include <algorithm>
#include <cassert>
#include <deque>
#include <iterator>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "proto/restore_rule.h"
#include "proto/slice_hasher.h"

namespace hearth {
namespace {

// All tenants share one list of fingerprints, because fingerprints contain no data of tenants.
constexpr char kNoTenant[] = "";
constexpr char kPublisher[] = "the shared tier";

constexpr size_t kBatchesUnderWay = 6;
// A batch of reads has 1/kBatchShare of max_in_flight_bytes. It is so small that its bytes are
// still in the CPU cache when they are decrypted.
constexpr uint64_t kBatchShare = 16;
// Fraction of the measured speed with which loads are planned, because the engine's speed varies.
constexpr double kSafeShare = 0.7;

uint64_t BytesOf(const KvLayout& layout, absl::Span<const ObjectId> ids) {
  uint64_t bytes = 0;
  for (const ObjectId& id : ids) bytes += layout.ObjectBytes(id.tokens, id.group);
  return bytes;
}

absl::Status BeginningLeft() {
  return absl::NotFoundError("the first tokens of the restore point have left the store");
}

}  // namespace

ObjectMap::ObjectMap(const KvLayout& layout, const PromptChain& chain, uint32_t usable_here)
    : layout_(layout),
      chain_(chain),
      usable_here_(usable_here),
      has_local_(layout.LayerCount(LayerGroup::kLocal) > 0),
      has_global_(layout.LayerCount(LayerGroup::kGlobal) > 0) {
  assert(has_local_ || has_global_);
  if (usable_here == 0) return;
  for (const ObjectId& id : NeededObjects(layout, usable_here)) Set(id, Place::kHere);
}

std::vector<ObjectId> ObjectMap::ToProbe() const {
  std::vector<ObjectId> ids;
  const auto add = [&](const Segment& segment) {
    // Skip: a longer boundary needs no local (sliding window) objects before those of the usable
    // boundary.
    if (segment.end() <= usable_here_) return;
    if (has_global_) ids.push_back({segment.begin, segment.tokens, LayerGroup::kGlobal});
    if (has_local_) ids.push_back({segment.begin, segment.tokens, LayerGroup::kLocal});
  };
  for (const KeyedSegment& chunk : chain_.chunks) add(chunk.segment);
  for (const KeyedSegment& remainder : chain_.remainders) add(remainder.segment);
  return ids;
}

uint32_t ObjectMap::KnownTokens() const {
  const LayerGroup group = has_global_ ? LayerGroup::kGlobal : LayerGroup::kLocal;
  uint32_t known = 0;
  while (known < chain_.chunks.size() && HasChunk(known, group)) ++known;
  return known * layout_.chunk_tokens;
}

bool ObjectMap::HasRemainder(uint32_t boundary) const {
  const uint32_t tokens = boundary % layout_.chunk_tokens;
  if (tokens == 0) return true;
  const auto has = [&](LayerGroup group) { return Has(boundary - tokens, tokens, group); };
  const bool needs_local = has_local_ && boundary > LocalTailBegin(layout_, boundary);
  return (!has_global_ || has(LayerGroup::kGlobal)) && (!needs_local || has(LayerGroup::kLocal));
}

std::vector<uint32_t> ObjectMap::Restorable(absl::Span<const uint32_t> candidates,
                                            uint32_t above) const {
  assert(std::is_sorted(candidates.begin(), candidates.end()));
  size_t globals = 0;  // number of leading chunks whose global objects are known
  while (HasChunk(globals, LayerGroup::kGlobal)) ++globals;
  std::vector<uint32_t> found;
  // end of the last chunk without its local object, counted in chunks
  size_t next = 0, gap_end = 0;
  for (const uint32_t boundary : candidates) {
    const size_t chunks = boundary / layout_.chunk_tokens;
    if (has_global_ && chunks > globals) break;
    for (; next < chunks; ++next) {
      if (!HasChunk(next, LayerGroup::kLocal)) gap_end = next + 1;
    }
    const size_t tail = LocalTailBegin(layout_, boundary) / layout_.chunk_tokens;
    if (boundary <= above || (has_local_ && gap_end > tail)) continue;
    if (HasRemainder(boundary)) found.push_back(boundary);
  }
  return found;
}

std::vector<ObjectId> ObjectMap::NeededFromEngine(uint32_t boundary) const {
  std::vector<ObjectId> ids;
  for (const ObjectId& id : NeededObjects(layout_, boundary)) {
    if (Of(id) == Place::kEngine) ids.push_back(id);
  }
  return ids;
}

// An object that is being loaded from the engine. Its parts are processed in order.
struct SharedLookup::LoadedObject {
  SharedShape shape;
  SharedFacts facts;
  std::vector<std::shared_ptr<std::byte>> slices;  // slices in ascending order of layers
  // digests of the received slices; at the end they must equal the head's digests
  std::vector<uint64_t> digests;
  SliceHasher hasher;  // computes the digest of the slice that the next part continues
  uint32_t parts_left = 0;
  bool is_torn = false;     // whether a part was missing or invalid
  bool is_unknown = false;  // whether the engine did not answer for a part

  // Adds received bytes to the digest. REQUIRES: `bytes` belong to one slice.
  void Hash(absl::Span<const std::byte> bytes) {
    hasher.Add(bytes.data(), bytes.size());
    if (hasher.bytes() < shape.slice_bytes) return;
    digests.push_back(hasher.digest());
    hasher.Begin();
  }
};

// Reads objects of a prompt from the engine, and verifies each value. Counts missing and invalid
// values. Erases the head of an incomplete object, so that the next publisher writes the object
// again.
class SharedLookup::Loading {
 public:
  Loading(SharedCore* core, const SharedPrompt& prompt, absl::Time deadline)
      : core_(core), prompt_(prompt), deadline_(deadline) {}

  // Loads the objects `ids`, and returns those that arrived completely and in time. `stopped`: see
  // PrefixQuery::stopped.
  LoadedObjects Load(absl::Span<const ObjectId> ids, const std::function<bool()>& stopped) {
    LoadedObjects objects;
    std::vector<Part> parts;
    for (const ObjectId& id : ids) {
      LoadedObject& object = objects[id];
      object.shape = prompt_.ShapeOf(id);
      object.parts_left = object.shape.parts();
      for (uint32_t part = 0; part < object.parts_left; ++part) parts.push_back({&object, part});
    }
    // Batches in flight: while one batch is decrypted, the next ones are being read.
    std::deque<Batch> under_way;
    size_t requested = 0;
    for (;;) {
      while (requested < parts.size() && under_way.size() < kBatchesUnderWay &&
             core_->clock->Now() < deadline_ && !(stopped && stopped())) {
        under_way.push_back(RequestBatch(parts, requested));
        requested = under_way.back().end;
      }
      if (under_way.empty()) break;
      SharedEngine::Values values = under_way.front().values();
      const size_t begin = under_way.front().begin;
      under_way.pop_front();
      for (size_t i = 0; i < values.size(); ++i) Take(parts[begin + i], std::move(values[i]));
    }
    KeepWhole(&objects);
    return objects;
  }

 private:
  struct Part {
    LoadedObject* object = nullptr;
    uint32_t part = 0;
  };
  // A batch of requested parts: [begin, end) of the list of parts.
  struct Batch {
    SharedEngine::Later values;
    size_t begin = 0, end = 0;
  };

  void KeepWhole(LoadedObjects* objects) {
    std::vector<std::string> torn;  // names of the heads of incomplete objects
    for (auto it = objects->begin(); it != objects->end();) {
      LoadedObject& object = it->second;
      const bool is_whole = object.parts_left == 0 && !object.is_torn && !object.is_unknown;
      // Compare the digests with the head's: the parts may come from two publishers, which may have
      // computed different bytes. Each part is genuine, but the object is not.
      if (is_whole && object.digests != object.facts.slice_digests) {
        object.is_torn = true;
        core_->Count(Counter::kSharedRejectedValues);
      }
      if (object.is_torn) torn.push_back(prompt_.NameOf(it->first, 0));
      it = is_whole && !object.is_torn ? std::next(it) : objects->erase(it);
    }
    if (!torn.empty() && core_->clock->Now() < deadline_) core_->engine->Erase(torn, deadline_);
  }

  Batch RequestBatch(absl::Span<const Part> parts, size_t begin) {
    Batch batch{{}, begin, begin};
    std::vector<std::string> names;
    for (uint64_t bytes = 0; batch.end < parts.size(); ++batch.end) {
      const SharedShape& shape = parts[batch.end].object->shape;
      bytes += SharedSpace::kSealBytes + shape.TextBytes(parts[batch.end].part);
      if (batch.end > begin && bytes > core_->options.max_in_flight_bytes / kBatchShare) break;
      names.push_back(prompt_.NameOf(shape.id, parts[batch.end].part));
    }
    batch.values =
        core_->engine->GetLater(std::move(names), SharedSpace::kMaxValueBytes, deadline_);
    return batch;
  }

  void Take(const Part& part, absl::StatusOr<std::string> value) {
    absl::Status status = value.status();
    if (value.ok()) {
      core_->Count(Counter::kSharedReadBytes, value->size());
      status = Open(part.part, *value, part.object);
      core_->engine->Recycle(*std::move(value));
      if (status.ok()) return;
    }
    const bool is_gone = absl::IsNotFound(status), is_wrong = absl::IsDataLoss(status);
    (is_gone || is_wrong ? part.object->is_torn : part.object->is_unknown) = true;
    core_->Count(is_gone    ? Counter::kSharedVanishedParts
                 : is_wrong ? Counter::kSharedRejectedValues
                            : Counter::kSharedUnanswered);
  }

  absl::Status Open(uint32_t part, absl::string_view value, LoadedObject* object) {
    const SharedShape& shape = object->shape;
    while (object->slices.size() < shape.slices) {
      object->slices.push_back(core_->store->AllocateSlice(shape.slice_bytes));
    }
    std::vector<std::byte*> slices;
    for (const auto& slice : object->slices) slices.push_back(slice.get());
    std::vector<absl::Span<std::byte>> pieces = shape.PiecesOf(part, slices);
    std::string head(part == 0 ? shape.head_bytes() : 0, '\0');
    pieces.insert(pieces.begin(), {reinterpret_cast<std::byte*>(head.data()), head.size()});
    size_t head_left = head.size();
    const auto hash = [&](absl::Span<const std::byte> block) {
      if (head_left == 0) return object->Hash(block);
      head_left -= block.size();
    };
    absl::Status status =
        prompt_.space->OpenInto(prompt_.NameOf(shape.id, part), value, pieces, hash);
    if (!status.ok()) return status;
    if (part == 0) {
      absl::StatusOr<SharedFacts> facts = shape.ParseHead(head);
      if (!facts.ok()) return facts.status();
      object->facts = *std::move(facts);
      const uint64_t ends = object->facts.expires_unix_s;
      if (ends > 0 && absl::FromUnixSeconds(static_cast<int64_t>(ends)) <= core_->clock->Now()) {
        return absl::NotFoundError("the object has expired");
      }
    }
    assert(object->parts_left > 0);
    --object->parts_left;
    return absl::OkStatus();
  }

  SharedCore* const core_;
  const SharedPrompt& prompt_;
  const absl::Time deadline_;
};

void SharedLookup::Observe(const Fingerprint& fingerprint) {
  fingerprints_.Learn(fingerprint, kNoTenant);
}

std::shared_ptr<const KnownFingerprint> SharedLookup::Find(const Digest& fingerprint) const {
  return fingerprints_.Find(fingerprint, kNoTenant);
}

void SharedLookup::CheckForDrops(absl::Span<const std::string* const> tenants) {
  if (is_paused() || NowMs() < drop_check_paused_until_ms_.load()) return;
  std::vector<std::string> names;
  for (const std::string* tenant : tenants) {
    if (!tenant->empty()) names.push_back(*tenant);
  }
  const absl::Duration patience = absl::Milliseconds(drop_check_wait_ms_.load());
  if (CheckForDropsWithin(names, std::min(core_->options.fetch_budget, patience))) return;
  drop_check_paused_until_ms_.store(NowMs() + absl::ToInt64Milliseconds(kPause));
  writer_->RunInBackground(
      [this, names] { CheckForDropsWithin(names, SharedCore::kWriteTimeout); });
}

bool SharedLookup::CheckForDropsWithin(absl::Span<const std::string> tenants, absl::Duration most) {
  const absl::Time deadline = core_->clock->Now() + most;
  for (const std::string& tenant : tenants) {
    const absl::Time begin = core_->steady->Now();
    if (!core_->spaces.CheckForDrops(tenant, deadline)) continue;
    const bool has_answered = core_->clock->Now() < deadline;
    const absl::Duration took = has_answered ? core_->steady->Now() - begin : absl::ZeroDuration();
    drop_check_wait_ms_.store(absl::ToInt64Milliseconds(std::max(kDropCheckWait, 2 * took)));
    if (!has_answered) return false;
  }
  return true;
}

SharedLookup::LoadResult SharedLookup::LoadIntoStore(PrefixQuery* asked, uint32_t above_tokens,
                                                     uint32_t max_tokens) {
  LoadResult result;
  if (is_paused()) return result;
  const absl::Time deadline = core_->clock->Now() + core_->options.fetch_budget;
  const auto pause = absl::MakeCleanup([&] {
    if (core_->clock->Now() < deadline || result.is_answered) return;
    paused_until_ms_.store(NowMs() + absl::ToInt64Milliseconds(kPause));
  });
  const PrefixQuery& query = *asked;
  const uint32_t tokens = static_cast<uint32_t>(query.token_ids.size());
  LookupSpec lookup;
  lookup.query = &query;
  lookup.deadline = deadline;
  CheckForDrops({&query.tenant, &query.public_tenant});
  lookup.model = Find(query.fingerprint);
  if (lookup.model == nullptr || tokens == 0) return result;
  const uint32_t highest = max_tokens == 0 ? tokens - 1 : std::min(max_tokens, tokens);
  lookup.candidates = RestoreCandidates(highest, query.cuts, lookup.model->layout.chunk_tokens);
  const bool has_public = !query.public_tenant.empty() && query.public_tenant != query.tenant;
  LocalStore::Peeked here = core_->store->Peek(query, max_tokens);
  asked->chains = std::move(here.chains);
  lookup.above = std::max({above_tokens, here.own, here.of_public});
  if (lookup.candidates.empty() || lookup.candidates.back() <= lookup.above) return result;
  core_->Count(Counter::kSharedLookups);

  std::unique_ptr<Probed> best = Probe(lookup, query.tenant, here.own);
  if (best != nullptr) result.known_tokens = best->map->KnownTokens();
  const bool is_whole = best != nullptr && best->boundary == lookup.candidates.back();
  if (!is_whole && has_public) {
    std::unique_ptr<Probed> theirs = Probe(lookup, query.public_tenant, here.of_public);
    if (theirs != nullptr) {
      result.known_tokens = std::max(result.known_tokens, theirs->map->KnownTokens());
      if (best == nullptr || theirs->boundary > best->boundary) best = std::move(theirs);
    }
  }
  if (best == nullptr || best->boundary == 0) return result;
  assert(best->boundary > lookup.above && best->boundary <= lookup.candidates.back());
  best->boundary = Affordable(*best, deadline);
  if (best->boundary == 0) {
    core_->Count(Counter::kSharedNotKept);
    return result;
  }
  result.is_hit = LoadOnce(lookup, best.get());
  result.is_answered = best->is_answered;
  if (result.is_hit) core_->Count(Counter::kSharedHits);
  return result;
}

SharedLookup::Known SharedLookup::KnownOf(const PrefixQuery& query, uint32_t usable_here) {
  LookupSpec lookup;
  lookup.query = &query;
  lookup.model = Find(query.fingerprint);
  if (lookup.model == nullptr) return {};
  const uint32_t tokens = static_cast<uint32_t>(query.token_ids.size());
  lookup.candidates = RestoreCandidates(tokens, query.cuts, lookup.model->layout.chunk_tokens);
  if (lookup.candidates.empty()) return {};
  lookup.above = usable_here;
  lookup.deadline = core_->clock->Now() + core_->options.fetch_budget;
  const std::unique_ptr<Probed> probed = Probe(lookup, query.tenant, usable_here);
  Known known;
  if (probed == nullptr) return known;
  known.known_tokens = probed->map->KnownTokens();
  known.model = lookup.model;
  known.boundaries = probed->restorable;
  return known;
}

std::unique_ptr<SharedLookup::Probed> SharedLookup::Probe(const LookupSpec& lookup,
                                                          const std::string& tenant,
                                                          uint32_t usable_here) {
  const PrefixQuery& query = *lookup.query;
  const absl::StatusOr<SharedSpaces::SpacePtr> space = core_->spaces.Of(tenant, lookup.deadline);
  if (!space.ok()) {
    if (!absl::IsNotFound(space.status())) core_->Count(Counter::kSharedUnanswered);
    return nullptr;
  }
  const KvLayout& layout = lookup.model->layout;
  auto probed = std::make_unique<Probed>();
  probed->tenant = tenant;
  probed->prompt = {
      *space, layout,
      ChainOf(query.chains, layout, (*space)->RootOf(query.fingerprint), query.token_ids,
              query.cuts, lookup.candidates.back(), query.cuts, query.stopped),
      query.token_ids};
  if (!probed->prompt.chain->is_whole) return nullptr;
  probed->map = std::make_unique<ObjectMap>(layout, *probed->prompt.chain, usable_here);
  const std::vector<ObjectId> ids = probed->map->ToProbe();
  std::vector<std::string> names;
  names.reserve(ids.size());
  for (const ObjectId& id : ids) names.push_back(probed->prompt.NameOf(id, 0));
  const std::vector<absl::StatusOr<bool>> there = core_->engine->Exists(names, lookup.deadline);
  assert(there.size() == ids.size());
  for (size_t i = 0; i < ids.size(); ++i) {
    if (!there[i].ok()) core_->Count(Counter::kSharedUnanswered);
    if (there[i].ok() && *there[i]) probed->map->Set(ids[i], ObjectMap::Place::kEngine);
  }
  probed->restorable = probed->map->Restorable(lookup.candidates, lookup.above);
  if (!probed->restorable.empty()) probed->boundary = probed->restorable.back();
  return probed;
}

bool SharedLookup::LoadOnce(const LookupSpec& lookup, Probed* probed) {
  const KvLayout& layout = probed->prompt.layout;
  const Digest key = probed->prompt.chain->EndingAt(probed->boundary, layout.chunk_tokens)->key;
  {
    absl::MutexLock lock(&mu_);
    if (!under_way_.insert(key).second) {
      probed->is_answered = true;
      const auto is_done = [&] {
        mu_.AssertHeld();
        return !under_way_.contains(key);
      };
      mu_.AwaitWithTimeout(absl::Condition(&is_done), lookup.deadline - core_->clock->Now());
      return false;
    }
  }
  // Another lookup may have loaded the boundary since this lookup's Peek().
  const LocalStore::Peeked here = core_->store->Peek(*lookup.query, probed->boundary);
  const bool is_own = probed->tenant == lookup.query->tenant;
  const bool is_here = (is_own ? here.own : here.of_public) == probed->boundary;
  const bool is_loaded = !is_here && Load(lookup, probed);
  absl::MutexLock lock(&mu_);
  const size_t ended = under_way_.erase(key);
  assert(ended == 1);
  return is_loaded;
}

uint32_t SharedLookup::Affordable(const Probed& probed, absl::Time deadline) {
  uint64_t most = core_->options.max_loading_bytes;
  if (const uint64_t rate = bytes_per_s_.load(); rate > 0) {
    const double left = absl::ToDoubleSeconds(deadline - core_->clock->Now());
    most = std::min(
        most, static_cast<uint64_t>(kSafeShare * std::max(0.0, left) * static_cast<double>(rate)));
  }
  assert(!probed.restorable.empty() && probed.boundary == probed.restorable.back());
  const auto fits = [&](uint32_t boundary) {
    return BytesOf(probed.prompt.layout, probed.map->NeededFromEngine(boundary)) <= most;
  };
  if (fits(probed.boundary)) return probed.boundary;
  if (most < core_->options.max_loading_bytes && MayTry()) most = core_->options.max_loading_bytes;
  if (fits(probed.boundary)) return probed.boundary;
  const auto end = std::partition_point(probed.restorable.begin(), probed.restorable.end(), fits);
  return end == probed.restorable.begin() ? 0 : *(end - 1);
}

// Updates the estimated speed: raises it at once, but lowers it gradually, because a short load
// says little about the speed of a long load.
void SharedLookup::NoteSpeed(uint64_t bytes, absl::Duration took) {
  if (bytes == 0 || took < absl::Milliseconds(1)) return;
  const auto measured =
      static_cast<uint64_t>(static_cast<double>(bytes) / absl::ToDoubleSeconds(took));
  const uint64_t before = bytes_per_s_.load();
  bytes_per_s_.store(std::max<uint64_t>(1, measured > before ? measured : (before + measured) / 2));
}

// Returns whether to try a load that seems too slow. Allowed from time to time: otherwise an engine
// that was slow for a moment, or is slow for small loads, would never be asked for large objects
// again.
bool SharedLookup::MayTry() {
  const absl::Time now = core_->steady->Now();
  int64_t next = next_try_ms_.load();
  return absl::ToUnixMillis(now) >= next &&
         next_try_ms_.compare_exchange_strong(next, absl::ToUnixMillis(now + kTryPause));
}

bool SharedLookup::Load(const LookupSpec& lookup, Probed* probed) {
  const KvLayout& layout = probed->prompt.layout;
  const std::vector<ObjectId> ids = probed->map->NeededFromEngine(probed->boundary);
  const uint64_t bytes = BytesOf(layout, ids);
  LoadedObjects loaded;
  const bool fits = loading_bytes_.fetch_add(bytes) + bytes <= core_->options.max_loading_bytes;
  if (fits) {
    const absl::Time begin = core_->steady->Now();
    loaded = Loading(core_, probed->prompt, lookup.deadline).Load(ids, lookup.query->stopped);
    std::vector<ObjectId> came;
    for (const auto& [id, object] : loaded) came.push_back(id);
    NoteSpeed(BytesOf(layout, came), core_->steady->Now() - begin);
  }
  const bool came_whole = fits && loaded.size() == ids.size();
  const bool is_kept = came_whole && Keep(lookup, *probed, loaded).ok();
  const uint64_t loading = loading_bytes_.fetch_sub(bytes);
  assert(loading >= bytes);
  if (!is_kept && (came_whole || !fits)) core_->Count(Counter::kSharedNotKept);
  probed->is_answered = !loaded.empty();
  return is_kept;
}

absl::Status SharedLookup::Keep(const LookupSpec& lookup, const Probed& probed,
                                const LoadedObjects& loaded) {
  const PrefixQuery& query = *lookup.query;
  const absl::Time now = core_->clock->Now();
  PublishSpec spec;
  assert(probed.boundary > 0 && probed.boundary <= query.token_ids.size());
  spec.fingerprint = lookup.model->fingerprint;
  spec.tenant = probed.tenant;
  spec.token_ids = {query.token_ids.begin(), query.token_ids.begin() + probed.boundary};
  spec.cuts = {query.cuts.begin(),
               std::upper_bound(query.cuts.begin(), query.cuts.end(), probed.boundary)};
  spec.boundaries = {probed.boundary};
  spec.durability = Durability::kMemory;
  spec.publisher = kPublisher;
  spec.stopped = query.stopped;
  spec.chains = query.chains;
  spec.drop_number = probed.prompt.space->drop_number();
  for (const ObjectId& id : NeededObjects(probed.prompt.layout, probed.boundary)) {
    PublishObject object{id, {}, true};
    if (const auto it = loaded.find(id); it != loaded.end()) {
      object = {id, it->second.facts.slice_digests, false};
      if (const uint64_t ends = it->second.facts.expires_unix_s; ends > 0) {
        const absl::Duration left = absl::FromUnixSeconds(static_cast<int64_t>(ends)) - now;
        if (left <= absl::ZeroDuration())
          return absl::NotFoundError("an object of the restore point has expired");
        spec.ttl = spec.ttl > absl::ZeroDuration() ? std::min(spec.ttl, left) : left;
      }
    }
    spec.objects.push_back(std::move(object));
  }
  const std::vector<PublishObject> objects = spec.objects;
  auto session = core_->store->Publish(std::move(spec));
  if (!session.ok()) return session.status();
  for (const uint32_t i : (*session)->needed()) {
    const auto it = loaded.find(objects[i].id);
    if (it == loaded.end()) return BeginningLeft();
    const LoadedObject& object = it->second;
    const std::vector<uint32_t> layers = probed.prompt.layout.LayersOf(objects[i].id.group);
    for (uint32_t place = 0; place < layers.size(); ++place) {
      const std::shared_ptr<std::byte>& slice = object.slices[place];
      const absl::Status put =
          (*session)->PutSlice(i, layers[place], {slice, {slice.get(), object.shape.slice_bytes}},
                               object.digests[place]);
      if (!put.ok()) return put;
    }
  }
  const absl::StatusOr<PublishResult> result = (*session)->Commit();
  if (!result.ok()) return result.status();
  return result->boundaries.empty() ? BeginningLeft() : absl::OkStatus();
}

}  // namespace hearth
