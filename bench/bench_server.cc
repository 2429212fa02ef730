#include "bench/bench_server.h"

#include <grpcpp/grpcpp.h>
#include <unistd.h>

#include <memory>

#include "absl/strings/str_cat.h"
#include "services/rpc/transport_options.h"
#include "services/serving/process.h"
#include "services/serving/server/server_runner.h"
#include "services/store/cache_service.h"
#include "services/store/segment_server.h"

namespace hearth {

int ServeUntilKilled(const std::string& program, const StoreOptions& options,
                     const std::string& listen, const std::string& address_file,
                     grpc::CallbackGenericService* beside) {
  KeepFreedMemory();
  auto store = TieredStore::Open(options);
  if (!store.ok()) return FailToStart(program, store.status());
  Admission admission;
  CacheService service(store->get(), &admission, "bench");
  std::unique_ptr<SegmentServer> segment;
  if (options.shared_memory) {
    const SharedMemory memory = *(*store)->shared_memory();
    auto started = SegmentServer::Start(absl::StrCat("@", program, "-", getpid()), memory.fd);
    if (!started.ok()) return FailToStart(program, started.status());
    segment = *std::move(started);
    service.Offer({memory.layout.id, segment->name()});
  }
  grpc::ServerBuilder builder;
  TuneServerTransport(&builder, ConnectionLimits().all_bytes);
  int port = 0;
  builder.AddListeningPort(listen, grpc::InsecureServerCredentials(), &port);
  builder.RegisterService(&service);
  if (beside != nullptr) builder.RegisterCallbackGenericService(beside);
  const auto server = builder.BuildAndStart();
  if (server == nullptr) {
    return FailToStart(program, absl::UnavailableError("cannot listen on " + listen));
  }
  const std::string address = port > 1 ? absl::StrCat("127.0.0.1:", port) : listen;
  const absl::Status written = WriteFileWhole(address_file, address);
  if (!written.ok()) return FailToStart(program, written);
  server->Wait();
  return 0;
}

}  // namespace hearth
