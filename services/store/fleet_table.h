// FleetTable: the workers that report to a store, the models that they serve, and the first words
// of prompts, for the store's status page.
//
// Everything is in RAM, and bounded. A worker that reports wrong figures changes its own rows and
// the totals; with many instances it can keep new workers out of the table. Thread safety: all
// methods from any thread. Ownership: the clock must outlive the table. Invariants: (1) a growth is
// counted once, even if its report is repeated; (2) a worker that is connected is never removed to
// make room; (3) unless ShowWords was called, no word is kept.
#ifndef HEARTH_SERVICES_STORE_FLEET_TABLE_H_
#define HEARTH_SERVICES_STORE_FLEET_TABLE_H_

#include <cstddef>
#include <cstdint>
#include <list>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "cache_store/base/clock.h"
#include "proto/fingerprint.h"
#include "proto/store_stats.pb.h"
#include "services/serving/access/identity.h"

namespace hearth {

// What workers have reported since the store's start, and how many there are.
struct FleetTotals {
  uint64_t unasked_tokens = 0;  // prompt tokens of requests that made no lookup
  uint64_t unasked_held_tokens = 0;
  uint64_t saved_us = 0;  // estimated time to compute unasked_held_tokens
  size_t workers = 0;     // connected now
  size_t models = 0;      // served by connected workers
};

// A worker, as it reported itself last.
struct FleetWorker {
  v1::ReportRequest report;
  std::string caller;  // name of its identity; empty without identities
  std::string peer;    // its address
  absl::Time seen;     // on the table's clock
  absl::Duration age;  // time since `seen`; set by Workers
  bool is_connected = false;
};

class FleetTable {
 public:
  static constexpr size_t kMaxWorkers = 256;
  static constexpr int kMaxModels = 16;         // of one worker
  static constexpr size_t kMaxNameBytes = 128;  // of each text in a report
  static constexpr size_t kWordsTokens = 32;    // tokens of which the words are the text
  static constexpr size_t kMaxWordsBytes = 256;
  static constexpr size_t kMaxWords = 1024;  // number of prompts
  // A worker is connected if its last report is younger; it reports every five seconds.
  static constexpr absl::Duration kConnected = absl::Seconds(16);
  // A worker that did not report for this long is removed from the table.
  static constexpr absl::Duration kForgotten = absl::Minutes(10);

  // `clock`: null for a SteadyClock.
  explicit FleetTable(Clock* clock = nullptr) : clock_(clock != nullptr ? clock : &steady_clock_) {}
  FleetTable(const FleetTable&) = delete;
  FleetTable& operator=(const FleetTable&) = delete;

  // Keeps first words from now on.
  void ShowWords() ABSL_LOCKS_EXCLUDED(mutex_);
  bool shows_words() const ABSL_LOCKS_EXCLUDED(mutex_);

  // Takes a worker's report. kInvalidArgument names the field that is over its limit.
  // kPermissionDenied: the caller is a tenant. kResourceExhausted: the table is full.
  absl::Status Take(const v1::ReportRequest& report, const Identity& caller, std::string peer)
      ABSL_LOCKS_EXCLUDED(mutex_);
  // Keeps the first words of a prompt. Does nothing if words are not shown, or if the caller is a
  // tenant, or if the words are empty, too long or not UTF-8, or the prompt is too short.
  void NoteWords(const Identity& caller, const Digest& fingerprint,
                 absl::Span<const uint32_t> token_ids, absl::string_view words)
      ABSL_LOCKS_EXCLUDED(mutex_);

  FleetTotals Totals() const ABSL_LOCKS_EXCLUDED(mutex_);
  // Returns all workers, sorted by name.
  std::vector<FleetWorker> Workers() const ABSL_LOCKS_EXCLUDED(mutex_);
  // Returns the first words of the prompts that begin with these tokens; empty if not known.
  std::string Words(const Digest& fingerprint, absl::Span<const uint32_t> token_ids) const
      ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  struct Entry {
    FleetWorker worker;
    uint64_t sequence = 0;  // of the last report that was counted
  };
  // First words by the key of their tokens; the last used words first.
  using WordsList = std::list<std::pair<Digest, std::string>>;

  // Removes forgotten workers and, if the table is full, the one unseen for longest. Returns
  // whether there is room for another.
  bool MakeRoom(absl::Time now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  SteadyClock steady_clock_;
  Clock* const clock_;
  mutable absl::Mutex mutex_;
  std::map<std::string, Entry> workers_ ABSL_GUARDED_BY(mutex_);  // keyed by instance
  FleetTotals counted_ ABSL_GUARDED_BY(mutex_);                   // without `workers` and `models`
  bool shows_words_ ABSL_GUARDED_BY(mutex_) = false;
  WordsList words_ ABSL_GUARDED_BY(mutex_);
  absl::flat_hash_map<Digest, WordsList::iterator> words_at_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace hearth

#endif  // HEARTH_SERVICES_STORE_FLEET_TABLE_H_
