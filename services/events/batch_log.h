// BatchLog: the last batches that were published, with their numbers, for those who missed some.
//
// Thread safety: none, its owner guards it. Ownership: payloads are shared with whoever sends them.
// Invariants: numbers have no gap; what is kept is within both limits, but for the last batch and
// those without events.
#ifndef HEARTH_SERVICES_EVENTS_BATCH_LOG_H_
#define HEARTH_SERVICES_EVENTS_BATCH_LOG_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <vector>

namespace hearth {

struct KvBatch {
  uint64_t number = 0;
  std::shared_ptr<const std::string> payload;
};

class BatchLog {
 public:
  BatchLog(size_t max_batches, uint64_t max_bytes, uint64_t first_number)
      : max_batches_(max_batches), max_bytes_(max_bytes), next_(first_number) {}

  void Append(std::string payload);
  // `count` batches that tell nothing: they take numbers, and nobody's place.
  void AppendEmpty(size_t count, std::string payload);
  // Those from `number` on that are kept, `most` at most.
  std::vector<KvBatch> From(uint64_t number, size_t most) const;

  uint64_t first() const { return next_ - batches_.size(); }  // kept
  uint64_t next() const { return next_; }                     // of the next batch
  uint64_t bytes() const { return bytes_; }

 private:
  struct Kept {
    KvBatch batch;
    bool is_empty = false;
  };

  const size_t max_batches_;
  const uint64_t max_bytes_;
  std::deque<Kept> batches_;
  uint64_t next_;
  size_t with_events_ = 0;
  uint64_t bytes_ = 0;  // of those with events
};

}  // namespace hearth

#endif  // HEARTH_SERVICES_EVENTS_BATCH_LOG_H_
