// RawDatabase: opens the RocksDB database of a data folder directly, without the store.
// FlipBitsOnDisk changes bits in the files of the database.
#ifndef HEARTH_TESTS_SUPPORT_RAW_DATABASE_H_
#define HEARTH_TESTS_SUPPORT_RAW_DATABASE_H_

#include <gtest/gtest.h>
#include <rocksdb/db.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/store_kit.h"
#include "tests/support/test_folder.h"

namespace hearth {

class RawDatabase {
 public:
  explicit RawDatabase(const TestFolder& folder) : RawDatabase(folder.path()) {}
  // Opens the database in the data folder `dir`.
  explicit RawDatabase(const std::string& dir) {
    const std::string path = dir + "/db";
    std::vector<std::string> names;
    rocksdb::DB::ListColumnFamilies({}, path, &names);
    std::vector<rocksdb::ColumnFamilyDescriptor> families;
    for (const std::string& name : names) {
      rocksdb::ColumnFamilyOptions options;
      options.compression = rocksdb::kNoCompression;
      families.emplace_back(name, options);
    }
    rocksdb::DB::Open({}, path, families, &handles_, &db_);
  }
  ~RawDatabase() {
    for (auto* handle : handles_) db_->DestroyColumnFamilyHandle(handle);
    delete db_;
  }
  rocksdb::ColumnFamilyHandle* family(const std::string& name) {
    for (auto* handle : handles_) {
      if (handle->GetName() == name) return handle;
    }
    return nullptr;
  }
  // Returns all keys and values of a column family.
  std::vector<std::pair<std::string, std::string>> All(const std::string& name) {
    std::vector<std::pair<std::string, std::string>> all;
    std::unique_ptr<rocksdb::Iterator> it(db_->NewIterator({}, family(name)));
    for (it->SeekToFirst(); it->Valid(); it->Next()) {
      all.emplace_back(it->key().ToString(), it->value().ToString());
    }
    return all;
  }
  void Put(const std::string& name, const std::string& key, const std::string& value) {
    ASSERT_TRUE(db_->Put({}, family(name), key, value).ok());
  }
  // Writes all data that is only in the log to tables.
  void Flush() { ASSERT_TRUE(db_->Flush({}, handles_).ok()); }
  void Delete(const std::string& name, const std::string& key) {
    ASSERT_TRUE(db_->Delete({}, family(name), key).ok());
  }

 private:
  rocksdb::DB* db_ = nullptr;
  std::vector<rocksdb::ColumnFamilyHandle*> handles_;
};

// Flips one bit in the middle of every occurrence of `bytes` in the folder's tables and blob files,
// like a failing disk. Returns the number of occurrences. The store may be running.
inline int FlipBitsOnDisk(const TestFolder& folder, const std::string& bytes) {
  int places = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder.path() + "/db")) {
    const std::string kind = entry.path().extension().string();
    if (kind != ".sst" && kind != ".blob") continue;
    std::fstream file(entry.path(), std::ios::in | std::ios::out | std::ios::binary);
    const std::string content((std::istreambuf_iterator<char>(file)), {});
    for (size_t at = content.find(bytes); at != std::string::npos;
         at = content.find(bytes, at + 1)) {
      const size_t middle = at + bytes.size() / 2;
      file.clear();
      file.seekp(static_cast<std::streamoff>(middle));
      file.put(static_cast<char>(content[middle] ^ 0x10));
      ++places;
    }
  }
  return places;
}

}  // namespace hearth

#endif  // HEARTH_TESTS_SUPPORT_RAW_DATABASE_H_
