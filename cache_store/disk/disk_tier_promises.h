// The disk tier's promises, kept in step with its commits and erases. Private to disk/.
//
// lost = promised - present - gone. A promise is written down after the commit and before its
// acknowledgement; as `sync` an intent is on stable storage by then, synced beside the database's
// log rather than after it. An erase says in its own batch what is gone: after a crash of the
// machine that tells an erase whose line in the file was lost from a loss. Such notes are deleted
// once the line is on stable storage. So a crash between any two steps leaves nothing that looks
// lost. Thread safe. Ownership: borrows the database.
#ifndef HEARTH_CACHE_STORE_DISK_DISK_TIER_PROMISES_H_
#define HEARTH_CACHE_STORE_DISK_DISK_TIER_PROMISES_H_

#include <rocksdb/write_batch.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/types/span.h"
#include "cache_store/disk/disk_tier.h"
#include "cache_store/disk/disk_tier_db.h"
#include "cache_store/disk/promises/disk_tier_promise_file.h"

namespace hearth {

// Whether a folder is of a version that writes promises. Where that is damaged: more likely than
// not. An error: it cannot be told now, or they are a newer version's.
absl::StatusOr<bool> HasPromises(const Database& db, const std::string& dir);

// Manifests that were erased and are there again, since the log lost its end, go from
// `contents->manifests` to `returned`.
void TakeReturned(const PromiseBook& book, DiskContents* contents);
// Of what is promised all that is not in `contents`, and did not leave as these say.
std::vector<Promise> MissedPromises(const PromiseBook& book, const DiskContents& contents,
                                    const BootId& boot);
// "N restore points that were acknowledged are " `what`, and which.
std::string MissedLine(const std::vector<Promise>& missed, absl::string_view what);

// Whether folders of that version have them.
bool MakesPromises(const std::string& version);

class DiskPromises {
 public:
  using Change = std::function<absl::Status()>;

  // `is_new`: the folder is older than promises are; it gets them from what is there.
  DiskPromises(const Database* db, const std::string& dir, const DiskTierOptions& options,
               bool is_new);

  // Compares. `contents` gets what is lost, and lines about it; from then on nobody misses that.
  // And it gets what returned (DiskContents).
  // `keep_held_back`: called before, for a start that ends in between misses it again.
  using Keep = std::function<void(DiskContents* contents)>;
  // Manifests that the file names as erased last. Before CompareWithContents.
  size_t recently_erased() const { return book_.recently_erased.size(); }
  void CompareWithContents(DiskContents* contents, const Keep& keep_held_back);

  // `write` commits the manifests, `points` are the ids of what they are of. An error: whatever
  // was written is to be erased.
  absl::Status Commit(const std::vector<ManifestRecord>& manifests, absl::Span<const Digest> points,
                      bool sync, const Change& write);
  // `write` writes the batch, which erases the manifests.
  absl::Status Erase(absl::Span<const uint64_t> manifests, rocksdb::WriteBatch* batch,
                     const Change& write);
  // `write` syncs the database.
  absl::Status Sync(const Change& write);
  // These are known to be lost, and were said to be.
  void Release(absl::Span<const uint64_t> manifests) {
    NoteReleased(manifests, PromiseLevel::kDisk);
  }
  void Close() { file_.Close(); }

 private:
  // The note of an erase's batch, and its place in the file.
  struct GoneNote {
    std::string key;
    PromiseFile::Place released;
  };

  void NoteForgotten(const PromiseBook& book, DiskContents* contents);
  // `was`: kNone: they are not there and nobody misses them, else they were found lost.
  PromiseFile::Place NoteReleased(absl::Span<const uint64_t> manifests, PromiseLevel was);
  PromiseFile::Place NoteErased(absl::Span<const uint64_t> manifests);
  std::vector<GoneNote> TakeNotesToDelete() ABSL_LOCKS_EXCLUDED(mu_);

  const Database* const db_;
  const std::shared_ptr<Warnings> warnings_;
  const bool is_new_;
  PromiseFile file_;
  PromiseBook book_;  // as it was at the start; empty once it is compared
  std::vector<std::string> damage_;
  absl::Mutex mu_;
  std::vector<GoneNote> notes_ ABSL_GUARDED_BY(mu_);
  uint64_t next_note_ ABSL_GUARDED_BY(mu_) = 1;
};

}  // namespace hearth

#endif  // HEARTH_CACHE_STORE_DISK_DISK_TIER_PROMISES_H_
