// FakeWorker: serves hearth.v1.Inference on a free port without a model. Each byte of a text is a
// token. It records requests and answers with fixed words.
//
// Thread safety: set the options before the first call; read the records after the last.
#ifndef HEARTH_TESTS_SERVICES_HEARTHCTL_FAKE_WORKER_H_
#define HEARTH_TESTS_SERVICES_HEARTHCTL_FAKE_WORKER_H_

#include <grpcpp/grpcpp.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "proto/inference.grpc.pb.h"

namespace hearth {

class FakeWorker final : public v1::Inference::Service {
 public:
  static constexpr uint32_t kChunkTokens = 16;

  FakeWorker();
  ~FakeWorker() override;
  const std::string& address() const { return address_; }

  // Options, set by the test.
  grpc::Status failure = grpc::Status::OK;  // if not OK, every call ends with this error
  v1::ExplainResponse explained;            // if its summary is set, the response of Explain
  grpc::Status prefill_failure;             // if not OK, Prefill ends with this error
  bool answers_get_model = false;           // if true, GetModel succeeds even if `failure` is set
  std::string field_dtype;                  // if not empty, value of the fingerprint's field dtype
  bool store_works = true;           // if false, Prefill computes the prompt but publishes nothing
  std::string first_word = "Hello";  // the first word of each answer
  std::function<void()> between_words;  // called between the two words of an answer
  // if not OK, Generate ends with this error between the two words
  grpc::Status failure_between_words;
  // boundaries for which Explain returns no restore point id
  std::set<uint32_t> without_restore_point;
  std::string model_dir;          // value of model_dir in the response of GetModel
  std::string unreachable_store;  // value of unreachable_store in the response of GetModel

  // Returns the restore point id that Explain reports for `boundary`.
  static std::string RestorePointId(uint32_t boundary);

  // Records of the received requests.
  std::vector<v1::GenerateRequest> generated;
  std::vector<absl::Time> deadlines;  // deadlines of the requests in `generated`
  std::vector<v1::PrefillRequest> prefilled;
  std::vector<v1::TokenizeRequest> tokenized;
  std::set<std::string> stored;  // texts of the prompts that were stored

  grpc::Status Generate(grpc::ServerContext* context, const v1::GenerateRequest* request,
                        grpc::ServerWriter<v1::GenerateResponse>* writer) override;
  grpc::Status Prefill(grpc::ServerContext* context, const v1::PrefillRequest* request,
                       grpc::ServerWriter<v1::PrefillResponse>* writer) override;
  grpc::Status Tokenize(grpc::ServerContext*, const v1::TokenizeRequest* request,
                        v1::TokenizeResponse* response) override;
  grpc::Status GetModel(grpc::ServerContext*, const v1::GetModelRequest* request,
                        v1::GetModelResponse* response) override;
  grpc::Status Explain(grpc::ServerContext*, const v1::ExplainInputRequest* request,
                       v1::ExplainResponse* response) override;

 private:
  std::string address_;
  std::mutex mutex_;  // guards the records, because calls of Generate may run concurrently

  std::unique_ptr<grpc::Server> server_;
};

}  // namespace hearth

#endif  // HEARTH_TESTS_SERVICES_HEARTHCTL_FAKE_WORKER_H_
