#include "services/hearthctl/opened_store.h"

#include <grpcpp/server_builder.h>
#include <unistd.h>

#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "cache_store/disk/data_folder.h"
#include "cache_store/store/tiered_store.h"
#include "services/cli/command_line.h"
#include "services/cli/version.h"
#include "services/rpc/transport_options.h"
#include "services/serving/calls/admission.h"
#include "services/store/cache_service.h"

namespace hearth {
namespace {

// Nothing is to leave because hearthctl was not told the store's limits: the store applies them
// when it opens the folder next.
constexpr uint64_t kNoLimitBytes = uint64_t{1} << 50;

// Who may open the folder may name any tenant.
Identity Owner() { return {"hearthctl", Role::kWorker, kDefaultTenant, "", true}; }

}  // namespace

void StoppedStoreFlags::Declare(CommandFlags* command) {
  command->Add("--data-dir", &data_dir,
               "a stopped store's data folder, instead of a running store");
  command->Add("--secret-file", &secret_file,
               "with --data-dir: the secret, where the store was given one");
}

std::string SecretIsNotIn(const std::string& dir) {
  return "the secret of the keys is not in " + dir;
}

struct OpenedStore::Served {
  explicit Served(std::unique_ptr<TieredStore> opened) : store(std::move(opened)) {
    admission.SetPatience(
        absl::Hours(24));  // its only caller is this process, which may be stopped
    grpc::ServerBuilder builder;
    TuneServerTransport(&builder, ConnectionLimits().all_bytes);
    builder.RegisterService(&service);
    server = builder.BuildAndStart();
  }
  ~Served() { server->Shutdown(); }

  const std::unique_ptr<TieredStore> store;
  Admission admission{nullptr, nullptr, Owner()};
  CacheService service{store.get(), &admission, kVersion};
  std::unique_ptr<grpc::Server> server;
};

OpenedStore::OpenedStore(PeerFlags peer) : peer_(std::move(peer)) {}
OpenedStore::~OpenedStore() = default;

absl::StatusOr<std::unique_ptr<OpenedStore>> OpenedStore::Open(const PeerFlags& peer,
                                                               const StoppedStoreFlags& stopped) {
  std::unique_ptr<OpenedStore> opened(new OpenedStore(peer));
  if (!stopped.data_dir.empty()) {
    if (absl::Status served = opened->Serve(stopped); !served.ok()) return served;
    return opened;
  }
  auto channel = Connect(peer);
  if (!channel.ok()) return channel.status();
  opened->stub_ = v1::CacheStore::NewStub(*channel);
  return opened;
}

absl::Status OpenedStore::Serve(const StoppedStoreFlags& stopped) {
  const std::string& dir = stopped.data_dir;
  if (absl::Status found = CheckCanBeOpened(dir); !found.ok()) return found;
  // A store would make one.
  if (stopped.secret_file.empty() && ::access((dir + "/secret").c_str(), F_OK) != 0) {
    return absl::FailedPreconditionError(
        SecretIsNotIn(dir) + ": pass --secret-file FILE, the one that the store was started with");
  }
  StoreOptions options;
  options.data_dir = dir;
  options.secret_file = stopped.secret_file;
  options.host_bytes = 0;
  options.disk_bytes = kNoLimitBytes;
  options.max_staged_bytes = kNoLimitBytes;
  options.scrub.bytes_per_s = 0;
  auto store = TieredStore::Open(options);
  if (!store.ok() && absl::StrContains(store.status().message(), "held by another process")) {
    return absl::FailedPreconditionError(absl::StrCat(
        store.status().message(), "; stop it, or ask the store that runs: --store ADDR"));
  }
  if (!store.ok()) return store.status();
  peer_.address = dir;
  served_ = std::make_unique<Served>(*std::move(store));
  stub_ = v1::CacheStore::NewStub(served_->server->InProcessChannel(ClientTransport()));
  return absl::OkStatus();
}

}  // namespace hearth
