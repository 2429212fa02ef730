// EngineImpl, from the queue to a place: the memory that a sequence may come to need is set aside
// before it begins, so that what has begun ends.

#include <cassert>
#include <exception>
#include <utility>

#include "absl/strings/str_cat.h"
#include "worker/engine_impl.h"

namespace hearth {

// One that found no memory is tried again when somebody has let some go.
bool EngineImpl::MayAdmit() const {
  const std::optional<SequenceId> next = scheduler_.Candidate();
  if (!next.has_value()) return false;
  return *next != lacking_.id || releases_ != lacking_.releases ||
         model_->kv_bytes().free() > lacking_.free_bytes;
}

EngineImpl::SequencePtr EngineImpl::Candidate() const {
  absl::MutexLock lock(&mu_);
  const std::optional<SequenceId> next = scheduler_.Candidate();
  return next.has_value() ? sequences_.at(*next) : nullptr;
}

void EngineImpl::AdmitWaiting() {
  while (const SequencePtr sequence = Candidate()) {
    const Lacking now{sequence->id, model_->kv_bytes().free(), releases_};
    absl::Status room;
    try {
      room = ReserveFor(sequence.get());
    } catch (const std::exception& error) {
      room = absl::InternalError(absl::StrCat("memory for keys and values: ", error.what()));
    }
    if (absl::IsResourceExhausted(room) && model_->kv_bytes().budget > 0) {
      lacking_ = now;
      sequence->pooled = PooledPrefix();  // what it would hold meanwhile is others'
      return;
    }
    lacking_ = Lacking();
    if (!room.ok()) {
      Fail(sequence, room);
      continue;
    }
    {
      absl::MutexLock lock(&mu_);
      scheduler_.Admit(sequence->id);
    }
    LookUp(sequence);
  }
}

// With what the pool has of it, which needs no memory of its own; without, where there is no other
// way and nobody else to wait for.
absl::Status EngineImpl::ReserveFor(Sequence* sequence) {
  if (sequence->reads()) {
    sequence->pooled = pool_.Lookup(sequence->prefix, sequence->max_boundary());
  }
  const auto reserve = [&] {
    const uint32_t tokens = sequence->tokens() + sequence->request.max_new_tokens;
    absl::StatusOr<std::unique_ptr<SequenceKv>> kv =
        model_->NewKv(static_cast<int>(tokens), sequence->pooled.objects);
    if (!kv.ok()) return kv.status();
    if (sequence->request.samples > 1) {
      auto forks = model_->NewForks(kv->get(), static_cast<int>(sequence->tokens()),
                                    static_cast<int>(tokens), sequence->request.samples - 1);
      if (!forks.ok()) {
        model_->Release(*std::move(kv));
        return forks.status();
      }
      sequence->fork_kvs = *std::move(forks);
    }
    sequence->kv = *std::move(kv);
    return absl::OkStatus();
  };
  absl::Status room = WithRoom(reserve);
  {
    absl::MutexLock lock(&mu_);
    if (scheduler_.running() > 0) return room;
  }
  while (absl::IsResourceExhausted(room) && publisher_.DropOldest()) room = WithRoom(reserve);
  if (absl::IsResourceExhausted(room) && sequence->pooled.boundary > 0) {
    sequence->pooled.boundary = 0;
    sequence->pooled.objects.clear();
    room = WithRoom(reserve);
  }
  return room;
}

// What there is no memory for is tried again without the audit that waits for an idle moment, and
// with less in the pool, where that frees some.
absl::Status EngineImpl::WithRoom(absl::FunctionRef<absl::Status()> use) {
  absl::Status status = use();
  if (absl::IsResourceExhausted(status) && audit_ != nullptr) {
    SkipAudit();
    status = use();
  }
  const auto frees = [&](const KvObject& object) { return model_->FreesKvBytes(object); };
  while (absl::IsResourceExhausted(status) && pool_.EvictOne(frees)) status = use();
  return status;
}

// For blocks that others will hold when the sequence has left them.
bool EngineImpl::ReserveShared(Sequence* sequence, uint64_t bytes) {
  return WithRoom([&] {
           return model_->ReserveMore(sequence->kv.get(), bytes)
                      ? absl::OkStatus()
                      : absl::ResourceExhaustedError("kv-bytes");
         })
      .ok();
}

}  // namespace hearth
