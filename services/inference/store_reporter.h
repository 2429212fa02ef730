// StoreReporter: reports a worker to its store every few seconds: name, models, load, and what the
// worker restored without asking the store.
//
// A report without an answer is repeated with its number and its growth, so that the store counts
// it once. Thread safety: Start, Stop and ReportOnce are called by one thread at a time; `fill` and
// `call` run on the reporter's thread, and in Stop. Ownership: all objects that `fill` and `call`
// use must outlive Stop.
#ifndef HEARTH_SERVICES_INFERENCE_STORE_REPORTER_H_
#define HEARTH_SERVICES_INFERENCE_STORE_REPORTER_H_

#include <cstdint>
#include <functional>
#include <memory>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "cache_store/base/repeating_thread.h"
#include "proto/store_stats.pb.h"

namespace hearth {

class StoreReporter {
 public:
  static constexpr absl::Duration kPeriod = absl::Seconds(5);
  // Pause after an answer that will not change soon, such as that of an older store.
  static constexpr absl::Duration kRefusedPause = absl::Minutes(1);

  // Sets the figures of a report. unasked_tokens and unasked_held_tokens: since the worker's start.
  using Fill = std::function<void(v1::ReportRequest* report)>;
  // Sends a report (RemotePrefixCache::Report).
  using Call =
      std::function<absl::StatusOr<bool>(const v1::ReportRequest& report, absl::Duration timeout)>;

  // `names`: a report with the worker's name, version, device and models.
  StoreReporter(v1::ReportRequest names, Fill fill, Call call);
  // Stop must have been called, if Start was.
  ~StoreReporter() = default;

  void Start();
  // Ends the reports. Repeats a report that got no answer. If the store has answered all reports,
  // sends a last report, which says that the worker leaves.
  void Stop();
  // Sends one report. Returns the pause before the next.
  absl::Duration ReportOnce(bool is_leaving = false);

 private:
  struct Growth {
    uint64_t tokens = 0, held_tokens = 0;
  };

  v1::ReportRequest names_;
  const Fill fill_;
  const Call call_;
  uint64_t sequence_ = 0;
  Growth answered_;  // sum of the growths that the store has answered
  Growth pending_;   // growth of the report `sequence_`
  bool is_pending_ = false;
  bool is_refused_ = false;
  std::unique_ptr<RepeatingThread> thread_;  // last member: its thread uses the other members
};

}  // namespace hearth

#endif  // HEARTH_SERVICES_INFERENCE_STORE_REPORTER_H_
