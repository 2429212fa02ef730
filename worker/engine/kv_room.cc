#include "worker/engine/kv_room.h"

#include <cassert>
#include <exception>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "worker/model/invariant/kv_blocks.h"

namespace hearth {

absl::StatusOr<bool> KvRoom::TryReserve(Sequence* sequence, bool runs_nobody) {
  assert(sequence->kv == nullptr && sequence->fork_kvs.empty());
  const uint64_t free_bytes = model_->kv_bytes().free(), releases = releases_;
  const uint64_t offloaded_free = model_->offloaded_kv_bytes().free();
  absl::Status room;
  try {
    room = ReserveFor(sequence, runs_nobody);
  } catch (const std::exception& error) {
    room = absl::InternalError(absl::StrCat("memory for keys and values: ", error.what()));
  }
  if (room.ok()) return true;
  // Only a budget's room comes back for certain; what the machine lacks while nobody runs does not.
  const bool waits =
      model_->kv_bytes().budget > 0 && (!runs_nobody || LackingKvBytes(room).has_value());
  if (!absl::IsResourceExhausted(room) || !waits) return room;
  // Of the first that was tried: what was let go since may be enough for it.
  if (tried_.empty()) {
    free_bytes_then_ = free_bytes;
    offloaded_free_then_ = offloaded_free;
    releases_then_ = releases;
  }
  tried_.insert(sequence->id);
  sequence->pooled = PooledPrefix();  // others may have what it would hold meanwhile
  return false;
}

bool KvRoom::MayHaveMore() const {
  return releases_ != releases_then_ || model_->kv_bytes().free() > free_bytes_then_ ||
         model_->offloaded_kv_bytes().free() > offloaded_free_then_;
}

// With what the pool has of it, which needs no memory of its own; without that where the sequence
// has nobody to wait for and finds no memory otherwise.
absl::Status KvRoom::ReserveFor(Sequence* sequence, bool runs_nobody) {
  if (sequence->reads()) {
    sequence->pooled = keeper_->pool().Lookup(sequence->prefix, sequence->max_boundary());
  }
  const auto reserve = [&] {
    const uint32_t tokens = sequence->tokens() + sequence->request.max_new_tokens;
    absl::StatusOr<std::unique_ptr<SequenceKv>> kv =
        model_->NewKv(static_cast<int>(tokens), sequence->pooled.objects, sequence->state->kv);
    if (!kv.ok()) return kv.status();
    model_->UseAdapter(sequence->request.adapter, kv->get());
    if (sequence->request.sequences() > 1) {
      const ForkUse use = sequence->request.searches() ? ForkUse::kBeams : ForkUse::kSamples;
      auto forks =
          model_->NewForks(kv->get(), static_cast<int>(sequence->tokens()),
                           static_cast<int>(tokens), sequence->request.sequences() - 1, use);
      if (!forks.ok()) {
        model_->Release(*std::move(kv));
        return forks.status();
      }
      sequence->fork_kvs = *std::move(forks);
    }
    sequence->kv = *std::move(kv);
    return absl::OkStatus();
  };
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
  if (!runs_nobody) return room;
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
  absl::Status status = use();
  if (absl::IsResourceExhausted(status) && audit_->is_under_way()) {
    audit_->Skip();
    status = use();
  }
  // Of the arena that lacks it; the next try may lack it in the other one.
  const auto frees = [&](const KvObject& object) {
    const std::optional<LackingKv> lacking = LackingKvBytes(status);
    return model_->FreesKvBytes(object, lacking.has_value() ? lacking->arena : "");
  };
  const auto may_suffice = [&] {
    const std::optional<LackingKv> lacking = LackingKvBytes(status);
    return !lacking.has_value() ||
           lacking->bytes <= keeper_->pool().EvictableBytes(frees, lacking->bytes);
  };
  // Asked again each time: it may be the other arena's turn.
  while (absl::IsResourceExhausted(status) && may_suffice() && keeper_->pool().EvictOne(frees))
    status = use();
  return status;
}

bool KvRoom::ReserveShared(Sequence* sequence, uint64_t bytes) {
  return With([&] { return model_->ReserveMore(sequence->kv.get(), bytes); }).ok();
}

}  // namespace hearth
