// DIR/promises as a store writes it: appended to, synced beside the database's log, and written
// anew when most of it is dead. Private to disk/; what is in it: promises.h.
//
// Written anew it is beside the one in use, by a thread of its own, while that is appended to; only
// for what came in the last moment others wait, and for the exchange. After an error nothing is
// appended to the file before it is written anew: that is done at once, and waited for.
//
// A disk that is full or fails: a promise that cannot be appended is an error of its publish; what
// may come late is kept in memory and goes with the next. An append that failed is cut off again.
// Thread safe. Syncs are a thread's of its own, begun by the first: one for all who wait.
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
    uint64_t generation = 0;  // of the file: it was written anew so often
    uint64_t bytes = 0;
    uint64_t request = 0;  // of a sync
  };

  // `files` outlives this. `boot`: of the machine, now.
  PromiseFile(rocksdb::FileSystem* files, const std::string& dir, const BootId& boot)
      : files_(files), dir_(dir), path_(PromisesPath(dir)), boot_(boot) {}
  ~PromiseFile();

  // The promises of the file, before anything is appended. `is_new`: there is to be none, and one
  // that is there does not count. `*damage`: a line for each thing that is wrong with it. Once, and
  // first.
  PromiseBook Begin(bool is_new, std::vector<std::string>* damage);

  // All of them or none.
  rocksdb::IOStatus Append(absl::Span<const PromiseEntry> entries);
  // As soon as it can be: behind them.
  Place AppendSoon(absl::Span<const PromiseEntry> entries);

  // Of all that was appended before. Begun beside other work, and waited for.
  Place BeginSync();
  rocksdb::IOStatus EndSync(const Place& place);
  bool IsSynced(const Place& place) const;
  // All that the file said was kept when this sync began is on stable storage.
  void NoteSynced(const Place& place);
  // The process ends by itself.
  void Close();
  // Until it is not being written anew.
  void AwaitRewriting();

  const BootId& boot() const { return boot_; }
  // Whether there is anything that a repair may find what was lost in.
  bool MayHaveLost() const;

 private:
  struct Syncs {
    uint64_t asked = 0, answered = 0;
    rocksdb::IOStatus error;  // the last
  };
  static constexpr Place kNowhere = {~uint64_t{0}, 0, 0};

  rocksdb::IOStatus Write(const std::string& bytes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  rocksdb::IOStatus WriteAnew(const PromiseBook& book) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // The file that has the name now, of so many bytes, all on stable storage.
  rocksdb::IOStatus GoOnWith(uint64_t bytes, uint64_t live) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void RewriteWhenAsked();
  // Beside the one in use. False: it could not be done now.
  bool Rewrite();
  void TrimWhenDead() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Count(absl::Span<const PromiseEntry> entries) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  bool IsSyncedLocked(const Place& place) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return safe_generation_ > place.generation ||
           (generation_ == place.generation && synced_bytes_ >= place.bytes);
  }
  // An error: it cannot be read, or not all of it.
  rocksdb::IOStatus BookNow(PromiseBook* book) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void SyncWhenAsked();

  rocksdb::FileSystem* const files_;
  const std::string dir_, path_;
  const BootId boot_;
  mutable absl::Mutex mu_;
  // Null: it could not be made, or is to be written anew before anything is appended.
  std::shared_ptr<rocksdb::FSWritableFile> file_ ABSL_GUARDED_BY(mu_);
  uint64_t generation_ ABSL_GUARDED_BY(mu_) = 0;
  // The last that a crash of the machine brings no older one back for.
  uint64_t safe_generation_ ABSL_GUARDED_BY(mu_) = 0;
  uint64_t bytes_ ABSL_GUARDED_BY(mu_) = 0, synced_bytes_ ABSL_GUARDED_BY(mu_) = 0;
  std::string late_ ABSL_GUARDED_BY(mu_);  // entries that are still to be appended
  // Live entries, and all of them: about, since an entry written again counts again.
  uint64_t live_ ABSL_GUARDED_BY(mu_) = 0, entries_ ABSL_GUARDED_BY(mu_) = 0;
  uint64_t trim_at_ ABSL_GUARDED_BY(mu_) = 0;  // entries
  Syncs syncs_ ABSL_GUARDED_BY(mu_);
  bool ends_ ABSL_GUARDED_BY(mu_) = false;
  bool is_rewritten_ ABSL_GUARDED_BY(mu_) = false;  // or is to be
  std::thread syncer_ ABSL_GUARDED_BY(mu_), rewriter_ ABSL_GUARDED_BY(mu_);
};

// kFailedPrecondition: a newer program wrote them.
absl::Status CheckPromisesVersion(rocksdb::FileSystem* files, const std::string& dir);
// Only looks. The status says whether they could be read; `*damage` gets a line for what is wrong.
rocksdb::Status LookAtPromises(rocksdb::FileSystem* files, const std::string& dir,
                               const BootId& boot, PromiseBook* book,
                               std::vector<std::string>* damage);

// Of the machine since it was started; zeros: it does not say.
BootId ThisBoot();

// The new contents of a file of promises that has `bytes`. `may_have_lost`:
// there is something that a repair may find what was lost in.
PromiseBook BookToKeep(absl::string_view bytes, const BootId& boot, bool may_have_lost);

// The file that they are written to before it takes the place of the file in use: beside it, while
// that is appended to; and instead of one that cannot be appended to any more, which may come
// meanwhile.
inline constexpr char kPromisesBeside[] = ".anew";
inline constexpr char kPromisesInstead[] = ".new";
// Of a process that died while it wrote them anew.
void RemovePromisesAnew(rocksdb::FileSystem* files, const std::string& path);

// The file written anew beside the one in use, which is appended to meanwhile.
//
// Dead entries are left out of those that the old file had at the beginning; what is appended to
// that since follows as it is, but for places in the file, which are others in this one. Nothing
// counts before PutInPlace; what was made until then is removed with this. Thread safety: none.
// Errors: of the disk, or an entry of the old file that is not whole any more.
class PromiseRewrite {
 public:
  // `path`: of the file in use, which does not shrink meanwhile.
  PromiseRewrite(rocksdb::FileSystem* files, const std::string& path);
  ~PromiseRewrite();
  PromiseRewrite(const PromiseRewrite&) = delete;
  PromiseRewrite& operator=(const PromiseRewrite&) = delete;

  // Of the first `bytes` of the old file what lives. Once, and first.
  rocksdb::IOStatus Begin(uint64_t bytes, const BootId& boot, bool may_have_lost);
  // And all that is in it up to `bytes`, on stable storage. `visit` gets what is new.
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
  uint64_t followed_ = 0;  // of which it is said what they say
  uint64_t first_ = 0;     // bytes of the new file that what follows begins behind
  uint64_t bytes_ = 0, synced_bytes_ = 0, live_ = 0;
};

}  // namespace hearth

#endif  // HEARTH_CACHE_STORE_DISK_PROMISES_DISK_TIER_PROMISE_FILE_H_
