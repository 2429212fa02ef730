// DeviceCopy: an object's copy in a device's memory, as readers hold it.
//
// Plain values. A DeviceRef keeps the copy where and what it is for as long as it lives.
#ifndef HEARTH_CACHE_STORE_BASE_DEVICE_COPY_H_
#define HEARTH_CACHE_STORE_BASE_DEVICE_COPY_H_

#include <cstddef>
#include <memory>

#include "proto/segment_format.h"

namespace hearth {

// The object's slices, back to back in order of their layers.
struct DeviceCopy {
  const std::byte* bytes = nullptr;  // the device's address
  SegmentRange range;                // in the tier's memory
};
using DeviceRef = std::shared_ptr<const DeviceCopy>;

}  // namespace hearth

#endif  // HEARTH_CACHE_STORE_BASE_DEVICE_COPY_H_
