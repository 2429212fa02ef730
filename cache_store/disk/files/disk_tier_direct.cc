#include "cache_store/disk/files/disk_tier_direct.h"

#include <algorithm>
#include <cassert>
#include <cstdlib>
#include <cstring>
#include <new>
#include <utility>

namespace hearth {

using rocksdb::IOStatus;

DirectBuffers::Buffer DirectBuffers::Take() {
  {
    absl::MutexLock lock(&mu_);
    if (!kept_.empty()) {
      Buffer buffer = std::move(kept_.back());
      kept_.pop_back();
      return buffer;
    }
  }
  void* memory = std::aligned_alloc(kAlignment, kDirectBufferBytes);
  if (memory == nullptr) throw std::bad_alloc();
  return {static_cast<std::byte*>(memory), std::free};
}

void DirectBuffers::Give(Buffer buffer) {
  if (buffer == nullptr) return;
  absl::MutexLock lock(&mu_);
  if (kept_.size() < kMaxKept) kept_.push_back(std::move(buffer));
}

DirectFile::DirectFile(std::unique_ptr<rocksdb::FSWritableFile> file, DirectBuffers* buffers)
    : file_(std::move(file)), buffers_(buffers), filling_(buffers->Take()) {
  assert(DirectBuffers::kAlignment % file_->GetRequiredBufferAlignment() == 0);
}

DirectFile::~DirectFile() {
  if (!closed_) Close(Options(), nullptr).PermitUncheckedError();
  buffers_->Give(std::move(filling_));
  absl::MutexLock lock(&mu_);
  buffers_->Give(std::move(spare_));
}

IOStatus DirectFile::Append(const rocksdb::Slice& data, const Options&, Context*) {
  const char* from = data.data();
  for (size_t left = data.size(); left > 0;) {
    const size_t bytes = std::min(left, kDirectBufferBytes - filled_);
    std::memcpy(filling_.get() + filled_, from, bytes);
    filled_ += bytes, from += bytes, left -= bytes;
    size_ += bytes;
    if (filled_ < kDirectBufferBytes) continue;
    if (IOStatus status = Hand(); !status.ok()) return status;
  }
  return IOStatus::OK();
}

// The full buffer to the thread, once that is done with the last one.
IOStatus DirectFile::Hand() {
  auto piece = std::make_unique<Piece>();
  piece->buffer = std::move(filling_);
  piece->bytes = filled_;
  piece->offset = size_ - filled_;
  filled_ = 0;
  if (!writer_.joinable()) writer_ = std::thread([this] { Run(); });
  absl::MutexLock lock(&mu_);
  mu_.Await(absl::Condition(
      +[](std::unique_ptr<Piece>* at) { return *at == nullptr; }, &piece_));
  piece_ = std::move(piece);
  filling_ = std::move(spare_);
  if (filling_ == nullptr) filling_ = buffers_->Take();
  return written_;
}

IOStatus DirectFile::WriteOut(const Piece& piece) {
  const rocksdb::Slice bytes(reinterpret_cast<const char*>(piece.buffer.get()), piece.bytes);
  return file_->PositionedAppend(bytes, piece.offset, Options(), nullptr);
}

void DirectFile::Run() {
  const auto has_work = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return piece_ != nullptr || stopping_;
  };
  while (true) {
    Piece* piece = nullptr;
    {
      absl::MutexLock lock(&mu_);
      mu_.Await(absl::Condition(&has_work));
      if (piece_ == nullptr) return;
      if (written_.ok()) piece = piece_.get();
    }
    IOStatus status;
    if (piece != nullptr) status = WriteOut(*piece);
    absl::MutexLock lock(&mu_);
    if (written_.ok()) written_ = status;
    spare_ = std::move(piece_->buffer);
    piece_ = nullptr;
  }
}

IOStatus DirectFile::Drain() {
  if (!writer_.joinable()) return IOStatus::OK();
  {
    absl::MutexLock lock(&mu_);
    stopping_ = true;
  }
  writer_.join();
  absl::MutexLock lock(&mu_);
  return written_;
}

IOStatus DirectFile::Close(const Options& options, Context* dbg) {
  assert(!closed_);
  closed_ = true;
  IOStatus status = Drain();
  if (status.ok() && filled_ > 0) {
    // Whole pages only: what is too much is cut off again.
    constexpr size_t kPage = DirectBuffers::kAlignment;
    Piece tail{std::move(filling_), (filled_ + kPage - 1) / kPage * kPage, size_ - filled_};
    std::memset(tail.buffer.get() + filled_, 0, tail.bytes - filled_);
    status = WriteOut(tail);
    filling_ = std::move(tail.buffer);
    if (status.ok()) status = file_->Truncate(size_, options, dbg);
  }
  const IOStatus closed = file_->Close(options, dbg);
  return status.ok() ? closed : status;
}

}  // namespace hearth
