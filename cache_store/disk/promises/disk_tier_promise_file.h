// PromiseFile: writes DIR/promises: appends to it, syncs it beside the database's log, and rewrites
// it when most of it is dead. Private to disk/; the format: promises.h.
//
// A thread of its own writes the new file beside the one in use, while that is appended to; others
// wait only for the last entries and the exchange. After an error nothing is appended before the
// file was rewritten: that is done at once, and waited for.
//
// When the disk is full or fails, a promise that cannot be appended is an error of its publish;
// entries that may be late are kept in memory and appended with the next. A failed append is cut
// off again. Thread safe. Another thread, started by the first sync, syncs once for all that wait.
#ifndef HEARTH_CACHE_STORE_DISK_PROMISES_DISK_TIER_PROMISE_FILE_H_
#define HEARTH_CACHE_STORE_DISK_PROMISES_DISK_TIER_PROMISE_FILE_H_

#include <rocksdb/file_system.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/types/span.h"
#include "cache_store/disk/promises/promises.h"

namespace hearth {

class PromiseFile {
 public:
  // A place in the file.
  struct Place {
    uint64_t generation = 0;  // of the file: how often it was rewritten
    uint64_t bytes = 0;
    uint64_t request = 0;  // of a sync
  };

  // `files` outlives this. `boot`: of the machine, now.
  PromiseFile(rocksdb::FileSystem* files, const std::string& dir, const BootId& boot)
      : files_(files), dir_(dir), path_(PromisesPath(dir)), boot_(boot) {}
  ~PromiseFile();

  // The promises in the file. The first call, once. `is_new`: begins without promises; a file that
  // is there does not count. `*damage`: a line for each error in it.
  PromiseBook Begin(bool is_new, std::vector<std::string>* damage);

  // All of them or none.
  rocksdb::IOStatus Append(absl::Span<const PromiseEntry> entries);
  // Appends as soon as possible. Returns the place behind these entries.
  Place AppendSoon(absl::Span<const PromiseEntry> entries);

  // Begin a sync of all that was appended so far, and wait for it; other work may lie between.
  Place BeginSync();
  rocksdb::IOStatus EndSync(const Place& place);
  bool IsSynced(const Place& place) const;
  // The database has everything on stable storage that the file named as kept when this sync began.
  void NoteSynced(const Place& place);
  // The process ends normally.
  void Close();
  // Waits until it is not being rewritten.
  void AwaitRewriting();

  const BootId& boot() const { return boot_; }
  // Whether there are files in which a repair may find lost restore points.
  bool MayHaveLost() const;

 private:
  struct Syncs {
    uint64_t asked = 0, answered = 0;
    rocksdb::IOStatus error;  // the last
  };
  static constexpr Place kNowhere = {~uint64_t{0}, 0, 0};

  rocksdb::IOStatus Write(const std::string& bytes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  rocksdb::IOStatus WriteAnew(const PromiseBook& book) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Continues with the file that now has the name: `bytes` long, all on stable storage.
  rocksdb::IOStatus GoOnWith(uint64_t bytes, uint64_t live) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void RewriteWhenAsked();
  // Rewrites the file beside the one in use. False when that is not possible now.
  bool Rewrite();
  void TrimWhenDead() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Count(absl::Span<const PromiseEntry> entries) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  bool IsSyncedLocked(const Place& place) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return safe_generation_ > place.generation ||
           (generation_ == place.generation && synced_bytes_ >= place.bytes);
  }
  // An error when the file cannot be read, or not all of it.
  rocksdb::IOStatus BookNow(PromiseBook* book) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void SyncWhenAsked();

  rocksdb::FileSystem* const files_;
  const std::string dir_, path_;
  const BootId boot_;
  mutable absl::Mutex mu_;
  // Null when it could not be made, or must be rewritten before anything is appended.
  std::shared_ptr<rocksdb::FSWritableFile> file_ ABSL_GUARDED_BY(mu_);
  uint64_t generation_ ABSL_GUARDED_BY(mu_) = 0;
  // A crash of the machine cannot bring back a generation before this one.
  uint64_t safe_generation_ ABSL_GUARDED_BY(mu_) = 0;
  uint64_t bytes_ ABSL_GUARDED_BY(mu_) = 0, synced_bytes_ ABSL_GUARDED_BY(mu_) = 0;
  std::string late_ ABSL_GUARDED_BY(mu_);  // entries that are still to be appended
  // Live entries, and all of them: about, since an entry written again counts again.
  uint64_t live_ ABSL_GUARDED_BY(mu_) = 0, entries_ ABSL_GUARDED_BY(mu_) = 0;
  uint64_t trim_at_ ABSL_GUARDED_BY(mu_) = 0;  // entries
  Syncs syncs_ ABSL_GUARDED_BY(mu_);
  bool ends_ ABSL_GUARDED_BY(mu_) = false;
  bool is_rewritten_ ABSL_GUARDED_BY(mu_) = false;  // or will be soon
  std::thread syncer_ ABSL_GUARDED_BY(mu_), rewriter_ ABSL_GUARDED_BY(mu_);
};

// kFailedPrecondition: a newer program wrote them.
absl::Status CheckPromisesVersion(rocksdb::FileSystem* files, const std::string& dir);
// Only reads. The status says whether that was possible; `*damage` gets a line for each error.
rocksdb::Status LookAtPromises(rocksdb::FileSystem* files, const std::string& dir,
                               const BootId& boot, PromiseBook* book,
                               std::vector<std::string>* damage);

// The id of the machine's current boot; zeros when unknown.
BootId ThisBoot();

// The promises to keep when the file with these `bytes` is rewritten. `may_have_lost`: as
// PromiseFile::MayHaveLost.
PromiseBook BookToKeep(absl::string_view bytes, const BootId& boot, bool may_have_lost);

// Endings of a new file before it replaces the one in use: one written beside a file that is
// appended to, and one written instead of a file that cannot be appended to any more. Both may
// exist at once.
inline constexpr char kPromisesBeside[] = ".anew";
inline constexpr char kPromisesInstead[] = ".new";
// Removes new files of a process that died while it rewrote them.
void RemovePromisesAnew(rocksdb::FileSystem* files, const std::string& path);

// Rewrites the file beside the one in use, which is appended to meanwhile.
//
// Of the entries that the old file had at the beginning the dead ones are left out; entries
// appended since are copied, with places in the file adjusted. Nothing counts before PutInPlace;
// without it the destructor removes the new file. Thread safety: none. Errors: the disk's, or a
// damaged entry of the old file.
class PromiseRewrite {
 public:
  // `path`: the file in use, which must not shrink meanwhile.
  PromiseRewrite(rocksdb::FileSystem* files, const std::string& path);
  ~PromiseRewrite();
  PromiseRewrite(const PromiseRewrite&) = delete;
  PromiseRewrite& operator=(const PromiseRewrite&) = delete;

  // Writes the live entries of the first `bytes` of the old file. The first call, once.
  rocksdb::IOStatus Begin(uint64_t bytes, const BootId& boot, bool may_have_lost);
  // Copies the entries after that, up to `bytes`, and syncs the new file. `visit` gets each of
  // them.
  using Visit = std::function<void(const PromiseEntry& entry)>;
  rocksdb::IOStatus Follow(uint64_t bytes, const Visit& visit);
  rocksdb::IOStatus PutInPlace();

  uint64_t live() const { return live_; }    // at the beginning
  uint64_t bytes() const { return bytes_; }  // of the new file

 private:
  rocksdb::IOStatus Read(uint64_t from, uint64_t bytes, std::string* out) const;
  rocksdb::IOStatus Write(const std::string& bytes);

  rocksdb::FileSystem* const files_;
  const std::string path_, part_;
  std::unique_ptr<rocksdb::FSWritableFile> file_;
  uint64_t begun_ = 0;     // bytes of the old file at the beginning
  uint64_t followed_ = 0;  // bytes of the old file that were copied
  uint64_t first_ = 0;     // bytes of the new file before the copied entries
  uint64_t bytes_ = 0, synced_bytes_ = 0, live_ = 0;
};

}  // namespace hearth

#endif  // HEARTH_CACHE_STORE_DISK_PROMISES_DISK_TIER_PROMISE_FILE_H_
