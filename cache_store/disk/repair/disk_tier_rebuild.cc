#include "cache_store/disk/repair/disk_tier_rebuild.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <optional>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "cache_store/disk/disk_tier_load.h"
#include "cache_store/disk/slice_codec.h"

namespace hearth {
namespace {

constexpr uint64_t kTableBytes = uint64_t{64} << 20;  // of a table that is written anew
constexpr uint64_t kRecordBatchBytes = uint64_t{4} << 20;
// Smaller slices go through the log, as a store's do.
constexpr uint64_t kLeastInTable = 4096;

bool IsLinked(const SalvageFile& file, bool can_link) { return can_link && file.CanBeLinked(); }

}  // namespace

RebuildBytes BytesToRebuild(const SalvagedFolder& salvage, bool can_link) {
  RebuildBytes bytes;
  for (const auto& [number, object] : salvage.objects()) {
    if (!object.is_kept) continue;
    for (const SalvagedObject::Place& place : object.places) {
      const bool is_linked = IsLinked(salvage.files()[place.file], can_link);
      (is_linked ? bytes.linked : bytes.copied) += place.bytes;
    }
    bytes.records += SerializeObject(object.record).size();
  }
  for (const auto& [number, point] : salvage.points()) {
    if (point.IsKept()) bytes.records += SerializeManifestRecord(point.record).size();
  }
  return bytes;
}

Rebuild::Rebuild(const SalvagedFolder& salvage, const Database& db, const std::string& dir,
                 bool can_link, SalvagedFolder::Progress progress)
    : salvage_(salvage),
      db_(db),
      tables_(&db, dir),
      can_link_(can_link),
      progress_(std::move(progress)) {}

absl::Status Rebuild::Run(const std::string& secret_check) {
  const std::vector<SalvageFile>& files = salvage_.files();
  for (size_t i = 0; i < files.size(); ++i) {
    const SalvageFile& file = files[i];
    if (file.slices == 0) continue;
    const std::string name = std::filesystem::path(file.path).filename().string();
    if (IsLinked(file, can_link_)) {
      progress_(absl::StrCat("taking over ", name));
      const std::string path = tables_.NewPath();
      if (::link(file.path.c_str(), path.c_str()) != 0) {
        return absl::UnavailableError(absl::StrCat(path, ": ", std::strerror(errno)));
      }
      const rocksdb::Status taken = tables_.TakeOver(path);
      if (!taken.ok()) return FromRocks(taken, absl::StrCat("taking over ", name));
      continue;
    }
    progress_(absl::StrCat("copying from ", name));
    if (absl::Status copied = CopyFrom(file, static_cast<int>(i)); !copied.ok()) return copied;
  }
  progress_("writing the records");
  if (absl::Status written = FlushSlices(); !written.ok()) return written;
  return WriteRecords(secret_check);
}

absl::Status Rebuild::CopyFrom(const SalvageFile& file, int index) {
  absl::Status status;
  absl::flat_hash_set<std::string> copied;
  SalvagedFolder::Visit(file, [&](const SalvagedEntry& entry) {
    if (!status.ok() || entry.is_erase) return;
    const absl::StatusOr<uint64_t> number = ParseNumberKey(entry.key);
    if (!number.ok()) return;
    const auto it = salvage_.objects().find(*number);
    if (it == salvage_.objects().end() || !it->second.is_kept) return;
    const std::optional<size_t> slice = SalvagedFolder::SliceOf(it->second.record, entry.key);
    if (!slice.has_value() || it->second.places[*slice].file != index) return;
    if (!SalvagedFolder::IsSlice(it->second.record, *slice, entry.value)) return;
    if (copied.insert(std::string(entry.key)).second) status = CopySlice(entry.key, entry.value);
  });
  return status;
}

absl::Status Rebuild::CopySlice(absl::string_view key, absl::string_view stored) {
  if (stored.size() < kLeastInTable) return Put(kSlices, key, stored);
  pending_.push_back({std::string(key), std::string(stored)});
  pending_bytes_ += stored.size();
  return pending_bytes_ < kTableBytes ? absl::OkStatus() : FlushSlices();
}

absl::Status Rebuild::FlushSlices() {
  std::vector<SliceWrite> writes;
  for (const Pending& slice : pending_) {
    const uint64_t number = ParseNumberKey(slice.key).value();
    const ObjectRecord& object = salvage_.objects().at(number).record;
    const uint32_t layer = object.layers[SalvagedFolder::SliceOf(object, slice.key).value()];
    writes.push_back({{number, layer, object.slice_bytes, 0}, ViewOf(slice.value)});
  }
  absl::Status status;
  if (pending_bytes_ >= DiskTierOptions::kMinTableBytes) {
    status = FromRocks(tables_.Write(writes), "write of a table");
  } else {
    for (const Pending& slice : pending_) {
      if (status.ok()) status = Put(kSlices, slice.key, slice.value);
    }
  }
  pending_.clear();
  pending_bytes_ = 0;
  return status;
}

absl::Status Rebuild::Put(Family family, absl::string_view key, absl::string_view value) {
  batch_.Put(db_.family(family), ToSlice(key), ToSlice(value)).PermitUncheckedError();
  return batch_.GetDataSize() < kRecordBatchBytes ? absl::OkStatus() : WriteBatch(false);
}

absl::Status Rebuild::WriteBatch(bool sync) {
  rocksdb::WriteOptions options;
  options.sync = sync;
  const rocksdb::Status status = db_->Write(options, &batch_);
  batch_.Clear();
  return FromRocks(status, "write of records");
}

absl::Status Rebuild::WriteRecords(const std::string& secret_check) {
  absl::Status status;
  const auto put = [&](Family family, absl::string_view key, absl::string_view value) {
    if (status.ok()) status = Put(family, key, value);
  };
  uint64_t last = 0;
  for (const auto& [number, object] : salvage_.objects()) {
    if (!object.is_kept) continue;
    last = std::max(last, number);
    put(kObjects, NumberKey(number), SerializeObject(object.record));
  }
  for (const auto& [number, point] : salvage_.points()) {
    if (!point.IsKept()) continue;
    last = std::max(last, number);
    const FingerprintRecord record{salvage_.FingerprintOf(point), point.record.tenant};
    put(kFingerprints, FingerprintKey(record), record.fingerprint.Serialize());
    put(kManifests, NumberKey(number), SerializeManifestRecord(point.record));
    for (const std::string& key : {PinKey(number), UseKey(number)}) {
      const auto kept = salvage_.meta().find(key);
      if (kept != salvage_.meta().end()) put(kMeta, key, kept->second);
    }
  }
  uint64_t next_note = 0;
  for (const auto& [key, value] : salvage_.meta()) {
    if (!absl::StartsWith(key, kGonePrefix)) continue;
    put(kMeta, key, value);
    const auto number = ParseNumberKey(absl::string_view(key).substr(sizeof(kGonePrefix) - 1));
    next_note = std::max(next_note, number.value_or(0) + 1);
  }
  // A point left out because it expired, or because a newer one has its id, is not lost.
  std::string left;
  for (const auto& [number, point] : salvage_.points()) {
    if (point.is_expired || point.has_left) AppendU64(&left, number);
  }
  for (const uint64_t number : salvage_.erased_promises()) AppendU64(&left, number);
  if (!left.empty()) put(kMeta, absl::StrCat(kGonePrefix, NumberKey(next_note)), left);
  if (!secret_check.empty()) {  // else the next start writes both
    const auto version = salvage_.meta().find(kVersionKey);
    put(kMeta, kVersionKey,
        version != salvage_.meta().end() ? version->second
                                         : absl::StrCat(DiskTier::kFormatVersion));
    put(kMeta, kSecretCheckKey, secret_check);
  }
  // Numbers only grow, though what went by the highest may be lost: an empty slice of no object,
  // whose key is looked at when the folder is opened.
  if (salvage_.last_number() > last) {
    put(kSlices, SliceKey(salvage_.last_number(), ~uint32_t{0}), "");
  }
  if (status.ok()) status = WriteBatch(true);
  return status;
}

}  // namespace hearth
