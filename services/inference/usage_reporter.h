// UsageReporter: tells a worker's store what the worker served, for the store's figures, and notes
// whether the store answers.
//
// A store sees lookups only; what a worker restores from its own memory it learns from here. A
// report that is not answered is sent again as it was, with its id, so that it is counted once.
// Thread safety: none needed; it has a thread of its own, and asks for the totals there. Ownership:
// `reachability` and what `totals` reads must outlive it.
#ifndef HEARTH_SERVICES_INFERENCE_USAGE_REPORTER_H_
#define HEARTH_SERVICES_INFERENCE_USAGE_REPORTER_H_

#include <grpcpp/channel.h>

#include <functional>
#include <memory>
#include <string>

#include "absl/time/time.h"
#include "cache_store/base/repeating_thread.h"
#include "proto/cache_store.grpc.pb.h"
#include "services/serving/reachability.h"
#include "worker/engine/engine.h"

namespace hearth {

// What a worker served since its start.
v1::ReportRequest UsageOf(const EngineStats& stats);

class UsageReporter {
 public:
  static constexpr absl::Duration kEvery = absl::Seconds(2);
  static constexpr absl::Duration kAfterRefusal = absl::Minutes(1);
  static constexpr absl::Duration kPatience = absl::Milliseconds(500);
  static constexpr int kMaxUnanswered = 3;  // on a busy machine one answer may be late

  UsageReporter(const std::shared_ptr<grpc::Channel>& channel,
                std::function<v1::ReportRequest()> totals, Reachability* reachability,
                absl::Duration every = kEvery);
  // Waits at most kPatience, for a report under way.
  ~UsageReporter() = default;

 private:
  void Report();

  const std::unique_ptr<v1::CacheStore::Stub> stub_;
  const std::function<v1::ReportRequest()> totals_;
  Reachability* const reachability_;
  v1::ReportRequest said_;   // totals, of all that was answered
  v1::ReportRequest then_;   // the totals with the report that is not answered yet
  v1::ReportRequest since_;  // that report
  std::string id_;           // of that report; empty: there is none
  bool is_refused_ = false;
  int unanswered_ = 0;      // in a row
  RepeatingThread thread_;  // last: it uses the others
};

}  // namespace hearth

#endif  // HEARTH_SERVICES_INFERENCE_USAGE_REPORTER_H_
