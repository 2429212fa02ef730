// Scheduler: decides which sequences take the next step, how many tokens of each, and which of them
// is preempted for another. Pure bookkeeping: no tensors, no clock, no threads.
//
// A sequence waits in a bounded queue until one of `max_running` places is free (several, if it
// will fork). Tenants take turns: the one with the fewest places is next, with its oldest sequence.
// A sequence that waits for places or memory is overtaken by none. With a place a sequence is first
// idle (its prefix is being looked up), then prefills, then decodes; preempted, it waits again.
// Every decoding sequence is in every batch, and prefilling ones share the rest of its rows. A
// model whose steps hold one sequence takes the parts of a batch one after the other; a row for
// prefills is a step of a prompt then.
//
// Ids are ages: the smaller an id, the older its sequence. Thread safety: none; the engine guards
// it.
// Invariants:
//   1. The places of sequences that do not wait are <= max_running. Where several tenants are
//      known, one place is left for a tenant that has none.
//   2. A batch has each decoding sequence once. Its prefilled tokens fill up the rows it may have
//      (half of them are theirs however many decode) as far as there are any, and it has no more.
//      Guessed tokens come last: they share what is left of kRowsWithGuesses rows, or of twice as
//      many where only one sequence decodes.
//   3. Tenants that prefill have equal rows, and so have the sequences of a tenant; rows that one
//      of them has no use for are shared by the others.
//   4. A sequence is never preempted for a younger one.
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

// Of a batch with guessed tokens. The kernels take so many rows for little more than one row costs;
// a row behind them costs what a sequence's own token does, and a guess may be wrong.
inline constexpr uint32_t kRowsWithGuesses = 8;

struct PlannedStep {
  SequenceId id = 0;
  StepKind kind = StepKind::kPrefill;
  uint32_t tokens = 1;  // in a batch: of the prompt, or the decoded one and those guessed behind it
};

class Scheduler {
 public:
  // REQUIRES: max_running >= 1.
  Scheduler(uint32_t max_running, uint32_t max_queued);

  // False when the queue is full. Free places count as room: a queue of 0 still serves idle places.
  // `dropped`: if a tenant has more places, and sequences that wait for some, than this one would
  // have, the newest of these sequences that never had a place is removed instead, and returned
  // here; null: none is. REQUIRES: 1 <= places <= max_running.
  bool Enqueue(SequenceId id, uint32_t places = 1, const std::string& tenant = "",
               std::optional<SequenceId>* dropped = nullptr);
  // The sequence whose turn it is, if there are places for it.
  std::optional<SequenceId> Candidate() const;
  // Gives the candidate its places; it is idle now.
  void Admit(SequenceId id);
  // `tokens`: rows to prefill. REQUIRES: the sequence is idle.
  void StartPrefill(SequenceId id, uint32_t tokens);
  // `tokens` of its prompt's tokens in the last batch were not computed.
  void ReturnTokens(SequenceId id, uint32_t tokens) { entries_.at(id).left += tokens; }
  // REQUIRES: the sequence is idle or prefilling.
  void StartDecode(SequenceId id);
  // A new sequence, decoding, in one of the places that `id` was given beside its own.
  void Fork(SequenceId id, SequenceId fork);
  // Removes a fork of `id`. Its place is kept for another fork.
  void RemoveFork(SequenceId id, SequenceId fork);
  // The sequence to preempt if sequence `id` lacks memory. Only younger sequences count: the tenant
  // whose sequences hold the most bytes loses its youngest sequence that holds any. None: no
  // younger sequence holds any.
  std::optional<SequenceId> Victim(SequenceId id,
                                   absl::FunctionRef<uint64_t(SequenceId)> held_bytes) const;
  // A preempted sequence waits for `places`.
  void Requeue(SequenceId id, uint32_t places);
  // Frees the sequence's places, in any state. Unknown ids are ignored.
  void Remove(SequenceId id);

  // The next step of at most `rows`, or of `rows_without_decodes` where nothing decodes; empty when
  // there is none. Its tokens count as taken. A sequence without tokens left must be removed or
  // decode before the next call. `guessed`: of sequences that decode, how many tokens they would
  // have computed beside their own.
  using Guessed = std::map<SequenceId, uint32_t>;
  std::vector<PlannedStep> NextBatch(uint32_t rows, uint32_t rows_without_decodes,
                                     const Guessed& guessed = {});
  // The most rows of a batch when `max_running` sequences may run.
  static uint32_t MostRows(uint32_t rows, uint32_t rows_without_decodes, uint32_t max_running);

  uint32_t running() const;  // places
  uint32_t queued() const;

 private:
  enum class State { kQueued, kIdle, kPrefilling, kDecoding };
  struct Entry {
    std::string tenant;
    uint32_t places = 1;
    State state = State::kQueued;
    uint32_t left = 0;       // tokens to prefill that were not taken
    bool had_place = false;  // and was preempted, if it waits
  };
  struct Tenant {
    uint64_t last_turn = 0, last_seen = 0;
    uint64_t batches = 0;  // with rows of its prompts
  };
  static uint32_t PrefillRows(uint32_t decodes, uint32_t rows);
  static std::vector<uint32_t> EqualShares(uint32_t rows, const std::vector<uint32_t>& wanted,
                                           uint64_t first);
  static void AddGuessed(uint32_t rows, const Guessed& guessed, std::vector<PlannedStep>* batch);
  // Places of running sequences by tenant; `with_queued`: of waiting sequences, too.
  std::map<std::string, uint32_t> Places(bool with_queued) const;
  std::optional<SequenceId> SequenceToDrop(const std::string& tenant, uint32_t places) const;
  void AddPrefills(uint32_t rows, std::vector<PlannedStep>* batch);

  const uint32_t max_running_;
  const uint32_t max_queued_;
  std::map<SequenceId, Entry> entries_;
  std::map<std::string, Tenant> tenants_;  // of the last 1,024 sequences at least
  uint64_t accepted_ = 0, turns_ = 0, batches_ = 0;
};

}  // namespace hearth

#endif  // HEARTH_WORKER_ENGINE_SCHEDULER_H_
