// Promises: the restore points that the store acknowledged to have on disk, in a small file beside
// the database: without it nobody could tell what a damaged database has lost.
//
// DIR/promises is a row of entries of 64 bytes, each checked by itself: what is damaged of it costs
// what it hit. A restore point is written down after the database took it and before it is
// acknowledged; when it leaves, a line says so. The last entry of a number counts. The file is
// appended to, and written anew when most of it is dead. Little endian:
//
//   0  kind     1 byte, PromiseKind
//   1  level    1 byte, PromiseLevel; 0 where it means nothing
//   2  zero     2 bytes
//   4  tokens   u32, of the restore point; kReleased without a level: 1 if it was erased
//   8  number   u64, the manifest's; kSynced: bytes of this file; kHeader: version; kForgot: below
//  16  id       32 bytes, the restore point's; kSession: the machine's boot, zeros; kHeader: magic
//  48  time     u64, unix seconds
//  56  check    XXH3-64 of the 56 bytes before
//
// An entry of zeros is one that never reached the disk. Pure functions, plain values, no database.
// Thread safety: none needed. Errors: none; a reader is told what was damaged.
#ifndef HEARTH_CACHE_STORE_DISK_PROMISES_PROMISES_H_
#define HEARTH_CACHE_STORE_DISK_PROMISES_PROMISES_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/container/btree_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/strings/string_view.h"
#include "proto/fingerprint.h"

namespace hearth {

inline constexpr char kPromisesFile[] = "promises";  // in the data folder
inline std::string PromisesPath(const std::string& dir) { return dir + "/" + kPromisesFile; }
inline constexpr size_t kPromiseBytes = 64;
inline constexpr uint64_t kPromisesVersion = 1;

// On disk: never change one.
enum class PromiseKind : uint8_t {
  kHeader = 1,    // the first of a file
  kSession = 2,   // what follows was written by another process than what precedes
  kIntended = 3,  // about to be written as `sync`: on stable storage no later than the database's
  kKept = 4,      // the database has it, at `level`
  kReleased = 5,  // it left; with a level: it was found lost and said so
  kSynced = 6,    // of the first `number` bytes all that is kept is so as `sync`
  kClosed = 7,    // the process ended by itself
  // Entries rotted before. What lies in lost/ by a number up to `number` may be what they named;
  // 0: nothing there is. With a level: `tokens` of them, and no start has said so. The last one
  // counts.
  kForgot = 8,
};
enum class PromiseLevel : uint8_t {
  kNone = 0,
  kIntended = 1,  // may never have been acknowledged
  kDisk = 2,      // survives the process
  kSync = 3,      // survives the machine
};

using BootId = std::array<uint8_t, 16>;

struct PromiseEntry {
  PromiseKind kind = PromiseKind::kKept;
  PromiseLevel level = PromiseLevel::kNone;
  uint32_t tokens = 0;
  uint64_t number = 0;
  Digest id{};
  uint64_t unix_s = 0;
};

std::string SerializePromise(const PromiseEntry& entry);
// None: damaged, or of a kind that this version does not know.
std::optional<PromiseEntry> ParsePromise(absl::string_view bytes);
// That the database was told to erase the manifest, and took it.
PromiseEntry ErasedEntry(uint64_t number, uint64_t unix_s);
PromiseEntry PromisesHeader();
PromiseEntry PromisesSession(const BootId& boot, uint64_t unix_s);

// A restore point that is to be there.
struct Promise {
  uint64_t manifest = 0;
  Digest id{};  // the restore point's
  uint32_t tokens = 0;
  PromiseLevel level = PromiseLevel::kNone;
  BootId boot{};  // of the machine when it was made; zeros: unknown
  uint64_t unix_s = 0;
  uint64_t at = 0;  // where its entry lies in the file: those made later lie behind it

  // Whether it holds after a start under `boot`: what was promised as `disk` ends with the machine.
  bool HoldsUnder(const BootId& now) const {
    return level == PromiseLevel::kSync ||
           (level == PromiseLevel::kDisk && boot == now && boot != BootId{});
  }
};

// All that a file says.
struct PromiseBook {
  absl::btree_map<uint64_t, Promise> promises;  // not released, by manifest
  // Found lost, and not published again since: a repair may find them.
  absl::btree_map<uint64_t, Promise> lost;
  // Points that left, or were published again since they were found lost, as far as the file goes
  // back.
  absl::flat_hash_set<uint64_t> gone;
  // Of those what the database was told to erase, rather than what a start did not find.
  absl::flat_hash_set<uint64_t> erased;
  // The last kMaxRecentlyErased of these, oldest first: a file written anew still names them.
  std::vector<uint64_t> recently_erased;
  uint64_t bytes = 0;        // of the file
  uint64_t last_number = 0;  // of any manifest that was ever in it
  uint64_t entries = 0;      // whole ones, released or not
  uint64_t damaged = 0;      // entries that are neither whole nor zeros
  uint64_t torn_bytes = 0;   // at the end, of an entry that is not all there
  bool has_header = false;   // or it is damaged
  BootId boot{};             // of the last session
  uint64_t forgot_to = 0;    // see kForgot
  uint64_t unsaid = 0;       // entries that rotted while a store had it, and no start said so

  // How many are known to be lost. `now`: as below.
  uint64_t LostEntries(const BootId& now) const {
    return damaged + unsaid + (torn_bytes > 0 && boot == now ? 1 : 0);
  }
  // Those that a file written anew has, beside what it begins with.
  uint64_t LiveEntries() const;
  // Whether it may be silent of what was promised. `now`: of the machine; only a crash of it leaves
  // a part of an entry.
  bool LacksEntries(const BootId& now) const { return LostEntries(now) > 0 || !has_header; }
};
// A log that lost its end brings points back whose erase was in it. Of more erases than this some
// are in the database's tables by then (RocksDiskTier).
inline constexpr size_t kMaxRecentlyErased = 1024;
// Whatever number it goes by.
inline constexpr uint64_t kForgotAll = ~uint64_t{0};

// `bytes`: of the whole file.
PromiseBook ReadPromises(absl::string_view bytes);
// A file that says what `book` says of what is promised and lost, and no more; of what left only
// what lost/ may hold and entries that rotted may have named, and what was erased last.
std::string WritePromises(const PromiseBook& book);

}  // namespace hearth

#endif  // HEARTH_CACHE_STORE_DISK_PROMISES_PROMISES_H_
