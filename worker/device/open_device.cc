#include "worker/device/open_device.h"

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "worker/device/emulated_device.h"

#if defined(HEARTH_WITH_CUDA_DEVICE)
#include "worker/device/cuda_device.h"
#endif

namespace hearth {

absl::StatusOr<std::shared_ptr<Device>> OpenDevice(const std::string& name) {
  if (name == kEmulatedDevice) return std::make_shared<EmulatedDevice>();
  absl::string_view rest = name;
  int number = 0;
  if (!absl::ConsumePrefix(&rest, "cuda") ||
      (!rest.empty() &&
       (!absl::ConsumePrefix(&rest, ":") || !absl::SimpleAtoi(rest, &number) || number < 0))) {
    return absl::InvalidArgumentError(
        absl::StrCat("device: must be cpu, emulated, cuda or cuda:N; got ", name));
  }
#if defined(HEARTH_WITH_CUDA_DEVICE)
  auto device = std::make_shared<CudaDevice>(number);
  if (device->error().empty()) return device;
  return absl::UnavailableError(absl::StrCat("device: ", name, ": ", device->error()));
#else
  return absl::UnimplementedError(
      absl::StrCat("device: ", name, " needs a worker that was built with -DHEARTH_DEVICE=cuda ",
                   "(docs/dev/building.md); this worker was built without it; ",
                   "--exactness exact needs no such build"));
#endif
}

}  // namespace hearth
