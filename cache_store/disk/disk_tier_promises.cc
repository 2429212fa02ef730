#include "cache_store/disk/disk_tier_promises.h"

#include <algorithm>
#include <cassert>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "cache_store/disk/disk_tier_load.h"
#include "proto/byte_codec.h"

namespace hearth {
namespace {

// Notes of erases in the database before the file is synced for their sake.
constexpr size_t kMaxNotes = 256;
// More than that many publishes never end at once: the file was cut, or not written to.
constexpr size_t kMaxUnfinished = 256;
constexpr size_t kMaxNamed = 3;
// More than are given out between two starts.
constexpr uint64_t kNumbersApart = uint64_t{1} << 32;
// The version of the folder.
constexpr uint64_t kPromisesSince = 5;

PromiseEntry EntryFor(PromiseKind kind, PromiseLevel level, uint64_t number) {
  const auto now = static_cast<uint64_t>(absl::ToUnixSeconds(absl::Now()));
  return {kind, level, 0, number, {}, now};
}

std::vector<PromiseEntry> EntriesFor(PromiseKind kind, PromiseLevel level,
                                     const std::vector<ManifestRecord>& manifests,
                                     absl::Span<const Digest> points) {
  std::vector<PromiseEntry> entries;
  for (size_t i = 0; i < points.size(); ++i) {
    entries.push_back(EntryFor(kind, level, manifests[i].number));
    entries.back().id = points[i];
    entries.back().tokens = manifests[i].manifest.token_count;
  }
  return entries;
}

// The records that a start finds, by number.
class Present {
 public:
  explicit Present(const DiskContents& contents) {
    for (const ObjectRecord& object : contents.objects) objects_.emplace(object.number, &object);
    for (const ManifestNames& manifest : contents.manifests) {
      manifests_.emplace(manifest.number, &manifest);
    }
  }
  bool Has(uint64_t manifest) const { return manifests_.contains(manifest); }
  bool IsWhole(uint64_t manifest) const {
    const auto& names = manifests_.at(manifest)->objects;
    return !names.empty() && std::all_of(names.begin(), names.end(), [&](uint64_t object) {
      return objects_.contains(object);
    });
  }
  // A restore point's id is the key of the segment that it ends with.
  PromiseEntry EntryOf(const ManifestNames& manifest) const {
    PromiseEntry entry = EntryFor(PromiseKind::kKept, PromiseLevel::kDisk, manifest.number);
    entry.unix_s = manifest.created_unix_s;
    for (const uint64_t number : manifest.objects) {
      const auto it = objects_.find(number);
      if (it == objects_.end()) continue;
      const uint32_t end = it->second->id.begin + it->second->id.tokens;
      if (end < entry.tokens) continue;
      entry.tokens = end;
      entry.id = it->second->key;
    }
    return entry;
  }

 private:
  absl::flat_hash_map<uint64_t, const ObjectRecord*> objects_;
  absl::flat_hash_map<uint64_t, const ManifestNames*> manifests_;
};

}  // namespace

void TakeReturned(const PromiseBook& book, DiskContents* contents) {
  auto& there = contents->manifests;
  const auto was_erased = [&](const ManifestNames& manifest) {
    return book.erased.contains(manifest.number);
  };
  for (const ManifestNames& manifest : there) {
    if (was_erased(manifest)) contents->returned.push_back(manifest.number);
  }
  there.erase(std::remove_if(there.begin(), there.end(), was_erased), there.end());
}

std::vector<Promise> MissedPromises(const PromiseBook& book, const DiskContents& contents,
                                    const BootId& boot) {
  absl::flat_hash_set<uint64_t> there;
  for (const ManifestNames& manifest : contents.manifests) there.insert(manifest.number);
  for (const GoneManifests& gone : contents.gone) {
    there.insert(gone.manifests.begin(), gone.manifests.end());
  }
  std::vector<Promise> missed;
  for (const auto& [number, promise] : book.promises) {
    if (promise.HoldsUnder(boot) && !there.contains(number)) missed.push_back(promise);
  }
  return missed;
}

std::string MissedLine(const std::vector<Promise>& missed, absl::string_view what) {
  std::string line =
      absl::StrCat(missed.size(), " restore points that were acknowledged are ", what, ": ");
  for (size_t i = 0; i < std::min(missed.size(), kMaxNamed); ++i) {
    absl::StrAppend(&line, i > 0 ? ", " : "", DigestHex(missed[i].id).substr(0, 16), " (",
                    missed[i].tokens, " tokens)");
  }
  return missed.size() > kMaxNamed ? absl::StrCat(line, " and others") : line;
}

absl::StatusOr<bool> HasPromises(const Database& db, const std::string& dir) {
  if (absl::Status read = CheckPromisesVersion(db.files(), dir); !read.ok()) return read;
  std::string version;
  const rocksdb::Status status = db->Get(VerifiedReads(), db.family(kMeta), kVersionKey, &version);
  if (status.IsNotFound()) {  // new, or it lost its records
    const rocksdb::IOStatus found = db.files()->FileExists(PromisesPath(dir), kPlain, nullptr);
    if (found.ok() || found.IsNotFound()) return found.ok();
    return FromRocks(found, "look at the promises");
  }
  if (status.IsCorruption()) return true;
  if (!status.ok()) return FromRocks(status, "read of the version");
  if (absl::Status read = CheckVersion(dir, version); !read.ok()) return read;
  return MakesPromises(version);
}

bool MakesPromises(const std::string& version) {
  uint64_t number = 0;
  return absl::SimpleAtoi(version, &number) && number >= kPromisesSince;
}

DiskPromises::DiskPromises(const Database* db, const std::string& dir,
                           const DiskTierOptions& options, bool is_new)
    : db_(db),
      warnings_(options.warnings),
      is_new_(is_new),
      file_(db->files(), dir, options.boot.value_or(ThisBoot())) {
  book_ = file_.Begin(is_new, &damage_);
}

void DiskPromises::CompareWithContents(DiskContents* contents, const Keep& keep_held_back) {
  const PromiseBook book = std::exchange(book_, PromiseBook());
  for (std::string& line : std::exchange(damage_, {})) {
    contents->damage.push_back(std::move(line));
  }
  contents->last_number = std::max(contents->last_number, book.last_number);
  TakeReturned(book, contents);
  const auto say = [this](size_t points, absl::string_view what) {
    if (points > 0 && warnings_ != nullptr) warnings_->Say("disk", absl::StrCat(points, what));
  };
  say(contents->returned.size(),
      " restore points that were erased are in the database again: they are erased anew");
  const Present present(*contents);
  absl::flat_hash_set<uint64_t> gone;
  for (const GoneManifests& note : contents->gone) {
    gone.insert(note.manifests.begin(), note.manifests.end());
  }
  std::vector<uint64_t> erased, left, lost;
  size_t doubtful = 0;
  for (const auto& [number, promise] : book.promises) {
    const bool is_there = present.Has(number);
    const bool holds = promise.HoldsUnder(file_.boot());
    if (is_there && present.IsWhole(number)) continue;
    if (is_there) contents->unpromised.insert(number);
    if (is_there && !holds) continue;
    if (gone.contains(number)) {
      erased.push_back(number);
    } else if (holds) {
      lost.push_back(number);
      contents->lost.push_back(promise);
    } else {
      left.push_back(number);
      const bool is_doubtful =
          promise.level == PromiseLevel::kIntended && promise.boot != file_.boot();
      doubtful += is_doubtful ? 1 : 0;
    }
  }
  if (!contents->lost.empty()) contents->damage.push_back(MissedLine(contents->lost, "lost"));
  say(doubtful,
      " publishes were being made safe when the machine stopped: not acknowledged, or lost");
  std::vector<PromiseEntry> kept;
  for (const ManifestNames& manifest : contents->manifests) {
    const auto it = book.promises.find(manifest.number);
    const bool is_new = it == book.promises.end();
    if (is_new) contents->unpromised.insert(manifest.number);
    if (!present.IsWhole(manifest.number)) continue;
    if (is_new || it->second.level == PromiseLevel::kIntended) {
      kept.push_back(present.EntryOf(manifest));
    }
  }
  if (kept.size() > kMaxUnfinished && !is_new_ && book.entries > 1 && warnings_ != nullptr) {
    warnings_->Say("disk", absl::StrCat("the file of promises did not name ", kept.size(),
                                        " restore points that are there: it was cut, or not "
                                        "written to; it names them now"));
  }
  NoteForgotten(book, contents);
  keep_held_back(contents);
  file_.AppendSoon(kept);
  NoteReleased(lost, PromiseLevel::kDisk);
  NoteReleased(left, PromiseLevel::kNone);
  const PromiseFile::Place place = NoteErased(erased);
  const absl::MutexLock lock(&mu_);
  for (const GoneManifests& note : contents->gone) {
    notes_.push_back({note.key, place});
    const absl::StatusOr<uint64_t> number =
        ParseNumberKey(absl::string_view(note.key).substr(sizeof(kGonePrefix) - 1));
    if (number.ok()) next_note_ = std::max(next_note_, *number + 1);
  }
}

// An entry that rotted may have named manifests in lost/, also those that this start moves there. A
// repair tells them from later ones by their numbers, so new ones begin above.
void DiskPromises::NoteForgotten(const PromiseBook& book, DiskContents* contents) {
  uint64_t forgot_to = book.forgot_to;
  if (contents->damage.empty() && !file_.MayHaveLost()) {
    forgot_to = 0;
  } else if (is_new_ || book.forgot_to == kForgotAll) {
    uint64_t& last = contents->last_number;
    for (const ManifestNames& manifest : contents->manifests)
      last = std::max(last, manifest.number);
    for (const ObjectRecord& object : contents->objects) last = std::max(last, object.number);
    last += kNumbersApart;
    forgot_to = contents->last_number;
  }
  // Rotten entries are in `damage`: this start reports them.
  if (forgot_to == book.forgot_to && book.unsaid == 0) return;
  const PromiseEntry entry = EntryFor(PromiseKind::kForgot, PromiseLevel::kNone, forgot_to);
  file_.AppendSoon({&entry, 1});
}

absl::Status DiskPromises::Commit(const std::vector<ManifestRecord>& manifests,
                                  absl::Span<const Digest> points, bool sync, const Change& write) {
  assert(points.size() <= manifests.size());
  if (points.empty()) return sync ? Sync(write) : write();
  constexpr char kWhat[] = "write of a promise";
  if (!sync) {
    if (absl::Status written = write(); !written.ok()) return written;
    return FromRocks(
        file_.Append(EntriesFor(PromiseKind::kKept, PromiseLevel::kDisk, manifests, points)),
        kWhat);
  }
  rocksdb::IOStatus promised =
      file_.Append(EntriesFor(PromiseKind::kIntended, PromiseLevel::kNone, manifests, points));
  if (!promised.ok()) return FromRocks(promised, kWhat);
  const PromiseFile::Place place = file_.BeginSync();
  const absl::Status written = write();
  promised = file_.EndSync(place);
  if (!written.ok()) return written;
  if (!promised.ok()) return FromRocks(promised, "sync of a promise");
  promised = file_.Append(EntriesFor(PromiseKind::kKept, PromiseLevel::kSync, manifests, points));
  if (promised.ok()) file_.NoteSynced(place);
  return FromRocks(promised, kWhat);
}

absl::Status DiskPromises::Sync(const Change& write) {
  const PromiseFile::Place place = file_.BeginSync();
  const absl::Status written = write();
  const rocksdb::IOStatus promised = file_.EndSync(place);
  if (written.ok() && promised.ok()) file_.NoteSynced(place);
  return written.ok() ? FromRocks(promised, "sync of promises") : written;
}

absl::Status DiskPromises::Erase(absl::Span<const uint64_t> manifests, rocksdb::WriteBatch* batch,
                                 const Change& write) {
  std::vector<GoneNote> done = TakeNotesToDelete();
  for (const GoneNote& note : done) batch->Delete(db_->family(kMeta), note.key);
  std::string numbers, key;
  for (const uint64_t number : manifests) AppendU64(&numbers, number);
  {
    const absl::MutexLock lock(&mu_);
    key = absl::StrCat(kGonePrefix, NumberKey(next_note_++));
  }
  batch->Put(db_->family(kMeta), key, numbers);
  absl::Status written = write();
  if (!written.ok()) {
    const absl::MutexLock lock(&mu_);
    notes_.insert(notes_.end(), done.begin(), done.end());
    return written;
  }
  const PromiseFile::Place place = NoteErased(manifests);
  bool are_many = false;
  {
    const absl::MutexLock lock(&mu_);
    notes_.push_back({key, place});
    are_many = notes_.size() % kMaxNotes == 0;
  }
  if (are_many) file_.EndSync(file_.BeginSync()).PermitUncheckedError();
  return written;
}

PromiseFile::Place DiskPromises::NoteReleased(absl::Span<const uint64_t> manifests,
                                              PromiseLevel was) {
  std::vector<PromiseEntry> entries;
  for (const uint64_t number : manifests) {
    entries.push_back(EntryFor(PromiseKind::kReleased, was, number));
  }
  return file_.AppendSoon(entries);
}

PromiseFile::Place DiskPromises::NoteErased(absl::Span<const uint64_t> manifests) {
  const auto now = static_cast<uint64_t>(absl::ToUnixSeconds(absl::Now()));
  std::vector<PromiseEntry> entries;
  for (const uint64_t number : manifests) entries.push_back(ErasedEntry(number, now));
  return file_.AppendSoon(entries);
}

std::vector<DiskPromises::GoneNote> DiskPromises::TakeNotesToDelete() {
  std::vector<GoneNote> done;
  const absl::MutexLock lock(&mu_);
  const auto is_kept = [&](const GoneNote& note) { return !file_.IsSynced(note.released); };
  const auto end = std::stable_partition(notes_.begin(), notes_.end(), is_kept);
  done.assign(end, notes_.end());
  notes_.erase(end, notes_.end());
  return done;
}

}  // namespace hearth
