#include "services/rpc/segment_client.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cassert>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"

namespace hearth {

absl::StatusOr<std::shared_ptr<const MappedSegment>> MappedSegment::Map(const FileDescriptor& file,
                                                                        const ImportDevice& import,
                                                                        int connection) {
  struct stat status;
  const int seals = fcntl(file.get(), F_GET_SEALS);
  // Refuse a file that may shrink: reading memory after the file's new end would kill this process.
  if (seals < 0 || (seals & F_SEAL_SHRINK) == 0 || fstat(file.get(), &status) != 0) {
    return absl::FailedPreconditionError("shared memory: the segment is not sealed");
  }
  const auto bytes = static_cast<uint64_t>(status.st_size);
  if (bytes < kSegmentHeaderBytes) {
    return absl::FailedPreconditionError("shared memory: the segment has no header");
  }
  void* mapping = mmap(nullptr, bytes, PROT_READ, MAP_SHARED, file.get(), 0);
  if (mapping == MAP_FAILED) {
    return absl::UnavailableError(absl::StrCat("shared memory: mmap failed: ", strerror(errno)));
  }
  const absl::StatusOr<SegmentLayout> layout = ParseSegmentHeader(
      absl::string_view(static_cast<const char*>(mapping), kSegmentHeaderBytes), bytes);
  if (!layout.ok()) {
    munmap(mapping, bytes);
    return layout.status();
  }
  std::shared_ptr<MappedSegment> segment(new MappedSegment(*layout));
  assert(layout->file_bytes() <= bytes);
  segment->mapping_ = static_cast<const std::byte*>(mapping);
  if (import != nullptr) {
    if (!layout->device.has_value()) {
      return absl::FailedPreconditionError("shared memory: the segment is not in device memory");
    }
    const absl::StatusOr<FileDescriptor> data = ReceiveDescriptor(connection);
    if (!data.ok()) return data.status();
    auto memory = import(*layout->device, data->get());
    if (!memory.ok()) return memory.status();
    segment->device_ = *std::move(memory);
  }
  madvise(mapping, bytes, MADV_HUGEPAGE);
  return segment;
}

MappedSegment::~MappedSegment() {
  if (mapping_ != nullptr) munmap(const_cast<std::byte*>(mapping_), layout_.file_bytes());
}

absl::Status MappedSegment::Check(const SegmentRange& range) const {
  if (range.offset % kSegmentGranuleBytes != 0 || range.offset >= layout_.data_bytes ||
      range.bytes > layout_.data_bytes - range.offset) {
    return absl::OutOfRangeError(
        "shared memory: a range lies outside the segment, or does not begin at a granule");
  }
  const auto* generations =
      reinterpret_cast<const SegmentGeneration*>(mapping_ + kSegmentHeaderBytes);
  const SegmentGeneration& generation = generations[range.offset / kSegmentGranuleBytes];
  // The loads of a copy before this check must not move after the load of the generation.
  std::atomic_thread_fence(std::memory_order_acquire);
  if (generation.load(std::memory_order_acquire) == range.generation) return absl::OkStatus();
  return absl::AbortedError("shared memory: the store reused the range before it was copied");
}

absl::Status MappedSegment::Copy(const SegmentRange& range, std::byte* to, SliceHasher* hasher,
                                 absl::FunctionRef<void()> between) const {
  assert(!layout_.device.has_value());
  if (absl::Status status = Check(range); !status.ok()) return status;
  assert(range.offset + range.bytes <= layout_.data_bytes);
  hasher->AddCopy(to, At(range), range.bytes);
  between();
  return Check(range);
}

SegmentClient::~SegmentClient() {
  absl::MutexLock lock(&take_mu_);
  Drop();
}

std::shared_ptr<const MappedSegment> SegmentClient::current() const {
  absl::MutexLock lock(&mu_);
  return segment_;
}

absl::Status SegmentClient::MapOffered(const std::string& socket, const SegmentId& id,
                                       bool* is_new) {
  absl::MutexLock taking(&take_mu_);
  const bool is_known = id == tried_ && (!problem_.ok() || current() != nullptr);
  if (is_new != nullptr) *is_new = !is_known;
  if (is_known) return problem_;
  Drop();
  tried_ = id;
  const auto take = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(take_mu_) -> absl::Status {
    absl::StatusOr<FileDescriptor> connection = ConnectToUnix(socket);
    if (!connection.ok()) return connection.status();
    const absl::StatusOr<FileDescriptor> file = ReceiveDescriptor(connection->get());
    if (!file.ok()) return file.status();
    auto segment = MappedSegment::Map(*file, import_, connection->get());
    if (!segment.ok()) return segment.status();
    if ((*segment)->id() != id) {
      return absl::UnavailableError("shared memory: the socket belongs to another store");
    }
    stop_ = FileDescriptor(eventfd(0, EFD_CLOEXEC));
    if (!stop_.valid())
      return absl::UnavailableError("shared memory: this process has no free file descriptor");
    connection_ = *std::move(connection);
    {
      absl::MutexLock lock(&mu_);
      segment_ = *std::move(segment);
    }
    assert(!watcher_.joinable());
    watcher_ = std::thread(
        [this, connection = connection_.get(), stop = stop_.get()] { Watch(connection, stop); });
    return absl::OkStatus();
  };
  problem_ = take();
  return problem_;
}

void SegmentClient::Drop() {
  take_mu_.AssertHeld();
  if (watcher_.joinable()) {
    eventfd_write(stop_.get(), 1);
    watcher_.join();
  }
  connection_ = FileDescriptor();
  std::shared_ptr<const MappedSegment> gone;  // freed after the lock is released
  absl::MutexLock lock(&mu_);
  std::swap(gone, segment_);
}

// Waits until the store closes its end of the connection, then drops the segment.
void SegmentClient::Watch(int connection, int stop) {
  pollfd waiting[] = {{connection, POLLIN, 0}, {stop, POLLIN, 0}};
  while (poll(waiting, 2, -1) < 0 && errno == EINTR) {
  }
  if (waiting[1].revents != 0) return;
  std::shared_ptr<const MappedSegment> gone;  // freed after the lock is released
  absl::MutexLock lock(&mu_);
  std::swap(gone, segment_);
}

}  // namespace hearth
