// OpenDevice: opens a device by its name in --device.
//
// Thread safety: pure functions.
#ifndef HEARTH_WORKER_DEVICE_OPEN_DEVICE_H_
#define HEARTH_WORKER_DEVICE_OPEN_DEVICE_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "worker/device/device.h"

namespace hearth {

inline constexpr char kEmulatedDevice[] = "emulated";

// `name`: emulated, cuda or cuda:N. kInvalidArgument: any other name; kUnimplemented: this build
// has no such device; kUnavailable: the device cannot be used, and why.
absl::StatusOr<std::shared_ptr<Device>> OpenDevice(const std::string& name);

}  // namespace hearth

#endif  // HEARTH_WORKER_DEVICE_OPEN_DEVICE_H_
