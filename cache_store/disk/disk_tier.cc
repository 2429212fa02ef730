#include "cache_store/disk/disk_tier.h"

#include <rocksdb/env.h>
#include <rocksdb/write_batch.h>

#include <algorithm>
#include <atomic>
#include <cassert>
#include <limits>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "cache_store/disk/data_folder.h"
#include "cache_store/disk/disk_tier_backup.h"
#include "cache_store/disk/disk_tier_db.h"
#include "cache_store/disk/disk_tier_load.h"
#include "cache_store/disk/disk_tier_recovery.h"
#include "cache_store/disk/disk_tier_tables.h"

namespace hearth {
namespace {

// A read copies values smaller than this, and returns larger values in RocksDB's own buffer.
constexpr size_t kPinBytes = 4096;
// Size of one batch of erases in the log; erasing an object takes one or two KiB.
constexpr size_t kEraseBytes = size_t{256} << 10;

// Opens the database and reads its records. If the database is older than an acknowledged drop, it
// is moved aside like a database that cannot be repaired, and a new database is created.
absl::Status OpenWhole(const std::string& dir, const std::string& secret_check,
                       const DiskTierOptions& options, std::unique_ptr<PointCount>* count,
                       std::unique_ptr<Database>* db, DiskContents* out) {
  absl::Status status = Database::Open(dir, Database::Mode::kOwn, db, options);
  if (absl::IsResourceExhausted(status) &&
      Database::Open(dir, Database::Mode::kServe, db, options).ok()) {
    status = absl::OkStatus();  // no free space: open read-only until there is space
  }
  if (!status.ok()) return status;
  auto opened = PointCount::Open(dir);
  if (!opened.ok()) return opened.status();
  *count = *std::move(opened);
  const PointCount::Noted before = (*count)->noted();
  const BootId boot = options.boot.value_or(ThisBoot());
  std::vector<std::string> lines;
  absl::StatusOr<DiskContents> contents = DiskContents();
  for (int attempt = 0; status.ok(); ++attempt) {
    status =
        CheckMeta(**db, dir, secret_check, DamageConfirmation(dir, options.wait, options.warnings));
    DamageConfirmation confirmation(dir, options.wait, options.warnings);
    contents = status.ok() ? LoadContents(**db, before, boot, &confirmation) : status;
    if (contents.ok() || attempt > 0 || !absl::IsDataLoss(contents.status())) break;
    if ((*db)->reserve() == nullptr) break;  // a full disk has no space for a new database
    *db = nullptr;
    status = SetAside(dir, std::string(contents.status().message()), &lines);
    if (status.ok()) status = Database::Open(dir, Database::Mode::kOwn, db, options);
    if (status.ok()) (*db)->Found(std::move(lines));
  }
  if (!status.ok()) return status;
  if (!contents.ok()) return contents.status();
  (*count)->Begin(contents->manifests, contents->drops, boot);
  // the new database is empty, so it contains no dropped point
  if (contents->drops < before.drops) {
    const rocksdb::Status noted = (**db)->Put(rocksdb::WriteOptions(), (*db)->family(kManifests),
                                              kDropsKey, absl::StrCat(before.drops));
    if (!noted.ok()) return FromRocks(noted, "writing the number of the last drop");
  }
  // Flush, so that the next start does not find the torn logs again. The flush may fail for lack of
  // space.
  if (!(*db)->cut_logs().empty()) {
    (**db)->Flush(rocksdb::FlushOptions(), (*db)->families()).PermitUncheckedError();
  }
  *out = *std::move(contents);
  return SliceTables::Prepare(dir);
}

class RocksDiskTier : public DiskTier {
 public:
  RocksDiskTier(std::unique_ptr<Database> db, const std::string& dir,
                std::unique_ptr<PointCount> count, DiskContents contents,
                const DiskTierOptions& options)
      : dir_(dir),
        options_(options),
        db_(std::move(db)),
        tables_(db_->reserve() == nullptr ? nullptr
                                          : std::make_unique<SliceTables>(db_.get(), dir)),
        count_(std::move(count)),
        contents_(std::move(contents)),
        failed_(tables_ == nullptr) {}

  absl::StatusOr<std::optional<SliceView>> Read(const StoredSlice& slice) override {
    auto value = std::make_shared<rocksdb::PinnableSlice>();
    const absl::Status status =
        WithDb([&] { return FromRocks(GetSlice(*db_, slice, value.get()), "read"); });
    if (absl::IsNotFound(status)) return std::nullopt;
    if (!status.ok()) return status;
    absl::Span<const std::byte> bytes(reinterpret_cast<const std::byte*>(value->data()),
                                      value->size());
    if (bytes.size() < kPinBytes) return CopySlice(bytes);
    return SliceView{std::move(value), bytes};
  }

  absl::Status MayAdd() override {
    if (!is_cramped_.load()) return absl::OkStatus();
    return absl::ResourceExhaustedError(
        "write: No space left on device: the remaining space is reserved for erasing entries");
  }

  absl::Status WriteAll(absl::Span<const SliceWrite> slices) override {
    if (slices.empty()) return absl::OkStatus();
    // One call writes one column family. EraseObject() erases only layers below this limit.
    for (const SliceWrite& write : slices) {
      assert(write.slice.in_table == slices[0].slice.in_table);
      assert(write.slice.layer < kMaxRecordLayers);
    }
    if (!slices[0].slice.in_table) {
      return WriteBatch("write", false, [&](rocksdb::WriteBatch* batch) {
        for (const SliceWrite& write : slices) {
          const absl::Span<const std::byte> bytes = write.view.bytes;
          batch->Put(db_->family(kSlices), SliceKey(write.slice.object, write.slice.layer),
                     {reinterpret_cast<const char*>(bytes.data()), bytes.size()});
        }
      });
    }
    constexpr char kWhat[] = "writing a table";
    if (absl::Status ready = Ready(kWhat); !ready.ok()) return ready;
    return WithOwnDb([&] {
      std::string path;
      const rocksdb::Status made = tables_->Make(slices, &path);
      // Make() does not change the database, so an error of Make() does not mark the database as
      // failed.
      return made.ok() ? Changed(kWhat, tables_->TakeOver(path)) : Ended(kWhat, made);
    });
  }

  absl::Status WriteObject(const ObjectRecord& object) override {
    assert(object.number > 0 && !object.layers.empty());
    assert(std::is_sorted(object.layers.begin(), object.layers.end()));
    return Put("writing an object record", kObjects, NumberKey(object.number),
               SerializeObject(object));
  }

  absl::Status EraseObjects(absl::Span<const uint64_t> objects) override {
    return Change("erase", [&] {
      rocksdb::WriteBatch batch;
      rocksdb::Status status;
      for (size_t i = 0; status.ok() && i < objects.size(); ++i) {
        EraseObject(*db_, objects[i], &batch);
        if (batch.GetDataSize() < kEraseBytes && i + 1 < objects.size()) continue;
        status = (*db_)->Write(rocksdb::WriteOptions(), &batch);
        batch.Clear();
      }
      return status;
    });
  }

  absl::Status CommitManifests(const std::vector<ManifestRecord>& manifests,
                               const FingerprintRecord& fingerprint, bool sync) override {
    assert(!manifests.empty());
    std::vector<uint64_t> numbers, replaced;
    for (const ManifestRecord& record : manifests) {
      // A start finds the fingerprint of a manifest by these two fields.
      assert(record.tenant == fingerprint.tenant);
      assert(record.manifest.fingerprint == fingerprint.fingerprint.digest());
      assert(record.number > 0 && record.number != record.replaced);
      numbers.push_back(record.number);
      replaced.push_back(record.replaced);
    }
    // With `sync`, RocksDB syncs the whole log, including earlier writes of slices.
    const absl::Status written =
        WriteBatch("writing manifests", sync, [&](rocksdb::WriteBatch* batch) {
          for (const ManifestRecord& record : manifests) {
            batch->Put(db_->family(kManifests), NumberKey(record.number),
                       SerializeManifestRecord(record));
          }
          batch->Put(db_->family(kFingerprints), FingerprintKey(fingerprint),
                     fingerprint.fingerprint.Serialize());
        });
    if (written.ok()) count_->Add(numbers, replaced);
    return written;
  }

  absl::Status EraseManifests(absl::Span<const uint64_t> manifests) override {
    const std::vector<uint64_t> counted = count_->Remove(manifests);
    const absl::Status erased =
        WriteBatch("erasing manifests", false, [&](rocksdb::WriteBatch* batch) {
          for (const uint64_t number : manifests) {
            batch->Delete(db_->family(kManifests), NumberKey(number));
            batch->Delete(db_->family(kMeta), PinKey(number));
            batch->Delete(db_->family(kMeta), UseKey(number));
          }
        });
    // after an error the manifests still exist, and will be erased later
    if (!erased.ok()) count_->Add(counted);
    return erased;
  }

  // Drops that wait for a running SettleErases() are then made permanent together, by one flush.
  absl::Status SettleErases() override {
    const uint64_t mine = begun_drops_.fetch_add(1) + 1;
    const absl::MutexLock lock(&settle_mu_);
    if (settled_drops_ >= mine) return absl::OkStatus();
    const uint64_t all = begun_drops_.load();
    const uint64_t drops = count_->noted().drops + 1;
    absl::Status settled = Put("recording a drop", kManifests, kDropsKey, absl::StrCat(drops));
    if (settled.ok()) settled = WithOwnDb([this] { return Flush(); });
    if (settled.ok()) settled = count_->NoteDrops(drops);
    assert(all >= mine && mine > settled_drops_);
    if (settled.ok()) settled_drops_ = all;
    return settled;
  }

  absl::Status SetPinned(uint64_t manifest, bool pinned) override {
    return WriteBatch(pinned ? "pinning a restore point" : "unpinning a restore point", false,
                      [&](rocksdb::WriteBatch* batch) {
                        pinned ? batch->Put(db_->family(kMeta), PinKey(manifest), "")
                               : batch->Delete(db_->family(kMeta), PinKey(manifest));
                      });
  }

  absl::Status NoteUses(absl::Span<const std::pair<uint64_t, absl::Time>> uses) override {
    if (failed_.load()) return absl::UnavailableError("the last write to the database failed");
    if (absl::Status has_room = MayAdd(); !has_room.ok()) return has_room;
    return WriteBatch("writing last uses", false, [&](rocksdb::WriteBatch* batch) {
      for (const auto& [manifest, used] : uses) {
        batch->Put(db_->family(kMeta), UseKey(manifest), absl::StrCat(absl::ToUnixSeconds(used)));
      }
    });
  }

  absl::Status Sync() override {
    // Use a write with `sync` instead of SyncWAL: after a failed log write, SyncWAL asserts, but a
    // write returns an error.
    return WriteBatch("sync", true, [](rocksdb::WriteBatch* batch) { batch->PutLogData("sync"); });
  }

  absl::StatusOr<ObjectRecord> ReadObject(uint64_t number) override {
    absl::StatusOr<std::string> bytes = ReadRecord(kObjects, NumberKey(number));
    if (!bytes.ok()) return bytes.status();
    return ParseObject(*bytes);
  }

  absl::StatusOr<ManifestRecord> ReadManifest(uint64_t number) override {
    absl::StatusOr<std::string> bytes = ReadRecord(kManifests, NumberKey(number));
    if (!bytes.ok()) return bytes.status();
    return ParseManifestRecord(*bytes);
  }

  absl::StatusOr<std::string> ReadNote(const std::string& name) override {
    absl::StatusOr<std::string> text = ReadRecord(kMeta, absl::StrCat(kNotePrefix, name));
    return absl::IsNotFound(text.status()) ? std::string() : text;
  }

  absl::Status WriteNote(const std::string& name, const std::string& text) override {
    return Put("writing a setting", kMeta, absl::StrCat(kNotePrefix, name), text);
  }

  DiskContents Load() override { return std::move(contents_); }

  absl::StatusOr<std::vector<std::optional<ManifestRecord>>> ReadManifests(
      absl::Span<const uint64_t> numbers) override {
    return WithDb([&] { return LoadManifests(*db_, numbers); });
  }

  absl::Status ReclaimSpace(uint64_t max_bytes) override {
    if (stopped_.load()) return absl::CancelledError("stopped");
    RemoveSetAside(dir_, FileBytes() > max_bytes ? absl::ZeroDuration() : kKeptSetAside);
    const bool is_cramped = is_cramped_.load();
    if (is_cramped) {
      // A flush may find no space. Deleting a table needs no space, and the erases are already in
      // the log.
      if (absl::Status synced = Sync(); !synced.ok()) return synced;
      const absl::Status dropped =
          WithOwnDb([&] { return StoppedBy(tables_->Reclaim(SliceTables::kOnlyDead)); });
      // Continue after an error of damaged data: tables without live objects must be deleted
      // nevertheless.
      if (!dropped.ok() && !absl::IsDataLoss(dropped)) return dropped;
    }
    return WithOwnDb([&] {
      if (absl::Status flushed = Flush(); !flushed.ok()) return flushed;
      if (is_cramped) {
        is_cramped_.store(false);
        failed_.store(true);  // the next change reopens the database with automatic compactions
      }
      return StoppedBy(tables_->Reclaim(max_bytes));
    });
  }

  void StopReclaiming() override {
    if (!stopped_.exchange(true)) StopCompactions();
  }

  absl::StatusOr<BackupReport> BackUp(const std::string& to) override {
    CountBackups(1);
    auto report =
        WithOwnDb([&]() -> absl::StatusOr<BackupReport> { return BackUpDatabase(*db_, dir_, to); });
    CountBackups(-1);
    return report;
  }

  uint64_t FileBytes() override { return DatabaseBytes(dir_); }

  std::optional<DiskRoom> Room() override {
    return MeasureRoom(files(), dir_, options_.volume_bytes);
  }

  uint64_t FreeBytes() override {
    return MeasureFreeBytes(files(), dir_).value_or(std::numeric_limits<uint64_t>::max());
  }

  void ReleaseReserve() override {
    const absl::MutexLock reopening(&reopen_mu_);
    if (backups_ > 0) return;
    if (!is_cramped_.exchange(true)) {
      // Close the database, because it would use the released space for a flush or a compaction.
      StopCompactions();
      const absl::MutexLock lock(&db_mu_);
      failed_.store(true);
      closed_.store(true);
      tables_ = nullptr;
      db_ = nullptr;
      next_opening_ = next_serving_ = absl::InfinitePast();
    }
    Reserve(files(), dir_).GiveUp();
  }

  void DropCached(uint64_t object) override {
    WithDb([&] { return hearth::DropCached(*db_, object), absl::OkStatus(); }).IgnoreError();
  }

  uint64_t losses() const override { return losses_.load(); }

  bool IsOpen() const override { return !closed_.load(); }

 private:
  rocksdb::FileSystem* files() const {
    rocksdb::Env* const env = options_.env != nullptr ? options_.env : rocksdb::Env::Default();
    return env->GetFileSystem().get();
  }

  // Calls `use`, which only reads, while the database stays open. Do not nest.
  template <typename F>
  auto WithDb(F use) -> decltype(use()) {
    if (closed_.load()) {
      absl::Status opened = Reopen();
      if (!opened.ok() && !OpenToServe(opened)) return opened;
    }
    const absl::ReaderMutexLock lock(&db_mu_);
    assert(closed_.load() == (db_ == nullptr));
    if (db_ == nullptr) return absl::UnavailableError("the database is being reopened; try again");
    return use();
  }

  // Calls `use`, which writes, while the database stays open.
  template <typename F>
  auto WithOwnDb(F use) -> decltype(use()) {
    return WithDb([&]() -> decltype(use()) {
      if (tables_ == nullptr) return absl::UnavailableError("the database is read-only; try later");
      assert(db_->reserve() != nullptr);
      return use();
    });
  }

  // Flushes all column families, because a log file is deleted only after all its entries are
  // flushed.
  absl::Status Flush() {
    const rocksdb::Status status = (*db_)->Flush(rocksdb::FlushOptions(), db_->families());
    if (!status.ok()) failed_.store(true);
    return FromRocks(status, "flush");
  }

  // If `status` is an error, makes the next change reopen the database, because RocksDB's
  // background work has stopped. An error of unreadable data does not count.
  absl::Status StoppedBy(absl::Status status) {
    if (!status.ok() && !absl::IsCancelled(status) && !absl::IsDataLoss(status)) {
      failed_.store(true);
    }
    return status;
  }

  // Runs a change of the database. All changes use this function: after a failed change RocksDB may
  // refuse all others, so the next change first reopens the database.
  template <typename F>
  absl::Status Change(const char* what, F change) {
    if (absl::Status ready = Ready(what); !ready.ok()) return ready;
    return WithOwnDb([&] { return Changed(what, change()); });
  }

  absl::Status Ready(const char* what) {
    if (!failed_.load()) return absl::OkStatus();
    const absl::Status opened = Reopen();
    return opened.ok() ? opened
                       : absl::Status(opened.code(), absl::StrCat(what, ": ", opened.message()));
  }

  absl::Status Changed(const char* what, const rocksdb::Status& status) {
    if (!status.ok()) failed_.store(true);
    if (status.ok()) db_->reserve()->NoteWrite();
    if (!db_->compacts() && !is_cramped_.load() && db_->reserve()->is_whole()) {
      // there is space again: the next change reopens the database with automatic compactions
      failed_.store(true);
    }
    return Ended(what, status);
  }

  absl::Status Ended(const char* what, const rocksdb::Status& status) {
    if (status.IsNoSpace()) RemoveSetAside(dir_, absl::ZeroDuration());
    return FromRocks(status, what);
  }

  // Takes the lock, so that no backup begins while the database is reopened.
  void CountBackups(int more) {
    const absl::MutexLock lock(&reopen_mu_);
    backups_ += more;
    assert(backups_ >= 0);
  }

  void StopCompactions() {
    const absl::ReaderMutexLock lock(&db_mu_);
    if (db_ != nullptr) (*db_)->DisableManualCompaction();
  }

  // If the disk accepts writes again, closes the database and opens it as at a start. Slices that
  // readers hold stay valid; new reads wait. If the database cannot be opened for writing, opens it
  // read-only.
  absl::Status Reopen() {
    const absl::MutexLock reopening(&reopen_mu_);
    if (!failed_.load()) return absl::OkStatus();  // another thread has reopened the database
    if (absl::Now() < next_opening_) return not_opened_;
    const bool flushes = !is_cramped_.load();
    if (absl::Status works = Database::TryDisk(dir_, options_, flushes); !works.ok()) return works;
    if (backups_ > 0) {
      return absl::UnavailableError("the database will be reopened after the running backup");
    }
    StopCompactions();
    const absl::MutexLock lock(&db_mu_);
    closed_.store(true);
    tables_ = nullptr;
    db_ = nullptr;
    absl::Status status = OpenAgain();
    if (!status.ok()) {
      db_ = nullptr;
      next_opening_ = absl::Now() + options_.pause;
      not_opened_ = status;
      ServeReads(status);
      return status;
    }
    assert(db_->reserve() != nullptr);  // OpenAgain() opens for writing
    tables_ = std::make_unique<SliceTables>(db_.get(), dir_);
    closed_.store(false);
    if (stopped_.load()) (*db_)->DisableManualCompaction();
    // Flush: a failed sync may have left data only in the page cache. If a flush does not have
    // space, ReclaimSpace first frees space and then flushes.
    status = flushes ? Flush() : absl::OkStatus();
    if (status.ok()) failed_.store(false);
    return status;
  }

  // Opens the database read-only. Returns false if that fails. `why`: the error of opening for
  // writing.
  bool OpenToServe(const absl::Status& why) {
    const absl::MutexLock reopening(&reopen_mu_);
    if (!closed_.load()) return true;
    if (absl::Now() < next_serving_) return false;
    const absl::MutexLock lock(&db_mu_);
    return ServeReads(why);
  }

  // Opens the database read-only. Does not open a damaged database, because missing data would look
  // like lost data.
  bool ServeReads(const absl::Status& why) ABSL_EXCLUSIVE_LOCKS_REQUIRED(reopen_mu_)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(db_mu_) {
    if (absl::IsDataLoss(why)) return false;
    assert(tables_ == nullptr && closed_.load());
    if (!Database::Open(dir_, Database::Mode::kServe, &db_, options_).ok()) {
      db_ = nullptr;
      next_serving_ = absl::Now() + options_.pause;
      return false;
    }
    closed_.store(false);
    return true;
  }

  // Opens the database again without repair: a store in use does not fork a child process for a
  // repair, so a damaged database waits for the next start. Restore points that were lost with a
  // damaged log are given up only if two openings miss the same number of points, because a failing
  // disk may read the log correctly later.
  absl::Status OpenAgain() ABSL_EXCLUSIVE_LOCKS_REQUIRED(reopen_mu_) {
    const auto mode = is_cramped_.load() ? Database::Mode::kOwnToErase : Database::Mode::kOwnAgain;
    absl::Status status = Database::Open(dir_, mode, &db_, options_);
    if (status.ok()) status = SliceTables::Prepare(dir_);
    if (!status.ok() || db_->cut_logs().empty()) return status;
    const PointCount::Noted noted = count_->noted();
    const absl::StatusOr<DiskContents> contents = LoadContents(*db_, noted, noted.boot, nullptr);
    if (!contents.ok()) return contents.status();
    const uint64_t lost = contents->lost_points;
    if (lost == 0) return status;
    if (std::exchange(lost_points_, lost) != lost) {
      return absl::DataLossError(contents->damage.back());
    }
    lost_points_ = 0;
    losses_.fetch_add(1);
    count_->Begin(contents->manifests, contents->drops, noted.boot);
    for (const std::string& line : contents->damage) {
      if (options_.warnings != nullptr) options_.warnings->Say("damage", line);
    }
    return status;
  }

  absl::Status Put(const char* what, Family family, const std::string& key,
                   const rocksdb::Slice& value) {
    return WriteBatch(what, false, [&](rocksdb::WriteBatch* batch) {
      batch->Put(db_->family(family), key, value);
    });
  }

  // Lets `fill` fill a write batch, and writes the batch while the database stays open.
  template <typename F>
  absl::Status WriteBatch(const char* what, bool sync, F fill) {
    return Change(what, [&] {
      rocksdb::WriteBatch batch;
      fill(&batch);
      rocksdb::WriteOptions options;
      options.sync = sync;
      return (*db_)->Write(options, &batch);
    });
  }

  absl::StatusOr<std::string> ReadRecord(Family family, const std::string& key) {
    std::string bytes;
    const absl::Status status = WithDb([&] {
      return FromRocks((*db_)->Get(VerifiedReads(), db_->family(family), key, &bytes),
                       "reading a record");
    });
    if (!status.ok()) return status;
    return bytes;
  }

  const std::string dir_;
  const DiskTierOptions options_;
  absl::Mutex reopen_mu_;
  int backups_ ABSL_GUARDED_BY(reopen_mu_) = 0;  // number of running backups
  absl::Status not_opened_ ABSL_GUARDED_BY(reopen_mu_);
  absl::Time next_opening_ ABSL_GUARDED_BY(reopen_mu_) = absl::InfinitePast();
  absl::Time next_serving_ ABSL_GUARDED_BY(reopen_mu_) = absl::InfinitePast();
  // number of restore points that were missing at the last opening
  uint64_t lost_points_ ABSL_GUARDED_BY(reopen_mu_) = 0;
  // held in shared mode while db_ and tables_ are used
  absl::Mutex db_mu_ ABSL_ACQUIRED_AFTER(reopen_mu_);
  std::unique_ptr<Database> db_;         // null: the database is closed
  std::unique_ptr<SliceTables> tables_;  // null: the database is read-only
  std::unique_ptr<PointCount> count_;
  DiskContents contents_;  // records read by Open(); Load() empties it
  std::atomic<bool> stopped_{false};
  std::atomic<bool> failed_;  // whether the last change, background job or opening failed
  std::atomic<bool> closed_{false};
  std::atomic<bool> is_cramped_{
      // whether the reserve file was deleted, so that free space is only for erases, not for a
      // flush
      false};
  std::atomic<uint64_t> losses_{0};
  std::atomic<uint64_t> begun_drops_{0};
  absl::Mutex settle_mu_;
  uint64_t settled_drops_ ABSL_GUARDED_BY(settle_mu_) = 0;
};

}  // namespace

absl::StatusOr<std::unique_ptr<DiskTier>> DiskTier::Open(const std::string& dir,
                                                         const std::string& secret_check,
                                                         const DiskTierOptions& options) {
  RemoveSetAside(dir, kKeptSetAside);
  const std::string readable = MakePrivate(dir);
  if (!readable.empty() && options.warnings != nullptr) options.warnings->Say("disk", readable);
  std::unique_ptr<PointCount> count;
  std::unique_ptr<Database> db;
  DiskContents contents;
  absl::Status status = OpenWhole(dir, secret_check, options, &count, &db, &contents);
  if (!status.ok()) return status;
  return std::make_unique<RocksDiskTier>(std::move(db), dir, std::move(count), std::move(contents),
                                         options);
}

}  // namespace hearth
