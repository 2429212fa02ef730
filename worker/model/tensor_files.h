// TensorFiles: the tensors of a checkpoint, its files open, with their headers checked: one or
// several .safetensors files of a folder, or one GGUF file (gguf.h).
//
// Thread safety: immutable once opened; const use from any thread.
// Ownership: owns the open files, which a TensorView is read from (weights.h) while they
// are. Invariants: every view's bytes lie inside its file and fit its shape and dtype, or have a
// type that nothing here reads; a file's tensors have different names and do not overlap. Those of
// a safetensors file cover its data section without a gap, as the format asks
// (https://github.com/huggingface/safetensors, "Format"). Nothing is mapped: what others do to
// a file later is an error of a read, or a changed identity, never other bytes.
#ifndef HEARTH_WORKER_MODEL_TENSOR_FILES_H_
#define HEARTH_WORKER_MODEL_TENSOR_FILES_H_

#include <sys/stat.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/kernels/base/element.h"

namespace hearth {

struct TensorView {
  std::string name;
  std::optional<ElementType> type;  // none: the kernels do not have it
  std::string dtype_text;           // as the file says it
  bool is_one_more = false;         // GGUF's norms: 1 + w is stored, not w
  std::vector<int64_t> shape;
  std::shared_ptr<const std::byte> data;  // null until it was read
  uint64_t offset = 0;                    // in its file
  size_t bytes = 0;
  int fd = -1;       // of its file
  std::string file;  // path, for messages

  int64_t elements() const;
  std::string ShapeText() const;  // "[640, 2048]"
};

// kInvalidArgument: names the tensor whose dtype is none that models here have.
absl::Status CheckDtype(const TensorView& tensor);

struct TensorFile {
  std::string path;
  int fd = -1;
  struct stat opened {};  // before anything was read of it
  ~TensorFile();
};

class TensorFiles {
 public:
  // A GGUF file, or of a folder model.safetensors, or every file that model.safetensors.index.json
  // names, or without an index every part, "model-00001-of-00002.safetensors". The error names the
  // file and the tensor.
  static absl::StatusOr<TensorFiles> Open(const std::string& model);
  // Opens one safetensors file.
  static absl::StatusOr<TensorFiles> OpenFile(const std::string& path);

  const std::map<std::string, TensorView>& tensors() const { return tensors_; }
  const std::vector<std::shared_ptr<const TensorFile>>& files() const { return files_; }

 private:
  absl::Status Add(const std::string& path);

  std::vector<std::shared_ptr<const TensorFile>> files_;
  std::map<std::string, TensorView> tensors_;
};

}  // namespace hearth

#endif  // HEARTH_WORKER_MODEL_TENSOR_FILES_H_
