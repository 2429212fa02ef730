// ModelTensors: the tensors of a checkpoint, found by name, with shapes that match the config.
//
// Values that point into a TensorFiles, which must outlive them. Canonical names omit the names of
// the modules that contain the text model ("model.", "language_model.model.",
// "base_model.model.model." and so on). With tied weights, the file may have the embedding or the
// output matrix (lm_head), or both.
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
  TensorView head;  // output matrix [vocab, hidden]; equal to `embedding` if tied
  bool tied = false;
  std::vector<LayerTensors> layers;
  // All these tensors, each once, by canonical name ("layers.0.self_attn.q_proj.weight").
  std::vector<TensorView> used;
  // Notes on ignored or unexpected tensors, one sentence each.
  std::vector<std::string> notes;
};

// Finds all tensors of the text model. An error names the first tensor that is missing, has a wrong
// shape, occurs twice, or belongs to the text model but not to the config. Notes name some of the
// tensors outside the text model; vision tensors are only counted.
absl::StatusOr<ModelTensors> FindTensors(const TensorFiles& files, const ModelConfig& config);

// WeightsReader: reads each tensor of a checkpoint once into newly allocated memory, and computes
// the weights digest: a SHA-256 over all tensors. The digest is cached on disk for later starts.
//
//   leaf   = H("hearth.weights.leaf.v1", bytes of up to 4 MiB)
//   tensor = H("hearth.weights.tensor.v1", name, dtype, rank, shape, leaves...)
//   digest = H("hearth.weights.v1", number of tensors, tensors in order of name)
// Text is preceded by its length; numbers are u64 in little endian. The digest does not depend on
// file names or on the division into files, so the same weights in other files can use the same
// stored KV.
//
// A cached digest is used only if every file has the same device, inode, size, mtime and ctime (in
// nanoseconds). Programs cannot set ctime, so a changed file is detected even if its size and mtime
// were restored. If a file changes between Open and Finish, loading fails, because the bytes read
// may mix the old and the new contents.
//
// Thread safety: one thread at a time. `files` and `pool` are not owned.
class WeightsReader {
 public:
  // `tensors`: all tensors that will be read, in ascending order of name. `cache_dir`: folder in
  // which digests are cached, created if missing; if it is empty or not writable, every start
  // computes the digest.
  WeightsReader(const TensorFiles& files, const std::vector<TensorView>& tensors,
                const std::string& cache_dir, ThreadPool* pool);

  // Reads the tensors and sets their `data`, a shared pointer that owns the bytes.
  absl::Status Read(absl::Span<TensorView* const> tensors);
  // Returns the digest of all tensors. kAborted: a file changed after it was opened. If a file
  // changed less than two seconds before `now`, the digest is not cached, because a second change
  // within one tick of the file system's clock would not change ctime. REQUIRES: each tensor was
  // read.
  absl::StatusOr<Digest> Finish(absl::Time now);
  // Returns whether the digest came from the cache.
  bool remembers() const { return remembered_.has_value(); }

 private:
  Digest DigestOfAll() const;

  const TensorFiles& files_;
  const std::vector<TensorView> tensors_;
  ThreadPool* const pool_;
  // identity of the checkpoint's files; path of the cache record, or empty
  std::string identity_, path_;
  std::optional<Digest> remembered_;
  std::map<std::string, Digest> digests_;  // digests of the tensors read so far, by name
};

}  // namespace hearth

#endif  // HEARTH_WORKER_MODEL_WEIGHTS_H_
