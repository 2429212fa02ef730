#include "cache_store/store/store_core.h"

#include <algorithm>
#include <cassert>
#include <utility>

#include "absl/strings/str_cat.h"
#include "proto/prefix_key.h"
#include "proto/restore_rule.h"

namespace hearth {
namespace {

constexpr size_t kShownTokens = 8;
// Of a long restore point's objects the history has the first and the last ones: one removal is not
// to make it forget all others.
constexpr size_t kRecordedEnds = 1024;

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
      state({options.host_bytes, tiers.disk != nullptr ? options.disk_bytes : 0}, options.retention,
            options.quotas,
            [this](const RestorePointEntry& point, Removal why) { OnRemoved(point, why); }),
      eraser(options.disk_bytes, &tiers, &state, &meters.counters()) {}

Digest StoreCore::RootOf(const Digest& fingerprint, const std::string& tenant) {
  uint64_t number = 0;
  {
    StateLock lock(&state);
    number = state.DropNumber(tenant);
  }
  return RootKey(fingerprint, tenant, secret, number);
}

RestorePoint StoreCore::Describe(const RestorePointEntry& point) const {
  state.mu.AssertHeld();
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

const RestorePointEntry* StoreCore::FindOwned(const Digest& id, const std::string& tenant) {
  state.mu.AssertHeld();
  const RestorePointEntry* point = state.catalog.Find(id);
  if (point == nullptr || point->tenant != tenant) return nullptr;
  return HasExpired(*point, clock->Now()) ? nullptr : point;
}

bool StoreCore::PutInHost(const StoredObject* object, const std::vector<SliceView>& views) {
  state.mu.AssertHeld();
  assert(views.size() == object->layers.size() && !object->in_host);
  // Evicted copies must leave the tier before others take their room.
  tiers.host_slices->EraseObjects(state.objects.TakeHostGarbage()).IgnoreError();
  for (size_t i = 0; i < views.size(); ++i) {
    if (tiers.host_slices->Write(object->Slice(i), views[i]).ok()) continue;
    Count(Counter::kTierErrors);
    tiers.host_slices->EraseObjects({object->number}).IgnoreError();
    return false;
  }
  state.objects.SetInHost(object);
  return true;
}

void StoreCore::OnRemoved(const RestorePointEntry& point, Removal why) {
  state.mu.AssertHeld();
  const absl::Time now = clock->Now();
  state.history.Record(point.id, why, now);
  const size_t count = point.objects.size();
  for (size_t i = 0; i < count; ++i) {
    if (i == kRecordedEnds && count > 2 * kRecordedEnds) i = count - kRecordedEnds;
    const StoredObject* object = point.objects[i];
    if (object->names.count == 1) state.history.Record(object->key, why, now);
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

}  // namespace hearth
