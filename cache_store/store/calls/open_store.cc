// Opening a store: the secret, the disk, the tiers, the index.
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "cache_store/base/secret.h"
#include "cache_store/store/calls/store.h"

namespace hearth {
namespace {

constexpr uint64_t kSmallestSlab = kSegmentDataAlignment;
constexpr uint64_t kLargestSlab = uint64_t{32} << 20;
constexpr uint64_t kMaxAhead = uint64_t{256} << 20;

absl::Status MakeFolder(const std::string& path) {
  // Parents are the operator's: a typo should not make a tree.
  if (mkdir(path.c_str(), 0700) == 0 || errno == EEXIST) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat("data_dir ", path, ": ", strerror(errno)));
}

// Room for the tier and for what is on its way into it, some of it resident before it is asked for.
ArenaOptions ArenaOf(const StoreOptions& options) {
  ArenaOptions arena;
  arena.slab_bytes = std::clamp(options.host_bytes / 64, kSmallestSlab, kLargestSlab);
  arena.slab_bytes -= arena.slab_bytes % kSegmentDataAlignment;
  arena.ahead_bytes = std::clamp(options.host_bytes / 16, arena.slab_bytes, kMaxAhead);
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
  disk.pause = seams.disk_pause;
  disk.background_bytes_per_s = options.background_disk_bytes_per_s;
  return disk;
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

}  // namespace hearth
