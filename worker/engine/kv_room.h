// KvRoom: sets aside the memory that a sequence may need before it begins, so that it can end.
// Decides who gives memory up for it, and remembers the sequences that wait for some.
//
// Thread safety: the engine's thread alone; NoteRelease from any thread. Ownership: all its
// arguments must outlive it. Errors: kResourceExhausted where there is no memory now.
#ifndef HEARTH_WORKER_ENGINE_KV_ROOM_H_
#define HEARTH_WORKER_ENGINE_KV_ROOM_H_

#include <atomic>
#include <cstdint>
#include <set>

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
  KvRoom(ModelRunner* model, PrefixKeeper* keeper, EngineAudit* audit)
      : model_(model), keeper_(keeper), audit_(audit) {}

  // Looks its prefix up in the pool, and sets memory aside. `runs_nobody`: no other sequence runs
  // that could free some. False: there is none now, and it counts as tried.
  absl::StatusOr<bool> TryReserve(Sequence* sequence, bool runs_nobody);
  // Tried, and found no memory, since the last ForgetTried.
  bool WasTried(SequenceId id) const { return tried_.count(id) > 0; }
  // Whether there may be more memory than when they were tried.
  bool MayHaveMore() const;
  void ForgetTried() { tried_.clear(); }
  // Memory may have been freed.
  void NoteRelease() { ++releases_; }

  // For blocks that others will hold when the sequence has left them.
  bool ReserveShared(Sequence* sequence, uint64_t bytes);
  // Calls `use`, which takes memory; if it lacks some, frees that of the pool and of an audit.
  absl::Status With(absl::FunctionRef<absl::Status()> use);

 private:
  absl::Status ReserveFor(Sequence* sequence, bool runs_nobody);

  ModelRunner* const model_;
  PrefixKeeper* const keeper_;
  EngineAudit* const audit_;
  std::atomic<uint64_t> releases_{0};
  std::set<SequenceId> tried_;
  // Before the first of them was tried; of each arena.
  uint64_t free_bytes_then_ = 0, offloaded_free_then_ = 0, releases_then_ = 0;
};

}  // namespace hearth

#endif  // HEARTH_WORKER_ENGINE_KV_ROOM_H_
