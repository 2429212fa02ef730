#include "services/programs/store_link.h"

#include <grpcpp/server_builder.h>

#include <optional>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "cache_store/memory/cuda_memory.h"
#include "services/cli/version.h"
#include "services/inference/worker_metrics.h"
#include "services/inference/worker_status.h"
#include "services/rpc/transport_options.h"
#include "services/serving/access/connection_tracker.h"
#include "services/serving/logging.h"
#include "services/store/cache_service.h"
#include "services/store/store_metrics.h"

namespace hearth {
namespace {

constexpr absl::Duration kReachabilityPeriod = absl::Seconds(1);
constexpr absl::Duration kConnectingPeriod = absl::Milliseconds(20);  // while the state is brief
constexpr absl::Duration kMapTimeout = absl::Seconds(2);

std::optional<int> CudaIndex(absl::string_view device) {
  int index = 0;
  if (!absl::ConsumePrefix(&device, "cuda")) return std::nullopt;
  if (absl::ConsumePrefix(&device, ":") && !absl::SimpleAtoi(device, &index)) return std::nullopt;
  return index;
}

// Returns the function that maps the gpu tier of a store on this host, for a worker that computes
// on `device`; null if the device does not support it.
ImportDevice GpuImporter(const std::string& device) {
  const std::optional<int> index = CudaIndex(device);
  if (!index.has_value()) return nullptr;
  return [index = *index](const DeviceMemoryHandle& handle, int fd) {
    return ImportCudaMemory(index, handle, fd);
  };
}

}  // namespace

// A store in this process. The worker calls it like a store in another process, but without a
// socket.
struct StoreLink::Embedded {
  Embedded(std::unique_ptr<TieredStore> opened, Admission* admission)
      : store(std::move(opened)), service(store.get(), admission, kVersion) {
    grpc::ServerBuilder builder;
    TuneServerTransport(&builder, ConnectionLimits().all_bytes);
    builder.RegisterService(&own);
    server = builder.BuildAndStart();
  }
  ~Embedded() { server->Shutdown(); }

  const std::unique_ptr<TieredStore> store;
  CacheService service;  // for callers in other processes; `admission` authenticates them
  // Admits the worker's own calls, which name the tenants that the worker has authenticated.
  Admission worker{nullptr, nullptr, {"worker", Role::kWorker, kDefaultTenant, "", false}};
  CacheService own{store.get(), &worker, kVersion};
  std::unique_ptr<grpc::Server> server;
};

StoreLink::StoreLink() = default;
StoreLink::~StoreLink() = default;

grpc::Service* StoreLink::service() const {
  return embedded_ == nullptr ? nullptr : &embedded_->service;
}

absl::StatusOr<std::unique_ptr<StoreLink>> StoreLink::Open(Options options, const Engine& engine,
                                                           Admission* admission) {
  std::unique_ptr<StoreLink> link(new StoreLink);
  const std::string& spec = options.spec;
  if (spec == "none") return link;
  const auto add_adapters = [&] {
    for (const AdapterInfo& adapter : engine.adapters()) {
      link->cache_->AddAdapter(adapter.name, adapter.fingerprint);
    }
  };
  absl::string_view folder = spec;
  if (absl::ConsumePrefix(&folder, "embedded:")) {
    options.embedded.data_dir = std::string(folder);
    options.embedded.on_warning = [](const std::string& text) { Log(LogLevel::kWarning, text); };
    auto store = TieredStore::Open(options.embedded);
    if (!store.ok()) return store.status();
    link->embedded_ = std::make_unique<Embedded>(*std::move(store), admission);
    link->cache_ = std::make_unique<RemotePrefixCache>(
        link->embedded_->server->InProcessChannel(ClientTransport()), engine.fingerprint(),
        engine.layout(), &link->counters_, /*shared_memory=*/false, nullptr, nullptr,
        /*connects=*/false);
    add_adapters();
    return link;
  }
  if (!absl::StrContains(spec, ':')) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--store: must be HOST:PORT, unix:PATH, embedded:DIR or none; got \"", spec, "\""));
  }
  auto channel = ConnectToStore(spec, options.access);
  if (!channel.ok()) return channel.status();
  link->cache_ = std::make_unique<RemotePrefixCache>(
      *channel, engine.fingerprint(), engine.layout(), &link->counters_, options.shared_memory,
      GpuImporter(options.device));
  add_adapters();
  link->reachability_ = std::make_unique<Reachability>("store", spec);
  link->reachability_check_ = std::make_unique<RepeatingThread>(
      [channel = *channel, reachability = link->reachability_.get(), cache = link->cache_.get(),
       is_mapped = false]() mutable {
        // GetState makes an idle channel connect. States other than these two are short.
        const grpc_connectivity_state state = channel->GetState(/*try_to_connect=*/true);
        const bool is_lost = state == GRPC_CHANNEL_TRANSIENT_FAILURE;
        const bool is_ready = state == GRPC_CHANNEL_READY;
        if (is_lost || is_ready) reachability->Note(!is_lost, "the connection fails");
        // After a lost connection, the store may be another one.
        if (is_ready && !is_mapped) cache->MapMemory(kMapTimeout);
        is_mapped = is_ready;
        return is_lost || is_ready ? kReachabilityPeriod : kConnectingPeriod;
      });
  return link;
}

void StoreLink::AddMetrics(Metrics* metrics) const {
  if (cache_ == nullptr) return;
  metrics->AddSource([this] { return CacheSamples(counters_.Read()); });
  if (reachability_ != nullptr) {
    metrics->AddSource([this]() -> std::vector<MetricSample> {
      return {MetricSample::Gauge("hearth_worker_store_reachable", "Whether the store answers.",
                                  reachability_->is_reached() ? 1 : 0)};
    });
  }
  if (embedded_ == nullptr) return;
  metrics->AddSource([this] { return StoreSamples(embedded_->store->Stats()); });
  metrics->AddHistograms([this] { return StoreHistograms(embedded_->store->Stats()); });
}

void StoreLink::StartReports(const Engine* engine, const std::string& name,
                             const std::string& model) {
  if (cache_ == nullptr || embedded_ != nullptr) return;
  v1::ReportRequest names;
  names.set_name(name);
  names.set_version(kVersion);
  names.set_device(engine->device());
  const auto add = [&](const std::string& served, const Fingerprint& fingerprint) {
    v1::ServedModel* const added = names.add_models();
    added->set_name(served);
    added->set_fingerprint_digest(std::string(DigestBytes(fingerprint.digest())));
  };
  add(model, engine->fingerprint());
  for (const AdapterInfo& adapter : engine->adapters()) {
    add(absl::StrCat(model, " + ", adapter.name), adapter.fingerprint);
  }
  reporter_ = std::make_unique<StoreReporter>(
      std::move(names), [engine](v1::ReportRequest* report) { FillReport(*engine, report); },
      [this](const v1::ReportRequest& report, absl::Duration timeout) {
        return cache_->Report(report, timeout);
      });
  reporter_->Start();
}

void StoreLink::StopReports() {
  if (reporter_ != nullptr) reporter_->Stop();
}

void StoreLink::Flush(absl::Time deadline) const {
  if (embedded_ == nullptr) return;
  if (absl::Status status = embedded_->store->Flush(deadline); !status.ok()) {
    Log(LogLevel::kWarning, "flush incomplete", {{"reason", std::string(status.message())}});
  }
}

}  // namespace hearth
