// DiskPromises: keeps the promises in step with the disk tier's commits and erases. Private to
// disk/.
//
// lost = promised - present - gone. A promise is written after the commit and before its
// acknowledgement; for `sync` an intent is on stable storage by then, synced beside the database's
// log rather than after it. An erase notes in its own batch which manifests are gone: after a crash
// of the machine that note tells an erase whose line in the file was lost from a loss. Notes are
// deleted once the line is on stable storage. So a crash between any two steps leaves nothing that
// looks lost. Thread safe. Ownership: borrows the database.
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

// Whether the folder's version writes promises. Where the version is damaged: whether that is
// likely. An error: unknown for now, or a newer version wrote them.
absl::StatusOr<bool> HasPromises(const Database& db, const std::string& dir);

// Moves manifests that came back after their erase, since the log lost its end, from
// `contents->manifests` to `returned`.
void TakeReturned(const PromiseBook& book, DiskContents* contents);
// The promised restore points that are neither in `contents` nor noted there as gone.
std::vector<Promise> MissedPromises(const PromiseBook& book, const DiskContents& contents,
                                    const BootId& boot);
// "N restore points that were acknowledged are " `what`, and which.
std::string MissedLine(const std::vector<Promise>& missed, absl::string_view what);

// Whether folders of that version have promises.
bool MakesPromises(const std::string& version);

class DiskPromises {
 public:
  using Change = std::function<absl::Status()>;

  // `is_new`: the folder is older than promises; it gets one for each restore point that is there.
  DiskPromises(const Database* db, const std::string& dir, const DiskTierOptions& options,
               bool is_new);

  // Adds the lost restore points to `contents`, with lines about them, and those that returned
  // (DiskContents); the lost ones are not promised any more. `keep_held_back` is called before that
  // is written: a start that ends in between finds the loss again.
  using Keep = std::function<void(DiskContents* contents)>;
  // The number of recent erases that the file names. To be called before CompareWithContents.
  size_t recently_erased() const { return book_.recently_erased.size(); }
  void CompareWithContents(DiskContents* contents, const Keep& keep_held_back);

  // `write` commits the manifests, `points` are the ids of their restore points. After an error the
  // caller must erase whatever was written.
  absl::Status Commit(const std::vector<ManifestRecord>& manifests, absl::Span<const Digest> points,
                      bool sync, const Change& write);
  // `write` writes the batch, which erases the manifests.
  absl::Status Erase(absl::Span<const uint64_t> manifests, rocksdb::WriteBatch* batch,
                     const Change& write);
  // `write` syncs the database.
  absl::Status Sync(const Change& write);
  // Their loss is known, and was reported.
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
  // `was`: kNone: absent without being a loss; else they were found lost.
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
