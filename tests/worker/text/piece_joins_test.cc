#include "worker/text/piece_joins.h"

#include <limits>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/worker/model/made_up_model.h"
#include "tests/worker/text/tiny_tokenizer.h"
#include "worker/text/pair_merger.h"
#include "worker/text/tokenizer.h"

namespace hearth {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

const std::string kMark = "\xE2\x96\x81";  // a space in a piece

std::optional<PieceJoins> Proof(const std::vector<VocabularyPiece>& pieces) {
  std::string why_not;
  return PieceJoins::Prove(pieces, /*plain_bpe=*/true, &why_not);
}

std::string WhyNot(const std::vector<VocabularyPiece>& pieces, bool plain_bpe = true) {
  std::string why_not;
  EXPECT_FALSE(PieceJoins::Prove(pieces, plain_bpe, &why_not).has_value());
  return why_not;
}

TEST(PieceTable, FindsEachTextOfAnyLengthAndNoOther) {
  const std::string letters = "abcdefghijklmnopqrstuvwxyzabcdefghijklmnopqrstuvwxyz";
  std::set<std::string> texts;
  for (size_t begin = 0; begin < 26; ++begin) {
    for (size_t bytes = 1; bytes <= 26; ++bytes) texts.insert(letters.substr(begin, bytes));
  }
  texts.insert(std::string(1, '\0'));
  texts.insert(std::string(2, '\0'));
  PieceTable table(texts.size());
  int32_t id = 0;
  for (const std::string& text : texts) {
    table.Add(text, id, static_cast<float>(-id));
    ++id;
  }
  id = 0;
  for (const std::string& text : texts) {
    ASSERT_NE(table.Find(text), nullptr) << text;
    EXPECT_EQ(table.Find(text)->id, static_cast<uint32_t>(id));
    EXPECT_EQ(table.Find(text)->score, static_cast<float>(-id));
    ++id;
    for (const char more : {'\0', '!', text.back()}) {
      EXPECT_EQ(table.Find(text + more) != nullptr, texts.count(text + more) > 0) << text;
    }
  }
  EXPECT_EQ(table.Find(""), nullptr);
  EXPECT_EQ(table.Find("cba"), nullptr);
  EXPECT_EQ(table.longest_bytes(), 26U);
}

TEST(PieceJoins, CutsWhereNoPieceHoldsBothCharacters) {
  const std::string a_space = "a" + kMark, space_b = kMark + "b";
  const auto joins = Proof({{"ab", PieceType::kNormal, -1},
                            {"b\xC3\xA9", PieceType::kNormal, -2},
                            {space_b, PieceType::kNormal, -3},
                            {"\n\n", PieceType::kUserDefined, 0},
                            {"<ba>", PieceType::kControl, 0},
                            {"<0x41>", PieceType::kByte, 0}});
  ASSERT_TRUE(joins.has_value());
  EXPECT_TRUE(joins->MayJoin('a', 'b'));
  EXPECT_TRUE(joins->MayJoin('b', 0xE9));
  EXPECT_TRUE(joins->MayJoin(' ', 'b'));
  EXPECT_TRUE(joins->MayJoin('\n', '\n')) << "a merge may make a never-merged piece, too";
  EXPECT_FALSE(joins->MayJoin('b', 'a')) << "nothing becomes a control piece by merging";
  EXPECT_FALSE(joins->MayJoin('0', 'x')) << "nor a byte's piece";
  EXPECT_FALSE(joins->MayJoin(0xE9, 'b'));
  EXPECT_FALSE(joins->MayJoin('a', ' '));
  EXPECT_FALSE(joins->MayJoin(0, 0));
  EXPECT_THAT(joins->SafeCuts("abab b\xC3\xA9\xC3\xA9z"), ElementsAre(2, 4, 8, 10));
  EXPECT_THAT(joins->SafeCuts("ab"), IsEmpty());
  EXPECT_THAT(joins->SafeCuts(""), IsEmpty());
  EXPECT_TRUE(Proof({{a_space, PieceType::kNormal, -1}})->MayJoin('a', ' '));
}

TEST(PieceJoins, RefusesWhatItCannotProve) {
  EXPECT_THAT(WhyNot({{"ab", PieceType::kNormal, -1}}, /*plain_bpe=*/false),
              HasSubstr("more than merge"));
  EXPECT_THAT(WhyNot({{"a\xC3", PieceType::kNormal, -1}}), HasSubstr("no UTF-8"));
  EXPECT_THAT(WhyNot({{"", PieceType::kNormal, -1}}), HasSubstr("empty"));
  EXPECT_THAT(WhyNot({{"a b", PieceType::kNormal, -1}}), HasSubstr("a space that no text has"));
  const float nan = std::numeric_limits<float>::quiet_NaN();
  EXPECT_THAT(WhyNot({{"ab", PieceType::kNormal, nan}}), HasSubstr("no number"));
  const std::string a_b = "a" + kMark + "b", two = kMark + kMark, three = two + kMark;
  EXPECT_THAT(WhyNot({{a_b, PieceType::kUserDefined, 0}}), HasSubstr("among other characters"));
  EXPECT_THAT(WhyNot({{kMark, PieceType::kUserDefined, 0}}), HasSubstr("a single space"));
  EXPECT_THAT(WhyNot({{three, PieceType::kUserDefined, 0}}), HasSubstr("a run of two is none"));
  EXPECT_TRUE(Proof({{three, PieceType::kUserDefined, 0}, {two, PieceType::kUserDefined, 0}}));
  EXPECT_TRUE(Proof({{a_b, PieceType::kNormal, -1}})->MayJoin('a', ' ')) << "normal ones may";
}

// Characters that the models below have pieces of, and some that they have not.
const std::vector<std::string>& Alphabet() {
  static const auto* alphabet = new std::vector<std::string>{
      "a", "b", "c", "\xC3\xA9", "\xE6\x97\xA5", kMark, "\xF0\x9F\x99\x82"};
  return *alphabet;
}

// A few dozen pieces of few characters, so that most neighbours meet in some text and many scores
// are equal.
std::string RandomModel(std::mt19937_64* random) {
  MadeUpModel model;
  std::set<std::string> taken = {kMark};
  model.Add(kMark, -1);
  const bool runs = (*random)() % 2 == 0;
  if (runs) {
    for (const std::string& run : {kMark + kMark, kMark + kMark + kMark}) {
      model.Add(run, 0, PieceType::kUserDefined);
      taken.insert(run);
    }
  }
  const uint64_t count = 2 + (*random)() % 30;
  for (uint64_t i = 0; i < count; ++i) {
    std::string text;
    for (uint64_t left = 1 + (*random)() % 4; left > 0; --left) {
      text += Alphabet()[(*random)() % (Alphabet().size() - 1)];
    }
    if (!taken.insert(text).second) continue;
    const bool whole = (*random)() % 8 == 0 && text.find(kMark) == std::string::npos;
    model.Add(text, whole ? 0 : -static_cast<float>((*random)() % 8),
              whole ? PieceType::kUserDefined : PieceType::kNormal);
  }
  return model.Bytes();
}

std::string RandomLetters(std::mt19937_64* random) {
  std::string text;
  for (uint64_t left = 1 + (*random)() % 40; left > 0; --left) {
    const std::string& letter = Alphabet()[(*random)() % Alphabet().size()];
    text += letter == kMark && (*random)() % 8 != 0 ? " " : letter;
  }
  return text;
}

TEST(PieceJoins, CutTextsBecomeWhatSentencePieceMakesOfTheWhole) {
  std::mt19937_64 random(250);
  size_t cuts = 0;
  for (int round = 0; round < 150; ++round) {
    const std::string model = RandomModel(&random);
    std::string error;
    const auto proven = Tokenizer::Parse(model, &error);
    ASSERT_NE(proven, nullptr) << error;
    ASSERT_EQ(proven->why_not_proven(), "");
    const auto peer = Tokenizer::Parse(model, &error, {SIZE_MAX, false});
    for (int i = 0; i < 40; ++i) {
      const std::string text = RandomLetters(&random);
      const auto ids = peer->Encode(text);
      ASSERT_EQ(proven->Encode(text), ids) << "round " << round << ": " << text;
      cuts += ids.size() > 1;
    }
  }
  EXPECT_GT(cuts, 5000U);
}

TEST(PieceJoins, WhereNothingIsProvenSentencePieceEncodes) {
  MadeUpModel model;
  model.Add("a" + kMark + "b", 0, PieceType::kUserDefined);
  model.Add("ab", -1);
  model.Add(kMark + "b", -2);
  for (const char* letter : {"a", "b"}) model.Add(letter, -3);
  model.Add(kMark, -4);
  std::string error;
  const auto tokenizer = Tokenizer::Parse(model.Bytes(), &error);
  ASSERT_NE(tokenizer, nullptr) << error;
  EXPECT_THAT(tokenizer->why_not_proven(), HasSubstr("among other characters"));
  const int32_t whole = *tokenizer->FindPiece("a" + kMark + "b");
  // Over the limit of a stretch: a word's begin that a piece reaches over is none.
  std::string text;
  while (text.size() < 5000) text += "a b";
  const auto ids = tokenizer->Encode(text);
  EXPECT_EQ(ids.size(), text.size() / 3);
  EXPECT_EQ(static_cast<size_t>(std::count(ids.begin(), ids.end(), whole)), ids.size());
}

// A text that ends inside a piece has no such piece, and its "<" may be merged then.
TEST(PieceJoins, ACutInsideAPieceThatIsSpelledOutReachesBackToItsBegin) {
  MadeUpModel model;
  model.Add("<end_of_turn>", 0, PieceType::kUserDefined);
  model.Add("<e", -1);
  for (const char* letter : {"<", "e", "n", "d", "_", "o", "f"}) model.Add(letter, -2);
  model.Add(kMark, -2);
  std::string error;
  const auto tokenizer = Tokenizer::Parse(model.Bytes(), &error);
  ASSERT_NE(tokenizer, nullptr) << error;
  ASSERT_EQ(tokenizer->why_not_proven(), "");
  EncodeRules rules;
  rules.plain = {{0, 100}};
  Encoding whole;
  const std::string text = "nn<end_of_turn>n";
  ASSERT_EQ(tokenizer->EncodeWithOffsets(text, {3, 9, 15}, rules, &whole), EncodeEnd::kDone);
  EXPECT_EQ(whole.ids[2], *tokenizer->FindPiece("<"));
  EXPECT_EQ(tokenizer->Encode("nn<end_of")[2], *tokenizer->FindPiece("<e"));
  EXPECT_THAT(whole.common_tokens, ElementsAre(3, 2, whole.ids.size() - 1));
}

TEST(PieceJoins, AModelThatDoesMoreThanMergeIsLeftToSentencePiece) {
  MadeUpModel model;
  for (const char* piece : {"a", "b", "ab"}) model.Add(piece, -1);
  model.Add(kMark, -1);
  model.Add("c", -1);
  std::string error;
  const auto tokenizer = Tokenizer::Parse(model.Bytes(/*model_type=*/1), &error);
  ASSERT_NE(tokenizer, nullptr) << error;
  EXPECT_THAT(tokenizer->why_not_proven(), HasSubstr("more than merge"));
  EXPECT_EQ(tokenizer->Decode(tokenizer->Encode("abba"), false), "abba");
}

TEST(PieceJoins, AnOddModelIsRefusedOrLeftToSentencePiece) {
  const auto parse = [](const std::string& piece, float score,
                        PieceType type = PieceType::kNormal) {
    MadeUpModel model;
    for (const std::string& letter : {kMark, std::string("a"), std::string("b")}) {
      model.Add(letter, -2);
    }
    model.Add("ab", -1);
    model.Add(piece, score, type);
    std::string error;
    return Tokenizer::Parse(model.Bytes(), &error);
  };
  EXPECT_EQ(parse("ab", -1), nullptr) << "twice the same";
  EXPECT_EQ(parse("", -1), nullptr);
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const auto control = parse("<c>", nan, PieceType::kControl);  // nothing becomes it
  ASSERT_NE(control, nullptr);
  EXPECT_EQ(control->why_not_proven(), "");
  EXPECT_EQ(control->Encode("abab").size(), 2U);
  for (const auto& tokenizer : {parse("b\xC3", -1), parse("a b", -1), parse("ba", nan)}) {
    ASSERT_NE(tokenizer, nullptr);
    EXPECT_NE(tokenizer->why_not_proven(), "");
    // Over the length of a stretch, and of a word that SentencePiece is not given.
    const std::string text = "ab " + std::string(3 * kLongWordBytes, 'b');
    EXPECT_EQ(tokenizer->Decode(tokenizer->Encode(text), false), text);
  }
}

}  // namespace
}  // namespace hearth
