#include "services/inference/usage_reporter.h"

#include <grpcpp/client_context.h>

#include <chrono>
#include <string>
#include <utility>

#include "services/inference/cached_tokens.h"
#include "services/serving/logging.h"
#include "worker/engine/engine_counters.h"

namespace hearth {

v1::ReportRequest UsageOf(const EngineStats& stats) {
  const auto of = [&](EngineCounter counter) {
    const auto it = stats.counters.find(EngineCounterName(counter));
    return it == stats.counters.end() ? 0 : it->second;
  };
  v1::ReportRequest usage;
  usage.set_requests(of(EngineCounter::kRequestsFinished));
  usage.set_prompt_tokens(of(EngineCounter::kPromptTokens));
  usage.set_cached_tokens(CachedTokens(stats.counters));
  usage.set_own_tokens(of(EngineCounter::kCachedTokensWorker));
  return usage;
}

UsageReporter::UsageReporter(const std::shared_ptr<grpc::Channel>& channel,
                             std::function<v1::ReportRequest()> totals, absl::Duration every)
    : stub_(v1::CacheStore::NewStub(channel)),
      totals_(std::move(totals)),
      every_(every),
      thread_([this] { return Report(); }) {}

absl::Duration UsageReporter::Report() {
  const v1::ReportRequest now = totals_();
  v1::ReportRequest since;
  since.set_requests(now.requests() - said_.requests());
  since.set_prompt_tokens(now.prompt_tokens() - said_.prompt_tokens());
  since.set_cached_tokens(now.cached_tokens() - said_.cached_tokens());
  since.set_own_tokens(now.own_tokens() - said_.own_tokens());
  if (since.requests() == 0 && since.prompt_tokens() == 0) return every_;
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + absl::ToChronoMilliseconds(kPatience));
  v1::ReportResponse answered;
  const grpc::Status status = stub_->Report(&context, since, &answered);
  if (status.ok()) {
    said_ = now;
    return every_;
  }
  const grpc::StatusCode code = status.error_code();
  const bool is_final = code == grpc::StatusCode::UNIMPLEMENTED ||
                        code == grpc::StatusCode::PERMISSION_DENIED ||
                        code == grpc::StatusCode::INVALID_ARGUMENT;
  if (!is_final) return every_;
  Log(LogLevel::kInfo, "the store's figures lack this worker",
      {{"reason", status.error_message()}});
  return absl::Minutes(10);
}

}  // namespace hearth
