// LogitsDigest: SHA-256 of the logits that one answer was drawn from, token after token, made on
// another thread: a row is a megabyte, and sequences that decode must not wait for it. Several
// answers take turns, row by row.
//
// Thread safety: Add, AwaitRoom and Finish by one thread at a time; `done` comes from that one or
// from a thread of the queue. Ownership: shared by its user and the work under way. The queue must
// outlive it. Limits: kMaxWaitingRows wait, the one that is being hashed among them, and those that
// the step gave that began with room.
#ifndef HEARTH_WORKER_ENGINE_LOGITS_DIGEST_H_
#define HEARTH_WORKER_ENGINE_LOGITS_DIGEST_H_

#include <cstddef>
#include <deque>
#include <functional>
#include <memory>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "proto/fingerprint.h"
#include "worker/engine/speculation.h"
#include "worker/engine/task_queue.h"

namespace hearth {

class LogitsDigest : public std::enable_shared_from_this<LogitsDigest> {
 public:
  // One is hashed while the next is computed.
  static constexpr size_t kMaxWaitingRows = 2;
  static constexpr size_t kMaxStepRows = DraftLength::kMost + 1;

  struct Digests {
    Digest first{};  // of the first row; zero without one
    Digest all{};  // of all rows, one after the other, float32 little endian; zero unless asked for
  };

  // `all`: hash all rows; else only the first.
  LogitsDigest(TaskQueue* queue, bool all);
  ~LogitsDigest();
  LogitsDigest(const LogitsDigest&) = delete;
  LogitsDigest& operator=(const LogitsDigest&) = delete;

  // Takes the next token's logits if they are to be hashed, and leaves memory for others. REQUIRES:
  // there was room before the step that gave them.
  void Add(std::vector<float>* logits) ABSL_LOCKS_EXCLUDED(mu_);
  // Whether there is room for another row. Where not, a thread of the queue calls `on_room` once
  // there is.
  bool AwaitRoom(std::function<void()> on_room) ABSL_LOCKS_EXCLUDED(mu_);
  // Calls `done` once, when all added rows are hashed. To be called once, after the last Add.
  void Finish(std::function<void(const Digests&)> done) ABSL_LOCKS_EXCLUDED(mu_);

 private:
  struct Hash;
  void Work() ABSL_LOCKS_EXCLUDED(mu_);
  bool HashOne() ABSL_LOCKS_EXCLUDED(mu_);
  Digests Made();

  TaskQueue* const queue_;
  const bool all_;
  size_t added_ = 0;                  // rows; who adds
  const std::unique_ptr<Hash> hash_;  // who works, or nobody any more
  absl::Mutex mu_;
  bool working_ ABSL_GUARDED_BY(mu_) = false;
  std::deque<std::vector<float>> waiting_ ABSL_GUARDED_BY(mu_);  // the first is being hashed
  std::vector<std::vector<float>> spare_ ABSL_GUARDED_BY(mu_);
  std::function<void()> on_room_ ABSL_GUARDED_BY(mu_);
  std::function<void(const Digests&)> done_ ABSL_GUARDED_BY(mu_);
};

}  // namespace hearth

#endif  // HEARTH_WORKER_ENGINE_LOGITS_DIGEST_H_
