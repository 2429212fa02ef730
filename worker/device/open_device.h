// OpenDevice: opens the device that the flag --device names.
//
// Thread safety: pure functions.
#ifndef HEARTH_WORKER_DEVICE_OPEN_DEVICE_H_
#define HEARTH_WORKER_DEVICE_OPEN_DEVICE_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "worker/device/device.h"

namespace hearth {

// `name`: emulated, cuda or cuda:N. Errors: kInvalidArgument for any other name; kUnimplemented if
// this build does not support the device; kUnavailable if the device cannot be opened.
absl::StatusOr<std::shared_ptr<Device>> OpenDevice(const std::string& name);

}  // namespace hearth

#endif  // HEARTH_WORKER_DEVICE_OPEN_DEVICE_H_
