#include "worker/engine/kv_room.h"

#include <optional>
#include <utility>
#include <vector>

#include "worker/model/invariant/kv_blocks.h"

namespace hearth {

// With what the pool has of it, which needs no memory of its own; without, where there is no other
// way and nobody else to wait for.
absl::Status KvRoom::ReserveFor(Sequence* sequence, bool runs_nobody) {
  if (sequence->reads()) {
    sequence->pooled = keeper_->pool().Lookup(sequence->prefix, sequence->max_boundary());
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
  absl::Status room = With(reserve);
  if (!runs_nobody) return room;
  while (absl::IsResourceExhausted(room) && keeper_->publisher().DropOldest()) room = With(reserve);
  if (absl::IsResourceExhausted(room) && sequence->pooled.boundary > 0) {
    sequence->pooled.boundary = 0;
    sequence->pooled.objects.clear();
    room = With(reserve);
  }
  return room;
}

// What there is no memory for is tried again without the audit that waits for an idle moment, and
// with less in the pool: where these hold what is lacking. Else nobody gives anything up.
absl::Status KvRoom::With(absl::FunctionRef<absl::Status()> use) {
  absl::Status status = use();
  if (!absl::IsResourceExhausted(status)) return status;
  const auto frees = [&](const KvObject& object) { return model_->FreesKvBytes(object); };
  if (const std::optional<uint64_t> lacking = LackingKvBytes(status); lacking.has_value()) {
    const uint64_t most =
        keeper_->pool().EvictableBytes(frees, *lacking) + audit_->set_aside_bytes();
    if (*lacking > most) return status;
  }
  if (audit_->is_under_way()) {
    audit_->Skip();
    status = use();
  }
  while (absl::IsResourceExhausted(status) && keeper_->pool().EvictOne(frees)) status = use();
  return status;
}

bool KvRoom::ReserveShared(Sequence* sequence, uint64_t bytes) {
  return With([&] { return model_->ReserveMore(sequence->kv.get(), bytes); }).ok();
}

}  // namespace hearth
