#include "services/inference/device_client.h"

namespace hearth {

std::shared_ptr<const MappedDevice> DeviceClient::current() {
  const auto segment = segments_.current();
  absl::MutexLock lock(&mu_);
  return device_ != nullptr && device_->segment == segment ? device_ : nullptr;
}

void DeviceClient::Unmap() {
  std::shared_ptr<const MappedDevice> unmapped;  // after the lock
  absl::MutexLock lock(&mu_);
  std::swap(unmapped, device_);
}

absl::Status DeviceClient::MapOffered(const std::string& socket, const SegmentId& id) {
  if (absl::Status status = segments_.MapOffered(socket, id); !status.ok()) {
    Unmap();  // the client let an earlier segment go
    return status;
  }
  const auto segment = segments_.current();
  absl::MutexLock lock(&mu_);
  if (segment == nullptr) return absl::UnavailableError("shared memory: the store went away");
  if (device_ != nullptr && device_->segment == segment) return absl::OkStatus();
  if (tried_ == id && !problem_.ok()) return problem_;
  tried_ = id;
  device_ = nullptr;
  const auto map = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) -> absl::Status {
    const std::optional<DeviceMemoryHandle>& handle = segment->layout().device;
    if (!handle.has_value()) return absl::FailedPreconditionError("not a device's memory");
    absl::StatusOr<std::unique_ptr<ImportedMemory>> memory = import_(*handle);
    if (!memory.ok()) return memory.status();
    auto device = std::make_shared<MappedDevice>();
    device->segment = segment;
    device->memory = *std::move(memory);
    device_ = std::move(device);
    return absl::OkStatus();
  };
  problem_ = map();
  // Gone while it was mapped: Unmap was called before, and is not called again.
  if (segments_.current() != segment) device_ = nullptr;
  return problem_;
}

absl::StatusOr<std::vector<std::shared_ptr<const std::byte>>> DeviceClient::Copy(
    const MappedDevice& device, absl::Span<const SegmentRange> ranges) {
  for (const SegmentRange& range : ranges) {
    if (absl::Status status = device.segment->Check(range); !status.ok()) return status;
  }
  auto copies = device.memory->Copy(ranges);
  if (!copies.ok()) return copies.status();
  for (const SegmentRange& range : ranges) {
    if (absl::Status status = device.segment->Check(range); !status.ok()) return status;
  }
  // The memory of a process that is gone is nobody's to answer for.
  if (segments_.current() != device.segment) {
    return absl::AbortedError("shared memory: the store went away before it was copied");
  }
  return copies;
}

}  // namespace hearth
