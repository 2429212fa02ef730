// Tests the errors for devices that cannot be opened: one line each, with the remedy.
#include "worker/device/open_device.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "worker/device/gpu_problem.h"

namespace hearth {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

TEST(GpuProblem, EachProblemNamesItsRemedy) {
  const char* const error = "no CUDA-capable device is detected";
  EXPECT_EQ(GpuProblem(13000, 13000, 2, error, 1), "");
  EXPECT_EQ(GpuProblem(12040, 12080, 1, error, 0), "");  // the minor version may be older
  EXPECT_THAT(GpuProblem(0, 13000, 0, error, 0), HasSubstr("no NVIDIA driver: install it"));
  EXPECT_THAT(GpuProblem(12040, 13000, 0, error, 0),
              HasSubstr("supports CUDA 12.4, and this program needs CUDA 13.0: update the driver"));
  EXPECT_THAT(GpuProblem(13000, 13000, 0, error, 0),
              AllOf(HasSubstr(error), HasSubstr("check nvidia-smi")));
  EXPECT_THAT(GpuProblem(13000, 13000, 2, error, 2),
              HasSubstr("there is no GPU 2; this process has 2: use cuda:0 to cuda:1"));
}

TEST(OpenDevice, ErrorIsOneLineAndNamesDevice) {
  for (const char* name : {"gpu", "cuda:", "cuda:-1", "cuda:x"}) {
    const absl::Status refused = OpenDevice(name).status();
    EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(refused.message()), HasSubstr(name));
  }
  const absl::Status lacks = OpenDevice("cuda:9").status();  // no build, no driver or no GPU
  EXPECT_FALSE(lacks.ok());
  EXPECT_THAT(std::string(lacks.message()),
              AllOf(HasSubstr("device: cuda:9"), Not(HasSubstr("\n"))));
}

}  // namespace
}  // namespace hearth
