// DeviceClient: a worker's view of the device memory that a store of its host shares.
//
// Maps the memory of an offered segment (segment_client.h) when it is this worker's device, copies
// out of it, and unmaps it as soon as the store is gone, so that the device has the memory back
// when the copies from it end. Thread safety: all methods from any thread.
#ifndef HEARTH_SERVICES_INFERENCE_DEVICE_CLIENT_H_
#define HEARTH_SERVICES_INFERENCE_DEVICE_CLIENT_H_

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/types/span.h"
#include "cache_store/base/device_memory.h"
#include "services/rpc/segment_client.h"

namespace hearth {

struct MappedDevice {
  std::shared_ptr<const MappedSegment> segment;  // the ranges' generations
  std::unique_ptr<ImportedMemory> memory;
};

class DeviceClient {
 public:
  explicit DeviceClient(ImportDevice import) : import_(std::move(import)) {}

  // Of a store that is alive; null when there is none.
  std::shared_ptr<const MappedDevice> current() ABSL_LOCKS_EXCLUDED(mu_);
  // As SegmentClient::MapOffered.
  absl::Status MapOffered(const std::string& socket, const SegmentId& id) ABSL_LOCKS_EXCLUDED(mu_);
  // Copies to this process's own memory. kAborted: a range was used again, or the store went away,
  // before the copies were complete.
  absl::StatusOr<std::vector<std::shared_ptr<const std::byte>>> Copy(
      const MappedDevice& device, absl::Span<const SegmentRange> ranges);

 private:
  void Unmap() ABSL_LOCKS_EXCLUDED(mu_);

  const ImportDevice import_;
  absl::Mutex mu_;
  SegmentId tried_ ABSL_GUARDED_BY(mu_){};
  absl::Status problem_ ABSL_GUARDED_BY(mu_);
  std::shared_ptr<const MappedDevice> device_ ABSL_GUARDED_BY(mu_);
  SegmentClient segments_{[this] { Unmap(); }};  // its thread ends before the rest
};

}  // namespace hearth

#endif  // HEARTH_SERVICES_INFERENCE_DEVICE_CLIENT_H_
