// The program hearth-store: a cache of KV prefixes in RAM and on disk.

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "cache_store/memory/cuda_memory.h"
#include "cache_store/store/tiered_store.h"
#include "services/cli/signal_thread.h"
#include "services/cli/version.h"
#include "services/serving/access/server_access.h"
#include "services/serving/calls/admission.h"
#include "services/serving/calls/call_log.h"
#include "services/serving/flags.h"
#include "services/serving/logging.h"
#include "services/serving/metrics.h"
#include "services/serving/process.h"
#include "services/serving/server/server_runner.h"
#include "services/serving/server/serving.h"
#include "services/store/cache_service.h"
#include "services/store/fleet_page.h"
#include "services/store/segment_server.h"
#include "services/store/shared_tier.h"
#include "services/store/store_metrics.h"
#include "services/store/store_status.h"
#include "services/store/tenants_file.h"

namespace hearth {
namespace {

constexpr char kProgram[] = "hearth-store";
constexpr char kAbout[] =
    "Keeps the keys and values of prompt prefixes in RAM and on disk, and serves them to workers.\n"
    "Entries on disk survive a restart.";
constexpr char kExamples[] =
    "Every flag can also come from the environment (HEARTH_STORE_HOST_BYTES=8GiB) or from the\n"
    "file of --config (host-bytes = \"8GiB\"). The command line overrides the environment, and\n"
    "the environment overrides the file.\n\n"
    "Examples:\n"
    "  hearth-store --data-dir /var/lib/hearth\n"
    "  hearth-store --data-dir /var/lib/hearth --host-bytes 16GiB --disk-bytes 500GiB\n"
    "  hearth-store --listen 127.0.0.1:0 --address-file store.address   # any free port\n"
    "  hearth-store --identities-file callers.json                      # authenticate callers\n"
    "  hearth-store --data-dir '' --host-bytes 8GiB                     # RAM only, lost at exit\n";

constexpr char kNoTokens[] =
    "--show-prompt-text on: prompt text is shown to an administrator's token only; give "
    "--identities-file with an entry that has the role admin and a token";
constexpr char kNoStatusPage[] =
    "--show-prompt-text on: prompt text is shown on the status page; give --metrics-listen";

struct StoreFlags {
  ServerFlags server;
  std::string shared_memory = "auto";
  uint64_t gpu_bytes = 0;
  std::string tenants_file;
  std::string backup_dir;
  SharedFlags shared;
  StoreOptions store;
};

bool ParseFlags(int argc, char** argv, StoreFlags* flags, int* exit_code) {
  flags->server.listen = "127.0.0.1:7080";
  flags->store.data_dir = "hearth-data";
  FlagSet set(kProgram, "HEARTH_STORE_", kAbout, kExamples);
  set.AddServerFlags(&flags->server);
  set.AddText("data-dir", &flags->store.data_dir,
              "Folder of the disk tier, created if missing; empty: no disk tier");
  set.AddBytes("host-bytes", &flags->store.host_bytes,
               "RAM for keys and values, and for records of restore points (about 1 KB each, "
               "together at most half of --host-bytes)");
  set.AddBytes("gpu-bytes", &flags->gpu_bytes,
               "Memory of CUDA device 0 for copies of entries, read by workers of this host that "
               "compute on this device; 0: no gpu tier");
  set.AddBytes("disk-bytes", &flags->store.disk_bytes,
               "Disk space for keys and values; lowered if the volume has less room");
  set.AddBytes(
      "max-staged-bytes", &flags->store.max_staged_bytes,
      "Memory for publishes that are being received; a publish that does not fit is refused");
  set.AddChoice("durability", &flags->store.default_durability,
                {"default", "memory", "disk", "sync"},
                "Durability of publishes that do not set one. memory: acknowledged in RAM, may be "
                "lost; disk: survives a crash of the store; sync: survives a crash of the machine");
  set.AddChoice("retention", &flags->store.retention, {"default", "lru"},
                "Eviction policy. default: evict entries with the lowest predicted reuse; lru: "
                "evict the least recently used");
  set.AddDuration("default-ttl", &flags->store.default_ttl,
                  "Time to live of restore points that are published without one, if the tenants "
                  "file sets no default_ttl_s; 0s: until evicted");
  set.AddText("shared-memory", &flags->shared_memory,
              "Share RAM with workers of this host and user, who then read slices from it instead "
              "of the socket: auto, off, or the unix socket to offer it on (a path, or @NAME)");
  set.AddChoice("huge-pages", &flags->store.huge_pages, {"off", "auto", "on"},
                "Ask the kernel for huge pages for --host-bytes; on: warn if it has none");
  set.AddText("tenants-file", &flags->tenants_file,
              "JSON file of the limits and guaranteed bytes of each tenant; empty: no limits");
  set.AddText("backup-dir", &flags->backup_dir,
              "Backup folder; SIGUSR1 starts a backup of the disk tier. Empty: disabled");
  set.AddBytes("background-disk-rate", &flags->store.background_disk_bytes_per_s,
               "Maximum bytes per second written to disk in the background, backups included; "
               "0: no limit");
  set.AddBytes("scrub-rate", &flags->store.scrub.bytes_per_s,
               "Bytes per second read from disk to find damaged entries; 0: no scrub");
  set.AddDuration("scrub-period", &flags->store.scrub.period,
                  "Minimum time from one full scrub of the disk to the next");
  set.AddText("secret-file", &flags->store.secret_file,
              "File with the secret from which keys of prefixes are computed; empty: created once "
              "in the data folder");
  AddSharedFlags(&set, &flags->shared);
  return set.Parse(argc, argv, exit_code);
}

// Returns the server of a shared memory; null if the memory is not shared. If --shared-memory is
// `auto` and the socket cannot be opened, logs a warning: all bytes are then sent over the wire.
absl::StatusOr<std::unique_ptr<SegmentServer>> ShareMemory(
    const std::string& flag, const char* suffix, uint64_t incarnation,
    const std::optional<SharedMemory>& memory) {
  if (!memory.has_value()) return nullptr;
  const bool is_auto = flag == "auto";
  const std::string name =
      absl::StrCat(is_auto ? absl::StrCat("@hearth-store-", absl::Hex(incarnation)) : flag, suffix);
  auto server = SegmentServer::Start(name, memory->fd, memory->device_fd);
  if (!server.ok() && is_auto) {
    Log(LogLevel::kWarning, "shared memory is off",
        {{"reason", std::string(server.status().message())}});
    return nullptr;
  }
  return server;
}

// The servers of shared memory, for RAM and for the gpu tier. A null server: not shared.
struct Shared {
  absl::Status status;
  std::unique_ptr<SegmentServer> host, device;
};
Shared Share(const StoreFlags& flags, uint64_t incarnation, const StoreAdmin& store,
             CacheService* service) {
  Shared shared;
  SharedMemoryOffer offer;
  const std::optional<SharedMemory> host = store.shared_memory(), device = store.shared_device();
  auto host_server = ShareMemory(flags.shared_memory, "", incarnation, host);
  auto device_server = ShareMemory(flags.shared_memory, ".gpu", incarnation, device);
  shared.status.Update(host_server.status());
  shared.status.Update(device_server.status());
  if (!shared.status.ok()) return shared;
  shared.host = *std::move(host_server);
  shared.device = *std::move(device_server);
  if (shared.host != nullptr) offer.id = host->layout.id, offer.socket = shared.host->name();
  if (shared.device != nullptr) {
    offer.device_id = device->layout.id;
    offer.device_socket = shared.device->name();
  }
  if (shared.device == nullptr && flags.store.device != nullptr) {
    Log(LogLevel::kWarning, "GPU tier is enabled but no worker can map it",
        {{"reason", "its memory cannot be shared, or --shared-memory is off"}});
  }
  service->Offer(std::move(offer));
  return shared;
}

void BackUp(StoreAdmin* store, const std::string& folder) {
  if (folder.empty()) {
    Log(LogLevel::kWarning, "no backup", {{"reason", "started without --backup-dir"}});
    return;
  }
  const absl::Time start = absl::Now();
  const absl::StatusOr<BackupReport> report = store->BackUp(folder);
  if (!report.ok()) {
    Log(LogLevel::kError, "backup failed", {{"reason", std::string(report.status().message())}});
    return;
  }
  Log(LogLevel::kInfo, "backed up",
      {{"folder", folder},
       {"id", report->id},
       {"bytes", report->bytes},
       {"new_bytes", report->new_bytes},
       {"has_secret", report->has_secret ? "yes" : "no: back up the file of --secret-file too"},
       {"took_ms", absl::ToInt64Milliseconds(absl::Now() - start)}});
}

void LogGpuOff(const absl::Status& why) {
  Log(LogLevel::kWarning, "the gpu tier is off", {{"reason", std::string(why.message())}});
}

// Adds a gpu tier with `bytes` of the memory of CUDA device 0 to `options`; 0: no gpu tier. If the
// device is lost later, the store continues without the tier, which only holds copies.
absl::Status AddGpuTier(uint64_t bytes, StoreOptions* options) {
  if (bytes == 0) return absl::OkStatus();
  absl::StatusOr<std::unique_ptr<DeviceMemory>> memory = OpenCudaMemory(0, bytes);
  if (!memory.ok()) {
    return {memory.status().code(), absl::StrCat("gpu-bytes: ", memory.status().message(),
                                                 ", or start without --gpu-bytes")};
  }
  options->device = *std::move(memory);
  options->on_device_lost = LogGpuOff;
  Log(LogLevel::kInfo, "gpu tier", {{"device", options->device->name()}, {"bytes", bytes}});
  return absl::OkStatus();
}

absl::StatusOr<StoreAndEngine> OpenStore(const StoreFlags& flags) {
  absl::StatusOr<std::unique_ptr<LocalStore>> store = TieredStore::Open(flags.store);
  if (!store.ok()) return store.status();
  SharedFlags shared = flags.shared;
  uint64_t& most = shared.options.max_loading_bytes;
  most = std::min(most, std::max(flags.store.host_bytes, flags.store.capacity_bytes()));
  return AddSharedTier(shared, flags.store.secret_file, *std::move(store));
}

// Returns the effective limit of the disk tier, which may be lower than the flag on a small volume;
// 0: no disk tier.
uint64_t DiskLimitOf(const StoreStats& stats) {
  for (const TierUsage& usage : stats.tiers) {
    if (usage.tier == Tier::kDisk) return usage.capacity_bytes;
  }
  return 0;
}

absl::Status CheckShownText(const ServerFlags& flags, const Identities& identities) {
  if (!flags.show_prompt_text) return absl::OkStatus();
  if (flags.metrics_listen.empty()) return absl::InvalidArgumentError(kNoStatusPage);
  return identities.has_admin_token() ? absl::OkStatus() : absl::InvalidArgumentError(kNoTokens);
}

int Main(int argc, char** argv) {
  StoppedLine stopped;  // first, so that it is destroyed last
  StoreFlags flags;
  int exit_code = 0;
  if (!ParseFlags(argc, argv, &flags, &exit_code)) return exit_code;
  GuardStart(kProgram,
             {absl::StrCat("--host-bytes=", FormatByteSize(flags.store.host_bytes)),
              absl::StrCat("--max-staged-bytes=", FormatByteSize(flags.store.max_staged_bytes))});
  BlockSignal(SIGUSR1);
  SetUpServer(flags.server);
  if (absl::Status status = CheckPorts(flags.server); !status.ok()) {
    return FailToStart(kProgram, status);
  }
  const absl::Time start = absl::Now();
  flags.store.shared_memory = flags.shared_memory != "off";
  absl::StatusOr<TenantQuotas> quotas = ReadTenantsFile(flags.tenants_file);
  if (!quotas.ok()) return FailToStart(kProgram, quotas.status());
  flags.store.quotas = *std::move(quotas);
  if (absl::Status status = CheckSharedFlags(flags.shared, flags.store.secret_file); !status.ok()) {
    return FailToStart(kProgram, status);
  }
  flags.store.on_warning = [](const std::string& text) { Log(LogLevel::kWarning, text); };
  if (absl::Status added = AddGpuTier(flags.gpu_bytes, &flags.store); !added.ok()) {
    return FailToStart(kProgram, added);
  }
  const absl::StatusOr<StoreAndEngine> store = OpenStore(flags);
  if (!store.ok()) return FailToStart(kProgram, store.status());
  TieredStore* const opened = store->store.get();
  Metrics metrics("hearth_store");
  metrics.AddSource([opened] { return StoreSamples(opened->Stats()); });
  metrics.AddSource([&store] { return SharedEngineSamples(*store); });
  metrics.AddHistograms([opened] { return StoreHistograms(opened->Stats()); });
  const absl::StatusOr<ServerAccess> access = OpenAccess(flags.server.access, flags.server.listen);
  if (!access.ok()) return FailToStart(kProgram, access.status());
  const absl::Status shown = CheckShownText(flags.server, *access->identities);
  if (!shown.ok()) return FailToStart(kProgram, shown);
  Admission admission(RecordCalls(&metrics), access->identities.get());
  CacheService service(opened, &admission, kVersion,
                       flags.shared.is_on() ? kSharedLookupThreads : kLookupThreads);
  if (flags.server.show_prompt_text) service.fleet()->ShowWords();
  metrics.AddSource([&service] { return FleetSamples(service.fleet()->Totals()); });
  metrics.AddPage("/fleet.json", FleetPage({opened, service.fleet(), access->identities.get(),
                                            flags.server.access.plaintext_tokens}));
  StatusFigures status(kProgram, kVersion, StoreFigures(opened, service.fleet()));
  status.AddPages(&metrics);
  if (!flags.server.metrics_listen.empty()) status.Start();
  const StoreStats stats = opened->Stats();
  const Shared shared = Share(flags, stats.incarnation, *opened, &service);
  if (!shared.status.ok()) return FailToStart(kProgram, shared.status);
  Log(LogLevel::kInfo, "opened",
      {{"data_dir", flags.store.data_dir},
       {"disk_limit_bytes", DiskLimitOf(stats)},
       {"restore_points", stats.restore_points},
       {"shared_memory", shared.host == nullptr ? "off" : shared.host->name()},
       {"shared", flags.shared.url},
       {"took_ms", absl::ToInt64Milliseconds(absl::Now() - start)}});
  const SignalThread backups(SIGUSR1, [&] { BackUp(opened, flags.backup_dir); });
  const absl::StatusOr<int> served = Serve(
      flags.server, {{"hearth.v1.CacheStore", &service}}, &admission, &metrics, *access,
      [opened](absl::Time deadline) {
        if (absl::Status status = opened->Flush(deadline); !status.ok()) {
          Log(LogLevel::kWarning, "flush incomplete", {{"reason", std::string(status.message())}});
        }
      },
      &stopped);
  metrics.Stop();  // must precede the end of `status`, which pages read
  return served.ok() ? *served : FailToStart(kProgram, served.status());
}

}  // namespace
}  // namespace hearth

int main(int argc, char** argv) { return hearth::Main(argc, argv); }
