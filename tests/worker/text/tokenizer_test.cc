#include "worker/text/tokenizer.h"

#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "proto/utf8.h"
#include "tests/support/test_folder.h"
#include "tests/worker/model/made_up_model.h"
#include "tests/worker/text/tiny_tokenizer.h"
#include "worker/model/model_file.h"
#include "worker/model/model_json.h"
#include "worker/text/tokenizer_loader.h"
#include "worker/text/vocabulary.h"
#include "worker/text/vocabulary_file.h"

namespace hearth {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

int32_t Id(const std::string& piece) {
  const auto id = TinyTokenizer().FindPiece(piece);
  EXPECT_TRUE(id.has_value()) << piece;
  return id.value_or(-1);
}

// Encodes the text with `rules`. Returns how the encoding ended.
EncodeEnd EncodeBy(const EncodeRules& rules, const std::string& text,
                   const std::vector<size_t>& offsets = {}, Encoding* encoding = nullptr) {
  Encoding unwanted;
  return TinyTokenizer().EncodeWithOffsets(text, offsets, rules,
                                           encoding == nullptr ? &unwanted : encoding);
}

TEST(PieceMatcher, FindsLongestLeadingPiece) {
  const PieceMatcher matcher({{"ab", 1}, {"a", 2}, {"abcd", 3}, {"b", 4}, {"\xFF", 5}});
  EXPECT_EQ(matcher.Longest("abc")->id, 1);
  EXPECT_EQ(matcher.Longest("abcd")->id, 3);
  EXPECT_EQ(matcher.Longest("abcd")->length_bytes, 4U);
  EXPECT_EQ(matcher.Longest("ac")->id, 2);
  EXPECT_EQ(matcher.Longest("\xFF")->id, 5);
  EXPECT_FALSE(matcher.Longest("cab").has_value());
  EXPECT_FALSE(matcher.Longest("").has_value());
  EXPECT_FALSE(PieceMatcher().Longest("a").has_value());
}

TEST(SpaceRuns, RunsMergeInPairs) {
  std::map<size_t, int32_t> pieces;
  for (size_t length = 2; length <= 31; ++length) pieces[length] = static_cast<int32_t>(length);
  const SpaceRuns runs(pieces);
  for (size_t count = 2; count <= 31; ++count) {
    std::vector<int32_t> ids;
    EXPECT_EQ(runs.Append(count, &ids), 0U);
    EXPECT_THAT(ids, ElementsAre(static_cast<int32_t>(count)));
  }
  std::vector<int32_t> ids;
  EXPECT_EQ(runs.Append(32, &ids), 0U);
  EXPECT_THAT(ids, ElementsAre(16, 16));
  ids.clear();
  const SpaceRuns pairs(std::map<size_t, int32_t>{{2, 7}});
  EXPECT_EQ(pairs.Append(5, &ids), 1U) << "one space is left for the text that follows";
  EXPECT_THAT(ids, ElementsAre(7, 7));
  EXPECT_TRUE(SpaceRuns().empty());
}

TEST(VocabularyFile, ReadsModelAndDetectsDamage) {
  const std::string model = ReadTestFile("tiny_tokenizer/tokenizer.model");
  const auto pieces = ReadTokenizerModel(model);
  ASSERT_TRUE(pieces.ok()) << pieces.status();
  ASSERT_EQ(pieces->size(), static_cast<size_t>(TinyTokenizer().size()));
  EXPECT_EQ((*pieces)[Id("<bos>")].type, PieceType::kControl);
  EXPECT_EQ((*pieces)[Id("<unk>")].type, PieceType::kUnknown);
  EXPECT_EQ((*pieces)[Id("<start_of_turn>")].type, PieceType::kUserDefined);
  EXPECT_EQ((*pieces)[Id("<0x41>")].type, PieceType::kByte);
  EXPECT_EQ((*pieces)[Id("and")].type, PieceType::kNormal);
  EXPECT_EQ((*pieces)[Id("and")].text, "and");
  EXPECT_LT((*pieces)[Id("and")].score, 0);
  for (const std::string& broken : {std::string("not a model"), model.substr(0, model.size() - 1),
                                    std::string(), model.substr(0, model.size() / 2),
                                    model + std::string("\x0A\x02\x18\x07", 4), model + "\x0F"}) {
    EXPECT_EQ(ReadTokenizerModel(broken).status().code(), absl::StatusCode::kInvalidArgument);
  }
  const std::string twice("\x0A\x09\x0A\x05<bos>\x18\x04", 11);
  EXPECT_THAT(std::string(ReadTokenizerModel(model + twice).status().message()),
              HasSubstr("two pieces are \"<bos>\""));
}

TEST(VocabularyFile, UnsupportedModelFeatureIsRefused) {
  const std::string model = ReadTestFile("tiny_tokenizer/tokenizer.model");
  // Fields appended to a protobuf message are merged into the message.
  const auto why = [&](const std::string& more) {
    const absl::Status status = ReadTokenizerModel(model + more).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented);
    return std::string(status.message());
  };
  EXPECT_THAT(why("\x1A\x03\x12\x01x"), HasSubstr("the normalizer changes"));
  EXPECT_THAT(why("\x1A\x02\x18\x01"), HasSubstr("adds a prefix"));
  EXPECT_THAT(why("\x12\x02\x18\x01"), HasSubstr("must be plain BPE"));
  EXPECT_THAT(why(std::string("\x12\x03\x98\x02\x00", 5)),
              HasSubstr("must have byte_fallback set"));
  EXPECT_THAT(why("\x0A\x05\x0A\x01~\x18\x05"), HasSubstr("unused"));
}

TEST(VocabularyFile, TokenizerJsonPiecesAreRead) {
  const auto pieces = ReadTokenizerJson(SmallJson().dump());
  ASSERT_TRUE(pieces.ok()) << pieces.status();
  const auto tokenizer = Tokenizer::Make(*pieces);
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  const auto id = [&](const char* piece) { return *(*tokenizer)->FindPiece(piece); };
  EXPECT_THAT((*tokenizer)->Encode("<bos> abab\n\n\n<image>c"),
              ElementsAre(1, id("\u2581ab"), id("ab"), 2, id("\n"), id("<image>"), id("<0x63>")));
  EXPECT_EQ((*tokenizer)->bos_id(), 1);
  EXPECT_EQ((*tokenizer)->size(), id("<image>") + 1) << "<image> has the id after the vocabulary";
}

TEST(VocabularyFile, UnsupportedTokenizerJsonIsRefused) {
  using Json = nlohmann::json;
  const auto why = [](const char* at, const Json& value, absl::StatusCode code) {
    Json json = SmallJson();
    json[Json::json_pointer(at)] = value;
    const absl::Status status = ReadTokenizerJson(json.dump()).status();
    EXPECT_EQ(status.code(), code) << at << ": " << status;
    return std::string(status.message());
  };
  constexpr auto kOther = absl::StatusCode::kUnimplemented;
  constexpr auto kBroken = absl::StatusCode::kInvalidArgument;
  EXPECT_THAT(why("/model/type", "Unigram", kOther), HasSubstr("must be BPE"));
  EXPECT_THAT(why("/model/ignore_merges", true, kOther), HasSubstr("model.ignore_merges is not"));
  EXPECT_THAT(why("/model/byte_fallback", false, kOther), HasSubstr("byte_fallback must be true"));
  EXPECT_THAT(why("/normalizer/type", "NFC", kOther), HasSubstr("the normalizer must only"));
  EXPECT_THAT(why("/pre_tokenizer", {{"type", "ByteLevel"}}, kOther),
              HasSubstr("must not split the text"));
  EXPECT_THAT(why("/added_tokens/2/lstrip", true, kOther), HasSubstr("unsupported lstrip"));
  EXPECT_THAT(why("/added_tokens/3", {{"id", 261}, {"content", "\u2581"}}, kOther),
              HasSubstr("produced by merging spaces"));
  EXPECT_THAT(why("/added_tokens/3/single_word", true, kOther),
              HasSubstr("unsupported single_word"));
  EXPECT_THAT(why("/model/merges/3", {"a", "ba"}, kBroken),
              HasSubstr("uses a piece that is missing"));
  EXPECT_THAT(why("/model/merges/3", {"a", "b"}, kOther), HasSubstr("must be in the order"));
  EXPECT_THAT(why("/model/merges/2", {"a", "b"}, kBroken), HasSubstr("occurs twice"));
  EXPECT_THAT(why("/model/merges/3", {"a", 1}, kBroken), HasSubstr("must be a pair of strings"));
  EXPECT_THAT(why("/model/merges", Json::array({Json::array({"a", "b"})}), kOther),
              HasSubstr("its pieces allow 3"));
  EXPECT_THAT(why("/model/vocab/a", 1 << 20, kBroken), HasSubstr("a number below"));
  EXPECT_THAT(why("/model/vocab/a", -1, kBroken), HasSubstr("a number below"));
  EXPECT_THAT(why("/model/vocab/a", 4, kBroken), HasSubstr("have the same id"));
  EXPECT_THAT(why("/model/vocab/xyz", 300, kBroken), HasSubstr("transformers assigns 267"));
  EXPECT_THAT(why("/added_tokens/3", {{"id", 266}, {"content", ""}}, kBroken), HasSubstr("empty"));
  Json unmade = SmallJson();
  unmade["model"]["vocab"]["xyz"] = 266;
  unmade["added_tokens"][3]["id"] = 267;
  EXPECT_THAT(std::string(ReadTokenizerJson(unmade.dump()).status().message()),
              HasSubstr("no merge produces the piece \"xyz\""));
  EXPECT_THAT(why("/added_tokens/0/content", 7, kBroken), HasSubstr("has no content"));
  EXPECT_THAT(why("/model/vocab", nullptr, kBroken), HasSubstr("not a tokenizer"));
  EXPECT_FALSE(ReadTokenizerJson("").ok());
  EXPECT_FALSE(ReadTokenizerJson(std::string(100000, '[')).ok());
}

TEST(Tokenizer, ControlPiecesBecomeTheirIds) {
  EXPECT_THAT(TinyTokenizer().Encode("<bos><start_of_turn>and<eos><unk><pad>\n\n<mask>"),
              ElementsAre(2, Id("<start_of_turn>"), Id("and"), 1, 3, 0, Id("\n\n"), Id("<mask>")));
  EXPECT_EQ(TinyTokenizer().bos_id(), 2);
}

TEST(Tokenizer, LineAndSpaceRunsStayTogether) {
  EXPECT_THAT(TinyTokenizer().Encode("\n\n\n\n\n\n"), ElementsAre(Id("\n\n\n\n"), Id("\n\n")));
  // The space just before a word belongs to the run of spaces.
  EXPECT_THAT(TinyTokenizer().Encode("   and"), ElementsAre(Id("▁▁▁"), Id("and")));
  EXPECT_THAT(TinyTokenizer().Encode(" and"), ElementsAre(Id("▁and")));
}

TEST(Tokenizer, UnknownCharactersBecomeBytes) {
  EXPECT_THAT(TinyTokenizer().Encode("\xF0\x9F\x99\x82"),
              ElementsAre(Id("<0xF0>"), Id("<0x9F>"), Id("<0x99>"), Id("<0x82>")));
  EXPECT_THAT(TinyTokenizer().Encode(std::string("\0", 1)), ElementsAre(Id("<0x00>")));
  EXPECT_TRUE(TinyTokenizer().Encode("").empty());
}

TEST(Tokenizer, DecodingRestoresTheText) {
  std::mt19937_64 random(2);
  for (int round = 0; round < 500; ++round) {
    std::string text = RandomText(&random, random() % 30);
    const std::string decoded = TinyTokenizer().Decode(TinyTokenizer().Encode(text), false);
    for (size_t at; (at = text.find("\xE2\x96\x81")) != std::string::npos;) {
      text.replace(at, 3, " ");
    }
    ASSERT_EQ(decoded, text) << "only U+2581 may decode differently: it stands for a space";
  }
}

TEST(Tokenizer, DecodingSkipsSpecialTokens) {
  const auto ids = TinyTokenizer().Encode("<bos><start_of_turn>and\n<table><end_of_turn><eos>");
  EXPECT_EQ(TinyTokenizer().Decode(ids, true), "and\n<table>");
  EXPECT_EQ(TinyTokenizer().Decode({-1, 1 << 30, Id("and")}, false), "and");
  EXPECT_EQ(TinyTokenizer().Decode({Id("<0xE2>"), Id("<0x82>"), Id("and")}, false),
            "\xEF\xBF\xBD\xEF\xBF\xBD"
            "and");
}

TEST(Tokenizer, CommonTokensEqualPrefixEncoding) {
  std::mt19937_64 random(3);
  for (int round = 0; round < 500; ++round) {
    const std::string text = RandomText(&random, 1 + random() % 30);
    std::vector<size_t> offsets;
    for (size_t at = 0; at <= text.size(); ++at) {
      if (IsUtf8Boundary(text, at)) offsets.push_back(at);
    }
    Encoding encoding;
    ASSERT_EQ(EncodeBy({}, text, offsets, &encoding), EncodeEnd::kDone);
    ASSERT_EQ(encoding.ids, TinyTokenizer().Encode(text));
    ASSERT_EQ(encoding.common_tokens.size(), offsets.size());
    for (size_t i = 0; i < offsets.size(); ++i) {
      const auto prefix = TinyTokenizer().Encode(text.substr(0, offsets[i]));
      size_t common = 0;
      while (common < prefix.size() && common < encoding.ids.size() &&
             prefix[common] == encoding.ids[common]) {
        ++common;
      }
      ASSERT_EQ(encoding.common_tokens[i], common) << "offset " << offsets[i] << " of " << text;
    }
  }
}

TEST(Tokenizer, ManyOffsetsInLongWordAreDeclined) {
  const std::string word(kMaxTextBytes / 32, 'e');  // "ee" is a piece, so the word cannot be split
  std::vector<size_t> offsets = {1, 1000, word.size()};
  EXPECT_EQ(EncodeBy({}, word, offsets), EncodeEnd::kDone);
  for (size_t less = 1; less < 70; ++less) offsets.push_back(word.size() - less);
  EXPECT_EQ(EncodeBy({}, word, offsets), EncodeEnd::kTooCostly);
}

TEST(Tokenizer, EncodingEndsAtMaxTokens) {
  std::string text;
  while (text.size() < kMaxTextBytes - 16) text += "the keeper ";
  int asked = 0;
  EncodeRules rules;
  rules.max_tokens = 1000;
  // Encoding the whole text would call this far more often.
  rules.stopped = [&asked] { return ++asked > 100; };
  EXPECT_EQ(EncodeBy(rules, text), EncodeEnd::kTooManyTokens);
  rules.max_tokens = TinyTokenizer().Encode("the keeper the keeper").size();
  EXPECT_EQ(EncodeBy(rules, "the keeper the keeper"), EncodeEnd::kDone);
  rules.max_tokens -= 1;
  EXPECT_EQ(EncodeBy(rules, "the keeper the keeper"), EncodeEnd::kTooManyTokens);
}

TEST(Tokenizer, EncodingCanBeStopped) {
  const std::string many_words = [] {
    std::string text;
    while (text.size() < kMaxTextBytes - 16) text += "the keeper ";
    return text;
  }();
  for (const std::string& text :
       {many_words, std::string(kMaxTextBytes, 'a'), std::string(kMaxTextBytes, 'e'),
        std::string(kMaxTextBytes, '\n')}) {
    int asked = 0;
    EncodeRules rules;
    rules.stopped = [&asked] { return ++asked == 3; };
    EXPECT_EQ(EncodeBy(rules, text), EncodeEnd::kStopped) << text.substr(0, 8);
    EXPECT_EQ(asked, 3) << "after it was stopped, it must not call again";
  }
}

TEST(Tokenizer, SpecialPiecesInPlainRangeAreText) {
  const std::string text = "<start_of_turn>the <end_of_turn><bos> lamp<end_of_turn>";
  const size_t begin = text.find("the"), end = text.rfind("<end_of_turn>");
  EncodeRules rules;
  rules.plain = {{begin, end}};
  Encoding encoding;
  ASSERT_EQ(EncodeBy(rules, text, {}, &encoding), EncodeEnd::kDone);
  size_t special = 0;
  for (const int32_t id : encoding.ids) special += TinyTokenizer().IsSpecial(id);
  EXPECT_EQ(special, 2U) << "only the first and last piece stay special";
  EXPECT_EQ(encoding.ids.front(), Id("<start_of_turn>"));
  EXPECT_EQ(encoding.ids.back(), Id("<end_of_turn>"));
  EXPECT_EQ(TinyTokenizer().Decode(encoding.ids, /*skip_special=*/false), text);
}

TEST(Tokenizer, CommonTokensWithPlainRangeEqualPrefix) {
  std::mt19937_64 random(12);
  for (int round = 0; round < 60; ++round) {
    const std::string text = "the <start_of_turn>keeper" + RandomText(&random, random() % 12);
    EncodeRules rules;
    rules.plain = {{0, 1 + random() % text.size()}};
    std::vector<size_t> offsets;
    for (size_t at = 0; at <= text.size(); ++at) {
      if (IsUtf8Boundary(text, at)) offsets.push_back(at);
    }
    Encoding whole;
    ASSERT_EQ(EncodeBy(rules, text, offsets, &whole), EncodeEnd::kDone);
    for (size_t i = 0; i < offsets.size(); ++i) {
      Encoding part;
      ASSERT_EQ(EncodeBy(rules, text.substr(0, offsets[i]), {}, &part), EncodeEnd::kDone);
      const auto differ =
          std::mismatch(part.ids.begin(), part.ids.end(), whole.ids.begin(), whole.ids.end());
      ASSERT_EQ(whole.common_tokens[i], static_cast<size_t>(differ.first - part.ids.begin()))
          << text << " up to " << offsets[i];
    }
  }
}

TEST(TokenizerLoader, BrokenTokenizerFileIsNamed) {
  const TestFolder folder;
  const std::filesystem::path dir = folder.path();
  auto none = LoadTokenizer(dir);
  ASSERT_TRUE(none.ok()) << none.status();
  EXPECT_EQ(none->tokenizer, nullptr) << "a folder without a tokenizer serves token ids";
  EXPECT_THAT(none->why_none, HasSubstr("no tokenizer.model"));

  std::ofstream(dir / "tokenizer.model") << "broken";
  auto broken = LoadTokenizer(dir);
  EXPECT_EQ(broken.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(broken.status().message()),
              HasSubstr("tokenizer.model: is not a SentencePiece"));

  std::ofstream(dir / "tokenizer.model", std::ios::binary)
      << ReadTestFile("tiny_tokenizer/tokenizer.model");
  auto whole = LoadTokenizer(dir);
  ASSERT_TRUE(whole.ok()) << whole.status();
  EXPECT_EQ(whole->tokenizer->size(), TinyTokenizer().size());
  EXPECT_EQ(whole->why_none, "");
  // A field appended to a protobuf message is merged into it: normalizer_spec {
  // precompiled_charsmap: ... }.
  std::ofstream(dir / "tokenizer.model", std::ios::binary | std::ios::app) << "\x1A\x03\x12\x01x";
  auto normalizing = LoadTokenizer(dir);
  ASSERT_TRUE(normalizing.ok()) << normalizing.status();
  EXPECT_EQ(normalizing->tokenizer, nullptr);
  EXPECT_THAT(normalizing->why_none, HasSubstr("tokenizer.model: the normalizer"));
  std::filesystem::remove(dir / "tokenizer.model");
  std::ofstream(dir / "tokenizer.json") << SmallJson();
  auto json = LoadTokenizer(dir);
  ASSERT_TRUE(json.ok()) << json.status();
  EXPECT_EQ(json->file, "tokenizer.json");
  EXPECT_NE(json->tokenizer, nullptr);
  EXPECT_THAT(json->notes, ElementsAre(HasSubstr("post_processor of tokenizer.json does more"),
                                       HasSubstr("tokenizer: tokenizer.json, with "),
                                       "chat_template: the model has none: Gemma 3's is used"));
  std::filesystem::remove(dir / "tokenizer.json");
  ASSERT_EQ(mkfifo((dir / "tokenizer.json").c_str(), 0600), 0);
  EXPECT_THAT(std::string(LoadTokenizer(dir).status().message()), HasSubstr("not a regular file"));
}

class TokenizerFolder : public testing::Test {
 protected:
  void Write(const std::string& name, const nlohmann::json& json) {
    std::ofstream(folder_.path() + "/" + name) << json;
  }
  absl::StatusOr<LoadedTokenizer> Load(ChatTemplateChoice choice = ChatTemplateChoice::kAuto) {
    return LoadTokenizer(folder_.path(), choice);
  }
  std::string WhyNot() { return std::string(Load().status().message()); }
  // Returns the token ids of `text`. REQUIRES: the folder has a supported tokenizer.
  std::vector<int32_t> Ids(const std::string& text) {
    const auto loaded = Load();
    EXPECT_TRUE(loaded.ok() && loaded->tokenizer != nullptr)
        << loaded.status() << (loaded.ok() ? loaded->why_none : "");
    return loaded.ok() && loaded->tokenizer != nullptr ? loaded->tokenizer->Encode(text)
                                                       : std::vector<int32_t>();
  }

  const TestFolder folder_;
};

// Returns an entry of added_tokens_decoder.
nlohmann::json Added(const std::string& text, bool special = false, bool normalized = false) {
  return {{"content", text},      {"lstrip", false},    {"rstrip", false},
          {"single_word", false}, {"special", special}, {"normalized", normalized}};
}

TEST_F(TokenizerFolder, TokenizerJsonPrecedesTokenizerModel) {
  std::ofstream(folder_.path() + "/tokenizer.model", std::ios::binary)
      << ReadTestFile("tiny_tokenizer/tokenizer.model");
  Write("tokenizer.json", SmallJson());
  const auto loaded = Load();
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  EXPECT_EQ(loaded->file, "tokenizer.json");
  EXPECT_EQ(loaded->tokenizer->size(), 267);
}

TEST_F(TokenizerFolder, OtherFilesAddTokens) {
  Write("tokenizer.json", SmallJson());
  Write("added_tokens.json", {{"<|im_start|>", 267}, {"abab", 268}});
  EXPECT_THAT(Ids("<|im_start|>"), ElementsAre(267));
  EXPECT_THAT(Ids("ababa"), ElementsAre(268, 259)) << "the added token is matched as a whole";
  Write("added_tokens.json", {{"<|im_start|>", 267}});
  Write("special_tokens_map.json", {{"bos_token", "<bos>"}, {"eos_token", {{"content", "b"}}}});
  EXPECT_THAT(Ids("ab"), ElementsAre(259, 260)) << "b is a special token, and ab no piece";
  Write("tokenizer_config.json", {{"pad_token", "[PAD]"}});
  EXPECT_THAT(Ids("[PAD]"), ElementsAre(268)) << "one token without an id gets the next";
  Write("tokenizer_config.json", {{"pad_token", "[PAD]"}, {"sep_token", "[SEP]"}});
  EXPECT_THAT(WhyNot(), HasSubstr("special tokens \"[PAD]\" and \"[SEP]\", which have no id"));
}

TEST_F(TokenizerFolder, ContradictoryFilesAreRefused) {
  Write("tokenizer.json", SmallJson());
  Write("added_tokens.json", {{"<|im_start|>", 0}});
  EXPECT_THAT(WhyNot(), HasSubstr("added_tokens.json: token 0 is \"<|im_start|>\", but"));
  EXPECT_THAT(WhyNot(), HasSubstr("tokenizer.json has \"<unk>\" instead; transformers may read"));
  Write("added_tokens.json", {{"ab", 267}});
  EXPECT_THAT(WhyNot(), HasSubstr("has this token with the id 263"));
  Write("added_tokens.json", {{"x", "y"}});
  EXPECT_THAT(WhyNot(), HasSubstr("the id of \"x\" must be a number"));
  nlohmann::json decoder = {{"0", Added("<unk>", true)},
                            {"1", Added("<bos>", true)},
                            {"2", Added("\n\n")},
                            {"266", Added("<image>")}};
  Write("tokenizer_config.json", {{"added_tokens_decoder", decoder}});
  EXPECT_THAT(Ids("<bos>"), ElementsAre(1)) << "added_tokens.json must be ignored";
  decoder["266"] = Added("<picture>");
  Write("tokenizer_config.json", {{"added_tokens_decoder", decoder}});
  EXPECT_THAT(WhyNot(), HasSubstr("has the added token 266, \"<image>\"; the"));
  decoder.erase("266");
  Write("tokenizer_config.json",
        {{"added_tokens_decoder", decoder}, {"extra_special_tokens", {{"image", "<image>"}}}});
  EXPECT_THAT(Ids("<image>"), ElementsAre(266));
  decoder["x"] = Added("y");
  Write("tokenizer_config.json", {{"added_tokens_decoder", decoder}});
  EXPECT_THAT(WhyNot(), HasSubstr("an entry \"x\" that is not a token with an id"));
  std::ofstream(folder_.path() + "/tokenizer_config.json") << "{";
  EXPECT_THAT(WhyNot(), HasSubstr("tokenizer_config.json: is not readable JSON"));
}

TEST_F(TokenizerFolder, IdsMayHaveGaps) {
  nlohmann::json json = SmallJson();
  json["model"]["vocab"]["<image>"] = 300;
  json["added_tokens"][3]["id"] = 300;
  Write("tokenizer.json", json);
  const auto loaded = Load();
  ASSERT_TRUE(loaded.ok() && loaded->tokenizer != nullptr) << loaded.status();
  EXPECT_EQ(loaded->tokenizer->size(), 301);
  EXPECT_THAT(loaded->tokenizer->Encode("<image>a"), ElementsAre(300, 259));
  EXPECT_EQ(loaded->tokenizer->Decode({259, 280, 259}, false), "aa");
  EXPECT_FALSE(loaded->tokenizer->FindPiece("").has_value());
  Write("added_tokens.json", {{"x", 301}});
  EXPECT_THAT(WhyNot(), HasSubstr("has ids without a token"));
}

// transformers assigns new ids after the vocabulary, even if the file gives other ids.
TEST_F(TokenizerFolder, NewTokensGetNextIds) {
  nlohmann::json json = SmallJson();
  json["added_tokens"][3]["id"] = 300;
  Write("tokenizer.json", json);
  Write("added_tokens.json", {{"<image>", 266}, {"x", 305}});
  EXPECT_THAT(Ids("<image>x"), ElementsAre(266, 267));
  EXPECT_THAT(Load()->notes, AllOf(testing::Contains(HasSubstr("\"<image>\" is 266, as in")),
                                   testing::Contains(HasSubstr("\"x\" is 267, as in"))));
  json["added_tokens"].push_back(Added("y"));
  // "y" is listed after "<image>" (id 300): transformers' classes add the two in different orders.
  json["added_tokens"][4]["id"] = 299;
  Write("tokenizer.json", json);
  EXPECT_THAT(WhyNot(), HasSubstr("the id of \"y\" is 299, but transformers assigns 267"));
}

TEST_F(TokenizerFolder, NestedSequenceOfStepsIsAccepted) {
  using Json = nlohmann::json;
  Json json = SmallJson();
  const Json usual = json["normalizer"];
  const auto sequence = [](const Json& steps) {
    return Json{{"type", "Sequence"}, {"normalizers", steps}};
  };
  const Json of_one = sequence(Json::array({usual})), of_none = sequence(Json::array());
  json["normalizer"] = sequence(Json::array({of_none, of_one}));
  Write("tokenizer.json", json);
  EXPECT_EQ(Ids(" ab"), Ids("\u2581ab"));
  for (const Json& steps : {of_none, sequence(Json::array({usual, {{"type", "NFC"}}}))}) {
    json["normalizer"] = steps;
    Write("tokenizer.json", json);
    EXPECT_THAT(Load()->why_none, HasSubstr("the normalizer must only"));
  }
}

TEST_F(TokenizerFolder, NormalizedTokensMatchAfterOthers) {
  nlohmann::json json = SmallJson();
  json["added_tokens"][3]["normalized"] = true;
  Write("tokenizer.json", json);
  EXPECT_THAT(Ids("a<image>"), ElementsAre(259, 266));
  const auto name = [&](const std::string& text) {
    json["added_tokens"][3]["content"] = text;
    Write("tokenizer.json", json);
  };
  name("<an image>");
  EXPECT_THAT(Ids("a<an image><an\u2581image>"), ElementsAre(259, 266, 266));
  EXPECT_EQ(Load()->tokenizer->Decode({266}, false), "<an image>");
  name("b\n");
  EXPECT_THAT(Ids("b\nb\n\n"), ElementsAre(266, 260, 2))
      << "tokens that are not normalized are matched first";
  name("a<bos>b");
  EXPECT_THAT(Ids("a<bos>b"), ElementsAre(259, 1, 260));
  Write("added_tokens.json", {{"<an image>", 267}, {"<an\u2581image>", 268}});
  EXPECT_THAT(Load()->why_none, HasSubstr("with spaces written differently"));
}

TEST_F(TokenizerFolder, OwnChatTemplateIsLoaded) {
  Write("tokenizer.json", SmallJson());
  Write("tokenizer_config.json", {{"chat_template", ReadTestFile("gemma_chat.jinja")}});
  auto loaded = Load();
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  EXPECT_EQ(loaded->why_no_chats, "");
  EXPECT_THAT(loaded->notes, testing::Contains(HasSubstr("renders as Gemma 3's")));
  const std::string chatml = ReadTestFile("other_templates/chatml.jinja");
  Write("chat_template.json", {{"chat_template", chatml}});
  loaded = Load();
  EXPECT_THAT(loaded->why_no_chats, HasSubstr("the model has two chat templates that differ"));
  EXPECT_THAT(loaded->why_no_chats, HasSubstr("--chat-template gemma"));
  EXPECT_EQ(loaded->chat_template, nullptr);
  EXPECT_NE(loaded->tokenizer, nullptr) << "text prompts are still accepted";
  std::ofstream(folder_.path() + "/chat_template.jinja") << ReadTestFile("gemma_chat.jinja");
  loaded = Load();
  EXPECT_EQ(loaded->why_no_chats, "") << "chat_template.jinja precedes the other files";
  EXPECT_EQ(loaded->chat_template, nullptr) << "Gemma's template needs no Jinja";
  std::ofstream(folder_.path() + "/chat_template.jinja") << chatml;
  loaded = Load();
  EXPECT_EQ(loaded->why_no_chats, "");
  EXPECT_NE(loaded->chat_template, nullptr);
  EXPECT_THAT(loaded->notes, testing::Contains(HasSubstr("renders chats, by Python's Jinja")));
  std::ofstream(folder_.path() + "/chat_template.jinja") << "{% if %}";
  EXPECT_THAT(Load()->why_no_chats, AllOf(HasSubstr("chat_template.jinja, says: Expected an"),
                                          HasSubstr("--chat-template gemma")));
  loaded = Load(ChatTemplateChoice::kGemma);
  EXPECT_EQ(loaded->why_no_chats, "");
  EXPECT_EQ(loaded->chat_template, nullptr);
  EXPECT_THAT(loaded->notes, testing::Contains(HasSubstr("ignored: --chat-template gemma")));
}

TEST_F(TokenizerFolder, DefaultTemplateIsChosen) {
  Write("tokenizer.json", SmallJson());
  const nlohmann::json tool = {{"name", "tool_use"}, {"template", "{{ x }}"}};
  const nlohmann::json gemma = {{"name", "default"},
                                {"template", ReadTestFile("gemma_chat.jinja")}};
  Write("tokenizer_config.json", {{"chat_template", {tool, gemma}}});
  EXPECT_EQ(Load()->why_no_chats, "");
  Write("tokenizer_config.json", {{"chat_template", nlohmann::json::array({tool})}});
  EXPECT_THAT(Load()->why_no_chats,
              HasSubstr("tokenizer_config.json (chat_template must be a string"));
}

// A file that cannot be read may contain any template.
TEST_F(TokenizerFolder, UnreadableTemplateRefusesChats) {
  Write("tokenizer.json", SmallJson());
  const std::string file = folder_.path() + "/chat_template.json";
  const auto expect_refused = [&](const std::string& why) {
    const auto loaded = Load();
    ASSERT_TRUE(loaded.ok()) << loaded.status();
    EXPECT_THAT(loaded->why_no_chats, AllOf(HasSubstr(file + " (" + why), HasSubstr("not known")));
    EXPECT_THAT(loaded->notes, testing::Contains(HasSubstr(file + " (" + why)));
    EXPECT_NE(loaded->tokenizer, nullptr) << "text prompts are still accepted";
    EXPECT_EQ(Load(ChatTemplateChoice::kGemma)->why_no_chats, "");
  };
  std::ofstream(file) << "{\"chat_template\": \"{{ x }}";
  expect_refused("is not JSON");
  std::ofstream(file) << std::string(kMaxJsonFileBytes + 1, ' ');
  expect_refused("is larger than");
  std::filesystem::remove(file);
  ASSERT_EQ(mkfifo(file.c_str(), 0600), 0);
  expect_refused("is not a regular file");
  std::filesystem::remove(file);
  EXPECT_EQ(Load()->why_no_chats, "");
}

TEST_F(TokenizerFolder, OtherPostProcessorIsNoted) {
  const nlohmann::json bos = {{"SpecialToken", {{"id", "<bos>"}, {"type_id", 0}}}};
  const nlohmann::json eos = {{"SpecialToken", {{"id", "<eos>"}, {"type_id", 0}}}};
  const nlohmann::json text = {{"Sequence", {{"id", "A"}, {"type_id", 0}}}};
  const auto is_noted = [&](const nlohmann::json& single, bool is_sequence) {
    nlohmann::json processor = {{"type", "TemplateProcessing"}, {"single", single}};
    if (is_sequence) {
      const nlohmann::json other = {{"type", "ByteLevel"}, {"trim_offsets", false}};
      processor = {{"type", "Sequence"}, {"processors", {other, processor}}};
    }
    nlohmann::json json = SmallJson();
    json["post_processor"] = processor;
    Write("tokenizer.json", json);
    const auto loaded = Load();
    EXPECT_TRUE(loaded.ok()) << loaded.status();
    return loaded.ok() &&
           testing::Matches(testing::Contains(
               HasSubstr("post_processor of tokenizer.json does more, or less")))(loaded->notes);
  };
  for (const bool is_sequence : {false, true}) {
    EXPECT_FALSE(is_noted({bos, text}, is_sequence)) << "Gemma's";
    EXPECT_TRUE(is_noted(nlohmann::json::array({text}), is_sequence)) << "nothing before";
    EXPECT_TRUE(is_noted({bos, text, eos}, is_sequence)) << "<eos> after";
    EXPECT_TRUE(is_noted({eos, text}, is_sequence)) << "<eos> before";
    EXPECT_TRUE(is_noted({text, bos}, is_sequence)) << "<bos> after";
  }
}

}  // namespace
}  // namespace hearth
