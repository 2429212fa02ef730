#include "services/inference/slice_copier.h"

#include <algorithm>
#include <atomic>
#include <cassert>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "proto/segment_format.h"
#include "proto/slice_hasher.h"

namespace hearth {
namespace {

absl::Status CheckShared(const v1::SharedSlices& shared, const MappedSegment& segment) {
  if (segment.layout().device.has_value()) {
    return absl::FailedPreconditionError("plan: slices in RAM refer to a segment in device memory");
  }
  const int slices = shared.objects_size();
  if (shared.layers_size() == slices && shared.offsets_size() == slices &&
      shared.generations_size() == slices) {
    return absl::OkStatus();
  }
  return absl::FailedPreconditionError("plan: the lists of shared slices differ in length");
}

}  // namespace

// One slice that is copied. `digest`: of the bytes in the copy.
struct SliceCopier::SliceCopy {
  ObjectBuilder::Reserved to;
  SegmentRange from;
  absl::Status status = {};
  uint64_t digest = 0;
};

SliceCopier::SliceCopier(SliceCopierOptions options)
    : options_(std::move(options)),
      pool_(std::clamp(options_.threads, 1, SliceCopierOptions::kMaxThreads)) {
  assert(options_.bytes_per_thread > 0);
}

absl::Status SliceCopier::Copy(const v1::SharedSlices& shared, const MappedSegment& segment,
                               ObjectBuilder* builder) {
  if (absl::Status status = CheckShared(shared, segment); !status.ok()) return status;
  std::vector<SliceCopy> copies;
  absl::Status reserved;
  for (int i = 0; i < shared.objects_size(); ++i) {
    const auto slice = builder->Reserve(shared.objects(i), shared.layers(i));
    reserved = slice.status();
    if (!slice.ok()) break;
    copies.push_back({*slice, {shared.offsets(i), slice->bytes, shared.generations(i)}});
  }
  CopyAll(segment, absl::MakeSpan(copies));
  for (const SliceCopy& copy : copies) {
    if (!copy.status.ok()) return copy.status;
    absl::Status status = builder->PutReserved(copy.to, copy.digest);
    if (!status.ok()) return status;
  }
  return reserved;
}

void SliceCopier::CopyAll(const MappedSegment& segment, absl::Span<SliceCopy> copies) {
  uint64_t bytes = 0;
  for (const SliceCopy& copy : copies) bytes += copy.from.bytes;
  const uint64_t threads =
      std::min<uint64_t>(bytes / options_.bytes_per_thread, static_cast<uint64_t>(pool_.threads()));
  std::atomic<size_t> next{0};
  if (threads <= 1 || !pool_mu_.TryLock()) return CopySome(segment, copies, &next);
  pool_.Run(static_cast<int64_t>(threads), [&](int64_t, int) { CopySome(segment, copies, &next); });
  pool_mu_.Unlock();
}

// Copies slices until none is left. Each thread takes slices in the order of the plan. After an
// error or a wrong digest no thread takes another slice, so all slices before the first failed one
// were copied.
void SliceCopier::CopySome(const MappedSegment& segment, absl::Span<SliceCopy> copies,
                           std::atomic<size_t>* next) const {
  SliceHasher hasher;
  for (size_t i = (*next)++; i < copies.size(); i = (*next)++) {
    SliceCopy& copy = copies[i];
    hasher.Begin();
    copy.status = segment.Copy(copy.from, copy.to.to, &hasher, [&] {
      if (options_.between) options_.between(i);
    });
    copy.digest = hasher.digest();
    if (!copy.status.ok() || copy.digest != copy.to.digest) *next = copies.size();
  }
}

}  // namespace hearth
