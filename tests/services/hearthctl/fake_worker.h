// FakeWorker: hearth.v1.Inference on a free port, without a model. It turns each byte of a text
// into a token, remembers what was prefilled, and answers with fixed words.
//
// Thread safety: set the knobs before the first call; read the records after the last.
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

  // Knobs.
  grpc::Status failure = grpc::Status::OK;   // of every call, when not OK
  v1::ExplainResponse explained;             // Explain's answer, when it has a summary
  grpc::Status prefill_failure;              // of those alone
  bool answers_get_model = false;            // whatever `failure` is
  std::string field_dtype;                   // of GetModel's fingerprint, if any
  bool store_works = true;                   // false: prefill computes and publishes nothing
  std::string first_word = "Hello";          // of each answer
  std::function<void()> between_words;       // of an answer of Generate
  grpc::Status failure_between_words;        // ends it there, when not OK
  std::set<uint32_t> without_restore_point;  // boundaries that Explain gives no id for
  std::string unreachable_store;             // that GetModel names, if any

  // Explain's id of the restore point at `boundary`.
  static std::string RestorePointId(uint32_t boundary);

  // Records.
  std::vector<v1::GenerateRequest> generated;
  std::vector<absl::Time> deadlines;  // of those
  std::vector<v1::PrefillRequest> prefilled;
  std::vector<v1::TokenizeRequest> tokenized;
  std::set<std::string> stored;  // rendered prompts that were prefilled

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
  std::mutex mutex_;  // calls of Generate come several at a time

  std::unique_ptr<grpc::Server> server_;
};

}  // namespace hearth

#endif  // HEARTH_TESTS_SERVICES_HEARTHCTL_FAKE_WORKER_H_
