// Safetensors: one or several .safetensors files of a checkpoint, open, with their headers checked.
//
// Thread safety: immutable once opened; const use from any thread.
// Ownership: owns the open files, which a TensorView is read from (weights.h) while they
// are. Invariants: every view's bytes lie inside its file and equal shape times dtype; a file's
// tensors have different names and cover its data section without gap or overlap, as the format
// asks (https://github.com/huggingface/safetensors, "Format"). Nothing is mapped: what others do to
// a file later is an error of a read, or a changed identity, never other bytes.
#ifndef HEARTH_WORKER_MODEL_SAFETENSORS_H_
#define HEARTH_WORKER_MODEL_SAFETENSORS_H_

#include <sys/stat.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace hearth {

enum class TensorDtype { kFloat32, kFloat16, kBFloat16, kOther };
const char* TensorDtypeName(TensorDtype dtype);  // safetensors' own names: "F32", "F16", "BF16"
int TensorDtypeBytes(TensorDtype dtype);         // 0 for kOther

struct TensorView {
  std::string name;
  TensorDtype dtype = TensorDtype::kOther;
  std::string dtype_text;  // as the file says it
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

struct SafetensorsFile {
  std::string path;
  int fd = -1;
  struct stat opened {};  // before anything was read of it
  ~SafetensorsFile();
};

class Safetensors {
 public:
  // Opens model.safetensors, or every file that model.safetensors.index.json names. The error names
  // the file and the tensor.
  static absl::StatusOr<Safetensors> Open(const std::string& model_dir);
  // Opens one file.
  static absl::StatusOr<Safetensors> OpenFile(const std::string& path);

  const std::map<std::string, TensorView>& tensors() const { return tensors_; }
  const std::vector<std::shared_ptr<const SafetensorsFile>>& files() const { return files_; }

 private:
  absl::Status Add(const std::string& path);

  std::vector<std::shared_ptr<const SafetensorsFile>> files_;
  std::map<std::string, TensorView> tensors_;
};

}  // namespace hearth

#endif  // HEARTH_WORKER_MODEL_SAFETENSORS_H_
