// The file of promises written anew beside the one in use, which is appended to meanwhile. Private
// to disk/.
//
// Dead entries are left out of those that the old file had at the beginning; what is appended to
// that since follows as it is, but for places in the file, which are others in this one. Nothing
// counts before PutInPlace; what was made until then is removed with this. Thread safety: none.
// Errors: of the disk, or an entry of the old file that is not whole any more.
#ifndef HEARTH_CACHE_STORE_DISK_PROMISES_DISK_TIER_PROMISE_REWRITE_H_
#define HEARTH_CACHE_STORE_DISK_PROMISES_DISK_TIER_PROMISE_REWRITE_H_

#include <rocksdb/file_system.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/strings/string_view.h"
#include "cache_store/disk/promises/promises.h"

namespace hearth {

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

#endif  // HEARTH_CACHE_STORE_DISK_PROMISES_DISK_TIER_PROMISE_REWRITE_H_
