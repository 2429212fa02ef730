// ModelTensors: the tensors of a checkpoint, found by name and checked against the config.
//
// Plain values that point into a TensorFiles, which must outlive them.
// Names here omit the modules that hold the text model in a file: "model.",
// "language_model.model.", "base_model.model.model." and so on. If the config ties head and
// embedding, the file may have either.
#ifndef HEARTH_WORKER_MODEL_WEIGHTS_H_
#define HEARTH_WORKER_MODEL_WEIGHTS_H_

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "proto/fingerprint.h"
#include "worker/model/model_config.h"
#include "worker/model/tensor_files.h"
#include "worker/model/thread_pool.h"

namespace hearth {

struct LayerTensors {
  std::vector<TensorView*> All();

  TensorView input_norm, q, k, v, q_norm, k_norm, o, post_attention_norm;
  TensorView pre_feedforward_norm, gate, up, down, post_feedforward_norm;
};

struct ModelTensors {
  TensorView embedding;  // [vocab, hidden]
  TensorView final_norm;
  TensorView head;  // [vocab, hidden]; equals `embedding` if tied
  bool tied = false;
  std::vector<LayerTensors> layers;
  // All of the above, each once, by canonical name ("layers.0.self_attn.q_proj.weight").
  std::vector<TensorView> used;
  // Notes on unused or unexpected tensors, one sentence each.
  std::vector<std::string> notes;
};

// Finds all tensors of the model. Errors name the first tensor that is missing, misshapen, not part
// of the text model, or present twice. Notes count the tensors outside the text model and name the
// first of them; vision tensors are only counted.
absl::StatusOr<ModelTensors> FindTensors(const TensorFiles& files, const ModelConfig& config);

// WeightsReader: reads each tensor of a checkpoint once, into memory of its own, and computes one
// SHA-256 over all tensors: the weights digest, which is cached across starts.
//
//   leaf   = H("hearth.weights.leaf.v1", bytes of up to 4 MiB)
//   tensor = H("hearth.weights.tensor.v1", name, dtype, rank, shape, leaves...)
//   digest = H("hearth.weights.v1", number of tensors, tensors in order of name)
// Text is preceded by its length; numbers are u64, little endian. Shards and file names do not
// enter: the same weights in other files share their KV.
//
// A cached digest is used only if every file has the same device, inode, size, mtime and ctime in
// nanoseconds. Programs cannot set ctime, so a changed bit is noticed even if size and mtime were
// restored. If a file's identity changes between its opening and Finish, the load fails: the bytes
// read may mix two states.
//
// Thread safety: one thread at a time. Does not own `files` and `pool`.
class WeightsReader {
 public:
  // `tensors`: all tensors that will be read, in order of name. Digests are cached in `cache_dir`,
  // which is created if missing; if it is empty or not writable, the digest is computed at every
  // start.
  WeightsReader(const TensorFiles& files, const std::vector<TensorView>& tensors,
                const std::string& cache_dir, ThreadPool* pool);

  // Reads the tensors and sets their `data`, which lives as long as any copy of the pointer.
  absl::Status Read(absl::Span<TensorView* const> tensors);
  // Returns the digest of all tensors. kAborted: a file has changed since it was opened. The digest
  // is not cached if a file changed less than two seconds before `now`: a later change within one
  // tick of the file system's clock would not show. REQUIRES: each tensor was read.
  absl::StatusOr<Digest> Finish(absl::Time now);
  // Returns whether the digest came from the cache.
  bool remembers() const { return remembered_.has_value(); }

 private:
  Digest DigestOfAll() const;

  const TensorFiles& files_;
  const std::vector<TensorView> tensors_;
  ThreadPool* const pool_;
  std::string identity_, path_;  // identity of the cached files; its cache file, or empty
  std::optional<Digest> remembered_;
  std::map<std::string, Digest> digests_;  // of the tensors read, by name
};

}  // namespace hearth

#endif  // HEARTH_WORKER_MODEL_WEIGHTS_H_
