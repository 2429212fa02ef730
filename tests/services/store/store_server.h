// StoreServer: a store's gRPC server on a free port, in the test's process, with a real
// TieredStore.
//
// Thread safety: made and used by one test thread. The server has its own threads.
#ifndef HEARTH_TESTS_SERVICES_STORE_STORE_SERVER_H_
#define HEARTH_TESTS_SERVICES_STORE_STORE_SERVER_H_

#include <grpcpp/grpcpp.h>

#include <cassert>
#include <memory>
#include <string>
#include <utility>

#include "cache_store/store/tiered_store.h"
#include "proto/cache_store.grpc.pb.h"
#include "services/serving/access/server_access.h"
#include "services/serving/calls/admission.h"
#include "services/serving/server/server_runner.h"
#include "services/store/cache_service.h"
#include "services/store/segment_server.h"
#include "tests/services/rpc/connected_to.h"

namespace hearth {

class StoreServer {
 public:
  // `socket`: unix socket that offers the store's shared memory; empty: the memory is not shared.
  explicit StoreServer(const StoreOptions& options, const std::string& listen = "127.0.0.1:0",
                       const std::string& socket = "", absl::Duration lease = absl::Minutes(10),
                       const AccessFlags& access = {}, absl::Duration patience = kStreamPatience)
      : StoreServer(Open(options), listen, socket, lease, access, patience) {}
  explicit StoreServer(std::unique_ptr<TieredStore> store,
                       const std::string& listen = "127.0.0.1:0", const std::string& socket = "",
                       absl::Duration lease = absl::Minutes(10), const AccessFlags& access = {},
                       absl::Duration patience = kStreamPatience)
      : store_(std::move(store)),
        access_(*OpenAccess(access, listen)),
        service_(store_.get(), &admission_, "test") {
    if (!socket.empty()) {
      auto segment = SegmentServer::Start(socket, store_->shared_memory()->fd);
      assert(segment.ok());
      segment_ = *std::move(segment);
      SharedMemoryOffer offer{store_->shared_memory()->layout.id, socket, lease};
      if (const auto device = store_->shared_device()) {
        offer.device_id = device->layout.id;
        offer.device_socket = socket + ".gpu";
        device_segment_ = *SegmentServer::Start(offer.device_socket, device->fd, device->device_fd);
      }
      service_.Offer(offer);
    }
    admission_.SetPatience(patience);
    auto runner = ServerRunner::Start(listen, {{"hearth.v1.CacheStore", &service_}}, &admission_,
                                      access_.credentials);
    assert(runner.ok());
    runner_ = *std::move(runner);
    channel_ = PatientChannel(runner_->address());
    stub_ = v1::CacheStore::NewStub(channel_);
  }
  StoreServer(const StoreOptions& options, const AccessFlags& access,
              const std::string& socket = "")
      : StoreServer(options, "127.0.0.1:0", socket, absl::Minutes(10), access) {}
  ~StoreServer() { runner_.reset(); }

  static StoreOptions SmallStore(const std::string& data_dir) {
    StoreOptions options;
    options.data_dir = data_dir;
    options.host_bytes = 64 << 20;
    options.disk_bytes = data_dir.empty() ? 0 : 256 << 20;
    return options;
  }

  TieredStore* store() { return store_.get(); }
  // REQUIRES: this server was made from StoreOptions, so that the store is a LocalStore.
  void WaitForMemory() { static_cast<LocalStore*>(store_.get())->WaitForMemory(); }
  ServerRunner* runner() { return runner_.get(); }
  Admission* admission() { return &admission_; }
  // `recorder` gets the record of each finished call, and must outlive the server. REQUIRES: no
  // call was made.
  void OnCall(Admission::Recorder recorder) { recorder_ = std::move(recorder); }
  const ServerAccess& access() const { return access_; }
  CacheService* service() { return &service_; }
  const std::shared_ptr<grpc::Channel>& channel() const { return channel_; }
  const std::string& address() const { return runner_->address(); }
  v1::CacheStore::Stub* stub() { return stub_.get(); }

 private:
  static std::unique_ptr<TieredStore> Open(const StoreOptions& options) {
    auto store = TieredStore::Open(options);
    assert(store.ok());
    return *std::move(store);
  }

  std::unique_ptr<TieredStore> store_;
  ServerAccess access_;
  Admission::Recorder recorder_;
  Admission admission_{[this](const CallRecord& call) {
                         if (recorder_) recorder_(call);
                       },
                       access_.identities.get()};
  CacheService service_;
  std::unique_ptr<SegmentServer> segment_, device_segment_;
  std::unique_ptr<ServerRunner> runner_;
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<v1::CacheStore::Stub> stub_;
};

}  // namespace hearth

#endif  // HEARTH_TESTS_SERVICES_STORE_STORE_SERVER_H_
