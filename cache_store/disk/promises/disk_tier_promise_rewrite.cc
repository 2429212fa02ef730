#include <algorithm>
#include <cassert>
#include <optional>

#include "absl/strings/str_cat.h"
#include "cache_store/disk/files/rocks_status.h"
#include "cache_store/disk/promises/disk_tier_promise_file.h"

namespace hearth {
PromiseBook BookToKeep(absl::string_view bytes, const BootId& boot, bool may_have_lost) {
  PromiseBook book = ReadPromises(bytes);
  // Some rotted since they were written: the next start is to report it.
  if (book.damaged > 0 || (!book.has_header && !bytes.empty())) {
    book.forgot_to = kForgotAll;
    book.unsaid += std::max<uint64_t>(1, book.damaged);
  }
  book.boot = boot;
  if (!may_have_lost) {
    book.lost.clear();
    book.forgot_to = 0;
  }
  return book;
}

void RemovePromisesAnew(rocksdb::FileSystem* files, const std::string& path) {
  for (const char* part : {kPromisesBeside, kPromisesInstead}) {
    files->DeleteFile(path + part, kPlain, nullptr).PermitUncheckedError();
  }
}

PromiseRewrite::PromiseRewrite(rocksdb::FileSystem* files, const std::string& path)
    : files_(files), path_(path), part_(path + kPromisesBeside) {}

PromiseRewrite::~PromiseRewrite() {
  if (file_ == nullptr) return;
  file_.reset();
  files_->DeleteFile(part_, kPlain, nullptr).PermitUncheckedError();
}

rocksdb::IOStatus PromiseRewrite::Begin(uint64_t bytes, const BootId& boot, bool may_have_lost) {
  assert(file_ == nullptr && bytes_ == 0);
  std::string old;
  rocksdb::IOStatus status = Read(0, bytes, &old);
  if (!status.ok()) return status;
  const PromiseBook book = BookToKeep(old, boot, may_have_lost);
  // Left as it is, for the next start to report.
  if (book.damaged > 0) return rocksdb::IOStatus::IOError(path_ + " is damaged");
  old = WritePromises(book);
  status = files_->NewWritableFile(part_, rocksdb::FileOptions(), &file_, nullptr);
  if (status.ok()) status = Write(old);
  begun_ = followed_ = bytes;
  first_ = bytes_;
  live_ = first_ / kPromiseBytes;
  return status;
}

rocksdb::IOStatus PromiseRewrite::Follow(uint64_t bytes, const Visit& visit) {
  assert(file_ != nullptr && bytes >= followed_);
  std::string old, anew;
  rocksdb::IOStatus status = Read(followed_, bytes, &old);
  if (!status.ok()) return status;
  for (size_t at = 0; at < old.size(); at += kPromiseBytes) {
    std::optional<PromiseEntry> entry =
        ParsePromise(absl::string_view(old).substr(at, kPromiseBytes));
    if (!entry.has_value()) {
      return rocksdb::IOStatus::IOError(
          absl::StrCat(path_, ": what was written at ", followed_ + at, " is damaged"));
    }
    // Of a place in what was left out it says nothing: the next one does.
    if (entry->kind == PromiseKind::kSynced) {
      entry->number = entry->number < begun_ ? 0 : entry->number - begun_ + first_;
    }
    visit(*entry);
    anew += SerializePromise(*entry);
  }
  followed_ = bytes;
  if (!anew.empty()) status = Write(anew);
  if (!status.ok() || synced_bytes_ == bytes_) return status;
  status = file_->Sync(kPlain, nullptr);
  if (status.ok()) synced_bytes_ = bytes_;
  return status;
}

rocksdb::IOStatus PromiseRewrite::PutInPlace() {
  assert(file_ != nullptr && synced_bytes_ == bytes_);
  rocksdb::IOStatus status = file_->Close(kPlain, nullptr);
  if (status.ok()) status = files_->RenameFile(part_, path_, kPlain, nullptr);
  if (status.ok()) file_.reset();
  return status;
}

rocksdb::IOStatus PromiseRewrite::Read(uint64_t from, uint64_t to, std::string* out) const {
  assert(from <= to);
  out->resize(to - from);
  if (out->empty()) return rocksdb::IOStatus::OK();
  std::unique_ptr<rocksdb::FSRandomAccessFile> file;
  rocksdb::IOStatus status =
      files_->NewRandomAccessFile(path_, rocksdb::FileOptions(), &file, nullptr);
  rocksdb::Slice read;
  if (status.ok()) {
    status = file->Read(from, out->size(), kPlain, &read, &(*out)[0], nullptr);
  }
  if (!status.ok()) return status;
  if (read.size() < out->size()) {
    return rocksdb::IOStatus::IOError(
        absl::StrCat(path_, " ends at ", from + read.size(), ", of ", to, " bytes written"));
  }
  if (read.data() != out->data()) out->assign(read.data(), read.size());
  return status;
}

rocksdb::IOStatus PromiseRewrite::Write(const std::string& bytes) {
  rocksdb::IOStatus status = file_->Append(bytes, kPlain, nullptr);
  if (status.ok()) bytes_ += bytes.size();
  return status;
}

}  // namespace hearth
