#include "cache_store/disk/repair/salvage.h"

#include <algorithm>
#include <filesystem>
#include <system_error>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "cache_store/disk/files/disk_tier_records.h"
#include "cache_store/disk/promises/disk_tier_promise_file.h"
#include "cache_store/disk/slice_codec.h"
#include "proto/restore_rule.h"

namespace hearth {
namespace {

namespace fs = std::filesystem;

constexpr size_t kNumberKeyBytes = 8, kSliceKeyBytes = 12;
constexpr char kManifestTagBegin[] = "MRP";
// In a record: whether it is not in lost/, and whether its block has the right checksum.
constexpr int kInDatabase = 1, kSure = 2;

// Not notes: they tell of what was done to points, some of which may be back.
bool IsMetaKey(absl::string_view key) {
  return absl::StartsWith(key, kPinPrefix) || absl::StartsWith(key, kUsePrefix) ||
         absl::StartsWith(key, kGonePrefix) || key == kVersionKey || key == kSecretCheckKey;
}

std::string NameOf(const SalvageFile& file) { return fs::path(file.path).filename().string(); }

}  // namespace

bool SalvageFile::CanBeLinked() const {
  return kind == Kind::kTable && end.is_readable && end.is_ingested && end.family == "tables" &&
         damage.places == 0 && !has_rot && slices > 0;
}

SalvagedFolder::SalvagedFolder(const std::string& dir, Progress progress)
    : progress_(std::move(progress)) {
  const RawFile promises(absl::StrCat(dir, "/", kPromisesFile));
  promises_ = ReadPromises(promises.Read(0, promises.size()));
  last_number_ = promises_.last_number;
  ListFiles(dir + "/db", false);
  ListFiles(dir + "/lost", true);
  // Files that need no copy are taken first.
  std::stable_sort(files_.begin(), files_.end(), [](const SalvageFile& a, const SalvageFile& b) {
    return a.end.is_ingested && a.end.is_readable && !(b.end.is_ingested && b.end.is_readable);
  });
}

void SalvagedFolder::ListFiles(const std::string& folder, bool was_lost) {
  std::vector<SalvageFile> found;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder, error)) {
    SalvageFile file;
    file.path = entry.path().string();
    file.was_lost = was_lost;
    std::error_code ignored;
    if (!entry.is_regular_file(ignored)) continue;
    const std::string kind = entry.path().extension().string();
    if (kind != ".sst" && kind != ".log" && kind != ".blob") continue;
    file.kind = kind == ".sst"   ? SalvageFile::Kind::kTable
                : kind == ".log" ? SalvageFile::Kind::kLog
                                 : SalvageFile::Kind::kBlobs;
    const RawFile raw(file.path);
    file.bytes = raw.size();
    if (file.kind == SalvageFile::Kind::kTable) file.end = ReadTableEnd(raw);
    found.push_back(std::move(file));
  }
  std::sort(found.begin(), found.end(),
            [](const SalvageFile& a, const SalvageFile& b) { return a.path < b.path; });
  std::move(found.begin(), found.end(), std::back_inserter(files_));
}

SalvageDamage SalvagedFolder::Visit(const SalvageFile& file, const VisitSalvaged& visit) {
  const RawFile raw(file.path);
  if (file.kind == SalvageFile::Kind::kTable) return VisitTable(raw, visit);
  if (file.kind == SalvageFile::Kind::kLog) return VisitLog(raw, visit);
  return VisitBlobs(raw, visit);
}

void SalvagedFolder::ReadRecords() {
  for (SalvageFile& file : files_) {
    const bool has_only_slices = file.kind == SalvageFile::Kind::kBlobs ||
                                 (file.end.is_readable && file.end.family == "tables");
    if (has_only_slices) continue;
    progress_(absl::StrCat("reading the records in ", NameOf(file)));
    const int trust = file.was_lost ? 0 : kInDatabase;
    Visit(file, [&](const SalvagedEntry& entry) {
      TakeRecord(entry, trust + (entry.is_sure ? kSure : 0));
    });
  }
  for (auto& [key, version] : meta_versions_) {
    if (version.is_erased) continue;
    const bool says_gone = absl::StartsWith(key, kGonePrefix);
    for (size_t at = 0; says_gone && at + 8 <= version.value.size(); at += 8) {
      erased_.insert(LittleEndianNumber(absl::string_view(version.value).substr(at, 8)));
    }
    meta_[key] = std::move(version.value);
  }
  for (const uint64_t number : erased_) {
    points_.erase(number);
    objects_.erase(number);
    unreadable_.erase(number);
  }
  for (const auto& [number, point] : points_) unreadable_.erase(number);
  for (const auto& [number, promise] : promises_.promises) {
    const bool is_there = points_.count(number) > 0 || unreadable_.contains(number);
    if (is_there) continue;
    if (erased_.contains(number)) {
      erased_promises_.push_back(number);
    } else if (promise.level >= PromiseLevel::kDisk) {
      vanished_.push_back(promise);
    }
  }
}

void SalvagedFolder::TakeRecord(const SalvagedEntry& entry, int trust) {
  if (IsMetaKey(entry.key)) return TakeMetaEntry(entry, trust);
  const absl::StatusOr<uint64_t> number = ParseNumberKey(entry.key);
  if (!number.ok()) return;
  const bool is_slice = entry.key.size() == kSliceKeyBytes;
  if (is_slice || entry.key.size() == kNumberKeyBytes) {
    if (entry.is_sure) last_number_ = std::max(last_number_, *number);
    if (!is_slice) TakeNumbered(entry, *number, trust);
    return;
  }
  if (entry.is_erase || entry.key.size() < sizeof(Digest)) return;
  absl::StatusOr<Fingerprint> fingerprint = Fingerprint::Parse(entry.value);
  if (!fingerprint.ok()) return;
  const Digest digest = fingerprint->digest();
  fingerprints_.emplace(digest, *std::move(fingerprint));
}

// Of an object or of a restore point: their numbers are of one kind.
void SalvagedFolder::TakeNumbered(const SalvagedEntry& entry, uint64_t number, int trust) {
  if (entry.is_erase) {
    if (entry.is_sure) erased_.insert(number);
    return;
  }
  if (absl::StartsWith(entry.value, kManifestTagBegin)) {
    absl::StatusOr<ManifestRecord> record = ParseManifestRecord(entry.value);
    if (!record.ok() || (entry.is_sure && record->number != number)) {
      if (entry.is_sure) unreadable_.insert(number);
      return;
    }
    SalvagedPoint& point = points_[record->number];
    point.is_in_database |= (trust & kInDatabase) != 0;
    // Written again under its number when it is to expire later.
    if (std::make_pair(trust, entry.sequence) >= std::make_pair(point.trust, point.sequence)) {
      point.trust = trust;
      point.sequence = entry.sequence;
      point.record = *std::move(record);
    }
    return;
  }
  absl::StatusOr<ObjectRecord> record = ParseObject(entry.value);
  if (!record.ok() || (entry.is_sure && record->number != number)) return;
  SalvagedObject& object = objects_[record->number];
  if (trust <= object.trust) return;
  object.trust = trust;
  object.record = *std::move(record);
}

void SalvagedFolder::TakeMetaEntry(const SalvagedEntry& entry, int trust) {
  if (!entry.is_sure) return;
  MetaVersion& version = meta_versions_[std::string(entry.key)];
  const bool is_older =
      std::make_pair(trust, entry.sequence) < std::make_pair(version.trust, version.sequence);
  if (!is_older) version = {trust, entry.sequence, entry.is_erase, std::string(entry.value)};
}

std::string SalvagedFolder::ProblemOf(const SalvagedPoint& point) const {
  const ManifestRecord& record = point.record;
  const auto found = fingerprints_.find(record.manifest.fingerprint);
  if (found == fingerprints_.end()) return "its fingerprint is lost";
  const absl::StatusOr<KvLayout> layout = found->second.Layout();
  if (!layout.ok()) return absl::StrCat("its fingerprint: ", layout.status().message());
  if (absl::Status status = ValidateManifest(record.manifest, *layout); !status.ok()) {
    return std::string(status.message());
  }
  for (size_t i = 0; i < record.objects.size(); ++i) {
    const auto it = objects_.find(record.objects[i]);
    if (it == objects_.end()) {
      return absl::StrCat("the record of object ", record.objects[i], " is lost");
    }
    const ObjectRecord& object = it->second.record;
    const ManifestObject& named = record.manifest.objects[i];
    if (!IsObjectNamed(object, named, *layout)) {
      return absl::StrCat("object ", record.objects[i], " is not the one that it names");
    }
  }
  return "";
}

std::string SalvagedFolder::TakeObjectsOf(const KeptObjects& kept, SalvagedPoint* point) {
  for (uint64_t& number : point->record.objects) {
    const SalvagedObject& object = objects_.at(number);
    const auto newer = kept.find({object.record.key, object.record.id.group});
    if (newer != kept.end()) {
      if (objects_.at(newer->second).record.slice_digests != object.record.slice_digests) {
        return absl::StrCat("object ", number, " was stored again with other bytes");
      }
      number = newer->second;
      continue;
    }
    for (size_t i = 0; i < object.places.size(); ++i) {
      if (object.places[i].file >= 0) continue;
      return absl::StrCat("layer ", object.record.layers[i], " of object ", number,
                          " is gone or damaged");
    }
  }
  return "";
}

// The newest first: a store takes one restore point of an id, and one object of a key.
void SalvagedFolder::KeepPoints() {
  absl::flat_hash_set<std::string> ids;
  KeptObjects kept;
  for (auto it = points_.rbegin(); it != points_.rend(); ++it) {
    SalvagedPoint& point = it->second;
    const std::string id = IdOf(point);
    if (ids.contains(id)) {
      point.has_left = true;
      point.problem.clear();
    }
    if (!point.IsKept()) continue;
    point.problem = TakeObjectsOf(kept, &point);
    if (!point.IsKept()) continue;
    ids.insert(id);
    for (const uint64_t number : point.record.objects) {
      SalvagedObject& object = objects_.at(number);
      object.is_kept = true;
      kept.emplace(std::make_pair(object.record.key, object.record.id.group), number);
    }
  }
}

void SalvagedFolder::CompareWithPromises(uint64_t number, SalvagedPoint* point) const {
  const bool is_named = promises_.promises.count(number) + promises_.lost.count(number) > 0;
  const bool is_all = !promises_.LacksEntries(ThisBoot()) && number > promises_.forgot_to;
  const bool is_only_lost = !is_named && !point->is_in_database;
  point->has_left = promises_.gone.contains(number) || (is_only_lost && is_all);
  point->is_unnamed = is_only_lost && !point->has_left;
}

void SalvagedFolder::FindSlices(uint64_t now_unix_s) {
  for (auto& [number, point] : points_) {
    const uint64_t expires = point.record.expires_unix_s;
    point.is_expired = expires > 0 && expires <= now_unix_s &&
                       meta_.count(absl::StrCat(kPinPrefix, NumberKey(number))) == 0;
    CompareWithPromises(number, &point);
    if (point.IsKept()) point.problem = ProblemOf(point);
    if (!point.IsKept()) continue;
    for (const uint64_t object : point.record.objects) {
      SalvagedObject& wanted = objects_.at(object);
      wanted.is_wanted = true;
      wanted.places.resize(wanted.record.layers.size());
    }
  }
  for (size_t i = 0; i < files_.size(); ++i) {
    SalvageFile& file = files_[i];
    progress_(absl::StrCat("reading ", NameOf(file), ", ", i + 1, " of ", files_.size(), " files"));
    const int index = static_cast<int>(i);
    file.damage =
        Visit(file, [this, index](const SalvagedEntry& entry) { TakeSlice(entry, index); });
  }
  KeepPoints();
  for (const auto& [number, object] : objects_) {
    if (!object.is_kept) continue;
    for (const SalvagedObject::Place& place : object.places) ++files_[place.file].slices;
  }
}

void SalvagedFolder::TakeSlice(const SalvagedEntry& entry, int file) {
  if (entry.key.size() != kSliceKeyBytes || entry.is_erase || IsMetaKey(entry.key)) return;
  const uint64_t number = ParseNumberKey(entry.key).value();
  if (entry.is_sure) last_number_ = std::max(last_number_, number);
  const auto it = objects_.find(number);
  if (it == objects_.end() || !it->second.is_wanted) return;
  SalvagedObject& object = it->second;
  const std::optional<size_t> slice = SliceOf(object.record, entry.key);
  if (!slice.has_value()) return;
  SalvagedObject::Place& place = object.places[*slice];
  if (!IsSlice(object.record, *slice, entry.value)) {
    files_[file].has_rot = true;
  } else if (place.file < 0) {
    place = {file, entry.value.size()};
  }
}

std::optional<size_t> SalvagedFolder::SliceOf(const ObjectRecord& object, absl::string_view key) {
  if (key.size() != kSliceKeyBytes || IsMetaKey(key)) return std::nullopt;
  if (ParseNumberKey(key).value() != object.number) return std::nullopt;
  uint32_t layer = 0;
  for (size_t i = kNumberKeyBytes; i < key.size(); ++i) {
    layer = layer << 8 | static_cast<uint8_t>(key[i]);
  }
  const auto found = std::find(object.layers.begin(), object.layers.end(), layer);
  if (found == object.layers.end()) return std::nullopt;
  return static_cast<size_t>(found - object.layers.begin());
}

bool SalvagedFolder::IsSlice(const ObjectRecord& object, size_t slice, absl::string_view stored) {
  const absl::StatusOr<SliceView> whole = AsSlice(ViewOf(stored), object.slice_bytes);
  return whole.ok() && whole->bytes.size() == object.slice_bytes &&
         SliceDigest(whole->bytes.data(), whole->bytes.size()) == object.slice_digests[slice];
}

std::string SalvagedFolder::IdOf(const SalvagedPoint& point) const {
  if (point.record.objects.empty()) return "";
  const auto last = objects_.find(point.record.objects.back());
  return last == objects_.end() ? "" : DigestHex(last->second.record.key);
}

}  // namespace hearth
