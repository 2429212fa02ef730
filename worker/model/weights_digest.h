// The weights digest: one SHA-256 over every tensor that a model uses, remembered between starts.
//
// leaf   = H("hearth.weights.leaf.v1", bytes of up to 4 MiB)
// tensor = H("hearth.weights.tensor.v1", name, dtype, rank, shape, leaves...)
// digest = H("hearth.weights.v1", number of tensors, tensors in order of name)
// Text is preceded by its length, numbers are u64 little endian. Sharding and file names do not
// enter: the same weights cut into other files share their KV.
//
// A remembered digest is used only while every file has the same device, inode, size, mtime and
// ctime in nanoseconds. ctime cannot be set by a program, so a changed bit is seen even where size
// and mtime were put back.
#ifndef HEARTH_WORKER_MODEL_WEIGHTS_DIGEST_H_
#define HEARTH_WORKER_MODEL_WEIGHTS_DIGEST_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "proto/fingerprint.h"
#include "worker/model/safetensors.h"
#include "worker/model/thread_pool.h"

namespace hearth {

// REQUIRES: `tensors` are in order of name.
Digest DigestOfTensors(const std::vector<TensorView>& tensors, ThreadPool* pool);

struct RememberedDigest {
  Digest digest{};
  bool from_cache = false;
};

// DigestOfTensors, or what `cache_dir` remembers of the same files and names; the folder is made
// when it is missing. An empty cache_dir, or one that cannot be written, costs time only. Files
// changed less than two seconds before `now` are not remembered: a later change within one tick of
// the file system's clock would not show.
absl::StatusOr<RememberedDigest> DigestOfFiles(const std::vector<TensorView>& tensors,
                                               const std::vector<std::string>& files,
                                               const std::string& cache_dir, absl::Time now,
                                               ThreadPool* pool);

}  // namespace hearth

#endif  // HEARTH_WORKER_MODEL_WEIGHTS_DIGEST_H_
