#include "cache_store/shared/tier/shared_store.h"

#include <algorithm>
#include <cassert>

#include "absl/strings/str_cat.h"
#include "proto/restore_rule.h"

namespace hearth {
namespace {

absl::Status NotEverywhere(absl::string_view what, const absl::Status& why) {
  return absl::UnavailableError(absl::StrCat(
      what,
      " in this store, but the shared tier may still serve the data; call again: ", why.message()));
}

}  // namespace

absl::Status SharedOptions::Validate() const {
  if (fetch_budget < absl::Milliseconds(1) || fetch_budget > absl::Minutes(1)) {
    return absl::InvalidArgumentError(
        absl::StrCat("fetch_budget: must be 1ms to 1m; got ", absl::FormatDuration(fetch_budget)));
  }
  // At most a leap year, because no value should outlive its secret.
  if (ttl < absl::Seconds(1) || ttl > absl::Hours(24 * 366)) {
    return absl::InvalidArgumentError(
        absl::StrCat("ttl: must be 1s to 8784h; got ", absl::FormatDuration(ttl)));
  }
  return absl::OkStatus();
}

// A publish into the local store, which then goes to the engine.
class SharedStore::Session final : public PublishSession {
 public:
  Session(SharedStore* store, std::unique_ptr<PublishSession> session, SharedWork work, bool waits)
      : store_(store), session_(std::move(session)), work_(std::move(work)), waits_(waits) {}

  absl::Span<const uint32_t> needed() const override { return session_->needed(); }
  absl::StatusOr<std::shared_ptr<std::byte>> AllocateSlice(size_t bytes) override {
    return session_->AllocateSlice(bytes);
  }
  absl::Status PutSlice(uint32_t object, uint32_t layer, SliceView slice,
                        std::optional<uint64_t> digest) override {
    return session_->PutSlice(object, layer, std::move(slice), digest);
  }
  absl::StatusOr<PublishResult> Commit() override {
    const Stopwatch stopwatch;
    absl::StatusOr<PublishResult> result = CommitHere();
    if (MustWait(result)) Note(store_, stopwatch, store_->writer_.Write(work_), &*result);
    return result;
  }
  void CommitThen(std::function<void(absl::StatusOr<PublishResult>)> done) override {
    const Stopwatch stopwatch;
    absl::StatusOr<PublishResult> result = CommitHere();
    if (!MustWait(result)) return done(std::move(result));
    const auto acknowledge = [store = store_, stopwatch, result = *std::move(result),
                              done](const absl::Status& written) {
      PublishResult noted = result;
      Note(store, stopwatch, written, &noted);
      done(std::move(noted));
    };
    store_->writer_.WriteThen(std::move(work_), acknowledge);
  }

 private:
  absl::StatusOr<PublishResult> CommitHere() {
    absl::StatusOr<PublishResult> result = session_->Commit();
    if (!result.ok() || result->boundaries.empty()) return result;
    assert(result->boundaries.back() <= work_.token_ids.size());
    work_.boundaries = result->boundaries;
    if (!waits_) store_->writer_.WriteBehind(std::move(work_));
    return result;
  }
  bool MustWait(const absl::StatusOr<PublishResult>& result) const {
    return waits_ && result.ok() && !result->boundaries.empty();
  }
  static void Note(SharedStore* store, const Stopwatch& stopwatch, const absl::Status& written,
                   PublishResult* result) {
    if (written.ok()) {
      assert(!result->boundaries.empty());
      result->durable = Durability::kShared;
      store->commits_.Observe(stopwatch.Elapsed());
    } else {
      result->notes.push_back(
          absl::StrCat("the restore points are not in the shared tier: ", written.message()));
    }
  }

  SharedStore* const store_;
  const std::unique_ptr<PublishSession> session_;
  SharedWork work_;
  const bool waits_;
};

SharedStore::SharedStore(std::unique_ptr<LocalStore> store, std::unique_ptr<SharedEngine> engine,
                         const std::string& secret, const SharedOptions& options, Seams seams)
    : ForwardingStore(store.get()),
      core_(std::move(store), std::move(engine), secret, options, seams.clock, seams.steady),
      lookup_(&core_, &writer_),
      writer_(&core_, std::move(seams.executor), std::move(seams.waiting)) {}

absl::StatusOr<std::unique_ptr<FetchSession>> SharedStore::Fetch(const PrefixQuery& query,
                                                                 uint32_t above_tokens,
                                                                 uint32_t max_tokens) {
  // Do not ask the engine for a repeated query: the caller could not use the result of the first
  // query, which asked the engine.
  if (query.again) return core_.store->Fetch(query, above_tokens, max_tokens);
  PrefixQuery asked = query;
  const SharedLookup::LoadResult loaded = lookup_.LoadIntoStore(&asked, above_tokens, max_tokens);
  asked.known_tokens = loaded.known_tokens;
  if (loaded.is_hit) asked.loaded_from = Tier::kShared;
  auto session = core_.store->Fetch(asked, above_tokens, max_tokens);
  if (!session.ok() || (*session)->plan().usable_tokens == 0) return session;
  const LookupPlan& plan = (*session)->plan();
  // Learn the fingerprint from the plan: the local store also knows models from before its start,
  // but this tier does not.
  if (lookup_.Find(query.fingerprint) == nullptr) lookup_.Observe(plan.fingerprint);
  writer_.NoteUse({query.fingerprint,
                   plan.layout,
                   plan.from_public ? query.public_tenant : query.tenant,
                   plan.token_ids,
                   plan.cuts,
                   {plan.usable_tokens}});
  return session;
}

absl::StatusOr<std::unique_ptr<FetchSession>> SharedStore::FetchById(const Digest& id,
                                                                     const std::string& tenant) {
  lookup_.CheckForDrops({&tenant});
  return core_.store->FetchById(id, tenant);
}

absl::StatusOr<std::unique_ptr<PublishSession>> SharedStore::Publish(PublishSpec spec) {
  lookup_.Observe(spec.fingerprint);
  const absl::StatusOr<KvLayout> layout = spec.fingerprint.Layout();
  if (!layout.ok()) return layout.status();
  SharedWork work{spec.fingerprint.digest(), *layout, spec.tenant, spec.token_ids, spec.cuts, {}};
  const bool waits = spec.durability == Durability::kShared;
  if (waits) spec.durability = Durability::kDisk;
  auto session = core_.store->Publish(std::move(spec));
  if (!session.ok()) return session;
  return std::make_unique<Session>(this, *std::move(session), std::move(work), waits);
}

absl::StatusOr<ClaimDecision> SharedStore::Claim(const PrefixQuery& query, ClaimRequest ask) {
  lookup_.CheckForDrops({&query.tenant, &query.public_tenant});
  return core_.store->Claim(query, std::move(ask));
}

void SharedStore::Observe(const Fingerprint& fingerprint, const std::string& tenant) {
  lookup_.Observe(fingerprint);
  core_.store->Observe(fingerprint, tenant);
}

absl::StatusOr<ExplainReport> SharedStore::Explain(const PrefixQuery& query) {
  lookup_.CheckForDrops({&query.tenant, &query.public_tenant});
  absl::StatusOr<ExplainReport> report = core_.store->Explain(query);
  if (!report.ok()) return report;
  uint32_t own = 0;
  for (const BoundaryReport& boundary : report->boundaries) {
    if (boundary.usable && !boundary.from_public) own = boundary.boundary;
  }
  const SharedLookup::Known known = lookup_.KnownOf(query, own);
  report->matched_tokens = std::max(report->matched_tokens, known.known_tokens);
  if (known.boundaries.empty()) return report;
  std::vector<BoundaryReport> shared;
  for (const uint32_t boundary : known.boundaries) {
    BoundaryReport& added = shared.emplace_back();
    added.boundary = boundary;
    added.usable = true;
    added.slowest_tier = Tier::kShared;
    added.bytes = NeededBytes(known.model->layout, boundary);
  }
  report->AddUsable(shared);
  const uint32_t tokens = static_cast<uint32_t>(query.token_ids.size());
  uint32_t usable = 0;
  for (const BoundaryReport& boundary : report->boundaries) {
    if (boundary.usable && boundary.boundary < tokens) usable = boundary.boundary;
  }
  if (usable <= report->usable_tokens) return report;
  report->usable_tokens = usable;
  report->summary = absl::StrCat(
      "hit: ", usable, " of ", tokens,
      " tokens can be restored from the shared tier; this store alone: ", report->summary);
  return report;
}

absl::Status SharedStore::EraseHeads(const Digest& fingerprint, const std::string& tenant,
                                     absl::Span<const uint32_t> token_ids,
                                     absl::Span<const uint32_t> cuts,
                                     absl::Span<const ObjectId> ids) {
  const std::shared_ptr<const KnownFingerprint> model = lookup_.Find(fingerprint);
  if (ids.empty()) return absl::OkStatus();
  if (model == nullptr) {
    return absl::FailedPreconditionError(
        "the store does not know the fields of this fingerprint; send them with the request");
  }
  const absl::StatusOr<SharedSpaces::SpacePtr> space =
      core_.spaces.Of(tenant, core_.WriteDeadline());
  if (absl::IsNotFound(space.status())) return absl::OkStatus();
  if (!space.ok()) return space.status();
  const uint32_t tokens = static_cast<uint32_t>(token_ids.size());
  std::vector<uint32_t> ends(cuts.begin(), cuts.end());
  if (ends.empty() || ends.back() != tokens) ends.push_back(tokens);
  const SharedPrompt prompt{
      *space, model->layout,
      ChainOf({}, model->layout, (*space)->RootOf(fingerprint), token_ids, cuts, tokens, ends),
      token_ids};
  std::vector<std::string> names;
  for (const ObjectId& id : ids) {
    if (prompt.SegmentOf(id) != nullptr) names.push_back(prompt.NameOf(id, 0));
  }
  absl::Status status;
  for (const absl::Status& erased : core_.engine->Erase(names, core_.WriteDeadline()))
    status.Update(erased);
  return status;
}

absl::StatusOr<DropResult> SharedStore::Drop(const Digest& id, const std::string& tenant,
                                             bool force) {
  LookupPlan plan;
  if (auto session = core_.store->FetchById(id, tenant); session.ok()) plan = (*session)->plan();
  absl::StatusOr<DropResult> dropped = core_.store->Drop(id, tenant, force);
  if (!dropped.ok() || dropped->dropped == 0 || plan.objects.empty()) return dropped;
  writer_.NoteDrop();
  // Erase one head, that of the last local object, which hardly any longer restore point needs. If
  // there are no local layers, erase the head of the last segment's object.
  lookup_.Observe(plan.fingerprint);
  const absl::Status erased = EraseHeads(plan.fingerprint.digest(), tenant, plan.token_ids,
                                         plan.cuts, {plan.objects.back().id});
  if (!erased.ok()) return NotEverywhere("dropped", erased);
  return dropped;
}

absl::StatusOr<DropResult> SharedStore::DropAll(const std::string& tenant, bool force) {
  absl::Status written;
  absl::StatusOr<DropResult> dropped =
      core_.spaces.DropAll(tenant, force, core_.WriteDeadline(), &written);
  if (absl::IsFailedPrecondition(dropped.status())) {
    return absl::FailedPreconditionError(
        absl::StrCat(dropped.status().message(),
                     "; restore points pinned in other stores are dropped without asking"));
  }
  if (!dropped.ok()) return dropped;
  if (!written.ok()) return NotEverywhere("the tenant's restore points are dropped", written);
  return dropped;
}

absl::StatusOr<QuarantineResult> SharedStore::Quarantine(const PrefixQuery& query,
                                                         absl::Span<const ObjectId> objects) {
  absl::StatusOr<QuarantineResult> result = core_.store->Quarantine(query, objects);
  if (absl::IsCancelled(result.status()) || absl::IsInvalidArgument(result.status())) return result;
  const absl::Status erased =
      EraseHeads(query.fingerprint, query.tenant, query.token_ids, query.cuts, objects);
  if (erased.ok()) return result;
  return NotEverywhere(result.ok() ? "the objects are quarantined" : "the objects are not stored",
                       erased);
}

StoreStats SharedStore::Stats() {
  StoreStats stats = core_.store->Stats();
  for (const auto& [name, count] : core_.counters.Snapshot()) stats.counters[name] += count;
  const SharedEngineStats engine = core_.engine->Stats();
  stats.counters[CounterName(Counter::kSharedUnreachableShards)] =
      std::max<uint32_t>(engine.shards, 1) - std::min(engine.reachable, engine.shards);
  if (stats.tiers.empty() || stats.tiers.back().tier != Tier::kShared) {
    stats.tiers.push_back({Tier::kShared});
  }
  // Take the label from the local store's commit latencies, which are its last series.
  assert(!stats.latencies.empty());
  LatencySeries commits = stats.latencies.back();
  commits.label_value = DurabilityName(Durability::kShared);
  commits.counts = commits_.Read();
  stats.latencies.push_back(std::move(commits));
  TierUsage& usage = stats.tiers.back();
  usage.read_bytes = core_.counters.Get(Counter::kSharedReadBytes);
  usage.written_bytes = core_.counters.Get(Counter::kSharedWrittenBytes);
  return stats;
}

absl::Status SharedStore::Flush(absl::Time deadline) {
  const bool is_idle = writer_.WaitIdle(deadline);
  if (absl::Status status = core_.store->Flush(deadline); !status.ok()) return status;
  return is_idle ? absl::OkStatus()
                 : absl::DeadlineExceededError("writing to the shared tier did not finish in time");
}

}  // namespace hearth
