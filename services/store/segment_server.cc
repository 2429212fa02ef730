#include "services/store/segment_server.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

namespace hearth {

absl::StatusOr<std::unique_ptr<SegmentServer>> SegmentServer::Start(const std::string& name,
                                                                    int segment_fd, int device_fd) {
  absl::StatusOr<FileDescriptor> listener = ListenOnUnix(name);
  if (!listener.ok()) return listener.status();
  FileDescriptor stop(eventfd(0, EFD_CLOEXEC));
  if (!stop.valid()) {
    return absl::UnavailableError(absl::StrCat("shared memory: eventfd failed: ", strerror(errno)));
  }
  std::unique_ptr<SegmentServer> server(
      new SegmentServer(name, segment_fd, device_fd, *std::move(listener), std::move(stop)));
  server->thread_ = std::thread([raw = server.get()] { raw->Serve(); });
  return server;
}

SegmentServer::SegmentServer(std::string name, int segment_fd, int device_fd,
                             FileDescriptor listener, FileDescriptor stop)
    : name_(std::move(name)),
      segment_fd_(segment_fd),
      device_fd_(device_fd),
      listener_(std::move(listener)),
      stop_(std::move(stop)) {}

SegmentServer::~SegmentServer() {
  eventfd_write(stop_.get(), 1);
  thread_.join();
  if (name_[0] != '@') unlink(name_.c_str());
}

void SegmentServer::Serve() {
  std::vector<FileDescriptor> readers;
  for (;;) {
    std::vector<pollfd> waiting = {{stop_.get(), POLLIN, 0}, {listener_.get(), POLLIN, 0}};
    for (const FileDescriptor& reader : readers) waiting.push_back({reader.get(), POLLIN, 0});
    if (poll(waiting.data(), waiting.size(), -1) < 0) {
      if (errno == EINTR) continue;
      return;  // out of memory: current readers keep the segment, no new reader gets it
    }
    if (waiting[0].revents != 0) return;
    // A reader sends nothing after its connect, so any event means that the reader is gone.
    for (size_t i = readers.size(); i > 0; --i) {
      if (waiting[i + 1].revents != 0) readers.erase(readers.begin() + (i - 1));
    }
    if (waiting[1].revents == 0) continue;
    FileDescriptor reader(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
    // A reader that could not be accepted stays in the queue. Without a pause, accept would fail
    // again at once until descriptors or memory are free.
    if (!reader.valid() &&
        (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM))
      poll(waiting.data(), 1, kRetryMs);
    if (!reader.valid() || readers.size() >= kMaxReaders || !PeerIsSameUser(reader.get())) continue;
    if (!SendDescriptor(reader.get(), segment_fd_)) continue;
    if (device_fd_ >= 0 && !SendDescriptor(reader.get(), device_fd_)) continue;
    readers.push_back(std::move(reader));
  }
}

}  // namespace hearth
