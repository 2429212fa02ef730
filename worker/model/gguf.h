// Reads the header of a GGUF file (the format of llama.cpp, Ollama and LM Studio): its fields, and
// the places of its tensors.
//
// The layout (https://github.com/ggml-org/ggml/blob/master/docs/gguf.md), little endian: magic,
// version, number of tensors, number of fields; the fields; the tensors' names, shapes, types and
// offsets; padding; the tensors' bytes. Every length, count and offset is checked before it is used
// to read, to allocate or to skip. Lists are skipped unless a reader asks for them. Long lists are
// vectors of their type: as JSON values they would take 16 times the file's bytes.
//
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

// A list that no reader asks for; its values were skipped.
struct SkippedList {};

// A field's value: nothing, one value, or a short list of booleans. Integers are widened to 64
// bits.
using GgufValue = std::variant<std::monostate, bool, uint64_t, int64_t, double, std::string,
                               std::vector<bool>, SkippedList>;

// The lists of "tokenizer.ggml" that the file has with these types.
struct GgufVocabulary {
  std::optional<TextList> tokens, merges;
  std::optional<std::vector<float>> scores;
  std::optional<std::vector<int32_t>> token_types;  // 0: the number is not a valid type
};

struct GgufHeader {
  // Fields "gemma3.x" and "tokenizer.ggml.x" are stored as "x", all others by their full name. A
  // text longer than kMaxKeptText bytes is truncated, except the chat template, which is whole if
  // the vocabulary was requested.
  std::map<std::string, GgufValue, std::less<>> fields;
  GgufVocabulary vocabulary;
  // By their Hugging Face names; tensors of the vision part by their own names.
  std::vector<TensorView> tensors;
  std::shared_ptr<const TensorFile> file;

  // Returns the field's value, or std::monostate if there is no such field.
  const GgufValue& Field(absl::string_view name) const;
  // Returns whether the field equals `text`. REQUIRES: text.size() < kMaxKeptText.
  bool FieldIs(absl::string_view name, absl::string_view text) const;
};

inline constexpr uint64_t kMaxKeptText = 256;

// Returns whether the file begins with the GGUF magic number: Ollama's blobs have no file
// extension.
bool IsGgufFile(const std::string& path);

// Reads a header; the vocabulary and the chat template only if `with_vocabulary`. kUnimplemented:
// the GGUF file holds an unsupported model or version; kDataLoss: it is corrupt.
absl::StatusOr<GgufHeader> ReadGgufHeader(const std::string& path, bool with_vocabulary);

}  // namespace hearth

#endif  // HEARTH_WORKER_MODEL_GGUF_H_
