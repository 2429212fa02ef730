#include "services/inference/usage_reporter.h"

#include <grpcpp/client_context.h>

#include <algorithm>
#include <chrono>
#include <string>
#include <utility>

#include "services/inference/cached_tokens.h"
#include "services/rpc/request_id.h"
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
                             std::function<v1::ReportRequest()> totals, Reachability* reachability,
                             absl::Duration every)
    : stub_(v1::CacheStore::NewStub(channel)),
      totals_(std::move(totals)),
      reachability_(reachability),
      thread_([this, every] {
        Report();
        return is_refused_ ? std::max(every, kAfterRefusal) : every;
      }) {}

void UsageReporter::Report() {
  const v1::ReportRequest now = totals_();
  if (id_.empty()) {
    then_ = now;
    since_.set_requests(now.requests() - said_.requests());
    since_.set_prompt_tokens(now.prompt_tokens() - said_.prompt_tokens());
    since_.set_cached_tokens(now.cached_tokens() - said_.cached_tokens());
    since_.set_own_tokens(now.own_tokens() - said_.own_tokens());
    id_ = NewRequestId();
  }
  grpc::ClientContext context;
  SendRequestId(id_, &context);
  context.set_deadline(std::chrono::system_clock::now() + absl::ToChronoMilliseconds(kPatience));
  v1::ReportResponse answered;
  const grpc::Status status = stub_->Report(&context, since_, &answered);
  if (status.ok()) {
    said_ = then_;
    id_.clear();
  }
  const grpc::StatusCode code = status.error_code();
  const bool is_late = code == grpc::StatusCode::DEADLINE_EXCEEDED;
  unanswered_ = is_late ? unanswered_ + 1 : 0;
  if (!is_late || unanswered_ >= kMaxUnanswered) {
    reachability_->Note(!is_late && code != grpc::StatusCode::UNAVAILABLE, status.error_message());
  }
  const bool is_refused = code == grpc::StatusCode::UNIMPLEMENTED ||
                          code == grpc::StatusCode::PERMISSION_DENIED ||
                          code == grpc::StatusCode::INVALID_ARGUMENT;
  if (std::exchange(is_refused_, is_refused) || !is_refused) return;
  Log(LogLevel::kInfo, "the store's figures lack this worker",
      {{"reason", status.error_message()}});
}

}  // namespace hearth
