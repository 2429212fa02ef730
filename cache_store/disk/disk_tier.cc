#include "cache_store/disk/disk_tier.h"

#include <rocksdb/convenience.h>
#include <rocksdb/write_batch.h>

#include <algorithm>
#include <atomic>
#include <cassert>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "cache_store/disk/data_folder.h"
#include "cache_store/disk/disk_tier_backup.h"
#include "cache_store/disk/disk_tier_db.h"
#include "cache_store/disk/disk_tier_load.h"
#include "cache_store/disk/disk_tier_reclaim.h"
#include "cache_store/disk/disk_tier_recovery.h"
#include "cache_store/disk/disk_tier_tables.h"

namespace hearth {
namespace {

// Below this a value is copied into memory of its own; above, the read's buffer is handed out.
constexpr size_t kPinBytes = 4096;
// Of erased objects at once in the log: a KiB or two an object.
constexpr size_t kEraseBytes = size_t{256} << 10;

class RocksDiskTier : public DiskTier {
 public:
  RocksDiskTier(std::unique_ptr<Database> db, const std::string& dir,
                std::unique_ptr<PointCount> count, DiskContents contents,
                const DiskTierOptions& options)
      : db_(std::move(db)),
        dir_(dir),
        tables_(db_.get(), dir),
        count_(std::move(count)),
        contents_(std::move(contents)),
        min_table_bytes_(options.min_table_bytes),
        patience_(options.patience) {}

  Tier kind() const override { return Tier::kDisk; }

  absl::StatusOr<std::optional<SliceView>> Read(const StoredSlice& slice) override {
    auto value = std::make_shared<rocksdb::PinnableSlice>();
    const rocksdb::Status status = GetSlice(*db_, SliceKey(slice.object, slice.layer), value.get());
    if (status.IsNotFound()) return std::nullopt;
    if (!status.ok()) return FromRocks(status, "read");
    absl::Span<const std::byte> bytes(reinterpret_cast<const std::byte*>(value->data()),
                                      value->size());
    if (bytes.size() < kPinBytes) return CopySlice(bytes);
    return SliceView{std::move(value), bytes};
  }

  absl::Status Write(const StoredSlice& slice, SliceView view) override {
    const rocksdb::Slice value(reinterpret_cast<const char*>(view.bytes.data()), view.bytes.size());
    return Put("write", kSlices, SliceKey(slice.object, slice.layer), value);
  }

  absl::Status WriteAll(absl::Span<const SliceWrite> slices) override {
    uint64_t bytes = 0;
    for (const SliceWrite& write : slices) bytes += write.view.bytes.size();
    if (bytes < min_table_bytes_ || resumed_.load()) return SliceTier::WriteAll(slices);
    return Change("write of a table", [&] { return tables_.Write(slices); });
  }

  absl::Status WriteObject(const ObjectRecord& object) override {
    return Put("write of an object record", kObjects, NumberKey(object.number),
               SerializeObject(object));
  }

  absl::Status EraseObjects(absl::Span<const uint64_t> objects) override {
    if (objects.empty()) return absl::OkStatus();
    rocksdb::WriteBatch batch;
    for (const uint64_t number : objects) {
      EraseObject(*db_, number, &batch);
      if (batch.GetDataSize() < kEraseBytes) continue;
      if (absl::Status status = WriteBatch("erase", &batch, false); !status.ok()) return status;
      batch.Clear();
    }
    return WriteBatch("erase", &batch, false);
  }

  absl::Status CommitManifests(const std::vector<ManifestRecord>& manifests,
                               absl::Span<const Digest> points,
                               const FingerprintRecord& fingerprint, bool sync) override {
    rocksdb::WriteBatch batch;
    for (const ManifestRecord& record : manifests) {
      batch.Put(db_->family(kManifests), NumberKey(record.number), SerializeManifestRecord(record));
    }
    batch.Put(db_->family(kFingerprints), FingerprintKey(fingerprint),
              fingerprint.fingerprint.Serialize());
    // With `sync` the whole log up to here, slices included.
    const absl::Status written = WriteBatch("write of manifests", &batch, sync);
    if (written.ok()) count_->Add(points.size());
    return written;
  }

  absl::Status EraseManifests(absl::Span<const uint64_t> manifests) override {
    rocksdb::WriteBatch batch;
    for (const uint64_t number : manifests) {
      batch.Delete(db_->family(kManifests), NumberKey(number));
      batch.Delete(db_->family(kMeta), PinKey(number));
      batch.Delete(db_->family(kMeta), UseKey(number));
    }
    count_->Remove(manifests.size());
    const absl::Status erased = WriteBatch("erase of manifests", &batch, false);
    if (!erased.ok()) count_->Add(manifests.size());  // they are there, and will be erased later
    return erased;
  }

  absl::Status SettleErases() override {
    const absl::MutexLock lock(&settle_mu_);
    const uint64_t drops = count_->drops() + 1;
    absl::Status settled = Put("end of a drop", kManifests, kDropsKey, absl::StrCat(drops));
    if (settled.ok()) settled = Flush();
    return settled.ok() ? count_->NoteDrops(drops) : settled;
  }

  absl::Status SetPinned(uint64_t manifest, bool pinned) override {
    const std::string key = PinKey(manifest);
    if (pinned) return Put("pin", kMeta, key, "");
    return Change("pin",
                  [&] { return (*db_)->Delete(rocksdb::WriteOptions(), db_->family(kMeta), key); });
  }

  absl::Status NoteUses(absl::Span<const std::pair<uint64_t, absl::Time>> uses) override {
    if (failed_.load()) return absl::UnavailableError("the last change failed");
    rocksdb::WriteBatch batch;
    for (const auto& [manifest, used] : uses) {
      batch.Put(db_->family(kMeta), UseKey(manifest), absl::StrCat(absl::ToUnixSeconds(used)));
    }
    return WriteBatch("write of last uses", &batch, false);
  }

  absl::Status Sync() override {
    // Not SyncWAL: after a log that could not be written it asserts, where a write is refused.
    rocksdb::WriteBatch batch;
    batch.PutLogData("sync");
    return WriteBatch("sync", &batch, true);
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
    return Put("write of a note", kMeta, absl::StrCat(kNotePrefix, name), text);
  }

  DiskContents Load() override { return std::move(contents_); }

  absl::StatusOr<std::vector<std::optional<ManifestRecord>>> ReadManifests(
      absl::Span<const uint64_t> numbers) override {
    return LoadManifests(*db_, numbers);
  }
  absl::StatusOr<std::vector<uint64_t>> ManifestsNaming(
      const absl::flat_hash_set<uint64_t>& objects, const std::function<bool()>& stopped) override {
    return FindManifestsNaming(*db_, objects, stopped);
  }

  absl::Status ReclaimSpace(uint64_t max_bytes) override {
    if (stopped_.load()) return absl::CancelledError("stopped");
    RemoveSetAside(dir_, FileBytes() > max_bytes ? absl::ZeroDuration() : kKeptSetAside);
    if (absl::Status flushed = Flush(); !flushed.ok()) return flushed;
    uint64_t table_bytes = 0;
    absl::Status reclaimed = tables_.Reclaim(max_bytes, &table_bytes);
    if (!reclaimed.ok()) return StoppedBy(std::move(reclaimed));
    return ReclaimBlobs(*db_, max_bytes - std::min(max_bytes, table_bytes));
  }

  void StopReclaiming() override {
    if (!stopped_.exchange(true)) (*db_)->DisableManualCompaction();
  }

  absl::StatusOr<BackupReport> BackUp(const std::string& to) override {
    return BackUpDatabase(*db_, dir_, to);
  }

  uint64_t FileBytes() override {
    uint64_t tables = 0, blobs = 0;
    for (int i = 0; i < kFamilies; ++i) {
      uint64_t bytes = 0;
      (*db_)->GetIntProperty(db_->family(static_cast<Family>(i)),
                             rocksdb::DB::Properties::kTotalSstFilesSize, &bytes);
      tables += bytes;
    }
    (*db_)->GetIntProperty(db_->family(kSlices), rocksdb::DB::Properties::kTotalBlobFileSize,
                           &blobs);
    rocksdb::VectorLogPtr logs;
    uint64_t log_bytes = 0;
    if ((*db_)->GetSortedWalFiles(logs).ok()) {
      for (const auto& log : logs) log_bytes += log->SizeFileBytes();
    }
    return tables + blobs + log_bytes + SetAsideBytes(dir_);
  }

 private:
  // All families: a log file goes only when nothing in it is waiting to be flushed.
  absl::Status Flush() {
    const rocksdb::Status status = (*db_)->Flush(rocksdb::FlushOptions(), db_->families());
    return status.ok() ? absl::OkStatus() : StoppedBy(FromRocks(status, "flush"));
  }

  // An error of background work: the next change resumes RocksDB. Unreadable data stops nothing.
  absl::Status StoppedBy(absl::Status status) {
    if (!absl::IsCancelled(status) && !absl::IsDataLoss(status)) failed_.store(true);
    return status;
  }

  // Every change goes through here. After one that failed RocksDB refuses all until it is told to
  // go on, and does so only once what it has not yet written could be: on a full disk, when there
  // is room again.
  template <typename F>
  absl::Status Change(const char* what, F change) {
    if (failed_.load()) {
      const absl::MutexLock lock(&resume_mu_);
      const rocksdb::Status resumed = failed_.load() ? Resume() : rocksdb::Status::OK();
      if (!resumed.ok()) return FromRocks(resumed, what);
      failed_.store(false);
    }
    const absl::ReaderMutexLock lock(&resume_mu_);
    HaveSomethingToFlush();
    const rocksdb::Status status = change();
    if (!status.ok()) failed_.store(true);
    if (status.IsNoSpace()) RemoveSetAside(dir_, absl::ZeroDuration());
    if (status.ok()) db_->reserve()->NoteWrite();
    return FromRocks(status, what);
  }

  rocksdb::Status Resume() ABSL_EXCLUSIVE_LOCKS_REQUIRED(resume_mu_) {
    if (!gave_up_.load()) {
      const rocksdb::Status status = ResumeOrGiveUp();
      if (!status.ok() && !gave_up_.load()) return status;
    }
    if (gave_up_.load()) {
      return rocksdb::Status::IOError(
          absl::StrCat("the database does not come back: it was told to go on after a write that "
                       "failed, and had ",
                       absl::FormatDuration(patience_),
                       "; what is there is read, nothing is written; restart the store"));
    }
    resumed_.store(true);
    // Where it had nothing to flush it goes on with the log that failed, and asserts against that.
    if (!db_->files()->log_health().is_broken()) return rocksdb::Status::OK();
    return rocksdb::Status::IOError(
        "the log failed before anything else was in memory, for which RocksDB would begin another: "
        "what is there is read, nothing is written; restart the store");
  }

  // RocksDB 7.8 may wait for good here: of a flush that was due while a compaction failed it keeps
  // that it is due, and forgets to begin it. From then on only reads are safe.
  rocksdb::Status ResumeOrGiveUp() ABSL_EXCLUSIVE_LOCKS_REQUIRED(resume_mu_) {
    absl::Notification done;
    std::thread watch([&] {
      if (done.WaitForNotificationWithTimeout(patience_)) return;
      gave_up_.store(true);
      rocksdb::CancelAllBackgroundWork(db_->get(), /*wait=*/false);
    });
    // It waits until nothing runs in the background, and has compactions begun, which fail, until
    // it is done: first everything is to come to rest.
    (*db_)->PauseBackgroundWork().PermitUncheckedError();
    (*db_)->ContinueBackgroundWork().PermitUncheckedError();
    // It asserts that no file can be deleted where its own manifest could not be written, and sees
    // to that itself for most such writes, but not for all.
    if (!std::exchange(keeps_files_, true)) (*db_)->DisableFileDeletions().PermitUncheckedError();
    const rocksdb::Status status = (*db_)->Resume();
    if (status.ok() && std::exchange(keeps_files_, false)) {
      (*db_)->EnableFileDeletions(/*force=*/false).PermitUncheckedError();
    }
    done.Notify();
    watch.join();
    return status;
  }

  // Told to go on after a log that failed, RocksDB begins a new one only if it has anything to
  // flush.
  void HaveSomethingToFlush() {
    uint64_t entries = 1;
    (*db_)->GetIntProperty(db_->family(kMeta), rocksdb::DB::Properties::kNumEntriesActiveMemTable,
                           &entries);
    if (entries > 0) return;
    rocksdb::WriteOptions beside_the_log;
    beside_the_log.disableWAL = true;
    (*db_)
        ->Put(beside_the_log, db_->family(kMeta), absl::StrCat(kNotePrefix, "opened"), "")
        .PermitUncheckedError();
  }

  absl::Status Put(const char* what, Family family, const std::string& key,
                   const rocksdb::Slice& value) {
    return Change(what, [&] {
      return (*db_)->Put(rocksdb::WriteOptions(), db_->family(family), key, value);
    });
  }

  absl::Status WriteBatch(const char* what, rocksdb::WriteBatch* batch, bool sync) {
    rocksdb::WriteOptions options;
    options.sync = sync;
    return Change(what, [&] { return (*db_)->Write(options, batch); });
  }

  absl::StatusOr<std::string> ReadRecord(Family family, const std::string& key) {
    std::string bytes;
    const rocksdb::Status status = (*db_)->Get(VerifiedReads(), db_->family(family), key, &bytes);
    if (!status.ok()) return FromRocks(status, "read of a record");
    return bytes;
  }

  const std::unique_ptr<Database> db_;
  const std::string dir_;
  SliceTables tables_;
  const std::unique_ptr<PointCount> count_;
  DiskContents contents_;  // until Load
  std::atomic<bool> stopped_{false};
  const uint64_t min_table_bytes_;
  const absl::Duration patience_;
  std::atomic<bool> gave_up_{false};
  std::atomic<bool> failed_{false};  // the last change
  absl::Mutex settle_mu_;
  absl::Mutex resume_mu_;  // shared by changes
  bool keeps_files_ ABSL_GUARDED_BY(resume_mu_) = false;
  // Since RocksDB was told to go on, it takes no more tables: version 7.8 numbers the next one 0,
  // which it asserts against. Until the next start everything goes through the log.
  std::atomic<bool> resumed_{false};
};

}  // namespace

namespace {

// As LoadContents; kDataLoss where the database is from before a drop that was answered, too.
absl::StatusOr<DiskContents> LoadCompared(const Database& db, const PointCount& count,
                                          const BootId& boot) {
  absl::StatusOr<DiskContents> contents = LoadContents(db);
  if (!contents.ok()) return contents;
  const PointCount::Noted& before = count.before();
  if (contents->drops < before.drops && !contents->manifests.empty()) {
    return absl::DataLossError("it is from before restore points were dropped");
  }
  if (!db.found().empty()) TakeLostObjects(db, &*contents);
  const uint64_t found = contents->manifests.size();
  // What was not synced a crash of the machine may take.
  const bool is_same_boot = before.boot == boot;
  if (is_same_boot) {
    contents->damage.insert(contents->damage.end(), db.cut_logs().begin(), db.cut_logs().end());
  }
  if (is_same_boot || !contents->damage.empty()) {
    contents->lost_points = before.points - std::min(before.points, found);
  }
  if (contents->lost_points > 0) {
    contents->damage.push_back(
        absl::StrCat(contents->lost_points, " of ", before.points, " restore points are lost"));
  }
  return contents;
}

}  // namespace

absl::StatusOr<std::unique_ptr<DiskTier>> DiskTier::Open(const std::string& dir,
                                                         const std::string& secret_check,
                                                         const DiskTierOptions& options) {
  const BootId boot = options.boot.value_or(ThisBoot());
  RemoveSetAside(dir, kKeptSetAside);
  std::unique_ptr<Database> db;
  absl::Status status = Database::Open(dir, Database::Mode::kOwn, &db, options);
  if (!status.ok()) return status;
  const std::string readable = MakePrivate(dir);
  if (!readable.empty() && options.warnings != nullptr) options.warnings->Say("disk", readable);
  absl::StatusOr<std::unique_ptr<PointCount>> count = PointCount::Open(dir, boot);
  if (!count.ok()) return count.status();
  std::vector<std::string> lines;
  absl::StatusOr<DiskContents> contents = DiskContents();
  for (int attempt = 0;; ++attempt) {
    if (status = CheckMeta(*db, dir, secret_check); !status.ok()) return status;
    contents = LoadCompared(*db, **count, boot);
    if (contents.ok() || attempt > 0 || !absl::IsDataLoss(contents.status())) break;
    db = nullptr;
    status = SetAside(dir, std::string(contents.status().message()), &lines);
    if (status.ok()) status = Database::Open(dir, Database::Mode::kOwn, &db, options);
    if (!status.ok()) return status;
    db->Found(std::move(lines));
  }
  if (!contents.ok()) return contents.status();
  (*count)->Begin(contents->manifests.size(), contents->drops);
  if (contents->drops < (*count)->drops()) {  // an empty one, which has seen all drops
    const rocksdb::Status noted = (*db)->Put(rocksdb::WriteOptions(), db->family(kManifests),
                                             kDropsKey, absl::StrCat((*count)->drops()));
    if (!noted.ok()) return FromRocks(noted, "write of the number of drops");
  }
  // So that no later start finds them torn. There may be no room for it.
  if (!db->cut_logs().empty()) {
    (*db)->Flush(rocksdb::FlushOptions(), db->families()).PermitUncheckedError();
  }
  if (status = SliceTables::Prepare(dir); !status.ok()) return status;
  return std::make_unique<RocksDiskTier>(std::move(db), dir, *std::move(count),
                                         *std::move(contents), options);
}

}  // namespace hearth
