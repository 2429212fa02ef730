#include "cache_store/base/stats.h"

#include <cassert>

namespace hearth {
namespace {

constexpr const char* kNames[] = {
    "fetches",
    "lookup_tokens",
    "hits",
    "misses_unknown_fingerprint",
    "misses_no_common_prefix",
    "misses_no_restore_point",
    "misses_not_above",
    "public_hits",
    "refetches",
    "implicit_hits",
    "exports",
    "matched_tokens",
    "bytes_read_host",
    "bytes_read_disk",
    "bytes_read_gpu",
    "bytes_shared",
    "promoted_restore_points",
    "promotions_skipped",
    "gpu_promoted_objects",
    "gpu_promotions_dropped",
    "gpu_promotions_failed",
    "publishes",
    "published_restore_points",
    "published_bytes",
    "publishes_refused_staged",
    "publishes_refused_full",
    "publishes_refused_quota",
    "publishes_refused_loading",
    "publishes_abandoned",
    "nondeterminism",
    "digest_mismatches",
    "write_behind_skipped",
    "write_behind_failed",
    "evicted_restore_points",
    "demoted_restore_points",
    "dropped_restore_points",
    "quarantined_objects",
    "host_corrupt_objects",
    "tier_errors",
    "disk_compressed_from_bytes",
    "disk_compressed_to_bytes",
    "recovered_restore_points",
    "recovery_unread_manifests",
    "recovery_dropped_manifests",
    "recovery_lost_restore_points",
    "recovery_collected_objects",
    "recovery_damage",
    "events_lost",
    "leases_granted",
    "lease_waits",
    "lease_waits_hit",
    "lease_waits_timed_out",
    "lease_takeovers",
    "scrubbed_bytes",
    "scrubbed_objects",
    "scrub_corrupt_objects",
    "scrub_repaired_records",
    "scrub_passes",
    "shared_lookups",
    "shared_hits",
    "shared_unanswered",
    "shared_vanished_parts",
    "shared_rejected_values",
    "shared_not_kept",
    "shared_read_bytes",
    "shared_written_bytes",
    "shared_written_objects",
    "shared_writes_skipped",
    "shared_lease_waits",
    "shared_writes_failed",
    "shared_pins_renewed",
    "shared_pins_over_limit",
    "host_growths_failed",
    "gpu_evicted_objects",
    "unloaded_restore_points",
    "shared_unreachable_shards",
    "last_full_scrub_unix_s",
};
static_assert(sizeof(kNames) / sizeof(kNames[0]) == static_cast<size_t>(Counter::kCount),
              "every counter has a name");

}  // namespace

const char* CounterName(Counter counter) {
  assert(counter < Counter::kCount);
  return kNames[static_cast<size_t>(counter)];
}

std::map<std::string, uint64_t> Counters::Snapshot() const {
  std::map<std::string, uint64_t> snapshot;
  for (size_t i = 0; i < values_.size(); ++i) {
    snapshot[kNames[i]] = values_[i].load(std::memory_order_relaxed);
  }
  return snapshot;
}

}  // namespace hearth
