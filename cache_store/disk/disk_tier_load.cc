#include "cache_store/disk/disk_tier_load.h"

#include <rocksdb/metadata.h>

#include <algorithm>
#include <cassert>
#include <functional>
#include <limits>
#include <memory>
#include <set>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "cache_store/disk/disk_tier_recovery.h"

namespace hearth {
namespace {

using Visit = std::function<void(absl::string_view key, absl::string_view value)>;

// The number of a manifest exceeds the numbers of its new objects by at most this.
constexpr uint64_t kBehind = 4096;

// Range of object numbers on disk, including slices without a record and erased entries: a table is
// on stable storage before its objects' records, so a machine crash may lose the records.
struct Numbers {
  uint64_t first = std::numeric_limits<uint64_t>::max(), last = 0;
};

Numbers NumbersIn(const Database& db) {
  Numbers numbers;
  const auto take = [&numbers](absl::string_view key) {
    const absl::StatusOr<uint64_t> number = ParseNumberKey(key);
    if (!number.ok()) return;
    numbers.first = std::min(numbers.first, *number);
    numbers.last = std::max(numbers.last, *number);
  };
  for (const Family family : {kTables, kSlices, kObjects}) {
    rocksdb::ColumnFamilyMetaData files;
    db->GetColumnFamilyMetaData(db.family(family), &files);
    for (const rocksdb::LevelMetaData& level : files.levels) {
      for (const rocksdb::SstFileMetaData& file : level.files) {
        take(file.smallestkey);
        take(file.largestkey);
      }
    }
    // Read only the memtables.
    const std::unique_ptr<rocksdb::Iterator> it(
        db->NewIterator(VerifiedReads(), db.family(family)));
    it->SeekToFirst();
    if (it->Valid()) take(ToView(it->key()));
    it->SeekToLast();
    if (it->Valid()) take(ToView(it->key()));
  }
  return numbers;
}

// Visits every record of the family, except records in damaged blocks; adds a description of each
// damage to `damage`. After the first damaged block, numbered records are read one by one, because
// some of them may have been written again in another block.
absl::Status ForEach(const Database& db, Family family, const Numbers& numbers, const Visit& visit,
                     std::vector<std::string>* damage) {
  rocksdb::ReadOptions options = VerifiedReads();
  options.readahead_size = size_t{2} << 20;
  const bool is_numbered = family == kObjects || family == kManifests;
  uint64_t next = numbers.first;
  const std::unique_ptr<rocksdb::Iterator> it(db->NewIterator(options, db.family(family)));
  for (it->SeekToFirst(); it->Valid(); it->Next()) {
    visit(ToView(it->key()), ToView(it->value()));
    if (is_numbered) next = ParseNumberKey(ToView(it->key())).value_or(next - 1) + 1;
  }
  if (it->status().ok()) return absl::OkStatus();
  if (!it->status().IsCorruption()) {
    return FromRocks(it->status(), absl::StrCat("reading ", kFamilyNames[family]));
  }
  damage->push_back(absl::StrCat("records of ", kFamilyNames[family],
                                 " are damaged: ", it->status().ToString(),
                                 is_numbered ? absl::StrCat(", from number ", next, " on") : ""));
  for (; is_numbered && next <= numbers.last + kBehind; ++next) {
    std::string value;
    const std::string key = NumberKey(next);
    if (db->Get(VerifiedReads(), db.family(family), key, &value).ok()) visit(key, value);
  }
  return absl::OkStatus();
}

std::string KeyOfFingerprint(const Digest& digest, absl::string_view tenant) {
  return absl::StrCat(
      absl::string_view(reinterpret_cast<const char*>(digest.data()), digest.size()), tenant);
}

void TakeFingerprint(absl::string_view key, absl::string_view value, DiskContents* contents) {
  absl::StatusOr<Fingerprint> fingerprint = Fingerprint::Parse(value);
  if (!fingerprint.ok() || key.size() < sizeof(Digest)) return;
  FingerprintRecord record{*std::move(fingerprint), std::string(key.substr(sizeof(Digest)))};
  if (FingerprintKey(record) == key) contents->fingerprints.push_back(std::move(record));
}

// After damage, reads by key each fingerprint that a manifest uses: every publish writes its
// fingerprint again, so a copy outside the damaged block may exist.
absl::Status FindFingerprints(const Database& db, DiskContents* contents) {
  std::set<std::string> tried;
  for (const FingerprintRecord& record : contents->fingerprints) {
    tried.insert(FingerprintKey(record));
  }
  for (const uint64_t number : contents->manifests) {
    const auto read = LoadManifests(db, {number});
    if (!read.ok()) return read.status();
    if (!(*read)[0].has_value()) continue;
    const ManifestRecord& record = *(*read)[0];
    const std::string key = KeyOfFingerprint(record.manifest.fingerprint, record.tenant);
    std::string value;
    if (!tried.insert(key).second) continue;
    if (db->Get(VerifiedReads(), db.family(kFingerprints), key, &value).ok()) {
      TakeFingerprint(key, value, contents);
    }
  }
  return absl::OkStatus();
}

void TakeMeta(absl::string_view key, absl::string_view value, DiskContents* contents) {
  if (absl::ConsumePrefix(&key, kUsePrefix)) {
    const absl::StatusOr<uint64_t> used = ParseNumberKey(key);
    uint64_t unix_s = 0;
    if (used.ok() && absl::SimpleAtoi(value, &unix_s)) contents->uses.emplace_back(*used, unix_s);
  } else if (absl::ConsumePrefix(&key, kPinPrefix)) {
    const absl::StatusOr<uint64_t> number = ParseNumberKey(key);
    if (number.ok()) contents->pinned.push_back(*number);
  }
}

absl::StatusOr<DiskContents> ReadContents(const Database& db) {
  DiskContents contents;
  contents.damage = db.found();
  const Numbers numbers = NumbersIn(db);
  contents.last_number = numbers.last;
  absl::Status status;
  const auto each = [&](Family family, const Visit& visit) {
    status.Update(ForEach(db, family, numbers, visit, &contents.damage));
  };
  each(kObjects, [&](absl::string_view key, absl::string_view value) {
    const absl::StatusOr<uint64_t> number = ParseNumberKey(key);
    if (!number.ok()) return;
    absl::StatusOr<ObjectRecord> object = ParseObject(value);
    if (object.ok() && object->number == *number) {
      contents.objects.push_back(*std::move(object));
    } else {
      contents.unreadable_objects.push_back(*number);
    }
  });
  each(kManifests, [&](absl::string_view key, absl::string_view) {
    const absl::StatusOr<uint64_t> number = ParseNumberKey(key);
    if (number.ok()) contents.manifests.push_back(*number);
  });
  const size_t before = contents.damage.size();
  each(kFingerprints, [&](absl::string_view key, absl::string_view value) {
    TakeFingerprint(key, value, &contents);
  });
  if (contents.damage.size() > before) status.Update(FindFingerprints(db, &contents));
  each(kMeta,
       [&](absl::string_view key, absl::string_view value) { TakeMeta(key, value, &contents); });
  if (!status.ok()) {
    return absl::Status(status.code(),
                        absl::StrCat("the data folder cannot be read: ", status.message()));
  }
  return contents;
}

// Returns a description of all problems of the records; empty: no problems.
std::string Wrong(const Database& db, const DiskContents& contents) {
  if (contents.damage.size() == db.found().size() && contents.unreadable_objects.empty()) return "";
  return absl::StrCat(absl::StrJoin(contents.damage, "; "), "; ", contents.objects.size(),
                      " objects, unreadable: ", absl::StrJoin(contents.unreadable_objects, " "),
                      "; ", contents.manifests.size(), " restore points, ",
                      contents.fingerprints.size(), " fingerprints");
}

}  // namespace

std::string FingerprintKey(const FingerprintRecord& record) {
  return KeyOfFingerprint(record.fingerprint.digest(), record.tenant);
}

std::string PinKey(uint64_t manifest) { return absl::StrCat(kPinPrefix, NumberKey(manifest)); }
std::string UseKey(uint64_t manifest) { return absl::StrCat(kUsePrefix, NumberKey(manifest)); }

absl::Status CheckVersion(const std::string& dir, const std::string& version) {
  uint64_t number = 0;
  if (!absl::SimpleAtoi(version, &number) || number != DiskTier::kFormatVersion) {
    return absl::FailedPreconditionError(
        absl::StrCat("data folder ", dir, " has format version ", version, "; this program reads ",
                     DiskTier::kFormatVersion, " only; delete the database (rm -r ",
                     DatabasePath(dir), "), or use the program that wrote it"));
  }
  return absl::OkStatus();
}

// If the block that contains these values is damaged, writes them again. A wrong secret does no
// harm: nothing in the folder would be found.
absl::Status CheckMeta(const Database& db, const std::string& dir, const std::string& secret_check,
                       DamageConfirmation confirmation) {
  std::string version, check;
  const rocksdb::ReadOptions reads = VerifiedReads();
  rocksdb::Status status;
  do {
    status = db->Get(reads, db.family(kMeta), kVersionKey, &version);
    if (status.ok()) status = db->Get(reads, db.family(kMeta), kSecretCheckKey, &check);
  } while (status.IsCorruption() && confirmation.ReadAgain(status.ToString()));
  if (status.IsCorruption() && !confirmation.confirmed())
    return ReadsDifferently(dir, status.ToString());
  if (!version.empty()) {
    if (absl::Status checked = CheckVersion(dir, version); !checked.ok()) return checked;
  }
  if (status.IsNotFound() || status.IsCorruption()) {
    rocksdb::WriteBatch batch;
    batch.Put(db.family(kMeta), kVersionKey, absl::StrCat(DiskTier::kFormatVersion));
    batch.Put(db.family(kMeta), kSecretCheckKey, secret_check);
    rocksdb::WriteOptions options;
    options.sync = true;
    return FromRocks(db->Write(options, &batch), "writing the version");
  }
  if (!status.ok()) return FromRocks(status, "reading the version");
  if (check == secret_check) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("data folder ", dir,
                   " was written with another secret; use that secret, or an empty folder"));
}

absl::StatusOr<DiskContents> LoadContents(const Database& db, const PointCount::Noted& noted,
                                          BootId boot, DamageConfirmation* confirmation) {
  absl::StatusOr<DiskContents> contents;
  std::string wrong, number;
  rocksdb::Status read;
  do {
    contents = ReadContents(db);
    if (!contents.ok()) return contents;
    wrong = Wrong(db, *contents);
    read = db->Get(VerifiedReads(), db.family(kManifests), kDropsKey, &number);
    if (read.IsCorruption()) {
      absl::StrAppend(&wrong, "; reading the number of the last drop: ", read.ToString());
    }
  } while (confirmation != nullptr && !wrong.empty() && confirmation->ReadAgain(wrong));
  if (confirmation != nullptr && !wrong.empty() && !confirmation->confirmed())
    return ReadsDifferently(confirmation->dir(), wrong);
  if (!read.ok() && !read.IsNotFound() && !read.IsCorruption()) {
    return FromRocks(read, "reading the number of the last drop");
  }
  if (!absl::SimpleAtoi(number, &contents->drops)) contents->drops = 0;
  // If the block of the drop number is damaged, the drop number is unknown.
  const bool is_known = !read.IsCorruption() || !db.found().empty();
  if (is_known && contents->drops < noted.drops && !contents->manifests.empty()) {
    return absl::DataLossError(
        "the database is older than the last acknowledged drop of restore points");
  }
  FindLostTables(db, &*contents);
  const uint64_t found = contents->manifests.size();
  const uint64_t lost = noted.points - std::min(noted.points, found);
  // If the machine was restarted since the count was written, unsynced data may be missing. A
  // failed write can also leave a torn log, but then nothing acknowledged is missing.
  const bool is_same_boot = noted.boot == boot;
  if (is_same_boot && lost > 0) {
    contents->damage.insert(contents->damage.end(), db.cut_logs().begin(), db.cut_logs().end());
  }
  contents->may_lack = !is_same_boot && contents->damage.empty();
  if (!contents->may_lack) contents->lost_points = lost;
  if (contents->lost_points > 0) {
    contents->damage.push_back(
        absl::StrCat(contents->lost_points, " of ", noted.points, " restore points are lost"));
  }
  return contents;
}

absl::StatusOr<std::vector<std::optional<ManifestRecord>>> LoadManifests(
    const Database& db, absl::Span<const uint64_t> numbers) {
  std::vector<std::optional<ManifestRecord>> records;
  // Use an iterator instead of point reads, because the next number is usually the next key.
  const std::unique_ptr<rocksdb::Iterator> it(
      db->NewIterator(VerifiedReads(), db.family(kManifests)));
  for (const uint64_t number : numbers) {
    std::optional<ManifestRecord>& read = records.emplace_back();
    const std::string key = NumberKey(number);
    if (it->Valid()) it->Next();
    if (!it->Valid() || ToView(it->key()) != key) it->Seek(key);
    absl::Status status = FromRocks(it->status(), "reading manifests");
    if (!status.ok() && !absl::IsDataLoss(status)) return status;
    std::string again;
    absl::string_view value;
    if (!status.ok()) {
      // Read the manifest by its key: it may have been written again outside the damaged block.
      status = FromRocks(db->Get(VerifiedReads(), db.family(kManifests), key, &again),
                         "reading a manifest");
      if (absl::IsDataLoss(status) || absl::IsNotFound(status)) continue;
      if (!status.ok()) return status;
      value = again;
    } else if (it->Valid() && ToView(it->key()) == key) {
      value = ToView(it->value());
    } else {
      continue;
    }
    absl::StatusOr<ManifestRecord> record = ParseManifestRecord(value);
    if (record.ok() && record->number == number) read = *std::move(record);
  }
  assert(records.size() == numbers.size());
  return records;
}

}  // namespace hearth
