#include "cache_store/disk/files/disk_tier_direct.h"

#include <algorithm>
#include <cassert>
#include <cstdlib>
#include <cstring>
#include <new>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"

namespace hearth {

using rocksdb::IOStatus;

namespace {

// Buffers for the next files: fresh memory costs as much to touch as the page cache would.
struct Spare {
  static constexpr size_t kMax = 16;  // of eight files at once
  absl::Mutex mu;
  std::vector<char*> buffers ABSL_GUARDED_BY(mu);
};

Spare& TheSpare() {
  static auto* const spare = new Spare;
  return *spare;
}

void GiveBack(char* buffer) {
  const absl::MutexLock lock(&TheSpare().mu);
  std::vector<char*>& buffers = TheSpare().buffers;
  buffers.size() < Spare::kMax ? buffers.push_back(buffer) : std::free(buffer);
}

}  // namespace

DirectFile::Buffer DirectFile::NewBuffer() {
  const absl::MutexLock lock(&TheSpare().mu);
  std::vector<char*>& buffers = TheSpare().buffers;
  if (buffers.empty()) {
    void* const memory = std::aligned_alloc(kAlignment, kDirectBufferBytes);
    if (memory == nullptr) throw std::bad_alloc();
    buffers.push_back(static_cast<char*>(memory));
  }
  Buffer buffer(buffers.back(), GiveBack);
  buffers.pop_back();
  return buffer;
}

DirectFile::DirectFile(std::unique_ptr<rocksdb::FSWritableFile> file)
    : file_(std::move(file)), filling_(NewBuffer()), writing_(nullptr, GiveBack) {
  assert(kAlignment % file_->GetRequiredBufferAlignment() == 0);
}

DirectFile::~DirectFile() {
  if (!closed_) Close(Options(), nullptr).PermitUncheckedError();
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

IOStatus DirectFile::Hand() {
  if (IOStatus status = Wait(); !status.ok()) return status;
  std::swap(filling_, writing_);
  if (filling_ == nullptr) filling_ = NewBuffer();
  const uint64_t offset = size_ - std::exchange(filled_, 0);
  under_way_ = std::async(std::launch::async, [this, offset] {
    return WriteOut(writing_, kDirectBufferBytes, offset);
  });
  return IOStatus::OK();
}

IOStatus DirectFile::Wait() {
  if (under_way_.valid()) written_ = under_way_.get();
  return written_;
}

IOStatus DirectFile::WriteOut(const Buffer& buffer, size_t bytes, uint64_t offset) {
  return file_->PositionedAppend(rocksdb::Slice(buffer.get(), bytes), offset, Options(), nullptr);
}

IOStatus DirectFile::Close(const Options& options, Context* dbg) {
  assert(!closed_);
  closed_ = true;
  IOStatus status = Wait();
  if (status.ok() && filled_ > 0) {
    // Whole pages only: what is too much is cut off again.
    const size_t bytes = (filled_ + kAlignment - 1) / kAlignment * kAlignment;
    std::memset(filling_.get() + filled_, 0, bytes - filled_);
    status = WriteOut(filling_, bytes, size_ - filled_);
    if (status.ok()) status = file_->Truncate(size_, options, dbg);
  }
  const IOStatus closed = file_->Close(options, dbg);
  return status.ok() ? closed : status;
}

}  // namespace hearth
