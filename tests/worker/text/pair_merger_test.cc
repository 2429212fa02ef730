#include <limits>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/utf8.h"
#include "tests/worker/model/made_up_model.h"
#include "tests/worker/text/tiny_tokenizer.h"
#include "worker/text/prompt.h"
#include "worker/text/text_encoder.h"
#include "worker/text/tokenizer.h"
#include "worker/text/vocabulary.h"

namespace hearth {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

const std::string kMark = "\xE2\x96\x81";  // U+2581: pieces have it instead of a space

std::string WhyRefused(const std::vector<VocabularyPiece>& pieces) {
  return std::string(Tokenizer::Make(pieces).status().message());
}

TEST(Vocabulary, TextIsNeverSplitInsidePieces) {
  const std::string space_b = kMark + "b";
  const Vocabulary vocabulary({{"ab", PieceType::kNormal, -1},
                               {"b\xC3\xA9", PieceType::kNormal, -2},
                               {space_b, PieceType::kNormal, -3},
                               {"\xE6\x97\xA5\xE6\x9C\xAC", PieceType::kNormal, -4},
                               {"\n\n", PieceType::kUserDefined, 0},
                               {"<ba>", PieceType::kControl, 0},
                               {"<0x41>", PieceType::kByte, 0}});
  EXPECT_FALSE(vocabulary.MayCut(U'a', U'b'));
  EXPECT_FALSE(vocabulary.MayCut(U'b', U'\u00E9'));
  EXPECT_FALSE(vocabulary.MayCut(U' ', U'b'));
  EXPECT_FALSE(vocabulary.MayCut(U'\u65E5', U'\u672C'));
  EXPECT_FALSE(vocabulary.MayCut(U'\n', U'\n')) << "merges may also produce a never-merged piece";
  EXPECT_FALSE(vocabulary.MayCut(kMarkCharacter, U'b')) << "U+2581 stands for a space";
  EXPECT_TRUE(vocabulary.MayCut(U'a', kMarkCharacter));
  EXPECT_TRUE(vocabulary.MayCut(U'b', U'a')) << "merges never produce a control piece";
  EXPECT_TRUE(vocabulary.MayCut(U'0', U'x')) << "merges never produce a byte piece";
  EXPECT_TRUE(vocabulary.MayCut(U'\u00E9', U'b'));
  EXPECT_TRUE(vocabulary.MayCut(U'b', U'\u00E8')) << "no piece has this character after b";
  EXPECT_TRUE(vocabulary.MayCut(U'\u66E5', U'\u672C')) << "its last and first bytes are in a piece";
  EXPECT_TRUE(vocabulary.MayCut(U'a', U' '));
  EXPECT_TRUE(vocabulary.MayCut(U'\0', U'\0'));
}

TEST(Tokenizer, UnreachablePieceIsRefused) {
  EXPECT_THAT(WhyRefused({{"a b", PieceType::kNormal, -1}}), HasSubstr("contains a space"));
  const float nan = std::numeric_limits<float>::quiet_NaN();
  EXPECT_THAT(WhyRefused({{"ab", PieceType::kNormal, nan}}), HasSubstr("not a number"));
  const std::string a_b = "a" + kMark + "b", two = kMark + kMark, three = two + kMark;
  EXPECT_THAT(WhyRefused({{a_b, PieceType::kUserDefined, 0}}),
              HasSubstr("mixes spaces with other"));
  EXPECT_THAT(WhyRefused({{kMark, PieceType::kUserDefined, 0}}), HasSubstr("a single space"));
  EXPECT_THAT(WhyRefused({{three, PieceType::kUserDefined, 0}}),
              HasSubstr("but none for two spaces"));
  EXPECT_EQ(WhyRefused({{three, PieceType::kUserDefined, 0}, {two, PieceType::kUserDefined, 0}}),
            "");
  EXPECT_EQ(WhyRefused({{a_b, PieceType::kNormal, -1}}), "")
      << "normal pieces may mix spaces with other characters";
}

// Returns characters for random vocabularies. The last character has no piece.
const std::vector<std::string>& Alphabet() {
  static const auto* alphabet = new std::vector<std::string>{
      "a", "b", "c", "\xC3\xA9", "\xE6\x97\xA5", kMark, "\xF0\x9F\x99\x82"};
  return *alphabet;
}

// Returns a model with a few dozen pieces of a few characters, so that pieces contain most pairs of
// neighbours and many scores are equal.
std::string RandomModel(std::mt19937_64* random, std::map<std::string, float>* pieces) {
  MadeUpModel model;
  pieces->emplace(kMark, -1);
  const uint64_t count = 2 + (*random)() % 30;
  for (uint64_t i = 0; i < count; ++i) {
    std::string text;
    for (uint64_t left = 1 + (*random)() % 4; left > 0; --left) {
      text += Alphabet()[(*random)() % (Alphabet().size() - 1)];
    }
    pieces->emplace(text, -static_cast<float>((*random)() % 8));
  }
  for (const auto& [text, score] : *pieces) model.Add(text, score);
  return model.Bytes();
}

// Reference: merges the whole text, best score first; among equal scores, the leftmost pair first.
std::vector<std::string> Merged(std::string_view text, const std::map<std::string, float>& pieces) {
  std::vector<std::string> parts;
  for (size_t at = 0; at < text.size(); at += CharacterAt(text, at).bytes) {
    const std::string character(text.substr(at, CharacterAt(text, at).bytes));
    parts.push_back(character == " " ? kMark : character);
  }
  for (;;) {
    auto best = pieces.end();
    size_t place = 0;
    for (size_t at = 0; at + 1 < parts.size(); ++at) {
      const auto made = pieces.find(parts[at] + parts[at + 1]);
      if (made == pieces.end() || (best != pieces.end() && made->second <= best->second)) continue;
      best = made;
      place = at;
    }
    if (best == pieces.end()) return parts;
    parts[place] = best->first;
    parts.erase(parts.begin() + static_cast<ptrdiff_t>(place) + 1);
  }
}

std::string RandomLetters(std::mt19937_64* random) {
  std::string text;
  for (uint64_t left = 1 + (*random)() % 40; left > 0; --left) {
    const std::string& letter = Alphabet()[(*random)() % Alphabet().size()];
    text += letter == kMark && (*random)() % 8 != 0 ? " " : letter;
  }
  return text;
}

TEST(PairMerger, SplitTextMergesLikeWholeText) {
  std::mt19937_64 random(250);
  size_t cuts = 0;
  for (int round = 0; round < 150; ++round) {
    std::map<std::string, float> pieces;
    const auto tokenizer = TokenizerOf(RandomModel(&random, &pieces));
    ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
    for (int i = 0; i < 40; ++i) {
      const std::string text = RandomLetters(&random);
      std::vector<int32_t> ids;
      for (const std::string& part : Merged(text, pieces)) {
        if (const auto id = (*tokenizer)->FindPiece(part)) {
          ids.push_back(*id);
          continue;
        }
        for (const char byte : part) ids.push_back(1 + static_cast<uint8_t>(byte));
      }
      ASSERT_EQ((*tokenizer)->Encode(text), ids) << "round " << round << ": " << text;
      cuts += ids.size() > 1;
    }
  }
  EXPECT_GT(cuts, 5000U);
}

// Words of two of 64 Chinese characters. Pieces contain most pairs of (last byte of one character,
// first byte of the next), but join few words.
TEST(Tokenizer, ManyOffsetsInLongLineWork) {
  std::vector<std::string> characters, words;
  for (int last = 0x80; last < 0xC0; ++last) {
    characters.push_back(std::string("\xE4\xB8") + static_cast<char>(last));
  }
  MadeUpModel model;
  for (const std::string& character : characters) model.Add(character, -2);
  for (size_t i = 0; i < characters.size(); ++i) {
    words.push_back(characters[i] + characters[(i + 1) % characters.size()]);
    model.Add(words.back(), -1);
  }
  const auto tokenizer = TokenizerOf(model.Bytes());
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  std::mt19937_64 random(7);
  std::string line;
  std::vector<size_t> offsets;
  std::vector<uint32_t> common_tokens;
  const size_t every = 49;
  for (uint32_t count = 0; offsets.size() < kMaxDeclaredBreakpoints; ++count) {
    const size_t word = random() % words.size();
    if (count % every == every - 1) {
      offsets.push_back(line.size() + characters[word].size());  // an offset inside a word
      common_tokens.push_back(count);
    }
    line += words[word];
  }
  ASSERT_GT(line.size(), size_t{300'000});
  Encoding encoding;
  ASSERT_EQ((*tokenizer)->EncodeWithOffsets(line, offsets, EncodeRules(), &encoding),
            EncodeEnd::kDone);
  EXPECT_EQ(encoding.common_tokens, common_tokens);
}

// "<end_of_turn>" is encoded as plain text. If the text ends inside it, its "<" may merge with the
// next character.
TEST(Tokenizer, SplitInsidePlainPieceChangesEarlierToken) {
  MadeUpModel model;
  model.Add("<end_of_turn>", 0, PieceType::kUserDefined);
  model.Add("<e", -1);
  for (const char* letter : {"<", "e", "n", "d", "_", "o", "f"}) model.Add(letter, -2);
  model.Add(kMark, -2);
  const auto made = TokenizerOf(model.Bytes());
  ASSERT_TRUE(made.ok()) << made.status();
  const auto& tokenizer = *made;
  EncodeRules rules;
  rules.plain = {{0, 100}};
  Encoding whole;
  const std::string text = "nn<end_of_turn>n";
  ASSERT_EQ(tokenizer->EncodeWithOffsets(text, {3, 9, 15}, rules, &whole), EncodeEnd::kDone);
  EXPECT_EQ(whole.ids[2], *tokenizer->FindPiece("<"));
  EXPECT_EQ(tokenizer->Encode("nn<end_of")[2], *tokenizer->FindPiece("<e"));
  EXPECT_THAT(whole.common_tokens, ElementsAre(3, 2, whole.ids.size() - 1));
}

TEST(Tokenizer, PlainPieceMayBeginNonAscii) {
  MadeUpModel model;
  model.Add("\xC3\xA9>", 0, PieceType::kControl);
  for (const char* letter : {"\xC3\xA9", ">", "n"}) model.Add(letter, -2);
  const auto made = TokenizerOf(model.Bytes());
  ASSERT_TRUE(made.ok()) << made.status();
  const auto& tokenizer = *made;
  EncodeRules rules;
  rules.plain = {{0, 100}};
  Encoding encoding;
  const std::string text = "n\xC3\xA9>n";
  ASSERT_EQ(tokenizer->EncodeWithOffsets(text, {3}, rules, &encoding), EncodeEnd::kDone);
  const auto id = [&](const char* piece) { return *tokenizer->FindPiece(piece); };
  EXPECT_THAT(encoding.ids, ElementsAre(id("n"), id("\xC3\xA9"), id(">"), id("n")));
  EXPECT_THAT(encoding.common_tokens, ElementsAre(2));
}

TEST(Tokenizer, BrokenPieceIsRefused) {
  const auto make = [](const std::string& piece, float score, PieceType type) {
    MadeUpModel model;
    for (const std::string& letter : {kMark, std::string("a"), std::string("b")}) {
      model.Add(letter, -2);
    }
    model.Add("ab", -1);
    model.Add(piece, score, type);
    return TokenizerOf(model.Bytes());
  };
  const float nan = std::numeric_limits<float>::quiet_NaN();
  // Merging never produces a control piece, so its score does not matter.
  const auto control = make("<c>", nan, PieceType::kControl);
  ASSERT_TRUE(control.ok()) << control.status();
  EXPECT_EQ((*control)->Encode("abab").size(), 2U);
  const auto kInvalid = absl::StatusCode::kInvalidArgument;
  EXPECT_EQ(make("b\xC3", -1, PieceType::kNormal).status().code(), kInvalid);
  EXPECT_EQ(make("a b", -1, PieceType::kNormal).status().code(), kInvalid);
  EXPECT_EQ(make("ba", nan, PieceType::kNormal).status().code(), kInvalid);
  EXPECT_EQ(make("", -1, PieceType::kNormal).status().code(), kInvalid);
  EXPECT_EQ(make("a" + kMark + "b", 0, PieceType::kUserDefined).status().code(),
            absl::StatusCode::kUnimplemented);
}

}  // namespace
}  // namespace hearth
