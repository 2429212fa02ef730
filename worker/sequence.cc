#include "worker/sequence.h"

#include <cassert>
#include <utility>

#include "absl/time/clock.h"

namespace hearth {
namespace {

PrefixRequest PrefixOf(const EngineRequest& request) {
  PrefixRequest prefix;
  prefix.token_ids.assign(request.token_ids.begin(), request.token_ids.end());
  prefix.cuts = request.breakpoints;
  prefix.tenant = request.tenant;
  prefix.request_id = request.request_id;
  return prefix;
}

}  // namespace

Sequence::Sequence(SequenceId sequence_id, EngineRequest engine_request,
                   EngineCallbacks engine_callbacks)
    : id(sequence_id),
      request(std::move(engine_request)),
      callbacks(std::move(engine_callbacks)),
      prefix(PrefixOf(request)),
      submitted_at(absl::Now()) {
  assert(!request.token_ids.empty());
  if (writes() && callbacks.on_published != nullptr) {
    published = std::make_shared<PublishedNotice>(callbacks.on_published);
  }
}

void PublishedNotice::OnFinished() {
  std::optional<PublishOutcome> outcome;
  {
    absl::MutexLock lock(&mu_);
    assert(!finished_);
    finished_ = true;
    outcome = outcome_;
  }
  if (outcome.has_value()) callback_(*outcome);
}

void PublishedNotice::OnOutcome(const PublishOutcome& outcome) {
  {
    absl::MutexLock lock(&mu_);
    assert(!outcome_.has_value());
    outcome_ = outcome;
    if (!finished_) return;
  }
  callback_(outcome);
}

}  // namespace hearth
