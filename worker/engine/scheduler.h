// Scheduler: chooses the sequences of the next step, how many tokens each gets, and which sequence
// is preempted for another. Pure bookkeeping: no tensors, no clock, no threads.
//
// A sequence waits in a bounded queue until one of `max_running` places is free (several places if
// it will fork). The tenant with the fewest places is next, with its oldest sequence. No sequence
// overtakes a sequence that waits for places or memory. After admission a sequence is idle (its
// prefix is being looked up), then it prefills, then it decodes. A preempted sequence waits again.
// Every decoding sequence is in every batch; prefilling sequences share the remaining rows. If the
// model does not batch, it runs the parts of a batch one after the other, and one prefill row
// stands for one step of a prompt.
//
// A smaller id means an older sequence. Thread safety: none; the caller holds a lock.
// Invariants:
//  1. The places of admitted sequences are <= max_running. If several tenants are known, one place
//     is reserved for a tenant that has none.
//  2. A batch has each decoding sequence once. Prefill gets the remaining rows, at least half of
//     the row limit. Guessed tokens come last: they fill the batch up to kRowsWithGuesses rows, or
//     twice that if only one sequence decodes.
//  3. Prefilling tenants get equal rows, and so do the sequences of a tenant. Rows that a sequence
//     does not need go to the others.
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

// Maximum rows of a batch with guessed tokens. The kernels compute 8 rows for little more than the
// cost of one; each further row costs as much as a decoded token, and a guess may be wrong.
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

  // Returns false if the queue is full. Free places extend the queue, so max_queued = 0 still
  // accepts requests for free places. If `dropped` is not null and another tenant has more places,
  // waiting ones included, than this tenant would have, that tenant's newest waiting sequence is
  // removed instead and stored in `dropped`. Sequences that were admitted before are never dropped.
  // REQUIRES: 1 <= places <= max_running.
  bool Enqueue(SequenceId id, uint32_t places = 1, const std::string& tenant = "",
               std::optional<SequenceId>* dropped = nullptr);
  // Returns the next sequence to admit, if enough places are free for it.
  std::optional<SequenceId> Candidate() const;
  // Gives the candidate its places. The sequence is then idle.
  void Admit(SequenceId id);
  // `tokens`: rows to prefill. REQUIRES: the sequence is idle.
  void StartPrefill(SequenceId id, uint32_t tokens);
  // Returns `tokens` prompt tokens of the last batch that were not computed.
  void ReturnTokens(SequenceId id, uint32_t tokens) { entries_.at(id).left += tokens; }
  // REQUIRES: the sequence is idle or prefilling.
  void StartDecode(SequenceId id);
  // Adds a decoding sequence in one of the places reserved for forks of `id`.
  void Fork(SequenceId id, SequenceId fork);
  // Removes a fork of `id`. Its place stays reserved for another fork.
  void RemoveFork(SequenceId id, SequenceId fork);
  // Returns the sequence to preempt if sequence `id` needs memory: among younger sequences, the
  // tenant that holds the most bytes loses its youngest sequence that holds any. nullopt: no
  // younger sequence holds memory.
  std::optional<SequenceId> Victim(SequenceId id,
                                   absl::FunctionRef<uint64_t(SequenceId)> held_bytes) const;
  // Moves a preempted sequence to the queue, where it waits for `places`.
  void Requeue(SequenceId id, uint32_t places);
  // Frees the sequence's places, in any state. Unknown ids are ignored.
  void Remove(SequenceId id);

  // Plans the next step of at most `rows`, or of `rows_without_decodes` if no sequence decodes;
  // empty if there is nothing to compute. The planned tokens count as computed. `guessed`: for
  // decoding sequences, the number of guessed tokens they would verify. REQUIRES: a sequence whose
  // prompt is all planned was removed or decodes before the next call.
  using Guessed = std::map<SequenceId, uint32_t>;
  std::vector<PlannedStep> NextBatch(uint32_t rows, uint32_t rows_without_decodes,
                                     const Guessed& guessed = {});
  // Returns the maximum rows of a batch with at most `max_running` sequences.
  static uint32_t MostRows(uint32_t rows, uint32_t rows_without_decodes, uint32_t max_running);

  uint32_t running() const;  // in places
  uint32_t queued() const;

 private:
  enum class State { kQueued, kIdle, kPrefilling, kDecoding };
  struct Entry {
    std::string tenant;
    uint32_t places = 1;
    State state = State::kQueued;
    uint32_t left = 0;       // tokens left to prefill
    bool had_place = false;  // was admitted once; if queued, it was preempted
  };
  struct Tenant {
    uint64_t last_turn = 0, last_seen = 0;
    uint64_t batches = 0;  // batches that had rows of its prompts
  };
  static uint32_t PrefillRows(uint32_t decodes, uint32_t rows);
  static std::vector<uint32_t> EqualShares(uint32_t rows, const std::vector<uint32_t>& wanted,
                                           uint64_t first);
  static void AddGuessed(uint32_t rows, const Guessed& guessed, std::vector<PlannedStep>* batch);
  // Places of admitted sequences by tenant; with_queued also counts waiting sequences.
  std::map<std::string, uint32_t> Places(bool with_queued) const;
  std::optional<SequenceId> Droppable(const std::string& tenant, uint32_t places) const;
  void AddPrefills(uint32_t rows, std::vector<PlannedStep>* batch);

  const uint32_t max_running_;
  const uint32_t max_queued_;
  std::map<SequenceId, Entry> entries_;
  std::map<std::string, Tenant> tenants_;  // at least those of the last 1,024 sequences
  uint64_t accepted_ = 0, turns_ = 0, batches_ = 0;
};

}  // namespace hearth

#endif  // HEARTH_WORKER_ENGINE_SCHEDULER_H_
