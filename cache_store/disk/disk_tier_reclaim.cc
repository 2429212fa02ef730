#include "cache_store/disk/disk_tier_reclaim.h"

#include <rocksdb/metadata.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "cache_store/disk/stored_records.h"

namespace hearth {
namespace {

constexpr Family kHoldSlices[] = {kSlices, kTables};

void EraseListed(const Database& db, Family family, uint64_t number, rocksdb::WriteBatch* batch) {
  const std::string end = NumberKey(number + 1);
  const rocksdb::Slice bound(end);
  rocksdb::ReadOptions options = VerifiedReads();
  options.iterate_upper_bound = &bound;
  const std::unique_ptr<rocksdb::Iterator> it(db->NewIterator(options, db.family(family)));
  for (it->Seek(NumberKey(number)); it->Valid(); it->Next()) {
    batch->Delete(db.family(family), it->key());
  }
  if (!it->status().ok()) batch->DeleteRange(db.family(family), NumberKey(number), end);
}

struct BlobFiles {
  std::vector<rocksdb::BlobMetaData> files;  // oldest first
  uint64_t bytes = 0;
  uint64_t dead_bytes = 0;

  bool empty() const { return files.empty(); }
};

BlobFiles ListBlobFiles(const Database& db) {
  rocksdb::ColumnFamilyMetaData family;
  db->GetColumnFamilyMetaData(db.family(kSlices), &family);
  BlobFiles blobs;
  blobs.files = std::move(family.blob_files);
  for (const rocksdb::BlobMetaData& file : blobs.files) {
    blobs.bytes += file.blob_file_size;
    blobs.dead_bytes += file.garbage_blob_bytes;
  }
  return blobs;
}

// How many of the oldest files to rewrite so that `excess` bytes are gained: fewer when that would
// move more than kRewriteBytes, at least one.
size_t FilesToRewrite(const BlobFiles& blobs, uint64_t excess) {
  uint64_t dead = 0, live = 0;
  size_t count = 0;
  for (const rocksdb::BlobMetaData& file : blobs.files) {
    live += file.total_blob_bytes - file.garbage_blob_bytes;
    if (count > 0 && live > kRewriteBytes) break;
    dead += file.garbage_blob_bytes;
    ++count;
    if (dead >= excess) break;
  }
  return count;
}

rocksdb::CompactRangeOptions CompactAll() {
  rocksdb::CompactRangeOptions options;
  options.exclusive_manual_compaction = false;
  // Every table once: a step that met a value twice would move it twice.
  options.bottommost_level_compaction = rocksdb::BottommostLevelCompaction::kForceOptimized;
  return options;
}

}  // namespace

void EraseObject(const Database& db, uint64_t number, rocksdb::WriteBatch* batch) {
  const std::string key = NumberKey(number);
  std::string bytes;
  rocksdb::Status read = db->Get(VerifiedReads(), db.family(kObjects), key, &bytes);
  // Once more: an error may pass, where one that stays must not keep what else is to be erased.
  if (read.IsIOError()) read = db->Get(VerifiedReads(), db.family(kObjects), key, &bytes);
  batch->Delete(db.family(kObjects), key);
  const absl::StatusOr<ObjectRecord> object =
      read.ok() ? ParseObject(bytes) : absl::StatusOr<ObjectRecord>(FromRocks(read, "record"));
  for (const Family family : kHoldSlices) {
    if (!object.ok() || object->number != number) {
      EraseListed(db, family, number, batch);
      continue;
    }
    for (const uint32_t layer : object->layers) {
      batch->Delete(db.family(family), SliceKey(number, layer));
    }
  }
}

absl::Status ReclaimBlobs(const Database& db, uint64_t max_bytes) {
  // Tables hold keys only, so compacting all of them is cheap. It finds out which values are dead.
  rocksdb::CompactRangeOptions options = CompactAll();
  options.blob_garbage_collection_policy = rocksdb::BlobGarbageCollectionPolicy::kDisable;
  rocksdb::Status status = db->CompactRange(options, db.family(kSlices), nullptr, nullptr);
  if (!status.ok()) return FromRocks(status, "compaction");

  BlobFiles blobs = ListBlobFiles(db);
  if (blobs.empty()) return absl::OkStatus();
  const uint64_t newest = blobs.files.back().blob_file_number;  // what comes after is not dead yet
  options.blob_garbage_collection_policy = rocksdb::BlobGarbageCollectionPolicy::kForce;
  while (!blobs.empty() && blobs.bytes > max_bytes && blobs.dead_bytes > 0) {
    const uint64_t oldest = blobs.files.front().blob_file_number;
    if (oldest > newest) break;
    const size_t count = FilesToRewrite(blobs, blobs.bytes - max_bytes);
    // RocksDB wants a share of the files, and rounds down.
    options.blob_garbage_collection_age_cutoff =
        count == blobs.files.size()
            ? 1.0
            : (static_cast<double>(count) + 0.5) / static_cast<double>(blobs.files.size());
    status = db->CompactRange(options, db.family(kSlices), nullptr, nullptr);
    if (!status.ok()) return FromRocks(status, "rewriting of blob files");
    blobs = ListBlobFiles(db);
    if (!blobs.empty() && blobs.files.front().blob_file_number <= oldest) break;  // in use
  }
  return absl::OkStatus();
}

}  // namespace hearth
