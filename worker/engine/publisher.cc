#include "worker/engine/publisher.h"

#include <algorithm>
#include <cassert>
#include <exception>
#include <utility>

#include "absl/strings/str_cat.h"

namespace hearth {
namespace {

// Two threads, so that one slow publish does not block the next.
constexpr size_t kPublisherThreads = 2;
// Larger than the default maximum of running plus queued requests.
constexpr size_t kMaxWaitingPublishes = 256;

}  // namespace

Publisher::Publisher(absl::Duration timeout, uint64_t max_waiting_bytes, EngineCounters* counters)
    : timeout_(timeout),
      max_waiting_bytes_(max_waiting_bytes),
      counters_(counters),
      queue_(kPublisherThreads, kMaxWaitingPublishes) {}

void Publisher::Seal(const KvObjects& objects) {
  const auto late = [](const auto& object) { return object->late != nullptr; };
  if (std::none_of(objects.begin(), objects.end(), late)) return;
  if (sealer_ == nullptr) sealer_ = std::make_unique<TaskQueue>(1, SIZE_MAX);
  sealer_->Submit([objects](TaskQueue::Fate fate) {
    if (fate == TaskQueue::Fate::kDrop) return;
    for (const auto& object : objects) object->Complete();
  });
}

bool Publisher::AwaitSeals() {
  if (sealer_ == nullptr || sealer_->WaitIdle(absl::InfinitePast())) return false;
  return sealer_->WaitIdle(absl::InfiniteFuture());
}

void Publisher::Drop(const PublishJob& job, const char* why) {
  counters_->Add(EngineCounter::kPublishesDropped);
  PublishOutcome outcome;
  outcome.note = why;
  job.done(outcome);
}

void Publisher::Count(const PublishJob& job, bool waits) {
  absl::MutexLock lock(&mu_);
  assert(waits || waiting_ > 0);
  waiting_ += waits ? 1 : -1;
  for (const auto& object : job.spec.objects) {
    if (object->bytes == nullptr) continue;
    size_t& holders = holders_[object->bytes.get()];
    assert(waits || holders > 0);
    holders += waits ? 1 : -1;
    if (waits && holders == 1) waiting_bytes_ += object->size_bytes;
    if (holders > 0) continue;
    assert(waiting_bytes_ >= object->size_bytes);
    waiting_bytes_ -= object->size_bytes;
    holders_.erase(object->bytes.get());
  }
}

void Publisher::Submit(PrefixCache* cache, PublishJob job) {
  assert(cache != nullptr && job.done != nullptr);
  auto shared = std::make_shared<PublishJob>(std::move(job));
  Count(*shared, /*waits=*/true);
  // Removes the job from the waiting jobs, publishes or drops it, and releases its objects.
  // `dropped`: the reason to drop it, or null to publish it.
  const auto end = [this, cache, shared](const char* dropped) {
    Count(*shared, /*waits=*/false);
    if (dropped == nullptr) {
      Publish(cache, shared.get());
    } else {
      Drop(*shared, dropped);
    }
    shared->spec.objects.clear();
    shared->lease = StagingBudget::Lease();
  };
  const bool accepted = queue_.Submit([this, end](TaskQueue::Fate fate) {
    if (fate == TaskQueue::Fate::kRun) return end(nullptr);
    end(stopping_ ? "the worker stopped before publishing"
                  : "publish dropped: waiting publishes hold too much memory");
  });
  if (!accepted) end("publish dropped: too many publishes are waiting");
  const auto wait_too_many = [this] {
    absl::MutexLock lock(&mu_);
    return waiting_ > 1 && waiting_bytes_ > max_waiting_bytes_;
  };
  while (wait_too_many() && DropOldest()) {
  }
}

void Publisher::Publish(PrefixCache* cache, PublishJob* job) {
  counters_->Add(EngineCounter::kPublishes);
  PublishOutcome outcome;
  const auto& objects = job->spec.objects;
  const auto complete = [](const auto& object) { return object->Complete(); };
  try {
    if (std::all_of(objects.begin(), objects.end(), complete)) {
      outcome = cache->Publish(job->spec, timeout_);
    } else {
      outcome.note = "publishing failed: the device failed before its KV was copied";
    }
  } catch (const std::exception& error) {
    outcome = PublishOutcome();
    outcome.note = absl::StrCat("publishing failed: ", error.what());
  }
  // requests waiting for this lease continue, even if nothing was stored
  job->compute_lease.reset();
  if (!outcome.boundaries.empty()) counters_->Add(EngineCounter::kPublishesStored);
  counters_->Add(EngineCounter::kPublishBytes, outcome.bytes_sent);
  job->done(outcome);
}

}  // namespace hearth
