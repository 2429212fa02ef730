// KvRoom: sets aside the memory that a sequence may need before it begins, so that it can end.
// Decides who gives memory up for it, and remembers the sequences that wait for some.
//
// Thread safety: the engine's thread alone; NoteRelease from any thread. Ownership: all its
// arguments must outlive it. Errors: kResourceExhausted where there is no memory now.
#ifndef HEARTH_WORKER_ENGINE_KV_ROOM_H_
#define HEARTH_WORKER_ENGINE_KV_ROOM_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <set>
#include <utility>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/engine/engine_audit.h"
#include "worker/engine/prefix_keeper.h"
#include "worker/engine/runner/model_runner.h"
#include "worker/engine/sequence.h"

namespace hearth {

class KvRoom {
 public:
  // `ordinary_bytes`: of one request, for a tenant that has none. `ring`: called from any thread
  // when there may be more memory for those that wait.
  KvRoom(ModelRunner* model, PrefixKeeper* keeper, EngineAudit* audit, uint64_t ordinary_bytes,
         std::function<void()> ring)
      : model_(model),
        keeper_(keeper),
        audit_(audit),
        ordinary_bytes_(ordinary_bytes),
        ring_(std::move(ring)) {}

  // Who runs beside a sequence that asks for memory: nobody that could free some; one of its own
  // tenant. With several tenants, one that runs leaves memory for an ordinary request of another.
  struct Beside {
    bool nobody = true, tenant_runs = false, several_tenants = false;
  };
  // Looks its prefix up in the pool, and sets memory aside. False: there is none now, and it counts
  // as tried.
  absl::StatusOr<bool> TryReserve(Sequence* sequence, const Beside& beside);
  // Tried, and found no memory, since the last ForgetTried.
  bool WasTried(SequenceId id) const { return tried_.count(id) > 0; }
  // Whether there may be more memory than when they were tried.
  bool MayHaveMore() const { return released_; }
  void ForgetTried() {
    released_ = false;
    tried_.clear();
  }
  // Memory may have been freed.
  void NoteRelease() { released_ = true; }

  // For blocks that others will hold when the sequence has left them.
  bool ReserveShared(Sequence* sequence, uint64_t bytes);
  // Calls `use`, which takes memory; if it lacks some, frees that of the pool and of an audit.
  absl::Status With(absl::FunctionRef<absl::Status()> use);

 private:
  absl::Status ReserveFor(Sequence* sequence, const Beside& beside);
  absl::Status Take(Sequence* sequence);
  // Whether an ordinary request would find room behind `bytes` more, where there are tenants.
  bool LeavesRoom(uint64_t bytes) const;

  ModelRunner* const model_;
  PrefixKeeper* const keeper_;
  EngineAudit* const audit_;
  const uint64_t ordinary_bytes_;
  const std::function<void()> ring_;
  std::atomic<bool> released_{false};
  std::set<SequenceId> tried_;
  ModelRunner::KvLack lack_;  // of the last call that took memory
  bool several_tenants_ = false;
};

}  // namespace hearth

#endif  // HEARTH_WORKER_ENGINE_KV_ROOM_H_
