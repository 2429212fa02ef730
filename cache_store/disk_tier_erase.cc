#include "cache_store/disk_tier_erase.h"

#include <memory>
#include <string>

#include "cache_store/stored_records.h"

namespace hearth {
namespace {

constexpr Family kHoldSlices[] = {kSlices, kTables};

void EraseFound(const Database& db, Family family, uint64_t number, rocksdb::WriteBatch* batch) {
  const std::string end = NumberKey(number + 1);
  const rocksdb::Slice bound(end);
  rocksdb::ReadOptions options = VerifiedReads();
  options.fill_cache = false;
  options.iterate_upper_bound = &bound;
  const std::unique_ptr<rocksdb::Iterator> it(db->NewIterator(options, db.family(family)));
  for (it->Seek(NumberKey(number)); it->Valid(); it->Next()) {
    batch->Delete(db.family(family), it->key());
  }
  it->status().PermitUncheckedError();
}

}  // namespace

absl::Status EraseObject(const Database& db, uint64_t number, rocksdb::WriteBatch* batch) {
  const std::string key = NumberKey(number);
  std::string bytes;
  const rocksdb::Status read = db->Get(VerifiedReads(), db.family(kObjects), key, &bytes);
  if (!read.ok() && !read.IsNotFound() && !read.IsCorruption()) {
    return FromRocks(read, "read of an object record");
  }
  batch->Delete(db.family(kObjects), key);
  const absl::StatusOr<ObjectRecord> object =
      read.ok() ? ParseObject(bytes) : absl::NotFoundError("no record");
  for (const Family family : kHoldSlices) {
    if (!object.ok() || object->number != number) {
      EraseFound(db, family, number, batch);
      continue;
    }
    for (const uint32_t layer : object->layers) {
      batch->Delete(db.family(family), SliceKey(number, layer));
    }
  }
  return absl::OkStatus();
}

}  // namespace hearth
