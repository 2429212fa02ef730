#include "cache_store/shared/tier/shared_lookup.h"

#include <algorithm>
#include <utility>

#include "proto/restore_rule.h"

namespace hearth {
namespace {

// Fingerprints say nothing of a tenant: one list for all.
constexpr char kEverybody[] = "";
constexpr char kPublisher[] = "the shared tier";

// Of what a load may take by the engine's speed: it is not always the same.
constexpr double kSafeShare = 0.7;

uint64_t BytesOf(const KvLayout& layout, absl::Span<const ObjectId> ids) {
  uint64_t bytes = 0;
  for (const ObjectId& id : ids) bytes += layout.ObjectBytes(id.tokens, id.group);
  return bytes;
}

absl::Status BeginningLeft() { return absl::NotFoundError("its beginning has left the store"); }

std::vector<uint32_t> CutsUpTo(absl::Span<const uint32_t> cuts, uint32_t boundary) {
  return {cuts.begin(), std::upper_bound(cuts.begin(), cuts.end(), boundary)};
}

}  // namespace

void SharedLookup::Observe(const Fingerprint& fingerprint) {
  fingerprints_.Learn(fingerprint, kEverybody);
}

std::shared_ptr<const KnownFingerprint> SharedLookup::Find(const Digest& fingerprint) const {
  return fingerprints_.Find(fingerprint, kEverybody);
}

void SharedLookup::Hear(absl::Span<const std::string* const> tenants) {
  if (is_paused() || NowMs() < deaf_until_ms_.load()) return;
  std::vector<std::string> names;
  for (const std::string* tenant : tenants) {
    if (!tenant->empty()) names.push_back(*tenant);
  }
  const absl::Duration patience = absl::Milliseconds(hear_patience_ms_.load());
  if (HearWithin(names, std::min(core_->options.fetch_budget, patience))) return;
  deaf_until_ms_.store(NowMs() + absl::ToInt64Milliseconds(kPause));
  writer_->RunBeside([this, names] { HearWithin(names, core_->options.write_timeout); });
}

bool SharedLookup::HearWithin(absl::Span<const std::string> tenants, absl::Duration most) {
  const absl::Time deadline = core_->clock->Now() + most;
  for (const std::string& tenant : tenants) {
    const absl::Time begin = core_->steady->Now();
    if (!core_->spaces.Hear(tenant, deadline)) continue;
    const bool has_told = core_->clock->Now() < deadline;
    const absl::Duration took = has_told ? core_->steady->Now() - begin : absl::ZeroDuration();
    hear_patience_ms_.store(absl::ToInt64Milliseconds(std::max(kHearPatience, 2 * took)));
    if (!has_told) return false;
  }
  return true;
}

SharedLookup::Brought SharedLookup::Bring(PrefixQuery* query, uint32_t above_tokens,
                                          uint32_t max_tokens) {
  if (is_paused()) return {};
  const absl::Time deadline = core_->clock->Now() + core_->options.fetch_budget;
  const Brought brought = BringUntil(query, above_tokens, max_tokens, deadline);
  if (core_->clock->Now() >= deadline && !brought.is_answered) {
    paused_until_ms_.store(NowMs() + absl::ToInt64Milliseconds(kPause));
  }
  return brought;
}

SharedLookup::Brought SharedLookup::BringUntil(PrefixQuery* asked, uint32_t above_tokens,
                                               uint32_t max_tokens, absl::Time deadline) {
  const PrefixQuery& query = *asked;
  const uint32_t tokens = static_cast<uint32_t>(query.token_ids.size());
  Question question;
  question.query = &query;
  question.deadline = deadline;
  Hear({&query.tenant, &query.public_tenant});
  question.model = Find(query.fingerprint);
  if (question.model == nullptr || tokens == 0) return {};
  const uint32_t highest = max_tokens == 0 ? tokens - 1 : std::min(max_tokens, tokens);
  question.candidates = RestoreCandidates(highest, query.cuts, question.model->layout.chunk_tokens);
  const bool has_public = !query.public_tenant.empty() && query.public_tenant != query.tenant;
  TieredStore::Peeked here = core_->store->Peek(query, max_tokens);
  asked->chains = std::move(here.chains);
  question.above = std::max({above_tokens, here.own, here.of_public});
  Brought brought;
  if (question.candidates.empty() || question.candidates.back() <= question.above) return brought;
  core_->Count(Counter::kSharedLookups);

  std::unique_ptr<Probed> best = Probe(question, query.tenant, here.own);
  if (best != nullptr) brought.known_tokens = best->map->KnownTokens();
  const bool is_whole = best != nullptr && best->boundary == question.candidates.back();
  if (!is_whole && has_public) {
    std::unique_ptr<Probed> theirs = Probe(question, query.public_tenant, here.of_public);
    if (theirs != nullptr) {
      brought.known_tokens = std::max(brought.known_tokens, theirs->map->KnownTokens());
      if (best == nullptr || theirs->boundary > best->boundary) best = std::move(theirs);
    }
  }
  if (best == nullptr || best->boundary == 0) return brought;
  best->boundary = Affordable(question, *best);
  if (best->boundary == 0) {
    core_->Count(Counter::kSharedNotKept);
    return brought;
  }
  brought.is_hit = LoadOnce(question, best.get());
  brought.is_answered = best->is_answered;
  if (brought.is_hit) core_->Count(Counter::kSharedHits);
  return brought;
}

SharedLookup::Known SharedLookup::KnownOf(const PrefixQuery& query, uint32_t usable_here) {
  Question question;
  question.query = &query;
  question.model = Find(query.fingerprint);
  if (question.model == nullptr) return {};
  const uint32_t tokens = static_cast<uint32_t>(query.token_ids.size());
  question.candidates = RestoreCandidates(tokens, query.cuts, question.model->layout.chunk_tokens);
  if (question.candidates.empty()) return {};
  question.above = usable_here;
  question.deadline = core_->clock->Now() + core_->options.fetch_budget;
  const std::unique_ptr<Probed> probed = Probe(question, query.tenant, usable_here);
  Known known;
  if (probed == nullptr) return known;
  known.known_tokens = probed->map->KnownTokens();
  known.model = question.model;
  known.boundaries = probed->map->Restorable(question.candidates, usable_here);
  return known;
}

std::unique_ptr<SharedLookup::Probed> SharedLookup::Probe(const Question& question,
                                                          const std::string& tenant,
                                                          uint32_t usable_here) {
  const PrefixQuery& query = *question.query;
  const absl::StatusOr<SharedSpaces::SpacePtr> space = core_->spaces.Of(tenant, question.deadline);
  if (!space.ok()) {
    if (!absl::IsNotFound(space.status())) core_->Count(Counter::kSharedUnanswered);
    return nullptr;
  }
  const KvLayout& layout = question.model->layout;
  auto probed = std::make_unique<Probed>();
  probed->tenant = tenant;
  probed->prompt = {
      *space, layout,
      ChainOf(query.chains, layout, (*space)->RootOf(query.fingerprint), query.token_ids,
              query.cuts, question.candidates.back(), query.cuts, query.stopped),
      query.token_ids};
  if (!probed->prompt.chain->is_whole) return nullptr;
  probed->map = std::make_unique<ObjectMap>(layout, *probed->prompt.chain, usable_here);
  reader_.Probe(probed->prompt, question.deadline, probed->map.get());
  probed->boundary = probed->map->Longest(question.candidates, question.above);
  return probed;
}

bool SharedLookup::LoadOnce(const Question& question, Probed* probed) {
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
      mu_.AwaitWithTimeout(absl::Condition(&is_done), question.deadline - core_->clock->Now());
      return false;
    }
  }
  // Another may have loaded it since this one looked.
  const TieredStore::Peeked here = core_->store->Peek(*question.query, probed->boundary);
  const bool is_own = probed->tenant == question.query->tenant;
  const bool is_here = (is_own ? here.own : here.of_public) == probed->boundary;
  const bool is_loaded = !is_here && Load(question, probed);
  absl::MutexLock lock(&mu_);
  under_way_.erase(key);
  return is_loaded;
}

uint32_t SharedLookup::Affordable(const Question& question, const Probed& probed) {
  uint64_t most = core_->options.max_loading_bytes;
  if (const uint64_t rate = bytes_per_s_.load(); rate > 0) {
    const double left = absl::ToDoubleSeconds(question.deadline - core_->clock->Now());
    most = std::min(
        most, static_cast<uint64_t>(kSafeShare * std::max(0.0, left) * static_cast<double>(rate)));
  }
  const auto fits = [&](uint32_t boundary) {
    return BytesOf(probed.prompt.layout, probed.map->NeededFromEngine(boundary)) <= most;
  };
  if (fits(probed.boundary)) return probed.boundary;
  if (most < core_->options.max_loading_bytes && MayTry()) most = core_->options.max_loading_bytes;
  if (fits(probed.boundary)) return probed.boundary;
  const std::vector<uint32_t> restorable =
      probed.map->Restorable(question.candidates, question.above);
  const auto end = std::partition_point(restorable.begin(), restorable.end(), fits);
  return end == restorable.begin() ? 0 : *(end - 1);
}

// Faster at once, slower by and by: a short load says little of how fast a long one is.
void SharedLookup::NoteSpeed(uint64_t bytes, absl::Duration took) {
  if (bytes == 0 || took < absl::Milliseconds(1)) return;
  const auto measured =
      static_cast<uint64_t>(static_cast<double>(bytes) / absl::ToDoubleSeconds(took));
  const uint64_t before = bytes_per_s_.load();
  bytes_per_s_.store(std::max<uint64_t>(1, measured > before ? measured : (before + measured) / 2));
}

// An engine that was slow for a moment, or gives small loads slowly, would never be asked again for
// what is large.
bool SharedLookup::MayTry() {
  const absl::Time now = core_->steady->Now();
  int64_t next = next_try_ms_.load();
  return absl::ToUnixMillis(now) >= next &&
         next_try_ms_.compare_exchange_strong(next, absl::ToUnixMillis(now + kTryPause));
}

bool SharedLookup::Load(const Question& question, Probed* probed) {
  const KvLayout& layout = probed->prompt.layout;
  const std::vector<ObjectId> ids = probed->map->NeededFromEngine(probed->boundary);
  const uint64_t bytes = BytesOf(layout, ids);
  LoadedObjects loaded;
  const bool fits = loading_bytes_.fetch_add(bytes) + bytes <= core_->options.max_loading_bytes;
  if (fits) {
    const absl::Time begin = core_->steady->Now();
    reader_.Load(probed->prompt, ids, question.deadline, question.query->stopped, &loaded);
    std::vector<ObjectId> came;
    for (const auto& [id, object] : loaded) came.push_back(id);
    NoteSpeed(BytesOf(layout, came), core_->steady->Now() - begin);
  }
  const bool came_whole = fits && loaded.size() == ids.size();
  const bool is_kept = came_whole && Keep(question, *probed, loaded).ok();
  loading_bytes_.fetch_sub(bytes);
  if (!is_kept && (came_whole || !fits)) core_->Count(Counter::kSharedNotKept);
  probed->is_answered = !loaded.empty();
  return is_kept;
}

absl::Status SharedLookup::Keep(const Question& question, const Probed& probed,
                                const LoadedObjects& loaded) {
  const PrefixQuery& query = *question.query;
  const absl::Time now = core_->clock->Now();
  PublishSpec spec;
  spec.fingerprint = question.model->fingerprint;
  spec.tenant = probed.tenant;
  spec.token_ids = {query.token_ids.begin(), query.token_ids.begin() + probed.boundary};
  spec.cuts = CutsUpTo(query.cuts, probed.boundary);
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
        if (left <= absl::ZeroDuration()) return absl::NotFoundError("its time is over");
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
