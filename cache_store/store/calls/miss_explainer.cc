#include "cache_store/store/calls/miss_explainer.h"

#include <algorithm>
#include <cstdio>
#include <iterator>

#include "absl/strings/str_cat.h"
#include "proto/restore_rule.h"

namespace hearth {
namespace {

// Does not tell how far back the store remembers: that would tell of others' losses.
constexpr char kNeverStored[] = "never stored, or longer ago than the store remembers";

std::string AgoText(absl::Duration ago) {
  ago = std::max(ago, absl::ZeroDuration());
  // Two units are enough for a person: "12s", "3m4s", "5h10m".
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

std::string RemovalText(Removal removal, absl::Duration ago, const StoreOptions& options) {
  const std::string when = AgoText(ago);
  switch (removal) {
    case Removal::kHostFull:
      return absl::StrCat("evicted ", when, ": RAM was full (host_bytes ",
                          LimitText(options.host_bytes), ")");
    case Removal::kDiskFull:
      return absl::StrCat("evicted ", when, ": the disk was full (disk_bytes ",
                          LimitText(options.disk_bytes), ")");
    case Removal::kQuota:
      return absl::StrCat("evicted ", when, ": the tenant's quota was reached");
    case Removal::kExpired:
      return absl::StrCat("expired ", when);
    case Removal::kDropped:
      return absl::StrCat("dropped ", when, " on request");
    case Removal::kQuarantined:
      return absl::StrCat("quarantined ", when, ": bytes of it failed verification");
    case Removal::kLost:
      return absl::StrCat("lost: it was acknowledged, and damage of the disk took it; found ",
                          when);
  }
  return "";
}

void MissExplainer::Explain(const BoundaryState& state, BoundaryReport* report) {
  const KvLayout& layout = *prompt_.layout;
  const KeyedSegment* segment = prompt_.chain->EndingAt(state.boundary, layout.chunk_tokens);
  const Departure* gone = segment == nullptr ? nullptr : prompt_.history->Find(segment->key);
  const auto lacks = [&](LayerGroup group) {
    return state.node == nullptr || state.node->objects[static_cast<size_t>(group)] == nullptr;
  };
  const uint32_t tail_begin = LocalTailBegin(layout, state.boundary);
  while (!tail_.empty() && tail_.front().end <= tail_begin) tail_.pop_front();
  const Departure* last_of_tail = tail_.empty() ? nullptr : &tail_.front().departure;
  const bool is_chunk = state.boundary % layout.chunk_tokens == 0;
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
    } else if (state.boundary > prompt_.matched_tokens) {
      report->miss = MissReason::kNeverStored;
      report->reason = kNeverStored;
    } else {
      report->miss = MissReason::kOtherCuts;
      report->reason = CutsAreKeyed(layout.exactness)
                           ? "these tokens are stored with other cuts, or were not kept up to here"
                           : "not kept up to here";
    }
  } else if (!state.globals_present) {
    report->miss = MissReason::kGlobalsGone;
    if (lacks_globals_) gone = globals_departure_.has_value() ? &*globals_departure_ : nullptr;
    subject = "global objects before it are gone";
  } else {
    report->miss = MissReason::kTailGone;
    gone = last_of_tail;
    subject = absl::StrCat("tail gone: the local layers' last ", layout.window - 1,
                           " tokens are not stored here");
  }
  if (gone == nullptr) {
    if (!subject.empty()) report->reason = subject;
    return;
  }
  report->removed = gone->why;
  report->removed_ago = std::max(absl::ZeroDuration(), prompt_.now - gone->when);
  report->reason = absl::StrCat(subject, subject.empty() ? "" : "; ",
                                RemovalText(gone->why, report->removed_ago, *prompt_.options));
}

}  // namespace hearth
