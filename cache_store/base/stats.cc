#include "cache_store/base/stats.h"

#include <cassert>

namespace hearth {
namespace {

struct Named {
  const char* name;
  const char* meaning;
};
constexpr Named kNames[] = {
    {"fetches", "Prompt lookups"},
    {"lookup_tokens", "Prompt tokens of all lookups"},
    {"hits", "Lookups that found a restore point"},
    {"misses_unknown_fingerprint",
     "Misses: the tenant never stored a prompt with this fingerprint"},
    {"misses_no_common_prefix", "Misses: no stored prompt begins like this prompt"},
    {"misses_no_restore_point",
     "Misses: a stored prompt shares a prefix, but the prefix has no complete restore point"},
    {"misses_not_above", "Misses: the caller already has every matching restore point"},
    {"held_tokens", "Prompt tokens that callers already held when their lookup missed"},
    {"saved_us", "Estimated microseconds to compute the restored and held tokens"},
    {"public_hits", "Hits in the public namespace instead of the tenant's own namespace"},
    {"refetches", "Repeated lookups: the caller could not use the first answer"},
    {"implicit_hits", "Hits at a boundary for which no publish requested a restore point"},
    {"exports", "Restore points read by id to export or share them; not counted as lookups"},
    {"matched_tokens", "Leading prompt tokens that lookups found stored, restorable or not"},
    {"bytes_read_host", "Bytes read from RAM"},
    {"bytes_read_disk", "Bytes read from disk"},
    {"bytes_read_gpu", "Bytes read from the gpu tier"},
    {"bytes_shared", "Bytes that workers copied from the shared memory of the RAM tier"},
    {"promoted_objects", "Objects copied from disk to RAM"},
    {"promotions_skipped", "Objects not copied from disk to RAM, because entries in use fill RAM"},
    {"gpu_promoted_objects", "Objects copied to the gpu tier"},
    {"gpu_promotions_dropped",
     "Objects not copied to the gpu tier: the queue or tier was full, or RAM evicted the object"},
    {"gpu_promotions_failed", "Objects not copied to the gpu tier: device errors"},
    {"publishes", "Publishes started"},
    {"published_restore_points", "Restore points published"},
    {"published_bytes", "Bytes published"},
    {"publishes_refused_staged",
     "Publishes refused because received bytes reached max-staged-bytes"},
    {"publishes_refused_full", "Publishes refused: eviction could not free enough room"},
    {"publishes_refused_quota", "Publishes refused because they exceed the tenant's quota"},
    {"publishes_abandoned", "Publishes that ended without a commit"},
    {"nondeterminism",
     "Publishes whose bytes differ from those stored under the same key; alert if above 0"},
    {"digest_mismatches", "Received slices that do not match their announced digest"},
    {"write_behind_skipped",
     "Publishes kept in RAM only, because the write queue or the disk was full"},
    {"write_behind_failed", "Publishes kept in RAM only, because the write to disk failed"},
    {"evicted_restore_points", "Restore points evicted from the store"},
    {"demoted_objects", "Objects evicted from RAM that the disk still has"},
    {"dropped_restore_points", "Restore points dropped by a caller"},
    {"quarantined_objects", "Objects on disk that failed verification; alert if above 0"},
    {"host_corrupt_objects", "Objects in RAM that failed verification"},
    {"tier_errors", "Failed reads and writes of a tier"},
    {"recovered_restore_points", "Last start: complete restore points found"},
    {"recovery_unread_manifests",
     "Last start: unreadable restore points; kept on disk, but not served"},
    {"recovery_dropped_manifests",
     "Last start: restore points dropped because their objects do not match"},
    {"recovery_lost_restore_points",
     "Last start: acknowledged restore points that were lost; alert if above 0"},
    {"recovery_collected_objects",
     "Last start: objects erased because no restore point needs them"},
    {"recovery_damage", "Last start: damaged files and damaged ranges of records"},
    {"events_lost", "Events dropped: the queue to all watchers was full (not a watcher's own)"},
    {"leases_granted", "Leases granted: one caller computes a prefix for others"},
    {"lease_waits", "Callers that waited for another caller to compute their prefix"},
    {"lease_waits_hit", "Callers that waited for another caller and then found the prefix"},
    {"lease_waits_timed_out", "Callers whose wait for another caller timed out"},
    {"lease_takeovers",
     "Leases that a waiting caller took over from a caller that gave up or died"},
    {"scrubbed_bytes", "Bytes that the scrub (background check) read from disk"},
    {"scrubbed_objects", "Objects that the scrub read from disk"},
    {"scrub_corrupt_objects", "Objects in which the scrub found wrong bytes"},
    {"scrub_repaired_records", "Damaged disk records rewritten from memory"},
    {"scrub_passes", "Completed passes of the scrub"},
    {"shared_lookups", "Lookups that asked the shared tier"},
    {"shared_hits", "Lookups that got a restore point, or a longer one, from the shared tier"},
    {"shared_unanswered", "Keys for which the shared tier did not answer in time"},
    {"shared_vanished_parts", "Parts of objects that left the shared tier before they were read"},
    {"shared_rejected_values",
     "Values of the shared tier that failed verification; alert if above 0"},
    {"shared_not_kept", "Restore points of the shared tier that did not fit in this store"},
    {"shared_read_bytes", "Bytes read from the shared tier"},
    {"shared_written_bytes", "Bytes written to the shared tier"},
    {"shared_written_objects", "Objects written to the shared tier"},
    {"shared_writes_skipped",
     "Restore points not written to the shared tier: the queue was full, or they were evicted"},
    {"shared_writes_failed", "Values that could not be written to the shared tier"},
    {"host_growths_failed", "Times that the system refused more memory for the RAM tier"},
    {"gpu_evicted_objects", "Objects evicted from the gpu tier"},
    {"shared_unreachable_shards", "Redis primaries of the shared tier without an open connection"},
    {"last_full_scrub_unix_s", "Unix time at which the last complete scrub ended; 0: never"},
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
