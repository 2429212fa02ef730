// TensorFiles: the open files of a checkpoint and its tensors, with all headers checked: one or
// several .safetensors files of a folder, or one GGUF file (gguf.h).
//
// Thread safety: immutable once opened; const use from any thread.
// Ownership: owns the open files; a TensorView can be read (weights.h) only while they are open.
// Invariants: every view's bytes lie inside its file and fit its shape and dtype, or the view's
// type is not supported. The tensors of a file have different names and do not overlap. In a
// safetensors file they fill the data section without a gap, as the format demands
// (https://github.com/huggingface/safetensors, "Format"). Files are read, not mapped: a later
// change to a file causes a read error or a changed identity, never other bytes.
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
  std::optional<ElementType> type;  // nullopt: the kernels do not support the type
  std::string dtype_text;           // the file's name of the type
  bool is_one_more = false;         // true for GGUF's norms, which store 1 + w instead of w
  std::vector<int64_t> shape;
  std::shared_ptr<const std::byte> data;  // null until it is read
  uint64_t offset = 0;                    // byte offset in the file
  size_t bytes = 0;
  int fd = -1;       // descriptor of the file
  std::string file;  // path, for messages

  int64_t elements() const;
  std::string ShapeText() const;  // "[640, 2048]"
};

// Returns kInvalidArgument with the tensor's name if its dtype is not supported.
absl::Status CheckDtype(const TensorView& tensor);

struct TensorFile {
  std::string path;
  int fd = -1;
  struct stat opened {};  // stat before the first read
  ~TensorFile();
};

class TensorFiles {
 public:
  // Opens a GGUF file, or in a folder: model.safetensors; else every file that
  // model.safetensors.index.json names; else every part "model-00001-of-00002.safetensors". Errors
  // name the file and the tensor.
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
