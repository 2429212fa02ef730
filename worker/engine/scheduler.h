// Scheduler: decides which sequences the next step computes, how many tokens of each, and which
// sequence is preempted if another needs memory. Pure bookkeeping: no tensors, no clock, no
// threads.
//
// A sequence waits in a bounded queue until one of `max_running` places (running slots) is free, or
// several places if it will fork. The tenant with the fewest occupied places is next, with its
// oldest sequence. No sequence overtakes a sequence that waits for places or memory. After
// admission a sequence is idle (its prefix is being looked up), then it prefills, then it decodes.
// A preempted sequence waits in the queue again. A row is one token in a batch. Every batch has
// every decoding sequence; prefilling sequences share the remaining rows. If the model does not
// batch, it runs the parts of a batch one after the other, and one prefill row stands for one step
// of a prompt.
//
// The sequence with the smaller id is older. Thread safety: none; the caller holds a lock.
// Invariants:
//  1. Admitted sequences occupy at most max_running places. If several tenants are known, one place
//     is reserved for a tenant that has no place.
//  2. A batch has each decoding sequence once. Prompt tokens get the remaining rows, but at least
//     half of the row limit. Guessed tokens are added last: up to kRowsWithGuesses rows in the
//     batch, or twice that number if only one sequence decodes.
//  3. Tenants that prefill get equal numbers of rows, and so do the sequences of one tenant. Rows
//     that a sequence does not need go to other sequences.
//  4. A sequence is never preempted for a younger one.
#ifndef HEARTH_WORKER_ENGINE_SCHEDULER_H_
#define HEARTH_WORKER_ENGINE_SCHEDULER_H_

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"

namespace hearth {

using SequenceId = uint64_t;

enum class StepKind { kPrefill, kDecode };

// Guessed tokens are added only up to this number of rows in a batch. The kernels compute 8 rows
// for little more than the cost of one. Each further row costs as much as a decoded token, and is
// wasted if the guess is wrong.
inline constexpr uint32_t kRowsWithGuesses = 8;

struct PlannedStep {
  SequenceId id = 0;
  StepKind kind = StepKind::kPrefill;
  uint32_t tokens = 1;  // prompt tokens, or the decoded token plus guessed tokens
};

class Scheduler {
 public:
  // REQUIRES: max_running >= 1.
  Scheduler(uint32_t max_running, uint32_t max_queued);

  // Adds a sequence to the queue. Returns false if the queue is full: it holds up to max_queued
  // sequences plus one for each free place. If it is full and `dropped` is not null, looks for
  // another tenant that has more places, including those of its waiting sequences, than `tenant`
  // would have; removes that tenant's newest waiting sequence and stores its id in `dropped`. A
  // sequence that was admitted before is never dropped.
  // REQUIRES: 1 <= places <= max_running.
  bool Enqueue(SequenceId id, uint32_t places = 1, const std::string& tenant = "",
               std::optional<SequenceId>* dropped = nullptr);
  // Returns the next sequence to admit if enough places are free for it, else nullopt.
  std::optional<SequenceId> Candidate() const;
  // Gives the sequence its places. The sequence is idle until StartPrefill or StartDecode.
  // REQUIRES: Candidate() returned `id`.
  void Admit(SequenceId id);
  // `tokens`: number of prompt tokens to compute. REQUIRES: the sequence is idle.
  void StartPrefill(SequenceId id, uint32_t tokens);
  // Plans `tokens` prompt tokens of the sequence again, because the last batch did not compute
  // them.
  void ReturnTokens(SequenceId id, uint32_t tokens) { entries_.at(id).left += tokens; }
  // REQUIRES: the sequence is idle or prefilling.
  void StartDecode(SequenceId id);
  // Adds the decoding sequence `fork`, in one of the places reserved for forks of `id`.
  void Fork(SequenceId id, SequenceId fork);
  // Removes a fork of `id`. The place stays reserved for another fork of `id`.
  void RemoveFork(SequenceId id, SequenceId fork);
  // Returns the sequence to preempt if sequence `id` needs memory. Only sequences younger than `id`
  // are considered. Among their tenants, the one that holds the most bytes loses its youngest
  // sequence that holds any. Returns nullopt if no younger sequence holds memory.
  std::optional<SequenceId> Victim(SequenceId id,
                                   absl::FunctionRef<uint64_t(SequenceId)> held_bytes) const;
  // Moves a preempted sequence to the queue, where it waits until `places` places are free.
  void Requeue(SequenceId id, uint32_t places);
  // Removes a sequence in any state and frees its places. Ignores unknown ids.
  void Remove(SequenceId id);

  // Plans the next step: at most `rows` rows, or `rows_without_decodes` if no sequence decodes.
  // Returns an empty batch if there is nothing to compute. The planned prompt tokens count as
  // computed. `guessed`: for decoding sequences, the number of guessed tokens to verify. REQUIRES:
  // when all prompt tokens of a sequence are planned, the sequence is removed or decodes before the
  // next call.
  using Guessed = std::map<SequenceId, uint32_t>;
  std::vector<PlannedStep> NextBatch(uint32_t rows, uint32_t rows_without_decodes,
                                     const Guessed& guessed = {});
  // Returns the maximum rows of any batch with at most `max_running` sequences.
  static uint32_t MostRows(uint32_t rows, uint32_t rows_without_decodes, uint32_t max_running);

  // Returns whether no sequence has prompt tokens to compute.
  bool OnlyDecodes() const;

  uint32_t running() const;  // number of occupied places
  uint32_t queued() const;

 private:
  enum class State { kQueued, kIdle, kPrefilling, kDecoding };
  struct Entry {
    std::string tenant;
    uint32_t places = 1;
    State state = State::kQueued;
    uint32_t left = 0;       // prompt tokens not yet planned
    bool had_place = false;  // was admitted at least once; if it is queued, it was preempted
  };
  struct Tenant {
    uint64_t last_turn = 0, last_seen = 0;
    uint64_t batches = 0;  // number of batches with prompt tokens of this tenant
  };
  static uint32_t PrefillRows(uint32_t decodes, uint32_t rows);
  static std::vector<uint32_t> EqualShares(uint32_t rows, const std::vector<uint32_t>& wanted,
                                           uint64_t first);
  static void AddGuessed(uint32_t rows, const Guessed& guessed, std::vector<PlannedStep>* batch);
  // Returns the places of admitted sequences, by tenant. `with_queued`: also counts the places that
  // waiting sequences will need.
  std::map<std::string, uint32_t> Places(bool with_queued) const;
  std::optional<SequenceId> Droppable(const std::string& tenant, uint32_t places) const;
  void AddPrefills(uint32_t rows, std::vector<PlannedStep>* batch);

  const uint32_t max_running_;
  const uint32_t max_queued_;
  std::map<SequenceId, Entry> entries_;
  // All tenants of the last 1,024 sequences, and maybe more.
  std::map<std::string, Tenant> tenants_;
  uint64_t accepted_ = 0, turns_ = 0, batches_ = 0;
};

}  // namespace hearth

#endif  // HEARTH_WORKER_ENGINE_SCHEDULER_H_
