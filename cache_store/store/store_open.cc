// Opening a store: the secret, the disk, the tiers. store_load.cc fills the index.
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "cache_store/base/secret.h"
#include "cache_store/base/verified_tier.h"
#include "cache_store/disk/decoding_tier.h"
#include "cache_store/store/sessions.h"

namespace hearth {
namespace {

constexpr uint64_t kSmallestSlab = kSegmentDataAlignment;
constexpr uint64_t kLargestSlab = uint64_t{32} << 20;
constexpr uint64_t kMostAhead = uint64_t{256} << 20;

absl::Status MakeFolder(const std::string& path) {
  // Parents are the operator's: a typo should not make a tree.
  if (mkdir(path.c_str(), 0700) == 0 || errno == EEXIST) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat("data_dir ", path, ": ", strerror(errno)));
}

uint64_t MakeIncarnation() {
  const absl::StatusOr<std::string> random = MakeSecret();
  uint64_t incarnation = 0;
  if (random.ok()) std::memcpy(&incarnation, random->data(), sizeof(incarnation));
  return incarnation;
}

// Room for the tier and for what is on its way into it, some of it resident before it is asked for.
ArenaOptions ArenaOf(const StoreOptions& options) {
  ArenaOptions arena;
  arena.slab_bytes = std::clamp(options.host_bytes / 64, kSmallestSlab, kLargestSlab);
  arena.slab_bytes -= arena.slab_bytes % kSegmentDataAlignment;
  arena.ahead_bytes = std::clamp(options.host_bytes / 16, arena.slab_bytes, kMostAhead);
  arena.capacity_bytes =
      options.host_bytes + std::min(options.host_bytes, options.max_staged_bytes);
  arena.shared = options.shared_memory;
  arena.huge_pages = options.huge_pages;
  arena.warn = options.on_warning;
  return arena;
}

DiskTierOptions DiskOf(const StoreOptions& options, const StoreSeams& seams) {
  DiskTierOptions disk;
  disk.warnings = std::make_shared<Warnings>(options.on_warning);
  disk.env = seams.disk_env;
  disk.boot = seams.boot;
  disk.min_table_bytes = seams.min_table_bytes;
  disk.background_bytes_per_s = options.background_disk_bytes_per_s;
  return disk;
}

Catalog::Limits LimitsOf(const StoreOptions& options, bool has_disk) {
  return Catalog::Limits{options.host_bytes, has_disk ? options.disk_bytes : 0, options.retention};
}

}  // namespace

absl::StatusOr<std::unique_ptr<TieredStore>> TieredStore::Open(const StoreOptions& options) {
  return OpenStore(options, StoreSeams{});
}

absl::StatusOr<std::unique_ptr<TieredStore>> OpenStore(const StoreOptions& options,
                                                       StoreSeams seams) {
  if (absl::Status status = options.Validate(); !status.ok()) return status;
  const bool wants_disk = options.has_disk();
  absl::StatusOr<std::string> secret;
  std::unique_ptr<DiskTier> disk;
  if (wants_disk) {
    if (absl::Status status = MakeFolder(options.data_dir); !status.ok()) return status;
  }
  if (!options.secret_file.empty()) {
    secret = ReadSecret(options.secret_file);
  } else {
    secret = wants_disk ? ReadOrMakeSecret(options.data_dir + "/secret") : MakeSecret();
  }
  if (!secret.ok()) return secret.status();
  if (wants_disk) {
    absl::StatusOr<std::unique_ptr<DiskTier>> opened =
        DiskTier::Open(options.data_dir, SecretCheck(*secret), DiskOf(options, seams));
    if (!opened.ok()) return opened.status();
    disk = *std::move(opened);
  }
  const bool is_tests = seams.executor != nullptr;
  std::shared_ptr<HostArena> arena;
  if (options.host_bytes > 0) {
    absl::StatusOr<std::shared_ptr<HostArena>> made = HostArena::Create(ArenaOf(options));
    if (!made.ok()) return made.status();
    arena = *std::move(made);
  }
  auto store = std::make_unique<Store>(options, std::move(seams), *std::move(secret),
                                       std::move(arena), std::move(disk));
  if (absl::Status status = store->Recover(); !status.ok()) return status;
  if (!is_tests) store->StartThreads();
  return store;
}

Store::Store(const StoreOptions& options, StoreSeams seams, std::string secret,
             std::shared_ptr<HostArena> arena, std::unique_ptr<DiskTier> disk)
    : options_(options),
      secret_(std::move(secret)),
      incarnation_(MakeIncarnation()),
      clock_(seams.clock != nullptr ? seams.clock : &system_clock_),
      load_patience_(seams.load_patience),
      events_(&counters_),
      warnings_(options.on_warning),
      arena_(std::move(arena)),
      host_(options.host_bytes),
      disk_(std::move(disk)),
      device_(options.device == nullptr
                  ? nullptr
                  : std::make_unique<DeviceTier>(options.device, options.on_device_lost,
                                                 options.shared_memory)),
      catalog_(LimitsOf(options, disk_ != nullptr), options.quotas,
               [this](const RestorePointEntry& point, Removal why) { OnRemoved(point, why); }),
      uses_noted_(clock_->Now()),
      executor_(std::move(seams.executor)) {
  SliceTier* host = &host_;
  if (seams.wrap_host) host = (wrapped_host_ = seams.wrap_host(host)).get();
  unverified_host_ = host;
  host_slices_ = std::make_unique<VerifiedTier>(host);
  if (disk_ != nullptr) {
    SliceTier* slices = disk_.get();
    if (seams.wrap_disk) slices = (wrapped_disk_ = seams.wrap_disk(slices)).get();
    decoded_disk_ = std::make_unique<DecodingTier>(slices);
    disk_slices_ = std::make_unique<VerifiedTier>(decoded_disk_.get());
  }
  if (executor_ == nullptr) {
    executor_ = std::make_unique<ThreadExecutor>(options.max_background_bytes);
    if (disk_ != nullptr) reclaimer_ = std::make_unique<ThreadExecutor>(0);
    if (device_ != nullptr) {
      device_copier_ = std::make_unique<ThreadExecutor>(options.max_background_bytes);
    }
  }
}

Store::~Store() {
  loader_.reset();  // what it did not come to is there at the next start
  scrubber_.reset();
  upkeeper_.reset();
  if (disk_ != nullptr) disk_->StopReclaiming();  // the next start goes on with it
  device_copier_.reset();
  executor_.reset();  // runs what was accepted
  reclaimer_.reset();
  if (disk_ == nullptr) return;
  while (NoteUses()) {
  }
  uint64_t erased_bytes = 0;
  EraseFromDisk({}, &erased_bytes).IgnoreError();
  disk_->Sync().IgnoreError();
}

}  // namespace hearth
