// Reads the header of a GGUF file (the format of llama.cpp, Ollama and LM Studio): the fields, and
// the positions of the tensors.
//
// Layout of the file (https://github.com/ggml-org/ggml/blob/master/docs/gguf.md), little endian:
// magic number, version, number of tensors, number of fields; the fields; names, shapes, types and
// offsets of the tensors; padding; the bytes of the tensors. Every length, count and offset is
// checked before its first use. Lists are skipped unless the caller asks for them. Long lists are
// stored as vectors of their element type, because JSON values would need 16 times the file's
// bytes.
//
// Thread safety: pure functions of the file's contents. Error messages name the file.
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

// Marks a list whose values were skipped, because the caller did not ask for it.
struct SkippedList {};

// Value of a header field: nothing, one value, or a short list of booleans. Integers are widened to
// 64 bits.
using GgufValue = std::variant<std::monostate, bool, uint64_t, int64_t, double, std::string,
                               std::vector<bool>, SkippedList>;

// The tokenizer's lists ("tokenizer.ggml.*"); nullopt if the list is missing or has another element
// type.
struct GgufVocabulary {
  std::optional<TextList> tokens, merges;
  std::optional<std::vector<float>> scores;
  std::optional<std::vector<int32_t>> token_types;  // 0 if the number in the file does not fit
};

struct GgufHeader {
  // Fields "gemma3.x" and "tokenizer.ggml.x" are stored as "x", all other fields by their full
  // name. A text longer than kMaxKeptText bytes is truncated; exception: if the vocabulary was
  // requested, the chat template is complete.
  std::map<std::string, GgufValue, std::less<>> fields;
  GgufVocabulary vocabulary;
  // Names are those of Hugging Face checkpoints; tensors of the vision tower keep their GGUF names.
  std::vector<TensorView> tensors;
  std::shared_ptr<const TensorFile> file;

  // Returns the field's value, or std::monostate if there is no such field.
  const GgufValue& Field(absl::string_view name) const;
  // Returns whether the field is a string equal to `text`. REQUIRES: text.size() < kMaxKeptText.
  bool FieldIs(absl::string_view name, absl::string_view text) const;
};

inline constexpr uint64_t kMaxKeptText = 256;

// Returns whether the file begins with the GGUF magic number. The file name is not enough: model
// files in Ollama's store have no extension.
bool IsGgufFile(const std::string& path);

// Reads a header; the vocabulary and the complete chat template only if `with_vocabulary`.
// kUnimplemented: the model or the GGUF version is not supported; kDataLoss: the file is corrupt.
absl::StatusOr<GgufHeader> ReadGgufHeader(const std::string& path, bool with_vocabulary);

}  // namespace hearth

#endif  // HEARTH_WORKER_MODEL_GGUF_H_
