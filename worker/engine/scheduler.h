// Scheduler: decides which sequences take the next step, and how many tokens of each. Pure
// bookkeeping: no tensors, no clock, no threads.
//
// A sequence waits in a bounded queue until one of `max_running` places is free (several, if it
// will fork). Tenants take turns: the one with the fewest places is next; of a tenant's, who came
// first. The caller knows which sequences have memory: those whose turn comes later may overtake
// one that has none. With a place a sequence is first idle (its prefix is being looked up), then
// prefills, then decodes. A model whose steps hold one sequence asks for Next(): prefilling
// sequences take turns, and between two prefill steps every decoding sequence takes one. Others ask
// for NextBatch(): every decoding sequence is in every step, and prefilling ones share the rest of
// the step's rows.
//
// Thread safety: none; the engine guards it.
// Invariants:
//   1. A sequence is in the queue, or idle, prefilling, decoding or paused; never in two of them.
//   2. idle + prefilling + decoding + paused, and places that are kept for forks, are <=
//   max_running.
//   3. By Next(), between two steps of one decoding sequence there is at most one prefill step.
//   4. A batch has each decoding sequence once. Its prefilled tokens fill up the rows it may have
//      (half of them are theirs however many decode) as far as there are any, and it has no more.
//      Guessed tokens come last: they share what is left of kRowsWithGuesses rows, or of twice as
//      many where only one sequence decodes.
//   5. Nobody is overtaken more than kMaxOvertaken times by those whose turn comes later.
//   6. Tenants that prefill share these rows alike, but each has 16 as far as there are any; who
//      had none in one batch is first in the next. Of a tenant's rows half, or 16 where that is
//      more, are its oldest sequence's; where one is promised, it shares these with the oldest that
//      is. The rest are those of the sequences that have the fewest tokens left, however few rows
//      each gets. The smaller an id, the older.
//   7. Where several tenants are known, one place is left for a tenant that has none.
#ifndef HEARTH_WORKER_ENGINE_SCHEDULER_H_
#define HEARTH_WORKER_ENGINE_SCHEDULER_H_

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

namespace hearth {

using SequenceId = uint64_t;

enum class StepKind { kPrefill, kDecode };

// As many as have a place. A sequence that needs much memory, or many places, waits for those that
// run, and for as many later ones.
inline constexpr uint32_t kMaxOvertaken = 16;

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
  // `gives_way`: if a tenant has more places, and sequences that wait for some, than this one would
  // have, the newest of these sequences is removed instead, and told here; null: it is not.
  // REQUIRES: 1 <= places <= max_running.
  bool Enqueue(SequenceId id, uint32_t places = 1, const std::string& tenant = "",
               std::optional<SequenceId>* gives_way = nullptr);
  // The sequences that may have a place now, in the order in which to try them: the one whose turn
  // it is, then those that may overtake.
  std::vector<SequenceId> Candidates();
  // Gives a candidate its place; it is idle now. REQUIRES: `id` is one of the candidates.
  void Admit(SequenceId id);
  // `tokens`, `tenant` and `promised` matter to batches alone; `promised`: others, here or
  // elsewhere, wait for it. REQUIRES: the sequence is idle.
  void StartPrefill(SequenceId id, uint32_t tokens = 1, const std::string& tenant = "",
                    bool promised = false);
  // REQUIRES: the sequence is idle or prefilling.
  void StartDecode(SequenceId id);
  // A new sequence, decoding, in one of the places that `id` was given beside its own.
  void Fork(SequenceId id, SequenceId fork);
  // A sequence that decodes has no steps until it is resumed. Ids of others are ignored.
  void Pause(SequenceId id);
  void Resume(SequenceId id);
  // Frees the sequence's place, and its additional ones, in any state. Unknown ids are ignored.
  void Remove(SequenceId id);

  // The next step, or nullopt when nothing prefills or decodes. Each call counts as a step taken.
  std::optional<PlannedStep> Next();
  // The next step of at most `rows`, or of `rows_without_decodes` where nothing decodes; empty when
  // there is none. Its tokens count as taken. A sequence without tokens left must be removed or
  // decode before the next call. `guessed`: of sequences that decode, how many tokens they would
  // have computed beside their own.
  using Guessed = std::map<SequenceId, uint32_t>;
  std::vector<PlannedStep> NextBatch(uint32_t rows, uint32_t rows_without_decodes,
                                     const Guessed& guessed = {});
  // The most rows of a batch when `max_running` sequences may run.
  static uint32_t MostRows(uint32_t rows, uint32_t rows_without_decodes, uint32_t max_running);

  // Whether several tenants are known, of the last 1,024 sequences at least; `tenant` has a place.
  bool has_several_tenants() const { return tenants_.size() > 1; }
  bool Runs(const std::string& tenant) const;
  uint32_t running() const;
  uint32_t queued() const { return static_cast<uint32_t>(queue_.size()); }

 private:
  static uint32_t RowsBeside(uint32_t decodes, uint32_t rows);
  struct Waiting {
    SequenceId id = 0;
    uint32_t places = 1;
    std::string tenant;
    uint32_t overtaken = 0;  // times
  };
  struct Prefill {
    uint32_t tokens = 0;  // left to be taken
    std::string tenant;
    bool promised = false;
  };
  struct Tenant {
    uint32_t running = 0;  // places
    uint64_t last_turn = 0, last_seen = 0;
  };
  std::vector<Waiting*> InTurn();
  const Waiting* WhoGivesWay(const std::string& tenant, uint32_t places) const;
  uint32_t FreeFor(const std::string& tenant) const;
  std::map<std::string, SequenceId> OldestPromised() const;  // by tenant, where there is one
  std::map<SequenceId, uint32_t> Shares(uint32_t rows) const;
  static void AddGuessed(uint32_t rows, const Guessed& guessed, std::vector<PlannedStep>* batch);
  std::map<SequenceId, uint32_t> ByAge(std::map<std::string, uint32_t> left) const;
  std::optional<Waiting> Unqueue(SequenceId id);

  const uint32_t max_running_;
  const uint32_t max_queued_;
  std::deque<Waiting> queue_;
  std::map<std::string, Tenant> tenants_;      // of the last 1,024 sequences at least
  std::map<SequenceId, std::string> running_;  // whose tenants have a place for them
  uint64_t accepted_ = 0, turns_ = 0;
  std::map<SequenceId, uint32_t> beside_;  // places beside its own, where there are any
  uint32_t kept_ = 0;                      // of them, those of sequences that have their place
  std::set<SequenceId> idle_;
  std::deque<SequenceId> prefilling_;       // front is next; in a batch, its tenant
  std::map<SequenceId, Prefill> prefills_;  // of each of them
  std::deque<SequenceId> decoding_;
  std::set<SequenceId> paused_;
  std::deque<SequenceId> round_;  // those of decoding_ that still have a step in this round
};

}  // namespace hearth

#endif  // HEARTH_WORKER_ENGINE_SCHEDULER_H_
