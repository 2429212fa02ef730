#include "worker/engine/engine_audit.h"

#include <algorithm>
#include <cassert>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <exception>
#include <optional>
#include <utility>

#include "proto/restore_rule.h"
#include "worker/engine/runner/kv_snapshot.h"

namespace hearth {

namespace {

float ElementAt(const std::byte* bytes, size_t index, KvDtype dtype) {
  if (dtype == KvDtype::kFloat32) {
    float value;
    std::memcpy(&value, bytes + index * sizeof(value), sizeof(value));
    return value;
  }
  assert(dtype == KvDtype::kBFloat16);  // a bfloat16 is the upper half of a float32
  uint16_t half;
  std::memcpy(&half, bytes + index * sizeof(half), sizeof(half));
  const uint32_t bits = uint32_t{half} << 16;
  float value;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}

// Compares two arrays of `bytes` bytes: keys or values. NaN and infinity differ from everything.
bool AgreeWithinRounding(const std::byte* ours, const std::byte* theirs, size_t bytes,
                         KvDtype dtype) {
  double differences = 0, squares = 0;
  for (size_t i = 0; i < bytes / KvDtypeBytes(dtype); ++i) {
    const double a = ElementAt(ours, i, dtype), b = ElementAt(theirs, i, dtype);
    differences += (a - b) * (a - b);
    squares += a * a;
  }
  const double tolerance = dtype == KvDtype::kFloat32 ? kFloat32Tolerance : kHalfTolerance;
  return std::isfinite(differences) && differences <= tolerance * tolerance * squares;
}

}  // namespace

std::vector<ObjectId> DifferingObjects(const KvLayout& layout, uint32_t boundary,
                                       const SequenceKv& computed, const SequenceKv& restored) {
  assert(computed.length() == static_cast<int>(boundary));
  assert(restored.length() == static_cast<int>(boundary));
  std::vector<ObjectId> differing;
  std::vector<std::byte> ours, theirs;
  for (const ObjectId& id : NeededObjects(layout, boundary)) {
    const std::vector<uint32_t> layers = layout.LayersOf(id.group);
    const bool agree = std::all_of(layers.begin(), layers.end(), [&](uint32_t layer) {
      const int number = static_cast<int>(layer);
      const int held = std::max(computed.first_held(number), restored.first_held(number));
      const int begin = std::max(static_cast<int>(id.begin), held);
      const int end = static_cast<int>(id.begin + id.tokens);
      const size_t bytes = layout.SliceBytes(static_cast<uint32_t>(end - begin));
      ours.resize(bytes);
      theirs.resize(bytes);
      computed.CopyOut(number, begin, end, begin, end - begin, ours.data());
      restored.CopyOut(number, begin, end, begin, end - begin, theirs.data());
      if (BitsFollowKeys(layout.exactness)) return ours == theirs;
      const size_t half = bytes / 2;
      return AgreeWithinRounding(ours.data(), theirs.data(), half, layout.dtype) &&
             AgreeWithinRounding(ours.data() + half, theirs.data() + half, half, layout.dtype);
    });
    if (!agree) differing.push_back(id);
  }
  return differing;
}

namespace {

// Maximum number of prefixes that wait for an idle engine. Each takes at most 0.5 MB (its token
// ids).
constexpr size_t kMaxWaitingAudits = 8;

// Maximum waiting calls to the cache: one fetch, and the quarantine calls of earlier audits.
constexpr size_t kMaxCalls = 4;

}  // namespace

EngineAudit::EngineAudit(const CacheTerms& terms, const KvLayout& layout, ModelRunner* model,
                         PrefixPool* pool, EngineCounters* counters, std::function<void()> wake)
    : terms_(terms),
      layout_(layout),
      model_(model),
      pool_(pool),
      counters_(counters),
      wake_(std::move(wake)),
      calls_(/*threads=*/1, kMaxCalls) {}

// Selects prefixes at regular intervals: at audit_rate 0.01, every hundredth.
void EngineAudit::Offer(const Sequence& sequence) {
  if (terms_.audit_rate <= 0 || sequence.restored.from <= Tier::kWorker) return;
  credit_ += terms_.audit_rate;
  if (credit_ < 1) return;
  credit_ -= 1;
  if (waiting_.size() >= kMaxWaitingAudits) return counters_->Add(EngineCounter::kAuditsSkipped);
  PrefixRequest prefix;
  prefix.tenant = sequence.prefix.tenant;
  prefix.adapter = sequence.prefix.adapter;
  const uint32_t boundary = sequence.restored.boundary;
  const auto& ids = sequence.prefix.token_ids;
  prefix.token_ids.assign(ids.begin(), ids.begin() + boundary);
  for (const uint32_t cut : sequence.prefix.cuts) {
    if (cut <= boundary) prefix.cuts.push_back(cut);
  }
  waiting_.push_back(std::move(prefix));
}

bool EngineAudit::HasWork() const {
  if (audit_ == nullptr) return !waiting_.empty();
  return audit_->next_step < audit_->step_ends.size() || audit_->fetch->HasArrived();
}

void EngineAudit::Step(PrefixCache* cache) {
  assert(cache != nullptr && HasWork());
  absl::Status status;
  try {
    status = TryStep(cache);
  } catch (const std::exception& error) {
    status = absl::InternalError(error.what());
  }
  if (!status.ok()) Skip();
}

void EngineAudit::Skip() {
  assert(audit_ != nullptr);
  counters_->Add(EngineCounter::kAuditsSkipped);
  End();
}

absl::Status EngineAudit::TryStep(PrefixCache* cache) {
  if (audit_ == nullptr) {
    audit_ = std::make_unique<Audit>();
    audit_->prefix = std::move(waiting_.front());
    waiting_.pop_front();
    const uint32_t boundary = audit_->boundary();
    absl::StatusOr<std::unique_ptr<SequenceKv>> kv =
        model_->NewKv(static_cast<int>(boundary), model_->kv());
    if (!kv.ok()) return kv.status();
    audit_->kv = *std::move(kv);
    model_->UseAdapter(audit_->prefix.adapter, audit_->kv.get());
    audit_->step_ends = StepEnds(boundary, audit_->prefix.cuts, layout_.chunk_tokens);
    return absl::OkStatus();
  }
  if (audit_->next_step == audit_->step_ends.size()) return Finish(cache);
  const int begin = audit_->kv->length();
  const int end = static_cast<int>(audit_->step_ends[audit_->next_step++]);
  const std::vector<int32_t> step(audit_->prefix.token_ids.begin() + begin,
                                  audit_->prefix.token_ids.begin() + end);
  const StepPart part{audit_->kv.get(), step, nullptr};
  if (absl::Status s = model_->Step({&part, 1}); !s.ok()) return s;
  if (audit_->next_step < audit_->step_ends.size()) return absl::OkStatus();
  return Fetch(cache);
}

// Fetches exactly the prefix that the audit computed, on another thread.
absl::Status EngineAudit::Fetch(PrefixCache* cache) {
  audit_->fetch->WaitUntil(absl::InfiniteFuture());
  const auto fetch = [this, cache, wait = audit_->fetch,
                      prefix = audit_->prefix](TaskQueue::Fate fate) {
    const uint32_t boundary = static_cast<uint32_t>(prefix.token_ids.size());
    FetchOutcome outcome;
    try {
      if (fate == TaskQueue::Fate::kRun) {
        outcome = cache->Fetch(prefix, boundary - 1, boundary, terms_.fetch_budget);
      }
    } catch (const std::exception&) {
      outcome = FetchOutcome();  // treat the exception as a cache miss
    }
    if (wait->Deliver(std::move(outcome))) wake_();
  };
  if (calls_.Submit(fetch)) return absl::OkStatus();
  return absl::ResourceExhaustedError("too many cache calls of audits are waiting");
}

absl::Status EngineAudit::Finish(PrefixCache* cache) {
  std::optional<FetchOutcome> fetched = audit_->fetch->Take(absl::InfinitePast());
  const uint32_t boundary = audit_->boundary();
  if (!fetched.has_value() || fetched->usable_tokens != boundary) {
    return absl::NotFoundError("the cache no longer has the prefix");
  }
  if (absl::Status s = CheckAndSortObjects(layout_, boundary, &fetched->objects); !s.ok()) return s;
  absl::StatusOr<std::unique_ptr<SequenceKv>> kv =
      model_->NewKv(static_cast<int>(boundary), model_->kv());
  if (!kv.ok()) return kv.status();
  const absl::Status restored = model_->Restore(layout_, boundary, fetched->objects, kv->get());
  std::vector<ObjectId> wrong;
  if (restored.ok()) wrong = DifferingObjects(layout_, boundary, *audit_->kv, **kv);
  model_->Release(*std::move(kv));
  if (!restored.ok()) return restored;
  if (!wrong.empty()) QuarantineWrong(std::move(wrong), cache);
  // Count the audit last, so that an observer of this counter sees the other counters' changes.
  counters_->Add(EngineCounter::kAudits);
  End();
  return absl::OkStatus();
}

// Quarantines the wrong objects in the cache. Clears the pool: it may hold other wrong bytes of the
// same origin.
void EngineAudit::QuarantineWrong(std::vector<ObjectId> wrong, PrefixCache* cache) {
  counters_->Add(EngineCounter::kAuditsWrong);
  pool_->Clear();
  const auto accuse = [this, cache, prefix = audit_->prefix,
                       wrong = std::move(wrong)](TaskQueue::Fate fate) {
    if (fate == TaskQueue::Fate::kRun && cache->Quarantine(prefix, wrong, terms_.publish_timeout)) {
      counters_->Add(EngineCounter::kAuditsQuarantined);
    }
  };
  calls_.Submit(accuse);
}

void EngineAudit::End() {
  if (audit_->kv != nullptr) model_->Release(std::move(audit_->kv));
  audit_->fetch->GiveUp();
  audit_.reset();
}

}  // namespace hearth
