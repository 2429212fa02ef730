// KvRoom: the memory that a sequence may come to need, set aside before it begins, so that what has
// begun ends; and who gives memory up for it.
//
// Thread safety: the engine's thread alone. Ownership: all that it is given must outlive it.
// Errors: kResourceExhausted where there is no room now.
#ifndef HEARTH_WORKER_ENGINE_KV_ROOM_H_
#define HEARTH_WORKER_ENGINE_KV_ROOM_H_

#include <cstdint>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "worker/engine/engine_audit.h"
#include "worker/engine/prefix_keeper.h"
#include "worker/engine/runner/model_runner.h"
#include "worker/engine/sequence.h"

namespace hearth {

class KvRoom {
 public:
  KvRoom(ModelRunner* model, PrefixKeeper* keeper, EngineAudit* audit)
      : model_(model), keeper_(keeper), audit_(audit) {}

  // Looks into the pool for it, and sets memory aside. `runs_nobody`: there is nobody to wait for.
  absl::Status ReserveFor(Sequence* sequence, bool runs_nobody);
  // For blocks that others will hold when the sequence has left them.
  bool ReserveShared(Sequence* sequence, uint64_t bytes);
  // Uses memory, where that is needed what the pool and an audit hold too.
  absl::Status With(absl::FunctionRef<absl::Status()> use);

 private:
  ModelRunner* const model_;
  PrefixKeeper* const keeper_;
  EngineAudit* const audit_;
};

}  // namespace hearth

#endif  // HEARTH_WORKER_ENGINE_KV_ROOM_H_
