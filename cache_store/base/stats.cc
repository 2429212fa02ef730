#include "cache_store/base/stats.h"

#include <cassert>

namespace hearth {
namespace {

struct Named {
  const char* name;
  const char* meaning;
};
constexpr Named kNames[] = {
    {"fetches", "Lookups of prompts"},
    {"lookup_tokens", "Tokens of the prompts that lookups asked for"},
    {"hits", "Lookups with a restore point"},
    {"misses_unknown_fingerprint",
     "Misses: no prompt of this fingerprint and tenant was ever stored"},
    {"misses_no_common_prefix", "Misses: nothing stored begins like this prompt"},
    {"misses_no_restore_point", "Misses: a common prefix, but no complete restore point in it"},
    {"misses_not_above", "Misses: only restore points that the caller already has"},
    {"held_tokens", "Tokens that the callers of lookups without a hit had already"},
    {"saved_us", "Microseconds that callers would have needed to compute restored and held tokens"},
    {"public_hits", "Hits in another namespace than the tenant's own"},
    {"refetches", "Lookups of callers that could not use what they got"},
    {"implicit_hits", "Hits at a boundary that nobody published by itself"},
    {"exports", "Restore points read by id, also for the shared tier: neither lookups nor hits"},
    {"matched_tokens", "Of the tokens asked for, the longest beginning that the index knows"},
    {"bytes_read_host", "Bytes read from RAM"},
    {"bytes_read_disk", "Bytes read from disk"},
    {"bytes_read_gpu", "Bytes read from the device"},
    {"bytes_shared", "Of the bytes from RAM, those that workers copied out of shared memory"},
    {"promoted_objects", "Objects copied from disk to RAM"},
    {"promotions_skipped", "Objects read from disk that did not fit beside what is in use"},
    {"gpu_promoted_objects", "Objects copied to the gpu tier"},
    {"gpu_promotions_dropped",
     "Objects not copied there: the queue or the tier was full, or RAM lost them"},
    {"gpu_promotions_failed", "Objects not copied there: errors of the device"},
    {"publishes", "Publishes that were begun"},
    {"published_restore_points", "Restore points published"},
    {"published_bytes", "Bytes published"},
    {"publishes_refused_staged", "Publishes refused: over max-staged-bytes"},
    {"publishes_refused_full", "Publishes refused: no room that eviction may make"},
    {"publishes_refused_quota", "Publishes refused: over the tenant's limit"},
    {"publishes_abandoned", "Publishes that ended without a commit"},
    {"nondeterminism", "Key conflicts, different content: a machine computes wrongly (alert)"},
    {"digest_mismatches", "Slices received that are not what was announced"},
    {"write_behind_skipped",
     "Publishes to RAM not written to disk: the queue or the disk was full"},
    {"write_behind_failed", "Publishes to RAM not written to disk: the disk failed"},
    {"evicted_restore_points", "Restore points evicted from the store"},
    {"demoted_objects", "Objects whose copy in RAM was dropped for others; the disk has them"},
    {"dropped_restore_points", "Restore points dropped by a caller"},
    {"quarantined_objects", "Objects on disk that failed verification (alert)"},
    {"host_corrupt_objects", "Objects in RAM that failed verification"},
    {"tier_errors", "Errors of a tier"},
    {"recovered_restore_points", "Last start: restore points found whole"},
    {"recovery_unread_manifests",
     "Last start: records that the disk did not give; neither served nor erased"},
    {"recovery_dropped_manifests", "Last start: records that do not match their objects"},
    {"recovery_lost_restore_points",
     "Last start: acknowledged restore points that are gone (alert)"},
    {"recovery_collected_objects", "Last start: objects that no restore point needs, erased"},
    {"recovery_damage", "Last start: damaged files and ranges of records"},
    {"events_lost", "Watchers that were too slow"},
    {"leases_granted", "Prefixes that a caller computes for others"},
    {"lease_waits", "Callers that waited for another's computation"},
    {"lease_waits_hit", "Callers that waited and were served by it"},
    {"lease_waits_timed_out", "Callers that waited their whole budget for nothing"},
    {"lease_takeovers", "Computations taken over from a holder that gave up or died"},
    {"scrubbed_bytes", "Bytes read again from disk"},
    {"scrubbed_objects", "Objects read again from disk"},
    {"scrub_corrupt_objects", "Objects of which the scrub found wrong bytes"},
    {"scrub_repaired_records", "Damaged records on disk, written anew from memory"},
    {"scrub_passes", "Complete passes of the scrub"},
    {"shared_lookups", "Lookups that asked the shared engine"},
    {"shared_hits", "Lookups that got a restore point, or a longer one, from the shared engine"},
    {"shared_unanswered", "Keys that the shared engine did not answer for in time"},
    {"shared_vanished_parts", "Parts that were gone from the shared engine when they were read"},
    {"shared_rejected_values", "Values of the shared engine not sealed for their name (alert)"},
    {"shared_not_kept", "Restore points from the shared engine that found no room here"},
    {"shared_read_bytes", "Bytes read from the shared engine"},
    {"shared_written_bytes", "Bytes written to the shared engine"},
    {"shared_written_objects", "Objects written to the shared engine"},
    {"shared_writes_skipped",
     "Restore points not written to the shared engine: queue full, or gone before"},
    {"shared_writes_failed", "Values that the shared engine did not take"},
    {"host_growths_failed", "Times that the system had no more memory for RAM's tier"},
    {"gpu_evicted_objects", "Objects that left the gpu tier to make room"},
    {"shared_unreachable_shards", "Primaries of the shared engine without a connection"},
    {"last_full_scrub_unix_s",
     "Unix time at which all of the disk had last been read again; 0: never"},
};
static_assert(sizeof(kNames) / sizeof(kNames[0]) == static_cast<size_t>(Counter::kCount),
              "every counter has a name");

}  // namespace

const char* CounterName(Counter counter) {
  assert(counter < Counter::kCount);
  return kNames[static_cast<size_t>(counter)].name;
}

std::string CounterMeaning(const std::string& name) {
  for (const Named& named : kNames) {
    if (name == named.name) return named.meaning;
  }
  return "";
}

std::map<std::string, uint64_t> Counters::Snapshot() const {
  std::map<std::string, uint64_t> snapshot;
  for (size_t i = 0; i < values_.size(); ++i) {
    snapshot[kNames[i].name] = values_[i].load(std::memory_order_relaxed);
  }
  return snapshot;
}

}  // namespace hearth
