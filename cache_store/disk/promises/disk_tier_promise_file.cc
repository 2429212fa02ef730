#include "cache_store/disk/promises/disk_tier_promise_file.h"

#include <algorithm>
#include <cassert>
#include <cctype>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <optional>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "cache_store/disk/files/rocks_status.h"

namespace hearth {
namespace {

// Rewritten when it has more than kEntriesEach entries for each live one and kEntriesFree more: 256
// KiB, and at a million restore points 256 MiB.
constexpr uint64_t kEntriesEach = 4, kEntriesFree = 4096;
// Entries that came while all of it was written, those that came meanwhile, the rest under the
// lock.
constexpr int kFollows = 2;

bool Leaves(const PromiseEntry& entry) {
  return entry.kind == PromiseKind::kReleased && entry.level == PromiseLevel::kNone;
}

std::string BytesOfEntries(absl::Span<const PromiseEntry> entries) {
  std::string bytes;
  for (const PromiseEntry& entry : entries) bytes += SerializePromise(entry);
  return bytes;
}

}  // namespace

BootId ThisBoot() {
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  std::string text, digits;
  file >> text;
  for (const char c : text) {
    if (std::isxdigit(static_cast<unsigned char>(c)) != 0) digits += c;
  }
  BootId boot{};
  if (digits.size() != 2 * boot.size()) return boot;
  const std::string bytes = absl::HexStringToBytes(digits);
  std::copy(bytes.begin(), bytes.end(), boot.begin());
  return boot;
}

absl::Status CheckPromisesVersion(rocksdb::FileSystem* files, const std::string& dir) {
  std::unique_ptr<rocksdb::FSSequentialFile> file;
  char memory[kPromiseBytes];
  rocksdb::Slice bytes;
  rocksdb::IOStatus status =
      files->NewSequentialFile(PromisesPath(dir), rocksdb::FileOptions(), &file, nullptr);
  if (status.ok()) status = file->Read(sizeof(memory), kPlain, &bytes, memory, nullptr);
  for (const int error : {EACCES, EPERM}) {
    const char* const text = std::strerror(error);
    if (status.ok() || !absl::StrContains(status.ToString(), text)) continue;
    return absl::FailedPreconditionError(absl::StrCat(
        PromisesPath(dir), ": ", text,
        ": run as the user whom the data folder belongs to, or give the folder and all that is in "
        "it to this one (chown -R)"));
  }
  if (!status.ok()) return absl::OkStatus();  // the reader of all of it reports that
  const std::optional<PromiseEntry> header = ParsePromise({bytes.data(), bytes.size()});
  if (!header.has_value() || header->kind != PromiseKind::kHeader ||
      header->number <= kPromisesVersion) {
    return absl::OkStatus();
  }
  return absl::FailedPreconditionError(absl::StrCat(
      PromisesPath(dir), " has format version ", header->number, "; this program reads ",
      kPromisesVersion, ": use the newer program, or another folder"));
}

rocksdb::Status LookAtPromises(rocksdb::FileSystem* files, const std::string& dir,
                               const BootId& boot, PromiseBook* book,
                               std::vector<std::string>* damage) {
  const std::string path = PromisesPath(dir);
  std::string bytes;
  rocksdb::Status read = rocksdb::ReadFileToString(files, path, &bytes);
  if (!read.ok()) {
    damage->push_back(absl::StrCat(path, " cannot be read: ", read.ToString(),
                                   "; whether anything was lost before cannot be told"));
    return read;
  }
  *book = ReadPromises(bytes);
  if (book->LacksEntries(boot)) {
    damage->push_back(absl::StrCat(path, " is damaged: ", book->LostEntries(boot),
                                   " of its entries are lost, which may hide what else is"));
  }
  return read;
}

PromiseFile::~PromiseFile() {
  std::thread syncer, rewriter;
  {
    const absl::MutexLock lock(&mu_);
    ends_ = true;
    syncer = std::move(syncer_);
    rewriter = std::move(rewriter_);
  }
  if (syncer.joinable()) syncer.join();
  if (rewriter.joinable()) rewriter.join();
}

PromiseBook PromiseFile::Begin(bool is_new, std::vector<std::string>* damage) {
  const absl::MutexLock lock(&mu_);
  assert(generation_ == 0 && bytes_ == 0 && late_.empty());
  RemovePromisesAnew(files_, path_);
  PromiseBook book;
  if (!is_new) {
    const rocksdb::Status read = LookAtPromises(files_, dir_, boot_, &book, damage);
    if (!read.ok() && !read.IsNotFound() && !read.IsPathNotFound()) {
      files_->RenameFile(path_, path_ + ".unreadable", kPlain, nullptr).PermitUncheckedError();
    }
  }
  if (!is_new && book.LacksEntries(boot_)) {
    book.forgot_to = kForgotAll;
    // Until this start has reported them.
    book.unsaid = std::max<uint64_t>(1, book.LostEntries(boot_));
  }
  bytes_ = book.bytes;
  const bool is_whole = book.has_header && book.damaged == 0 && book.torn_bytes == 0;
  if (is_whole) {
    std::unique_ptr<rocksdb::FSWritableFile> file;
    const rocksdb::IOStatus opened =
        files_->ReopenWritableFile(path_, rocksdb::FileOptions(), &file, nullptr);
    if (opened.ok()) file_ = std::move(file);
    live_ = book.LiveEntries();
    entries_ = book.entries;
  } else {
    PromiseBook kept = book;
    kept.boot = boot_;
    WriteAnew(kept).PermitUncheckedError();
  }
  late_ = SerializePromise(PromisesSession(boot_, absl::ToUnixSeconds(absl::Now())));
  if (Write(late_).ok()) late_.clear();
  return book;
}

// Rewrites the file first when it cannot be appended to.
rocksdb::IOStatus PromiseFile::Write(const std::string& bytes) {
  mu_.AssertHeld();
  if (file_ == nullptr) {
    PromiseBook book;
    rocksdb::IOStatus anew = BookNow(&book);
    if (anew.ok()) anew = WriteAnew(book);
    if (!anew.ok()) return anew;
  }
  rocksdb::IOStatus status = file_->Append(bytes, kPlain, nullptr);
  if (status.ok()) {
    bytes_ += bytes.size();
  } else if (!file_->Truncate(bytes_, kPlain, nullptr).ok()) {
    file_ = nullptr;
  }
  return status;
}

// An unreadable file is not written anew: that would leave its promises out.
rocksdb::IOStatus PromiseFile::BookNow(PromiseBook* book) {
  mu_.AssertHeld();
  std::string bytes;
  if (bytes_ > 0) {
    const rocksdb::Status read = rocksdb::ReadFileToString(files_, path_, &bytes);
    if (!read.ok()) return rocksdb::status_to_io_status(rocksdb::Status(read));
    if (bytes.size() < bytes_) {
      return rocksdb::IOStatus::IOError(
          absl::StrCat(path_, " has ", bytes.size(), " bytes, of ", bytes_, " that were written"));
    }
  }
  // Less than was appended: what is torn was never acknowledged.
  *book = BookToKeep(absl::string_view(bytes).substr(0, bytes_), boot_, MayHaveLost());
  return rocksdb::IOStatus::OK();
}

bool PromiseFile::MayHaveLost() const {
  return !files_->FileExists(dir_ + "/lost", kPlain, nullptr).IsNotFound();
}

rocksdb::IOStatus PromiseFile::WriteAnew(const PromiseBook& book) {
  mu_.AssertHeld();
  const std::string bytes = WritePromises(book), part = path_ + kPromisesInstead;
  rocksdb::IOStatus status = rocksdb::WriteStringToFile(files_, bytes, part, /*should_sync=*/true);
  if (status.ok()) status = files_->RenameFile(part, path_, kPlain, nullptr);
  if (!status.ok()) {
    files_->DeleteFile(part, kPlain, nullptr).PermitUncheckedError();
    return status;
  }
  return GoOnWith(bytes.size(), bytes.size() / kPromiseBytes);
}

// The old one is no more, though a crash of the machine may bring it back.
rocksdb::IOStatus PromiseFile::GoOnWith(uint64_t bytes, uint64_t live) {
  mu_.AssertHeld();
  file_ = nullptr;
  bytes_ = bytes;
  synced_bytes_ = 0;
  ++generation_;
  live_ = live;
  entries_ = bytes_ / kPromiseBytes;
  trim_at_ = 0;
  std::unique_ptr<rocksdb::FSWritableFile> file;
  rocksdb::IOStatus status =
      files_->ReopenWritableFile(path_, rocksdb::FileOptions(), &file, nullptr);
  if (status.ok()) status = SyncFolder(files_, dir_);
  if (!status.ok()) return status;
  file_ = std::move(file);
  synced_bytes_ = bytes_;
  safe_generation_ = generation_;
  return status;
}

void PromiseFile::Count(absl::Span<const PromiseEntry> entries) {
  mu_.AssertHeld();
  entries_ += entries.size();
  for (const PromiseEntry& entry : entries) {
    if (entry.kind == PromiseKind::kKept) ++live_;
    if (Leaves(entry) && live_ > 0) --live_;
  }
}

void PromiseFile::TrimWhenDead() {
  mu_.AssertHeld();
  if (is_rewritten_ || entries_ <= std::max(trim_at_, kEntriesEach * live_ + kEntriesFree)) return;
  is_rewritten_ = true;
  if (!rewriter_.joinable()) rewriter_ = std::thread([this] { RewriteWhenAsked(); });
}

void PromiseFile::RewriteWhenAsked() {
  const auto is_asked = [this]()
                            ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return ends_ || is_rewritten_; };
  while (true) {
    {
      const absl::MutexLock lock(&mu_);
      mu_.Await(absl::Condition(&is_asked));
      if (ends_) return;
    }
    const bool is_done = Rewrite();
    const absl::MutexLock lock(&mu_);
    // Without room for it, or where it cannot be read now: later.
    if (!is_done) trim_at_ = 2 * entries_;
    is_rewritten_ = false;
  }
}

bool PromiseFile::Rewrite() {
  uint64_t generation = 0, bytes = 0, came = 0, left = 0;
  {
    const absl::MutexLock lock(&mu_);
    generation = generation_;
    bytes = bytes_;
  }
  // One that was written anew meanwhile, after an error, is another, and needs none.
  const auto is_over = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return ends_ || file_ == nullptr || generation != generation_;
  };
  const auto count = [&](const PromiseEntry& entry) {
    came += entry.kind == PromiseKind::kKept ? 1 : 0;
    left += Leaves(entry) ? 1 : 0;
  };
  PromiseRewrite anew(files_, path_);
  rocksdb::IOStatus status = anew.Begin(bytes, boot_, MayHaveLost());
  for (int follow = 0; status.ok() && follow < kFollows; ++follow) {
    {
      const absl::MutexLock lock(&mu_);
      if (is_over()) return false;
      bytes = bytes_;
    }
    status = anew.Follow(bytes, count);
  }
  const absl::MutexLock lock(&mu_);
  if (!status.ok() || is_over()) return false;
  // All that anybody was told is safe is so in the new one before that has the name.
  status = anew.Follow(bytes_, count);
  if (status.ok()) status = anew.PutInPlace();
  if (!status.ok()) return false;
  const uint64_t live = anew.live() + came;
  GoOnWith(anew.bytes(), live - std::min(live, left)).PermitUncheckedError();
  return true;
}

void PromiseFile::AwaitRewriting() {
  const auto is_at_rest = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return !is_rewritten_; };
  const absl::MutexLock lock(&mu_);
  mu_.Await(absl::Condition(&is_at_rest));
}

rocksdb::IOStatus PromiseFile::Append(absl::Span<const PromiseEntry> entries) {
  const absl::MutexLock lock(&mu_);
  rocksdb::IOStatus status = Write(late_ + BytesOfEntries(entries));
  if (!status.ok()) return status;
  late_.clear();
  Count(entries);
  TrimWhenDead();
  return status;
}

PromiseFile::Place PromiseFile::AppendSoon(absl::Span<const PromiseEntry> entries) {
  const absl::MutexLock lock(&mu_);
  late_ += BytesOfEntries(entries);
  if (!late_.empty() && !Write(late_).ok()) return kNowhere;
  late_.clear();
  Count(entries);
  TrimWhenDead();
  return {generation_, bytes_, 0};
}

PromiseFile::Place PromiseFile::BeginSync() {
  const absl::MutexLock lock(&mu_);
  if (!syncer_.joinable()) syncer_ = std::thread([this] { SyncWhenAsked(); });
  // After a sync that failed; where this fails too, the sync says that it is not open.
  if (file_ == nullptr) Write("").PermitUncheckedError();
  return {generation_, bytes_, ++syncs_.asked};
}

rocksdb::IOStatus PromiseFile::EndSync(const Place& place) {
  const auto is_answered = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return syncs_.answered >= place.request;
  };
  const absl::MutexLock lock(&mu_);
  mu_.Await(absl::Condition(&is_answered));
  return IsSyncedLocked(place) ? rocksdb::IOStatus::OK() : syncs_.error;
}

bool PromiseFile::IsSynced(const Place& place) const {
  const absl::MutexLock lock(&mu_);
  return IsSyncedLocked(place);
}

void PromiseFile::NoteSynced(const Place& place) {
  const PromiseEntry entry{PromiseKind::kSynced, PromiseLevel::kNone, 0, place.bytes, {}, 0};
  const absl::MutexLock lock(&mu_);
  // A file written anew meanwhile, or now, has other places.
  if (place.generation != generation_ || file_ == nullptr) return;
  if (!Write(SerializePromise(entry)).ok()) return;
  ++entries_;
}

void PromiseFile::Close() {
  const auto now = static_cast<uint64_t>(absl::ToUnixSeconds(absl::Now()));
  const PromiseEntry entry{PromiseKind::kClosed, PromiseLevel::kNone, 0, 0, {}, now};
  if (Append({&entry, 1}).ok()) EndSync(BeginSync()).PermitUncheckedError();
}

void PromiseFile::SyncWhenAsked() {
  const auto is_asked = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return ends_ || syncs_.asked > syncs_.answered;
  };
  while (true) {
    std::shared_ptr<rocksdb::FSWritableFile> file;
    uint64_t asked = 0, bytes = 0, generation = 0;
    {
      const absl::MutexLock lock(&mu_);
      mu_.Await(absl::Condition(&is_asked));
      if (syncs_.asked == syncs_.answered) return;
      asked = syncs_.asked;
      bytes = bytes_;
      generation = generation_;
      file = file_;
    }
    rocksdb::IOStatus status = rocksdb::IOStatus::IOError("the file of promises is not open");
    if (file != nullptr) status = file->Sync(kPlain, nullptr);
    const absl::MutexLock lock(&mu_);
    syncs_.answered = asked;
    if (status.ok() && generation == generation_) synced_bytes_ = std::max(synced_bytes_, bytes);
    if (status.ok()) continue;
    syncs_.error = status;
    // Entries that it should have kept may be gone from memory as well: it is written anew.
    if (generation == generation_) file_ = nullptr;
  }
}

}  // namespace hearth
