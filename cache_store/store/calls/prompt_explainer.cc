#include "cache_store/store/calls/prompt_explainer.h"

#include <algorithm>
#include <cstdio>
#include <deque>
#include <iterator>
#include <map>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "cache_store/catalog/history.h"
#include "proto/caller_gone.h"
#include "proto/restore_rule.h"

namespace hearth {
namespace {

// Limits of the boundaries in a report that were never stored and lie after the matching tokens.
// For declared boundaries, which callers look for, the limit is larger: about half a megabyte of
// report.
constexpr size_t kMaxSilentBoundaries = 16;
constexpr size_t kMaxSilentDeclared = 4096;

// This text is the same in all cases, so that it does not reveal how far back the history goes,
// which depends on other tenants' removals.
constexpr char kNeverStored[] = "never stored, or removed too long ago to remember";

std::string AgoText(absl::Duration ago) {
  ago = std::max(ago, absl::ZeroDuration());
  // Formats the time with at most two units, such as "12s", "3m4s" or "5h10m".
  const absl::Duration unit = ago < absl::Hours(1) ? absl::Seconds(1) : absl::Minutes(1);
  return absl::StrCat(absl::FormatDuration(absl::Trunc(ago, unit)), " ago");
}

std::string LimitText(uint64_t bytes) {
  constexpr const char* kUnits[] = {"bytes", "KiB", "MiB", "GiB", "TiB"};
  double value = static_cast<double>(bytes);
  size_t unit = 0;
  for (; value >= 1024 && unit + 1 < std::size(kUnits); ++unit) value /= 1024;
  char text[32];
  std::snprintf(text, sizeof(text), "%.4g %s", value, kUnits[unit]);
  return text;
}

}  // namespace

const char* MissName(MissReason miss) {
  constexpr const char* kNames[] = {"",          "never_stored", "removed",
                                    "tail_gone", "globals_gone", "other_cuts"};
  static_assert(std::size(kNames) == static_cast<size_t>(MissReason::kCount), "one name a reason");
  return kNames[static_cast<size_t>(miss)];
}

void ExplainReport::AddUsable(absl::Span<const BoundaryReport> elsewhere) {
  std::map<uint32_t, BoundaryReport> all;
  for (BoundaryReport& own : boundaries) all.emplace(own.boundary, std::move(own));
  for (const BoundaryReport& added : elsewhere) {
    const auto [it, is_new] = all.try_emplace(added.boundary);
    if (is_new && omitted_boundaries > 0) --omitted_boundaries;
    if (!it->second.usable) it->second = added;
  }
  boundaries.clear();
  for (auto& [boundary, entry] : all) boundaries.push_back(std::move(entry));
}

std::string RemovalText(Removal removal, absl::Duration ago, const Evictor::Limits& limits) {
  const std::string when = AgoText(ago);
  switch (removal) {
    case Removal::kHostFull:
      return absl::StrCat("evicted ", when, ": RAM was full (host_bytes ",
                          LimitText(limits.host_bytes), ")");
    case Removal::kDiskFull:
      return absl::StrCat("evicted ", when, ": the disk was full (disk_bytes ",
                          LimitText(limits.disk_bytes), ")");
    case Removal::kQuota:
      return absl::StrCat("evicted ", when, ": the tenant's quota was reached");
    case Removal::kExpired:
      return absl::StrCat("expired ", when);
    case Removal::kDropped:
      return absl::StrCat("dropped ", when, " on request");
    case Removal::kQuarantined:
      return absl::StrCat("quarantined ", when, ": its bytes failed verification");
    case Removal::kLost:
      return absl::StrCat("lost: it was acknowledged, but disk damage destroyed it; found ", when);
  }
  return "";
}

// Explains why a boundary of a prompt cannot be used, as text and as a code. It uses the position
// at which the prompt's chain of keys breaks, and the history of the missing segments. Created for
// one walk along a prompt, and used under the store's lock. Borrows everything.
class MissExplainer {
 public:
  // `matched_tokens`: number of leading tokens that the prompt has in common with entries of the
  // tenant.
  MissExplainer(StoreCore* core, const Fetcher* finder, const KvLayout& layout,
                const PromptChain& chain, uint32_t matched_tokens, absl::Time now)
      : core_(core),
        finder_(finder),
        layout_(layout),
        chain_(chain),
        matched_tokens_(matched_tokens),
        now_(now) {}

  // Returns the report on the next boundary of a walk, without `reason` if the miss is kNeverStored
  // or kOtherCuts.
  BoundaryReport ReportOn(const BoundaryState& state) ABSL_EXCLUSIVE_LOCKS_REQUIRED(core_->mu) {
    BoundaryReport report;
    report.boundary = state.boundary;
    Explain(state, &report);
    if (!state.usable()) return report;
    if (!finder_->IsUsable(state, now_)) {
      report.miss = MissReason::kRemoved;
      report.removed = Removal::kExpired;
      report.reason = "expired";
      return report;
    }
    report.usable = true;
    report.bytes = state.bytes;
    report.slowest_tier = state.tier;
    if (RestorePointEntry* point = state.node->restore_point; point != nullptr) {
      report.age = std::max(absl::ZeroDuration(), now_ - point->uses.last);
      report.pinned = point->pinned;
      report.restore_point_id = point->id();
    }
    return report;
  }

 private:
  // If the boundary cannot be used, sets miss, removed, removed_ago and reason of the report.
  void Explain(const BoundaryState& state, BoundaryReport* report)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(core_->mu);
  struct MissingTail {
    uint32_t end = 0;
    Departure departure;
  };

  StoreCore* const core_;
  const Fetcher* const finder_;
  const KvLayout& layout_;
  const PromptChain& chain_;
  const uint32_t matched_tokens_;
  const absl::Time now_;
  bool lacks_globals_ = false;
  bool has_hidden_ = false;  // whether any object so far is hidden after a failed read
  // removal of the first chunk whose global object is missing
  std::optional<Departure> globals_departure_;
  // Missing local objects of the tail, each removed later than all objects after it in this list.
  std::deque<MissingTail> tail_;
};

void MissExplainer::Explain(const BoundaryState& state, BoundaryReport* report) {
  core_->mu.AssertHeld();
  const KeyedSegment* segment = chain_.EndingAt(state.boundary, layout_.chunk_tokens);
  const Departure* gone = segment == nullptr ? nullptr : core_->history.Find(segment->key);
  const auto lacks = [&](LayerGroup group) {
    return state.node == nullptr || state.node->objects[static_cast<size_t>(group)] == nullptr;
  };
  for (const LayerGroup group : {LayerGroup::kGlobal, LayerGroup::kLocal}) {
    if (lacks(group)) continue;
    const StoredObject& object = *state.node->objects[static_cast<size_t>(group)];
    has_hidden_ = has_hidden_ || object.hidden(now_);
  }
  const uint32_t tail_begin = LocalTailBegin(layout_, state.boundary);
  while (!tail_.empty() && tail_.front().end <= tail_begin) tail_.pop_front();
  const Departure* last_of_tail = tail_.empty() ? nullptr : &tail_.front().departure;
  const bool is_chunk = state.boundary % layout_.chunk_tokens == 0;
  if (gone != nullptr && lacks(LayerGroup::kLocal)) {
    if (last_of_tail == nullptr || gone->when >= last_of_tail->when) last_of_tail = gone;
    while (is_chunk && !tail_.empty() && tail_.back().departure.when <= gone->when) {
      tail_.pop_back();
    }
    if (is_chunk) tail_.push_back({state.boundary, *gone});
  }
  if (is_chunk && !lacks_globals_ && lacks(LayerGroup::kGlobal)) {
    lacks_globals_ = true;
    if (gone != nullptr) globals_departure_ = *gone;
  }
  if (state.usable()) return;
  std::string subject;
  if (state.node == nullptr) {
    if (gone != nullptr) {
      report->miss = MissReason::kRemoved;
    } else {
      report->miss =
          state.boundary > matched_tokens_ ? MissReason::kNeverStored : MissReason::kOtherCuts;
    }
  } else if (!state.globals_present) {
    report->miss = MissReason::kGlobalsGone;
    if (lacks_globals_) gone = globals_departure_.has_value() ? &*globals_departure_ : nullptr;
    subject = "objects of the global layers before it are missing";
  } else {
    report->miss = MissReason::kTailGone;
    gone = last_of_tail;
    subject = absl::StrCat("tail missing: the last ", layout_.window - 1,
                           " tokens of the local layers are not stored");
  }
  if (gone == nullptr) {
    if (has_hidden_) absl::StrAppend(&subject, "; a read failed and will be retried");
    if (!subject.empty()) report->reason = subject;
    return;
  }
  report->removed = gone->why;
  report->removed_ago = std::max(absl::ZeroDuration(), now_ - gone->when);
  report->reason =
      absl::StrCat(subject, subject.empty() ? "" : "; ",
                   RemovalText(gone->why, report->removed_ago, core_->evictor.limits()));
}

absl::StatusOr<ExplainReport> PromptExplainer::Explain(const PrefixQuery& query) {
  if (absl::Status status = CheckPrefix(query.token_ids, query.cuts); !status.ok()) return status;
  const uint32_t tokens = static_cast<uint32_t>(query.token_ids.size());
  const absl::StatusOr<std::vector<Namespace>> spaces = finder_->NamespacesOf(query, tokens);
  if (!spaces.ok()) return spaces.status();
  ExplainReport report;
  report.summary = "miss: the store has never seen this fingerprint from this tenant";
  const bool has_own = !spaces->empty() && spaces->front().tenant == query.tenant;
  if (has_own) {
    report = ExplainIn(spaces->front(), query);
    ExplainCuts(spaces->front(), query, &report);
  }
  ExplainOthers(query, has_own ? spaces->front().model.get() : nullptr, &report);
  if (query.stopped && query.stopped()) return CallerGone();
  if (spaces->size() > (has_own ? 1 : 0)) {
    AddPublic(ExplainIn(spaces->back(), query), query, &report);
  }
  const std::vector<std::string>& damage = core_->damage;
  if (!damage.empty()) {
    absl::StrAppend(
        &report.summary,
        "; the disk was damaged when the store started, so entries may be lost: ", damage[0]);
    if (damage.size() > 1) absl::StrAppend(&report.summary, " and ", damage.size() - 1, " more");
  }
  return report;
}

void PromptExplainer::AddPublic(const ExplainReport& theirs, const PrefixQuery& query,
                                ExplainReport* report) {
  std::vector<BoundaryReport> usable;
  for (const BoundaryReport& shared : theirs.boundaries) {
    if (!shared.usable) continue;
    BoundaryReport& added = usable.emplace_back();
    added.boundary = shared.boundary;
    added.usable = added.from_public = true;
    added.slowest_tier = shared.slowest_tier;
    added.bytes = shared.bytes;
  }
  report->AddUsable(usable);
  report->matched_tokens = std::max(report->matched_tokens, theirs.matched_tokens);
  if (theirs.usable_tokens <= report->usable_tokens) return;
  report->usable_tokens = theirs.usable_tokens;
  report->summary =
      absl::StrCat("hit: ", theirs.usable_tokens, " of ", query.token_ids.size(),
                   " tokens can be restored from the public namespace \"", query.public_tenant,
                   "\"; the tenant's own namespace: ", report->summary);
}

ExplainReport PromptExplainer::ExplainIn(const Namespace& space, const PrefixQuery& query) {
  const uint32_t tokens = static_cast<uint32_t>(query.token_ids.size());
  ExplainReport report;
  report.boundaries.reserve(space.chain->chunks.size() + space.chain->remainders.size());
  {
    StoreLock lock(core_);
    Walk(space, query, &report);
  }
  // Create the texts of thousands of reasons without holding the lock.
  const uint64_t drop_number = core_->drop_numbers.Of(space.tenant);
  const absl::Time dropped = absl::FromUnixMicros(static_cast<int64_t>(drop_number));
  const std::string never =
      drop_number == 0 ? kNeverStored
                       : absl::StrCat("never stored after all entries of the tenant were dropped ",
                                      AgoText(core_->clock->Now() - dropped));
  const std::string otherwise =
      CutsAreKeyed(space.model->layout.exactness)
          ? "these tokens are stored with other prefill cuts, or without a restore point here"
          : "no restore point was stored here";
  for (BoundaryReport& boundary : report.boundaries) {
    if (boundary.miss == MissReason::kNeverStored) boundary.reason = never;
    if (boundary.miss == MissReason::kOtherCuts) boundary.reason = otherwise;
  }
  if (report.usable_tokens > 0) {
    report.summary = absl::StrCat("hit: ", report.usable_tokens, " of ", tokens,
                                  " tokens can be restored, ", report.matched_tokens, " match");
  } else {
    report.summary = report.matched_tokens == 0
                         ? absl::StrCat("miss: no prompt that tenant \"", space.tenant,
                                        "\" stored under this fingerprint begins like this prompt; "
                                        "tenants do not share prefixes")
                         : absl::StrCat("miss: ", report.matched_tokens,
                                        " tokens match, but they have no complete restore point");
    const auto last = std::find_if(
        report.boundaries.rbegin(), report.boundaries.rend(),
        [](const BoundaryReport& b) { return !b.usable && b.miss != MissReason::kNeverStored; });
    if (last != report.boundaries.rend()) {
      absl::StrAppend(&report.summary, "; at boundary ", last->boundary, ": ", last->reason);
    }
  }
  return report;
}

void PromptExplainer::Walk(const Namespace& space, const PrefixQuery& query,
                           ExplainReport* report) {
  core_->mu.AssertHeld();
  core_->Expire();
  const PrefixIndex& index = core_->catalog.index();
  const KvLayout& layout = space.model->layout;
  const PromptChain& chain = *space.chain;
  const uint32_t tokens = static_cast<uint32_t>(query.token_ids.size());
  report->matched_tokens =
      MatchPrompt(index, chain.root, query.token_ids, layout.chunk_tokens).tokens;
  const absl::Time now = core_->clock->Now();
  MissExplainer misses(core_, finder_, layout, chain, report->matched_tokens, now);
  PromptWalk::OnDevice on_device;
  if (core_->tiers.device != nullptr) {
    on_device = [this](StoredObject* object) { return core_->tiers.device->Has(object->number); };
  }
  PromptWalk walk(&index, &layout, &chain, query.token_ids, chain.max_boundary, now, on_device);
  size_t silent = 0, silent_declared = 0;
  std::vector<BoundaryState> states;
  while (walk.Next(&states)) {
    for (const BoundaryState& state : states) {
      BoundaryReport boundary = misses.ReportOn(state);
      // A usable boundary must be before the prompt's end: at least one token remains to be
      // computed.
      if (boundary.usable && state.boundary < tokens) report->usable_tokens = state.boundary;
      if (boundary.miss == MissReason::kNeverStored) {
        const bool declared =
            std::binary_search(query.cuts.begin(), query.cuts.end(), state.boundary);
        const bool is_kept =
            declared ? ++silent_declared <= kMaxSilentDeclared : ++silent <= kMaxSilentBoundaries;
        if (!is_kept) {
          ++report->omitted_boundaries;
          continue;
        }
      }
      report->boundaries.push_back(std::move(boundary));
    }
  }
}

// Adds to the report if the same tokens are stored further, but were computed with other prefill
// cuts.
void PromptExplainer::ExplainCuts(const Namespace& space, const PrefixQuery& query,
                                  ExplainReport* report) {
  const KvLayout& layout = space.model->layout;
  if (!CutsAreKeyed(layout.exactness)) return;
  StoreLock lock(core_);
  const SegmentNode* const stored =
      MatchPrompt(core_->catalog.index(), space.chain->root, query.token_ids, layout.chunk_tokens)
          .point;
  if (stored == nullptr || stored->end() <= report->usable_tokens) return;
  const std::string cuts = absl::StrJoin(CutsOf(stored, layout), ", ");
  absl::StrAppend(
      &report->summary, "; the same tokens are stored up to ", stored->end(),
      cuts.empty() ? " without prefill cuts" : absl::StrCat(" with prefill cuts at ", cuts));
}

// Adds to the report if the tenant has a longer prefix of the prompt under another fingerprint
// (model), and which field of the fingerprint differs.
void PromptExplainer::ExplainOthers(const PrefixQuery& query, const KnownFingerprint* asked,
                                    ExplainReport* report) {
  for (const auto& other : core_->fingerprints.Of(query.tenant)) {
    if (query.stopped && query.stopped()) return;
    if (other->fingerprint.digest() == query.fingerprint) continue;
    uint32_t matched = 0, usable = 0;
    {
      StoreLock lock(core_);
      const Digest root_key = core_->RootOf(other->fingerprint.digest(), query.tenant);
      const PromptMatch match = MatchPrompt(core_->catalog.index(), root_key, query.token_ids,
                                            other->layout.chunk_tokens);
      matched = match.tokens;
      if (match.point != nullptr) usable = match.point->end();
    }
    // After a miss, mention each other fingerprint under which more tokens match; after a hit, only
    // if more tokens can be restored.
    const bool matches_more = report->usable_tokens == 0 && matched > report->matched_tokens;
    if (usable <= report->usable_tokens && !matches_more) continue;
    std::vector<FieldDifference> differences;
    if (asked != nullptr) {
      differences = Compare(asked->fingerprint, other->fingerprint);
    } else {
      differences.push_back({"fingerprint", DigestHex(query.fingerprint).substr(0, 16),
                             DigestHex(other->fingerprint.digest()).substr(0, 16)});
    }
    for (FieldDifference& difference : differences) {
      absl::StrAppend(&report->summary, "; under another fingerprint, ", matched,
                      " tokens match: ", difference.field, " is ", difference.ours, " here and ",
                      difference.theirs, " there");
      report->other_fingerprints.push_back(OtherFingerprint{std::move(difference), matched});
    }
  }
}

}  // namespace hearth
