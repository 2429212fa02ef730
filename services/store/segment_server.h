// SegmentServer: gives the store's shared memory to processes of the same host and the same user.
//
// A client that connects gets the segment's file descriptor and keeps the connection open. When the
// connection ends, client and store know that the other process is gone. The descriptor is sealed
// (host_arena.h): clients can neither write nor shrink the memory. If the data is in device memory,
// its descriptor follows in a second message, which a client that refuses the segment never takes.
// Thread safety: made and destroyed by one thread; serves on its own thread. Ownership: borrows the
// descriptors, which must stay open while this object lives.
#ifndef HEARTH_SERVICES_STORE_SEGMENT_SERVER_H_
#define HEARTH_SERVICES_STORE_SEGMENT_SERVER_H_

#include <memory>
#include <string>
#include <thread>

#include "absl/status/statusor.h"
#include "services/rpc/segment_socket.h"

namespace hearth {

class SegmentServer {
 public:
  // Maximum number of connected readers. Further readers are refused.
  static constexpr size_t kMaxReaders = 256;
  static constexpr int kRetryMs = 100;  // pause after a failed accept

  // `name`: name of the socket (segment_socket.h). `device_fd`: the data in device memory; -1: the
  // data is in the segment. kUnavailable if the server cannot listen there.
  static absl::StatusOr<std::unique_ptr<SegmentServer>> Start(const std::string& name,
                                                              int segment_fd, int device_fd = -1);
  ~SegmentServer();  // ends all connections, and readers unmap the segment

  const std::string& name() const { return name_; }

 private:
  SegmentServer(std::string name, int segment_fd, int device_fd, FileDescriptor listener,
                FileDescriptor stop);
  void Serve();

  const std::string name_;
  const int segment_fd_, device_fd_;
  const FileDescriptor listener_;
  const FileDescriptor stop_;  // eventfd that ends the thread
  std::thread thread_;
};

}  // namespace hearth

#endif  // HEARTH_SERVICES_STORE_SEGMENT_SERVER_H_
