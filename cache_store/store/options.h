// StoreOptions: options for opening a store. Plain values. The defaults suit a small machine.
#ifndef HEARTH_CACHE_STORE_STORE_OPTIONS_H_
#define HEARTH_CACHE_STORE_STORE_OPTIONS_H_

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "cache_store/base/device_memory.h"
#include "cache_store/base/huge_pages.h"
#include "cache_store/base/tenant_accounts.h"
#include "cache_store/retention/retention.h"
#include "proto/kv_layout.h"

namespace hearth {

// Options of the scrub, which reads all data on disk again and again, to find damage.
struct ScrubOptions {
  // Limit of bytes read per second. 0: no scrub.
  uint64_t bytes_per_s = uint64_t{16} << 20;
  // Minimum time between the starts of two passes.
  absl::Duration period = absl::Hours(24 * 7);
};

struct StoreOptions {
  // The following options affect what the store does.

  // Data folder of the disk tier, created if absent. Empty: no disk tier, so that all entries are
  // lost at exit.
  std::string data_dir;
  // RAM of the host tier, for KV and for the bookkeeping of restore points. The bookkeeping takes
  // at most half: about 1 KB for each restore point, and 4 bytes for each token. 0: no RAM tier,
  // every read goes to disk, and the bookkeeping is limited to 1/256 of disk_bytes. This suffices
  // for a full disk: a chunk of 128 tokens takes about 1 KB of RAM, and at least 400 KB on disk
  // (Gemma 3 270M).
  uint64_t host_bytes = uint64_t{4} << 30;
  static constexpr uint64_t kLeastPointBytesWithoutHost = uint64_t{64} << 20;
  static constexpr uint64_t kDiskBytesOfPointByte = 256;
  // Whether the bookkeeping of restore points counts towards host_bytes; off in tests of exact KV
  // sizes.
  bool count_points = true;
  // Limit of the KV bytes on disk. 0: no disk tier. The files may take up to a fifth plus 2 GiB
  // more, for erased bytes, the log, and data that is being moved. If the volume is too small for
  // this, the store keeps fewer bytes, so that a tenth of the volume stays free (volume_budget.h).
  uint64_t disk_bytes = uint64_t{64} << 30;
  Durability default_durability = Durability::kDisk;
  // The eviction policy (retention.h).
  RetentionPolicy retention = RetentionPolicy::kDefault;
  // Maximum fraction of the capacity that may be pinned, so that eviction always has candidates.
  double max_pinned_fraction = 0.5;
  // File with the secret from which keys are derived. Empty: a file in data_dir, created once with
  // mode 0600.
  std::string secret_file;

  TenantQuotas quotas;
  // Time to live of restore points that are published without one, if the tenant has no default of
  // its own. Zero: no expiry.
  absl::Duration default_ttl;

  // The following options affect performance.

  // Maximum memory of all publishes that are received but not committed yet.
  uint64_t max_staged_bytes = uint64_t{1} << 30;
  // Maximum bytes queued for writes to disk after the acknowledgement (durability `memory`). The
  // same limit applies to bytes read from disk that are queued for promotion to RAM.
  uint64_t max_background_bytes = uint64_t{512} << 20;
  // Whether other processes may map the RAM tier's memory (StoreAdmin::shared_memory).
  bool shared_memory = false;
  // Whether the RAM tier's memory should use huge pages.
  HugePages huge_pages = HugePages::kAuto;
  // Called with a warning, from any thread: about damage and a failing disk, a few lines a minute
  // (warnings.h), and once for each optional request that the system refuses (huge pages, memory
  // kept ready).
  std::function<void(const std::string&)> on_warning;

  // Accelerator memory of the gpu tier, which has copies of objects that are fetched often
  // (device_tier.h). Null: no gpu tier.
  std::shared_ptr<DeviceMemory> device;
  // Called once, from a thread of the store, when the device is lost. From then on, the store has
  // no gpu tier.
  std::function<void(const absl::Status&)> on_device_lost;

  // Maximum bytes per second that the disk tier writes in the background: flushes, compactions,
  // backups, and moving live slices out of mostly erased files. Writes of publishes do not count.
  // 0: no limit. The default is a third of the throughput of a small SSD, so that reads and
  // publishes are not delayed.
  uint64_t background_disk_bytes_per_s = uint64_t{128} << 20;
  ScrubOptions scrub;

  // Returns the limit of RAM for the bookkeeping of restore points. 0: the bookkeeping is not
  // counted.
  uint64_t most_point_bytes() const {
    if (!count_points) return 0;
    if (host_bytes > 0) return std::max<uint64_t>(1, host_bytes / 2);
    return std::max(kLeastPointBytesWithoutHost, disk_bytes / kDiskBytesOfPointByte);
  }
  bool has_disk() const { return disk_bytes > 0 && !data_dir.empty(); }
  // Returns the capacity of the slowest tier, to which quotas and the limit of pins refer.
  uint64_t capacity_bytes() const { return has_disk() ? disk_bytes : host_bytes; }

  // Checks the options. kInvalidArgument names the invalid field.
  absl::Status Validate() const;
};

}  // namespace hearth

#endif  // HEARTH_CACHE_STORE_STORE_OPTIONS_H_
