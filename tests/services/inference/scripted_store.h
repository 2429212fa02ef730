// ScriptedStore: a CacheStore server on a free port. Each RPC calls a function that the test sets.
//
// Faults that it can have: answers that are late, wrong, cut off or missing, and a server that
// stops and starts again on the same port. Thread safety: set the functions before the first call.
#ifndef HEARTH_TESTS_SERVICES_INFERENCE_SCRIPTED_STORE_H_
#define HEARTH_TESTS_SERVICES_INFERENCE_SCRIPTED_STORE_H_

#include <grpcpp/grpcpp.h>

#include <functional>
#include <memory>
#include <string>

#include "proto/cache_store.grpc.pb.h"

namespace hearth {

class ScriptedStore final : public v1::CacheStore::Service {
 public:
  using FetchStream = grpc::ServerWriter<v1::FetchResponse>;
  using PublishStream = grpc::ServerReaderWriter<v1::PublishResponse, v1::PublishRequest>;

  ScriptedStore() { Start(); }
  ~ScriptedStore() override { Stop(); }

  void Start();  // on the same port as the first start
  void Stop();
  const std::string& address() const { return address_; }

  std::function<grpc::Status(grpc::ServerContext*, const v1::FetchRequest&, FetchStream*)> fetch;
  std::function<grpc::Status(grpc::ServerContext*, PublishStream*)> publish;
  // Null: the store does not support leases.
  std::function<grpc::Status(grpc::ServerContext*, grpc::ServerWriter<v1::LeaseResponse>*)> lease;
  std::function<grpc::Status(const v1::ExplainRequest&, v1::ExplainResponse*)> explain;
  std::function<grpc::Status(const v1::QuarantineRequest&, v1::QuarantineResponse*)> quarantine;
  // Null: an older store, which does not know the call.
  std::function<grpc::Status(const v1::ReportRequest&, v1::ReportResponse*)> report;

 private:
  grpc::Status Report(grpc::ServerContext*, const v1::ReportRequest* request,
                      v1::ReportResponse* response) override {
    return report ? report(*request, response) : grpc::Status(grpc::StatusCode::UNIMPLEMENTED, "");
  }
  grpc::Status Fetch(grpc::ServerContext* context, const v1::FetchRequest* request,
                     FetchStream* stream) override {
    return fetch(context, *request, stream);
  }
  grpc::Status Publish(grpc::ServerContext* context, PublishStream* stream) override {
    return publish(context, stream);
  }
  grpc::Status Lease(grpc::ServerContext* context, const v1::LeaseRequest*,
                     grpc::ServerWriter<v1::LeaseResponse>* stream) override {
    return lease ? lease(context, stream) : grpc::Status(grpc::StatusCode::UNIMPLEMENTED, "");
  }
  grpc::Status Explain(grpc::ServerContext*, const v1::ExplainRequest* request,
                       v1::ExplainResponse* response) override {
    return explain(*request, response);
  }
  grpc::Status Quarantine(grpc::ServerContext*, const v1::QuarantineRequest* request,
                          v1::QuarantineResponse* response) override {
    return quarantine(*request, response);
  }

  std::string address_ = "127.0.0.1:0";
  std::unique_ptr<grpc::Server> server_;
};

}  // namespace hearth

#endif  // HEARTH_TESTS_SERVICES_INFERENCE_SCRIPTED_STORE_H_
