// Promises: the restore points that the store acknowledged as on disk, listed in a small file
// beside the database. Without it nobody could tell what a damaged database has lost.
//
// DIR/promises is a row of entries of 64 bytes, each with its own check, so that damage costs only
// the entries it hits. An entry is written after the database took a restore point and before it is
// acknowledged, and another when it leaves. The last entry of a number counts. The file is appended
// to, and rewritten when most of it is dead. Little endian:
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
// An entry of zeros never reached the disk. Pure functions, plain values, no database. Errors:
// none; PromiseBook counts damaged entries.
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
  kSession = 2,   // another process wrote the entries that follow
  kIntended = 3,  // about to be written as `sync`: on stable storage no later than the database's
  kKept = 4,      // the database has it, at `level`
  kReleased = 5,  // it left; with a level: it was found lost and said so
  kSynced = 6,    // all restore points kept in the first `number` bytes are on stable storage
  kClosed = 7,    // the process ended normally
  // Entries rotted before. They may have named files in lost/ with numbers up to `number`; 0: none
  // there. With a level: `tokens` entries rotted, which no start has reported. The last one counts.
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
// Says that the database took the erase of the manifest.
PromiseEntry ErasedEntry(uint64_t number, uint64_t unix_s);
PromiseEntry PromisesHeader();
PromiseEntry PromisesSession(const BootId& boot, uint64_t unix_s);

// A restore point that must be there.
struct Promise {
  uint64_t manifest = 0;
  Digest id{};  // the restore point's
  uint32_t tokens = 0;
  PromiseLevel level = PromiseLevel::kNone;
  BootId boot{};  // of the machine when it was made; zeros: unknown
  uint64_t unix_s = 0;
  uint64_t at = 0;  // the place of its entry in the file; later entries are behind it

  // Whether it holds after a start under `now`: a promise of `disk` ends when the machine stops.
  bool HoldsUnder(const BootId& now) const {
    return level == PromiseLevel::kSync ||
           (level == PromiseLevel::kDisk && boot == now && boot != BootId{});
  }
};

// The contents of a file.
struct PromiseBook {
  absl::btree_map<uint64_t, Promise> promises;  // not released, by manifest
  // Found lost, and not published again since: a repair may bring them back.
  absl::btree_map<uint64_t, Promise> lost;
  // Points that left, or were found lost and published again, as far as the file goes back.
  absl::flat_hash_set<uint64_t> gone;
  // Of these, the points that were erased, rather than not found by a start.
  absl::flat_hash_set<uint64_t> erased;
  // The last kMaxRecentlyErased of these, oldest first: a rewritten file still names them.
  std::vector<uint64_t> recently_erased;
  uint64_t bytes = 0;        // of the file
  uint64_t last_number = 0;  // of any manifest that was ever in it
  uint64_t entries = 0;      // whole ones, released or not
  uint64_t damaged = 0;      // entries that are neither whole nor zeros
  uint64_t torn_bytes = 0;   // at the end, of an entry that is not all there
  bool has_header = false;   // or it is damaged
  BootId boot{};             // of the last session
  uint64_t forgot_to = 0;    // see kForgot
  uint64_t unsaid = 0;       // entries that rotted while a store was open, not reported yet

  // How many entries are known to be lost. `now`: as below.
  uint64_t LostEntries(const BootId& now) const {
    return damaged + unsaid + (torn_bytes > 0 && boot == now ? 1 : 0);
  }
  // The number of entries in a rewritten file, beside those that it begins with.
  uint64_t LiveEntries() const;
  // Whether promises may be missing from the file. `now`: the machine's boot; only a crash of the
  // machine leaves a part of an entry without a loss.
  bool LacksEntries(const BootId& now) const { return LostEntries(now) > 0 || !has_header; }
};
// A log that lost its end brings back points whose erase was in it. Older erases than the last so
// many are in the database's tables by then (RocksDiskTier).
inline constexpr size_t kMaxRecentlyErased = 1024;
// PromiseBook::forgot_to: any number may have been forgotten.
inline constexpr uint64_t kForgotAll = ~uint64_t{0};

// `bytes`: the whole file.
PromiseBook ReadPromises(absl::string_view bytes);
// A file with the promised and the lost points of `book`, and no more than that; of points that
// left only those that lost/ may hold and rotted entries may have named, and the last erases.
std::string WritePromises(const PromiseBook& book);

}  // namespace hearth

#endif  // HEARTH_CACHE_STORE_DISK_PROMISES_PROMISES_H_
