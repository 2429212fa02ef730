#include "cache_store/disk_tier_load.h"

#include <rocksdb/metadata.h>

#include <algorithm>
#include <functional>
#include <memory>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace hearth {
namespace {

using Visit = std::function<void(absl::string_view key, absl::string_view value)>;

absl::Status ForEach(const Database& db, Family family, const Visit& visit) {
  rocksdb::ReadOptions options = RecordReadOptions();
  options.readahead_size = size_t{2} << 20;
  std::unique_ptr<rocksdb::Iterator> it(db->NewIterator(options, db.family(family)));
  for (it->SeekToFirst(); it->Valid(); it->Next()) visit(ToView(it->key()), ToView(it->value()));
  return FromRocks(it->status(), absl::StrCat("read of ", kFamilyNames[family]));
}

// Of the keys of slices, erased ones included. Tables are on stable storage before the records of
// their objects are: a crash of the machine may leave them alone.
uint64_t LastNumber(const Database& db, Family family) {
  if (db.family(family) == nullptr) return 0;
  rocksdb::ColumnFamilyMetaData files;
  db->GetColumnFamilyMetaData(db.family(family), &files);
  uint64_t last = 0;
  const auto take = [&last](absl::string_view key) {
    const absl::StatusOr<uint64_t> number = ParseNumberKey(key);
    if (number.ok()) last = std::max(last, *number);
  };
  for (const rocksdb::LevelMetaData& level : files.levels) {
    for (const rocksdb::SstFileMetaData& file : level.files) take(file.largestkey);
  }
  const std::unique_ptr<rocksdb::Iterator> it(
      db->NewIterator(RecordReadOptions(), db.family(family)));
  it->SeekToLast();
  if (it->Valid()) take(ToView(it->key()));
  return last;
}

}  // namespace

std::string FingerprintKey(const FingerprintRecord& record) {
  const Digest& digest = record.fingerprint.digest();
  return absl::StrCat(
      absl::string_view(reinterpret_cast<const char*>(digest.data()), digest.size()),
      record.tenant);
}

std::string PinKey(uint64_t manifest) { return absl::StrCat(kPinPrefix, NumberKey(manifest)); }
std::string UseKey(uint64_t manifest) { return absl::StrCat(kUsePrefix, NumberKey(manifest)); }

absl::Status CheckVersion(const std::string& dir, const std::string& version) {
  uint64_t number = 0;
  if (!absl::SimpleAtoi(version, &number) || number > DiskTier::kFormatVersion) {
    return absl::FailedPreconditionError(absl::StrCat(
        "data folder ", dir, " has format version ", version, "; this program reads ",
        DiskTier::kFormatVersion, " and older: use the newer program, or another folder"));
  }
  return absl::OkStatus();
}

absl::StatusOr<DiskContents> LoadContents(const Database& db) {
  DiskContents contents;
  contents.last_number = std::max(LastNumber(db, kTables), LastNumber(db, kSlices));
  absl::Status status = ForEach(db, kObjects, [&](absl::string_view key, absl::string_view value) {
    const absl::StatusOr<uint64_t> number = ParseNumberKey(key);
    if (!number.ok()) return;
    absl::StatusOr<ObjectRecord> object = ParseObject(value);
    if (object.ok() && object->number == *number) {
      contents.objects.push_back(*std::move(object));
    } else {
      contents.unreadable_objects.push_back(*number);
    }
  });
  status.Update(ForEach(db, kManifests, [&](absl::string_view key, absl::string_view value) {
    const absl::StatusOr<uint64_t> number = ParseNumberKey(key);
    if (number.ok()) contents.manifests.push_back(PeekManifestRecord(*number, value));
  }));
  status.Update(ForEach(db, kFingerprints, [&](absl::string_view key, absl::string_view value) {
    absl::StatusOr<Fingerprint> fingerprint = Fingerprint::Parse(value);
    const size_t digest_bytes = sizeof(Digest);
    if (!fingerprint.ok() || key.size() < digest_bytes) return;
    FingerprintRecord record{*std::move(fingerprint), std::string(key.substr(digest_bytes))};
    if (FingerprintKey(record) == key) contents.fingerprints.push_back(std::move(record));
  }));
  status.Update(ForEach(db, kMeta, [&](absl::string_view key, absl::string_view value) {
    if (absl::StartsWith(key, kUsePrefix)) {
      const absl::StatusOr<uint64_t> used = ParseNumberKey(key.substr(sizeof(kUsePrefix) - 1));
      uint64_t unix_s = 0;
      if (used.ok() && absl::SimpleAtoi(value, &unix_s)) contents.uses.emplace_back(*used, unix_s);
      return;
    }
    if (!absl::StartsWith(key, kPinPrefix)) return;
    const absl::StatusOr<uint64_t> number = ParseNumberKey(key.substr(sizeof(kPinPrefix) - 1));
    if (number.ok()) contents.pinned.push_back(*number);
  }));
  if (!status.ok()) {
    return absl::DataLossError(absl::StrCat("the data folder cannot be read: ", status.message()));
  }
  return contents;
}

absl::StatusOr<std::vector<std::optional<ManifestRecord>>> LoadManifests(
    const Database& db, absl::Span<const uint64_t> numbers) {
  std::vector<std::optional<ManifestRecord>> records;
  // An iterator, not reads: numbers that lie together are mostly in one block.
  const std::unique_ptr<rocksdb::Iterator> it(
      db->NewIterator(RecordReadOptions(), db.family(kManifests)));
  for (const uint64_t number : numbers) {
    std::optional<ManifestRecord>& read = records.emplace_back();
    const std::string key = NumberKey(number);
    it->Seek(key);
    absl::Status status = FromRocks(it->status(), "read of manifests");
    if (!status.ok() && !absl::IsDataLoss(status)) return status;
    if (!status.ok() || !it->Valid() || ToView(it->key()) != key) continue;
    absl::StatusOr<ManifestRecord> record = ParseManifestRecord(ToView(it->value()));
    if (record.ok() && record->number == number) read = *std::move(record);
  }
  return records;
}

}  // namespace hearth
