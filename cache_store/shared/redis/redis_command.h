// What is sent to a Redis server: commands as bytes, and the queue of them before a socket.
//
// Thread safety: none.
#ifndef HEARTH_CACHE_STORE_SHARED_REDIS_REDIS_COMMAND_H_
#define HEARTH_CACHE_STORE_SHARED_REDIS_REDIS_COMMAND_H_

#include <cstddef>
#include <deque>
#include <string>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace hearth {

// One command in Redis's protocol.
std::string FormatCommand(absl::Span<const absl::string_view> words);

// Bytes in the order in which they are to be sent. Short commands lie together, so that many of
// them are one write; long ones are not copied again.
class OutputQueue {
 public:
  void Append(std::string command);
  bool empty() const { return pieces_.empty(); }
  size_t bytes() const { return bytes_; }
  absl::string_view Front() const;
  // REQUIRES: count <= Front().size().
  void Consume(size_t count);

 private:
  std::deque<std::string> pieces_;
  size_t taken_ = 0;  // of the first
  size_t bytes_ = 0;
};

}  // namespace hearth

#endif  // HEARTH_CACHE_STORE_SHARED_REDIS_REDIS_COMMAND_H_
