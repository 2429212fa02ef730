// ExplainReport: how much of a prompt can be served and why, boundary by boundary.
//
// Plain values.
#ifndef HEARTH_CACHE_STORE_STORE_EXPLAIN_REPORT_H_
#define HEARTH_CACHE_STORE_STORE_EXPLAIN_REPORT_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "absl/types/span.h"
#include "cache_store/base/removal.h"
#include "proto/fingerprint.h"
#include "proto/kv_layout.h"

namespace hearth {

// Why a boundary cannot be used.
enum class MissReason {
  kNone,         // it is usable
  kNeverStored,  // or so long ago that the store has forgotten it
  kRemoved,      // BoundaryReport::removed says by what
  kTailGone,     // the local layers' last tokens; `removed` when they were there once
  kGlobalsGone,  // the global layers before it; `removed` likewise
  kOtherCuts,    // the tokens are there, cut elsewhere
  kCount
};
// Names are part of the API: BoundaryInfo.reason_code.
const char* MissName(MissReason miss);

struct BoundaryReport {
  uint32_t boundary = 0;
  bool usable = false;
  Tier slowest_tier = Tier::kNone;
  uint64_t bytes = 0;
  absl::Duration age;
  bool pinned = false;
  MissReason miss = MissReason::kNone;
  std::optional<Removal> removed;
  absl::Duration removed_ago;  // set with `removed`
  std::string reason;          // all of it in words
  std::optional<Digest> restore_point_id;
  // Usable because it is PrefixQuery::public_tenant's. Then without age, pin and id, which would
  // tell of others' use of it.
  bool from_public = false;
};
struct OtherFingerprint {
  FieldDifference difference;
  uint32_t matched_tokens = 0;
};
struct ExplainReport {
  uint32_t matched_tokens = 0;
  uint32_t usable_tokens = 0;
  std::vector<BoundaryReport> boundaries;
  // Boundaries that were never stored, left out of `boundaries` since there is nothing else to say.
  uint32_t omitted_boundaries = 0;
  std::vector<OtherFingerprint> other_fingerprints;
  std::string summary;

  // Boundaries that can be used from elsewhere, where those here cannot.
  void AddUsable(absl::Span<const BoundaryReport> elsewhere);
};

}  // namespace hearth

#endif  // HEARTH_CACHE_STORE_STORE_EXPLAIN_REPORT_H_
