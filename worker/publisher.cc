#include "worker/publisher.h"

#include <exception>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"

namespace hearth {
namespace {

// Two, so that one slow publish does not hold up the next.
constexpr size_t kPublisherThreads = 2;
// A waiting job holds staged bytes, which --staging-bytes bounds, or references: to restored
// objects and, in class invariant, to whole chunks, which --kv-bytes bounds. 256 jobs are more than
// the requests that can be running and queued by default.
constexpr size_t kMaxWaitingPublishes = 256;

void Drop(const PublishJob& job, EngineCounters* counters, const char* why) {
  counters->Add(EngineCounter::kPublishesDropped);
  PublishOutcome outcome;
  outcome.note = why;
  job.done(outcome);
}

}  // namespace

Publisher::Publisher(absl::Duration timeout, EngineCounters* counters)
    : timeout_(timeout), counters_(counters), queue_(kPublisherThreads, kMaxWaitingPublishes) {}

void Publisher::Submit(PrefixCache* cache, PublishJob job) {
  auto shared = std::make_shared<PublishJob>(std::move(job));
  const bool accepted = queue_.Submit([this, cache, shared](TaskQueue::Fate fate) {
    if (fate == TaskQueue::Fate::kRun) {
      Publish(cache, shared.get());
    } else {
      Drop(*shared, counters_, "the worker stopped before publishing");
    }
  });
  if (!accepted) Drop(*shared, counters_, "too many publishes are waiting");
}

void Publisher::Publish(PrefixCache* cache, PublishJob* job) {
  counters_->Add(EngineCounter::kPublishes);
  PublishOutcome outcome;
  try {
    outcome = cache->Publish(job->spec, absl::Now() + timeout_);
  } catch (const std::exception& error) {
    outcome = PublishOutcome();
    outcome.note = absl::StrCat("publishing failed: ", error.what());
  }
  job->compute_lease.reset();  // stored or not: nobody waits for it any longer
  if (!outcome.boundaries.empty()) counters_->Add(EngineCounter::kPublishesStored);
  counters_->Add(EngineCounter::kPublishBytes, outcome.bytes_sent);
  job->done(outcome);
}

}  // namespace hearth
