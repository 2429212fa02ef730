// Reads the header of a GGUF file, as llama.cpp, Ollama and LM Studio have their models: its
// fields, and where its tensors lie.
//
// The layout (https://github.com/ggml-org/ggml/blob/master/docs/gguf.md), little endian: magic,
// version, number of tensors, number of fields; the fields; the tensors' names, shapes, types and
// offsets; padding; the tensors' bytes. Every length, count and offset is checked before it is
// used. Thread safety: pure functions of the file's contents. Errors name the file.
#ifndef HEARTH_WORKER_MODEL_GGUF_H_
#define HEARTH_WORKER_MODEL_GGUF_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "nlohmann/json.hpp"
#include "worker/model/tensor_files.h"

namespace hearth {

struct GgufHeader {
  // Of Gemma 3's fields "gemma3.x" and "tokenizer.ggml.x" as "x"; else by their names.
  nlohmann::json fields;
  // By the names that Hugging Face gives them; those of the vision part by their own.
  std::vector<TensorView> tensors;
  std::shared_ptr<const TensorFile> file;

  // Null where there is none.
  const nlohmann::json& Field(absl::string_view name) const;
};

// By the file's first bytes: Ollama's blobs have no ending.
bool IsGgufFile(const std::string& path);

// Long lists of the vocabulary are read where they are asked for. kUnimplemented: it is a GGUF file
// of another model or form than is served; kDataLoss: it is broken.
absl::StatusOr<GgufHeader> ReadGgufHeader(const std::string& path, bool with_vocabulary);

}  // namespace hearth

#endif  // HEARTH_WORKER_MODEL_GGUF_H_
