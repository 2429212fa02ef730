// ModelTensors: the tensors of a checkpoint, found by name and checked against the config.
//
// Plain values that point into a TensorFiles, which must outlive them.
// Names here are without the modules that hold the text model in a file: "model.",
// "language_model.model.", "base_model.model.model." and the like. If the config ties head and
// embedding, either of the two may be in the file.
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
  TensorView head;  // [vocab, hidden]; equals `embedding` when tied
  bool tied = false;
  std::vector<LayerTensors> layers;
  // All of the above, each once, by canonical name ("layers.0.self_attn.q_proj.weight").
  std::vector<TensorView> used;
  // Tensors left out on purpose, one sentence each.
  std::vector<std::string> notes;
};

// Names the first tensor that is missing or misshapen, that the text model does not have, or that
// two tensors of the file claim to be. Notes count the tensors outside the text model, and name the
// first of them, except those of the vision tower.
absl::StatusOr<ModelTensors> FindTensors(const TensorFiles& files, const ModelConfig& config);

// WeightsReader: reads the tensors of a checkpoint, each once, into memory of their own, and makes
// one SHA-256 over them: the weights digest, remembered between starts.
//
// leaf   = H("hearth.weights.leaf.v1", bytes of up to 4 MiB)
// tensor = H("hearth.weights.tensor.v1", name, dtype, rank, shape, leaves...)
// digest = H("hearth.weights.v1", number of tensors, tensors in order of name)
// Text is preceded by its length, numbers are u64 little endian. Sharding and file names do not
// enter: the same weights cut into other files share their KV.
//
// A remembered digest is used only while every file has the same device, inode, size, mtime and
// ctime in nanoseconds. ctime cannot be set by a program, so a changed bit is seen even where size
// and mtime were put back. A file whose identity changes between its opening and Finish ends the
// load: what was read may be of two states.
//
// Thread safety: by one at a time. Does not own `files` and `pool`.
class WeightsReader {
 public:
  // `tensors`: all that will be read, in order of name. Digests are remembered in `cache_dir`,
  // which is made when it is missing; an empty one, or one that cannot be written, costs time only.
  WeightsReader(const TensorFiles& files, const std::vector<TensorView>& tensors,
                const std::string& cache_dir, ThreadPool* pool);

  // Sets `data` of each, which lives as long as a copy of it does.
  absl::Status Read(absl::Span<TensorView* const> tensors);
  // The digest of all tensors. kAborted: a file is not what it was when it was opened. Files that
  // changed less than two seconds before `now` are not remembered: a later change within one tick
  // of the file system's clock would not show. REQUIRES: each tensor was read.
  absl::StatusOr<Digest> Finish(absl::Time now);
  // Whether the digest is of an earlier start.
  bool remembers() const { return remembered_.has_value(); }

 private:
  Digest DigestOfAll() const;

  const TensorFiles& files_;
  const std::vector<TensorView> tensors_;
  ThreadPool* const pool_;
  std::string identity_, path_;  // of what is remembered; path_ empty: nothing is
  std::optional<Digest> remembered_;
  std::map<std::string, Digest> digests_;  // of those read, by name
};

}  // namespace hearth

#endif  // HEARTH_WORKER_MODEL_WEIGHTS_H_
