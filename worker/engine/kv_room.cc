#include "worker/engine/kv_room.h"

#include <cassert>
#include <utility>

namespace hearth {

absl::StatusOr<bool> KvRoom::TryReserve(Sequence* sequence, const Beside& beside) {
  assert(sequence->kv == nullptr && sequence->fork_kvs.empty());
  const uint64_t free = model_->kv_bytes().free();
  const uint64_t offloaded_free = model_->offloaded_kv_bytes().free();
  several_tenants_ = beside.several_tenants;
  absl::Status room = ReserveFor(sequence, beside);
  if (room.ok() && beside.tenant_runs && !LeavesRoom(0)) {
    for (auto& fork : sequence->fork_kvs) model_->Release(std::move(fork));
    sequence->fork_kvs.clear();
    model_->Release(std::move(sequence->kv));
    room = absl::ResourceExhaustedError("the rest is for a tenant that has no place");
  }
  if (room.ok()) return true;
  // Only a budget's room comes back for certain; what the machine lacks while nobody runs does not.
  const bool waits = model_->kv_bytes().budget > 0 && (!beside.nobody || lack_.all() > 0);
  if (!absl::IsResourceExhausted(room) || !waits) return room;
  // Of the first that was tried: what was let go since may be enough for it.
  if (tried_.empty()) model_->WatchKv(free, offloaded_free, ring_);
  tried_.insert(sequence->id);
  sequence->pooled = PooledPrefix();  // others may have what it would hold meanwhile
  return false;
}

absl::Status KvRoom::Take(Sequence* sequence) {
  const uint32_t tokens = sequence->tokens() + sequence->request.max_new_tokens;
  absl::StatusOr<std::unique_ptr<SequenceKv>> kv =
      model_->NewKv(static_cast<int>(tokens), sequence->pooled.objects, sequence->state->kv);
  if (!kv.ok()) return kv.status();
  model_->UseAdapter(sequence->request.adapter, kv->get());
  if (sequence->request.sequences() > 1) {
    const ForkUse use = sequence->request.searches() ? ForkUse::kBeams : ForkUse::kSamples;
    auto forks = model_->NewForks(kv->get(), static_cast<int>(sequence->tokens()),
                                  static_cast<int>(tokens), sequence->request.sequences() - 1, use);
    if (!forks.ok()) {
      model_->Release(*std::move(kv));
      return forks.status();
    }
    sequence->fork_kvs = *std::move(forks);
  }
  sequence->kv = *std::move(kv);
  return absl::OkStatus();
}

bool KvRoom::LeavesRoom(uint64_t bytes) const {
  if (!several_tenants_) return true;
  const uint64_t free = model_->kv_bytes().free(), needed = ordinary_bytes_ + bytes;
  if (free >= needed) return true;
  const auto frees = [&](const KvObject& object) { return model_->FreesKvBytes(object, {1, 0}); };
  return keeper_->pool().EvictableBytes(frees, needed - free) >= needed - free;
}

// With what the pool has of it, which needs no memory of its own; without that where the sequence
// has nobody to wait for and finds no memory otherwise.
absl::Status KvRoom::ReserveFor(Sequence* sequence, const Beside& beside) {
  if (sequence->reads()) {
    sequence->pooled = keeper_->pool().Lookup(sequence->prefix, sequence->max_boundary());
  }
  const auto reserve = [&] { return Take(sequence); };
  absl::Status room = With(reserve);
  // It would find no room for all of it however long it waited. Offloaded it has the same bits.
  KvChoice& kv = sequence->state->kv;
  if (absl::IsInvalidArgument(room) && !kv.quantization.is_on() && !Offloads(kv.strategy)) {
    const KvStrategy asked_for =
        std::exchange(kv.strategy, TakesAhead(kv.strategy) ? KvStrategy::kOffloadedStatic
                                                           : KvStrategy::kOffloaded);
    const absl::Status offloaded = With(reserve);
    if (absl::IsInvalidArgument(offloaded)) {
      kv.strategy = asked_for;
      return room;
    }
    room = offloaded;
  }
  if (!beside.nobody) return room;
  while (absl::IsResourceExhausted(room) && keeper_->publisher().DropOldest()) room = With(reserve);
  if (absl::IsResourceExhausted(room) && sequence->pooled.boundary > 0) {
    sequence->pooled.boundary = 0;
    sequence->pooled.objects.clear();
    room = With(reserve);
  }
  return room;
}

// An audit gives its memory up, and where the pool holds what is still lacking, that too, until
// there is enough. Where it does not, it gives nothing up.
absl::Status KvRoom::With(absl::FunctionRef<absl::Status()> use) {
  absl::Status status;
  const auto lacks = [&] {
    model_->TakeKvLack();  // of others
    status = use();
    lack_ = model_->TakeKvLack();
    return absl::IsResourceExhausted(status);
  };
  bool more = lacks();
  if (more && audit_->is_under_way()) {
    audit_->Skip();
    more = lacks();
  }
  // Asked again each time: it may be the other arena's turn.
  const auto frees = [&](const KvObject& object) { return model_->FreesKvBytes(object, lack_); };
  while (more && lack_.all() <= keeper_->pool().EvictableBytes(frees, lack_.all()) &&
         keeper_->pool().EvictOne(frees)) {
    more = lacks();
  }
  return status;
}

bool KvRoom::ReserveShared(Sequence* sequence, uint64_t bytes) {
  if (!LeavesRoom(bytes)) return false;
  return With([&] { return model_->ReserveMore(sequence->kv.get(), bytes); }).ok();
}

}  // namespace hearth
