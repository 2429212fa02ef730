// TensorFiles: the open files of a checkpoint and their tensors. A checkpoint is one GGUF file
// (gguf.h), or one or more .safetensors files in a folder. All headers have been checked.
//
// Thread safety: immutable after Open; const methods may be called from any thread.
// Ownership: owns the open files. A TensorView can be read (weights.h) only while its file is open.
// Invariants: if a view's type is supported, its bytes are inside its file and match its shape and
// type. The tensors of a file have different names and do not overlap. In a safetensors file they
// fill the data section without gaps, as the format demands
// (https://github.com/huggingface/safetensors, "Format"). Files are read, not memory-mapped: if a
// file changes later, the result is a read error or a changed file identity, never wrong weights.
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
  std::string dtype_text;           // name of the type in the file
  bool is_one_more = false;         // true for norms in GGUF files, which store 1 + w instead of w
  std::vector<int64_t> shape;
  std::shared_ptr<const std::byte> data;  // the tensor's bytes; null until they are read
  uint64_t offset = 0;                    // byte offset in the file
  size_t bytes = 0;
  int fd = -1;       // descriptor of the open file
  std::string file;  // path of the file, for error messages

  int64_t elements() const;
  std::string ShapeText() const;  // "[640, 2048]"
};

// Returns kInvalidArgument, with the tensor's name in the message, if the dtype is not supported.
absl::Status CheckDtype(const TensorView& tensor);

struct TensorFile {
  std::string path;
  int fd = -1;
  struct stat opened {};  // result of fstat before the first read
  ~TensorFile();
};

class TensorFiles {
 public:
  // Opens a GGUF file or a folder. In a folder, opens model.safetensors; if it is missing, all
  // files listed in model.safetensors.index.json; if that is missing too, all files named like
  // "model-00001-of-00002.safetensors". Error messages name the file and the tensor.
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
