// SliceCopier: copies slices out of the store's shared memory into the objects of a fetch, and
// verifies them in the same pass.
//
// The copies of a large fetch are divided among threads, because one core copies and hashes slower
// than memory can deliver. A small fetch uses only the calling thread. If another fetch uses the
// threads, a fetch does not wait for them: it copies on its own thread. Thread safety: all methods
// from any thread. Ownership: owns its threads.
#ifndef HEARTH_SERVICES_INFERENCE_SLICE_COPIER_H_
#define HEARTH_SERVICES_INFERENCE_SLICE_COPIER_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>

#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/types/span.h"
#include "proto/cache_store.pb.h"
#include "services/inference/object_builder.h"
#include "services/rpc/segment_client.h"
#include "worker/model/thread_pool.h"

namespace hearth {

struct SliceCopierOptions {
  // Number of threads for one fetch, the calling thread included; at most kMaxThreads are used.
  int threads = 1;
  // A fetch uses one thread for each `bytes_per_thread` bytes that it copies, and at least one.
  uint64_t bytes_per_thread = kBytesPerThread;
  // For tests: called on the copying thread after a slice of the plan was copied, before the second
  // check of its generation.
  std::function<void(size_t slice)> between = nullptr;

  // More threads than this would hardly read memory faster.
  static constexpr int kMaxThreads = 8;
  // One thread copies 8 MiB in about 1 ms; waking another one takes up to 0.1 ms.
  static constexpr uint64_t kBytesPerThread = uint64_t{8} << 20;
};

class SliceCopier {
 public:
  explicit SliceCopier(SliceCopierOptions options);

  // Copies the slices that a plan shares to `builder`. Each range must be a whole slice of the plan
  // and have the slice's digest. kAborted: the store reused the range before it was copied.
  // kDataLoss: the bytes do not have the digest. kFailedPrecondition: the plan contradicts itself.
  // If several slices have errors, returns the error of the first one in the plan.
  absl::Status Copy(const v1::SharedSlices& shared, const MappedSegment& segment,
                    ObjectBuilder* builder);

 private:
  struct SliceCopy;

  void CopyAll(const MappedSegment& segment, absl::Span<SliceCopy> copies);
  void CopySome(const MappedSegment& segment, absl::Span<SliceCopy> copies,
                std::atomic<size_t>* next) const;

  const SliceCopierOptions options_;
  absl::Mutex pool_mu_;  // held while pool_ copies; only with TryLock
  ThreadPool pool_;
};

}  // namespace hearth

#endif  // HEARTH_SERVICES_INFERENCE_SLICE_COPIER_H_
