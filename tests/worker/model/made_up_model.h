// MadeUpModel: builds a SentencePiece model with the pieces that a test adds: BPE with byte
// fallback, without normalization.
//
// Thread safety: none.
#ifndef HEARTH_TESTS_WORKER_MODEL_MADE_UP_MODEL_H_
#define HEARTH_TESTS_WORKER_MODEL_MADE_UP_MODEL_H_

#include <cstdint>
#include <cstdio>
#include <cstring>
#include <string>

#include "absl/strings/str_format.h"
#include "nlohmann/json.hpp"
#include "worker/text/vocabulary_file.h"

namespace hearth {

class MadeUpModel {
 public:
  // Creates a model with the piece <unk> and the 256 byte pieces.
  MadeUpModel() {
    Add("<unk>", 0, PieceType::kUnknown);
    for (int byte = 0; byte < 256; ++byte) {
      char text[8];
      std::snprintf(text, sizeof(text), "<0x%02X>", byte);
      Add(text, 0, PieceType::kByte);
    }
  }

  // Adds a piece. `text` must have U+2581 instead of spaces.
  void Add(const std::string& text, float score, PieceType type = PieceType::kNormal) {
    uint32_t bits;
    std::memcpy(&bits, &score, sizeof(bits));
    std::string piece = Field(1, text) + static_cast<char>(2 << 3 | 5);
    for (int shift = 0; shift < 32; shift += 8) piece += static_cast<char>(bits >> shift);
    pieces_ += Field(1, piece + Number(3, static_cast<uint64_t>(type)));
  }

  // Returns the model file. `model_type`: 2: BPE; 1: unigram.
  std::string Bytes(int model_type = 2) const {
    const std::string trainer =
        Number(3, static_cast<uint64_t>(model_type)) + Number(35, 1) + Number(40, 0);
    return pieces_ + Field(2, trainer) +
           Field(3, Field(1, "identity") + Number(3, 0) + Number(4, 0) + Number(5, 1));
  }

 private:
  static std::string Varint(uint64_t value) {
    std::string out;
    for (; value >= 0x80; value >>= 7) out += static_cast<char>(value | 0x80);
    return out + static_cast<char>(value);
  }
  static std::string Number(uint64_t field, uint64_t value) {
    return Varint(field << 3) + Varint(value);
  }
  static std::string Field(uint64_t field, const std::string& bytes) {
    return Varint(field << 3 | 2) + Varint(bytes.size()) + bytes;
  }

  std::string pieces_;
};

// Returns a tokenizer.json (of the library tokenizers) with a small vocabulary and the 256 byte
// pieces.
inline nlohmann::json SmallJson() {
  nlohmann::json vocab = {{"<unk>", 0}, {"<bos>", 1}, {"\n\n", 2}};
  int id = 3;
  for (int byte = 0; byte < 256; ++byte) vocab[absl::StrFormat("<0x%02X>", byte)] = id++;
  for (const char* text : {"a", "b", "\u2581", "\n", "ab", "\u2581ab", "aba"}) vocab[text] = id++;
  const auto added = [](const char* text, int at, bool special) {
    return nlohmann::json{{"id", at},          {"content", text}, {"single_word", false},
                          {"lstrip", false},   {"rstrip", false}, {"normalized", false},
                          {"special", special}};
  };
  return {
      {"added_tokens",
       {added("<unk>", 0, true), added("<bos>", 1, true), added("\n\n", 2, false),
        added("<image>", id, false)}},
      {"normalizer", {{"type", "Replace"}, {"pattern", {{"String", " "}}}, {"content", "\u2581"}}},
      {"model",
       {{"type", "BPE"},
        {"unk_token", "<unk>"},
        {"byte_fallback", true},
        {"ignore_merges", false},
        {"vocab", vocab},
        {"merges", {{"\n", "\n"}, {"a", "b"}, {"\u2581", "ab"}, "ab a"}}}}};
}

}  // namespace hearth

#endif  // HEARTH_TESTS_WORKER_MODEL_MADE_UP_MODEL_H_
