// Reads the header of a GGUF file, as llama.cpp, Ollama and LM Studio have their models: its
// fields, and where its tensors lie.
//
// The layout (https://github.com/ggml-org/ggml/blob/master/docs/gguf.md), little endian: magic,
// version, number of tensors, number of fields; the fields; the tensors' names, shapes, types and
// offsets; padding; the tensors' bytes. Every length, count and offset is checked before it is
// used to read, to allocate or to skip. Only the fields that a reader here asks for are kept, and
// long lists as vectors of their type: a list of JSON values takes 16 times the file's bytes.
// Thread safety: pure functions of the file's contents. Errors name the file.
#ifndef HEARTH_WORKER_MODEL_GGUF_H_
#define HEARTH_WORKER_MODEL_GGUF_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "worker/model/tensor_files.h"
#include "worker/model/text_list.h"

namespace hearth {

// A list that no reader asks for: its values were skipped.
struct SkippedList {};

// A field's value: nothing, one value, or a short list of booleans. Integers are as wide as here.
using GgufValue = std::variant<std::monostate, bool, uint64_t, int64_t, double, std::string,
                               std::vector<bool>, SkippedList>;

// The lists of "tokenizer.ggml", of those that are in the file as lists of these types.
struct GgufVocabulary {
  std::optional<TextList> tokens, merges;
  std::optional<std::vector<float>> scores;
  std::optional<std::vector<int32_t>> token_types;  // 0: a number that is no type
};

struct GgufHeader {
  // Of Gemma 3's fields "gemma3.x" and "tokenizer.ggml.x" as "x"; else by their names. A text is
  // cut off after kMaxKeptText bytes, but for the chat template that comes with the vocabulary.
  std::map<std::string, GgufValue, std::less<>> fields;
  GgufVocabulary vocabulary;
  // By the names that Hugging Face gives them; those of the vision part by their own.
  std::vector<TensorView> tensors;
  std::shared_ptr<const TensorFile> file;

  // Nothing where there is none.
  const GgufValue& Field(absl::string_view name) const;
  // Whether the field is this text. REQUIRES: less than kMaxKeptText bytes.
  bool FieldIs(absl::string_view name, absl::string_view text) const;
};

inline constexpr uint64_t kMaxKeptText = 256;

// By the file's first bytes: Ollama's blobs have no ending.
bool IsGgufFile(const std::string& path);

// The vocabulary and the chat template are read if they are asked for. kUnimplemented: it is a GGUF
// file of another model or form than is served; kDataLoss: it is broken.
absl::StatusOr<GgufHeader> ReadGgufHeader(const std::string& path, bool with_vocabulary);

}  // namespace hearth

#endif  // HEARTH_WORKER_MODEL_GGUF_H_
