#include "services/programs/local_prefix_cache.h"

#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "absl/time/clock.h"
#include "services/inference/object_builder.h"
#include "services/inference/plan_check.h"
#include "services/store/store_calls.h"
#include "services/store/store_conversion.h"

namespace hearth {

namespace {

class LocalLease final : public ComputeLease {
 public:
  explicit LocalLease(std::shared_ptr<void> ticket) : ticket_(std::move(ticket)) {}

 private:
  const std::shared_ptr<void> ticket_;
};

}  // namespace

struct LocalPrefixCache::Woken {
  absl::Mutex mu;
  bool rung ABSL_GUARDED_BY(mu) = false;
};

LocalPrefixCache::LocalPrefixCache(TieredStore* store, const ModelFingerprints& fingerprints,
                                   const KvLayout& layout, CacheCounters* counters)
    : store_(store), counters_(counters), fingerprints_(fingerprints), layout_(layout) {}

PrefixQuery LocalPrefixCache::Query(const PrefixRequest& prefix) const {
  return {fingerprints_.Of(prefix.adapter).digest(), prefix.tenant, prefix.token_ids, prefix.cuts,
          ""};
}

bool LocalPrefixCache::Quarantine(const PrefixRequest& prefix, const std::vector<ObjectId>& objects,
                                  absl::Time) {
  return QuarantineAndLog(store_, Query(prefix), objects, "this process").ok();
}

FetchOutcome LocalPrefixCache::Fetch(const PrefixRequest& prefix, uint32_t above_tokens,
                                     uint32_t max_tokens, absl::Time deadline) {
  LoadTrial unarmed;
  LoadTrial* const load = prefix.load == nullptr ? &unarmed : prefix.load.get();
  uint64_t bytes = 0;
  auto outcome = TryFetch(prefix, above_tokens, max_tokens, deadline, load, &bytes);
  return counters_->EndFetch(std::move(outcome), load, bytes);
}

LeaseOutcome LocalPrefixCache::Lease(const PrefixRequest& prefix, uint32_t above_tokens,
                                     uint32_t max_tokens, const LeaseTerms& terms, absl::Time) {
  bool waited = false;
  auto outcome = TryLease(prefix, above_tokens, max_tokens, terms, &waited);
  return counters_->EndLease(std::move(outcome), waited);
}

absl::StatusOr<FetchOutcome> LocalPrefixCache::TryFetch(const PrefixRequest& prefix,
                                                        uint32_t above_tokens, uint32_t max_tokens,
                                                        absl::Time deadline, LoadTrial* load,
                                                        uint64_t* bytes) {
  load->OnAsk();
  auto session = store_->Fetch(Query(prefix), above_tokens, max_tokens);
  if (!session.ok()) return session.status();
  load->OnPlan();
  const LookupPlan& plan = (*session)->plan();
  FetchOutcome outcome;
  outcome.matched_tokens = plan.matched_tokens;
  outcome.note = plan.miss_reason;
  if (plan.usable_tokens == 0) return outcome;

  // The same check as over the wire: one place decides what a worker believes.
  const PlanRequest wanted{&prefix, above_tokens, max_tokens, &fingerprints_.Of(prefix.adapter),
                           &layout_};
  const PlannedState state{plan.usable_tokens, plan.usable_tokens,        plan.usable_tokens,
                           kCausalMask,        plan.fingerprint.digest(), plan.token_ids,
                           plan.cuts};
  if (absl::Status status = CheckPlan(wanted, state); !status.ok()) return status;
  std::vector<ObjectBuilder::Announced> announced;
  announced.reserve(plan.objects.size());
  outcome.slowest_tier = Tier::kGpu;
  std::vector<bool> read(plan.objects.size());
  for (size_t i = 0; i < plan.objects.size(); ++i) {
    const PlannedObject& object = plan.objects[i];
    const DeviceRef copy = (*session)->OnDevice(i);
    if (copy == nullptr) outcome.slowest_tier = plan.slowest_tier;
    read[i] = copy == nullptr || object.id.tokens < layout_.chunk_tokens;
    announced.push_back({object.id, object.slice_digests});
    if (copy != nullptr) announced[i].device_bytes = {copy, copy->bytes};
  }
  auto builder = ObjectBuilder::Create(layout_, plan.usable_tokens, std::move(announced));
  if (!builder.ok()) return builder.status();
  *bytes = builder->bytes_added();
  if (!load->Accepts(OfferOf(plan, outcome.slowest_tier))) {
    outcome.declined_tokens = plan.usable_tokens;
    return outcome;
  }
  for (uint32_t i = 0; i < plan.objects.size(); ++i) {
    if (!read[i]) continue;
    for (uint32_t layer : layout_.LayersOf(plan.objects[i].id.group)) {
      const std::optional<absl::Duration> patience = load->Patience(*bytes);
      if (patience == absl::ZeroDuration()) {
        load->OnCutOff(*bytes);
        return absl::AbortedError("reading became slower than computing");
      }
      if (!patience.has_value() && absl::Now() > deadline) {
        return absl::DeadlineExceededError("the fetch budget is spent");
      }
      absl::StatusOr<SliceView> slice = (*session)->ReadSlice(i, layer);
      if (!slice.ok()) return slice.status();
      const absl::string_view data(reinterpret_cast<const char*>(slice->bytes.data()),
                                   slice->bytes.size());
      if (absl::Status status = builder->Add(i, layer, 0, data); !status.ok()) return status;
      *bytes = builder->bytes_added();
    }
  }
  auto objects = builder->Take();
  if (!objects.ok()) return objects.status();
  load->OnArrived();
  outcome.usable_tokens = plan.usable_tokens;
  outcome.objects = *std::move(objects);
  return outcome;
}

LoadOffer LocalPrefixCache::OfferOf(const LookupPlan& plan, Tier slowest_tier) const {
  LoadOffer offer;
  offer.boundary = plan.usable_tokens;
  for (const PlannedObject& object : plan.objects) {
    offer.bytes += layout_.ObjectBytes(object.id.tokens, object.id.group);
  }
  offer.message_bytes = layout_.SliceBytes(layout_.chunk_tokens);
  offer.source = slowest_tier == Tier::kGpu    ? LoadSource::kDevice
                 : slowest_tier == Tier::kDisk ? LoadSource::kLocalDisk
                                               : LoadSource::kLocal;
  return offer;
}

absl::StatusOr<LeaseOutcome> LocalPrefixCache::TryLease(const PrefixRequest& prefix,
                                                        uint32_t above_tokens, uint32_t max_tokens,
                                                        const LeaseTerms& terms, bool* waited) {
  store_->Observe(fingerprints_.Of(prefix.adapter), prefix.tenant);
  const absl::Time wait_until = absl::Now() + terms.wait;
  ClaimRequest ask{above_tokens, max_tokens, terms.min_tokens, terms.lease, wait_until, 0, nullptr};
  for (;;) {
    const auto woken = std::make_shared<Woken>();
    ask.wake = [woken] {
      absl::MutexLock lock(&woken->mu);
      woken->rung = true;
    };
    {
      absl::MutexLock lock(&mu_);
      if (cancelled_) return absl::CancelledError("the worker is going away");
      waits_.insert(woken.get());
    }
    const CallStop::Call waits(prefix.stop, [woken] {
      absl::MutexLock lock(&woken->mu);
      woken->rung = true;
    });
    absl::StatusOr<ClaimDecision> turn = store_->Claim(Query(prefix), ask);
    if (turn.ok() && turn->role == ClaimRole::kWait) {
      absl::MutexLock lock(&woken->mu);
      woken->mu.AwaitWithDeadline(absl::Condition(&woken->rung), turn->until);
    }
    {
      absl::MutexLock lock(&mu_);
      waits_.erase(woken.get());
    }
    if (!turn.ok()) return turn.status();
    if (prefix.stop != nullptr && prefix.stop->stopped()) {
      return absl::CancelledError("the request ended");
    }
    if (turn->role == ClaimRole::kWait) {
      ask.waited_for = turn->boundary;
      *waited = true;
      continue;
    }
    LeaseOutcome outcome;
    outcome.usable_tokens = turn->usable_tokens;
    outcome.matched_tokens = turn->matched_tokens;
    if (turn->role == ClaimRole::kCompute) {
      outcome.lease = std::make_shared<LocalLease>(std::move(turn->ticket));
    }
    return outcome;
  }
}

void LocalPrefixCache::CancelCalls() {
  absl::MutexLock lock(&mu_);
  cancelled_ = true;
  for (Woken* woken : waits_) {
    absl::MutexLock woken_lock(&woken->mu);
    woken->rung = true;
  }
}

absl::StatusOr<PublishOutcome> LocalPrefixCache::TryPublish(const PublishRequestSpec& spec) {
  PublishSpec store_spec;
  store_spec.fingerprint = fingerprints_.Of(spec.prefix.adapter);
  store_spec.tenant = spec.prefix.tenant;
  store_spec.token_ids = spec.prefix.token_ids;
  store_spec.cuts = spec.prefix.cuts;
  store_spec.boundaries = spec.boundaries;
  store_spec.durability = spec.durability;
  store_spec.ttl = absl::Seconds(spec.ttl_s);
  for (const auto& object : spec.objects) {
    store_spec.objects.push_back({object->id, object->slice_digests, object->bytes == nullptr});
  }
  auto session = store_->Publish(std::move(store_spec));
  if (!session.ok()) return session.status();
  PublishOutcome outcome;
  for (uint32_t index : (*session)->needed()) {
    const KvObject& object = *spec.objects[index];
    if (absl::Status status = PutObject(object, index, session->get()); !status.ok()) return status;
    outcome.bytes_sent += object.size_bytes;
  }
  absl::StatusOr<PublishResult> result = (*session)->Commit();
  if (!result.ok()) return result.status();
  NoteStored(result->boundaries, result->durable, absl::StrJoin(result->notes, "; "), &outcome);
  return outcome;
}

absl::Status LocalPrefixCache::PutObject(const KvObject& object, uint32_t index,
                                         PublishSession* session) const {
  const size_t slice_bytes = layout_.SliceBytes(object.id.tokens);
  const std::byte* bytes = object.bytes.get();
  // The object's memory is shared with the store, which holds all slices of an object or none. Not
  // blocks of running sequences: as long as the store held them no other sequence could have them.
  const bool is_shared = layout_.exactness != Exactness::kInvariant;
  for (uint32_t layer : layout_.LayersOf(object.id.group)) {
    SliceView slice{nullptr, {bytes, slice_bytes}};
    if (is_shared) slice.owner = object.bytes;
    absl::Status status = session->PutSlice(index, layer, std::move(slice));
    if (!status.ok()) return status;
    bytes += slice_bytes;
  }
  return absl::OkStatus();
}

void LocalPrefixCache::Explain(PrefixRequest prefix, absl::Time, ExplainCallback done) {
  store_->Observe(fingerprints_.Of(prefix.adapter), prefix.tenant);
  absl::StatusOr<ExplainReport> report = store_->Explain(Query(prefix));
  v1::ExplainResponse response;
  if (report.ok()) ReportToProto(*report, &response);
  done(report.status(), response);
}

}  // namespace hearth
