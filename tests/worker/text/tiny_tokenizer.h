// The tiny tokenizer in tests/data (made by make_tiny_tokenizer.py), loaded once for all tests.
#ifndef HEARTH_TESTS_WORKER_TEXT_TINY_TOKENIZER_H_
#define HEARTH_TESTS_WORKER_TEXT_TINY_TOKENIZER_H_

#include <cassert>
#include <fstream>
#include <iterator>
#include <memory>
#include <random>
#include <string>

#include "absl/status/statusor.h"
#include "worker/text/tokenizer.h"
#include "worker/text/vocabulary_file.h"

namespace hearth {

inline std::string ReadTestFile(const std::string& name) {
  std::ifstream file(std::string(HEARTH_TEST_DATA_DIR) + "/" + name, std::ios::binary);
  assert(file.good());
  return {std::istreambuf_iterator<char>(file), {}};
}

// `model`: the content of a tokenizer.model file.
inline absl::StatusOr<std::unique_ptr<Tokenizer>> TokenizerOf(const std::string& model) {
  const auto pieces = ReadTokenizerModel(model);
  return pieces.ok() ? Tokenizer::Make(*pieces) : pieces.status();
}

inline const Tokenizer& TinyTokenizer() {
  static const Tokenizer* tokenizer = [] {
    auto parsed = TokenizerOf(ReadTestFile("tiny_tokenizer/tokenizer.model"));
    assert(parsed.ok());
    return parsed->release();
  }();
  return *tokenizer;
}

// Returns random words, digits, runs of spaces and line ends, markers, and characters without a
// piece.
inline std::string RandomText(std::mt19937_64* random, int words) {
  static const char* const kWords[] = {"the keeper",
                                       "lamp",
                                       " ",
                                       "  ",
                                       "   ",
                                       "\n",
                                       "\n\n",
                                       "\n\n\n",
                                       "<bos>",
                                       "sea",
                                       "é",
                                       "\xF0\x9F\x99\x82",
                                       "日本",
                                       "12",
                                       "340",
                                       "<",
                                       "<end_of_turn>",
                                       "<unk>",
                                       "</table>",
                                       "\xE2\x96\x81",
                                       "\t",
                                       ". ",
                                       "for (",
                                       "e",
                                       "<start",
                                       "_of_turn>",
                                       " of"};
  std::string text;
  for (int i = 0; i < words; ++i) text += kWords[(*random)() % std::size(kWords)];
  return text;
}

}  // namespace hearth

#endif  // HEARTH_TESTS_WORKER_TEXT_TINY_TOKENIZER_H_
