#include "cache_store/disk/disk_tier_erase.h"

#include <memory>
#include <string>

#include "cache_store/disk/stored_records.h"

namespace hearth {
namespace {

constexpr Family kHoldSlices[] = {kSlices, kTables};

void EraseListed(const Database& db, Family family, uint64_t number, rocksdb::WriteBatch* batch) {
  const std::string end = NumberKey(number + 1);
  const rocksdb::Slice bound(end);
  rocksdb::ReadOptions options = VerifiedReads();
  options.fill_cache = false;
  options.iterate_upper_bound = &bound;
  const std::unique_ptr<rocksdb::Iterator> it(db->NewIterator(options, db.family(family)));
  for (it->Seek(NumberKey(number)); it->Valid(); it->Next()) {
    batch->Delete(db.family(family), it->key());
  }
  if (!it->status().ok()) batch->DeleteRange(db.family(family), NumberKey(number), end);
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

}  // namespace hearth
