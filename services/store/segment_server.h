// SegmentServer: gives the store's shared memory to processes of the same host and the same user.
//
// A client that connects gets the segment's descriptor and keeps the connection. If the connection
// ends, each side knows that the other is gone. The descriptor is sealed (host_arena.h): it allows
// no writing and no shrinking. Thread safety: made and destroyed by one thread; serves on its own
// thread. Ownership: borrows the descriptor, which must stay open while this lives.
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
  // The most readers. It refuses further readers.
  static constexpr size_t kMaxReaders = 256;
  static constexpr int kRetryMs = 100;  // after it could not accept a reader

  // `name`: of the socket (segment_socket.h). kUnavailable if it cannot listen there.
  static absl::StatusOr<std::unique_ptr<SegmentServer>> Start(const std::string& name,
                                                              int segment_fd);
  ~SegmentServer();  // readers then unmap the segment

  const std::string& name() const { return name_; }

 private:
  SegmentServer(std::string name, int segment_fd, FileDescriptor listener, FileDescriptor stop);
  void Serve();

  const std::string name_;
  const int segment_fd_;
  const FileDescriptor listener_;
  const FileDescriptor stop_;  // an eventfd
  std::thread thread_;
};

}  // namespace hearth

#endif  // HEARTH_SERVICES_STORE_SEGMENT_SERVER_H_
