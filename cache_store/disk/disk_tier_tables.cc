#include "cache_store/disk/disk_tier_tables.h"

#include <rocksdb/convenience.h>
#include <rocksdb/metadata.h>
#include <rocksdb/sst_file_reader.h>
#include <rocksdb/sst_file_writer.h>
#include <sys/stat.h>

#include <algorithm>
#include <cassert>
#include <filesystem>
#include <numeric>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "cache_store/base/regular_file.h"
#include "cache_store/disk/stored_records.h"

namespace hearth {
namespace {

std::string TableFolder(const std::string& dir) { return absl::StrCat(dir, kTablesFolder); }

// A table is rewritten only if at least 1/kWorthwhile of its bytes belong to erased slices. Keys
// and indexes count as live.
constexpr uint64_t kWorthwhile = 64;

// Bytes per write of a table file: four times the largest request of most block devices.
constexpr size_t kFileBufferBytes = size_t{2} << 20;

struct Table {
  Family family;
  std::string first, last;  // first and last key of the table
  std::string name;
  bool is_flushed = false;  // the table is in level 0, written by a flush
  uint64_t bytes = 0;
  uint64_t live_bytes = 0;
  uint64_t dead_bytes() const { return bytes - std::min(bytes, live_bytes); }
};

// Adds to the table's live bytes the slices of all objects of its family that have a record and a
// number in [first, last].
absl::Status CountLive(const Database& db, Table* table) {
  assert(table->live_bytes == 0);
  const std::string end = table->last.substr(0, NumberKey(0).size());
  const std::unique_ptr<rocksdb::Iterator> it(
      db->NewIterator(rocksdb::ReadOptions(), db.family(kObjects)));
  for (it->Seek(table->first.substr(0, end.size())); it->Valid() && it->key().compare(end) <= 0;
       it->Next()) {
    const absl::StatusOr<ObjectRecord> object = ParseObject(ToView(it->value()));
    // An object whose record cannot be read counts as live, until it is erased by number.
    if (object.ok() && object->in_table != (table->family == kTables)) continue;
    table->live_bytes += object.ok() ? object->stored_bytes() : 1;
  }
  return FromRocks(it->status(), "reading object records");
}

absl::StatusOr<std::vector<Table>> ListTables(const Database& db, Family family) {
  rocksdb::ColumnFamilyMetaData files;
  db->GetColumnFamilyMetaData(db.family(family), &files);
  std::vector<Table> tables;
  for (const rocksdb::LevelMetaData& level : files.levels) {
    for (const rocksdb::SstFileMetaData& file : level.files) {
      tables.push_back(
          {family, file.smallestkey, file.largestkey, file.name, level.level == 0, file.size});
      if (absl::Status status = CountLive(db, &tables.back()); !status.ok()) return status;
    }
  }
  return tables;
}

uint64_t BytesOf(const std::vector<Table>& tables) {
  uint64_t bytes = 0;
  for (const Table& table : tables) bytes += table.bytes;
  return bytes;
}

// Returns the tables without live bytes whose key range overlaps no table with live bytes, because
// dropping a range deletes all tables in it. `tables` are ordered by first key.
std::vector<const Table*> Droppable(const std::vector<Table>& tables) {
  assert(std::is_sorted(tables.begin(), tables.end(),
                        [](const Table& a, const Table& b) { return a.first < b.first; }));
  std::vector<const Table*> droppable;
  for (size_t i = 0; i < tables.size(); ++i) {
    if (tables[i].live_bytes > 0) continue;
    bool alone = true;
    for (size_t j = i + 1; j < tables.size() && tables[j].first <= tables[i].last; ++j) {
      alone = alone && tables[j].live_bytes == 0;
    }
    if (alone) droppable.push_back(&tables[i]);
  }
  return droppable;
}

// Drops tables without live bytes from level 0. RocksDB cannot drop ranges there: a compaction
// moves the tables to another level, for which it needs space. Without space, deletes the oldest
// files of level 0, which RocksDB allows if no other level has files.
absl::Status DropFlushed(const Database& db, const std::vector<Table>& tables) {
  for (const Table& table : tables) {
    if (!table.is_flushed || table.live_bytes > 0) continue;
    const rocksdb::Status status = db->DeleteFile(table.name);
    if (status.IsInvalidArgument()) break;
    if (!status.ok()) return FromRocks(status, "deleting an unused table");
  }
  return absl::OkStatus();
}

absl::Status DropDead(const Database& db, Family family, bool drops_flushed) {
  absl::StatusOr<std::vector<Table>> tables = ListTables(db, family);
  if (!tables.ok()) return tables.status();
  std::sort(tables->begin(), tables->end(),
            [](const Table& a, const Table& b) { return a.first < b.first; });
  if (drops_flushed) {
    if (absl::Status status = DropFlushed(db, *tables); !status.ok()) return status;
  }
  std::vector<rocksdb::Slice> ends;
  std::vector<rocksdb::RangePtr> ranges;
  const std::vector<const Table*> dead = Droppable(*tables);
  ends.reserve(2 * dead.size());  // `ranges` has pointers into `ends`
  for (const Table* table : dead) {
    ends.emplace_back(table->first);
    ends.emplace_back(table->last);
    ranges.emplace_back(&ends[ends.size() - 2], &ends.back());
  }
  if (ranges.empty()) return absl::OkStatus();
  const rocksdb::Status status = rocksdb::DeleteFilesInRanges(
      db.get(), db.family(family), ranges.data(), ranges.size(), /*include_end=*/true);
  return FromRocks(status, "deleting unused tables");
}

// Checks that the first and the last block of a new table can be read (for the reason see
// disk_tier_files.h).
rocksdb::Status CheckEnds(const rocksdb::Options& options, const std::string& path) {
  rocksdb::SstFileReader reader(options);
  rocksdb::Status status = reader.Open(path);
  if (!status.ok()) return status;
  // bypass the block cache, because slices from it must not outlive it
  rocksdb::ReadOptions past_the_cache;
  past_the_cache.fill_cache = false;
  const std::unique_ptr<rocksdb::Iterator> it(reader.NewIterator(past_the_cache));
  it->SeekToFirst();
  if (it->Valid()) it->SeekToLast();
  if (it->Valid()) return it->status();
  return it->status().ok() ? rocksdb::Status::Corruption("a new table was written without entries")
                           : it->status();
}

}  // namespace

absl::Status SliceTables::Prepare(const std::string& dir) {
  std::error_code error;
  // Do not delete the folder itself: a full disk may have no space for a new one.
  ::mkdir(TableFolder(dir).c_str(), kPrivateFolder);
  for (const auto& left : std::filesystem::directory_iterator(TableFolder(dir), error)) {
    std::filesystem::remove_all(left.path(), error);
  }
  if (!error) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat(TableFolder(dir), ": ", error.message()));
}

rocksdb::Status SliceTables::Make(absl::Span<const SliceWrite> slices, std::string* path) {
  assert(!slices.empty() && db_->reserve() != nullptr);
  std::vector<std::pair<std::string, const SliceWrite*>> ordered;
  for (const SliceWrite& write : slices) {
    ordered.emplace_back(SliceKey(write.slice.object, write.slice.layer), &write);
  }
  std::sort(ordered.begin(), ordered.end());
  // RocksDB's table writer refuses a key that does not follow the previous one.
  for (size_t i = 1; i < ordered.size(); ++i) assert(ordered[i - 1].first < ordered[i].first);
  *path = absl::StrCat(TableFolder(dir_), "/", next_file_.fetch_add(1), ".sst");
  rocksdb::EnvOptions file_options;
  file_options.writable_file_max_buffer_size = kFileBufferBytes;
  rocksdb::SstFileWriter writer(file_options, (*db_)->GetOptions(db_->family(kTables)),
                                db_->family(kTables), /*invalidate_page_cache=*/false);
  rocksdb::Status status = writer.Open(*path);
  for (const auto& [key, write] : ordered) {
    if (!status.ok()) break;
    const absl::Span<const std::byte> bytes = write->view.bytes;
    status = writer.Put(key, {reinterpret_cast<const char*>(bytes.data()), bytes.size()});
  }
  if (status.ok()) status = writer.Finish();
  if (status.ok()) status = CheckEnds((*db_)->GetOptions(db_->family(kTables)), *path);
  if (!status.ok()) Remove(*path);
  return status;
}

rocksdb::Status SliceTables::TakeOver(const std::string& path) {
  assert(IsNewTable(path));
  rocksdb::IngestExternalFileOptions options;
  options.move_files = true;
  // allowed because no reader reads an object before its manifest exists
  options.snapshot_consistency = false;
  options.write_global_seqno = false;
  rocksdb::Status status;
  {
    const absl::MutexLock lock(&ranges_mu_);
    status = (*db_)->IngestExternalFile(db_->family(kTables), {path}, options);
    status.ok() ? db_->files()->Linked() : db_->files()->MayBeLinked();
  }
  Remove(path);
  return status;
}

void SliceTables::Remove(const std::string& path) {
  db_->files()->Forget(path);
  std::error_code ignored;
  std::filesystem::remove(path, ignored);
}

rocksdb::Status GetSlice(const Database& db, const StoredSlice& slice,
                         rocksdb::PinnableSlice* value) {
  const std::string key = SliceKey(slice.object, slice.layer);
  if (!slice.in_table) return db->Get(VerifiedReads(), db.family(kSlices), key, value);
  rocksdb::ReadOptions options = VerifiedReads();
  options.fill_cache = true;  // PinningCache keeps a block only while it is used (disk_tier_db.cc)
  options.verify_checksums = false;
  rocksdb::Status status;
  {
    const OnlySliceBlocks checked;
    status = db->Get(options, db.family(kTables), key, value);
  }
  if (status.ok()) return status;
  options.verify_checksums = true;  // otherwise a misread key would look absent
  value->Reset();
  return db->Get(options, db.family(kTables), key, value);
}

void EraseObject(const Database& db, uint64_t number, rocksdb::WriteBatch* batch) {
  const std::string key = NumberKey(number);
  std::string bytes;
  rocksdb::Status read = db->Get(VerifiedReads(), db.family(kObjects), key, &bytes);
  // Retry a read error once: it may be transient, and a permanent error must not prevent other
  // erases.
  if (read.IsIOError()) read = db->Get(VerifiedReads(), db.family(kObjects), key, &bytes);
  batch->Delete(db.family(kObjects), key);
  absl::StatusOr<ObjectRecord> object =
      read.ok() ? ParseObject(bytes) : absl::StatusOr<ObjectRecord>(FromRocks(read, "record"));
  if (!object.ok() || object->number != number) {
    object = ObjectRecord();  // the layers are unknown: erase all possible layers
    object->layers.resize(kMaxRecordLayers);
    std::iota(object->layers.begin(), object->layers.end(), 0);
  }
  assert(object->layers.size() <= kMaxRecordLayers);
  for (const Family family : {kSlices, kTables}) {
    for (const uint32_t layer : object->layers) {
      batch->Delete(db.family(family), SliceKey(number, layer));
    }
  }
}

void DropCached(const Database& db, uint64_t object) {
  const std::string first = NumberKey(object), end = NumberKey(object + 1);
  for (const Family family : {kTables, kSlices}) {
    rocksdb::ColumnFamilyMetaData files;
    db->GetColumnFamilyMetaData(db.family(family), &files);
    for (const rocksdb::LevelMetaData& level : files.levels) {
      for (const rocksdb::SstFileMetaData& file : level.files) {
        if (file.largestkey < first || file.smallestkey >= end) continue;
        DropFromPageCache(file.db_path + file.name);
      }
    }
  }
}

absl::Status SliceTables::Reclaim(uint64_t max_bytes) {
  std::vector<Table> tables;
  for (const Family family : {kTables, kSlices}) {
    {
      const absl::MutexLock lock(&ranges_mu_);
      const absl::Status dropped = DropDead(*db_, family, max_bytes == kOnlyDead);
      if (!dropped.ok()) return dropped;
    }
    const absl::StatusOr<std::vector<Table>> left = ListTables(*db_, family);
    if (!left.ok()) return left.status();
    tables.insert(tables.end(), left->begin(), left->end());
  }
  std::sort(tables.begin(), tables.end(), [](const Table& a, const Table& b) {
    return static_cast<double>(a.dead_bytes()) * static_cast<double>(b.bytes) >
           static_cast<double>(b.dead_bytes()) * static_cast<double>(a.bytes);
  });
  uint64_t left_bytes = BytesOf(tables);
  rocksdb::CompactRangeOptions options;
  options.exclusive_manual_compaction = false;
  options.bottommost_level_compaction = rocksdb::BottommostLevelCompaction::kForceOptimized;
  for (const Table& table : tables) {
    if (left_bytes <= max_bytes || table.dead_bytes() * kWorthwhile < table.bytes) break;
    const rocksdb::Slice first(table.first), last(table.last);
    const rocksdb::Status status =
        (*db_)->CompactRange(options, db_->family(table.family), &first, &last);
    if (!status.ok()) return FromRocks(status, "rewriting a table");
    left_bytes -= std::min(left_bytes, table.dead_bytes());
  }
  return absl::OkStatus();
}

}  // namespace hearth
