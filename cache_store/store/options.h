// StoreOptions: options for opening a store. Plain values; the defaults suit a small machine.
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

// The scrub rereads all data on disk to find damage.
struct ScrubOptions {
  // 0: off.
  uint64_t bytes_per_s = uint64_t{16} << 20;
  // A pass begins at most this often, however small the store.
  absl::Duration period = absl::Hours(24 * 7);
};

struct StoreOptions {
  // Parameters that affect behaviour.

  // Folder of the disk tier, created if absent. Empty: no disk tier, and all entries are lost at
  // exit.
  std::string data_dir;
  // RAM of the host tier: KV, and at most half for the bookkeeping of restore points (about 1 KB
  // each and 4 bytes a token). 0: every read goes to disk, and the bookkeeping is limited to 1/256
  // of disk_bytes: a chunk of 128 tokens takes about 1 KB of RAM and 400 KB (Gemma 3 270M) or more
  // on disk, so that this suffices for a full disk.
  uint64_t host_bytes = uint64_t{4} << 30;
  static constexpr uint64_t kLeastPointBytesWithoutHost = uint64_t{64} << 20;
  static constexpr uint64_t kDiskBytesOfPointByte = 256;
  // Count the bookkeeping. Off in tests of exact KV sizes.
  bool count_points = true;
  // Bytes of KV kept on disk. 0: no disk tier. Files may take a fifth plus 2 GiB more: erased bytes
  // next to live bytes, the log, and data being moved. On a volume that is too small for this, the
  // store keeps fewer bytes, so that a tenth of the volume stays free (volume_budget.h).
  uint64_t disk_bytes = uint64_t{64} << 30;
  Durability default_durability = Durability::kDisk;
  // Eviction policy (retention.h).
  RetentionPolicy retention = RetentionPolicy::kDefault;
  // Maximum fraction of the capacity that pins may hold, so that eviction always has candidates.
  double max_pinned_fraction = 0.5;
  // File with the key secret. Empty: created once in data_dir, mode 0600.
  std::string secret_file;

  TenantQuotas quotas;
  // Time to live of restore points that are published without one by a tenant without its own
  // default. Zero: until evicted.
  absl::Duration default_ttl;

  // Parameters that affect performance.

  // Maximum bytes of publishes accepted but not committed, all streams together.
  uint64_t max_staged_bytes = uint64_t{1} << 30;
  // Maximum bytes queued for write-behind (durability `memory`), and the same again for bytes read
  // from disk and queued for promotion to RAM.
  uint64_t max_background_bytes = uint64_t{512} << 20;
  // Lets other processes map the host tier's memory (StoreAdmin::shared_memory).
  bool shared_memory = false;
  // Huge pages for the host tier's memory.
  HugePages huge_pages = HugePages::kAuto;
  // Called from any thread: at most once for each optional request that the system refuses (huge
  // pages, memory kept ready); and for damage and a failing disk, a few lines a minute
  // (warnings.h).
  std::function<void(const std::string&)> on_warning;

  // Accelerator memory for copies of objects that are fetched often (device_tier.h). Null: no gpu
  // tier.
  std::shared_ptr<DeviceMemory> device;
  // Called once, from a thread of the store, when the device is lost; the tier is off from then on.
  std::function<void(const absl::Status&)> on_device_lost;

  // Maximum bytes per second that the disk tier writes in the background, all together: flushes,
  // compactions, backups, and moving live slices out of mostly erased files. Publishes do not
  // count. 0: no limit. The default is a third of the throughput of a small SSD, so that reads and
  // publishes are not delayed.
  uint64_t background_disk_bytes_per_s = uint64_t{128} << 20;
  ScrubOptions scrub;

  // Limit of the bookkeeping of restore points in RAM. 0: not counted.
  uint64_t most_point_bytes() const {
    if (!count_points) return 0;
    if (host_bytes > 0) return std::max<uint64_t>(1, host_bytes / 2);
    return std::max(kLeastPointBytesWithoutHost, disk_bytes / kDiskBytesOfPointByte);
  }
  bool has_disk() const { return disk_bytes > 0 && !data_dir.empty(); }
  // Capacity of the slowest tier; quotas and pins are shares of it.
  uint64_t capacity_bytes() const { return has_disk() ? disk_bytes : host_bytes; }

  // Checks relations between fields; kInvalidArgument names the field.
  absl::Status Validate() const;
};

}  // namespace hearth

#endif  // HEARTH_CACHE_STORE_STORE_OPTIONS_H_
